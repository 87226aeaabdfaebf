"""Tensors copied to shared memory: which piece a block needs, and the copy by all its threads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from seer.codegen.gpu.common import VECTOR, Lets, guarded, take_apart, wrap
from seer.codegen.lower.context import Context
from seer.dtypes import dtype as dtype_of
from seer.dtypes import is_narrow
from seer.ir.dag import ComputeDAG, compute_op
from seer.ir.divisible import divisor
from seer.ir.expr import Const, Expr, Load, Read, Select, Var, all_of, as_expr, children, select
from seer.ir.loops import Buffer, For, LoopKind, Scope, StartCopy, Stmt, Store
from seer.ir.simplify import affine, simplify
from seer.ir.tensor import Tensor

Count = TypeVar("Count", int, np.ndarray)

# Copies that a thread makes one after another in unrolled code; more of them run in a loop.
MAX_UNROLLED_COPIES = 16
# What cp.async moves at once, at most.
MAX_COPY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Dim:
    """What the reads of a stage touch in one dimension: sum of coefficient * axis, low to high."""

    terms: tuple[tuple[str, int], ...]
    low: int
    high: int

    def extent(self, covered: Mapping[str, Count]) -> Count:
        """Elements between the first and the last one touched while axes cover so many positions."""
        out: Count = self.high - self.low + 1  # type: ignore[assignment]
        for axis, c in self.terms:
            out = out + (covered[axis] - 1) * abs(c)
        return out

    def base(self, start: Mapping[str, Expr], covered: Mapping[str, int]) -> Expr:
        """The first element touched while the axes run from `start`."""
        out: Expr = as_expr(self.low)
        for axis, c in self.terms:
            out = out + start[axis] * c
            if c < 0:
                out = out + (covered[axis] - 1) * c
        return out


def staged_dims(dag: ComputeDAG, stage: str, tensor: str) -> tuple[Dim, ...] | None:
    """How a stage reads a tensor, or None if no box of it can be copied ahead.

    It can be if every read is unconditional and affine, and reads differ by constants alone.
    """
    op = compute_op(dag.tensor(stage))
    found = _plain_reads(op.body, tensor)
    if not found or not dag.tensor(tensor).shape:
        return None
    axes = {a.name for a in (*op.axes, *op.reduce_axes)}
    dims: list[Dim] = []
    for d in range(len(dag.tensor(tensor).shape)):
        forms = [affine(simplify(r.indices[d], {})) for r in found]
        terms = forms[0][0]
        if any(f[0] != terms for f in forms):
            return None
        if not all(isinstance(t, Var) and t.name in axes for t in terms):
            return None
        constants = [f[1] for f in forms]
        named = tuple((t.name, c) for t, c in terms.items() if isinstance(t, Var))
        dims.append(Dim(named, min(constants), max(constants)))
    return tuple(dims)


def _plain_reads(e: Expr, tensor: str) -> list[Read] | None:
    """The reads of a tensor, or None if one of them depends on a condition."""
    if isinstance(e, Read) and e.tensor.name == tensor:
        return [e]
    parts = [_plain_reads(k, tensor) for k in children(e)]
    if any(p is None for p in parts):
        return None
    out = [r for p in parts for r in p or ()]
    return None if isinstance(e, Select) and out else out


def dim_order(dims: tuple[Dim, ...], reduced: set[str], choice: int) -> tuple[int, ...]:
    """The order of dimensions in shared memory: as they are, or those of reduce axes first."""
    every = tuple(range(len(dims)))
    if choice != 2:
        return every
    inner = [d for d in every if any(a not in reduced for a, _ in dims[d].terms)]
    return (*(d for d in every if d not in inner), *inner)


def padding(extent: Count, dim: Dim, reduced: set[str], dtype: str, terms: int) -> Count:
    """Elements between rows of shared memory, so that a warp's fragment lies in 32 banks.

    Lanes of a fragment read 8 rows of 4 neighbours where rows run along the reduction, else 4 of 8.
    Where a piece has 16 terms instead of 8, neighbours are pairs and only every second row is read.
    """
    is_along = any(a in reduced for a, _ in dim.terms)
    is_half = (is_along == (terms == 8)) and not is_narrow(dtype)
    return (4 - extent) % 8 if is_half else (8 - extent) % 16


class StagedCopy:
    """One tensor's piece in shared memory, its rows padded for fragments of so many `terms` if any."""

    def __init__(
        self,
        ctx: Context,
        stage: str,
        tensor: Tensor,
        reduced: set[str],
        choice: int,
        covered: dict[str, int],
        terms: int = 0,
        stages: int = 1,
    ) -> None:
        dims = staged_dims(ctx.sketch.dag, stage, tensor.name)
        assert dims is not None
        self.ctx, self.tensor, self.dims, self.covered = ctx, tensor, dims, covered
        self.order = dim_order(dims, reduced, choice)
        self.extents = tuple(int(d.extent(covered)) for d in dims)
        shape = tuple(self.extents[d] for d in self.order)
        if terms:
            more = padding(shape[-1], dims[self.order[-1]], reduced, tensor.dtype, terms)
            shape = (*shape[:-1], shape[-1] + int(more))
        self.stages, self.stage = stages, as_expr(0)
        if stages > 1:
            shape = (stages, *shape)
        self.buffer: Buffer = ctx.new_buffer(tensor.name, shape, tensor.dtype, Scope.BLOCK_SHARED)
        self.base: tuple[Expr, ...] = ()

    def start(self, start: Mapping[str, Expr]) -> None:
        """Place the piece where the axes start."""
        ranges = self.ctx.ranges
        self.base = tuple(simplify(d.base(start, self.covered), ranges) for d in self.dims)

    def at(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The place in shared memory of an element of the tensor."""
        return self._at([i - b for i, b in zip(indices, self.base, strict=True)])

    def _at(self, local: list[Expr]) -> tuple[Expr, ...]:
        """The place of an element of the piece."""
        inside = tuple(simplify(local[d], self.ctx.ranges) for d in self.order)
        return (self.stage, *inside) if self.stages > 1 else inside

    def vector(self, known: Mapping[str, int]) -> int:
        """How many elements each thread copies at once."""
        last = len(self.dims) - 1
        size = dtype_of(self.tensor.dtype).size_bytes
        if size != 4 and not is_narrow(self.tensor.dtype):
            return 1
        sizes = (self.extents[last], self.tensor.shape[last], divisor(self.base[last], known))
        # What is copied ahead needs no registers on its way, and so may be wider.
        is_late = self.stages > 1 and _is_plain_copy(self.ctx.resolve(Read(self.tensor, self.base)))
        widths = (MAX_COPY_BYTES // size, VECTOR) if is_late else (VECTOR,)
        return next((w for w in widths if all(n % w == 0 for n in sizes)), 1)

    def copy(self, thread: Expr, threads: int, known: Mapping[str, int]) -> Stmt:
        """The copy by all threads of a block; elements outside the tensor become 0."""
        ctx = self.ctx
        width = self.vector(known)
        pieces = math.prod(self.extents) // width
        rounds = -(-pieces // threads)
        c = ctx.fresh("c", rounds)
        index = (c if rounds > 1 else as_expr(0)) * threads + thread
        fits = simplify(index < pieces, ctx.ranges)
        # Inside the guard the index is smaller than it may be outside.
        lets: Lets = []
        flat = ctx.fresh("n", pieces)
        lets.append((flat.name, index * width))
        ctx.ranges[flat.name] = (0, max(pieces - 1, 0) * width)
        names = [(f"{self.tensor.name}{d}", n) for d, n in enumerate(self.extents)]
        local, more = take_apart(ctx, flat, names, dict(known) | {flat.name: width})
        body = wrap([*lets, *more], self._store(local, width))
        body = guarded(fits, body)
        if rounds == 1:
            return body
        kind = LoopKind.UNROLLED if rounds <= MAX_UNROLLED_COPIES else LoopKind.SERIAL
        return For(c.name, as_expr(rounds), kind, body)

    def _store(self, local: list[Expr], width: int) -> Stmt:
        ctx = self.ctx
        v = ctx.fresh("v", width)
        start = [simplify(b + x, ctx.ranges) for b, x in zip(self.base, local, strict=True)]
        inside: list[Expr] = []
        for x, n in zip(start, self.tensor.shape, strict=True):
            inside += [simplify(as_expr(0) <= x, ctx.ranges), simplify(x < n, ctx.ranges)]
        lane: Expr = v if width > 1 else as_expr(0)
        at = (*start[:-1], start[-1] + lane)
        value = ctx.resolve(Read(self.tensor, at))
        cond = all_of(*inside)
        if not isinstance(cond, Const):
            value = select(cond, value, _zero(self.tensor.dtype))
        elif not cond.value:
            value = _zero(self.tensor.dtype)
        indices = self._at([*local[:-1], local[-1] + lane])
        is_late = self.stages > 1 and _is_plain_copy(value) and width * dtype_of(value.dtype).size_bytes >= 4
        body: Stmt = (StartCopy if is_late else Store)(self.buffer, indices, value)
        return For(v.name, as_expr(width), LoopKind.VECTORIZED, body) if width > 1 else body


def _is_plain_copy(value: Expr) -> bool:
    """Whether a float of an argument, or 0, is moved as it is."""
    if isinstance(value, Select):
        if value.b != _zero(value.dtype):
            return False
        value = value.a
    is_argument = isinstance(value, Load) and value.buffer.scope is Scope.ARG
    return is_argument and (dtype_of(value.dtype).size_bytes == 4 or is_narrow(value.dtype))


def _zero(dtype: str) -> Const:
    kind = dtype_of(dtype).kind
    return Const({"float": 0.0, "storage": 0.0, "int": 0, "bool": False}[kind], dtype)
