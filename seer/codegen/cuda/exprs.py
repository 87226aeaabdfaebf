"""Expressions of the loop IR as CUDA C."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from seer.dtypes import convert, is_narrow
from seer.dtypes import dtype as dtype_of
from seer.errors import BuildError
from seer.ir.divisible import divisor
from seer.ir.expr import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    as_expr,
    children,
    rebuild,
    substitute,
    variables,
)
from seer.ir.loops import Buffer, Scope
from seer.ir.simplify import Range, affine, bounds, from_affine, simplify

INT32 = (-(2**31), 2**31 - 1)
VECTOR = 4

# How tightly operators bind, as far as it saves parentheses.
_ATOM, _UNARY, _PRODUCT, _SUM, _LESS, _AND, _OR, _ANY = range(8)
_BINDS = {"*": _PRODUCT, "/": _PRODUCT, "+": _SUM, "-": _SUM, "and": _AND, "or": _OR}
_SPELLED = {"and": "&&", "or": "||"}
_RESERVED = frozenset(
    [
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "operator",
        "private",
        "protected",
        "public",
        "register",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "and",
        "or",
        "not",
        "xor",
        "min",
        "max",
        "exp",
        "log",
        "pow",
        "abs",
    ]
)
_CALLS = {"exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "pow": "pow"}
_CALLS |= {"abs": "fabs", "floor": "floor"}

# How functions on 16-bit floats are called.
NARROW = {"float16": "half", "bfloat16": "bf16"}

Text = tuple[str, int]


class Names:
    """C identifiers of buffers and variables."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._taken: set[str] = set(_RESERVED)

    def of(self, key: object, hint: str) -> str:
        """The identifier of a buffer or variable, always the same."""
        if key not in self._names:
            name = re.sub(r"\W", "_", hint)
            name = f"_{name}" if name[:1].isdigit() else name or "_"
            while name in self._taken or name.startswith("seer_"):
                name += "_"
            self._taken.add(name)
            self._names[key] = name
        return self._names[key]


