"""Which axis of an operation runs along memory."""

from __future__ import annotations

from collections.abc import Callable

from seer.ir.expr import Expr, Read, Var, reads
from seer.ir.simplify import affine, simplify
from seer.ir.tensor import ComputeOp


def reads_side_by_side(expand: Callable[[Expr], Expr], op: ComputeOp, axis: str) -> bool:
    """Whether neighbours along an axis are neighbours in memory, in most tensors that vary with it.

    `expand` replaces reads of inlined stages by their bodies.
    """
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}
    votes = 0
    for r in reads(expand(op.body)):
        step = move(r, axis, ranges)
        votes += (step == 1) - (step > 1)
    return votes > 0


def move(r: Read, axis: str, ranges: dict[str, tuple[int, int]]) -> int:
    """Elements that a step along an axis moves in memory."""
    stride, out = 1, 0
    for index, extent in zip(reversed(r.indices), reversed(r.tensor.shape), strict=True):
        for term, c in affine(simplify(index, ranges))[0].items():
            if isinstance(term, Var) and term.name == axis:
                out += abs(c) * stride
        stride *= extent
    return out
