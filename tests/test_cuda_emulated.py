"""The generated CUDA C, compiled for the CPU and run with every access watched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_helpers import CUDA, expected_of, random_rows
from programs import PROGRAMS, batch_matmul, conv, layer_norm, matmul, random_inputs, softmax

from seer.codegen.cuda import CudaModule, generate
from seer.dtypes import numpy_dtype
from seer.errors import TargetError
from seer.ir.dag import ComputeDAG
from seer.runtime.emulate import compiler, emulate
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

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


def run(module: CudaModule, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a module, on the emulator."""
    arrays: dict[str, Any] = dict(inputs)
    for s in module.scratch:
        arrays[s.name] = np.full(s.size_bytes // 4, np.nan, np.float32)
    out = module.args[-1]
    arrays[out.name] = np.zeros(out.shape, numpy_dtype(out.dtype))
    for x in module.launches:
        emulate(module.source, x.name, (x.blocks,), (x.threads,), [arrays[a] for a in x.args], order="random")
    found: np.ndarray = arrays[out.name]
    return found


def check(dag: ComputeDAG, rows: int) -> None:
    inputs = random_inputs(dag)
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA):
        for row in [default_row(sketch, CUDA), *random_rows(sketch, rows, 7)]:
            found = run(generate(sketch, row, CUDA), inputs)
            scale = float(np.abs(expected).max(initial=1e-3))
            message = f"{sketch.key} {sketch.values(row)}"
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=message)


@pytest.mark.parametrize("name", DAGS)
def test_every_sketch(name: str) -> None:
    check(DAGS[name], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, d in PROGRAMS.items() if 0 not in d.output.shape])
def test_programs(name: str) -> None:
    check(PROGRAMS[name], 3)


def test_nan_passes_through_relu_and_maxima() -> None:
    dag = PROGRAMS["max_pool"]
    inputs = random_inputs(dag)
    inputs["x"][0, 3, 4, 1] = np.nan
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA)[1:]:
        found = run(generate(sketch, default_row(sketch, CUDA), CUDA), inputs)
        np.testing.assert_array_equal(found, expected)
