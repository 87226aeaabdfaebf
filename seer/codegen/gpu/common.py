"""What the GPU nests share: the grid, indices taken apart, finished elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from seer.codegen.lower.context import Context, Override
from seer.ir.divisible import divisor
from seer.ir.expr import Binary, Call, Const, Expr, Read, Var, as_expr, substitute
from seer.ir.loops import For, If, Let, LoopKind, Stmt, Store, seq
from seer.ir.simplify import simplify
from seer.ir.sketch import Nest, trip_counts
from seer.ir.tensor import ComputeOp

# Threads of a block where no parameter says how many.
DEFAULT_THREADS = 256
# Elements that one thread loads or stores at once, at most.
VECTOR = 4

Lets = list[tuple[str, Expr]]


def grid(ctx: Context, blocks: int, threads: int, inside: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """A grid of blocks of threads round `inside(block, thread)`."""
    b, t = ctx.fresh("block", blocks), ctx.fresh("thread", threads)
    body = inside(b if blocks > 1 else as_expr(0), t if threads > 1 else as_expr(0))
    inner = For(t.name, as_expr(threads), LoopKind.THREAD, body)
    return For(b.name, as_expr(blocks), LoopKind.BLOCK, inner)


def wrap(lets: Lets, body: Stmt) -> Stmt:
    """`body` inside Lets, the first outermost."""
    for name, value in reversed(lets):
        body = Let(name, value, body)
    return body


def guarded(cond: Expr, body: Stmt) -> Stmt:
    """`body` where `cond` holds; a constant decides at once."""
    if isinstance(cond, Const):
        return body if cond.value else seq()
    return If(cond, body)


def take_apart(
    ctx: Context,
    index: Expr,
    dims: Sequence[tuple[str, int]],
    known: dict[str, int] | None = None,
) -> tuple[list[Expr], Lets]:
    """The coordinates of a row-major index within dims (name, extent), and Lets that define them.

    What is known to divide a coordinate is added to `known`.
    """
    values: list[Expr] = []
    lets: Lets = []
    stride = math.prod(n for _, n in dims)
    whole = stride
    for name, n in dims:
        stride //= max(n, 1)
        if n <= 1:
            values.append(as_expr(0))
            continue
        value = index // stride
        if stride * n < whole:
            value = value % n
        value = simplify(value, ctx.ranges)
        if isinstance(value, Binary):
            var = ctx.fresh(name, n)
            lets.append((var.name, value))
            if known is not None:
                known[var.name] = divisor(value, known)
            value = var
        values.append(value)
    return values, lets


def trips_of(ctx: Context, nest: Nest, axis: str) -> tuple[int, ...]:
    """Trip counts of each level of an axis."""
    split = nest.split(axis)
    return trip_counts(split.extent, tuple(ctx.values[p] for p in split.params))


def param(ctx: Context, name: str | None, default: int) -> int:
    """The value of a param that may not be there."""
    return default if name is None else ctx.values[name]


def combine(op: ComputeOp, acc: Expr, value: Expr) -> Expr:
    """`acc` with one more term, a sum of products as one fused multiply-add."""
    assert op.reducer is not None
    if (
        op.reducer.name == "sum"
        and isinstance(value, Binary)
        and value.op == "*"
        and value.dtype.startswith("float")
    ):
        return Call("fma", (value.a, value.b, acc), value.dtype)
    return op.reducer.combine(acc, value)


def store_finished(
    ctx: Context, nest: Nest, indices: tuple[Expr, ...], value: Expr, override: Override | None = None
) -> Stmt:
    """Store `value` of the nest's stage at `indices`, through the epilogue if there is one."""
    if nest.epilogue is not None:
        last = ctx.op(nest.epilogue)
        body = substitute(last.body, {a.name: i for a, i in zip(last.axes, indices, strict=True)})

        def answer(r: Read) -> Expr | None:
            if r.tensor.name == nest.stage:
                return value
            return override(r) if override is not None else None

        value = ctx.resolve(body, answer)
    place = ctx.places[nest.output]
    return Store(place.buffer, tuple(simplify(i, ctx.ranges) for i in place.at(indices)), value)


def unrolled(extents: Sequence[tuple[Var, int]], body: Stmt) -> Stmt:
    """UNROLLED loops (variable, extent), outer to inner; a single trip makes no loop."""
    for var, n in reversed(extents):
        if n > 1:
            body = For(var.name, as_expr(n), LoopKind.UNROLLED, body)
    return body


def unroll_kinds(trips: Sequence[int], statements: int, limit: int) -> list[LoopKind]:
    """Which serial loops (outer to inner) unroll: from the innermost, while `limit` statements allow it."""
    kinds = [LoopKind.SERIAL] * len(trips)
    for k in range(len(trips) - 1, -1, -1):
        statements *= trips[k]
        if statements > limit:
            break
        kinds[k] = LoopKind.UNROLLED
    return kinds
