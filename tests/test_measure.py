"""Measuring: right candidates get a time, bad ones a reason, and nothing ends the run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from programs import matmul, softmax

from seer.codegen.artifact import ArgSpec, Artifact
from seer.codegen.build import compile_module
from seer.runtime.measure import LocalMeasurer
from seer.runtime.pool import BuildPool, Runner
from seer.runtime.target import Target
from seer.runtime.trial import CheckError, GuardedArray, compare
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

TARGET = Target.parse("llvm -threads=2")
ONE = TARGET.with_threads(1)


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer(TARGET) as m:
        yield m


def test_candidates_are_timed(measurer: LocalMeasurer) -> None:
    for dag in (matmul(37, 64, 29), softmax(7, 50)):
        sketches = generate_sketches(dag, TARGET)
        candidates = [(s, default_row(s, TARGET)) for s in sketches]
        results = list(measurer.measure(sketches[0], candidates, math.inf))
        assert [r.error for r in results] == [""] * len(sketches), results
        assert all(0 < r.seconds < 1 and r.build_s > 0 and r.run_s > 0 for r in results)


def handmade(body: str) -> Artifact:
    """A kernel y[16] = f(x[16]) in LLVM's language."""
    text = f"define void @kernel(ptr %x, ptr %y, ptr %scratch, i32 %threads) {{\n{body}\n}}"
    args = (ArgSpec("x", (16,), "float32"), ArgSpec("y", (16,), "float32"))
    return Artifact("kernel", str(TARGET), args, compile_module(text, TARGET), 0, 0)


COPY = "%v = load <16 x float>, ptr %x, align 4\nstore <16 x float> %v, ptr %y, align 4"
BAD = {
    "wrong": f"{COPY}\n%p = getelementptr float, ptr %y, i64 5\nstore float 7.0, ptr %p\nret void",
    "guard": f"{COPY}\n%p = getelementptr float, ptr %y, i64 16\nstore float 7.0, ptr %p\nret void",
    "crash": f"{COPY}\nstore volatile float 7.0, ptr inttoptr (i64 64 to ptr)\nret void",
    "timeout": f"{COPY}\nbr label %again\nagain:\nstore volatile float 7.0, ptr %y\nbr label %again",
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_kernels_fail_with_their_reason(reason: str) -> None:
    naive = handmade(f"{COPY}\nret void")
    runner = Runner()
    try:
        times, error, message = runner.run(naive, 0, handmade(BAD[reason]), ONE, math.inf, 0.5)
        assert (times, error) == ((), reason)
        assert message
        again, error, _ = runner.run(naive, 0, naive, ONE, math.inf, 5.0)
        assert error == ""
        assert again[0] > 0
    finally:
        runner.close()


def test_a_write_into_an_input_is_found() -> None:
    naive = handmade(f"{COPY}\nret void")
    runner = Runner()
    try:
        _, error, message = runner.run(
            naive, 0, handmade(f"{COPY}\nstore float 7.0, ptr %x\nret void"), ONE, math.inf, 5.0
        )
    finally:
        runner.close()
    assert error == "guard"
    assert "input x" in message


def test_a_builder_that_is_ended_is_replaced() -> None:
    dag = matmul(8, 16, 4)
    sketch = generate_sketches(dag, TARGET)[1]
    pool = BuildPool(TARGET, size=1)
    try:
        row = default_row(sketch, TARGET)
        assert pool.build([(sketch, row)])[0][1] == ""
        pool._workers[0]._process.kill()  # type: ignore[union-attr]
        results = pool.build([(sketch, row), (sketch, row)])
        assert [r[1] for r in results][-1] == ""
        assert pool.build([(sketch, row)])[0][1] == ""
    finally:
        pool.close()


def test_compare_finds_single_elements() -> None:
    expected = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    compare(expected * np.float32(1 + 1e-6), expected)
    off = expected.copy()
    off[417] += 0.01
    with pytest.raises(CheckError, match=r"1 of 1000 elements are wrong, first \[417\]"):
        compare(off, expected)
    off[417] = np.nan
    with pytest.raises(CheckError, match="nan"):
        compare(off, expected)
    both = expected.copy()
    both[3] = np.nan
    compare(both, both)
    with pytest.raises(CheckError):
        compare(expected, both)


def test_guards_begin_right_beside_the_array() -> None:
    a = GuardedArray((5,), "float32")
    assert a.address % 64 == 0
    assert a.is_intact()
    a._raw[a._end] = 0
    assert not a.is_intact()
