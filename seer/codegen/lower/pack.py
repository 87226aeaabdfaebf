"""Packing nests: copy a tensor into the order in which a tuned nest reads it."""

from __future__ import annotations

from seer.codegen.lower.context import Context, PackedPlace
from seer.codegen.lower.loops import fuse_parallel
from seer.codegen.lower.tile import TileShape, tile_loops, versions
from seer.ir.expr import Const, Expr, Read, as_expr
from seer.ir.loops import Buffer, For, If, LoopKind, Scope, Stmt, Store
from seer.ir.simplify import simplify
from seer.ir.sketch import Nest, Pack
from seer.ir.tensor import Tensor

# Enough pieces to balance the threads of a large machine, few enough to cost nothing.
PARALLEL_PIECES = 64


def pack_shape(ctx: Context, nest: Nest, pack: Pack) -> tuple[int, ...]:
    """The shape of the packed copy: the trip count of each of its loops."""
    return tuple(ctx.trips(nest, x.axis)[x.level] for x in pack.loops)


def lower_pack(ctx: Context, nest: Nest, pack: Pack) -> Stmt:
    """The nest that fills a packed copy, in parallel over its leading dimensions.

    Positions beyond an extent (in tiles that do not fill up) are left unwritten and never read.
    """
    tensor = ctx.sketch.dag.tensor(pack.tensor)
    shape = pack_shape(ctx, nest, pack)
    buffer = ctx.new_buffer(f"{pack.tensor}_packed", shape, tensor.dtype, Scope.SHARED)
    ctx.packed[pack] = PackedPlace(buffer)

    outer = list(zip(pack.loops[:-1], shape[:-1], strict=True))
    values: list[Expr] = []
    position: dict[str, Expr] = dict.fromkeys(pack.dims, as_expr(0))
    guards: list[Expr] = []
    names: list[tuple[str, int]] = []
    for x, n in outer:
        var = ctx.fresh(x.axis, n)
        values.append(var if n > 1 else as_expr(0))
        names.append((var.name, n))
        step = 1
        for t in ctx.trips(nest, x.axis)[x.level + 1 :]:
            step *= t
        position[x.axis] = position[x.axis] + values[-1] * step
        guards.append(simplify(position[x.axis] < nest.split(x.axis).extent, ctx.ranges))

    body = _innermost(ctx, nest, pack, (buffer, tuple(values)), position, tensor)
    n_parallel, pieces = 0, 1
    while n_parallel < len(outer) and pieces < PARALLEL_PIECES:
        pieces *= names[n_parallel][1]
        n_parallel += 1
    for k in range(len(outer) - 1, -1, -1):
        if not isinstance(guards[k], Const):
            body = If(guards[k], body)
        name, n = names[k]
        if n > 1 and k >= n_parallel:
            body = For(name, as_expr(n), LoopKind.SERIAL, body)
    return fuse_parallel(ctx, names[:n_parallel], body)


def _innermost(
    ctx: Context,
    nest: Nest,
    pack: Pack,
    dest: tuple[Buffer, tuple[Expr, ...]],
    position: dict[str, Expr],
    tensor: Tensor,
) -> Stmt:
    """The copy along the last packed dimension, by vectors where the source is contiguous too."""
    axis = pack.loops[-1].axis
    extent, size = nest.split(axis).extent, ctx.trips(nest, axis)[-1]
    offset = simplify(position[axis], ctx.ranges)
    lanes = ctx.target.lanes(tensor.dtype)
    # A source whose last dimension is another axis is read element by element either way.
    vector = axis if pack.dims[-1] == axis else None

    def copy(sizes: dict[str, int]) -> Stmt:
        def body(local: dict[str, Expr], _: object) -> Stmt:
            at = {**position, axis: offset + local[axis]}
            value = ctx.resolve(Read(tensor, tuple(at[a] for a in pack.dims)))
            return Store(dest[0], (*dest[1], simplify(local[axis], ctx.ranges)), value)

        return tile_loops(ctx, TileShape(sizes, vector, lanes), None, body)

    return versions(ctx, [(axis, size, extent, offset)], copy)
