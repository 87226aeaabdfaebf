"""Blocks of register tiles by rule of thumb: what a thread takes at a time, and in which order.

A chunk of the parallel loop covers some positions of each axis. What its tiles read should stay in the
second-level cache, neighbouring chunks should not copy the same padded rows again, and there must be
chunks enough for all threads. The three are counted in cycles for every way to divide the axes evenly,
and the cheapest is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.ir.dag import expand
from seer.ir.expr import Expr, Read, Var, reads, substitute, variables
from seer.ir.simplify import affine, simplify
from seer.ir.sketch import Nest, Sketch
from seer.runtime.target import Target

FMA_PER_CYCLE = 2  # vectors
FAR_BYTES = 16  # a cycle, from beyond the second-level cache, half hidden behind arithmetic
COPY_BYTES = 16  # a cycle, of what is computed for a chunk before its tiles read it
CHUNK_CYCLES = 300  # to take a chunk and begin with it
START_BYTES = 256  # that could have been read while a run of neighbours begins
ALIKE = 1.03  # times as many cycles are as good, by a count as rough as this
LAST = 0.5  # of a chunk that others wait for, where chunks are not equal
EQUAL = 0.95  # of the chunks' number that their work must make, if they are to be equal
UNEVEN = 0.05  # the same where they are
MOST_SIZES = 48  # of an axis that are compared
NEAR_SHARE = 0.1875  # of the same, that results may take while their lines fill up
L2_SHARE = 0.75  # of the second-level cache that a chunk may count on

Sizes = dict[str, np.ndarray]  # elements of an axis that a block covers, one for each way to divide


@dataclass(frozen=True)
class Blocking:
    """How the register tiles of a nest with three spatial levels are grouped.

    Attributes:
        tile: elements of the register tile along each axis; 1 where it is not named.
        rows: the axis of the tile's rows.
        copied: tensors that are read from a copy in the order of the loops.
    """

    sketch: Sketch
    nest: Nest
    target: Target
    tile: dict[str, int]
    rows: str
    copied: frozenset[str] = frozenset()

    @property
    def reduced(self) -> set[str]:
        """The axes of the reduction."""
        return {a.name for a in self.sketch.dag.op(self.nest.stage).reduce_axes}

    def with_tile(self, sizes: dict[str, int]) -> Blocking:
        """The same with other sizes of the tile, and of the reduction next to it, along some axes."""
        return replace(self, tile=self.tile | sizes)

    def row_tiles(self) -> int:
        """Register tiles that read the same panel."""
        rows = self._row_axes()
        return math.prod(-(-s.extent // self.tile.get(s.axis, 1)) for s in self.nest.splits if s.axis in rows)

    def choose(self) -> dict[str, int]:
        """Tiles that a chunk takes along each axis worth grouping: the vector axis and those of rows."""
        axes = [s for s in self.nest.splits if s.axis in (self.nest.vector, *self._row_axes()) and s.params]
        counts = [-(-s.extent // self.tile.get(s.axis, 1)) for s in axes]
        grids = np.meshgrid(*[_even_shares(n) for n in counts], indexing="ij")
        taken = {s.axis: g.reshape(-1) for s, g in zip(axes, grids, strict=True)}
        cycles = self._cycles(taken)
        rows = [taken[s.axis] for s in axes if s.axis != self.nest.vector]
        # Of what is as good, rows of an image that are cut least: memory is read best in order.
        whole = rows[-1:] if len(rows) > 1 else []
        good = cycles <= ALIKE * cycles.min()
        best = int(np.lexsort((cycles, *(-w for w in whole), ~good))[0])
        return {axis: int(t[best]) for axis, t in taken.items()}

    def _row_axes(self) -> list[str]:
        """Axes along which tiles read the same: the same weights, or windows that overlap."""
        with_vector = set().union(*(v for r in self._reads() if self.nest.vector in (v := _used(r))))
        alike = {self.rows, *self._windows()}
        axes = [a.name for a in self.sketch.dag.op(self.nest.stage).axes if a.name != self.nest.vector]
        return [a for a in axes if a in alike or a not in with_vector]

    def _windows(self) -> set[str]:
        """Axes that index something together with a reduce axis."""
        found = [v for r in self._reads() for i in r.indices if self.reduced & (v := variables(i))]
        return set().union(*found) - self.reduced

    def _reads(self) -> list[Read]:
        """What a tile reads, inlined stages seen through."""
        return reads(expand(self.sketch.dag.op(self.nest.stage).body, self.sketch.inlined))

    def panel_bytes(self) -> int:
        """Of what all rows share, for one register tile."""
        return int(self._shared(self._sizes({self.rows: np.ones(1, np.int64)}))[0])

    def _sizes(self, taken: Sizes) -> Sizes:
        """What a chunk covers of each axis."""
        op, one = self.sketch.dag.op(self.nest.stage), np.ones_like(next(iter(taken.values())))
        out = {a.name: one * min(self.tile.get(a.name, a.extent), a.extent) for a in op.reduce_axes}
        for a in op.axes:
            size = self.tile.get(a.name, 1) * taken.get(a.name, one)
            out[a.name] = np.clip(size, 1, max(a.extent, 1))
        return out

    def _shared(self, sizes: Sizes) -> np.ndarray:
        """Bytes of what is read whatever the row, for blocks of such sizes."""
        rows = set(self._row_axes())
        parts = [self._bytes(r, sizes) for r in set(self._reads()) if not _used(r) & rows]
        return np.asarray(sum(parts, np.zeros_like(next(iter(sizes.values())))))

    def _cycles(self, taken: Sizes) -> np.ndarray:
        """Of one thread, for each way to divide."""
        op, vector = self.sketch.dag.op(self.nest.stage), self.nest.vector or ""
        sizes = self._sizes(taken)
        one = np.ones_like(next(iter(sizes.values())))
        counts = {a.name: -(-a.extent // sizes[a.name]) for a in op.axes}
        chunks = math.prod(counts.values(), start=one)
        blocks = chunks // counts.get(vector, one)  # of rows; those of one follow each other
        panels = taken.get(vector, one)
        stripe = self._sizes(taken | {vector: one} if vector in taken else taken)
        panel = self._shared(stripe)
        every = self._shared({a.name: one * a.extent for a in (*op.axes, *op.reduce_axes)})
        again, once = 0 * one, 0 * one  # read by the tiles of every panel, and by those of one
        rows = set(self._row_axes())
        for r in set(self._reads()):
            if _used(r) & rows:
                part = self._bytes(r, sizes)
                again, once = (again, once + part) if vector in _used(r) else (again + part, once)
        cache = int(L2_SHARE * self.target.l2_bytes)
        copied = self._copied(sizes)
        stays = again + once // panels + panel <= cache
        turn = np.where(stays, 1, counts.get(vector, one) * panels)
        far = blocks * again * turn + chunks * (once + panel * panels)
        # Each block of the reduction reads as much again.
        far = far * math.prod(-(-a.extent // self.tile.get(a.name, max(a.extent, 1))) for a in op.reduce_axes)
        # Where everything that rows share is at hand beside them, each thread reads it once.
        far = np.where(
            again + once + every <= cache,
            blocks * again + chunks * once + every * self.target.num_threads,
            far,
        )
        # Results are stored one panel after another: in stripes, unless the next finds the lines at hand.
        finished = self._finished(sizes)
        finished = np.where(
            finished <= NEAR_SHARE * self.target.l2_bytes, finished, panels * self._finished(stripe)
        )
        far = far + chunks * (np.where(copied > cache, 2 * copied, 0) + finished)
        points = math.prod(sizes[a.name] for a in op.axes) * math.prod(a.extent for a in op.reduce_axes)
        steps = points / self.target.lanes(op.body.dtype) / FMA_PER_CYCLE
        each = steps + far / chunks / FAR_BYTES + copied / COPY_BYTES + CHUNK_CYCLES
        whole = math.prod((a.extent / sizes[a.name] for a in op.axes), start=one + 0.0)
        return np.asarray(each * self._turns(chunks, whole))

    def _turns(self, chunks: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """Chunks one after another, if what is computed makes so many `whole` ones."""
        threads = self.target.num_threads
        if threads == 1:
            return whole
        # What is left over at the ends of axes makes smaller chunks, of which each thread gets some.
        uneven = np.maximum(1, whole / threads + LAST * (threads - 1) / threads)
        even = -(-chunks // threads)
        return np.asarray(np.where(whole > EQUAL * chunks, even, np.minimum(even, uneven)) + UNEVEN)

    def _copied(self, sizes: Sizes) -> np.ndarray:
        """Bytes that producers inside the chunk's loops store for one chunk."""
        inside = {a.nest.output for a in self.nest.attached}
        parts = [self._bytes(r, sizes) for r in set(self._reads()) if r.tensor.name in inside]
        return np.asarray(sum(parts, np.zeros_like(next(iter(sizes.values())))))

    def _finished(self, sizes: Sizes) -> np.ndarray:
        """Bytes of results, and of what is read to finish them."""
        dag, op = self.sketch.dag, self.sketch.dag.op(self.nest.stage)
        found = {Read(dag.tensor(self.nest.output), tuple(a.var for a in op.axes))}
        if self.nest.epilogue is not None:
            last = dag.op(self.nest.epilogue)
            own = {a.name: b.var for a, b in zip(last.axes, op.axes, strict=True)}
            body = substitute(expand(last.body, self.sketch.inlined), dict(own))
            found |= {r for r in reads(body) if r.tensor.name != self.nest.stage}
        return np.asarray(
            sum((self._bytes(r, sizes) for r in found), np.zeros_like(next(iter(sizes.values()))))
        )

    def _bytes(self, r: Read, sizes: Sizes) -> np.ndarray:
        """Of the part of a tensor that a block reads, and for what is lost at the start of each run."""
        one = np.ones_like(next(iter(sizes.values())))
        size = one * dtype_of(r.tensor.dtype).size_bytes
        ranges = {s.axis: (0, max(s.extent - 1, 0)) for s in self.nest.splits}
        run, whole = size, one > 0
        for index, extent in zip(reversed(r.indices), reversed(r.tensor.shape), strict=True):
            part = np.clip(_extent(simplify(index, ranges), sizes), 1, max(extent, 1))
            size = size * part
            run = np.where(whole, run * part, run)
            whole = whole & (part == extent)
        if r.tensor.name in self.copied or self.sketch.dag.is_own_constant(r.tensor.name):
            return size  # laid out in the order of the loops
        return np.asarray(size + size * START_BYTES // run)


def _used(r: Read) -> set[str]:
    return set().union(*(variables(i) for i in r.indices)) if r.indices else set()


def _extent(index: Expr, sizes: Sizes) -> np.ndarray:
    """Positions between the first and the last that an index takes within a block."""
    out = np.ones_like(next(iter(sizes.values())))
    for term, c in affine(index)[0].items():
        names = [n for n in variables(term) if n in sizes]
        if isinstance(term, Var) and names:
            out = out + abs(int(c)) * (sizes[term.name] - 1)
        else:
            out = out * math.prod(sizes[n] for n in names)
    return out


def _even_shares(count: int) -> np.ndarray:
    """Sizes that divide `count` things into equal parts, but for the last; a sample if there are many."""
    sizes = np.unique(-(-count // np.arange(1, max(count, 1) + 1)))
    return np.asarray(sizes[np.unique(np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(int))])
