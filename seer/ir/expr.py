"""Scalar expressions: the one expression language of tensor and loop IR.

The whole grammar:

    Expr = Const(value, dtype)            a literal
         | Var(name, dtype)               a loop or axis variable (int64 unless said)
         | Unary(op, a)                   op: neg, not
         | Binary(op, a, b)               op: + - * / // % min max and or
         | Compare(op, a, b)              op: < <= == != ; yields bool
         | Select(cond, a, b)             both sides may be evaluated: loads in them must be safe
                                          unless the emitter guards them (it does, see Load)
         | Cast(a, dtype)                 C conversion; float -> int truncates
         | Call(name, args, dtype)        a math function: exp log sqrt tanh erf sigmoid pow abs floor
                                          fma(a, b, c) = a*b + c rounded once
         | Read(tensor, indices)          tensor level only
         | Load(buffer, indices)          loop level only

Semantics: `//` and `%` on integers floor (as Python), by zero they give 0 (as NumPy); `/` is for
floats only; `min`/`max` on floats propagate NaN; integer arithmetic wraps. Operators on Python values
build nodes and fold constants and neutral elements at once, so index arithmetic stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from seer.dtypes import promote
from seer.errors import UserError

if TYPE_CHECKING:
    from seer.ir.loops import Buffer
    from seer.ir.tensor import Tensor

INDEX = "int64"


class Node:
    """Base of the expression nodes: only the Python operators live here."""

    __slots__ = ()
    dtype: str

    def __add__(self, other: ExprLike) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("*", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("/", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("/", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("//", self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("%", self, other)

    def __neg__(self) -> Expr:
        return Unary("neg", as_expr(self))

    def __lt__(self, other: ExprLike) -> Expr:
        return compare("<", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return compare("<=", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return compare("<", other, self)

    def __ge__(self, other: ExprLike) -> Expr:
        return compare("<=", other, self)

    def __bool__(self) -> bool:
        raise TypeError("a seer expression has no truth value; use all_of, any_of or select")


@dataclass(frozen=True, slots=True)
class Const(Node):
    """A literal of the given dtype."""

    value: float | int | bool
    dtype: str

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const)
            and self.dtype == other.dtype
            and (self.value == other.value or (self.value != self.value and other.value != other.value))
            and math.copysign(1.0, self.value) == math.copysign(1.0, other.value)
        )

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.dtype))


@dataclass(frozen=True, slots=True)
class Var(Node):
    """A variable; two variables are the same if their names are."""

    name: str
    dtype: str = INDEX


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """`neg` (numbers) or `not` (bool)."""

    op: str
    a: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Arithmetic or logic on two operands of one dtype."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """`<`, `<=`, `==` or `!=` on two operands of one dtype; false where a NaN is compared (`!=` true)."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "bool"


@dataclass(frozen=True, slots=True)
class Select(Node):
    """`a` where `cond` holds, else `b`. Loads inside happen only where their side is chosen."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Cast(Node):
    """Conversion to another dtype."""

    a: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A math function of scalars."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Read(Node):
    """One element of a tensor (tensor level)."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Load(Node):
    """One element of a buffer (loop level)."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.buffer.dtype


Expr = Union[Const, Var, Unary, Binary, Compare, Select, Cast, Call, Read, Load]
ExprLike = Union[Expr, int, float, bool, Node]

UNARY_CALLS = ("exp", "log", "sqrt", "tanh", "erf", "sigmoid", "abs", "floor")
CALLS = (*UNARY_CALLS, "pow", "fma")


def as_expr(value: ExprLike, dtype: str | None = None) -> Expr:
    """Turn a Python number into a Const (of `dtype`, or int64/float32/bool); pass nodes through."""
    if isinstance(value, Node):
        return value  # type: ignore[return-value]
    if isinstance(value, bool):
        return Const(value, dtype or "bool")
    if isinstance(value, int) and (dtype is None or not dtype.startswith("float")):
        return Const(int(value), dtype or INDEX)
    return Const(float(value), dtype or "float32")


def _pair(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    """Bring two operands to one dtype; a Python number takes the other's."""
    if not isinstance(a, Node):
        b = as_expr(b)
        return as_expr(a, b.dtype), b
    a = as_expr(a)
    if not isinstance(b, Node):
        return a, as_expr(b, a.dtype)
    b = as_expr(b)
    if a.dtype != b.dtype:
        common = promote(a.dtype, b.dtype)
        a, b = cast(a, common), cast(b, common)
    return a, b


_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def binary(op: str, x: ExprLike, y: ExprLike) -> Expr:
    """Build `x op y`, folding integer constants and neutral elements.

    Floats are folded in no case, since the folded value could differ from the computed one.
    """
    a, b = _pair(x, y)
    if a.dtype in ("int32", "int64"):
        if isinstance(a, Const) and isinstance(b, Const) and not (op in ("//", "%") and b.value == 0):
            value = _FOLD[op](int(a.value), int(b.value))
            bits = 32 if a.dtype == "int32" else 64
            value = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
            return Const(value, a.dtype)
        if isinstance(b, Const):
            if (op in ("+", "-") and b.value == 0) or (op in ("*", "//") and b.value == 1):
                return a
            if (op == "*" and b.value == 0) or (op == "%" and b.value == 1):
                return Const(0, a.dtype)
        if isinstance(a, Const):
            if (op == "+" and a.value == 0) or (op == "*" and a.value == 1):
                return b
            if op == "*" and a.value == 0:
                return Const(0, a.dtype)
        if op == "/":
            raise UserError("'/' is for floats; cast first, or use '//' for integers")
    elif op in ("//", "%"):
        raise UserError(f"{op!r} is for integers, found {a.dtype}")
    return Binary(op, a, b)


