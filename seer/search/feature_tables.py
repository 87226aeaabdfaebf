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
from seer.ir.dag import flop_count
from seer.ir.expr import Call, Expr, Read, Var, reads, variables, walk
from seer.ir.simplify import affine, simplify
from seer.ir.sketch import INLINE, ROOT, Nest, Pack, Sketch
from seer.ir.tensor import ComputeOp, Placeholder
from seer.runtime.target import Target
from seer.search import analysis

TAGS = ("matmul", "conv2d", "depthwise_conv2d", "softmax", "pool", "elementwise")
SAME, NEIGHBOURS, APART = 0, 1, 2  # where the lanes of one vector load lie
NOWHERE = -2  # no location: a tensor that is no attached producer


class Tables(NamedTuple):
    """A sketch as arrays. Nest 0 is the main one; `column` is -1 where there is no such param.

    Axes of all nests are numbered through, and so are their loops, groups and packs; `x_ptr[k]` is
    where those of k begin.
    """

    constants: np.ndarray  # features that no param changes
    machine: np.ndarray  # lanes, registers, threads, line, l1, l2, l3
    axis_ptr: np.ndarray  # nest -> axes
    extent: np.ndarray  # axis -> extent, at least 1
    is_reduce: np.ndarray  # axis -> 0 or 1
    columns: np.ndarray  # axis, level - 1 -> column
    group_ptr: np.ndarray  # nest -> groups
    loop_ptr: np.ndarray  # group -> loops
    loop_axis: np.ndarray
    loop_level: np.ndarray
    vector: np.ndarray  # nest -> axis or -1
    lanes_axis: np.ndarray  # nest -> reduce axis that runs in lanes, or -1
    parallel: np.ndarray  # nest -> column
    nest_size: np.ndarray  # nest -> elements of its output
    nest_lanes: np.ndarray  # nest -> lanes of its dtype
    host: np.ndarray  # nest -> nest it is attached to, or -1
    where: np.ndarray  # nest -> column of its location
    depth: np.ndarray  # nest -> its location where there is no param
    reduces: np.ndarray  # nest -> 0 or 1
    shape: np.ndarray  # main nest: finish, depth of the registers' loops in a tile buffer, unroll column
    access_ptr: np.ndarray  # access -> dimensions
    dim_extent: np.ndarray
    dim_affine: np.ndarray
    dim_steps: np.ndarray  # dimension, axis -> |coefficient|
    access_bytes: np.ndarray
    access_host: np.ndarray  # access -> nest that computes it, or -1
    access_lanes: np.ndarray  # access -> SAME, NEIGHBOURS or APART
    access_pack: np.ndarray  # access -> pack or -1
    pack_column: np.ndarray
    pack_ptr: np.ndarray  # pack -> loops
    pack_axis: np.ndarray
    pack_level: np.ndarray
    pack_bytes: np.ndarray
    pack_ahead: np.ndarray  # 1: done before the kernel runs
    pack_lanes: np.ndarray
    pack_nest: np.ndarray
    out_bytes: np.ndarray  # bytes of an element of: what the main nest accumulates, what it stores
    shared_bytes: np.ndarray  # nest -> bytes of scratch if its output is stored for all threads


def main_nest(sketch: Sketch) -> Nest:
    """The root nest with the most arithmetic: the one that features describe in full."""
    return max(sketch.nests, key=lambda n: _work(sketch, n))


def _work(sketch: Sketch, nest: Nest) -> tuple[int, int]:
    flop = sum(flop_count(sketch.dag.tensor(s)) for s in {nest.stage, nest.output})
    return flop, math.prod(sketch.dag.tensor(nest.output).shape)


