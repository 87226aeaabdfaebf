"""Small loop builders shared by the nests."""

from __future__ import annotations

from seer.codegen.lower.context import Context
from seer.ir.expr import Expr, Var, as_expr
from seer.ir.loops import For, Let, LoopKind, Stmt


def fuse_parallel(ctx: Context, loops: list[tuple[str, int]], body: Stmt) -> Stmt:
    """One PARALLEL loop over all of `loops` (name, extent), whose variables it defines.

    A single iteration makes no loop. Variables of loops with one trip are expected to be unused.
    """
    total = 1
    for _, n in loops:
        total *= n
    if total == 1:
        return body
    live = [(name, n) for name, n in loops if n > 1]
    if len(live) == 1:
        return For(live[0][0], as_expr(total), LoopKind.PARALLEL, body)
    fused = ctx.fresh("p", total)
    inner = 1
    for k, (name, n) in reversed(list(enumerate(live))):
        value: Expr = Var(fused.name) // inner
        if k > 0:
            value = value % n
        body = Let(name, value, body)
        inner *= n
    return For(fused.name, as_expr(total), LoopKind.PARALLEL, body)
