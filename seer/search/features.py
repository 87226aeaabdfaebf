"""What a cost model sees of a candidate: a fixed number of features for a whole population at once.

Features are functions of a sketch's parameters. The nest with the most arithmetic is described in
full: its register tile, its loops, and for each boundary between loop groups how much memory is
touched inside and how much is moved across (what a cache of that size would have to fetch); the
other nests by their sums. Sizes are logarithms, so that one model serves small and large kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.ir.dag import flop_count
from seer.ir.expr import Call, Read, Var, reads, walk
from seer.ir.simplify import affine, simplify
from seer.ir.sketch import Loop, Nest, Sketch
from seer.ir.tensor import ComputeOp, Placeholder
from seer.runtime.target import Target
from seer.search import analysis
from seer.search.gpu_features import gpu_features
from seer.search.legal import tile_vectors

VERSION = 1

BOUNDARIES = 6  # loop groups described, from the innermost out
_TAGS = ("matmul", "conv2d", "depthwise_conv2d", "softmax", "pool", "elementwise")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Access:
    """One tensor read or written by a stage: per dimension, its extent and each axis' coefficient."""

    tensor: str
    shape: tuple[int, ...]
    size_bytes: int
    dims: tuple[dict[str, int], ...]
    is_affine: bool

    def elements(self, covered: Arrays, count: int) -> np.ndarray:
        """Distinct elements (P,) touched while each axis covers so many positions."""
        out = np.ones(count)
        for terms, extent in zip(self.dims, self.shape, strict=True):
            span = np.ones(count)
            for axis, c in terms.items():
                span = span + abs(c) * (covered[axis] - 1)
            out *= np.minimum(span, extent) if self.is_affine else extent
        return out

    def lines(self, covered: Arrays, count: int, line: int) -> np.ndarray:
        """Cache lines (P,) that those elements lie in."""
        elements = self.elements(covered, count)
        if not self.dims:
            return np.ones(count)
        row = np.ones(count)
        for axis, c in self.dims[-1].items():
            row = row + abs(c) * (covered[axis] - 1)
        row = np.minimum(row, max(self.shape[-1], 1))
        return elements / row * np.ceil(row * self.size_bytes / line)

    def has(self, axis: str) -> bool:
        return any(axis in terms for terms in self.dims)


@lru_cache(maxsize=4096)
def _accesses(sketch: Sketch, nest: Nest) -> tuple[_Access, ...]:
    """Every tensor of the nest's stage, inlined stages expanded; the output last."""
    dag, op = sketch.dag, sketch.dag.op(nest.stage)
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}
    found: dict[str, _Access] = {}
    for r in reads(analysis.expand(dag, op.body, sketch.inlined)):
        found.setdefault(r.tensor.name, _access(r, ranges))
    out = dag.tensor(nest.output)
    own = tuple({a.name: 1} for a in op.axes)
    write = _Access(out.name, out.shape, dtype_of(out.dtype).size_bytes, own, True)
    return (*found.values(), write)


def _access(r: Read, ranges: dict[str, tuple[int, int]]) -> _Access:
    dims, is_affine = [], True
    for index in r.indices:
        terms, _ = affine(simplify(index, ranges))
        plain = {t.name: c for t, c in terms.items() if isinstance(t, Var)}
        is_affine &= len(plain) == len(terms)
        dims.append(plain)
    size = dtype_of(r.tensor.dtype).size_bytes
    return _Access(r.tensor.name, r.tensor.shape, size, tuple(dims), is_affine)


class _NestView:
    """A nest's trip counts for a population."""

    def __init__(self, sketch: Sketch, nest: Nest, rows: np.ndarray, target: Target) -> None:
        self.sketch, self.nest, self.rows, self.target = sketch, nest, rows, target
        self.count = len(rows)
        self.op: ComputeOp = sketch.dag.op(nest.stage)
        self.reduced = {a.name for a in self.op.reduce_axes}
        self.trips: dict[Loop, np.ndarray] = {}
        self.padded: Arrays = {}
        for s in nest.splits:
            inner = [rows[:, sketch.column(p)].astype(float) for p in s.params]
            step = np.ones(self.count)
            for level in range(len(inner), 0, -1):
                self.trips[Loop(s.axis, level)] = inner[level - 1]
                step = step * inner[level - 1]
            self.trips[Loop(s.axis, 0)] = np.ceil(max(s.extent, 1) / step)
            self.padded[s.axis] = step * self.trips[Loop(s.axis, 0)]
        self.accesses = _accesses(sketch, nest)

    def covered(self, first_group: int) -> Arrays:
        """Positions (P,) of each axis that the groups from `first_group` on run over."""
        out = {s.axis: np.ones(self.count) for s in self.nest.splits}
        for g in self.nest.groups[first_group:]:
            for x in g:
                out[x.axis] = out[x.axis] * self.trips[x]
        return {s.axis: np.minimum(out[s.axis], max(s.extent, 1)) for s in self.nest.splits}

    def iterations(self, groups: int) -> np.ndarray:
        """Iterations (P,) of the first `groups` groups together."""
        out = np.ones(self.count)
        for g in self.nest.groups[:groups]:
            for x in g:
                out = out * self.trips[x]
        return out

    def column(self, param: str | None, default: float) -> np.ndarray:
        if param is None:
            return np.full(self.count, default)
        return self.rows[:, self.sketch.column(param)].astype(float)


