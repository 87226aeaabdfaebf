"""compile and tune as a user calls them, with the edge cases."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import seer
from seer.cli import random_inputs
from seer.errors import RecordError, UserError
from seer.graph.graph import Graph
from seer.graph.reference import run
from seer.runtime.records import Records
from seer.search.events import TaskStatus
from seer.search.tuner import TuneSummary

EXTENTS = (1, 2, 7, 13, 197, 367)


def dense_net(n: int = 16) -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("net")
    x = g.input((3, n), name="x")
    y = x.dense(rng.standard_normal((n, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32))
    g.output(y.relu(), y.softmax())
    return g


def check(g: Graph, compiled: seer.CompiledModel) -> None:
    feed = random_inputs(g, 5)
    out = compiled(**feed)
    outputs = out if isinstance(out, tuple) else (out,)
    for a, b in zip(outputs, run(g, feed), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = float(np.abs(b).max(initial=1.0))  # both round: sums of terms of this size
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * scale)


def test_tune_then_compile(tmp_path: Path) -> None:
    g, path = dense_net(), tmp_path / "r.db"
    result = seer.tune(g, trials=24, records=path, seed=0, progress=False)
    assert result.trials == 24
    assert result.records.count() > 24  # the fastest were timed again
    assert not result.errors, [r.message for r in result.records.all() if r.error]
    assert "24 trials" in str(result)
    for records in (path, str(path), result.records, None):
        check(g, seer.compile(g, records=records))
    again = seer.tune(g, trials=24, records=path, seed=0, progress=False)
    assert again.summary.new_trials == 0


@pytest.mark.parametrize("trials", [0, 1])
def test_tiny_budgets(trials: int) -> None:
    g = dense_net()
    result = seer.tune(g, trials=trials, progress=False)
    assert result.trials == trials
    check(g, seer.compile(g, records=result.records))


def test_a_budget_of_time() -> None:
    result = seer.tune(dense_net(), seconds=0, progress=False)
    assert result.trials == 0


@pytest.mark.parametrize("n", EXTENTS)
def test_prime_extents(n: int) -> None:
    rng = np.random.default_rng(n)
    g = Graph("prime")
    x = g.input((n, 13), name="x")
    y = x.dense(rng.standard_normal((13, n)).astype(np.float32)).relu()
    g.output(y @ x, y.softmax(), y.reduce_sum(axes=0), x.transpose())
    check(g, seer.compile(g))


def test_tuned_prime_extents() -> None:
    g = Graph("primes")
    x = g.input((13, 197), name="x")
    g.output(x.dense(np.random.default_rng(0).standard_normal((197, 7)).astype(np.float32)).tanh())
    result = seer.tune(g, trials=40, progress=False)
    assert not result.errors
    check(g, seer.compile(g, records=result.records))


def test_graphs_without_work() -> None:
    g = Graph("identity")
    x = g.input((2, 3), name="x")
    g.output(x, x.reshape((6,)), g.constant(np.arange(4)))
    assert seer.tune(g, trials=10, progress=False).trials == 0
    compiled = seer.compile(g)
    value = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    a, b, c = compiled(value)
    np.testing.assert_array_equal(a, value)
    np.testing.assert_array_equal(b, value.ravel())
    np.testing.assert_array_equal(c, np.arange(4))
    assert a is not value


def test_empty_and_scalar_tensors() -> None:
    g = Graph("edges")
    x, s = g.input((0, 4), name="x"), g.input((), name="s")
    w = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    g.output(x.dense(w).relu(), x.reduce_sum(axes=0) + s, s.exp(), x.reduce_sum())
    check(g, seer.compile(g))
    result = seer.tune(g, trials=12, progress=False)
    check(g, seer.compile(g, records=result.records))


def test_one_node_graph_tuned() -> None:
    g = Graph("one")
    g.output(g.input((5,), name="x").relu())
    result = seer.tune(g, trials=1000, progress=False)
    assert 0 < result.trials < 1000
    check(g, seer.compile(g, records=result.records))


def test_inputs_by_position_name_and_layout() -> None:
    g = Graph("pair")
    a, b = g.input((3, 4), name="a"), g.input((4,), "int64", name="b")
    g.output(a * 2.0, b + 1)
    m = seer.compile(g)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32).T
    y = np.arange(4)
    for out in (m(x, y), m(x, b=y), m(a=x, b=y), m(b=list(range(4)), a=np.ascontiguousarray(x))):
        np.testing.assert_array_equal(out[0], x * 2)
        np.testing.assert_array_equal(out[1], y + 1)
    for bad, words in (
        (lambda: m(x), "input 'b' is missing"),
        (lambda: m(x, y, y), "3 inputs given"),
        (lambda: m(x, y, a=x), "by position and by name"),
        (lambda: m(x, y, c=x), "no input 'c'"),
        (lambda: m(x.T, y), r"must be float32\[3, 4\], found float32\[4, 3\]"),
        (lambda: m(x.astype(np.float64), y), "found float64"),
        (lambda: m(x, y, num_threads=0), "num_threads"),
        (lambda: m(x, y, num_threads=10**6), "at most 1024"),
        (lambda: m(x, y, num_threads=True), "num_threads"),
        (lambda: m(x, y, num_threads=1.0), "num_threads"),
        (lambda: m(x, [1.5, 2, 3, 4]), r"must be int64\[4\], found float64\[4\]"),
        (lambda: m(x, [2**63, 2**63, 2**63, 2**63]), "is not an array"),
        (lambda: m(x, [2**70, 2, 3, 4]), "found object"),
        (lambda: m(x, ["1", "2", "3", "4"]), "must be int64"),
        (lambda: m(x, None), "must be int64"),
        (lambda: m(Doubles(x), y), "found float64"),
        (lambda: m(x.astype(x.dtype.newbyteorder()), y), "must be float32"),
        (lambda: m(np.ma.masked_array(x, mask=x > 0), y), "masked elements"),
    ):
        with pytest.raises(UserError, match=words):
            bad()


class Plain(np.ndarray):
    """A subclass of NumPy's arrays."""