def compare(op: str, x: ExprLike, y: ExprLike) -> Expr:
    """Build `x op y` (bool), folding integer constants."""
    a, b = _pair(x, y)
    if isinstance(a, Const) and isinstance(b, Const) and a.dtype in ("int32", "int64"):
        table = {"<": a.value < b.value, "<=": a.value <= b.value, "==": a.value == b.value}
        return Const(table.get(op, a.value != b.value), "bool")
    return Compare(op, a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The smaller of two; NaN if either is (floats)."""
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The larger of two; NaN if either is (floats)."""
    return binary("max", a, b)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """`a` where `cond`, else `b`; a constant condition chooses at once."""
    x, y = _pair(a, b)
    if isinstance(cond, Const):
        return x if cond.value else y
    return Select(cond, x, y)


def all_of(*conds: Expr) -> Expr:
    """True where every condition is; constants fold."""
    kept = [c for c in conds if not (isinstance(c, Const) and c.value)]
    for c in kept:
        if isinstance(c, Const):
            return c
    if not kept:
        return Const(True, "bool")
    out = kept[0]
    for c in kept[1:]:
        out = Binary("and", out, c)
    return out


def cast(a: Expr, dtype: str) -> Expr:
    """`a` converted to `dtype` (nothing if it has it; integer constants convert at once)."""
    if a.dtype == dtype:
        return a
    if (
        isinstance(a, Const)
        and dtype.startswith(("int", "float"))
        and a.value == a.value
        and abs(a.value) < 2**24
    ):
        if dtype.startswith("float"):
            return Const(float(a.value), dtype)
        return Const(int(a.value), dtype)
    return Cast(a, dtype)


def call(name: str, *args: ExprLike) -> Expr:
    """A math function; all arguments and the result have one dtype."""
    if name not in CALLS:
        raise UserError(f"unknown math function {name!r}; known: {', '.join(CALLS)}")
    exprs = tuple(as_expr(a) for a in args)
    first = next((e for a, e in zip(args, exprs, strict=True) if isinstance(a, Node)), exprs[0])
    return Call(name, tuple(as_expr(a, first.dtype) for a in args), first.dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions, in order."""
    found = _CHILDREN.get(type(e))
    if found is None:
        raise TypeError(f"not an expression: {e!r}")
    return found(e)


# By type: traversals spend much of their time here, and `match` tries one class after the other.
_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Const: lambda e: (),
    Var: lambda e: (),
    Unary: lambda e: (e.a,),
    Cast: lambda e: (e.a,),
    Binary: lambda e: (e.a, e.b),
    Compare: lambda e: (e.a, e.b),
    Select: lambda e: (e.cond, e.a, e.b),
    Call: lambda e: e.args,
    Read: lambda e: e.indices,
    Load: lambda e: e.indices,
}


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """The node `e` with other children; index arithmetic folds again."""
    match e:
        case Const() | Var():
            return e
        case Unary(op, _):
            return Unary(op, kids[0])
        case Cast(_, dtype):
            return cast(kids[0], dtype)
        case Binary(op, _, _):
            return binary(op, *kids)
        case Compare(op, _, _):
            return compare(op, *kids)
        case Select():
            return select(*kids)
        case Call(name, _, dtype):
            return Call(name, kids, dtype)
        case Read(tensor, _):
            return Read(tensor, kids)
        case Load(buffer, _):
            return Load(buffer, kids)
    raise TypeError(f"not an expression: {e!r}")


Done = dict[int, tuple[Expr, Expr]]  # id of an expression -> itself (an id must stay its own), the result


def rewrite(e: Expr, fn: Callable[[Expr], Expr | None], done: Done | None = None) -> Expr:
    """Rebuild `e` from its leaves up; `fn` gives a node's replacement, or None to keep it.

    A node that is reached by several ways is rebuilt once and stays shared; with the same `done`, that
    holds over several calls.
    """
    known: Done = {} if done is None else done

    def go(e: Expr) -> Expr:
        found = known.get(id(e))
        if found is not None:
            return found[1]
        fresh = e
        kids = children(e)
        if kids:
            new = tuple([go(k) for k in kids])
            for n, k in zip(new, kids, strict=True):
                if n is not k:
                    fresh = rebuild(e, new)
                    break
        out = fn(fresh)
        known[id(e)] = (e, fresh if out is None else out)
        return known[id(e)][1]

    return go(e)


def substitute(e: Expr, values: dict[str, Expr]) -> Expr:
    """`e` with each variable named in `values` replaced."""
    if not values:
        return e
    return rewrite(e, lambda n: values.get(n.name) if isinstance(n, Var) else None)


def walk(e: Expr) -> Iterator[Expr]:
    """Every node of `e`, parents first; a node that is reached by several ways comes as often."""
    stack = [e]
    while stack:
        n = stack.pop()
        yield n
        stack += children(n)[::-1]


def reads(e: Expr) -> list[Read]:
    """Every tensor read in `e`, in order of appearance, repeats included."""
    return [n for n in walk(e) if isinstance(n, Read)]


def variables(e: Expr) -> set[str]:
    """The names of the variables in `e`."""
    return {n.name for n in walk(e) if isinstance(n, Var)}
