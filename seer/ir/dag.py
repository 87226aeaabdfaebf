"""ComputeDAG: the tensor expressions of one subgraph, and what the sketch rules ask about them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache

from seer.errors import UserError
from seer.ir.expr import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Done,
    Expr,
    Read,
    Select,
    Unary,
    Var,
    children,
    reads,
    rewrite,
    substitute,
)
from seer.ir.tensor import Axis, ComputeOp, Placeholder, Tensor


class ComputeDAG:
    """The ops from inputs to one output tensor, in topological order. Immutable.

    Args:
        output: the tensor to compute.
        inputs: placeholders in the order in which a kernel takes them; by default the order of
            first use. Placeholders listed but not read are allowed.

    Raises:
        UserError: if names repeat or a placeholder that is read is missing from `inputs`.
    """

    def __init__(self, output: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        order: list[Tensor] = []
        seen: set[int] = set()
        _visit(output, order, seen)
        found = [t for t in order if isinstance(t.op, Placeholder)]
        if inputs is None:
            inputs = found
        missing = [t.name for t in found if not any(t is i for i in inputs)]
        if missing:
            raise UserError(f"ComputeDAG of {output.name}: inputs lack {', '.join(missing)}")
        self.output = output
        self.inputs: tuple[Tensor, ...] = tuple(inputs)
        self.ops: tuple[Tensor, ...] = tuple(t for t in order if isinstance(t.op, ComputeOp))
        self.tensors: tuple[Tensor, ...] = (*self.inputs, *self.ops)
        names = [t.name for t in self.tensors]
        repeated = sorted({n for n in names if names.count(n) > 1})
        if repeated:
            raise UserError(f"ComputeDAG of {output.name}: tensor names repeat: {', '.join(repeated)}")

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`."""
        return self._by_name[name]

    def op(self, name: str) -> ComputeOp:
        """The ComputeOp that defines the tensor `name`."""
        op = self._by_name[name].op
        assert isinstance(op, ComputeOp)
        return op

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def consumers(self) -> dict[str, tuple[Tensor, ...]]:
        """For each tensor name, the ops that read it, in topological order."""
        out: dict[str, list[Tensor]] = {t.name: [] for t in self.tensors}
        for t in self.ops:
            for name in dict.fromkeys(r.tensor.name for r in reads(compute_op(t).body)):
                out[name].append(t)
        return {k: tuple(v) for k, v in out.items()}

    def is_own_constant(self, name: str) -> bool:
        """Whether a tensor is a constant that one op reads: it may be laid out ahead as that op likes."""
        op = self.tensor(name).op
        return isinstance(op, Placeholder) and op.constant and len(self.consumers[name]) == 1

    @cached_property
    def anchor(self) -> Tensor | None:
        """The op with the most arithmetic among the reductions, or None if nothing is reduced."""
        reductions = [t for t in self.ops if compute_op(t).reducer is not None]
        return max(reductions, key=flop_count, default=None)

    @property
    def tag(self) -> str:
        """The anchor's operator ("conv2d", ...), or "elementwise" if nothing is reduced."""
        if self.anchor is None:
            return "elementwise"
        return compute_op(self.anchor).tag or "reduce"

    @cached_property
    def flop_count(self) -> int:
        """Floating-point operations of one evaluation (a multiply-add counts two)."""
        return sum(flop_count(t) for t in self.ops)

    @cached_property
    def workload_key(self) -> str:
        """A hash of the canonical print: equal for DAGs that differ in names alone."""
        return hashlib.sha256(canonical_text(self).encode()).hexdigest()[:20]

    def __str__(self) -> str:
        lines = [
            f"{t.name}: {t.dtype}{list(t.shape)} {'constant' if t.op.constant else 'input'}"
            for t in self.inputs
            if isinstance(t.op, Placeholder)
        ]
        lines += [_op_text(t, {}, {}) for t in self.ops]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ComputeDAG({self.tag}, {self.output!r}, {len(self.ops)} ops)"


def compute_op(t: Tensor) -> ComputeOp:
    """The ComputeOp of a tensor known to have one."""
    assert isinstance(t.op, ComputeOp), t
    return t.op


def _visit(root: Tensor, order: list[Tensor], seen: set[int]) -> None:
    stack: list[tuple[Tensor, bool]] = [(root, False)]
    while stack:
        t, done = stack.pop()
        if done:
            order.append(t)
            continue
        if id(t) in seen:
            continue
        seen.add(id(t))
        stack.append((t, True))
        if isinstance(t.op, ComputeOp):
            stack.extend((r.tensor, False) for r in reversed(reads(t.op.body)) if id(r.tensor) not in seen)


