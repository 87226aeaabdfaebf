"""Running GPU loop programs against the tensor expressions."""

from __future__ import annotations

import numpy as np

from seer.codegen.gpu import LoweredKernels, lower_gpu
from seer.dtypes import is_float, numpy_dtype
from seer.ir.dag import ComputeDAG
from seer.ir.interp import eval_dag
from seer.ir.simt import run_gpu_program
from seer.ir.sketch import Sketch
from seer.ir.verify import verify_program
from seer.runtime.target import Target
from seer.search.legal import legal
from seer.search.space import space_of

CUDA = Target.parse("cuda")


def run_lowered(lowered: LoweredKernels, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The output of all kernels, one after another; scratch starts as NaN."""
    arrays = dict(inputs)
    for b in lowered.scratch:
        arrays[b.name] = np.full(b.shape, np.nan if is_float(b.dtype) else 77, numpy_dtype(b.dtype))
    out = lowered.args[-1]
    arrays[out.name] = np.zeros(out.shape, numpy_dtype(out.dtype))
    for program in lowered.programs:
        verify_program(program)
        run_gpu_program(program, arrays)
    return arrays[out.name]


def check(sketch: Sketch, row: np.ndarray, inputs: dict[str, np.ndarray], expected: np.ndarray) -> None:
    """One candidate computes what is expected, to 1e-5 of the largest element."""
    found = run_lowered(lower_gpu(sketch, row, CUDA), inputs)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if expected.size:
        scale = max(1e-3, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
        worst = f"{sketch.key} {sketch.values(row)}"
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=worst)


def random_rows(sketch: Sketch, count: int, seed: int, target: Target = CUDA) -> np.ndarray:
    """Legal rows as the search draws them."""
    rows = space_of(sketch, target).sample(4 * count, np.random.default_rng(seed))
    return rows[legal(sketch, rows, target)][:count]


def expected_of(dag: ComputeDAG, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return eval_dag(dag, inputs)
