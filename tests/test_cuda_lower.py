"""GPU programs compute what the tensor expressions say, whatever the tiles, and threads do not race."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from cuda_helpers import CUDA, check, expected_of, random_rows, run_lowered
from op_cases import CASES, single
from programs import (
    PROGRAMS,
    batch_matmul,
    conv,
    depthwise,
    layer_norm,
    matmul,
    max_pool,
    random_inputs,
    row_sum,
    softmax,
)
from test_lower import differences, dilated, normalised_matmul

from seer.codegen.gpu import lower_gpu
from seer.dtypes import convert
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.ir.dag import ComputeDAG
from seer.ir.expr import cast
from seer.ir.tensor import SUM, compute, placeholder, reduce_axis
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

MORE: dict[str, ComputeDAG] = {
    "normalised_matmul": normalised_matmul(3, 17, 5),
    "dilated": dilated(7, 5),
    "differences": differences(7, 5),
    "matmul_aligned": matmul(16, 32, 16),
    "matmul_prime": matmul(19, 23, 29),
    "batch_matmul_aligned": batch_matmul(2, 8, 8, 8),
    "conv_aligned": conv(4, 4, 4, 8, 3),
    "conv_channels": conv(5, 5, 1, 4, 3),
    "depthwise_aligned": depthwise(6, 6, 16),
    "softmax_long": softmax(2, 523),
    "layer_norm_aligned": layer_norm(4, 64),
    "max_pool_aligned": max_pool(8, 8, 8),
    "row_sum_long": row_sum(2, 1031),
}


@pytest.mark.parametrize("name", [*PROGRAMS, *MORE])
def test_every_sketch(name: str) -> None:
    dag = {**PROGRAMS, **MORE}[name]
    seed = zlib.crc32(name.encode())
    inputs = random_inputs(dag, seed)
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA):
        check(sketch, default_row(sketch, CUDA), inputs, expected)
        for row in random_rows(sketch, 1 if "conv" in name else 2, seed):
            check(sketch, row, inputs, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROGRAMS, *MORE])
def test_many_rows_of_every_sketch(name: str) -> None:
    dag = {**PROGRAMS, **MORE}[name]
    inputs = random_inputs(dag)
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA):
        for row in random_rows(sketch, 40, 1):
            check(sketch, row, inputs, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}")
def test_every_operator(case) -> None:  # type: ignore[no-untyped-def]
    graph = single(*case)
    for sub in partition(optimize(graph)).subgraphs:
        inputs = random_inputs(sub.dag)
        expected = expected_of(sub.dag, inputs)
        for sketch in generate_sketches(sub.dag, CUDA)[1:]:
            check(sketch, default_row(sketch, CUDA), inputs, expected)
            for row in random_rows(sketch, 1, 0):
                check(sketch, row, inputs, expected)


def test_nan_and_infinity_pass_through() -> None:
    dag = PROGRAMS["matmul"]
    inputs = random_inputs(dag)
    inputs["a"][0, 0], inputs["a"][5, 3], inputs["b"][2, 7] = np.nan, np.inf, -np.inf
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA):
        for row in random_rows(sketch, 6, 2):
            check(sketch, row, inputs, expected)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_16_bit_weights_are_widened_where_they_are_read(stored: str) -> None:
    x = placeholder((5, 24), name="x")
    w = placeholder((24, 16), stored, name="w", constant=True)
    wide = compute((24, 16), lambda i, j: cast(w[i, j], "float32"), "wide")
    r = reduce_axis(24, "k")
    c = compute(
        (5, 16), lambda i, j: x[i, r.var] * wide[r.var, j], "c", reduce=[r], reducer=SUM, tag="matmul"
    )
    dag = ComputeDAG(compute((5, 16), lambda i, j: cast(c[i, j], stored), "y"), [x, w])
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((5, 24)).astype(np.float32),
        "w": convert(rng.standard_normal((24, 16)), "float32", stored),
    }
    expected = convert(expected_of(dag, inputs), stored, "float32")
    for sketch in generate_sketches(dag, CUDA):
        for row in [default_row(sketch, CUDA), *random_rows(sketch, 2, 0)]:
            found = run_lowered(lower_gpu(sketch, row, CUDA), inputs)
            np.testing.assert_allclose(convert(found, stored, "float32"), expected, rtol=2**-7)
