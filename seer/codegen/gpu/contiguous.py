"""Which axis of an operation runs along memory."""

from __future__ import annotations

from seer.codegen.lower.context import Context
from seer.ir.expr import Read, Var, reads
from seer.ir.simplify import affine, simplify
from seer.ir.tensor import ComputeOp


def reads_side_by_side(ctx: Context, op: ComputeOp, axis: str) -> bool:
    """Whether neighbours along an axis are neighbours in memory, in most tensors that vary with it."""
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}
    votes = 0
    for r in reads(ctx.expand(op.body)):
        move = _move(r, axis, ranges)
        votes += (move == 1) - (move > 1)
    return votes > 0


def _move(r: Read, axis: str, ranges: dict[str, tuple[int, int]]) -> int:
    """Elements that a step along an axis moves in memory."""
    stride, out = 1, 0
    for index, extent in zip(reversed(r.indices), reversed(r.tensor.shape), strict=True):
        for term, c in affine(simplify(index, ranges))[0].items():
            if isinstance(term, Var) and term.name == axis:
                out += abs(c) * stride
        stride *= extent
    return out
