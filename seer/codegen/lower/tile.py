"""The register tile: its loops, its accumulators, and its full and tail versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seer.codegen.lower.context import Context
from seer.ir.expr import Const, Expr, as_expr
from seer.ir.loops import Buffer, For, If, LoopKind, Scope, Stmt, seq
from seer.ir.simplify import simplify

Locals = dict[str, Expr]
Slot = tuple[Buffer, tuple[Expr, ...]]


def loop(ctx: Context, var: str, extent: Expr | int, kind: LoopKind, body: Stmt) -> Stmt:
    """A For; the body must already use `var`."""
    return For(var, simplify(as_expr(extent), ctx.ranges), kind, body)


@dataclass(frozen=True)
class TileShape:
    """The extents of one version of a tile.

    Attributes:
        sizes: axis -> extent, in loop order.
        vector: the vectorised axis, or None.
        lanes: lanes of a full vector.
    """

    sizes: dict[str, int]
    vector: str | None
    lanes: int

    @property
    def others(self) -> list[tuple[str, int]]:
        return [(a, n) for a, n in self.sizes.items() if a != self.vector]

    @property
    def chunks(self) -> int:
        """Full vectors along the vector axis (0 without one)."""
        return 0 if self.vector is None else self.sizes[self.vector] // self.lanes

    @property
    def rest(self) -> int:
        """Elements left after the full vectors; a tile without a vector axis has one lane."""
        return 1 if self.vector is None else self.sizes[self.vector] % self.lanes

    @property
    def statements(self) -> int:
        """Vector statements that the tile unrolls to."""
        n = self.chunks + (self.rest > 0)
        for _, extent in self.others:
            n *= extent
        return n


class Accumulators:
    """The REGISTER buffers that hold a tile: full vectors, and the rest as a shorter one."""

    def __init__(self, ctx: Context, hint: str, dtype: str, shape: TileShape) -> None:
        outer = tuple(n for _, n in shape.others)
        self.full: Buffer | None = None
        self.rest: Buffer | None = None
        if shape.chunks:
            self.full = ctx.new_buffer(hint, (*outer, shape.chunks, shape.lanes), dtype, Scope.REGISTER)
        if shape.rest:
            self.rest = ctx.new_buffer(hint, (*outer, shape.rest), dtype, Scope.REGISTER)


def tile_loops(
    ctx: Context,
    shape: TileShape,
    accumulators: Accumulators | None,
    body: Callable[[Locals, Slot | None], Stmt],
) -> Stmt:
    """Unrolled loops over a tile round `body(local position of each axis, accumulator slot)`.

    The position of the vector axis is that of the vector's first lane plus the lane variable.
    """
    outer_vars = [(a, n, ctx.fresh(a, n)) for a, n in shape.others]
    local: Locals = {a: v if n > 1 else as_expr(0) for a, n, v in outer_vars}
    outer = tuple(local[a] for a, _, _ in outer_vars)

    def slot(buffer: Buffer | None, *last: Expr) -> Slot | None:
        return None if buffer is None else (buffer, (*outer, *last))

    parts: list[Stmt] = []
    acc = accumulators
    if shape.chunks:
        assert shape.vector is not None
        c, v = ctx.fresh("c", shape.chunks), ctx.fresh("v", shape.lanes)
        chunk: Expr = c if shape.chunks > 1 else as_expr(0)
        at = {**local, shape.vector: chunk * shape.lanes + v}
        inner = body(at, slot(acc.full if acc else None, chunk, v))
        inner = For(v.name, as_expr(shape.lanes), LoopKind.VECTORIZED, inner)
        if shape.chunks > 1:
            inner = For(c.name, as_expr(shape.chunks), LoopKind.UNROLLED, inner)
        parts.append(inner)
    if shape.rest:
        if shape.vector is None:
            parts.append(body(local, slot(acc.rest if acc else None, as_expr(0))))
        else:
            v = ctx.fresh("v", shape.rest)
            lane: Expr = v if shape.rest > 1 else as_expr(0)
            at = {**local, shape.vector: lane + shape.chunks * shape.lanes}
            inner = body(at, slot(acc.rest if acc else None, lane))
            if shape.rest > 1:
                inner = For(v.name, as_expr(shape.rest), LoopKind.VECTORIZED, inner)
            parts.append(inner)
    out = seq(*parts)
    for _, n, var in reversed(outer_vars):
        if n > 1:
            out = For(var.name, as_expr(n), LoopKind.UNROLLED, out)
    return out


def versions(
    ctx: Context,
    axes: list[tuple[str, int, int, Expr]],
    make: Callable[[dict[str, int]], Stmt],
) -> Stmt:
    """`make` for full tiles, and for the shorter tile at the end of each axis that needs one.

    Args:
        ctx: the kernel being lowered.
        axes: (name, tile extent t, axis extent N, offset of the tile within the axis).
        make: builds the version for the given tile extents.
    """

    def choose(k: int, sizes: dict[str, int]) -> Stmt:
        if k == len(axes):
            return make(dict(sizes))
        name, t, extent, offset = axes[k]
        if extent % t == 0:
            return choose(k + 1, {**sizes, name: t})
        fits = simplify(offset + t <= extent, ctx.ranges)
        if isinstance(fits, Const):
            return choose(k + 1, {**sizes, name: t if fits.value else extent % t})
        full = choose(k + 1, {**sizes, name: t})
        return If(fits, full, choose(k + 1, {**sizes, name: extent % t}))

    return choose(0, {})