class Doubles:
    """An array of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array.astype(np.float64)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self._array


def test_arrays_of_any_layout_stay_as_they_are(tmp_path: Path) -> None:
    g = Graph("layouts")
    x, n, e = g.input((3, 4), name="x"), g.input((), "int32", name="n"), g.input((0, 2), "int64", name="e")
    g.output(x * 2.0, x, n, e)
    m = seer.compile(g)
    big = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    unaligned = np.empty(49, np.uint8)[1:].view(np.float32).reshape(3, 4)
    unaligned[:] = big[:3, :4]
    read_only = big[:3, :4].copy()
    read_only.setflags(write=False)
    (tmp_path / "x.bin").write_bytes(read_only.tobytes())
    for array in (
        big[::2, ::2],
        big[2::-1, 3::-1],
        np.asfortranarray(big[:3, :4]),
        np.broadcast_to(big[0, :4], (3, 4)),
        unaligned,
        read_only,
        read_only.view(Plain),
        np.ma.masked_array(read_only),
        np.memmap(tmp_path / "x.bin", np.float32, "r", shape=(3, 4)),
    ):
        before = np.array(array)
        twice, same, one, _ = m(array, np.int32(1), np.empty((0, 2), np.int64))
        np.testing.assert_array_equal(twice, 2 * before)
        np.testing.assert_array_equal(same, before)
        assert (type(same), one.shape, one) == (np.ndarray, (), 1)
        assert not np.shares_memory(same, array)
        same[:] = 0
        np.testing.assert_array_equal(array, before)


def test_one_array_for_two_inputs() -> None:
    g = Graph("twice")
    x, y = g.input((4,), name="x"), g.input((4,), name="y")
    g.output(x, y, x + y, x)
    a = np.random.default_rng(0).standard_normal(4).astype(np.float32)
    outputs = seer.compile(g)(a, a[::-1])
    for found, expected in zip(outputs, (a, a[::-1], a + a[::-1], a), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not any(np.shares_memory(p, q) for p in outputs for q in outputs if p is not q)


FORKING = """
import os, sys
import numpy as np
import seer
m = seer.compile(seer.zoo.mlp(batch=64), target="llvm -threads=2")
x = np.random.default_rng(0).standard_normal(m.inputs[0].shape).astype(np.float32)
expected = m(x)
for _ in range(2):
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(m(x), expected) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(m(x), expected))
"""


def test_a_model_runs_in_forked_processes() -> None:
    # In a process of its own, since a child that hangs would outlive this one's patience.
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "True", "0", "True"], done.stderr


def test_records_of_other_models_are_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "r.db"
    seer.tune(dense_net(11), trials=2, records=path, progress=False)
    seer.compile(dense_net(11), records=path)
    assert "know no kernel" not in caplog.text
    other = Graph("other")
    other.output(other.input((5,), name="x").exp())
    check(other, seer.compile(other, records=path))
    assert "know no kernel of other" in caplog.text


def test_calls_from_several_threads() -> None:
    g = seer.zoo.mlp(batch=4)
    m = seer.compile(g)
    feeds = [random_inputs(g, k)["x"] for k in range(8)]
    expected = [m(x) for x in feeds]
    wrong = []

    def work(k: int) -> None:
        outputs = [m(feeds[k], num_threads=1 + k % 2) for _ in range(20)]
        wrong.extend(k for out in outputs if not np.array_equal(out, expected[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_results_are_new_arrays() -> None:
    g = dense_net()
    m = seer.compile(g)
    x = random_inputs(g)["x"]
    first = m(x)[0]
    kept = first.copy()
    m(-x)
    np.testing.assert_array_equal(first, kept)


def test_errors(tmp_path: Path) -> None:
    g = dense_net()
    with pytest.raises(UserError, match="no output"):
        seer.compile(Graph("empty"))
    with pytest.raises(UserError, match="no records at"):
        seer.compile(g, records=tmp_path / "none.db")
    with pytest.raises(UserError, match="not this machine"):
        seer.compile(g, target="llvm -cpu=neoverse-n1")
    with pytest.raises(UserError, match="unknown target kind"):
        seer.compile(g, target="vulkan")
    with pytest.raises(UserError, match="unknown strategy"):
        seer.tune(g, trials=1, strategy="magic", progress=False)
    with pytest.raises(UserError, match="trials must be"):
        seer.tune(g, trials=-1, progress=False)
    for seed in (-1, 1.5, True, 2**64):
        with pytest.raises(UserError, match="seed must be a whole number"):
            seer.tune(g, trials=1, seed=seed, progress=False)  # type: ignore[arg-type]
    for seconds in (float("nan"), float("inf"), -1, 1e300, "1"):
        with pytest.raises(UserError, match="seconds must be"):
            seer.tune(g, seconds=seconds, progress=False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"a seer\.Graph"):
        seer.compile(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(RecordError):
        seer.tune(g, trials=1, records=tmp_path / "no" / "folder.db", progress=False)


def test_top_level_names() -> None:
    assert set(seer.__all__) == set(dir(seer))
    assert all(getattr(seer, n) is not None for n in seer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        seer.nothing  # noqa: B018


def test_debug_shows_stages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SEER_DEBUG", "graph,dag,sketch,loops,llvm,asm")
    with caplog.at_level("DEBUG", "seer.debug"):
        seer.compile(dense_net(19))
    for words in (
        "graph net",
        "dense_product[",
        "SSSRRS(dense_product)",
        "parallel",
        "define void",
        "vfmadd",
    ):
        assert words in caplog.text or (words == "vfmadd" and "fmadd" not in caplog.text), words
    monkeypatch.setenv("SEER_DEBUG", "graphs")
    with pytest.raises(UserError, match="SEER_DEBUG names graphs; stages are graph"):
        seer.compile(dense_net())


@pytest.mark.parametrize(
    ("best", "words"),
    [
        ((1e-3, 3e-3), "kernels: 5.000 ms, with default schedules 6.000 ms"),
        ((1e-3, math.inf), "kernels (1 of 2 measured): 2.000 ms, with default schedules 3.000 ms"),
        ((math.inf, math.inf), "kernels: none of 2 measured"),
    ],
)
def test_a_result_tells_of_what_was_measured(best: tuple[float, float], words: str) -> None:
    defaults = (1.5e-3 if math.isfinite(best[0]) else math.inf, 3e-3 if math.isfinite(best[1]) else math.inf)
    statuses = tuple(
        TaskStatus("t", weight, 1, s, math.inf, d, 0, 1.0)
        for weight, s, d in zip((2, 1), best, defaults, strict=True)
    )
    summary = TuneSummary(statuses, 2, 2, {}, 1.0, 0.5, False)
    assert str(seer.TuneResult("m", "llvm", "seer", summary, Records())).endswith(words)
