"""Divisibility: the largest number known to divide an integer expression, to prove alignment."""

from __future__ import annotations

import math
from collections.abc import Mapping

from seer.ir.expr import Binary, Const, Expr, Unary, Var


def divisor(e: Expr, known: Mapping[str, int]) -> int:
    """A number that divides `e` whatever its variables are; 0 for what is always 0.

    `known` gives such a number for variables, 1 where nothing is known.
    """
    match e:
        case Const(value, _):
            return abs(int(value))
        case Var(name, _):
            return known.get(name, 1)
        case Unary("neg", a):
            return divisor(a, known)
        case Binary("+" | "-" | "min" | "max", a, b):
            return math.gcd(divisor(a, known), divisor(b, known))
        case Binary("*", a, b):
            return divisor(a, known) * divisor(b, known)
        case Binary("%", a, Const(value, _)):
            return math.gcd(divisor(a, known), int(value))
        case Binary("//", a, Const(value, _)) if int(value) > 0:
            of_a = divisor(a, known)
            return of_a // int(value) if of_a % int(value) == 0 else 1
    return 1
