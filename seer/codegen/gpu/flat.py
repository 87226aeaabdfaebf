"""Flat kernels: the output is one index, each thread computes a few elements of it.

Before:

    for i, j in 37 x 64: y[i, j] = f(x[i, j])

After, with 256 threads and 4 items, which here lie side by side:

    block b, thread t:
      n = (b * 256 + t) * 4
      if n < 37 * 64: y[n // 64, n % 64 + 0:4] = f(...)

Reductions run inside the thread, one accumulator an element.
"""

from __future__ import annotations

import math

from seer.codegen.gpu.common import (
    DEFAULT_THREADS,
    VECTOR,
    combine,
    grid,
    guarded,
    param,
    store_finished,
    take_apart,
    unroll_kinds,
    unrolled,
    wrap,
)
from seer.codegen.lower.context import Context
from seer.ir.expr import Expr, Load, Var, as_expr, substitute
from seer.ir.loops import For, LoopKind, Scope, Stmt, Store, seq
from seer.ir.simplify import simplify
from seer.ir.sketch import Nest
from seer.ir.tensor import identity_of


def lower_flat(ctx: Context, nest: Nest) -> Stmt:
    """The loops of a flat nest."""
    op = ctx.op(nest.stage)
    total = math.prod(a.extent for a in op.axes)
    bind = nest.bind
    threads = param(ctx, bind.threads if bind else None, DEFAULT_THREADS)
    items = param(ctx, bind.items if bind else None, 1)
    width = VECTOR if items % VECTOR == 0 and op.axes and op.axes[-1].extent % VECTOR == 0 else 1
    pieces, rounds = total // width, items // width
    blocks = -(-pieces // (threads * rounds))

    def inside(block: Expr, thread: Expr) -> Stmt:
        c = ctx.fresh("c", rounds)
        at = (block * rounds + (c if rounds > 1 else as_expr(0))) * threads + thread
        fits = simplify(at < pieces, ctx.ranges)
        flat = ctx.fresh("n", pieces)
        ctx.ranges[flat.name] = (0, (pieces - 1) * width)
        known = {flat.name: width}
        values, lets = take_apart(ctx, flat, [(a.name, a.extent) for a in op.axes], known)
        body = wrap([(flat.name, at * width), *lets], _piece(ctx, nest, values, width))
        return unrolled([(c, rounds)], guarded(fits, body))

    return grid(ctx, blocks, threads, inside)


def _piece(ctx: Context, nest: Nest, start: list[Expr], width: int) -> Stmt:
    """`width` elements side by side, from `start`."""
    op = ctx.op(nest.stage)
    v = ctx.fresh("v", width)
    lane: Expr = v if width > 1 else as_expr(0)
    at = {a.name: x for a, x in zip(op.axes, start, strict=True)}
    if width > 1:
        at[op.axes[-1].name] = at[op.axes[-1].name] + lane
    indices = tuple(at[a.name] for a in op.axes)

    def each(s: Stmt) -> Stmt:
        return For(v.name, as_expr(width), LoopKind.VECTORIZED, s) if width > 1 else s

    if op.reducer is None:
        value = ctx.resolve(substitute(op.body, at))
        return each(store_finished(ctx, nest, indices, value))
    acc = ctx.new_buffer(nest.stage, (width,), op.body.dtype, Scope.REGISTER)
    loops: list[tuple[Var, int]] = []
    for a in op.reduce_axes:
        var = ctx.fresh(a.name, a.extent)
        at[a.name] = var if a.extent != 1 else as_expr(0)
        if a.extent != 1:
            loops.append((var, a.extent))
    kinds = unroll_kinds([n for _, n in loops], width, param(ctx, nest.unroll, 0))
    term = ctx.resolve(substitute(op.body, at))
    body = each(Store(acc, (lane,), combine(op, Load(acc, (lane,)), term)))
    for (var, n), kind in zip(reversed(loops), reversed(kinds), strict=True):
        body = For(var.name, as_expr(n), kind, body)
    return seq(
        each(Store(acc, (lane,), identity_of(op))),
        body,
        each(store_finished(ctx, nest, indices, Load(acc, (lane,)))),
    )
