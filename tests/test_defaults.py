"""Default parameters: which structure an untuned model runs, and how its loops are blocked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import batch_matmul, conv, depthwise, matmul

from seer.ir.dag import ComputeDAG
from seer.runtime.target import Target
from seer.search.defaults import default_number, default_row
from seer.search.rules import generate_sketches

TARGET = Target.parse("llvm -cpu=skylake-avx512 -threads=2")  # 1 MiB of second-level cache


def number(dag: ComputeDAG, target: Target = TARGET) -> int:
    return default_number(generate_sketches(dag, target), target)


def reduction(dag: ComputeDAG) -> str:
    return next(t.name for t in dag.ops if dag.op(t.name).reducer is not None)


def values(dag: ComputeDAG, k: int = 1, target: Target = TARGET) -> dict[str, int]:
    """The default parameters of the reduction in the k-th sketch, by axis and level."""
    sketch, stage = generate_sketches(dag, target)[k], reduction(dag)
    found = sketch.values(default_row(sketch, target))
    return {n.removeprefix(stage + "."): v for n, v in found.items() if n.startswith(stage + ".")}


def chunks(dag: ComputeDAG, target: Target) -> int:
    """Iterations of the parallel loop."""
    found = values(dag, 1, target)
    axes = dag.op(reduction(dag)).axes
    steps = [math.prod(found.get(f"{a.name}.{level}", 1) for level in (1, 2, 3)) for a in axes]
    return math.prod(-(-a.extent // s) for a, s in zip(axes, steps, strict=True))


@pytest.mark.parametrize(
    ("dag", "cut"),
    [
        (matmul(197, 768, 2304, constant=False, relu=False), True),  # 64 columns of it lie in 2304 places
        (matmul(197, 768, 2304, relu=False), False),  # packed ahead: 576 KiB in one piece
        (matmul(197, 768, 8192, relu=False), True),
        (matmul(4, 768, 8192, relu=False), False),  # each panel is read once
        (matmul(512, 512, 512, constant=False, relu=False), False),
        (batch_matmul(12, 128, 128, 64), False),
        (conv(7, 7, 512, 512, 3), True),
        (conv(56, 56, 64, 64, 3), False),
    ],
)
def test_a_reduction_is_cut_where_what_rows_share_outgrows_the_cache(dag: ComputeDAG, cut: bool) -> None:
    key = generate_sketches(dag, TARGET)[number(dag)].key
    assert key.startswith("SSRSRS" if cut else "SSSRRS")


def test_a_block_of_a_cut_reduction_is_a_small_part_of_the_cache() -> None:
    found = values(matmul(197, 768, 8192, relu=False), 2)
    assert 1 < found["k.1"] < 8192
    assert 4 * found["k.1"] * found["i1.3"] <= TARGET.l2_bytes // 8
    assert found["i1.2"] > 1  # panels for each block of rows
    assert found["i0.2"] * found["i0.3"] >= 197 // 2  # rows that use a block while it is there


def test_a_small_cache_is_outgrown_earlier() -> None:
    dag = matmul(200, 768, 2048, constant=False, relu=False)
    small = Target.parse("llvm -cpu=haswell -threads=2")
    assert (number(dag, small), number(dag)) == (2, 1)


def test_rows_of_a_padded_image_are_taken_together() -> None:
    """Neighbouring chunks would each copy what the windows of both see."""
    found = values(conv(14, 14, 256, 256, 3))
    assert found["i1.2"] > 1


def test_windows_of_a_depthwise_convolution_share_rows_in_registers() -> None:
    found = values(depthwise(56, 56, 144))
    assert found["i1.3"] >= 4
    assert found["i2.3"] == 1
    assert found["i3.1"] * found["i3.3"] == 144  # all channels together, as they lie in memory


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.integers(0, 3000),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)
def test_blocks_of_any_matmul_are_balanced(m: int, n: int, k: int, threads: int, constant: bool) -> None:
    dag, target = matmul(m, n, k, constant=constant, relu=False), TARGET.with_threads(threads)
    for sketch in generate_sketches(dag, target)[1:]:
        row = default_row(sketch, target)
        assert (row == sketch.canonical(row[None])[0]).all()
    found = values(dag, 1, target) if len(generate_sketches(dag, target)) > 1 else {}
    if k * m * n > 1 << 22 and "i0.3" in found and "i1.3" in found:
        tiles = -(-m // found["i0.3"]) * -(-n // found["i1.3"])
        assert chunks(dag, target) >= min(threads, tiles)


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "neoverse-n1"])
def test_one_thread_needs_no_chunks(cpu: str) -> None:
    target = Target.parse(f"llvm -cpu={cpu} -threads=1")
    one, four = (chunks(matmul(64, 64, 64, relu=False), t) for t in (target, target.with_threads(4)))
    assert one == 1
    assert four >= 4
    assert np.all(default_row(generate_sketches(depthwise(7, 7, 13), target)[1], target) >= 0)


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_empty_axes_need_no_blocks(sizes: tuple[int, int, int]) -> None:
    for sketch in generate_sketches(matmul(*sizes), TARGET)[1:]:
        row = default_row(sketch, TARGET)
        np.testing.assert_array_equal(row, sketch.canonical(row[None])[0])
