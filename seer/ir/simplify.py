"""Interval analysis and simplification of index expressions.

`bounds` gives the inclusive range of an integer expression; `simplify` removes the divisions,
remainders, minima and comparisons that the ranges decide. Both know ranges of variables only;
whatever they cannot decide stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from seer.ir.expr import Binary, Cast, Compare, Const, Done, Expr, Select, Unary, Var, as_expr, rewrite

Range = tuple[int, int]
Ranges = Mapping[str, Range]
# Anything unknown: wide enough to decide nothing, small enough to add without surprises.
UNKNOWN: Range = (-(2**62), 2**62)


def bounds(e: Expr, ranges: Ranges) -> Range:
    """The inclusive range of the integer expression `e`, given those of its variables."""
    match e:
        case Const(value, _):
            return int(value), int(value)
        case Var(name, _):
            return ranges.get(name, UNKNOWN)
        case Unary("neg", a):
            lo, hi = bounds(a, ranges)
            return -hi, -lo
        case Cast(a, _) if a.dtype in ("int32", "int64", "bool"):
            return bounds(a, ranges)
        case Select(_, a, b):
            (a0, a1), (b0, b1) = bounds(a, ranges), bounds(b, ranges)
            return min(a0, b0), max(a1, b1)
        case Binary(op, a, b):
            return _bounds_binary(op, bounds(a, ranges), bounds(b, ranges))
    return UNKNOWN


def _bounds_binary(op: str, x: Range, y: Range) -> Range:
    """The range of `x op y`, UNKNOWN where an operand is too wide to say."""
    match op:
        case "+":
            return _clip((x[0] + y[0], x[1] + y[1]))
        case "-":
            return _clip((x[0] - y[1], x[1] - y[0]))
        case "*":
            products = [a * b for a in x for b in y]
            return _clip((min(products), max(products)))
        case "//" if y[0] > 0:
            quotients = [a // b for a in x for b in y]
            return min(quotients), max(quotients)
        case "%" if y[0] > 0:
            if 0 <= x[0] and x[1] < y[0]:
                return x
            return 0, y[1] - 1
        case "min":
            return min(x[0], y[0]), min(x[1], y[1])
        case "max":
            return max(x[0], y[0]), max(x[1], y[1])
    return UNKNOWN


def _clip(r: Range) -> Range:
    return max(r[0], UNKNOWN[0]), min(r[1], UNKNOWN[1])


def affine(e: Expr) -> tuple[dict[Expr, int], int]:
    """Split an integer expression into ({term: coefficient}, constant).

    Terms are variables or sub-expressions that are not affine; the sum of coefficient * term plus
    the constant equals `e`.
    """
    terms: dict[Expr, int] = {}
    constant = _collect(e, 1, terms)
    return {t: c for t, c in terms.items() if c}, constant


def _collect(e: Expr, scale: int, terms: dict[Expr, int]) -> int:
    match e:
        case Const(value, _):
            return scale * int(value)
        case Unary("neg", a):
            return _collect(a, -scale, terms)
        case Binary("+", a, b):
            return _collect(a, scale, terms) + _collect(b, scale, terms)
        case Binary("-", a, b):
            return _collect(a, scale, terms) + _collect(b, -scale, terms)
        case Binary("*", a, Const(value, _)) | Binary("*", Const(value, _), a):
            return _collect(a, scale * int(value), terms)
    terms[e] = terms.get(e, 0) + scale
    return 0


def from_affine(terms: Mapping[Expr, int], constant: int) -> Expr:
    """The expression of an affine form, in the order of `terms`."""
    out: Expr | None = None
    for term, coefficient in terms.items():
        part = term if coefficient == 1 else term * coefficient
        out = part if out is None else out + part
    return as_expr(constant) if out is None else out + constant if constant else out


def simplify(e: Expr, ranges: Ranges, done: Done | None = None) -> Expr:
    """`e` with everything that `ranges` (inclusive) decides removed; the value is the same.

    With the same `done` and ranges, what is simplified is not looked at again.
    """

    def step(n: Expr) -> Expr | None:
        match n:
            case Binary("//" | "%" as op, a, Const(value, _)) if a.dtype == "int64" and int(value) > 0:
                return _divide(op, a, int(value), ranges)
            case Binary("min" | "max" as op, a, b) if a.dtype == "int64":
                (a0, a1), (b0, b1) = bounds(a, ranges), bounds(b, ranges)
                if a1 <= b0:
                    return a if op == "min" else b
                if b1 <= a0:
                    return b if op == "min" else a
            case Binary("+" | "-", _, _) if n.dtype == "int64":
                return from_affine(*affine(n))
            case Binary("and", a, b):
                if isinstance(a, Const):
                    return b if a.value else a
                if isinstance(b, Const):
                    return a if b.value else b
            case Binary("or", a, b):
                if isinstance(a, Const):
                    return a if a.value else b
                if isinstance(b, Const):
                    return b if b.value else a
            case Compare(op, a, b) if a.dtype == "int64":
                return _compare(op, a, b, ranges)
        return None

    out = rewrite(e, step, done)
    if done is not None:
        done[id(out)] = (out, out)
    return out


def _divide(op: str, a: Expr, d: int, ranges: Ranges) -> Expr | None:
    """`a // d` or `a % d` when the part not divisible by d stays within [0, d)."""
    terms, constant = affine(a)
    whole = {t: c for t, c in terms.items() if c % d == 0}
    rest = {t: c for t, c in terms.items() if c % d}
    remainder = from_affine(rest, constant % d)
    lo, hi = bounds(remainder, ranges)
    if 0 <= lo and hi < d:
        quotient = from_affine({t: c // d for t, c in whole.items()}, constant // d)
        return quotient if op == "//" else remainder
    if op == "%" and (whole or constant // d):
        return remainder % d
    if op == "//" and (whole or constant // d):
        return from_affine({t: c // d for t, c in whole.items()}, constant // d) + remainder // d
    return None


def _compare(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr | None:
    lo, hi = bounds(from_affine(*affine(a - b)), ranges)
    if op == "<" and (hi < 0 or lo >= 0):
        return Const(hi < 0, "bool")
    if op == "<=" and (hi <= 0 or lo > 0):
        return Const(hi <= 0, "bool")
    if op in ("==", "!=") and (lo > 0 or hi < 0 or lo == hi == 0):
        return Const((lo == hi == 0) == (op == "=="), "bool")
    return None
