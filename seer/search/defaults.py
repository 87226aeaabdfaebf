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
from seer.search.blocking import Blocking
from seer.search.gpu_defaults import gpu_default_number, gpu_default_row
from seer.search.rules import generate_sketches

FEW_TILES = 4  # register tiles to a panel of weights
UNROLL = 64  # statements that a reduce loop next to the register tile is unrolled to
LATENCY = 8  # sums that two units with a latency of four cycles work on at a time
CACHE_TILED = 2  # groups round the reduction where its blocks add to a tile in memory
PANELS = 4  # that one block of rows is read for while it is in the first-level cache
FEW_ROWS = 4  # register tiles that share a panel: too few for a block of it to pay
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
    if len(sketches) < 2:
        return 0
    for nest in sketches[1].all_nests():
        if _Tiles(sketches[1], nest, target).outgrows_cache():
            return next((k for k, s in enumerate(sketches) if _accumulates(s, nest, sketches[1])), 1)
    return 1


def _accumulates(sketch: Sketch, nest: Nest, other: Sketch) -> bool:
    """Whether a sketch differs from another in that a nest's reduction is cut into blocks."""
    same = {n.stage: n for n in sketch.all_nests()}
    rest = [n for n in other.all_nests() if n.stage != nest.stage]
    mine = same.get(nest.stage)
    return (
        sketch.algorithm == other.algorithm
        and mine is not None
        and mine.finish == CACHE_TILED
        and len(same) == len(rest) + 1
        and all(n.stage in same and same[n.stage].finish == n.finish for n in rest)
    )


def default_row(sketch: Sketch, target: Target) -> np.ndarray:
    """A canonical (n_params,) row: full register tiles, cache-sized blocks, balanced threads."""
    if target.gpu is not None:
        return gpu_default_row(sketch, target)
    values: dict[str, int] = {}
    for p in sketch.params:
        if p.kind == "tile":
            values[p.name] = 1
        elif p.kind == "unroll":
            values[p.name] = UNROLL
        elif p.kind == "location":
            values[p.name] = _location(p.choices)
        elif p.kind == "choice":
            values[p.name] = 0
        else:
            values[p.name] = p.choices[-1]
    for nest in sketch.all_nests():
        values.update(_Tiles(sketch, nest, target).choose())
        values.update({k.param: _packed(sketch, nest, k, values, target) for k in nest.packs})
    values.update({p.name: p.choices[0] for p in sketch.params if p.kind == "tile" and p.choices})
    row: np.ndarray = sketch.canonical(sketch.row(values)[None])[0]
    return row


def _packed(sketch: Sketch, nest: Nest, pack: Pack, values: dict[str, int], target: Target) -> int:
    """Whether to read a copy: for vectors, where it costs nothing or much is read from it."""
    if not pack.loops or pack.loops[-1].axis != nest.vector:
        return 0  # broadcast element by element, which needs no copy
    op = sketch.dag.tensor(pack.tensor).op
    if isinstance(op, Placeholder) and op.constant:
        streams = PREFETCHED in sketch.params[sketch.column(pack.param)].choices
        return PREFETCHED if streams and _next_fits(sketch, nest, pack, values, target) else 1
    return int(_is_copied(sketch, nest, pack))


