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
    """How the loops round a register tile go through a packed tensor, outer to inner.

    Attributes:
        outer: those that step from panel to panel.
        again: those that read a panel again.
        inner: those that go through a panel.
    """

    outer: tuple[Loop, ...]
    again: tuple[Loop, ...]
    inner: tuple[Loop, ...]


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
        for hint in _of_pack(ctx, pack, _walk(nest, pack, trips), trips, sizes, at)
    ]


def _of_pack(
    ctx: Context,
    pack: Pack,
    walk: _Walk,
    trips: dict[str, tuple[int, ...]],
    sizes: dict[str, int],
    at: dict[Loop, Expr],
) -> list[Stmt]:
    buffer = ctx.packed[pack].buffer
    if buffer.scope is not Scope.ARG:
        return []
    size = dtype_of(buffer.dtype).size_bytes
    line = max(1, ctx.target.cache_line_bytes // size)
    element = math.prod(n for x, n in zip(pack.loops, buffer.shape, strict=True) if x not in at)
    read = math.prod(sizes[x.axis] for x in pack.loops if x not in at)
    panel = math.prod(trips[x.axis][x.level] for x in walk.inner) * element
    times = math.prod(trips[x.axis][x.level] for x in walk.again)
    if times > 1 and panel < math.prod(buffer.shape):
        share = -(-read // times)
        ahead = _flat((*walk.again, *walk.inner), trips, at) * share + panel
    else:
        share, ahead = read, _flat(walk.inner, trips, at) * element + AHEAD_BYTES // size
    where = tuple(at[x] if x in walk.outer else as_expr(0) for x in pack.loops)
    where = tuple(simplify(i, ctx.ranges) for i in where)
    return [Prefetch(buffer, where, simplify(ahead + k, ctx.ranges)) for k in range(0, share, line)]


def _walk(nest: Nest, pack: Pack, trips: dict[str, tuple[int, ...]]) -> _Walk:
    loops = [x for g in nest.groups[:-1] for x in g]
    parts: list[list[Loop]] = [[], [], []]
    part = 2
    for x in reversed(loops):
        if trips[x.axis][x.level] > 1 and part and (x in pack.loops) == (part == 1):
            part -= 1  # another part begins, going outwards
        parts[part].append(x)
    outer, again, inner = (tuple(reversed(p)) for p in parts)
    return _Walk(
        tuple(x for x in outer if x in pack.loops),
        tuple(x for x in again if x not in pack.loops),
        tuple(x for x in inner if x in pack.loops),
    )


def _flat(loops: tuple[Loop, ...], trips: dict[str, tuple[int, ...]], at: dict[Loop, Expr]) -> Expr:
    """The number of the present iteration of nested loops."""
    out: Expr = as_expr(0)
    for x in loops:
        out = out * trips[x.axis][x.level] + at[x]
    return out
