"""Good parameters without a search: what an untuned model runs, and where a search starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.ir.dag import ComputeDAG, compute_op, expand
from seer.ir.expr import reads, variables
from seer.ir.sketch import PREFETCHED, Consumer, Nest, Pack, Sketch, Split
from seer.ir.tensor import ComputeOp, Placeholder
from seer.runtime.target import Target
from seer.search import analysis
from seer.search.gpu_defaults import gpu_default_number, gpu_default_row
from seer.search.rules import generate_sketches

FEW_TILES = 4  # register tiles to a panel of weights: it is asked for ahead
MANY_USES = 1024  # of each element: a copy made at run time pays


def default_candidate(dag: ComputeDAG, target: Target) -> tuple[Sketch, np.ndarray]:
    """The best sketch and row by rule of thumb, without measuring."""
    sketches = generate_sketches(dag, target)
    sketch = sketches[default_number(sketches, target)]
    return sketch, default_row(sketch, target)


def default_number(sketches: Sequence[Sketch], target: Target) -> int:
    """Which of a task's sketches an untuned model runs."""
    if target.gpu is not None:
        return gpu_default_number(sketches, target)
    return 1 if len(sketches) > 1 else 0


def default_row(sketch: Sketch, target: Target) -> np.ndarray:
    """A canonical (n_params,) row: full register tiles, cache-sized blocks, balanced threads."""
    if target.gpu is not None:
        return gpu_default_row(sketch, target)
    values: dict[str, int] = {}
    for p in sketch.params:
        if p.kind == "tile":
            values[p.name] = 1
        elif p.kind == "unroll":
            values[p.name] = 64
        elif p.kind == "location":
            values[p.name] = _location(p.choices)
        elif p.kind == "choice":
            values[p.name] = 0
        else:
            values[p.name] = p.choices[-1]
    for nest in sketch.all_nests():
        values.update(_Tiles(sketch, nest, target).choose())
        values.update({k.param: _packed(sketch, nest, k, values) for k in nest.packs})
    values.update({p.name: p.choices[0] for p in sketch.params if p.kind == "tile" and p.choices})
    row: np.ndarray = sketch.canonical(sketch.row(values)[None])[0]
    return row


