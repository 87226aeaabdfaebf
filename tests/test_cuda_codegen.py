"""CUDA C: the text of a small kernel, and what ptxas makes of larger ones."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cuda_helpers import CUDA
from programs import conv, gather, gelu, layer_norm, matmul, softmax

from seer.codegen.cuda import CudaModule, generate
from seer.codegen.cuda.prelude import prelude
from seer.ir.dag import ComputeDAG
from seer.ir.tensor import compute, placeholder
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches


def row_of(sketch, **values: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """A row of ones but for some parameters, dots in their names written as underscores."""
    names = {p.name.replace(".", "_"): p.name for p in sketch.params}
    row = {p.name: p.choices[0] if p.choices else 1 for p in sketch.params}
    return sketch.row({**row, **{names[k]: v for k, v in values.items()}})


def kernel_text(module: CudaModule) -> str:
    return module.source[module.source.index('extern "C" __global__') :].strip()


def test_the_text_of_a_small_matmul() -> None:
    sketch = generate_sketches(matmul(13, 32, 6, relu=False), CUDA)[1]
    row = row_of(sketch, c_i0_2=4, c_i0_4=2, c_i1_2=2, c_i1_4=4, c_k_1=2, c_k_2=2, c_unroll=64)
    text = kernel_text(generate(sketch, row, CUDA, "mm"))
    assert text == (Path(__file__).parent / "golden" / "cuda_matmul.cu").read_text().strip()


def test_target_names() -> None:
    assert str(Target.parse("cuda")) == "cuda -arch=sm_80"
    assert Target.parse("cuda -arch=sm_90").gpu.capability == 90  # type: ignore[union-attr]
    assert Target.parse(str(Target.parse("cuda -arch=sm_90"))) == Target.parse("cuda -arch=sm_90")
    assert not CUDA.is_host


def test_names_that_c_keeps_for_itself() -> None:
    x = placeholder((8,), name="float")
    dag = ComputeDAG(compute((8,), lambda i: x[i] + 1.0, "int"), [x])
    sketch = generate_sketches(dag, CUDA)[1]
    module = generate(sketch, default_row(sketch, CUDA), CUDA)
    assert "float_[" in module.source and "int_[" in module.source
    assert module.launches[0].args == ("float", "int")


def test_large_arrays_are_indexed_by_64_bits() -> None:
    x = placeholder((3, 2**30), name="x")
    dag = ComputeDAG(compute((3, 2**30), lambda i, j: x[i, j] * 2.0, "y"), [x])
    sketch = generate_sketches(dag, CUDA)[1]
    text = kernel_text(generate(sketch, default_row(sketch, CUDA), CUDA))
    assert "long long n_" in text and "(long long)block_" in text


def test_vectors_where_they_are_aligned() -> None:
    def flat(*shape: int) -> str:
        sketch = generate_sketches(gelu(*shape), CUDA)[1]
        return kernel_text(generate(sketch, row_of(sketch, y_threads=64, y_items=4), CUDA))

    assert "seer_load4" in flat(3, 64) and "seer_store4" in flat(3, 64)
    assert "seer_load4" not in flat(3, 37) and "seer_store4" not in flat(3, 37)


def test_how_far_compilers_may_unroll() -> None:
    """Short bodies as they like, long ones not at all, of many copies a few at a time."""
    sketch = generate_sketches(matmul(64, 64, 64, relu=False), CUDA)[1]

    def pragmas(loops: str, **values: int) -> list[tuple[str, str]]:
        text = kernel_text(generate(sketch, row_of(sketch, **values), CUDA))
        return re.findall(rf"(\w.*)\n\s*for \(int {loops}_\d+ = 0; \w+ < (\d+);", text)

    tile = {"c_i0_3": 4, "c_i1_4": 4, "c_k_1": 32}
    half = {**tile, "c_i0_3": 2}
    assert pragmas("c", **half, c_i0_2=16) == [("pragma unroll", "16"), ("pragma unroll", "2")]
    assert pragmas("c", **tile, c_i0_2=16) == [("pragma unroll 4", "32"), ("pragma unroll", "2")]
    assert pragmas("k1", **tile) == [("pragma unroll 1", "32")]
    assert pragmas("k1", **tile, c_unroll=512) == [("pragma unroll", "32")]
    assert pragmas("k1", **{**tile, "c_i1_4": 2}) == [("__syncthreads();", "32")]


KERNELS = {
    "matmul": (
        matmul(512, 512, 512),
        {"c_i0_2": 16, "c_i0_4": 4, "c_i1_1": 2, "c_i1_2": 16, "c_i1_4": 4, "c_k_1": 4, "c_k_2": 4},
    ),
    "matmul_prime": (
        matmul(509, 509, 503),
        {"c_i0_2": 16, "c_i0_4": 4, "c_i1_1": 2, "c_i1_2": 16, "c_i1_4": 4, "c_k_1": 16},
    ),
    "conv": (
        conv(56, 56, 64, 64, 3),
        {"y_i1_2": 4, "y_i2_2": 8, "y_i2_4": 2, "y_i3_2": 8, "y_i3_4": 4, "y_rc_1": 8, "y_rw_1": 3},
    ),
    "softmax": (softmax(1536, 128), {"y_threads": 64, "y_rows": 2, "y_items": 2}),
    "layer_norm": (layer_norm(128, 768), {"out_threads": 256, "out_items": 4}),
    "gelu": (gelu(128, 3072), {"y_threads": 256, "y_items": 4}),
    "gather": (gather(70, 50, 1100), {"y_threads": 256}),
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_ptxas_keeps_tiles_in_registers(tmp_path: Path) -> None:
    source = prelude(has_narrow=True, matrices=("float32", "float16", "bfloat16"))
    for name, (dag, values) in KERNELS.items():
        sketch = generate_sketches(dag, CUDA)[1]
        unroll = {f"{n.unroll.replace('.', '_')}": 512 for n in sketch.nests if n.unroll}
        source += kernel_text(generate(sketch, row_of(sketch, **values, **unroll), CUDA, name)) + "\n"
    path = tmp_path / "kernels.cu"
    path.write_text(source)
    command = ["nvcc", "-cubin", "-arch=sm_80", "-Xptxas", "-v", "-o", str(tmp_path / "out"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)
    assert len(frames) >= len(KERNELS), done.stderr
    assert all(f == ("0", "0") for f in frames), done.stderr
