"""What the sketch rules ask about the stages of a ComputeDAG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seer.ir.dag import ComputeDAG, compute_op, expand
from seer.ir.expr import (
    Binary,
    Call,
    Expr,
    Read,
    Select,
    Var,
    as_expr,
    reads,
    substitute,
    variables,
    walk,
)
from seer.ir.simplify import affine, simplify
from seer.ir.sketch import Nest
from seer.ir.tensor import ComputeOp

SAME, NEIGHBOURS, APART = 0, 1, 2  # where the lanes of one vector load lie


def spatial_points(op: ComputeOp) -> int:
    """Elements of the stage."""
    return math.prod(a.extent for a in op.axes)


def reduce_points(op: ComputeOp) -> int:
    """Terms that each element combines."""
    return math.prod(a.extent for a in op.reduce_axes)


def is_cheap(op: ComputeOp) -> bool:
    """No function call, division or condition: as cheap to repeat as to load."""
    return not any(
        isinstance(n, Call | Select) or (isinstance(n, Binary) and n.op == "/") for n in walk(op.body)
    )


def is_read_once(dag: ComputeDAG, stage: str) -> bool:
    """Whether each element is computed once if the stage is inlined into its readers."""
    readers = dag.consumers[stage]
    if len(readers) != 1:
        return False
    reader = compute_op(readers[0])
    found = [r for r in reads(reader.body) if r.tensor.name == stage]
    if len(found) != 1:
        return False
    used: set[str] = set().union(*(variables(i) for i in found[0].indices)) if found[0].indices else set()
    return all(
        a.name in used or a.extent == 1 for a in (*reader.axes, *reader.reduce_axes)
    ) and _is_injective(found[0], reader)


def _is_injective(read: Read, reader: ComputeOp) -> bool:
    """Whether every index is one axis (no window sums such as h * 2 + kh)."""
    return all(len(variables(i)) <= 1 for i in read.indices)


def has_reuse(op: ComputeOp) -> bool:
    """Whether some tensor read lacks a spatial axis, so that its elements are read again (Ansor)."""
    if op.reducer is None:
        return False
    real = {a.name for a in op.axes if a.extent > 1}
    for r in reads(op.body):
        used = set().union(*(variables(i) for i in r.indices)) if r.indices else set()
        if real - used and used & {a.name for a in op.reduce_axes}:
            return True
    return False


def lanes_of(indices: Sequence[Expr], axis: str | None) -> int:
    """Where the lanes of a vector along an axis lie: at one element, at neighbours, or apart."""
    found = [{t: c for t, c in affine(i)[0].items() if axis in variables(t)} for i in indices]
    if not any(found):
        return SAME
    last = [(isinstance(t, Var), c) for t, c in found[-1].items()]
    return NEIGHBOURS if last == [(True, 1)] and not any(found[:-1]) else APART


def is_elementwise_of(dag: ComputeDAG, reader: str, stage: str, inlined: tuple[str, ...]) -> bool:
    """Whether `reader` has the axes of `stage` and reads it at its own position only."""
    op, producer = dag.op(reader), dag.op(stage)
    if [a.extent for a in op.axes] != [a.extent for a in producer.axes]:
        return False
    found = [r for r in reads(expand(op.body, inlined)) if r.tensor.name == stage]
    # An axis of one element may be written as 0, as broadcasting does.
    single: dict[str, Expr] = {a.name: as_expr(0) for a in op.axes if a.extent == 1}
    own = tuple(substitute(a.var, single) for a in op.axes)
    ranges = {a.name: (0, a.extent - 1) for a in op.axes}
    at = [tuple(simplify(substitute(i, single), ranges) for i in r.indices) for r in found]
    return bool(found) and all(indices == own for indices in at)


def has_regions(dag: ComputeDAG, stage: str, inlined: tuple[str, ...]) -> bool:
    """Whether part of a reader needs part of `stage` only: every index that reads it is affine."""
    for reader in dag.ops:
        op = compute_op(reader)
        if reader.name in inlined:
            continue
        ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}
        found = {id(r): r for r in reads(expand(op.body, inlined)) if r.tensor.name == stage}
        for r in found.values():
            terms = [t for i in r.indices for t in affine(simplify(i, ranges))[0]]
            if not all(isinstance(t, Var) for t in terms):
                return False
    return True


def row_axes(dag: ComputeDAG, stage: str, inlined: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of an output stage that fix the reductions it depends on (the rows of a softmax).

    Follows reads upstream through stages that reduce nothing, as long as indices are plain axes.
    """
    op = dag.op(stage)
    rows: set[str] | None = None
    for used in _fixed_axes(dag, stage, {a.name: a.name for a in op.axes}):
        rows = used if rows is None else rows & used
    if not rows or len(rows) == len(op.axes):
        return ()
    return tuple(a.name for a in op.axes if a.name in rows)