def _packed(sketch: Sketch, nest: Nest, pack: Pack, values: dict[str, int]) -> int:
    """Whether to read a copy: for vectors, where it costs nothing or much is read from it."""
    if not pack.loops or pack.loops[-1].axis != nest.vector:
        return 0  # broadcast element by element, which needs no copy
    inner = {x.axis for x in nest.groups[-1]}
    others = [s for s in nest.splits if s.axis in inner and s.axis not in pack.dims]
    op = sketch.dag.tensor(pack.tensor).op
    if isinstance(op, Placeholder) and op.constant:
        tiles = math.prod(-(-s.extent // (values[s.params[-1]] if s.params else 1)) for s in others)
        streams = PREFETCHED in sketch.params[sketch.column(pack.param)].choices
        return PREFETCHED if streams and tiles <= FEW_TILES else 1
    uses = math.prod(s.extent for s in others)
    return int(uses >= MANY_USES or not _neighbours(sketch.dag, nest, pack.tensor))


def _neighbours(dag: ComputeDAG, nest: Nest, tensor: str) -> bool:
    """Whether the lanes of a vector lie side by side where a tensor really comes from."""
    seen_through = tuple(t.name for t in dag.ops if compute_op(t).reducer is None and t.name != nest.stage)
    body = dag.op(nest.stage).body
    direct = [r for r in reads(body) if r.tensor.name == tensor]
    found = [r for d in direct for r in reads(expand(d, seen_through))]
    return all(analysis.lanes_of(r.indices, nest.vector) != analysis.APART for r in found)


def _location(choices: tuple[int, ...]) -> int:
    """Inside the first group where possible: what is made for a tile is still in cache."""
    return choices[0]


@dataclass(frozen=True)
class _Tiles:
    """Tile sizes of one nest."""

    sketch: Sketch
    nest: Nest
    target: Target

    def choose(self) -> dict[str, int]:
        op = self.sketch.dag.op(self.nest.stage)
        reduce_names = [a.name for a in op.reduce_axes]
        lanes = self.target.lanes(op.body.dtype)
        spatial = [s for s in self.nest.splits if s.axis not in reduce_names and s.params]
        reduced = [s for s in self.nest.splits if s.axis in reduce_names and s.params]
        out: dict[str, int] = {}
        if self.nest.vector in reduce_names:
            split = self.nest.split(self.nest.vector)
            return {split.params[0]: _lane_tile(split.extent, lanes)}
        rows = self._register_tile(spatial, lanes, bool(op.reducer), out)
        if len(reduced) > 0:
            # The innermost reduce axis runs whole next to the register tile.
            out[reduced[-1].params[-1]] = reduced[-1].extent
        deep = [s for s in spatial if len(s.params) >= 2]
        if self.nest.consumer is not None:  # all vectors in one block: what it reads is made for it once
            for s in (s for s in deep if s.axis == self.nest.vector):
                out[s.params[0]] = -(-s.extent // out[s.params[-1]])
            deep = [s for s in deep if s.axis != self.nest.vector]
        if deep:
            terms = math.prod(a.extent for a in op.reduce_axes)
            self._blocks(deep, rows, terms, out)
        return out

    def _register_tile(
        self, spatial: list[Split], lanes: int, reduces: bool, out: dict[str, int]
    ) -> str | None:
        """Fill the registers: vectors along the vector axis, rows along one other axis."""
        vectors = 1
        for s in spatial:
            if s.axis == self.nest.vector:
                wide = 2 if self.target.num_vector_registers <= 16 else 4
                vectors = max(1, min(wide, s.extent // lanes))
                out[s.params[-1]] = min(s.extent, vectors * lanes)
        others = [s for s in spatial if s.axis != self.nest.vector and len(s.params) >= 1]
        if not reduces or not others or len(self.nest.groups) < 4:
            return None
        spare = 2 if self.nest.consumer is not None else vectors + 1
        most = max(1, (self.target.num_vector_registers - spare) // vectors)
        best = max(others, key=lambda s: (self._shares(s.axis), min(s.extent, most), others.index(s)))
        out[best.params[-1]] = _row_tile(best.extent, most, vectors)
        return best.axis

    def _shares(self, axis: str) -> bool:
        """Whether the vectors that are loaded serve several positions of an axis."""
        found = reads(self.sketch.dag.op(self.nest.stage).body)
        used = [set().union(*(variables(i) for i in r.indices)) for r in found if r.indices]
        return all(axis not in u for u in used if self.nest.vector in u)

    def _follows_another(self) -> bool:
        """Whether the nest reads what a straight-code nest of the same kernel has computed."""
        dag = self.sketch.dag
        found = reads(dag.op(self.nest.stage).body)
        return any(isinstance(r.tensor.op, ComputeOp) and r.tensor.op.written_out for r in found)

    def _shared_bytes(self) -> int:
        """Bytes of the tensors that vectors are loaded from."""
        op = self.sketch.dag.op(self.nest.stage)
        tensors = {
            r.tensor for r in reads(op.body) if any(self.nest.vector in variables(i) for i in r.indices)
        }
        return sum(math.prod(t.shape) * dtype_of(t.dtype).size_bytes for t in tensors)

    def _positions(self, consumer: Consumer, terms: int) -> int:
        """Positions of a block: what is made for them lies in the cache beside what all blocks read."""
        blocked = {mine for mine, _, _ in consumer.axes}
        axes = self.sketch.dag.op(self.nest.stage).axes
        whole = math.prod(a.extent for a in axes if a.name not in blocked)
        wide = math.prod(a.extent for a in axes if a.name == self.nest.vector)
        left = max(0, self.target.l2_bytes - self._shared_bytes())
        return max(1, left // 2 // max(1, 4 * whole * (terms + wide)))

    def _blocks(self, deep: list[Split], rows: str | None, terms: int, out: dict[str, int]) -> None:
        """Group register tiles: rows that share a packed panel innermost, then panels."""
        tiles = {s.axis: -(-s.extent // out.get(s.params[-1], 1)) for s in deep}
        inner = next((s for s in deep if s.axis == rows), None)
        budget = max(1, self.target.l2_bytes // 2 // max(1, 4 * terms))
        if self.nest.consumer is not None:
            budget = self._positions(self.nest.consumer, terms)
        blocks = dict(tiles)
        if inner is not None and len(inner.params) >= 2:
            size = out.get(inner.params[-1], 1)
            most = max(1, budget // size)
            if inner is deep[0] and self._follows_another() and self._shared_bytes() <= self.target.l2_bytes:
                # Threads take the same rows that they made in the loops before: some for each of them.
                # What the rows share is read again for each of them, so it must be at hand.
                most = min(most, max(1, tiles[inner.axis] // (16 * self.target.num_threads)))
            out[inner.params[-2]] = _divide_evenly(tiles[inner.axis], most)
            blocks[inner.axis] = -(-tiles[inner.axis] // out[inner.params[-2]])
        for s in deep:
            if s.axis == self.nest.vector and len(s.params) >= 3:
                wanted = 8 * self.target.num_threads
                others = math.prod(n for a, n in blocks.items() if a != s.axis)
                pieces = min(blocks[s.axis], max(1, -(-wanted // others)))
                out[s.params[-3]] = -(-blocks[s.axis] // pieces)


def _lane_tile(extent: int, lanes: int) -> int:
    """Vectors that hide the latency of an add: up to four, as many as divide the axis well."""
    return lanes * max(1, min(4, extent // lanes))


def _row_tile(extent: int, most: int, vectors: int) -> int:
    """Rows of a register tile: few loads per multiply-add and little waste at the end."""

    def worth(t: int) -> float:
        waste = extent / (-(-extent // t) * t)
        return waste * (t * vectors) / (t * vectors + t + vectors + 2)

    return max(range(1, min(most, extent) + 1), key=worth)


def _divide_evenly(count: int, most: int) -> int:
    """The largest even share of `count` not above `most`."""
    pieces = -(-count // max(1, min(most, count)))
    return -(-count // pieces)
