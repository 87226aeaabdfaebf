"""Faults planted in generated CUDA C: the emulation, or the comparison, finds each of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_batch import run
from cuda_helpers import CUDA, expected_of
from programs import layer_norm, matmul, random_inputs, softmax
from test_cuda_codegen import row_of

from seer.codegen.cuda import CudaModule, generate
from seer.errors import EmulationError
from seer.ir.dag import ComputeDAG
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

TILES = {"c_i0_2": 4, "c_i0_4": 2, "c_i1_2": 4, "c_i1_4": 2, "c_k_1": 4}
DAGS = {"matmul": matmul(19, 23, 29), "softmax": softmax(5, 70), "layer_norm": layer_norm(5, 70)}

# Where, what is replaced, by what, which occurrences (all, if none is named), and who notices.
FAULTS: dict[str, tuple[str, str, str, int | None, str]] = {
    "no barrier before the copies": ("matmul", r"__syncthreads\(\);", "", 0, "race"),
    "no barrier after the copies": ("matmul", r"__syncthreads\(\);", "", 1, "race|unwritten read"),
    "no barrier between warps of a maximum": ("softmax", r"__syncthreads\(\);", "", 0, "race|unwritten read"),
    "no barrier between warps of a sum": ("softmax", r"__syncthreads\(\);", "", 1, "race|unwritten read"),
    "no barrier between warps of a mean": ("layer_norm", r"__syncthreads\(\);", "", 0, "race|unwritten read"),
    "a barrier that not all reach": (
        "matmul",
        r"__syncthreads\(\);",
        "if (threadIdx.x < 7) __syncthreads();",
        0,
        "barrier divergence",
    ),
    "rows that are read are one too many": (
        "matmul",
        r"< 19 \?|< 19 &&",
        r"< 20 &&",
        0,
        "out of bounds|wrong",
    ),
    "rows that are stored are one too many": ("matmul", r"< 19 &&", r"<= 19 &&", 1, "out of bounds|race"),
    "columns that are stored are one too many": (
        "matmul",
        r"< 23\) \{",
        r"<= 23) {",
        0,
        "race|out of bounds",
    ),
    "columns that are stored are one too few": ("matmul", r"< 23\) \{", r"< 22) {", 0, "wrong"),
    "the reduction reads one too many": ("matmul", r"< 29 \?", r"<= 29 ?", 0, "wrong|out of bounds"),
    "elements of a row are one too many": (
        "softmax",
        r"thread_\d+ < 70",
        "threadIdx.x <= 70",
        None,
        "race|out|wrong",
    ),
    "a row is read at the stride of another": ("matmul", r"a0_15 \* 29", "a0_15 * 23", 0, "wrong"),
    "strides of a tile are swapped": (
        "matmul",
        r"a_block_shared1\[a0_15 \* 4 \+ a1_16\]",
        "a_block_shared1[a0_15 + a1_16 * 4]",
        0,
        "out of bounds|race|wrong",
    ),
    "an output is stored at another stride": ("matmul", r"i04_27 \* 23", "i04_27 * 22", 0, "race|wrong|out"),
    "a tile of a is too small": (
        "matmul",
        r"a_block_shared1\[32\]",
        "a_block_shared1[31]",
        0,
        "out of bounds",
    ),
    "a tile of b is too small": (
        "matmul",
        r"b_block_shared2\[32\]",
        "b_block_shared2[16]",
        0,
        "out of bounds",
    ),
    "the warps' results do not fit": ("softmax", r"(top\w*shared\d+)\[8\]", r"\1[4]", 0, "out of bounds"),
    "accumulators are not cleared": ("matmul", r"(c_register3\S+) = 0\.0f;", "", 0, "wrong|unwritten"),
    "a shuffle reaches not far enough": (
        "softmax",
        r"(seer_shuffle_xor\(total\S+), 16\)",
        r"\1, 8)",
        0,
        "wrong",
    ),
}


def module_of(name: str) -> CudaModule:
    sketch = generate_sketches(DAGS[name], CUDA)[1]
    row = row_of(sketch, **TILES) if name == "matmul" else default_row(sketch, CUDA)
    return generate(sketch, row, CUDA)


def planted(source: str, pattern: str, replacement: str, which: int | None) -> str:
    """The source with one occurrence of the pattern in the kernel replaced, or all."""
    start = source.index('extern "C" __global__')
    found = [m for m in re.finditer(pattern, source) if m.start() > start]
    assert found, f"{pattern} is not in\n{source[start:]}"
    for m in reversed(found if which is None else found[which : which + 1]):
        source = source[: m.start()] + m.expand(replacement) + source[m.end() :]
    return source


def verdict(module: CudaModule, dag: ComputeDAG) -> str:
    """ "right", "wrong", or the fault that the emulation reports."""
    inputs = random_inputs(dag)
    try:
        found = run(module, inputs)
    except EmulationError as e:
        return e.fault
    return "right" if np.allclose(found, expected_of(dag, inputs), rtol=1e-5, atol=1e-5) else "wrong"


@pytest.mark.parametrize("name", DAGS)
def test_without_a_fault(name: str) -> None:
    assert verdict(module_of(name), DAGS[name]) == "right"


@pytest.mark.parametrize("fault", FAULTS)
def test_is_found(fault: str) -> None:
    name, pattern, replacement, which, expected = FAULTS[fault]
    module = module_of(name)
    values = {f: getattr(module, f) for f in ("name", "target", "launches", "args", "scratch")}
    broken = CudaModule(source=planted(module.source, pattern, replacement, which), **values)
    assert re.match(expected, verdict(broken, DAGS[name])), verdict(broken, DAGS[name])
