"""Reductions along a vectorised axis: each lane keeps a partial result (Ansor's rfactor).

One nest of this kind: the register tile holds only the innermost level of the reduce axis. Before:

    for r in range(E): acc = combine(acc, body(r))

After, with L lanes and t = chunks * L:

    for r0 in range(E // t): acc[0:t] = combine(acc[0:t], body(r0 * t + [0:t]))
    vectors and single elements of the last E % t
    acc[0:L] = combined chunks; halves are combined until one element is left
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seer.ir.expr import Expr, Load, as_expr, substitute
from seer.ir.loops import Buffer, For, LoopKind, Scope, Stmt, Store, seq
from seer.ir.sketch import Loop
from seer.ir.tensor import identity_of

if TYPE_CHECKING:
    from seer.codegen.lower.nest import NestLowering


@dataclass(frozen=True)
class _Lanes:
    """The accumulators: (chunks, lanes) vectors and one single element."""

    vectors: Buffer | None
    single: Buffer
    chunks: int
    lanes: int


def reduce_by_lanes(nest: NestLowering) -> Stmt:
    """Initialise, reduce and finish one element whose reduce axis runs in vector lanes."""
    axis = nest.nest.vector
    assert axis is not None
    lanes = nest.lanes
    chunks = nest.trips[axis][-1] // lanes
    ctx = nest.ctx
    vectors = None
    if chunks:
        vectors = ctx.new_buffer(nest.nest.stage, (chunks, lanes), nest.dtype, Scope.REGISTER)
    single = ctx.new_buffer(nest.nest.stage, (1,), nest.dtype, Scope.REGISTER)
    acc = _Lanes(vectors, single, chunks, lanes)
    identity = identity_of(nest.op)
    start: list[Stmt] = [Store(single, (as_expr(0),), identity)]
    if vectors is not None:
        start.append(_each_vector(nest, acc, chunks, lambda c, v: Store(vectors, (c, v), identity)))
    outer = [x for g in nest.nest.groups[nest.nest.finish : nest.tile] for x in g if x.axis != axis]
    return seq(*start, _outer_loops(nest, outer, lambda: _along(nest, acc, axis)), *_combine(nest, acc))


def _outer_loops(nest: NestLowering, loops: list[Loop], inside: Callable[[], Stmt]) -> Stmt:
    """The other reduce loops, outside the vectorised one."""
    if not loops:
        return inside()
    x = loops[0]
    trip = nest.trip(x)
    var = nest.ctx.fresh(f"{x.axis}{x.level}", nest.trips[x.axis][x.level])
    nest.vars[x] = var
    body = _outer_loops(nest, loops[1:], inside)
    del nest.vars[x]
    return For(var.name, trip, LoopKind.SERIAL, body)


def _each_vector(nest: NestLowering, acc: _Lanes, chunks: int, make: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """`make(chunk, lane)` for the first `chunks` vectors."""
    c, v = nest.ctx.fresh("c", chunks), nest.ctx.fresh("v", acc.lanes)
    chunk: Expr = c if chunks > 1 else as_expr(0)
    body: Stmt = For(v.name, as_expr(acc.lanes), LoopKind.VECTORIZED, make(chunk, v))
    return For(c.name, as_expr(chunks), LoopKind.UNROLLED, body) if chunks > 1 else body


def _along(nest: NestLowering, acc: _Lanes, axis: str) -> Stmt:
    """The vectorised axis from its first to its last element."""
    extent, size = nest.extent[axis], acc.chunks * acc.lanes
    start: dict[str, Expr] = {
        a: nest.base[a] + (nest.offset(a) if a != axis else as_expr(0)) for a in nest.trips
    }

    def value(position: Expr) -> Expr:
        return nest.ctx.resolve(substitute(nest.op.body, {**start, axis: start[axis] + position}))

    def into_vectors(base: Expr, chunks: int) -> Stmt:
        vectors = acc.vectors
        assert vectors is not None

        def make(c: Expr, v: Expr) -> Stmt:
            at = base + c * acc.lanes + v
            return Store(vectors, (c, v), nest.combine(Load(vectors, (c, v)), value(at)))

        return _each_vector(nest, acc, chunks, make)

    parts: list[Stmt] = []
    done = 0
    if size and extent >= size:
        r = nest.ctx.fresh(f"{axis}0", extent // size)
        body = into_vectors(r * size, acc.chunks)
        parts.append(For(r.name, as_expr(extent // size), LoopKind.SERIAL, body))
        done = extent // size * size
    if size and (extent - done) // acc.lanes:
        parts.append(into_vectors(as_expr(done), (extent - done) // acc.lanes))
        done += (extent - done) // acc.lanes * acc.lanes
    if extent - done:
        s = nest.ctx.fresh(axis, extent - done)
        slot = Load(acc.single, (as_expr(0),))
        update = Store(acc.single, (as_expr(0),), nest.combine(slot, value(s + done)))
        parts.append(For(s.name, as_expr(extent - done), LoopKind.SERIAL, update))
    return seq(*parts)


def _combine(nest: NestLowering, acc: _Lanes) -> list[Stmt]:
    """Chunks into one vector, halves into one element, and the finished element stored."""
    reducer = nest.op.reducer
    assert reducer is not None
    out: list[Stmt] = []
    result: Expr = Load(acc.single, (as_expr(0),))
    if acc.vectors is not None:
        source, width = acc.vectors, acc.lanes
        zero = as_expr(0)
        for c in range(1, acc.chunks):
            v = nest.ctx.fresh("v", width)
            both = reducer.combine(Load(source, (zero, v)), Load(source, (as_expr(c), v)))
            out.append(For(v.name, as_expr(width), LoopKind.VECTORIZED, Store(source, (zero, v), both)))
        index: tuple[Expr, ...] = (zero,)
        while width > 1:
            width //= 2
            half = nest.ctx.new_buffer(nest.nest.stage, (width,), nest.dtype, Scope.REGISTER)
            v = nest.ctx.fresh("v", width)
            lane: Expr = v if width > 1 else zero
            both = reducer.combine(Load(source, (*index, lane)), Load(source, (*index, lane + width)))
            step: Stmt = Store(half, (lane,), both)
            if width > 1:
                step = For(v.name, as_expr(width), LoopKind.VECTORIZED, step)
            out.append(step)
            source, index = half, ()
        result = reducer.combine(Load(source, (zero,)), result)
    indices = tuple(nest.base[a.name] + nest.offset(a.name) for a in nest.op.axes)
    out.append(nest.finished(indices, result))
    return out
