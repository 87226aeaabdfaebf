"""Copies to shared memory ahead of their use.

With three stages, shared memory holds three blocks of the reduction: one is computed with while two
are on their way.

    start copies of block 0, of block 1
    for t in blocks:
      wait for the copies of block t; sync
      start copies of block t + 2, where block t - 1 was
      compute with block t
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from seer.codegen.gpu.common import take_apart, wrap
from seer.codegen.gpu.staged import StagedCopy
from seer.codegen.lower.context import Context
from seer.ir.expr import Expr, as_expr
from seer.ir.loops import CommitCopies, For, If, LoopKind, Stmt, Sync, WaitForCopies, seq
from seer.ir.simplify import simplify


def pipeline(
    ctx: Context,
    blocks: Sequence[tuple[str, int]],
    copies: Sequence[StagedCopy],
    stages: int,
    start: Callable[[Sequence[Expr]], Mapping[str, Expr]],
    copy: Callable[[StagedCopy], Stmt],
    compute: Callable[[Sequence[Expr]], Stmt],
) -> Stmt:
    """The loop over blocks of a reduction, copies started stages - 1 blocks ahead.

    Args:
        ctx: the kernel being lowered.
        blocks: (name, trips) of the loops over blocks, outer to inner.
        copies: what is copied for each block; made for so many stages.
        stages: at least 2.
        start: where the axes start in the block with the given coordinates.
        copy: the statement that copies, once the copy is placed.
        compute: what is done with the block of the given coordinates.
    """
    total = math.prod(n for _, n in blocks)
    if total == 0:
        return seq()

    def begin(index: Expr) -> Stmt:
        coordinates, lets = take_apart(ctx, index, blocks)
        parts = []
        for c in copies:
            c.start(start(coordinates))
            c.stage = simplify(index % stages, ctx.ranges)
            parts.append(copy(c))
        return wrap(lets, seq(*parts))

    first: list[Stmt] = []
    for k in range(stages - 1):
        first += [*([begin(as_expr(k))] if k < total else []), CommitCopies()]
    t = ctx.fresh("t", total)
    ahead = t + (stages - 1)
    more: Stmt = seq()
    if stages - 1 < total:
        more = If(simplify(ahead < total, ctx.ranges), begin(ahead))
    coordinates, lets = take_apart(ctx, t if total > 1 else as_expr(0), blocks)
    for c in copies:
        c.start(start(coordinates))
        c.stage = t % stages if total > 1 else as_expr(0)
    use = wrap(lets, compute(coordinates))
    body = seq(WaitForCopies(stages - 2), Sync(), more, CommitCopies(), use)
    return seq(*first, For(t.name, as_expr(total), LoopKind.SERIAL, body))
