"""The generated CUDA C, compiled for the CPU and run with every access watched."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_batch import candidates_of, faults, run
from cuda_helpers import CUDA, expected_of
from programs import PROGRAMS, batch_matmul, conv, layer_norm, matmul, random_inputs, softmax

from seer.codegen.cuda import generate
from seer.errors import TargetError
from seer.ir.dag import ComputeDAG
from seer.ir.expr import all_of, as_expr, call, cast, maximum, select
from seer.ir.tensor import MIN, SUM, compute, placeholder, reduce_axis
from seer.runtime.emulate import compiler
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches
from seer.search.task import SearchTask

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)

DAGS: dict[str, ComputeDAG] = {
    "matmul": matmul(19, 23, 29),
    "batch_matmul": batch_matmul(2, 17, 19, 11),
    "conv": conv(6, 5, 8, 16, 3),
    "softmax": softmax(5, 64),
    "layer_norm": layer_norm(3, 41),
}


def faults_of(dag: ComputeDAG, rows: int) -> list[str]:
    """Of the default row and random ones of every sketch."""
    task = SearchTask(dag, CUDA)
    return faults(task, [(task.sketches[0], default_row(task.sketches[0], CUDA)), *candidates_of(task, rows)])


@pytest.mark.parametrize("name", DAGS)
def test_every_sketch(name: str) -> None:
    assert not faults_of(DAGS[name], 0)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_one_side_of_a_choice_is_not_read_on_the_other(stored: str) -> None:
    """Vectors of what is computed from on one side are loaded where that side is taken."""
    dag = PROGRAMS["shifted"]
    x = placeholder((1, 6, 6, 16), dtype=stored, name="x")
    window = [reduce_axis(3, name) for name in "hw"]

    def padded(n, h, w, c):  # type: ignore[no-untyped-def]
        inside = all_of(as_expr(1) <= h, h < 7, as_expr(1) <= w, w < 7)
        return select(inside, call("exp", cast(x[n, h - 1, w - 1, c], "float32")), 0.0)

    pad = compute((1, 8, 8, 16), padded, "pad")
    sums = compute(
        (1, 6, 6, 16),
        lambda n, h, w, c: pad[n, h + window[0].var, w + window[1].var, c] * 0.5,
        "y",
        reduce=window,
        reducer=SUM,
    )
    for d in [ComputeDAG(sums, [x]), *([dag] if stored == "float32" else [])]:
        assert not faults_of(d, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, d in PROGRAMS.items() if 0 not in d.output.shape])
def test_programs(name: str) -> None:
    assert not faults_of(PROGRAMS[name], 20)


def test_nan_passes_through_relu_and_maxima() -> None:
    dag = PROGRAMS["max_pool"]
    inputs = random_inputs(dag)
    inputs["x"][0, 3, 4, 1] = np.nan
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA)[1:]:
        found = run(generate(sketch, default_row(sketch, CUDA), CUDA), inputs)
        np.testing.assert_array_equal(found, expected)


def test_products_of_tensor_cores_are_as_good_as_float32() -> None:
    dag = matmul(16, 16, 1024, relu=False)
    inputs = random_inputs(dag)
    a, b = (inputs[k].astype(np.float64) for k in "ab")
    errors = {}
    for sketch in generate_sketches(dag, CUDA):
        found = run(generate(sketch, default_row(sketch, CUDA), CUDA), inputs)
        errors[sketch.key] = np.abs(found - a @ b).max() / (np.abs(a) @ np.abs(b)).max()
    assert errors["mma(c)"] < 2 * errors["naive"] < 1e-6


X, Y = (placeholder((3, 8), name=n) for n in "xy")
WHOLE, D = placeholder((3, 8), "int64", "i"), placeholder((3, 8), "float64", "d")
J, B = placeholder((3, 8), "int32", "j"), placeholder((3, 8), "bool", "b")
R = reduce_axis(8, "r")
TYPED: dict[str, ComputeDAG] = {
    "bool out": ComputeDAG(compute((3, 8), lambda p, q: X[p, q] < Y[p, q], "o"), [X, Y]),
    "bool in": ComputeDAG(
        compute((3, 8), lambda p, q: select(B[p, q], X[p, q], cast(p * 9 + q, "float32")), "o"), [B, X]
    ),
    "floor": ComputeDAG(
        compute((3, 8), lambda p, q: (WHOLE[p, q] - 7) // 3 + (WHOLE[p, q] - 9) % 5, "o"), [WHOLE]
    ),
    "int32": ComputeDAG(compute((3, 8), lambda p, q: J[p, q] * 3 - maximum(J[p, q], 2), "o"), [J]),
    "wide": ComputeDAG(compute((3, 8), lambda p, q: p * 2**40 + q, "o"), []),
    "truncated": ComputeDAG(compute((3, 8), lambda p, q: cast(X[p, q] * 3.0, "int32"), "o"), [X]),
    "float64": ComputeDAG(
        compute((3,), lambda p: call("exp", D[p, R.var]) / 3.0, "o", reduce=[R], reducer=SUM), [D]
    ),
    "min": ComputeDAG(compute((3,), lambda p: WHOLE[p, R.var], "o", reduce=[R], reducer=MIN), [WHOLE]),
    "functions": ComputeDAG(
        compute(
            (3, 8),
            lambda p, q: (
                call("pow", call("abs", X[p, q]), 1.5)
                - call("floor", Y[p, q])
                + call("log", call("abs", X[p, q]))
                + call("sqrt", call("abs", Y[p, q]))
                + call("sigmoid", X[p, q])
                + call("erf", Y[p, q])
            ),
            "o",
        ),
        [X, Y],
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_every_type(name: str) -> None:
    dag = TYPED[name]
    rng = np.random.default_rng(0)
    inputs = {}
    for t in dag.inputs:
        whole = rng.integers(-50, 50, t.shape) if t.dtype.startswith("int") else rng.standard_normal(t.shape)
        inputs[t.name] = whole > 0 if t.dtype == "bool" else whole.astype(t.dtype)
    sketch = generate_sketches(dag, CUDA)[1]
    found = run(generate(sketch, default_row(sketch, CUDA), CUDA), inputs)
    np.testing.assert_allclose(
        found.astype(np.float64), expected_of(dag, inputs).astype(np.float64), rtol=1e-6, atol=1e-6
    )