def _log(x: np.ndarray | float) -> np.ndarray:
    return np.asarray(np.log2(np.maximum(x, 1e-9) + 1.0))


def features(sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """The (P, n_features) float32 matrix of canonical rows (P, n_params)."""
    if target.gpu is not None:
        return gpu_features(sketch, rows, target)
    nests = list(sketch.all_nests())
    main = max(nests, key=lambda n: _work(sketch, n))
    view = _NestView(sketch, main, rows, target)
    columns = [
        *_constants(sketch, len(rows), target),
        *_tile(view),
        *_loops(view),
        *_memory(view),
        *_parallel(view),
        *_choices(view),
        *_others(sketch, [n for n in nests if n is not main], rows, target),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _work(sketch: Sketch, nest: Nest) -> int:
    out = sum(flop_count(sketch.dag.tensor(s)) for s in {nest.stage, nest.output})
    return out * 1000 + math.prod(sketch.dag.tensor(nest.output).shape)


def _constants(sketch: Sketch, count: int, target: Target) -> list[np.ndarray]:
    dag = sketch.dag
    tag = "pool" if "pool" in dag.tag else {"dense": "matmul", "batch_matmul": "matmul"}.get(dag.tag, dag.tag)
    values = [
        _log(float(dag.flop_count)),
        _log(float(math.prod(dag.output.shape))),
        float(target.num_threads),
        float(len(dag.ops)),
        *(float(tag == t) for t in _TAGS),
    ]
    return [np.full(count, v) for v in values]


def _tile(v: _NestView) -> list[np.ndarray]:
    """The register tile: its size, what it loads for each multiply-add, and what it wastes."""
    lanes = v.target.lanes(v.op.body.dtype)
    nest = v.nest
    vectors = tile_vectors(nest, v.sketch, v.rows, v.target).astype(float)
    wide = np.ones(v.count)
    for x in nest.groups[-1]:
        if x.axis == nest.vector:
            wide = v.trips[x]
    chunks = np.ceil(wide / lanes)
    last = v.covered(len(nest.groups) - 1)
    loads = np.zeros(v.count)
    for a in v.accesses[:-1]:
        rows = np.ones(v.count)
        for x in nest.groups[-1]:
            if a.has(x.axis):
                rows = rows * (chunks if x.axis == nest.vector else last[x.axis])
        loads += rows
    waste = np.ones(v.count)
    for s in nest.splits:
        waste = waste * v.padded[s.axis] / max(s.extent, 1)
    return [
        vectors,
        chunks,
        vectors / chunks,
        wide / (chunks * lanes),
        wide % lanes == 0,
        loads / np.maximum(vectors, 1),
        vectors / v.target.num_vector_registers,
        _log(waste - 1 + 1e-9) * 4,
        v.column(nest.unroll, 0.0),
        np.minimum(v.column(nest.unroll, 0.0) / np.maximum(vectors, 1), 64),
        np.full(v.count, float(nest.vector in v.reduced)),
        np.full(v.count, float(nest.vector is not None)),
    ]


def _loops(v: _NestView) -> list[np.ndarray]:
    """Trips of each group, spatial and reduce apart, from the innermost out."""
    out = []
    for k in range(BOUNDARIES):
        spatial, reduce = np.ones(v.count), np.ones(v.count)
        vector = np.ones(v.count)
        if k < len(v.nest.groups):
            for x in v.nest.groups[len(v.nest.groups) - 1 - k]:
                if x.axis in v.reduced:
                    reduce = reduce * v.trips[x]
                else:
                    spatial = spatial * v.trips[x]
                if x.axis == v.nest.vector:
                    vector = vector * v.trips[x]
        out += [_log(spatial), _log(reduce), _log(vector)]
    return out


def _memory(v: _NestView) -> list[np.ndarray]:
    """Bytes touched inside each boundary, bytes moved across it, and the traffic of each cache."""
    line = v.target.cache_line_bytes
    work = max(1.0, float(_work(v.sketch, v.nest)) / 1000)
    inside, moved = [], []
    for k in range(BOUNDARIES + 1):
        depth = max(len(v.nest.groups) - k, 0)
        covered = v.covered(depth)
        touched = sum((a.lines(covered, v.count, line) * line for a in v.accesses), np.zeros(v.count))
        inside.append(touched)
        moved.append(touched * v.iterations(depth))
    out = []
    for k in range(1, BOUNDARIES + 1):
        out += [_log(inside[k]), _log(moved[k] / work * 64)]
    for size in (v.target.l1_bytes, v.target.l2_bytes, v.target.l3_bytes):
        traffic = moved[0]
        for touched, across in zip(inside, moved, strict=True):
            traffic = np.where(touched <= size, np.minimum(traffic, across), traffic)
        out += [_log(traffic), _log(traffic / work * 64)]
    stride = [_stride(v, a) for a in v.accesses]
    out += [np.full(v.count, float(s)) for s in (min(stride), max(stride), sum(x > 1 for x in stride))]
    return out


def _stride(v: _NestView, a: _Access) -> float:
    """How far apart the lanes of a vector lie, as a logarithm (0: the same element, 1: neighbours)."""
    axis = v.nest.vector
    if axis is None or not a.has(axis):
        return 0.0
    flat, stride = 0, 1
    for terms, extent in zip(reversed(a.dims), reversed(a.shape), strict=True):
        flat += terms.get(axis, 0) * stride
        stride *= extent
    return math.log2(abs(flat) + 1)


def _parallel(v: _NestView) -> list[np.ndarray]:
    """Iterations to share among threads, and how evenly they divide."""
    on = v.column(v.nest.parallel, 0.0)
    pieces = np.ones(v.count)
    for x in v.nest.groups[0]:
        pieces = pieces * v.trips[x]
    pieces = np.where(on > 0, pieces, 1)
    threads = v.target.num_threads
    even = pieces / (np.ceil(pieces / threads) * threads)
    return [on, _log(pieces), even, _log(pieces / threads)]


def _choices(v: _NestView) -> list[np.ndarray]:
    """Which inputs are packed, and where producers are computed."""
    packs = np.zeros(v.count)
    packed_at_run_time = np.zeros(v.count)
    for p in v.nest.packs:
        chosen = v.column(p.param, 0.0)
        packs += chosen
        op = v.sketch.dag.tensor(p.tensor).op
        if not (isinstance(op, Placeholder) and op.constant):
            packed_at_run_time += chosen
    where = [v.column(a.param, float(a.depth)) for a in v.nest.attached]
    zero = np.zeros(v.count)
    return [
        packs,
        packed_at_run_time,
        np.full(v.count, float(len(v.nest.packs))),
        np.full(v.count, float(len(where))),
        sum(where, zero),
        sum(((w == -1).astype(float) for w in where), zero),
        sum(((w == 0).astype(float) for w in where), zero),
        np.full(v.count, float(v.nest.finish)),
        np.full(v.count, float(len(v.nest.groups))),
        np.full(v.count, float(v.nest.epilogue is not None)),
    ]


def _others(sketch: Sketch, nests: list[Nest], rows: np.ndarray, target: Target) -> list[np.ndarray]:
    """Sums over the other nests."""
    count = len(rows)
    points, moved, serial, calls = (np.zeros(count) for _ in range(4))
    narrow = np.zeros(count)
    for n in nests:
        v = _NestView(sketch, n, rows, target)
        whole = v.covered(0)
        size = np.full(count, float(max(1, math.prod(sketch.dag.tensor(n.output).shape))))
        points += size
        moved += sum((a.elements(whole, count) * a.size_bytes for a in v.accesses), np.zeros(count))
        serial += size * (1 - v.column(n.parallel, 1.0))
        calls += size * sum(isinstance(e, Call) for e in walk(v.op.body))
        lanes = target.lanes(v.op.body.dtype)
        tile = v.trips[n.groups[-1][-1]] if n.groups[-1] else np.ones(count)
        narrow += np.where(tile % lanes == 0, 0, size)
    return [
        _log(points),
        _log(moved),
        _log(serial),
        _log(calls),
        _log(narrow),
        np.full(count, float(len(nests))),
    ]
