"""Partial results of several threads combined, so that every thread has the whole."""

from __future__ import annotations

from dataclasses import dataclass

from seer.codegen.gpu.common import guarded
from seer.codegen.lower.context import Context
from seer.ir.expr import Expr, Load, as_expr
from seer.ir.loops import Buffer, Exchange, Scope, Stmt, Store, Sync
from seer.ir.simplify import simplify
from seer.ir.tensor import ComputeOp

WARP = 32


@dataclass(frozen=True)
class RowOfThreads:
    """How the threads of a block share rows.

    Attributes:
        threads: threads of a row, a power of two.
        rows: rows of a block.
        x: this thread's place in its row.
        y: its row.
        is_near: whether the threads of a row are neighbours (x = thread % threads).
    """

    threads: int
    rows: int
    x: Expr
    y: Expr
    is_near: bool

    @property
    def exchanges(self) -> bool:
        """Whether warps can exchange values: rows lie along them and no warp is cut short."""
        return self.is_near and (self.threads * self.rows) % WARP == 0


def combine_threads(ctx: Context, op: ComputeOp, acc: Buffer, row: RowOfThreads) -> list[Stmt]:
    """Combine `acc` of all threads of each row; all threads of the block come here."""
    if row.threads == 1:
        return []
    if not row.exchanges:
        return _in_shared_memory(ctx, op, acc, row)
    out = _exchanges(ctx, op, acc, min(row.threads, WARP))
    if row.threads <= WARP:
        return out
    # One value a warp, then the same once more: each warp holds all of them.
    warps = row.threads // WARP
    shared = ctx.new_buffer(acc.name, (row.rows, warps), acc.dtype, Scope.BLOCK_SHARED)
    lane, warp = simplify(row.x % WARP, ctx.ranges), simplify(row.x // WARP, ctx.ranges)
    mine = Load(acc, (as_expr(0),))
    out += [
        guarded(simplify(lane < 1, ctx.ranges), Store(shared, (row.y, warp), mine)),
        Sync(),
        Store(acc, (as_expr(0),), Load(shared, (row.y, simplify(row.x % warps, ctx.ranges)))),
        *_exchanges(ctx, op, acc, warps),
    ]
    return out


def _exchanges(ctx: Context, op: ComputeOp, acc: Buffer, width: int) -> list[Stmt]:
    """A butterfly: after log2(width) exchanges every thread has the combination of `width`."""
    assert op.reducer is not None
    other = ctx.new_buffer(f"{acc.name}_other", (1,), acc.dtype, Scope.REGISTER)
    zero = (as_expr(0),)
    out: list[Stmt] = []
    mask = width // 2
    while mask:
        both = op.reducer.combine(Load(acc, zero), Load(other, zero))
        out += [Exchange(other, zero, Load(acc, zero), mask), Store(acc, zero, both)]
        mask //= 2
    return out


def _in_shared_memory(ctx: Context, op: ComputeOp, acc: Buffer, row: RowOfThreads) -> list[Stmt]:
    """A tree: half of the threads add what the other half has, until one is left."""
    assert op.reducer is not None
    zero = (as_expr(0),)
    shared = ctx.new_buffer(acc.name, (row.threads, row.rows), acc.dtype, Scope.BLOCK_SHARED)
    mine = (row.x, row.y)
    out: list[Stmt] = [Store(shared, mine, Load(acc, zero)), Sync()]
    half = row.threads // 2
    while half:
        both = op.reducer.combine(Load(shared, mine), Load(shared, (row.x + half, row.y)))
        out += [guarded(simplify(row.x < half, ctx.ranges), Store(shared, mine, both)), Sync()]
        half //= 2
    out.append(Store(acc, zero, Load(shared, (as_expr(0), row.y))))
    return out
