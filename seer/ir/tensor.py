"""Tensors and the operations that define them: placeholder, compute, reduce.

A tensor is the output of one operation. A ComputeOp gives each element by a scalar expression of
its axes; a reduction combines that expression over its reduce axes with a declared Reducer and is
always the outermost thing in the op (a mean is a sum op and a division op).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seer.errors import UserError
from seer.ir.expr import Const, Expr, ExprLike, Node, Read, Var, as_expr, binary, cast, select


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of an op: a variable over range(extent)."""

    name: str
    extent: int

    @property
    def var(self) -> Var:
        return Var(self.name)


@dataclass(frozen=True, slots=True)
class Reducer:
    """How a reduction combines values.

    `combine(acc, value)` builds the expression; `identity(dtype)` is its neutral element.
    A reducer not declared commutative (and associative) keeps its order: no sketch rule may
    split or vectorise its axes.
    """

    name: str
    combine: Callable[[Expr, Expr], Expr]
    identity: Callable[[str], float | int]
    commutative: bool = True


def _lowest(dtype: str) -> float | int:
    if dtype.startswith("float"):
        return float("-inf")
    return -(2**31) if dtype == "int32" else -(2**63)


def _highest(dtype: str) -> float | int:
    if dtype.startswith("float"):
        return float("inf")
    return 2**31 - 1 if dtype == "int32" else 2**63 - 1


def _sum(a: Expr, b: Expr) -> Expr:
    return binary("+", a, b)


def _prod(a: Expr, b: Expr) -> Expr:
    return binary("*", a, b)


def _max(a: Expr, b: Expr) -> Expr:
    return binary("max", a, b)


def _min(a: Expr, b: Expr) -> Expr:
    return binary("min", a, b)


def _top(a: Expr, b: Expr) -> Expr:
    return select(a < b, b, a)


def _zero(dtype: str) -> float | int:
    return 0.0 if dtype.startswith("float") else 0


def _one(dtype: str) -> float | int:
    return 1.0 if dtype.startswith("float") else 1


# Module-level functions, not lambdas: reducers travel to worker processes by pickle.
_PIECE = 1 << 18  # elements of a derived constant that are computed at a time