class Writer:
    """Turns expressions into text.

    Attributes:
        ranges: of the variables in scope.
        known: a divisor of each variable of which one is known.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.ranges: dict[str, Range] = {}
        self.known: dict[str, int] = {}

    # -- integers ----------------------------------------------------------------------------

    def fits(self, e: Expr) -> bool:
        """Whether an integer expression and all its parts are known to fit 32 bits."""
        if isinstance(e, Load | Cast | Select | Call):
            return False
        low, high = bounds(e, self.ranges)
        return INT32[0] <= low and high <= INT32[1] and all(map(self.fits, children(e)))

    def index_type(self, e: Expr) -> str:
        """The C type that holds an index."""
        low, high = bounds(e, self.ranges)
        return "int" if INT32[0] <= low and high <= INT32[1] else "long long"

    def index(self, e: Expr) -> str:
        """An index or a count, in 32 bits if it fits."""
        return self._integer(e)[0]

    def _integer(self, e: Expr) -> Text:
        return self._go(e, "int" if self.fits(e) else "long long")

    # -- memory ------------------------------------------------------------------------------

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The row-major position of an element."""
        out: Expr = as_expr(0)
        stride = 1
        for i, n in zip(reversed(indices), reversed(buffer.shape), strict=True):
            out = i * stride + out
            stride *= n
        return simplify(out, self.ranges)

    def element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """An element as an lvalue."""
        name = self.names.of(buffer, buffer.name)
        if buffer.scope is Scope.REGISTER:
            return name + "".join(f"[{self.index(simplify(i, self.ranges))}]" for i in indices)
        return f"{name}[{self.index(self.flat(buffer, indices))}]"

    def vector_address(
        self, buffer: Buffer, indices: tuple[Expr, ...], v: str, width: int = VECTOR
    ) -> str | None:
        """Where neighbours start, if `v` counts `width` of them that are aligned together."""
        if not has_vectors(buffer.dtype) or buffer.scope is Scope.REGISTER:
            return None
        terms, constant = affine(self.flat(buffer, indices))
        if terms.pop(Var(v), 0) != 1 or any(v in variables(t) for t in terms):
            return None
        start = from_affine(terms, constant)
        if divisor(start, self.known) % width:
            return None
        return f"&{self.names.of(buffer, buffer.name)}[{self.index(start)}]"

    # -- scalars -----------------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """A value of its own type."""
        return self._value(e)[0]

    def _value(self, e: Expr) -> Text:
        if e.dtype == "int64":
            return self._integer(e)
        return self._go(e, dtype_of(e.dtype).c)

    def _go(self, e: Expr, ctype: str) -> Text:
        """`e` computed in the C type `ctype` (which matters for int64 alone)."""

        def sub(x: Expr, most: int) -> str:
            text, binds = self._go(x, ctype) if x.dtype == "int64" else self._value(x)
            return text if binds <= most else f"({text})"

        match e:
            case Const(value, dtype):
                return constant(value, dtype, ctype)
            case Var(name, "float32" | "float16" | "bfloat16"):  # one of some loaded values
                return name, _ATOM
            case Var(name, _):
                text = self.names.of(name, name)
                is_wide = self.index_type(e) != "int"
                return (
                    (f"(long long){text}", _UNARY) if ctype == "long long" and not is_wide else (text, _ATOM)
                )
            case Load(buffer, indices):
                text = self.element(buffer, indices)
                return (f"{text} != 0", _LESS) if buffer.dtype == "bool" else (text, _ATOM)
            case Unary("neg", a):
                return f"-{sub(a, _ATOM)}", _UNARY
            case Unary(_, a):
                return f"!{sub(a, _ATOM)}", _UNARY
            case Binary("min" | "max" as op, a, b):
                kind = ctype if e.dtype == "int64" else dtype_of(e.dtype).c
                return f"seer_{op}<{kind}>({sub(a, _ANY)}, {sub(b, _ANY)})", _ATOM
            case Binary("//" | "%" as op, a, b):
                return self._divide(op, a, b, ctype, sub)
            case Binary(op, a, b):
                binds = _BINDS[op]
                right = binds if op in ("and", "or") else binds - 1
                if e.dtype.startswith("int") and op in ("+", "*"):
                    right = binds
                return f"{sub(a, binds)} {_SPELLED.get(op, op)} {sub(b, right)}", binds
            case Compare(op, a, b):
                if a.dtype == "int64":
                    kind = "int" if self.fits(a) and self.fits(b) else "long long"
                    left, right_text = self._go(a, kind), self._go(b, kind)
                else:
                    left, right_text = self._value(a), self._value(b)
                x, y = (t if k <= _SUM else f"({t})" for t, k in (left, right_text))
                return f"{x} {op} {y}", _LESS
            case Select(cond, a, b):
                test, binds = self._value(cond)
                test = test if binds <= _OR else f"({test})"
                return f"{test} ? {sub(a, _OR)} : {sub(b, _OR)}", _ANY
            case Cast(a, dtype) if is_narrow(a.dtype):
                wide = f"seer_{NARROW[a.dtype]}_to_float({self.value(a)})"
                return (wide, _ATOM) if dtype == "float32" else (f"({dtype_of(dtype).c}){wide}", _UNARY)
            case Cast(a, dtype) if is_narrow(dtype):
                given = self.value(a) if a.dtype == "float32" else f"(float)({self.value(a)})"
                return f"seer_float_to_{NARROW[dtype]}({given})", _ATOM
            case Cast(a, dtype):
                text, binds = self._value(a)
                text = text if binds <= _UNARY else f"({text})"
                return (
                    (f"{text} != 0", _LESS) if dtype == "bool" else (f"({dtype_of(dtype).c}){text}", _UNARY)
                )
            case Call(name, args, dtype):
                return f"{_function(name, dtype)}({', '.join(sub(a, _ANY) for a in args)})", _ATOM
        raise BuildError(f"no CUDA C for {e}")

    def _divide(self, op: str, a: Expr, b: Expr, ctype: str, sub: Callable[[Expr, int], str]) -> Text:
        is_plain = bounds(a, self.ranges)[0] >= 0 and bounds(b, self.ranges)[0] > 0
        if is_plain:
            return f"{sub(a, _PRODUCT)} {'/' if op == '//' else '%'} {sub(b, _UNARY)}", _PRODUCT
        kind = ctype if a.dtype == "int64" else dtype_of(a.dtype).c
        return f"seer_floor{'div' if op == '//' else 'mod'}<{kind}>({sub(a, _ANY)}, {sub(b, _ANY)})", _ATOM

    # -- two or four at once -------------------------------------------------------------------

    def vector(self, e: Expr, v: str, width: int) -> str | None:
        """The values for v = 0..width - 1 as one vector, if loads give them all at once."""
        if not has_vectors(e.dtype):
            return None
        if isinstance(e, Load):
            address = self.vector_address(e.buffer, e.indices, v, width)
            return None if address is None else f"{vector_function('load', e.dtype, width)}({address})"
        if isinstance(e, Const) and can_make(e.dtype, width):
            return f"{vector_function('make', e.dtype, width)}({', '.join([self.value(e)] * width)})"
        if isinstance(e, Select) and v not in variables(e.cond):
            a, b = self.vector(e.a, v, width), self.vector(e.b, v, width)
            if a is None or b is None:
                return None
            cond, binds = self._value(e.cond)
            return f"{cond if binds <= _OR else f'({cond})'} ? {a} : {b}"
        return None

    def lanes(
        self, e: Expr, v: str, width: int, hoist: Callable[[str, str], str], guard: Expr | None = None
    ) -> Expr:
        """`e` with loads of neighbours replaced by variables that `hoist` makes; see `lane`.

        What is loaded on one side of a choice may not be there on the other: `guard` says where it is.
        """
        if v not in variables(e):
            return e
        loaded = e if guard is None else Select(guard, e, Const(0.0, e.dtype))
        text = self.vector(loaded, v, width)
        if text is not None:
            return Var(f"{hoist(text, vector_type(e.dtype, width))}.{v}", e.dtype)
        if isinstance(e, Load):
            return e
        if isinstance(e, Select):
            if v in variables(e.cond):
                return e
            sides = ((e.a, e.cond), (e.b, Unary("not", e.cond)))
            within = [(x, c if guard is None else Binary("and", guard, c)) for x, c in sides]
            return rebuild(e, (e.cond, *(self.lanes(x, v, width, hoist, c) for x, c in within)))
        return rebuild(e, tuple(self.lanes(k, v, width, hoist, guard) for k in children(e)))

    def lane(self, e: Expr, v: str, k: int) -> Expr:
        """One lane of what `lanes` gave."""
        suffix = f".{v}"

        def go(n: Expr) -> Expr:
            if isinstance(n, Var) and n.name.endswith(suffix):
                return Var(f"{n.name.removesuffix(suffix)}.{'xyzw'[k]}", n.dtype)
            kids = children(n)
            return rebuild(n, tuple(map(go, kids))) if kids else n

        return simplify(substitute(go(e), {v: as_expr(k)}), self.ranges)


