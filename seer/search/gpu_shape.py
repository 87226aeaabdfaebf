"""What a nest is on a GPU, for a population: blocks, threads, memory, registers. All arrays are (P,)."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np

from seer.codegen.gpu.combine import WARP
from seer.codegen.gpu.common import DEFAULT_THREADS, VECTOR
from seer.codegen.gpu.mma import COLUMNS, ROWS, Roles, matrix_roles
from seer.codegen.gpu.rows import threads_are_neighbours
from seer.codegen.gpu.staged import Dim, padding, staged_dims
from seer.dtypes import dtype as dtype_of
from seer.dtypes import is_narrow
from seer.ir.dag import expand
from seer.ir.expr import Read, reads, variables
from seer.ir.sketch import Nest, Sketch
from seer.ir.tensor import ComputeOp
from seer.runtime.gpu import Gpu

# Registers that a thread uses besides accumulators and what it multiplies: addresses, counters.
OTHER_REGISTERS = 40


class GpuShape:
    """One root nest for a population of rows (P, n_params)."""

    def __init__(self, sketch: Sketch, nest: Nest, rows: np.ndarray, gpu: Gpu) -> None:
        self.sketch, self.nest, self.rows, self.gpu = sketch, nest, rows, gpu
        self.count = len(rows)
        self.op: ComputeOp = sketch.dag.op(nest.stage)
        self.pattern = "flat" if nest.bind is None else nest.bind.pattern
        self.axes = [a.name for a in self.op.axes]
        self.reduced = [a.name for a in self.op.reduce_axes]
        self.points = max(math.prod(a.extent for a in self.op.axes), 1)
        self.terms = max(math.prod(a.extent for a in self.op.reduce_axes), 1)
        self.size = dtype_of(self.op.body.dtype).size_bytes

    def column(self, param: str | None, default: int) -> np.ndarray:
        """The values of a param that may not be there."""
        if param is None:
            return np.full(self.count, default, dtype=np.int64)
        return self.rows[:, self.sketch.column(param)]

    def ones(self) -> np.ndarray:
        return np.ones(self.count, dtype=np.int64)

    def trip(self, axis: str, level: int) -> np.ndarray:
        """Trips of one level of an axis."""
        split = self.nest.split(axis)
        if level == 0:
            step = self.step(axis, 0)
            out: np.ndarray = -(-max(split.extent, 1) // step)
            return out
        return self.column(split.params[level - 1], 1) if level <= len(split.params) else self.ones()

    def step(self, axis: str, level: int) -> np.ndarray:
        """How far one iteration of a level moves along its axis."""
        out = self.ones()
        for p in self.nest.split(axis).params[level:]:
            out = out * self.column(p, 1)
        return out

    def product(self, axes: list[str], *levels: int) -> np.ndarray:
        out = self.ones()
        for a in axes:
            for level in levels:
                out = out * self.trip(a, level)
        return out

    # -- the grid ------------------------------------------------------------------------------

    @cached_property
    def rows_per_block(self) -> np.ndarray:
        return self.column(self.nest.bind.rows if self.nest.bind else None, 1)

    @cached_property
    def row_threads(self) -> np.ndarray:
        """Threads of a row, or of a flat block."""
        return self.column(self.nest.bind.threads if self.nest.bind else None, DEFAULT_THREADS)

    @cached_property
    def items(self) -> np.ndarray:
        return self.column(self.nest.bind.items if self.nest.bind else None, 1)

    @cached_property
    def stages(self) -> np.ndarray:
        """Pieces of each tensor in shared memory at once."""
        return self.column(self.nest.bind.stages if self.nest.bind else None, 1)

    @cached_property
    def threads(self) -> np.ndarray:
        """Threads of a block."""
        if self.pattern == "mma":
            all_warps: np.ndarray = WARP * self.warps[0] * self.warps[1]
            return all_warps
        if self.pattern == "tiled":
            return self.product(self.axes, 2)
        return self.row_threads * (self.rows_per_block if self.pattern == "rows" else 1)

    @cached_property
    def warps(self) -> tuple[np.ndarray, np.ndarray]:
        """Warps along the rows and the columns of a matrix product."""
        assert self.nest.bind is not None
        rows, columns = (self.column(p, 1) for p in self.nest.bind.warps)
        return rows, columns

    @cached_property
    def roles(self) -> Roles:
        """The axes of a matrix product."""
        roles = matrix_roles(self.sketch.dag, self.nest.stage)
        assert roles is not None
        return roles

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """Small matrices of a warp along rows and columns."""
        out = []
        for axes, unit, warps in zip(
            (self.roles.rows, self.roles.columns), (ROWS, COLUMNS), self.warps, strict=True
        ):
            size = self.ones()
            for a in axes:
                size = size * self.step(a, 0)
            out.append(-(-size // (unit * warps)))
        return out[0], out[1]

    @cached_property
    def num_rows(self) -> int:
        over = {x.axis for x in self.nest.groups[0]}
        return max(math.prod(a.extent for a in self.op.axes if a.name in over), 1)

    @cached_property
    def blocks(self) -> np.ndarray:
        if self.pattern in ("tiled", "mma"):
            return self.product(self.axes, 0)
        if self.pattern == "rows":
            out: np.ndarray = -(-self.num_rows // self.rows_per_block)
            return out
        last = self.op.axes[-1].extent if self.op.axes else 1
        wide = (self.items % VECTOR == 0) & (last % VECTOR == 0) & bool(self.op.axes)
        width = np.where(wide, VECTOR, 1)
        pieces = np.maximum(self.points // width, 1)
        result: np.ndarray = -(-pieces // (self.threads * (self.items // width)))
        return result

    @cached_property
    def vthreads(self) -> np.ndarray:
        return self.product(self.axes, 1) if self.pattern == "tiled" else self.ones()

    # -- memory of a block -----------------------------------------------------------------------

    @cached_property
    def covered(self) -> dict[str, np.ndarray]:
        """Positions of each axis that a block's copies cover."""
        out = {a: self.step(a, 0) for a in (*self.axes, *self.reduced)}
        if self.pattern == "mma":
            unit = self.roles.piece_terms
            out[self.roles.terms] = -(-out[self.roles.terms] // unit) * unit
        return out

    def staged(self) -> list[tuple[str, np.ndarray, tuple[Dim, ...]]]:
        """(tensor, choice, dims) of each tensor that may go through shared memory."""
        found = []
        for s in self.nest.bind.staged if self.nest.bind else ():
            dims = dims_of(self.sketch, self.nest.stage, s.tensor)
            found.append((s.tensor, self.column(s.param, 0), dims))
        return found

    @cached_property
    def shared_bytes(self) -> np.ndarray:
        """Shared memory of a block."""
        out = np.zeros(self.count, dtype=np.int64)
        if self.pattern == "tiled":
            for tensor, choice, dims in self.staged():
                n = self.ones()
                for d in dims:
                    n = n * d.extent(self.covered)
                size = n * dtype_of(self.sketch.dag.tensor(tensor).dtype).size_bytes * self.stages
                out += np.where(choice > 0, _aligned(size), 0)
        if self.pattern == "mma":
            for r in (self.roles.a, self.roles.b):
                dims = dims_of(self.sketch, self.nest.stage, r.tensor.name)
                extents = [d.extent(self.covered) for d in dims]
                dtype, unit = r.tensor.dtype, self.roles.piece_terms
                extents[-1] = extents[-1] + padding(extents[-1], dims[-1], set(self.reduced), dtype, unit)
                n = self.ones()
                for e in extents:
                    n = n * e
                out += _aligned(n * dtype_of(dtype).size_bytes * self.stages)
        if self.pattern == "rows":
            exchanges = self.is_near & (self.threads % WARP == 0)
            for s in self.reductions:
                element = dtype_of(self.sketch.dag.tensor(s).dtype).size_bytes
                by_warp = np.where(self.row_threads > WARP, self.threads // WARP * element, 0)
                tree = np.where(self.row_threads > 1, self.threads * element, 0)
                out += np.where(exchanges, _aligned(by_warp), _aligned(tree))
        return out

    @cached_property
    def reductions(self) -> list[str]:
        """The stages that the threads of a row reduce together."""
        own = [self.nest.stage] if self.op.reducer is not None else []
        return [*own, *(a.nest.stage for a in self.nest.attached)]

    @cached_property
    def is_near(self) -> bool:
        """Whether the threads of a row are neighbours."""
        dag, inlined = self.sketch.dag, self.sketch.inlined
        return threads_are_neighbours(self.nest, dag.op, lambda e: expand(e, inlined))

    @cached_property
    def tile(self) -> np.ndarray:
        """Accumulators of a thread."""
        if self.pattern == "tiled":
            return self.product(self.axes, 1, 3, 4)
        if self.pattern == "mma":
            matrices: np.ndarray = 4 * self.pieces[0] * self.pieces[1]
            return matrices
        return np.where(self.items % VECTOR == 0, VECTOR, 1) if self.op.reducer is not None else self.ones()

    @cached_property
    def fragments(self) -> np.ndarray:
        """Values that a thread loads for one term of each accumulator."""
        if self.pattern == "mma":
            # A float32 is split into two numbers of fewer bits.
            a, b = (1 if is_narrow(t) else 3 for t in self.roles.types)
            parts: np.ndarray = a * 4 * self.pieces[0] + b * 2 * self.pieces[1]
            return parts
        if self.pattern != "tiled":
            return self.tile
        out: np.ndarray = np.zeros(self.count, dtype=np.int64)
        for r in reads_of(self.sketch, self.nest.stage):
            used = set().union(*(variables(i) for i in r.indices)) if r.indices else set()
            out += self.product([a for a in self.axes if a in used], 1, 3, 4)
        return out

    @cached_property
    def registers(self) -> np.ndarray:
        """An estimate of a thread's registers."""
        words = -(-self.size // 4)
        needed = OTHER_REGISTERS + words * (self.tile + np.minimum(self.fragments, 2 * self.tile))
        if self.pattern == "tiled":
            # Elements that are read where they lie have an address each.
            any_direct = np.zeros(self.count, dtype=bool)
            for _, choice, _ in self.staged():
                any_direct |= choice == 0
            needed = needed + np.where(any_direct, self.tile // 2, 0)
        out: np.ndarray = -(-needed // 8) * 8
        return out


def _aligned(size: np.ndarray) -> np.ndarray:
    out: np.ndarray = -(-size // 16) * 16
    return out


@lru_cache(maxsize=4096)
def dims_of(sketch: Sketch, stage: str, tensor: str) -> tuple[Dim, ...]:
    """How a stage reads a tensor that it may copy to shared memory."""
    dims = staged_dims(sketch.dag, stage, tensor)
    assert dims is not None
    return dims


@lru_cache(maxsize=4096)
def reads_of(sketch: Sketch, stage: str) -> tuple[Read, ...]:
    """The reads of a stage as it is written."""
    return tuple(reads(sketch.dag.op(stage).body))


@lru_cache(maxsize=4096)
def reads_of_expanded(sketch: Sketch, stage: str) -> tuple[Read, ...]:
    """The distinct reads of a stage with inlined stages expanded."""
    body = expand(sketch.dag.op(stage).body, sketch.inlined)
    return tuple(dict.fromkeys(reads(body)))
