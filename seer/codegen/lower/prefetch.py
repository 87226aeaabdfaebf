"""Prefetching: weights that a nest streams from memory are asked for before they are needed.

Weights packed ahead lie in the order in which a nest reads them, panel by panel. The first register tile
that reads a panel would wait for memory, while those after it find the panel in a cache and leave the
memory idle. So each tile asks for its share of the next panel, and memory works all the time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from seer.codegen.lower.context import Context
from seer.dtypes import dtype as dtype_of
from seer.ir.expr import Expr, as_expr
from seer.ir.loops import Prefetch, Scope, Stmt
from seer.ir.simplify import simplify
from seer.ir.sketch import PREFETCHED, Loop, Nest, Pack

# Where a panel is read once only: far enough for the slowest memory at one line every few cycles, near
# enough to stay in the cache.
AHEAD_BYTES = 32 << 10


class _Walk(NamedTuple):
    """How the loops round a register tile go through a packed tensor: trip counts, outer to inner.

    Attributes:
        outer: those that step from panel to panel.
        again: those that read a panel again.
        inner: those that go through a panel.
    """

    outer: dict[Loop, int]
    again: dict[Loop, int]
    inner: dict[Loop, int]


def prefetches(
    ctx: Context,
    nest: Nest,
    trips: dict[str, tuple[int, ...]],
    sizes: dict[str, int],
    at: dict[Loop, Expr],
) -> list[Stmt]:
    """Hints for what comes after the panels of packed constants that a register tile is reading.

    Args:
        ctx: the kernel being lowered.
        nest: the nest whose tile this is.
        trips: the trip counts of each axis.
        sizes: the tile's extent along each of its axes.
        at: the values of the loops round the tile.
    """
    return [
        hint
        for pack in nest.packs
        if ctx.values[pack.param] == PREFETCHED and pack in ctx.packed
        for hint in _of_pack(ctx, pack, _walk(nest, pack, trips), sizes, at)
    ]


def _of_pack(
    ctx: Context, pack: Pack, walk: _Walk, sizes: dict[str, int], at: dict[Loop, Expr]
) -> list[Stmt]:
    buffer = ctx.packed[pack].buffer
    if buffer.scope is not Scope.ARG:
        return []
    size = dtype_of(buffer.dtype).size_bytes
    line = max(1, ctx.target.cache_line_bytes // size)
    element = math.prod(n for x, n in zip(pack.loops, buffer.shape, strict=True) if x not in at)
    read = math.prod(sizes[x.axis] for x in pack.loops if x not in at)
    panel, times = math.prod(walk.inner.values()) * element, math.prod(walk.again.values())
    if times > 1 and panel < buffer.num_elements:
        share = -(-read // times)
        ahead = _flat({**walk.again, **walk.inner}, at) * share + panel
    else:
        share, ahead = read, _flat(walk.inner, at) * element + AHEAD_BYTES // size
    where = tuple(simplify(at[x], ctx.ranges) if x in walk.outer else as_expr(0) for x in pack.loops)
    return [Prefetch(buffer, where, simplify(ahead + k, ctx.ranges)) for k in range(0, share, line)]


def _walk(nest: Nest, pack: Pack, trips: dict[str, tuple[int, ...]]) -> _Walk:
    outer, again, inner = parts = _Walk({}, {}, {})
    part = inner
    for x in reversed([x for g in nest.groups[:-1] for x in g]):
        n, is_packed = trips[x.axis][x.level], x in pack.loops
        if n > 1 and part is inner and not is_packed:
            part = again
        elif n > 1 and part is again and is_packed:
            part = outer
        if is_packed == (part is not again):
            part[x] = n
    return _Walk(*(dict(reversed(p.items())) for p in parts))


def _flat(loops: dict[Loop, int], at: dict[Loop, Expr]) -> Expr:
    """The number of the present iteration of nested loops."""
    out: Expr = as_expr(0)
    for x, n in loops.items():
        out = out * n + at[x]
    return out
