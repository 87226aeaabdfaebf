"""Tensor cores on what is stored in 16 bits: lowered, emulated and compiled; sums are of float32."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_helpers import CUDA, check, expected_of, random_rows
from test_cuda_codegen import kernel_text, row_of
from test_cuda_emulated import run

import seer
from seer.codegen.cuda import generate
from seer.dtypes import NARROW, convert, is_narrow
from seer.errors import TargetError
from seer.graph.narrow import narrow
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Expr, cast, maximum
from seer.ir.sketch import Sketch
from seer.ir.tensor import SUM, Tensor, compute, placeholder, reduce_axis
from seer.runtime.cuda.build import check_registers
from seer.runtime.emulate import compiler
from seer.runtime.nvrtc import compile_cubin, compiler_name
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.gpu_view import gpu_nests
from seer.search.rules import generate_sketches


def _wide(t: Tensor, *at: object) -> Expr:
    read: Expr = t[at]  # type: ignore[index]
    return cast(read, "float32") if is_narrow(t.dtype) else read


def product(left: str, right: str, m: int, n: int, k: int, transposed: bool = False) -> ComputeDAG:
    """relu(a @ b), each stored as it is said; b is (n, k) if transposed."""
    a = placeholder((m, k), left, name="a")
    b = placeholder((n, k) if transposed else (k, n), right, name="b")
    r = reduce_axis(k, "k")

    def term(i: Expr, j: Expr) -> Expr:
        return _wide(a, i, r.var) * (_wide(b, j, r.var) if transposed else _wide(b, r.var, j))

    c = compute((m, n), term, "c", reduce=[r], reducer=SUM, tag="matmul")
    return ComputeDAG(compute((m, n), lambda i, j: maximum(c[i, j], 0.0), "relu"), [a, b])


def convolution(left: str, right: str, size: int, channels: int, filters: int) -> ComputeDAG:
    """3x3, channels last, no padding."""
    x = placeholder((1, size, size, channels), left, name="x")
    w = placeholder((3, 3, channels, filters), right, name="w")
    rh, rw, rc = reduce_axis(3, "rh"), reduce_axis(3, "rw"), reduce_axis(channels, "rc")
    out = compute(
        (1, size - 2, size - 2, filters),
        lambda b, y, z, f: _wide(x, b, y + rh.var, z + rw.var, rc.var) * _wide(w, rh.var, rw.var, rc.var, f),
        "conv",
        reduce=[rh, rw, rc],
        reducer=SUM,
        tag="conv2d",
    )
    return ComputeDAG(out, [x, w])


PAIRS = [(t, t) for t in NARROW] + [p for t in NARROW for p in (("float32", t), (t, "float32"))]


def dags(left: str, right: str) -> Iterator[ComputeDAG]:
    yield product(left, right, 19, 23, 29)
    yield product(left, right, 37, 41, 53, transposed=True)
    yield product(left, right, 32, 64, 48)
    yield product(left, right, 16, 24, 64, transposed=True)
    yield convolution(left, right, 5, 13, 11)


def inputs_of(dag: ComputeDAG) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {t.name: convert(rng.standard_normal(t.shape), "float64", t.dtype) for t in dag.inputs}


def matrices(dag: ComputeDAG, target: Target = CUDA) -> Sketch:
    (found,) = [s for s in generate_sketches(dag, target) if "mma" in s.key]
    return found


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_programs_compute_what_is_meant(left: str, right: str) -> None:
    for dag in dags(left, right):
        inputs = inputs_of(dag)
        expected = expected_of(dag, inputs)
        sketch = matrices(dag)
        for row in [default_row(sketch, CUDA), *random_rows(sketch, 1, 5)]:
            check(sketch, row, inputs, expected)


@pytest.mark.parametrize("stored", NARROW)
def test_every_sketch(stored: str) -> None:
    dag = product(stored, stored, 16, 16, 24, transposed=True)
    inputs = inputs_of(dag)
    expected = expected_of(dag, inputs)
    for sketch in generate_sketches(dag, CUDA)[1:]:
        for row in [default_row(sketch, CUDA), *random_rows(sketch, 1, 5)]:
            check(sketch, row, inputs, expected)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_emulated(left: str, right: str) -> None:
    """Sums of what is stored, in float32: the result is as good as one of float32."""
    try:
        compiler.compiler()
    except TargetError as e:
        pytest.skip(str(e))
    for dag in dags(left, right):
        inputs = inputs_of(dag)
        expected = expected_of(dag, inputs)
        sketch = matrices(dag)
        for row in [default_row(sketch, CUDA), *random_rows(sketch, 1, 9)]:
            found = run(generate(sketch, row, CUDA), inputs)
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert error < 2e-5, (sketch.values(row), error)


@pytest.mark.parametrize("stored", NARROW)
def test_large_numbers_meet_weights_of_16_bits(stored: str) -> None:
    """A float32 beyond the range of float16 is multiplied by one all the same."""
    dag = product("float32", stored, 17, 19, 23)
    inputs = inputs_of(dag)
    inputs["a"] *= np.float32(1e6)
    sketch = matrices(dag)
    found = run(generate(sketch, default_row(sketch, CUDA), CUDA), inputs)
    expected = expected_of(dag, inputs)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * expected.max())


@pytest.mark.skipif(not compiler_name(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_compiled(left: str, right: str, arch: str) -> None:
    target = Target.parse(f"cuda -arch={arch}")
    for dag in (product(left, right, 197, 367, 523), product(left, right, 256, 512, 512)):
        sketch = matrices(dag, target)
        for row in [default_row(sketch, target), *random_rows(sketch, 1, 3)]:
            module = generate(sketch, row, target)
            cubin = compile_cubin(module.source, target.cpu)
            check_registers(module, cubin)
            usage = cubin.usage(module.launches[0].name)
            assert usage.local_bytes == 0, (sketch.values(row), usage)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_the_formulas_are_what_is_lowered(left: str, right: str) -> None:
    assert CUDA.gpu is not None
    for dag in dags(left, right):
        sketch = matrices(dag)
        for row in [default_row(sketch, CUDA), *random_rows(sketch, 4, 3)]:
            (nest,) = gpu_nests(sketch, row[None], CUDA.gpu)
            (launch,) = generate(sketch, row, CUDA).launches
            assert (nest.blocks[0], nest.threads[0]) == (launch.blocks, launch.threads)
            assert nest.shared_bytes[0] == launch.shared_bytes


@pytest.mark.parametrize("stored", NARROW)
def test_a_model(stored: str) -> None:
    rng = np.random.default_rng(2)
    graph = seer.Graph("net")
    x = graph.input((61, 67), name="x")
    first, second = (rng.standard_normal(s).astype(np.float32) for s in ((67, 131), (131, 53)))
    graph.output(x.dense(first).relu().dense(second))
    for part in partition(narrow(optimize(graph), stored)).subgraphs:
        assert matrices(part.dag).dag.inputs[0].dtype == stored
    value = rng.standard_normal((61, 67)).astype(np.float32)
    expected = np.maximum(value @ first, 0) @ second
    found = seer.compile(graph, "cuda -device=emulated", dtype=stored)(value)
    assert np.linalg.norm(found - expected) < 1e-2 * np.linalg.norm(expected)


def test_older_gpus_and_exact_tasks_do_without() -> None:
    dag = product("bfloat16", "bfloat16", 64, 64, 64)
    older = Target.parse("cuda -arch=sm_75")
    assert not any("mma" in s.key for s in generate_sketches(dag, older))
    assert not any("mma" in s.key for s in generate_sketches(dag, CUDA, exact=True))
    mixed = product("bfloat16", "float16", 64, 64, 64)
    assert not any("mma" in s.key for s in generate_sketches(mixed, CUDA))


TILE = {"c_i0_1": 64, "c_i1_1": 64, "c_k_1": 32, "c_stages": 3}


def test_16_bits_are_copied_and_loaded_in_vectors() -> None:
    """Copies ahead move 16 bytes, and fragments that lie along the terms are loaded in pairs."""
    dag = product("float16", "float16", 128, 128, 256, transposed=True)
    sketch = matrices(dag)
    kernel = kernel_text(generate(sketch, row_of(sketch, **TILE), CUDA))
    assert "seer_cp_async_16(" in kernel and "seer_load2_16(" in kernel
    assert "seer_cp_async_8(" not in kernel and "seer_mma_half(" in kernel


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_pairs_stay_in_one_register(tmp_path: Path) -> None:
    """What is loaded as a pair is multiplied as a pair: nothing takes it apart in between."""
    dag = product("bfloat16", "bfloat16", 128, 128, 256, transposed=True)
    sketch = matrices(dag)
    path = tmp_path / "kernel.cu"
    path.write_text(generate(sketch, row_of(sketch, **TILE), CUDA).source)
    command = ["nvcc", "-ptx", "-arch=sm_80", "-o", str(tmp_path / "out.ptx"), str(path)]
    subprocess.run(command, check=True, capture_output=True)
    text = (tmp_path / "out.ptx").read_text()
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    assert "ld.shared.u16" not in text and "ld.shared.b16" not in text