def has_vectors(dtype: str) -> bool:
    """Whether neighbours of a type can be loaded and stored at once."""
    return dtype == "float32" or is_narrow(dtype)


def can_make(dtype: str, width: int) -> bool:
    """Whether so many neighbours can be made of single ones and stored; two of float32 are only loaded."""
    return width == VECTOR or is_narrow(dtype)


def vector_type(dtype: str, width: int) -> str:
    """The C type of so many neighbours."""
    return f"seer_{'ushort' if is_narrow(dtype) else 'float'}{width}"


def vector_function(what: str, dtype: str, width: int) -> str:
    """The function that loads, stores or makes so many neighbours."""
    return f"seer_{what}{width}{'_16' if is_narrow(dtype) else ''}"


def _function(name: str, dtype: str) -> str:
    if name in ("fma", "sigmoid"):
        return f"seer_{name}"
    return _CALLS[name] + ("f" if dtype == "float32" else "")


def constant(value: float | int | bool, dtype: str, ctype: str) -> Text:
    """A literal of a dtype."""
    if dtype == "bool":
        return ("true" if value else "false"), _ATOM
    if dtype.startswith("int"):
        number = int(value)
        if number == -(2**63):
            return "(-9223372036854775807LL - 1)", _ATOM
        if number == -(2**31) and ctype == "int":
            return "(-2147483647 - 1)", _ATOM
        text = f"{number}LL" if ctype == "long long" else str(number)
        return text, _ATOM if number >= 0 else _UNARY
    if is_narrow(dtype):
        return str(int(convert(np.float32(value), "float32", dtype).view(np.uint16))), _ATOM
    is_single = dtype == "float32"
    if math.isnan(value):
        return (
            "__int_as_float(0x7fc00000)" if is_single else "__longlong_as_double(0x7ff8000000000000LL)"
        ), _ATOM
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        text = "__int_as_float(0x7f800000)" if is_single else "__longlong_as_double(0x7ff0000000000000LL)"
        return sign + text, _UNARY if sign else _ATOM
    text = str(np.float32(value)) if is_single else repr(float(value))
    return text + ("f" if is_single else ""), _ATOM if math.copysign(1.0, value) > 0 else _UNARY