SUM = Reducer("sum", _sum, _zero)
PROD = Reducer("prod", _prod, _one)
MAX = Reducer("max", _max, _lowest)
MIN = Reducer("min", _min, _highest)
# The largest number: unlike MAX it passes over NaNs, and so is one instruction of a processor.
TOP = Reducer("top", _top, _lowest)


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a constant is made of a weight before the run: a matrix along some of its dimensions.

    Attributes:
        source: the shape of the weight.
        matrices: for each dimension of the weight, the (new, old) matrix that multiplies it, or None.
        shape: the shape of the result, which the transformed dimensions are reshaped to.
    """

    source: tuple[int, ...]
    matrices: tuple[tuple[tuple[float, ...], ...] | None, ...]
    shape: tuple[int, ...]

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The constant, computed in float64 and rounded once; piece by piece, as float64 takes room."""
        sizes = [n if m is None else len(m) for n, m in zip(self.source, self.matrices, strict=True)]
        out = np.empty(sizes, array.dtype)
        along = next((d for d, m in enumerate(self.matrices) if m is None), None)
        if along is None:
            out[...] = self._multiplied(array)
            return out.reshape(self.shape)
        step = max(1, _PIECE * sizes[along] // max(1, out.size))
        for start in range(0, sizes[along], step):
            here = (slice(None),) * along + (slice(start, start + step),)
            out[here] = self._multiplied(array[here])
        return out.reshape(self.shape)

    def _multiplied(self, array: np.ndarray) -> np.ndarray:
        out = array.astype(np.float64)
        for d, m in enumerate(self.matrices):
            if m is not None:
                out = np.moveaxis(np.tensordot(np.array(m), out, axes=(1, d)), 0, d)
        return out


@dataclass(frozen=True, slots=True)
class Placeholder:
    """An input of a ComputeDAG; `constant` marks a weight, whose value is known before the run.

    `derived` says that the input is not the weight itself but made of it.
    """

    constant: bool = False
    derived: Derivation | None = None


@dataclass(frozen=True, slots=True)
class ComputeOp:
    """One element per point of `axes`: `body`, combined over `reduce_axes` if there is a reducer.

    `tag` says which graph operator the op is the anchor of ("conv2d", "matmul", ...), or "" for
    anything element-wise or injective; families and sketch rules read it.

    `written_out` names axes of which so many neighbours at a time are to be computed by straight
    code: the body chooses by those axes (or their remainders) between short expressions that share
    much of their work.
    """

    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    reducer: Reducer | None = None
    tag: str = ""
    written_out: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Tensor:
    """A named array of a fixed shape (elements) and dtype; equality is identity."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    op: Placeholder | ComputeOp

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        idx = indices if isinstance(indices, tuple) else (indices,)
        if len(idx) != len(self.shape):
            raise UserError(
                f"{self.name} has {len(self.shape)} dimensions {self.shape}, read with {len(idx)} indices"
            )
        return Read(self, tuple(as_expr(i) for i in idx))

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype}{list(self.shape)})"


@dataclass(frozen=True, eq=False)
class Converted(Tensor):
    """A tensor whose elements are another's, converted where they are read: it is no stage."""

    source: Tensor

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        return cast(self.source[indices], self.dtype)


def converted(source: Tensor, dtype: str) -> Tensor:
    """`source` as it reads in another dtype."""
    return Converted(source.name, source.shape, dtype, source.op, source)


def placeholder(
    shape: Sequence[int], dtype: str = "float32", name: str = "x", constant: bool = False
) -> Tensor:
    """An input tensor of the given shape (elements) and dtype."""
    return Tensor(name, tuple(int(s) for s in shape), dtype, Placeholder(constant))


def reduce_axis(extent: int, name: str) -> Axis:
    """An axis to reduce over, for `compute(..., reduce=...)`."""
    return Axis(name, int(extent))


def compute(
    shape: Sequence[int],
    body: Callable[..., ExprLike],
    name: str,
    *,
    reduce: Sequence[Axis] = (),
    reducer: Reducer | None = None,
    tag: str = "",
    axis_names: Sequence[str] | None = None,
    written_out: Mapping[str, int] | None = None,
) -> Tensor:
    """Define a tensor by an expression of its axes.

    Args:
        shape: extents of the spatial axes, in elements.
        body: called with one Var per spatial axis; returns the element (or, for a reduction, the
            term that is combined over `reduce`, whose axes it uses through `axis.var`).
        name: the tensor's name; must be unique within its ComputeDAG.
        reduce: the reduce axes, outer to inner; empty for none. Extents of 0 give the identity.
        reducer: SUM, MAX, MIN, PROD, TOP or one's own; needed if `reduce` is given.
        tag: the graph operator this op is the anchor of.
        axis_names: names of the spatial axes, by default i0, i1, ...
        written_out: axes of which so many elements at a time become straight code (see ComputeOp).

    Raises:
        UserError: if `reduce` and `reducer` are not given together, or axis names repeat.
    """
    names = tuple(axis_names) if axis_names else tuple(f"i{k}" for k in range(len(shape)))
    axes = tuple(Axis(n, int(s)) for n, s in zip(names, shape, strict=True))
    if (reducer is None) != (not reduce):
        raise UserError(f"compute {name}: give reduce axes and a reducer together")
    all_names = [a.name for a in (*axes, *reduce)]
    if len(set(all_names)) != len(all_names):
        raise UserError(f"compute {name}: axis names repeat: {all_names}")
    value = body(*(a.var for a in axes))
    expr = value if isinstance(value, Node) else as_expr(value)
    op = ComputeOp(axes, expr, tuple(reduce), reducer, tag, tuple((written_out or {}).items()))  # type: ignore[arg-type]
    return Tensor(name, tuple(a.extent for a in axes), op.body.dtype, op)


def identity_of(op: ComputeOp) -> Const:
    """The neutral element of a reduction op, as a constant of its dtype."""
    if op.reducer is None:
        raise UserError("not a reduction")
    return Const(op.reducer.identity(op.body.dtype), op.body.dtype)