def _fixed_axes(dag: ComputeDAG, stage: str, names: dict[str, str]) -> list[set[str]]:
    """For each reduction upstream of `stage`, the output axes (by `names`) that index it."""
    out: list[set[str]] = []
    for r in reads(dag.op(stage).body):
        if not isinstance(r.tensor.op, ComputeOp):
            continue
        producer = r.tensor.op
        inner = {
            a.name: names[i.name]
            for a, i in zip(producer.axes, r.indices, strict=True)
            if isinstance(i, Var) and i.name in names
        }
        if producer.reducer is not None:
            if len(inner) < sum(a.extent > 1 for a in producer.axes) or has_reuse(producer):
                out.append(set())
                continue
            out.append(set(inner.values()))
            out += _fixed_axes(dag, r.tensor.name, inner)
        else:
            out += _fixed_axes(dag, r.tensor.name, inner)
    return out


def is_fixed_by(dag: ComputeDAG, stage: str, host: Nest, fixed: set[str], inlined: tuple[str, ...]) -> bool:
    """Whether each element of a reduction belongs to one iteration of the host's axes `fixed`.

    True if the host's axes in `fixed` are whole-stepped (one element an iteration) and every
    path from the host to the stage indexes it by them alone.
    """
    for split in host.splits:
        if split.axis in fixed and split.params:
            return False
    op = dag.op(host.output)
    sets = _paths(dag, host.output, stage, {a.name: a.name for a in op.axes})
    return bool(sets) and all(s is not None and s <= fixed for s in sets)


def _paths(dag: ComputeDAG, top: str, stage: str, names: dict[str, str]) -> list[set[str] | None]:
    out: list[set[str] | None] = []
    for r in reads(dag.op(top).body):
        if not isinstance(r.tensor.op, ComputeOp):
            continue
        producer = r.tensor.op
        inner = {
            a.name: names[i.name]
            for a, i in zip(producer.axes, r.indices, strict=True)
            if isinstance(i, Var) and i.name in names
        }
        if r.tensor.name == stage:
            whole = len(inner) >= sum(a.extent > 1 for a in producer.axes)
            out.append(set(inner.values()) if whole else None)
        else:
            out += _paths(dag, r.tensor.name, stage, inner)
    return out


def coefficient(op: ComputeOp, read: Read, axis: str) -> int | None:
    """By how many elements a read moves in memory per step of an axis; None if not affine."""
    stride, flat = 1, 0
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*op.axes, *op.reduce_axes)}
    for index, extent in zip(reversed(read.indices), reversed(read.tensor.shape), strict=True):
        terms, _ = affine(simplify(index, ranges))
        for term, c in terms.items():
            if isinstance(term, Var):
                flat += c * stride if term.name == axis else 0
            elif axis in variables(term):
                return None
        stride *= extent
    return flat


def can_use_lanes(dag: ComputeDAG, stage: str) -> bool:
    """Whether the last reduce axis is contiguous in memory (or absent) in every read."""
    op = dag.op(stage)
    if op.reducer is None or not op.reducer.commutative or not op.reduce_axes:
        return False
    axis = op.reduce_axes[-1]
    if axis.extent < 4:
        return False
    moves = [coefficient(op, r, axis.name) for r in reads(op.body)]
    return 1 in moves and all(m in (0, 1) for m in moves)
