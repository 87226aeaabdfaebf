"""Prefetching: weights that a nest streams from memory are asked for before they are needed.

A nest reads a constant that was packed ahead in the order in which it lies. The processor guesses
as much, but not far enough for memory and arithmetic to overlap where a panel of weights serves
few register tiles.
"""

from __future__ import annotations

import itertools

from seer.codegen.lower.context import Context
from seer.dtypes import dtype as dtype_of
from seer.ir.expr import Expr, as_expr
from seer.ir.loops import Prefetch, Scope, Stmt
from seer.ir.simplify import simplify
from seer.ir.sketch import PREFETCHED, Loop, Nest, Pack

# Far enough for the slowest memory at one line every few cycles, near enough to stay in the cache.
AHEAD_BYTES = 32 << 10


def prefetches(ctx: Context, nest: Nest, sizes: dict[str, int], at: dict[Loop, Expr]) -> list[Stmt]:
    """A hint for each line of packed constants that one step of a register tile reads, AHEAD_BYTES on.

    Args:
        ctx: the kernel being lowered.
        nest: the nest whose tile this is.
        sizes: the tile's extent along each of its axes.
        at: the values of the loops round the tile.
    """
    return [
        hint
        for pack in nest.packs
        if ctx.values[pack.param] == PREFETCHED and pack in ctx.packed
        for hint in _of_pack(ctx, pack, sizes, at)
    ]


def _of_pack(ctx: Context, pack: Pack, sizes: dict[str, int], at: dict[Loop, Expr]) -> list[Stmt]:
    buffer = ctx.packed[pack].buffer
    if buffer.scope is not Scope.ARG:
        return []
    size = dtype_of(buffer.dtype).size_bytes
    line = max(1, ctx.target.cache_line_bytes // size)
    *outer, last = [(at[x],) if x in at else tuple(map(as_expr, range(sizes[x.axis]))) for x in pack.loops]
    indices = itertools.product(*outer, last[::line])
    return [
        Prefetch(buffer, tuple(simplify(i, ctx.ranges) for i in where), AHEAD_BYTES // size)
        for where in indices
    ]
