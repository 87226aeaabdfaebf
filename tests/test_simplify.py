"""Simplification keeps values, and bounds hold them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seer.ir.expr import Expr, Var, as_expr, binary, compare, select
from seer.ir.interp import evaluate
from seer.ir.simplify import affine, bounds, from_affine, simplify

RANGES = {"a": (0, 6), "b": (-3, 12), "c": (5, 5)}
NAMES = tuple(RANGES)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            return Var(draw(st.sampled_from(NAMES)))
        return as_expr(draw(st.integers(-9, 9)))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "select"]))
    x = draw(expressions(depth - 1))
    if op in ("//", "%"):
        return binary(op, x, draw(st.integers(1, 7)))
    y = draw(expressions(depth - 1))
    if op == "select":
        test = draw(st.sampled_from(["<", "<=", "==", "!="]))
        return select(compare(test, x, y), y, x)
    return binary(op, x, y)


def value(e: Expr, env: dict[str, int]) -> int:
    def no_reads(*_: object) -> None:
        raise AssertionError

    return int(np.asarray(evaluate(e, env, no_reads)))


points = st.fixed_dictionaries({n: st.integers(*r) for n, r in RANGES.items()})


@given(expressions(), points)
def test_simplify_keeps_the_value(e: Expr, env: dict[str, int]) -> None:
    assert value(simplify(e, RANGES), env) == value(e, env)


@given(expressions())
def test_simplify_is_done_after_one_pass_for_sums(e: Expr) -> None:
    once = simplify(e, RANGES)
    env = {"a": 3, "b": -2, "c": 5}
    assert value(simplify(once, RANGES), env) == value(once, env)


@given(expressions(), points)
def test_bounds_hold_the_value(e: Expr, env: dict[str, int]) -> None:
    low, high = bounds(e, RANGES)
    assert low <= value(e, env) <= high


@given(expressions(), points)
def test_affine_adds_up(e: Expr, env: dict[str, int]) -> None:
    assert value(from_affine(*affine(e)), env) == value(e, env)


def test_tiles_simplify() -> None:
    i, j = Var("i"), Var("j")
    ranges = {"i": (0, 7), "j": (0, 15)}
    assert simplify((i * 16 + j) // 16, ranges) == i
    assert simplify((i * 16 + j) % 16, ranges) == j
    assert simplify(compare("<", i * 16 + j, 128), ranges) == as_expr(True)
    # A layout change that is not the identity: (i % 20) // 2 * 2 % 4 is 0, 0, 2, 2, ...
    k = Var("k")
    e = simplify((k % 20) // 2 * 2 % 4, {"k": (0, 99)})
    assert [value(e, {"k": n}) for n in range(6)] == [0, 0, 2, 2, 0, 0]