def expand(e: Expr, inlined: Collection[str]) -> Expr:
    """`e` with reads of inlined stages replaced by what they compute; shared nodes stay shared."""
    done: Done = {}

    def body(e: Expr) -> Expr | None:
        if not (isinstance(e, Read) and e.tensor.name in inlined):
            return None
        op = compute_op(e.tensor)
        values = {a.name: i for a, i in zip(op.axes, e.indices, strict=True)}
        return rewrite(substitute(op.body, values), body, done)

    return rewrite(e, body, done) if inlined else e


@lru_cache(maxsize=1024)
def flop_count(t: Tensor) -> int:
    """Floating-point operations to compute every element of `t`."""
    op = compute_op(t)
    per_point = _operations(op.body, {})
    if op.reducer is not None:
        per_point += _operations(op.reducer.combine(Var("a", t.dtype), Var("b", t.dtype)), {})
    return math.prod(t.shape) * math.prod(a.extent for a in op.reduce_axes) * per_point


def _operations(e: Expr, done: dict[int, int]) -> int:
    """Floating-point operations of one evaluation; of the sides of a Select the dearer one.

    What is used several times counts as often, but is looked at once: `done` has it.
    """
    found = done.get(id(e))
    if found is not None:
        return found
    kids = [_operations(k, done) for k in children(e)]
    if isinstance(e, Select):
        count = kids[0] + max(kids[1:])
    else:
        mine = int(isinstance(e, Binary | Unary | Call) and e.dtype.startswith("float"))
        count = (2 if isinstance(e, Call) and e.name == "fma" else mine) + sum(kids)
    done[id(e)] = count
    return count


def canonical_text(dag: ComputeDAG) -> str:
    """The DAG with tensors and axes renamed by position: the workload's identity."""
    tensors = {t.name: f"t{k}" for k, t in enumerate(dag.tensors)}
    lines = []
    for t in dag.inputs:
        assert isinstance(t.op, Placeholder)
        lines.append(f"{tensors[t.name]} {t.dtype}{list(t.shape)} {'constant' if t.op.constant else 'input'}")
    for t in dag.ops:
        op = compute_op(t)
        axes = {a.name: f"a{k}" for k, a in enumerate((*op.axes, *op.reduce_axes))}
        lines.append(_op_text(t, tensors, axes))
    return "\n".join(lines)


def _op_text(t: Tensor, tensors: dict[str, str], axes: dict[str, str]) -> str:
    op = compute_op(t)

    def ax(group: tuple[Axis, ...]) -> str:
        return ", ".join(f"{axes.get(a.name, a.name)}:{a.extent}" for a in group)

    body = expr_text(op.body, tensors, axes)
    if op.reducer is not None:
        body = f"{op.reducer.name}[{ax(op.reduce_axes)}] {body}"
    tag = f"  # {op.tag}" if op.tag else ""
    if op.written_out:
        sizes = ", ".join(f"{axes.get(a, a)}:{n}" for a, n in op.written_out)
        tag = f" written out [{sizes}]{tag}"
    return f"{tensors.get(t.name, t.name)}[{ax(op.axes)}] {t.dtype} = {body}{tag}"


def expr_text(e: Expr, tensors: dict[str, str] | None = None, names: dict[str, str] | None = None) -> str:
    """One line for an expression, with tensors and variables renamed as asked."""
    tensors, names = tensors or {}, names or {}

    def go(n: Expr) -> str:
        match n:
            case Const(value, dtype):
                return repr(value) if dtype in ("int64", "bool", "float32") else f"{dtype}({value!r})"
            case Var(name, _):
                return names.get(name, name)
            case Unary(op, a):
                return f"{'-' if op == 'neg' else '!'}{go(a)}"
            case Binary("min" | "max" as op, a, b):
                return f"{op}({go(a)}, {go(b)})"
            case Binary(op, a, b) | Compare(op, a, b):
                return f"({go(a)} {op} {go(b)})"
            case Select(c, a, b):
                return f"select({go(c)}, {go(a)}, {go(b)})"
            case Cast(a, dtype):
                return f"{dtype}({go(a)})"
            case Call(name, args, _):
                return f"{name}({', '.join(map(go, args))})"
            case Read(tensor, indices):
                return f"{tensors.get(tensor.name, tensor.name)}[{', '.join(map(go, indices))}]"
            case _:
                return f"{n.buffer.name}[{', '.join(map(go, n.indices))}]"

    return go(e)
