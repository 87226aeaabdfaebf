"""What the features of a sketch depend on, as arrays: its loops, its tensors and where they live.

Everything that does not depend on a candidate's parameters is worked out here, once for each sketch
(and for each choice of which stages are computed where they are read). `feature_kernel` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.ir.dag import expand, flop_count
from seer.ir.expr import Call, Expr, Read, Var, reads, walk
from seer.ir.simplify import affine, simplify
from seer.ir.sketch import INLINE, ROOT, Loop, Nest, Pack, Sketch
from seer.ir.tensor import ComputeOp
from seer.runtime.target import Target
from seer.search.analysis import APART, NEIGHBOURS, SAME, lanes_of

TAGS = ("matmul", "conv2d", "depthwise_conv2d", "softmax", "pool", "elementwise")
BOUNDARIES = 6  # loop groups described, from the innermost out
N_CONSTANTS, N_TILE, N_LOOPS, N_LANES, N_TRAFFIC, N_THREADS, N_OTHERS = 19, 10, 18, 3, 18, 4, 11
N_FEATURES = N_CONSTANTS + N_TILE + N_LOOPS + N_LANES + N_TRAFFIC + N_THREADS + N_OTHERS
NOWHERE = -2  # no location: a tensor that is no attached producer


class Loops(NamedTuple):
    """The loops of all nests; nest 0 is the main one.

    Axes of all nests are numbered through, and so are their groups and loops; `x_ptr[k]` is where those
    of k begin.
    """

    axis_ptr: np.ndarray  # nest -> axes
    extent: np.ndarray  # axis -> extent, at least 1
    is_reduce: np.ndarray  # axis -> 0 or 1
    columns: np.ndarray  # axis, level - 1 -> column, or -1
    group_ptr: np.ndarray  # nest -> groups
    loop_ptr: np.ndarray  # group -> loops
    axis: np.ndarray  # loop -> axis
    level: np.ndarray  # loop -> level
    vector: np.ndarray  # nest -> axis, or -1
    lanes_axis: np.ndarray  # nest -> reduce axis that runs in lanes, or -1
    lanes: np.ndarray  # nest -> lanes of its dtype
    # Of nest 0: whether it reduces, finish, groups round the loops that add to a tile buffer, whether
    # a consumer reads that buffer.
    shape: np.ndarray


class Nests(NamedTuple):
    """Where nests are computed; a column is -1 where there is no such param."""

    parallel: np.ndarray  # nest -> column
    size: np.ndarray  # nest -> elements of its output
    host: np.ndarray  # nest -> nest it is attached to, or -1
    where: np.ndarray  # nest -> column of its location
    depth: np.ndarray  # nest -> its location where there is no param
    reduces: np.ndarray  # nest -> 0 or 1
    shared_bytes: np.ndarray  # nest -> bytes of scratch if its output is stored for all threads


class Accesses(NamedTuple):
    """The distinct reads of the main stage."""

    ptr: np.ndarray  # access -> dimensions
    extent: np.ndarray  # dimension -> extent
    affine: np.ndarray  # dimension -> 0 or 1
    term_ptr: np.ndarray  # dimension -> terms of its index
    term_axis: np.ndarray
    term_step: np.ndarray  # |coefficient|
    uses: np.ndarray  # access, axis -> 0 or 1
    size: np.ndarray  # access -> bytes of an element
    host: np.ndarray  # access -> nest that computes it if it is attached here, or -1
    lanes: np.ndarray  # access -> SAME, NEIGHBOURS or APART
    pack: np.ndarray  # access -> pack, or -1


class Packs(NamedTuple):
    """The tensors that may be read packed."""

    column: np.ndarray
    ptr: np.ndarray  # pack -> loops
    axis: np.ndarray
    level: np.ndarray
    group: np.ndarray  # the group of each loop within its nest
    size: np.ndarray  # pack -> bytes of an element
    ahead: np.ndarray  # 1: done before the kernel runs
    lanes: np.ndarray  # pack -> SAME, NEIGHBOURS or APART
    nest: np.ndarray


class Tables(NamedTuple):
    """A sketch as arrays."""

    constants: np.ndarray  # features that no param changes
    machine: np.ndarray  # lanes, registers, threads, line, l1, l2, l3
    unroll: int  # column of the unroll limit, or -1
    out_bytes: np.ndarray  # bytes of an element of: what the main nest accumulates, what it stores
    out_scale: np.ndarray  # axis of nest 0 -> positions of the result to one of its own, 0 for none
    out_extent: np.ndarray  # axis of nest 0 -> positions of the result
    loops: Loops
    nests: Nests
    accesses: Accesses
    packs: Packs


def main_nest(sketch: Sketch) -> Nest:
    """The root nest that features describe in full: of those that reduce, if any, the one with the
    most arithmetic.
    """
    return max(sketch.nests, key=lambda n: _work(sketch, n))


def _work(sketch: Sketch, nest: Nest) -> tuple[bool, int, int]:
    flop = sum(flop_count(sketch.dag.tensor(s)) for s in {nest.stage, nest.output})
    reduces = sketch.dag.op(nest.stage).reducer is not None
    return reduces, flop, math.prod(sketch.dag.tensor(nest.output).shape)


def nests_of(sketch: Sketch) -> list[tuple[Nest, Nest | None]]:
    """Every nest and the nest that it is attached to, the main one first."""
    main = main_nest(sketch)
    hosts: dict[int, Nest] = {id(a.nest): n for n in sketch.all_nests() for a in n.attached}
    hosts |= {id(n.consumer.nest): n for n in sketch.all_nests() if n.consumer is not None}
    nests = [main, *(n for n in sketch.all_nests() if n is not main)]
    return [(n, hosts.get(id(n))) for n in nests]


def expandable(sketch: Sketch) -> list[tuple[str, int, int]]:
    """The stages whose reads in the main nest may be expanded, as (stage, location column, pack column).

    A stage is expanded where its location is INLINE (no column: always), unless the main nest reads it
    from a packed copy.
    """
    packs = {p.tensor: sketch.column(p.param) for p in main_nest(sketch).packs}
    out = [(s, -1, packs.get(s, -1)) for s in sketch.inlined]
    for n in sketch.all_nests():
        for a in n.attached:
            name = a.nest.output
            if a.param is not None:
                out.append((name, sketch.column(a.param), packs.get(name, -1)))
            elif a.depth == INLINE:
                out.append((name, -1, packs.get(name, -1)))
    return out


@lru_cache(maxsize=4096)
def tables_of(sketch: Sketch, target: Target, expanded: tuple[str, ...]) -> Tables:
    """The arrays of a sketch whose main nest computes `expanded` stages where it reads them."""
    return _Maker(sketch, target, expanded).make()


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class _Maker:
    """Builds the tables of one sketch."""

    def __init__(self, sketch: Sketch, target: Target, expanded: tuple[str, ...]) -> None:
        self.sketch, self.target = sketch, target
        self.pairs = nests_of(sketch)
        self.nests = [n for n, _ in self.pairs]
        self.main = self.nests[0]
        self.op: ComputeOp = sketch.dag.op(self.main.stage)
        self.body: Expr = expand(self.op.body, expanded)
        self.number = {
            (k, s.axis): i
            for i, (k, s) in enumerate((k, s) for k, n in enumerate(self.nests) for s in n.splits)
        }

    def column(self, param: str | None) -> int:
        return -1 if param is None else self.sketch.column(param)

    def make(self) -> Tables:
        return Tables(
            constants=self._constants(),
            machine=self._machine(),
            unroll=self.column(self.main.unroll),
            out_bytes=_ints([self._bytes(self.main.stage), self._bytes(self.main.stored)]),
            out_scale=_ints([scale for scale, _ in self._result()]),
            out_extent=_ints([extent for _, extent in self._result()]),
            loops=self._loops(),
            nests=self._nests(),
            accesses=self._accesses(),
            packs=self._packs(),
        )

    def _result(self) -> list[tuple[int, int]]:
        """For each axis of the main nest, the positions of the result: to one of its own, and in all."""
        reduced = {a.name for a in self.op.reduce_axes}
        consumer = self.main.consumer
        if consumer is None:
            return [(int(s.axis not in reduced), max(s.extent, 1)) for s in self.main.splits]
        last = self.sketch.dag.op(consumer.nest.stage)
        extents, sizes = {a.name: a.extent for a in last.axes}, dict(last.written_out)
        theirs = {mine: (sizes.get(axis, 1), extents[axis]) for mine, axis, _ in consumer.axes}
        return [theirs.get(s.axis, (0, 1)) for s in self.main.splits]

    def _bytes(self, tensor: str) -> int:
        return dtype_of(self.sketch.dag.tensor(tensor).dtype).size_bytes

    def _constants(self) -> np.ndarray:
        dag = self.sketch.dag
        values = workload_features(self.sketch, dag.flop_count, math.prod(dag.output.shape), self.target)
        values += structure_features(self.sketch)
        values.append(float(sum(isinstance(e, Call) for e in walk(self.body))))
        return np.array(values, dtype=np.float64)

    def _machine(self) -> np.ndarray:
        t = self.target
        lanes = t.lanes(self.op.body.dtype)
        sizes = (t.l1_bytes, t.l2_bytes, t.l3_bytes)
        return _ints([lanes, t.num_vector_registers, t.num_threads, t.cache_line_bytes, *sizes])

    def _loops(self) -> Loops:
        splits = [(n, s) for n in self.nests for s in n.splits]
        depth = max([len(s.params) for _, s in splits] + [1])
        columns = np.full((len(splits), depth), -1, dtype=np.int64)
        for i, (_, s) in enumerate(splits):
            columns[i, : len(s.params)] = [self.sketch.column(p) for p in s.params]
        reduced = {(id(n), a.name) for n in self.nests for a in self.sketch.dag.op(n.stage).reduce_axes}
        vector = [-1 if n.vector is None else self.number[k, n.vector] for k, n in enumerate(self.nests)]
        groups = [(k, g) for k, n in enumerate(self.nests) for g in n.groups]
        loops = [(self.number[k, x.axis], x.level) for k, g in groups for x in g]
        return Loops(
            axis_ptr=np.cumsum([0, *(len(n.splits) for n in self.nests)]),
            extent=_ints([max(s.extent, 1) for _, s in splits]),
            is_reduce=_ints([(id(n), s.axis) in reduced for n, s in splits]),
            columns=columns,
            group_ptr=np.cumsum([0, *(len(n.groups) for n in self.nests)]),
            loop_ptr=np.cumsum([0, *(len(g) for _, g in groups)]),
            axis=_ints([a for a, _ in loops]),
            level=_ints([level for _, level in loops]),
            vector=_ints(vector),
            lanes_axis=_ints(
                [
                    -1 if (id(n), n.vector) not in reduced else v
                    for n, v in zip(self.nests, vector, strict=True)
                ]
            ),
            lanes=_ints([self.target.lanes(self.sketch.dag.op(n.stage).body.dtype) for n in self.nests]),
            shape=self._shape(),
        )

    def _nests(self) -> Nests:
        dag = self.sketch.dag
        host, where, depth, shared = [], [], [], []
        for n, h in self.pairs:
            host.append(-1 if h is None else next(i for i, m in enumerate(self.nests) if m is h))
            a = None if h is None else next((a for a in h.attached if a.nest is n), None)
            where.append(-1 if a is None else self.column(a.param))
            depth.append(a.depth if a is not None else NOWHERE if h is None else h.finish)
            out = dag.tensor(n.output)
            shared.append(
                0
                if out is dag.output or n.consumer is not None
                else math.prod(out.shape) * self._bytes(out.name)
            )
        return Nests(
            parallel=_ints([self.column(n.parallel) for n in self.nests]),
            size=_ints([math.prod(dag.tensor(n.output).shape) for n in self.nests]),
            host=_ints(host),
            where=_ints(where),
            depth=_ints(depth),
            reduces=_ints([dag.op(n.stage).reducer is not None for n in self.nests]),
            shared_bytes=_ints(shared),
        )

    def _shape(self) -> np.ndarray:
        main, last = self.main, len(self.main.groups) - 1
        reduced = {a.name for a in self.op.reduce_axes}
        inner = next(
            d
            for d in range(main.finish, last + 1)
            if d == last or all(x.axis in reduced for g in main.groups[d:last] for x in g)
        )
        return _ints([self.op.reducer is not None, main.finish, inner, main.consumer is not None])

    def _accesses(self) -> Accesses:
        """The distinct reads of the main stage, in order."""
        ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*self.op.axes, *self.op.reduce_axes)}
        found: dict[tuple[str, tuple[Expr, ...]], Read] = {}
        for r in reads(self.body):
            found.setdefault((r.tensor.name, tuple(simplify(i, ranges) for i in r.indices)), r)
        ptr, extents, affine_dims, lanes = [0], [], [], []
        term_ptr, terms_found = [0], []
        uses = np.zeros((len(found), len(self.main.splits)), dtype=np.int64)
        for k, ((_, indices), r) in enumerate(found.items()):
            forms = [affine(index)[0] for index in indices]
            for terms in forms:
                plain = {t.name: c for t, c in terms.items() if isinstance(t, Var)}
                affine_dims.append(len(plain) == len(terms))
                for axis, c in plain.items():
                    terms_found.append((self.number[0, axis], abs(c)))
                    uses[k, self.number[0, axis]] = 1
                term_ptr.append(len(terms_found))
            extents += [max(n, 1) for n in r.tensor.shape]
            ptr.append(len(extents))
            lanes.append(lanes_of(indices, self.main.vector))
        producers = {n.output: k for k, (n, h) in enumerate(self.pairs) if h is self.main}
        packs = {p.tensor: k for k, (m, p) in enumerate(self._all_packs()) if m is self.main}
        tensors = [r.tensor for r in found.values()]
        return Accesses(
            ptr=_ints(ptr),
            extent=_ints(extents),
            affine=_ints(affine_dims),
            term_ptr=_ints(term_ptr),
            term_axis=_ints([a for a, _ in terms_found]),
            term_step=_ints([c for _, c in terms_found]),
            uses=uses,
            size=_ints([self._bytes(t.name) for t in tensors]),
            host=_ints([producers.get(t.name, -1) for t in tensors]),
            lanes=_ints(lanes),
            pack=_ints([packs.get(t.name, -1) for t in tensors]),
        )

    def _all_packs(self) -> list[tuple[Nest, Pack]]:
        return [(n, p) for n in self.nests for p in n.packs]

    def _packs(self) -> Packs:
        packs = self._all_packs()
        loops = [(next(k for k, m in enumerate(self.nests) if m is n), x) for n, p in packs for x in p.loops]
        return Packs(
            column=_ints([self.sketch.column(p.param) for _, p in packs]),
            ptr=np.cumsum([0, *(len(p.loops) for _, p in packs)]),
            axis=_ints([self.number[k, x.axis] for k, x in loops]),
            level=_ints([x.level for _, x in loops]),
            group=_ints([self._group(k, x) for k, x in loops]),
            size=_ints([self._bytes(p.tensor) for _, p in packs]),
            ahead=_ints([self.sketch.dag.is_own_constant(p.tensor) for _, p in packs]),
            lanes=_ints([_pack_lanes(n, p) for n, p in packs]),
            nest=_ints([next(k for k, m in enumerate(self.nests) if m is n) for n, _ in packs]),
        )

    def _group(self, nest: int, loop: Loop) -> int:
        return next(g for g, loops in enumerate(self.nests[nest].groups) if loop in loops)


def _pack_lanes(nest: Nest, pack: Pack) -> int:
    """Where the lanes of a vector lie in a packed copy."""
    if all(x.axis != nest.vector for x in pack.loops):
        return SAME
    return NEIGHBOURS if pack.loops[-1] == nest.groups[-1][-1] else APART


def workload_features(sketch: Sketch, flop: float, outputs: float, target: Target) -> list[float]:
    """What is to be computed, and by how many threads."""
    dag = sketch.dag
    tag = "pool" if "pool" in dag.tag else {"dense": "matmul", "batch_matmul": "matmul"}.get(dag.tag, dag.tag)
    return [
        math.log2(flop + 1),
        math.log2(outputs + 1),
        float(target.num_threads),
        float(len(dag.ops)),
        *(float(tag == t) for t in TAGS),
    ]


def structure_features(sketch: Sketch) -> list[float]:
    """What a sketch fixes for all its candidates."""
    main = main_nest(sketch)
    reduced = {a.name for a in sketch.dag.op(main.stage).reduce_axes}
    attached = [a for n in sketch.all_nests() for a in n.attached]
    return [
        float(main.vector is not None),
        float(main.vector in reduced),
        float(len(main.groups)),
        float(main.finish),
        float(main.epilogue is not None),
        float(len(main.packs)),
        float(len(attached)),
        float(len(list(sketch.all_nests()))),
    ]


assert (INLINE, ROOT) == (-1, 0)  # feature_kernel compares with numbers
