"""What a nest is on a GPU, for a population: blocks, threads, memory, traffic. All arrays are (P,)."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np

from seer.codegen.gpu.combine import WARP
from seer.codegen.gpu.common import DEFAULT_THREADS, VECTOR
from seer.codegen.gpu.contiguous import move
from seer.codegen.gpu.mma import COLUMNS, ROWS, TERMS, Roles, matrix_roles
from seer.codegen.gpu.rows import threads_are_neighbours
from seer.codegen.gpu.staged import Dim, padding, staged_dims
from seer.dtypes import dtype as dtype_of
from seer.ir.dag import flop_count
from seer.ir.expr import Read, reads, variables
from seer.ir.sketch import Nest, Sketch
from seer.ir.tensor import ComputeOp
from seer.runtime.gpu import Gpu
from seer.search import analysis

# Registers that a thread uses besides accumulators and what it multiplies: addresses, counters.
OTHER_REGISTERS = 40
COPY_INSTRUCTIONS = 10  # of one load from the device and one store to shared memory
LOOP_INSTRUCTIONS = 4
DIRECT_DELAY = 0.25  # of everything, where the inner loop waits for the device's memory
DIRECT_COST = 3.0  # of a load that does not go through shared memory, in loads that do
ISSUE_RATE = 4  # instructions of warps that a multiprocessor starts in a cycle
WORD_CYCLES = 0.5  # of a warp's load of one word a thread, half of the threads reading the same
SECTOR_BYTES = 32  # what one access to the device's memory moves, at least


class GpuNest:
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
            out[self.roles.terms] = -(-out[self.roles.terms] // TERMS) * TERMS
        return out

    def staged(self) -> list[tuple[str, np.ndarray, tuple[Dim, ...]]]:
        """(tensor, choice, dims) of each tensor that may go through shared memory."""
        found = []
        for s in self.nest.bind.staged if self.nest.bind else ():
            dims = _dims(self.sketch, self.nest.stage, s.tensor)
            found.append((s.tensor, self.column(s.param, 0), dims))
        return found

    @cached_property
    def shared_bytes(self) -> np.ndarray:
        """Static shared memory of a block."""
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
                dims = _dims(self.sketch, self.nest.stage, r.tensor.name)
                extents = [d.extent(self.covered) for d in dims]
                extents[-1] = extents[-1] + padding(extents[-1], dims[-1], set(self.reduced))
                n = self.ones()
                for e in extents:
                    n = n * e
                out += _aligned(n * 4 * self.stages)
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
        return threads_are_neighbours(self.nest, dag.op, lambda e: analysis.expand(dag, e, inlined))

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
            parts: np.ndarray = 3 * (4 * self.pieces[0] + 2 * self.pieces[1])
            return parts
        if self.pattern != "tiled":
            return self.tile
        out: np.ndarray = np.zeros(self.count, dtype=np.int64)
        for r in _reads_of(self.sketch, self.nest.stage):
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

    @cached_property
    def cycles(self) -> np.ndarray:
        """Cycles that the warps of one block together keep a multiprocessor busy, were nothing to wait for.

        A warp's multiply-adds, its loads from shared memory and every other instruction each have a
        rate of their own; the slowest counts.
        """
        g = self.gpu
        fma_cycles = g.warp_size * 2 * g.num_sms * g.clock_hz / g.flops
        warps = np.ceil(self.threads / g.warp_size)
        if self.pattern == "mma":
            by_matrices: np.ndarray = warps * self._matrix_cycles()
            return by_matrices
        if self.pattern != "tiled":
            per_thread = self.flop * self.padded / (self.blocks * self.threads)
            simple: np.ndarray = warps * per_thread * fma_cycles
            return simple
        terms = self.product(self.reduced, 0, 1, 2).astype(float)
        fma = self.tile * terms
        loads, words, copies = np.zeros(self.count), np.zeros(self.count), np.zeros(self.count)
        chosen = {t: (choice, dims) for t, choice, dims in self.staged()}
        for r in _reads_of(self.sketch, self.nest.stage):
            used = set().union(*(variables(i) for i in r.indices)) if r.indices else set()
            mine = self.product([a for a in self.axes if a in used], 1, 3, 4)
            choice, dims = chosen.get(r.tensor.name, (np.zeros(self.count, dtype=np.int64), ()))
            words += mine * terms * np.where(choice > 0, 1.0, DIRECT_COST)
            spatial = [d for d in dims if any(a in self.axes for a, _ in d.terms)]
            near = np.zeros(self.count, dtype=bool)
            for k, last in ((1, dims[-1:]), (2, spatial[-1:])):
                for d in last:
                    inner = [a for a, c in d.terms if c == 1 and a in self.axes]
                    if inner:
                        near |= (choice == k) & (self.trip(inner[-1], 4) % VECTOR == 0)
            loads += mine * terms * np.where(choice > 0, 1.0 / np.where(near, VECTOR, 1), DIRECT_COST)
            piece = np.ones(self.count)
            for d in dims:
                piece = piece * d.extent(self.covered)
            if dims:
                extent, shape = dims[-1].extent(self.covered), r.tensor.shape[-1]
                wide = (extent % VECTOR == 0) & (shape % VECTOR == 0)
                rounds = np.ceil(piece / self.threads / np.where(wide, VECTOR, 1))
                stores = np.where(wide & (choice == 2), VECTOR, 1)
                mine_too = rounds * self.product(self.reduced, 0) * (COPY_INSTRUCTIONS + stores)
                copies += np.where(choice > 0, mine_too, 0)
        unrolled = np.maximum(self.column(self.nest.unroll, 0), self.tile) / np.maximum(self.tile, 1)
        loops = terms / np.maximum(unrolled, 1) * LOOP_INSTRUCTIONS
        issued = (fma + loads + copies + loops) / ISSUE_RATE
        slowest = np.maximum(np.maximum(fma * fma_cycles, issued), words * WORD_CYCLES + copies)
        direct = sum(((choice == 0).astype(float) for choice, _ in chosen.values()), np.zeros(self.count))
        total: np.ndarray = warps * slowest * (1 + DIRECT_DELAY * direct)
        return total

    def _matrix_cycles(self) -> np.ndarray:
        """Cycles of one warp's share of a block's matrix product."""
        g = self.gpu
        eights = np.ones(self.count)
        for a in self.op.reduce_axes:
            eights = eights * -(-max(a.extent, 1) // self.covered[a.name]) * self.covered[a.name]
        eights = eights / TERMS
        mma = 3 * 2 * ROWS * COLUMNS * TERMS * g.num_sms * g.clock_hz / g.tf32_flops
        loads = 4.0 * self.pieces[0] + 2.0 * self.pieces[1]
        multiplied = self.pieces[0] * self.pieces[1] * mma
        issued = (self.pieces[0] * self.pieces[1] * 3 + loads * 4) / ISSUE_RATE
        copies = self._copied() / self.threads / VECTOR * COPY_INSTRUCTIONS
        total: np.ndarray = eights * np.maximum(multiplied, np.maximum(issued, loads)) + copies / ISSUE_RATE
        return total

    def _copied(self) -> np.ndarray:
        """Elements that a block of a matrix product copies to shared memory."""
        chunks = np.ones(self.count)
        for a in self.op.reduce_axes:
            chunks = chunks * np.ceil(max(a.extent, 1) / self.covered[a.name])
        out = np.zeros(self.count)
        for r in (self.roles.a, self.roles.b):
            piece = np.ones(self.count)
            for d in _dims(self.sketch, self.nest.stage, r.tensor.name):
                piece = piece * d.extent(self.covered)
            out += piece * chunks
        return out

    # -- how full the machine is -----------------------------------------------------------------

    @cached_property
    def blocks_per_sm(self) -> np.ndarray:
        """Blocks that one multiprocessor holds at once (0: none fits)."""
        g = self.gpu
        warps = -(-self.threads // g.warp_size)
        per_warp = np.maximum(np.minimum(self.registers, g.registers_per_thread), 16) * g.warp_size
        limits = [
            np.full(self.count, g.max_blocks_per_sm),
            g.max_threads_per_sm // np.maximum(warps * g.warp_size, 1),
            g.registers_per_sm // np.maximum(per_warp * warps, 1),
            g.shared_bytes_per_sm // (self.shared_bytes + 1024),
        ]
        out: np.ndarray = np.min(np.stack(limits), axis=0)
        return out

    @cached_property
    def occupancy(self) -> np.ndarray:
        """Warps that a multiprocessor holds, as a share of what it can."""
        g = self.gpu
        warps = np.minimum(self.blocks_per_sm, -(-self.blocks // g.num_sms)) * -(-self.threads // g.warp_size)
        share: np.ndarray = warps * g.warp_size / g.max_threads_per_sm
        return share

    @cached_property
    def busy(self) -> np.ndarray:
        """Which share of the multiprocessors' time blocks fill: the last wave is rarely full."""
        at_once = self.gpu.num_sms * np.maximum(self.blocks_per_sm, 1)
        waves = np.ceil(self.blocks / at_once)
        per_sm = np.ceil(self.blocks / self.gpu.num_sms)
        whole = np.maximum(waves - 1, 0) * np.maximum(self.blocks_per_sm, 1)
        rest = np.minimum(per_sm - whole, self.blocks_per_sm)
        share: np.ndarray = self.blocks / (self.gpu.num_sms * np.maximum(whole + rest, 1))
        return share

    # -- work and traffic ------------------------------------------------------------------------

    @cached_property
    def flop(self) -> float:
        """Operations of all stages of the nest."""
        dag = self.sketch.dag
        stages = {self.nest.stage, self.nest.output, *self.reductions}
        return float(sum(flop_count(dag.tensor(s)) for s in stages)) + self.points

    @cached_property
    def padded(self) -> np.ndarray:
        """By how much tiles that reach over the end of axes add to the work."""
        out: np.ndarray = np.ones(self.count)
        if self.pattern == "tiled":
            for a in (*self.op.axes, *self.op.reduce_axes):
                out = out * (self.step(a.name, 0) * self.trip(a.name, 0) / max(a.extent, 1))
            return out
        if self.pattern == "mma":
            return out
        if self.pattern == "rows":
            out = out * self.blocks * self.rows_per_block / self.num_rows
        else:
            out = out * self.blocks * self.threads * self.items / self.points
        return out

    @cached_property
    def unique_bytes(self) -> float:
        """Bytes read and written if everything is moved once."""
        dag = self.sketch.dag
        stages = {self.nest.stage, self.nest.output, *self.reductions}
        read: dict[str, float] = {}  # no more of a tensor than is asked for (the rows of a table)
        for s in stages:
            for r in _reads_of_expanded(self.sketch, s):
                read[r.tensor.name] = read.get(r.tensor.name, 0.0) + self._points_of(s)
        total = 0.0
        for name in read.keys() - stages:
            t = dag.tensor(name)
            total += min(read[name], float(math.prod(t.shape))) * dtype_of(t.dtype).size_bytes
        out = dag.tensor(self.nest.output)
        return float(total + math.prod(out.shape) * dtype_of(out.dtype).size_bytes)

    @cached_property
    def moved_bytes(self) -> np.ndarray:
        """Bytes that all blocks together ask of the caches and the device's memory."""
        out: np.ndarray = np.full(self.count, float(self.points * self.size))
        if self.pattern == "mma":
            out = out + 4 * self.blocks * self._copied()
            return out
        if self.pattern != "tiled":
            for s in {self.nest.stage, self.nest.output, *self.reductions}:
                out += len(_reads_of_expanded(self.sketch, s)) * self._points_of(s) * self.size
            out = out * self.waste
            return out
        steps = self.blocks * self.product(self.reduced, 0)
        chosen = {t: (choice, dims) for t, choice, dims in self.staged()}
        for r in _reads_of(self.sketch, self.nest.stage):
            size = dtype_of(r.tensor.dtype).size_bytes
            used = set().union(*(variables(i) for i in r.indices)) if r.indices else set()
            direct = (
                steps * self.threads * self.product([a for a in self.axes if a in used], 1, 3, 4)
            ) * self.product([a for a in self.reduced if a in used], 1, 2)
            choice, dims = chosen.get(r.tensor.name, (np.zeros(self.count, dtype=np.int64), ()))
            piece = np.ones(self.count)
            for d in dims:
                piece = piece * d.extent(self.covered)
            row = dims[-1].extent(self.covered) * size if dims else self.ones() * size
            waste = np.ceil(row / SECTOR_BYTES) * SECTOR_BYTES / row
            if not dims:
                out += size * direct
                continue
            # What threads read where it lies is read again where the first-level cache forgot it.
            out += size * steps * piece * waste * np.where(choice > 0, 1.0, 1.5)
        return out

    def _points_of(self, stage: str) -> float:
        op = self.sketch.dag.op(stage)
        return float(math.prod(a.extent for a in (*op.axes, *op.reduce_axes)))

    @cached_property
    def waste(self) -> np.ndarray:
        """Bytes moved for each byte used, where neighbouring threads read apart."""
        if self.pattern in ("tiled", "mma"):
            return np.ones(self.count)
        axis = self._fast_axis()
        if axis is None:
            return np.ones(self.count)
        worst = []
        ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*self.op.axes, *self.op.reduce_axes)}
        for r in _reads_of_expanded(self.sketch, self.nest.stage):
            step = move(r, axis, ranges)
            worst.append(min(max(step * self.size, 1), SECTOR_BYTES) / self.size if step > 1 else 1.0)
        return np.full(self.count, max(sum(worst) / len(worst), 1.0) if worst else 1.0)

    def _fast_axis(self) -> str | None:
        """The axis along which neighbouring threads lie."""
        if self.pattern == "rows" and self.is_near and self.op.reduce_axes:
            return self.op.reduce_axes[-1].name
        real = [a.name for a in self.op.axes if a.extent > 1]
        return real[-1] if real else None

    @cached_property
    def serial(self) -> np.ndarray:
        """Terms that a thread combines one after another, its accumulators at once."""
        if self.pattern == "tiled":
            return self.product(self.reduced, 0, 1, 2)
        if self.pattern == "mma":
            return np.full(self.count, self.terms / TERMS)
        if self.pattern == "rows":
            out = np.zeros(self.count)
            for s in self.reductions or [self.nest.stage]:
                op = self.sketch.dag.op(s)
                out += np.ceil(math.prod(a.extent for a in op.reduce_axes) / self.row_threads)
            return out + np.ceil(self.points / self.num_rows / self.row_threads)
        return self.items * float(self.terms)

    @cached_property
    def steps(self) -> np.ndarray:
        """Times that the threads of a block wait for each other."""
        if self.pattern == "tiled":
            return self.product(self.reduced, 0) * (self.shared_bytes > 0)
        if self.pattern == "mma":
            out = np.ones(self.count)
            for a in self.op.reduce_axes:
                out = out * np.ceil(max(a.extent, 1) / self.covered[a.name])
            return out
        if self.pattern == "rows":
            tree = np.log2(np.maximum(self.row_threads, 1)) + 1
            return len(self.reductions) * np.where(self.is_near, 2.0, tree)
        return np.zeros(self.count)


def _aligned(size: np.ndarray) -> np.ndarray:
    out: np.ndarray = -(-size // 16) * 16
    return out


@lru_cache(maxsize=4096)
def _dims(sketch: Sketch, stage: str, tensor: str) -> tuple[Dim, ...]:
    dims = staged_dims(sketch.dag, stage, tensor)
    assert dims is not None
    return dims


@lru_cache(maxsize=4096)
def _reads_of(sketch: Sketch, stage: str) -> tuple[Read, ...]:
    """The reads of a stage as it is written."""
    return tuple(reads(sketch.dag.op(stage).body))


@lru_cache(maxsize=4096)
def _reads_of_expanded(sketch: Sketch, stage: str) -> tuple[Read, ...]:
    """The distinct reads of a stage with inlined stages expanded."""
    body = analysis.expand(sketch.dag, sketch.dag.op(stage).body, sketch.inlined)
    return tuple(dict.fromkeys(reads(body)))


def gpu_nests(sketch: Sketch, rows: np.ndarray, gpu: Gpu) -> list[GpuNest]:
    """The kernels of a sketch."""
    return [GpuNest(sketch, n, rows, gpu) for n in sketch.nests]
