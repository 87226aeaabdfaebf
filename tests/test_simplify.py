"""Simplification keeps values, and bounds hold them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seer.ir.dag import expand, flop_count
from seer.ir.expr import Binary, Const, Done, Expr, Var, as_expr, binary, children, compare, select, walk
from seer.ir.interp import evaluate
from seer.ir.simplify import affine, bounds, from_affine, simplify
from seer.ir.tensor import Axis, ComputeOp, Tensor, compute, placeholder

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


@given(st.lists(expressions(), min_size=1, max_size=4), points)
def test_what_is_done_is_simplified_once(found: list[Expr], env: dict[str, int]) -> None:
    done: Done = {}
    for e in (*found, binary("+", found[0], found[-1])):
        out = simplify(e, RANGES, done)
        assert value(out, env) == value(e, env)
        assert simplify(out, RANGES, done) is out


def test_shared_nodes_are_looked_at_once() -> None:
    """A tree of 2**60 nodes that are 61: whoever looks at each as often as it is used never ends."""

    def doubled(e: Expr) -> Expr:
        for _ in range(60):
            e = binary("+", e, e)
        return e

    x = placeholder((4,))
    y = compute((4,), lambda i: x[i] * 2.0, "y")
    z = Tensor("z", (4,), "float32", ComputeOp((Axis("i", 4),), doubled(y[Var("i")])))
    assert flop_count(z) == 4 * (2**60 - 1)
    e = doubled(y[Var("i")])
    expanded = expand(e, ("y",))
    for _ in range(60):
        assert isinstance(expanded, Binary)
        assert expanded.a is expanded.b
        expanded = expanded.a
    assert expanded == binary("*", x[Var("i")], 2.0)


def test_walk_has_parents_first_and_keeps_the_order() -> None:
    a, b, c = (Var(n) for n in NAMES)
    inner = binary("*", a, b)
    e = binary("+", inner, select(compare("<", c, a), inner, b))
    names = [type(n).__name__ if children(n) else str(n.name) for n in walk(e) if not isinstance(n, Const)]
    product = ["Binary", "a", "b"]
    assert names == ["Binary", *product, "Select", "Compare", "c", "a", *product, "b"]


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
