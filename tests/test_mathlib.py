"""Math functions in machine code: error in units in the last place over the whole range, and the edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from seer.codegen.build import build
from seer.ir.dag import ComputeDAG
from seer.ir.expr import call
from seer.ir.tensor import compute, placeholder
from seer.runtime.kernel import Kernel, run_artifact
from seer.runtime.target import Target
from seer.search.defaults import default_candidate

TARGET = Target.parse("llvm -threads=1")
# What seer/codegen/llvm/mathlib.py states, in units in the last place, and where all float32 inputs
# have their largest error (found by trying each).
STATED = {"exp": 0.88, "log": 0.83, "tanh": 1.31, "erf": 1.08, "sigmoid": 2.41}
WORST = {
    "exp": -71.04119110107422,
    "log": 0.7018287777900696,
    "tanh": 0.6603707671165466,
    "erf": 0.9186825752258301,
    "sigmoid": -4.157293796539307,
}
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": special.erf,
    "sigmoid": special.expit,
}


def evaluate(name: str, *xs: np.ndarray, target: Target = TARGET) -> np.ndarray:
    shape, dtype = xs[0].shape, xs[0].dtype.name
    inputs = [placeholder(shape, dtype, f"x{k}") for k in range(len(xs))]
    dag = ComputeDAG(compute(shape, lambda i: call(name, *(t[i] for t in inputs)), "y"), inputs)
    sketch, row = default_candidate(dag, target)
    return run_artifact(build(sketch, row, target), list(xs))


def inputs() -> np.ndarray:
    """About a million floats, even over all bit patterns, so over all magnitudes."""
    bits = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    return np.concatenate([x[np.isfinite(x)], np.linspace(-20, 20, 100_003, dtype=np.float32)])


def check(name: str, x: np.ndarray, out: np.ndarray, stated: float) -> None:
    """Results are within `stated` units in the last place; infinities and NaNs are where they must be."""
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(rounded))
    known = np.isfinite(rounded) & (np.abs(exact) > 2e-38)
    ulp = np.abs(out[known] - exact[known]) / np.spacing(np.abs(rounded[known])).astype(np.float64)
    worst = int(ulp.argmax()) if ulp.size else 0
    assert not ulp.size or ulp[worst] <= stated, (
        x[known][worst],
        out[known][worst],
        exact[known][worst],
        ulp[worst],
    )
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(out[infinite], rounded[infinite])
    tiny = np.abs(exact) <= 2e-38
    np.testing.assert_allclose(out[tiny], exact[tiny], atol=1e-44, rtol=2e-7)


@pytest.mark.parametrize("name", STATED)
def test_float32_error(name: str) -> None:
    x = np.append(inputs(), np.float32([np.inf, -np.inf, np.nan]))
    check(name, x, evaluate(name, x), STATED[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", STATED)
def test_every_float32(name: str) -> None:
    n = 1 << 22
    t = placeholder((n,), "float32", "x")
    dag = ComputeDAG(compute((n,), lambda i: call(name, t[i]), "y"), [t])
    kernel = Kernel(build(*default_candidate(dag, TARGET), TARGET))
    for start in range(0, 1 << 32, n):
        x = np.arange(start, start + n, dtype=np.uint32).view(np.float32)
        check(name, x, kernel(x), STATED[name])


@pytest.mark.parametrize("name", STATED)
def test_the_stated_error_is_the_largest(name: str) -> None:
    x = np.array([WORST[name]], np.float32)
    exact = EXACT[name](x.astype(np.float64))
    ulp = np.abs(evaluate(name, x) - exact) / np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
    assert STATED[name] - 0.02 < ulp[0] <= STATED[name]


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("exp", [0.0, -0.0, np.inf, -np.inf, 88.9, -104.1], [1, 1, np.inf, 0, np.inf, 0]),
        ("log", [1.0, 0.0, -0.0, np.inf, -1.0, -np.inf], [0, -np.inf, -np.inf, np.inf, np.nan, np.nan]),
        ("tanh", [0.0, np.inf, -np.inf, 50.0], [0, 1, -1, 1]),
        ("erf", [0.0, np.inf, -np.inf, 9.0], [0, 1, -1, 1]),
        ("sigmoid", [0.0, np.inf, -np.inf], [0.5, 1, 0]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_edges(name: str, x: list[float], expected: list[float], dtype: str) -> None:
    if dtype == "float64":
        x, expected = x[:4], expected[:4]
    given = np.array([*x, np.nan], dtype)
    np.testing.assert_array_equal(evaluate(name, given), np.array([*expected, np.nan], dtype))


def test_denormal_logarithms() -> None:
    x = np.array([1e-40, 1e-45, 1.2e-38], np.float32)
    np.testing.assert_allclose(evaluate("log", x), np.log(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("name", STATED)
def test_float64(name: str) -> None:
    x = np.random.default_rng(0).standard_normal(1001) * 3
    x = np.abs(x) if name == "log" else x
    np.testing.assert_allclose(evaluate(name, x), EXACT[name](x), rtol=1e-13)


def test_gelu_uses_an_erf_that_keeps_its_sign() -> None:
    x = np.array([-1e-30, 1e-30, -0.0], np.float32)
    out = evaluate("erf", x)
    assert [math.copysign(1, v) for v in out] == [-1, 1, -1]


# -- pow -------------------------------------------------------------------------------------------

# fmt: off
POW_EDGES = (
    0.0, 1.0, np.inf, 2.0, 0.5, 3.0, 2.5, 1e-45, 1e-39, 3.4e38, 1 - 2**-24, 1 + 2**-23, 16777215.0,
    16777216.0, 33554432.0, 127.0, 128.0, 149.0, 150.0, 1 / 3,
)
# fmt: on


def test_pow_at_every_pair_of_edges() -> None:
    """Signs, zeros, infinities, NaNs, odd and even and broken powers, as C has them."""
    edges = np.array([*POW_EDGES, *(-v for v in POW_EDGES), np.nan], np.float32)
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(edges, edges))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    out = evaluate("pow", x, y)
    np.testing.assert_allclose(out, expected, rtol=1.2e-7, atol=1e-45)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(out[known]), np.signbit(expected[known]))
    for special_value in (0, 1, np.inf):
        at = np.abs(expected) == special_value
        np.testing.assert_array_equal(out[at], expected[at])


@pytest.mark.parametrize("cpu", ["host", "x86-64"])
def test_pow_error(cpu: str) -> None:
    """Bases of any size with powers that keep the result in range, and bases near one with large powers."""
    target = TARGET if cpu == "host" else Target.parse(f"llvm -cpu={cpu} -threads=1")
    rng = np.random.default_rng(0)
    x = np.exp2(rng.uniform(-140, 127, 200_000)).astype(np.float32)
    y = (rng.uniform(-148, 128, x.size) / np.log2(x.astype(np.float64))).astype(np.float32)
    near = (1 + rng.uniform(-1e-3, 1e-3, x.size)).astype(np.float32)
    x, y = np.concatenate([x, near]), np.concatenate([y, rng.uniform(-8e4, 8e4, x.size).astype(np.float32)])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        rounded = exact.astype(np.float32)
    known = np.isfinite(rounded) & (rounded > 0)
    out = evaluate("pow", x, y, target=target)
    ulp = np.abs(out[known] - exact[known]) / np.spacing(rounded[known]).astype(np.float64)
    assert ulp.max() <= 0.51
    np.testing.assert_array_equal(out[~known], rounded[~known])


def test_pow_of_float64() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.1, 9, 101), rng.uniform(-9, 9, 101)
    np.testing.assert_allclose(evaluate("pow", x, y), x**y, rtol=1e-14)
