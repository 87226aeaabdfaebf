"""Plain loops over a region of a stage: producers computed for a tile, tile buffers filled and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seer.codegen.lower.context import Context, Override, Place
from seer.codegen.lower.region import Span
from seer.ir.expr import Const, Expr, as_expr, substitute
from seer.ir.loops import For, LoopKind, Stmt, Store, seq
from seer.ir.simplify import simplify
from seer.ir.tensor import ComputeOp

# Vectors of the innermost dimension that are unrolled when there are no more of them.
UNROLL_VECTORS = 4

Values = dict[str, Expr]
StoreAt = Callable[[Values], Stmt]


def lower_spatial(
    ctx: Context,
    op: ComputeOp,
    region: Sequence[Span],
    dest: Place,
    *,
    value: Expr | None = None,
    override: Override | None = None,
) -> Stmt:
    """Store op's body (or `value`, in terms of its axes) for each element of `region` into `dest`.

    The last dimension runs in vectors; a span with a limit runs to the limit.
    """
    expr = op.body if value is None else value
    variables = [ctx.fresh(a.name, s.extent) for a, s in zip(op.axes, region, strict=True)]
    at: dict[str, Expr] = {}
    for a, s, v in zip(op.axes, region, variables, strict=True):
        at[a.name] = s.base + (v if s.extent > 1 else as_expr(0))

    def store(values: dict[str, Expr]) -> Stmt:
        result = ctx.resolve(substitute(expr, values), override)
        indices = dest.at(tuple(values[a.name] for a in op.axes))
        return Store(dest.buffer, tuple(simplify(i, ctx.ranges) for i in indices), result)

    if not region:
        return store(at)
    last = op.axes[-1].name
    span = region[-1]
    if span.limit is None:
        body = _static_vectors(ctx, last, span, at, store)
    else:
        body = _limited_vectors(ctx, last, span, at, store)
    for s, v in reversed(list(zip(region[:-1], variables[:-1], strict=True))):
        if s.extent == 1 and s.limit is None:
            continue
        extent = as_expr(s.extent) if s.limit is None else s.limit
        if s.extent == 1:
            ctx.ranges[v.name] = (0, 0)
        body = For(v.name, simplify(extent, ctx.ranges), LoopKind.SERIAL, body)
    return body


def _static_vectors(ctx: Context, axis: str, span: Span, at: Values, store: StoreAt) -> Stmt:
    """The last dimension in vectors and a shorter vector."""
    lanes = ctx.target.lanes("float32")
    chunks, rest = divmod(span.extent, lanes)
    parts: list[Stmt] = []
    if chunks:
        c, v = ctx.fresh(axis, chunks), ctx.fresh("v", lanes)
        chunk: Expr = c if chunks > 1 else as_expr(0)
        body = store({**at, axis: span.base + chunk * lanes + v})
        body = For(v.name, as_expr(lanes), LoopKind.VECTORIZED, body)
        if chunks > 1:
            kind = LoopKind.UNROLLED if chunks <= UNROLL_VECTORS else LoopKind.SERIAL
            body = For(c.name, as_expr(chunks), kind, body)
        parts.append(body)
    if rest:
        v = ctx.fresh("v", rest)
        body = store({**at, axis: span.base + chunks * lanes + (v if rest > 1 else as_expr(0))})
        parts.append(For(v.name, as_expr(rest), LoopKind.VECTORIZED, body) if rest > 1 else body)
    return seq(*parts)


def _limited_vectors(ctx: Context, axis: str, span: Span, at: Values, store: StoreAt) -> Stmt:
    """The last dimension in vectors and single elements, up to a limit known at run time."""
    lanes = ctx.target.lanes("float32")
    assert span.limit is not None and not isinstance(span.limit, Const)
    c, v = ctx.fresh(axis, span.extent // lanes), ctx.fresh("v", lanes)
    full = For(v.name, as_expr(lanes), LoopKind.VECTORIZED, store({**at, axis: span.base + c * lanes + v}))
    s = ctx.fresh(axis, min(lanes, span.extent))
    start = span.limit - span.limit % lanes
    rest = store({**at, axis: span.base + start + s})
    return seq(
        For(c.name, simplify(span.limit // lanes, ctx.ranges), LoopKind.SERIAL, full),
        For(s.name, simplify(span.limit % lanes, ctx.ranges), LoopKind.SERIAL, rest),
    )
