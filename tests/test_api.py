"""compile and tune as a user calls them, with the edge cases."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import seer
from seer.cli import random_inputs
from seer.errors import RecordError, UserError
from seer.graph.graph import Graph
from seer.graph.reference import run

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
    ):
        with pytest.raises(UserError, match=words):
            bad()


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
