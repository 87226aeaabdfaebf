"""Slices of a ComputeDAG: the same computation for a part of the leading axis of its output.

Slice k of `count` of an array is the k-th of so many equal pieces of its memory. A DAG falls into
slices if slice k of its output needs slice k of some inputs, the whole of the others, and nothing
else. That is read off the index expressions, whatever the operators were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from seer.ir.dag import ComputeDAG, compute_op
from seer.ir.expr import Expr, Read, Var, children, rewrite
from seer.ir.tensor import Axis, Placeholder, Tensor


@dataclass(frozen=True)
class Leading:
    """The leading axis of a ComputeDAG that falls into slices.

    Attributes:
        extent: of the axis; any divisor of it is a possible number of slices.
        sliced: names of the tensors whose own leading axis it is; the others are read whole.
    """

    extent: int
    sliced: frozenset[str]


def leading_axis(dag: ComputeDAG) -> Leading | None:
    """The output's leading axis, if each of its elements is computed apart from the others.

    A tensor that is read both along the axis and otherwise says no, and so does any other use of the
    axis (a condition at its ends, a sum over it). Constants must be read whole, since they may be laid
    out ahead in another order. Stages off the axis are computed again for each slice, so they must not
    reduce anything.
    """
    if not dag.ops or 0 in dag.output.shape or not dag.output.shape:
        return None
    extent = dag.output.shape[0]
    is_sliced = {dag.output.name: True}
    for t in reversed(dag.ops):  # readers first
        op = compute_op(t)
        axis = op.axes[0].name if is_sliced[t.name] else None
        if axis is None and op.reducer is not None:
            return None
        for tensor, along in _uses(op.body, axis):
            if tensor is None or is_sliced.setdefault(tensor.name, along) != along:
                return None
            if along and (tensor.shape[0] != extent or _is_constant(tensor)):
                return None
    return Leading(extent, frozenset(name for name, along in is_sliced.items() if along))


def _is_constant(t: Tensor) -> bool:
    return isinstance(t.op, Placeholder) and t.op.constant


def _uses(e: Expr, axis: str | None) -> Iterator[tuple[Tensor | None, bool]]:
    """Each tensor that is read, and whether along the axis; no tensor for any other use of the axis."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        n = stack.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        if isinstance(n, Var) and n.name == axis:
            yield None, False
        elif isinstance(n, Read):
            along = bool(n.indices) and n.indices[0] == Var(axis or "")
            yield n.tensor, along
            stack += n.indices[1:] if along else n.indices
        else:
            stack += children(n)


def slice_of(dag: ComputeDAG, leading: Leading, count: int) -> ComputeDAG:
    """The DAG of one slice of `count`, which must divide the leading axis."""
    assert leading.extent % count == 0, (leading.extent, count)
    extent = leading.extent // count
    made: dict[str, Tensor] = {}

    def other(e: Expr) -> Expr | None:
        return Read(made[e.tensor.name], e.indices) if isinstance(e, Read) else None

    for t in dag.tensors:
        if t.name not in leading.sliced:
            made[t.name] = t
            continue
        op = t.op
        if not isinstance(op, Placeholder):
            axes = (Axis(op.axes[0].name, extent), *op.axes[1:])
            op = replace(op, axes=axes, body=rewrite(op.body, other))
        made[t.name] = replace(t, shape=(extent, *t.shape[1:]), op=op)
    return ComputeDAG(made[dag.output.name], [made[t.name] for t in dag.inputs])
