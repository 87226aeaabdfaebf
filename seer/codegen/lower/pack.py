"""Packing nests: copy a tensor into the order in which a tuned nest reads it."""

from __future__ import annotations

import math

from seer.codegen.lower.context import Context, PackedPlace
from seer.codegen.lower.loops import fuse_parallel
from seer.codegen.lower.tile import TileShape, tile_loops, versions
from seer.ir.expr import Const, Expr, Load, Read, Var, as_expr
from seer.ir.loops import For, If, LoopKind, Scope, Stmt, Store, seq
from seer.ir.simplify import affine, simplify
from seer.ir.sketch import Loop, Nest, Pack

# Enough pieces to balance the threads of a large machine, few enough to cost nothing.
PARALLEL_PIECES = 64


def pack_shape(ctx: Context, nest: Nest, pack: Pack) -> tuple[int, ...]:
    """The shape of the packed copy: the trip count of each of its loops."""
    return tuple(ctx.trips(nest, x.axis)[x.level] for x in pack.loops)


def lower_pack(ctx: Context, nest: Nest, pack: Pack) -> Stmt:
    """The nest that fills a packed copy, in parallel over its leading dimensions.

    Positions beyond an extent (in tiles that do not fill up) are left unwritten and never read.
    """
    return _PackLowering(ctx, nest, pack).lower()


class _PackLowering:
    """The state of one packing nest as its loops are entered."""

    def __init__(self, ctx: Context, nest: Nest, pack: Pack) -> None:
        self.ctx, self.nest, self.pack = ctx, nest, pack
        self.tensor = ctx.sketch.dag.tensor(pack.tensor)
        self.shape = pack_shape(ctx, nest, pack)
        self.buffer = ctx.new_buffer(f"{pack.tensor}_packed", self.shape, self.tensor.dtype, Scope.SHARED)
        ctx.packed[pack] = PackedPlace(self.buffer)
        self.position: dict[str | None, Expr] = dict.fromkeys(pack.dims, as_expr(0))
        self.vars: dict[Loop, Expr] = {}
        self.axis = pack.loops[-1].axis
        self.source_axis = self._contiguous()

    def lower(self) -> Stmt:
        """Where the source is contiguous along another axis, that axis runs innermost.

        Vectors of elements far apart are read then from few cache lines, again and again.
        """
        if 0 in self.shape:
            return seq()
        loops = self.pack.loops[:-1]
        inner = tuple(x for x in loops if x.axis == self.source_axis and x.axis != self.axis)
        outer = tuple(x for x in loops if x not in inner)
        opened = [self._enter(x) for x in outer]
        body = self._along(inner)
        n_parallel, pieces = 0, 1
        while n_parallel < len(opened) and pieces < PARALLEL_PIECES:
            pieces *= opened[n_parallel][1]
            n_parallel += 1
        body = _close(opened, body, n_parallel)
        return fuse_parallel(self.ctx, [(name, n) for name, n, _ in opened[:n_parallel]], body)

    def _contiguous(self) -> str | None:
        """The axis along which neighbours lie in memory, inlined stages seen through."""
        indices = tuple(as_expr(0) if a is None else Var(a) for a in self.pack.dims)
        value = self.ctx.resolve(Read(self.tensor, indices))
        if not isinstance(value, Load) or not value.indices:
            return self.axis
        found = [t.name for t, c in affine(value.indices[-1])[0].items() if isinstance(t, Var) and c == 1]
        return found[0] if len(found) == 1 else None

    def _enter(self, x: Loop) -> tuple[str, int, Expr]:
        """The variable of a loop, its trips, and the condition that it is within its axis."""
        trips = self.ctx.trips(self.nest, x.axis)
        n = trips[x.level]
        var = self.ctx.fresh(x.axis, n)
        self.vars[x] = var if n > 1 else as_expr(0)
        self.position[x.axis] = self.position[x.axis] + self.vars[x] * math.prod(trips[x.level + 1 :])
        inside = self.position[x.axis] < self.nest.split(x.axis).extent
        return var.name, n, simplify(inside, self.ctx.ranges)

    def _along(self, inner: tuple[Loop, ...]) -> Stmt:
        """The copy along the last packed dimension, in full and for the tail of its axis."""
        ctx, axis = self.ctx, self.axis
        extent, size = self.nest.split(axis).extent, ctx.trips(self.nest, axis)[-1]
        offset = simplify(self.position[axis], ctx.ranges)
        lanes = ctx.target.lanes(self.tensor.dtype)

        def copy(sizes: dict[str, int]) -> Stmt:
            step = lanes if inner else sizes[axis]
            parts = []
            for start in range(0, sizes[axis], step):
                width = min(step, sizes[axis] - start)
                parts.append(self._block(inner, TileShape({axis: width}, axis, lanes), offset, start))
            return seq(*parts)

        return versions(ctx, [(axis, size, extent, offset)], copy)

    def _block(self, inner: tuple[Loop, ...], shape: TileShape, offset: Expr, start: int) -> Stmt:
        """The copy of a part of the last dimension, `inner` loops round it."""
        before, ctx = dict(self.position), self.ctx
        opened = [self._enter(x) for x in inner]

        def body(local: dict[str, Expr], _: object) -> Stmt:
            last = local[self.axis] + start
            at = {**self.position, self.axis: offset + last}
            value = ctx.resolve(Read(self.tensor, tuple(at[a] for a in self.pack.dims)))
            where = (*(self.vars[x] for x in self.pack.loops[:-1]), simplify(last, ctx.ranges))
            return Store(self.buffer, where, value)

        out = _close(opened, tile_loops(ctx, shape, None, body))
        self.position = before
        return out


def _close(opened: list[tuple[str, int, Expr]], body: Stmt, n_parallel: int = 0) -> Stmt:
    """The guards of opened loops round a body, and the loops but for the first, parallel ones."""
    for k in range(len(opened) - 1, -1, -1):
        name, n, guard = opened[k]
        body = body if isinstance(guard, Const) else If(guard, body)
        if n > 1 and k >= n_parallel:
            body = For(name, as_expr(n), LoopKind.SERIAL, body)
    return body
