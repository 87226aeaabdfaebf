"""Measuring: right candidates get a time, bad ones a reason, and nothing ends the run."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from programs import matmul, softmax

from seer.codegen.artifact import ArgSpec, Artifact
from seer.codegen.build import compile_module
from seer.errors import MeasureError
from seer.runtime.contest import FINAL_ROUNDS, contest
from seer.runtime.kept import Kept
from seer.runtime.measure import LocalMeasurer
from seer.runtime.pool import BuildPool, Runner, WorkerProcess
from seer.runtime.target import Target
from seer.runtime.trial import CheckError, GuardedArray, compare
from seer.runtime.worker import Worker
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


def test_finalists_are_built_and_checked_once_and_timed_in_turn(
    measurer: LocalMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = generate_sketches(matmul(37, 64, 31), TARGET)
    candidates = [(s, default_row(s, TARGET)) for s in sketches]
    assert len(candidates) >= 3
    built = list(measurer.measure(sketches[0], candidates[:-1], math.inf))
    asked: list[int] = []
    build, requests = measurer._builders.build, Counter[str]()
    monkeypatch.setattr(measurer._builders, "build", lambda c: asked.append(len(c)) or build(c))
    process = measurer._runner._worker
    request = process.request

    def counted(kind: str, *args: object, limit_s: float) -> tuple[object, ...]:
        requests[kind] += 1
        return request(kind, *args, limit_s=limit_s)

    monkeypatch.setattr(process, "request", counted)
    results = measurer.remeasure(sketches[0], candidates)
    assert asked == [1]  # what the trials built is still there
    assert requests["finals"] == 1 and requests["run"] == 0
    assert [r.error for r in results] == [""] * len(candidates)
    assert [r.build_s for r in results[:-1]] == [r.build_s for r in built]
    assert all(1 <= len(r.times) <= FINAL_ROUNDS for r in results)
    assert max(len(r.times) for r in results) == FINAL_ROUNDS
    assert all(min(r.times) <= r.seconds <= np.median(r.times) for r in results)


def test_the_worker_checks_each_finalist_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    naive = handmade(f"{COPY}\nret void")
    assert worker.answer(("open", naive, 0)) == ("ok", None)
    bench = worker.bench
    assert bench is not None
    checked: list[bytes] = []
    ready = bench.ready
    monkeypatch.setattr(bench, "ready", lambda a, n: checked.append(a.code) or ready(a, n))
    finalists = [naive, handmade(BAD["wrong"]), naive]
    status, answers = worker.answer(("finals", finalists, ONE))
    assert checked == [a.code for a in finalists]
    assert status == "ok"
    assert [a[:2] if a[0] == "error" else a[0] for a in answers] == ["ok", ("error", "wrong"), "ok"]
    other = handmade(f"%z = alloca i8\n{COPY}\nret void")
    worker.answer(("open", other, 0))
    worker.answer(("open", naive, 0))
    assert worker.bench is bench  # its inputs and result are kept


def test_rounds_are_interleaved_and_the_slow_have_one() -> None:
    seconds = {"a": 2.0, "b": 1.0, "c": 10.0}
    log: list[str] = []

    def time_round(ready: list[str]) -> list[list[float]]:
        log.append("".join(ready))
        return [[seconds[r], seconds[r], 50.0] for r in ready]

    failed = ("error", "wrong", "element 3")
    answers = contest([("ok", "a"), failed, ("ok", "b"), ("ok", "c")], time_round)
    assert log == ["abc"] + ["ab"] * (FINAL_ROUNDS - 1)
    assert answers == [
        ("ok", (2.0,) * FINAL_ROUNDS),
        failed,
        ("ok", (1.0,) * FINAL_ROUNDS),
        ("ok", (10.0,)),
    ]
    assert contest([failed], time_round) == [failed]
    assert contest([], time_round) == []


@pytest.mark.parametrize("reason", ["crash", "timeout"])
def test_a_finalist_that_ends_the_worker_fails_alone(reason: str) -> None:
    naive = handmade(f"{COPY}\nret void")
    runner = Runner()
    try:
        good, bad, last = runner.finals(naive, 0, [naive, handmade(BAD[reason]), naive], ONE, 0.7)
    finally:
        runner.close()
    assert bad[:2] == ("error", reason)
    assert good[0] == last[0] == "ok"
    assert len(good[1]) == len(last[1]) == FINAL_ROUNDS


def test_what_is_kept_is_what_was_used_last() -> None:
    kept: Kept[str, bytes] = Kept(10, len)
    kept.put("a", bytes(4))
    kept.put("b", bytes(4))
    assert kept.get("a") == bytes(4)
    kept.put("c", bytes(5))
    assert [kept.get(k) is None for k in "abc"] == [False, True, False]
    kept.put("d", bytes(11))  # larger than all room: alone
    assert [kept.get(k) is None for k in "acd"] == [True, True, False]


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


def test_an_interrupted_request_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess()
    try:
        pid = worker.request("ping")[1]
        receive = worker.receive

        def interrupted(limit_s: float) -> tuple[object, ...]:
            monkeypatch.setattr(worker, "receive", receive)
            raise KeyboardInterrupt

        monkeypatch.setattr(worker, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.request("ping")
        assert worker.request("sketch", 0, None) == ("ok", None)  # not the number of the process
        assert worker.request("ping")[1] != pid
    finally:
        worker.stop()


def test_an_interrupted_build_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    sketches = generate_sketches(matmul(8, 16, 4), TARGET)[:2]
    first, second = ((s, default_row(s, TARGET)) for s in sketches)
    pool = BuildPool(TARGET, size=1)
    collect = pool._collect

    def interrupted(*_: object) -> None:
        monkeypatch.setattr(pool, "_collect", collect)
        raise KeyboardInterrupt

    try:
        expected = pool.build([second])[0][0]
        monkeypatch.setattr(pool, "_collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.build([first])
        assert pool.build([second])[0][0] == expected
    finally:
        pool.close()


def test_a_runner_that_is_ended_while_it_opens_a_task_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    naive = handmade(f"{COPY}\nret void")
    runner = Runner()
    send, kinds = runner._worker.send, []

    def killed_once(kind: str, *request: object) -> None:
        send(kind, *request)
        kinds.append(kind)
        if len(kinds) == 1:
            runner._worker._process.kill()  # type: ignore[union-attr]

    monkeypatch.setattr(runner._worker, "send", killed_once)
    try:
        assert runner.run(naive, 0, naive, ONE, math.inf, 5.0)[1] == ""
        assert kinds == ["open", "open", "run"]
    finally:
        runner.close()


def test_a_worker_ends_with_its_parent_even_in_a_kernel_that_does_not_end() -> None:
    worker = WorkerProcess()
    naive, endless = handmade(f"{COPY}\nret void"), handmade(BAD["timeout"])
    assert worker.request("open", naive, 0)[0] == "ok"
    worker.send("run", endless, ONE, math.inf)
    process, connection = worker._process, worker.connection
    assert process is not None and connection is not None
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        connection.close()  # as the system does when the parent is killed
        assert process.wait(30) == 0
    finally:
        worker.stop()


def test_workers_import_what_their_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("socket", "seer", "numpy"):  # of the current folder, which is not on the parent's path
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the module')")
    monkeypatch.setattr("sys.path", [os.path.abspath(p) for p in sys.path])
    monkeypatch.chdir(tmp_path)
    worker = WorkerProcess()
    try:
        assert worker.request("ping")[0] == "ok"
    finally:
        worker.stop()
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    with pytest.raises(MeasureError, match="cannot be started: the worker process ended with exit code 1"):
        worker.request("ping")
    assert "this is not the module" in capfd.readouterr().err
