"""Sketches: the loop structure of a kernel with named integer parameters left open.

A Sketch is a list of Nests. A Nest computes one stage (a ComputeOp) by loops in groups, outer to
inner; the last group is the register tile, which is unrolled and vectorised. Tile sizes, unroll
depth, compute locations and packing are Params: a candidate is a Sketch and one row of integers
(DESIGN: "a sketch is symbolic"), so a population is an int64 array of shape (P, n_params).

Splits. An axis of extent N with inner trip counts t1..tm (outer to inner) has m + 1 levels. Level
l advances by step_l = t_{l+1} * ... * t_m; level 0 makes ceil(N / step_0) trips. Any t >= 1
works: tails are handled by shorter trips and, in the register tile, by a second version of it.
`canonical` brings rows that mean the same loops to the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seer.errors import ScheduleError
from seer.ir.dag import ComputeDAG

INLINE = -1  # value of a location param: computed where it is read
ROOT = 0  # value of a location param: in a loop nest of its own, before


@dataclass(frozen=True, slots=True)
class Param:
    """One named integer of a sketch.

    Attributes:
        name: "stage.axis.level", "stage.unroll", "stage.parallel", "stage.location", "stage.pack".
        kind: "tile", "unroll", "parallel", "location" or "choice".
        axis: for a tile, "stage.axis": the params of one axis, in order, are its inner trip
            counts, outer to inner.
        extent: for a tile, the extent of the axis.
        choices: the allowed values; for a tile, empty unless only these are allowed.
        vector: for a tile, whether this innermost level is vectorised.
        most: for a tile, the largest number that is drawn (0: no limit).
    """

    name: str
    kind: str
    axis: str = ""
    extent: int = 0
    choices: tuple[int, ...] = ()
    vector: bool = False
    most: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """How an axis is cut: the names of its inner trip counts, outer to inner."""

    axis: str
    extent: int
    params: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a nest: a level of an axis (0 is the outermost)."""

    axis: str
    level: int


PREFETCHED = 2  # the value of a Pack's param


@dataclass(frozen=True, slots=True)
class Pack:
    """A tensor that a nest may read from a copy laid out in the order of its loops.

    `loops` are the loops that the tensor's indices depend on, outer to inner: the dimensions of
    the copy. `dims[d]` is the axis that indexes dimension d of the tensor, or None if that has one
    position. A constant is packed ahead of time, anything else by a nest of its own before. The
    param's value is 0: read where it lies; 1: packed; PREFETCHED: packed ahead, and asked for before
    it is read.
    """

    tensor: str
    dims: tuple[str | None, ...]
    loops: tuple[Loop, ...]
    param: str


@dataclass(frozen=True, slots=True)
class Attached:
    """A producer of a nest and where it is computed.

    The location param's value is INLINE, ROOT, or d >= 1: inside the nest's first d groups, for
    just the region that the rest of the nest reads. Without a param the place is `depth`.
    """

    nest: Nest
    depth: int
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """A nest that is computed from the pieces of the stage that it reads.

    `axes` pairs each axis of the stage that the consumer's axes follow with that axis: one iteration of
    the consumer's outermost loop along it needs `step` positions of the stage's axis.
    """

    nest: Nest
    axes: tuple[tuple[str, str, int], ...]  # the stage's axis, the consumer's, step


@dataclass(frozen=True, slots=True)
class Staged:
    """A tensor that the threads of a GPU block may copy to shared memory, a piece at a time.

    The param's value is 0: read where it lies; 1: copied in its own order; 2: copied with the
    dimensions that reduce axes index outermost.
    """

    tensor: str
    param: str