def _next_fits(sketch: Sketch, nest: Nest, pack: Pack, values: dict[str, int], target: Target) -> bool:
    """Whether the next panel of weights has room beside the one that register tiles are reading.

    Few tiles are done with a panel before it would have been pushed out.
    """
    tile = {x.axis for x in nest.groups[-1]}
    sizes = {s.axis: values[s.params[-1]] if s.params else 1 for s in nest.splits if s.axis in tile}
    extents = {s.axis: s.extent for s in nest.splits}
    tiles = math.prod(-(-extents[a] // n) for a, n in sizes.items() if a not in pack.dims)
    panel = math.prod(sizes.get(a, n) for a, n in extents.items() if a in pack.dims)
    size = dtype_of(sketch.dag.tensor(pack.tensor).dtype).size_bytes
    return tiles <= FEW_TILES or 2 * panel * size <= target.l2_bytes


def _is_copied(sketch: Sketch, nest: Nest, pack: Pack) -> bool:
    """Whether a copy made at run time pays."""
    inner = {x.axis for x in nest.groups[-1]}
    uses = math.prod(s.extent for s in nest.splits if s.axis in inner and s.axis not in pack.dims)
    return uses >= MANY_USES or not _neighbours(sketch.dag, nest, pack.tensor)


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
        if not any(self._shares(s.axis) for s in others) and (found := self._window(others)):
            return self._window_tile(found, lanes, out)
        spare = 2 if self.nest.consumer is not None else vectors + 1
        most = max(1, (self.target.num_vector_registers - spare) // vectors)
        best = max(others, key=lambda s: (self._shares(s.axis), min(s.extent, most), others.index(s)))
        out[best.params[-1]] = _row_tile(best.extent, most, vectors)
        return best.axis

    def _window(self, others: list[Split]) -> Split | None:
        """The outermost axis along which windows overlap, if all that they read are vectors."""
        op = self.sketch.dag.op(self.nest.stage)
        found = reads(op.body)
        if any(analysis.lanes_of(r.indices, self.nest.vector) != analysis.NEIGHBOURS for r in found):
            return None
        reduced = {a.name for a in op.reduce_axes}
        windows = [v for r in found for i in r.indices if reduced & (v := variables(i))]
        return next((s for s in others if any(s.axis in v for v in windows)), None)

    def _window_tile(self, rows: Split, lanes: int, out: dict[str, int]) -> str:
        """Many rows, as each reads most of what the one before read, and few vectors, which share nothing."""
        vector = self.nest.split(self.nest.vector or "")
        inner = self.sketch.dag.op(self.nest.stage).reduce_axes[-1].extent
        most = max(1, min(self.target.num_vector_registers - 4, UNROLL // max(1, inner)))

        def worth(t: int, v: int) -> float:
            waste = math.prod(
                s.extent / (-(-s.extent // n) * n)
                for s, n in ((rows, t), (vector, min(v * lanes, vector.extent)))
            )
            return waste * min(1.0, t * v / LATENCY) / (1 + (t + inner - 1) / t * (1 + 0.5 / v))

        sizes = [
            (t, v) for t in range(1, min(most, rows.extent) + 1) for v in range(1, min(4, most // t) + 1)
        ]
        t, v = max(sizes, key=lambda x: worth(*x))
        out[rows.params[-1]], out[vector.params[-1]] = t, min(v * lanes, vector.extent)
        return rows.axis

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
        alone = self.nest.consumer is None and not self._follows_another()
        op = self.sketch.dag.op(self.nest.stage)
        alone = alone and all(a.extent > 0 for a in (*op.axes, *op.reduce_axes))
        if rows is not None and alone and all(len(s.params) == 3 for s in deep):
            blocking = self._blocking(rows, out)
            if self.nest.finish == CACHE_TILED and self._is_large(blocking):
                blocking = self._cut(blocking, out)
            for axis, n in blocking.choose().items():
                out[self.nest.split(axis).params[-3 if axis == self.nest.vector else -2]] = n
            return
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

    def _blocking(self, rows: str, tile: dict[str, int]) -> Blocking:
        sizes = {s.axis: tile[s.params[-1]] for s in self.nest.splits if s.params and s.params[-1] in tile}
        packs = [k for k in self.nest.packs if k.loops and k.loops[-1].axis == self.nest.vector]
        copied = frozenset(k.tensor for k in packs if _is_copied(self.sketch, self.nest, k))
        return Blocking(self.sketch, self.nest, self.target, sizes, rows, copied)

    def outgrows_cache(self) -> bool:
        """Whether many rows share more than the cache holds, unless the reduction is cut."""
        op, out = self.sketch.dag.op(self.nest.stage), dict[str, int]()
        reduced = {a.name for a in op.reduce_axes}
        spatial = [s for s in self.nest.splits if s.axis not in reduced and s.params]
        if self.nest.vector in reduced or self.nest.consumer is not None or self._follows_another():
            return False
        rows = self._register_tile(spatial, self.target.lanes(op.body.dtype), bool(op.reducer), out)
        return rows is not None and self._is_large(self._blocking(rows, out))

    def _is_large(self, blocking: Blocking) -> bool:
        return blocking.row_tiles() > FEW_ROWS and blocking.panel_bytes() > self.target.l2_bytes

    def _cut(self, blocking: Blocking, out: dict[str, int]) -> Blocking:
        """Blocks of the reduction, of which several panels are next to the rows that use them."""
        reduced = [s for s in self.nest.splits if s.axis in blocking.reduced and s.params]
        vector = self.nest.split(self.nest.vector or "")
        if not reduced or not vector.params:
            return blocking
        width, size = (
            out[vector.params[-1]],
            dtype_of(self.sketch.dag.op(self.nest.stage).body.dtype).size_bytes,
        )
        depth = _divide_evenly(reduced[-1].extent, max(1, self.target.l2_bytes // (8 * width * size)))
        panels = _divide_evenly(-(-vector.extent // width), PANELS)
        out[reduced[-1].params[-1]], out[vector.params[-2]] = depth, panels
        inner = dict.fromkeys((s.axis for s in reduced), 1) | {reduced[-1].axis: depth}
        return blocking.with_tile(inner | {vector.axis: panels * width})


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