def nests_of(sketch: Sketch) -> list[tuple[Nest, Nest | None]]:
    """Every nest and the nest that it is attached to, the main one first."""
    main = main_nest(sketch)
    hosts: dict[int, Nest] = {id(a.nest): n for n in sketch.all_nests() for a in n.attached}
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
        self.body: Expr = analysis.expand(sketch.dag, self.op.body, expanded)
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
            **self._loops(),
            **self._nests(),
            shape=self._shape(),
            **self._accesses(),
            **self._packs(),
            out_bytes=_ints([self._bytes(self.main.stage), self._bytes(self.main.output)]),
        )

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

    def _loops(self) -> dict[str, np.ndarray]:
        splits = [(n, s) for n in self.nests for s in n.splits]
        depth = max([len(s.params) for _, s in splits] + [1])
        columns = np.full((len(splits), depth), -1, dtype=np.int64)
        for i, (_, s) in enumerate(splits):
            columns[i, : len(s.params)] = [self.sketch.column(p) for p in s.params]
        reduced = {(id(n), a.name) for n in self.nests for a in self.sketch.dag.op(n.stage).reduce_axes}
        groups = [(k, g) for k, n in enumerate(self.nests) for g in n.groups]
        loops = [(self.number[k, x.axis], x.level) for k, g in groups for x in g]
        return {
            "axis_ptr": np.cumsum([0, *(len(n.splits) for n in self.nests)]),
            "extent": _ints([max(s.extent, 1) for _, s in splits]),
            "is_reduce": _ints([(id(n), s.axis) in reduced for n, s in splits]),
            "columns": columns,
            "group_ptr": np.cumsum([0, *(len(n.groups) for n in self.nests)]),
            "loop_ptr": np.cumsum([0, *(len(g) for _, g in groups)]),
            "loop_axis": _ints([a for a, _ in loops]),
            "loop_level": _ints([level for _, level in loops]),
        }

    def _nests(self) -> dict[str, np.ndarray]:
        dag = self.sketch.dag
        vector, lanes_axis, host, where, depth, shared = [], [], [], [], [], []
        for k, (n, h) in enumerate(self.pairs):
            axis = -1 if n.vector is None else self.number[k, n.vector]
            reduced = {a.name for a in dag.op(n.stage).reduce_axes}
            vector.append(axis)
            lanes_axis.append(axis if n.vector in reduced else -1)
            host.append(-1 if h is None else next(i for i, m in enumerate(self.nests) if m is h))
            a = None if h is None else next(a for a in h.attached if a.nest is n)
            where.append(-1 if a is None else self.column(a.param))
            depth.append(NOWHERE if a is None else a.depth)
            out = dag.tensor(n.output)
            shared.append(0 if out is dag.output else math.prod(out.shape) * self._bytes(out.name))
        return {
            "vector": _ints(vector),
            "lanes_axis": _ints(lanes_axis),
            "parallel": _ints([self.column(n.parallel) for n in self.nests]),
            "nest_size": _ints([math.prod(dag.tensor(n.output).shape) for n in self.nests]),
            "nest_lanes": _ints([self.target.lanes(dag.op(n.stage).body.dtype) for n in self.nests]),
            "host": _ints(host),
            "where": _ints(where),
            "depth": _ints(depth),
            "reduces": _ints([dag.op(n.stage).reducer is not None for n in self.nests]),
            "shared_bytes": _ints(shared),
        }

    def _shape(self) -> np.ndarray:
        main, last = self.main, len(self.main.groups) - 1
        reduced = {a.name for a in self.op.reduce_axes}
        inner = next(
            d
            for d in range(main.finish, last + 1)
            if d == last or all(x.axis in reduced for g in main.groups[d:last] for x in g)
        )
        return _ints([main.finish, inner, self.column(main.unroll)])

    def _accesses(self) -> dict[str, np.ndarray]:
        """The distinct reads of the main stage, in order."""
        ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*self.op.axes, *self.op.reduce_axes)}
        found: dict[tuple[str, tuple[Expr, ...]], Read] = {}
        for r in reads(self.body):
            found.setdefault((r.tensor.name, tuple(simplify(i, ranges) for i in r.indices)), r)
        n_axes = len(self.main.splits)
        ptr, extents, affine_dims, steps, lanes = [0], [], [], [], []
        for (_, indices), r in found.items():
            forms = [affine(index)[0] for index in indices]
            for terms in forms:
                plain = {t.name: c for t, c in terms.items() if isinstance(t, Var)}
                affine_dims.append(len(plain) == len(terms))
                row = [0] * n_axes
                for axis, c in plain.items():
                    row[self.number[0, axis]] = abs(c)
                steps.append(row)
            extents += [max(n, 1) for n in r.tensor.shape]
            ptr.append(len(extents))
            lanes.append(self._lanes(forms))
        producers = {n.output: k for k, (n, h) in enumerate(self.pairs) if h is self.main}
        packs = {p.tensor: k for k, (m, p) in enumerate(self._all_packs()) if m is self.main}
        tensors = [r.tensor for r in found.values()]
        return {
            "access_ptr": _ints(ptr),
            "dim_extent": _ints(extents),
            "dim_affine": _ints(affine_dims),
            "dim_steps": np.array(steps, dtype=np.int64).reshape(len(extents), n_axes),
            "access_bytes": _ints([self._bytes(t.name) for t in tensors]),
            "access_host": _ints([producers.get(t.name, -1) for t in tensors]),
            "access_lanes": _ints(lanes),
            "access_pack": _ints([packs.get(t.name, -1) for t in tensors]),
        }

    def _lanes(self, forms: list[dict[Expr, int]]) -> int:
        """Where the lanes of a vector load lie."""
        axis = self.main.vector or ""
        found = [{t: c for t, c in terms.items() if axis in variables(t)} for terms in forms]
        if not any(found):
            return SAME
        last = [(isinstance(t, Var), c) for t, c in found[-1].items()]
        return NEIGHBOURS if last == [(True, 1)] and not any(found[:-1]) else APART

    def _all_packs(self) -> list[tuple[Nest, Pack]]:
        return [(n, p) for n in self.nests for p in n.packs]

    def _packs(self) -> dict[str, np.ndarray]:
        packs = self._all_packs()
        loops = [(next(k for k, m in enumerate(self.nests) if m is n), x) for n, p in packs for x in p.loops]
        return {
            "pack_column": _ints([self.sketch.column(p.param) for _, p in packs]),
            "pack_ptr": np.cumsum([0, *(len(p.loops) for _, p in packs)]),
            "pack_axis": _ints([self.number[k, x.axis] for k, x in loops]),
            "pack_level": _ints([x.level for _, x in loops]),
            "pack_bytes": _ints([self._bytes(p.tensor) for _, p in packs]),
            "pack_ahead": _ints([self._is_ahead(p) for _, p in packs]),
            "pack_lanes": _ints([_pack_lanes(n, p) for n, p in packs]),
            "pack_nest": _ints([next(k for k, m in enumerate(self.nests) if m is n) for n, _ in packs]),
        }

    def _is_ahead(self, pack: Pack) -> bool:
        """Whether it is of a weight that nothing else reads, so that it is done before the kernel runs."""
        op = self.sketch.dag.tensor(pack.tensor).op
        constant = isinstance(op, Placeholder) and op.constant
        return constant and len(self.sketch.dag.consumers[pack.tensor]) == 1


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