@dataclass(frozen=True, slots=True)
class Bind:
    """How a root nest runs on a GPU.

    Attributes:
        pattern: "tiled": groups 0, 1 and 2 are blocks, virtual threads (pieces far apart that one
            thread computes) and threads. "flat": the spatial axes are one index, a block takes
            threads * items of it. "rows": the axes of group 0 are one index of rows; `threads`
            threads share a row and a block has `rows` of them; attached reductions are computed
            by all threads of a row together. "mma": blocks of a matrix product; `warps` of a block
            along its rows and along its columns multiply small matrices.
        threads: the param, or None for a fixed number, likewise `items` and `rows`.
        warps: the params of how many warps lie along the rows and along the columns.
        staged: the tensors that may go through shared memory.
        stages: the param of how many pieces of each are in shared memory at once, all but one of
            them being copied while one is used; None for one.
    """

    pattern: str
    threads: str | None = None
    items: str | None = None
    rows: str | None = None
    warps: tuple[str, ...] = ()
    staged: tuple[Staged, ...] = ()
    stages: str | None = None

    @property
    def params(self) -> tuple[str, ...]:
        """The names of all params."""
        named = (p for p in (self.threads, self.items, self.rows, self.stages) if p)
        return (*named, *self.warps, *(s.param for s in self.staged))


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops that compute one stage.

    Attributes:
        stage: the tensor computed.
        splits: one per axis of the stage, spatial axes first.
        groups: loops outer to inner; the last group is the register tile (may be empty).
        finish: number of groups around "initialise, reduce, finish"; all reduce loops are inside.
            What is accumulated there covers the spatial loops of groups[finish:].
        vector: the axis whose innermost level is vectorised, or None. If it is a reduce axis, the
            lanes are partial results that are combined at the end (Ansor's rfactor).
        epilogue: a stage with the same spatial axes that is computed from each finished piece and
            stored instead, or None.
        attached: producers computed inside this nest, in order.
        packs: tensors that may be read packed.
        parallel: the param that says whether the first group runs in parallel, or None (serial).
        unroll: the param with the largest number of statements that unrolled reduce loops may
            make, or None.
        bind: how the nest runs on a GPU; None on a CPU and for the naive schedule.
        consumer: the one reader of the stage, computed from each finished piece while it is in cache;
            the stage itself is never stored as a whole. `groups[1:]` hold the whole of what the
            consumer reads for one iteration of `groups[0]`.
    """

    stage: str
    splits: tuple[Split, ...]
    groups: tuple[tuple[Loop, ...], ...]
    finish: int
    vector: str | None = None
    epilogue: str | None = None
    attached: tuple[Attached, ...] = ()
    packs: tuple[Pack, ...] = ()
    parallel: str | None = None
    unroll: str | None = None
    bind: Bind | None = None
    consumer: Consumer | None = None

    def split(self, axis: str) -> Split:
        """The split of an axis."""
        return next(s for s in self.splits if s.axis == axis)

    @property
    def output(self) -> str:
        """The tensor that the nest's own loops make."""
        return self.epilogue or self.stage

    @property
    def stored(self) -> str:
        """The tensor that other nests read, or that is the result."""
        return self.output if self.consumer is None else self.consumer.nest.output


@dataclass(frozen=True)
class Sketch:
    """A loop structure for a ComputeDAG with named integer parameters.

    Attributes:
        key: readable and unique within the DAG; records name the sketch by it.
        nests: root nests in the order in which they run.
        inlined: stages always computed where they are read.
        algorithm: "" if the DAG is the task's own, else the name of the algorithm that replaced it
            by an equal one, up to rounding.
    """

    dag: ComputeDAG
    key: str
    params: tuple[Param, ...]
    nests: tuple[Nest, ...]
    inlined: tuple[str, ...] = ()
    algorithm: str = ""

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {p.name: k for k, p in enumerate(self.params)}

    def column(self, name: str) -> int:
        """The column of a param in a row."""
        return self._columns[name]

    def row(self, values: Mapping[str, int]) -> np.ndarray:
        """The (n_params,) int64 row of named values.

        Raises:
            ScheduleError: if a name is missing or unknown.
        """
        if set(values) != set(self._columns):
            raise ScheduleError(
                f"sketch {self.key}: params are {sorted(self._columns)}, given {sorted(values)}"
            )
        return np.array([values[p.name] for p in self.params], dtype=np.int64)

    def values(self, row: np.ndarray) -> dict[str, int]:
        """The named values of a row."""
        return {p.name: int(v) for p, v in zip(self.params, row, strict=True)}

    @cached_property
    def tile_axes(self) -> dict[str, tuple[int, ...]]:
        """Columns of each tiled axis ("stage.axis"), outer to inner."""
        out: dict[str, list[int]] = {}
        for k, p in enumerate(self.params):
            if p.kind == "tile":
                out.setdefault(p.axis, []).append(k)
        return {a: tuple(c) for a, c in out.items()}

    def canonical(self, rows: np.ndarray) -> np.ndarray:
        """Rows (P, n_params) with every trip count one of its choices, and cut to what its axis can use.

        Two rows that give the same loops get the same numbers; every row becomes one of the space.
        """
        out = np.array(rows, dtype=np.int64, copy=True)
        for columns in self.tile_axes.values():
            extent = max(self.params[columns[0]].extent, 1)
            step = np.ones(out.shape[:-1], dtype=np.int64)
            for c in reversed(columns):
                most = -(-extent // step)
                choices = np.array(self.params[c].choices, dtype=np.int64)
                if len(choices):
                    out[..., c] = choices[np.abs(out[..., c, None] - choices).argmin(axis=-1)]
                out[..., c] = np.clip(out[..., c], 1, most)
                step = step * out[..., c]
        for nest in self.nests:
            self._order_locations(nest, out)
        return out

    def _order_locations(self, nest: Nest, rows: np.ndarray) -> None:
        """Move each attached producer out to where the first of its readers is computed."""
        limits = {s: np.full(rows.shape[:-1], nest.finish) for s in (nest.stage, nest.output)}
        for a in reversed(nest.attached):
            limit = np.full(rows.shape[:-1], nest.finish)
            for reader in self._readers(a.nest.output):
                limit = np.minimum(limit, limits.get(reader, limit))
            place = np.full(rows.shape[:-1], a.depth)
            if a.param is not None:
                c = self.column(a.param)
                place = rows[..., c] = np.minimum(rows[..., c], limit)
            limits[a.nest.output] = limits[a.nest.stage] = np.where(place == INLINE, limit, place)

    def _readers(self, stage: str) -> set[str]:
        """The stages that read `stage`, directly or through stages that are always inlined."""
        out: set[str] = set()
        for t in self.dag.consumers[stage]:
            out |= self._readers(t.name) if t.name in self.inlined else {t.name}
        return out

    def all_nests(self) -> Iterator[Nest]:
        """Every nest, attached ones after the nest that holds them."""
        for nest in self.nests:
            yield from _nested(nest)

    def __repr__(self) -> str:
        return f"Sketch({self.key}, {len(self.params)} params)"


def _nested(nest: Nest) -> Iterator[Nest]:
    yield nest
    for a in nest.attached:
        yield from _nested(a.nest)
    if nest.consumer is not None:
        yield from _nested(nest.consumer.nest)


def trip_counts(extent: int, inner: tuple[int, ...]) -> tuple[int, ...]:
    """Trips of each level of an axis, outermost first, for canonical inner trip counts."""
    step = 1
    for t in inner:
        step *= t
    return (-(-extent // step), *inner)
