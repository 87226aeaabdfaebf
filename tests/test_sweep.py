"""Kernels of large models are timed with caches as the model leaves them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

import seer
from seer.codegen.build import build
from seer.graph.graph import Graph
from seer.graph.partition import partition, weight_bytes
from seer.graph.passes import optimize
from seer.runtime.records import Records
from seer.runtime.sweep import Sweep
from seer.runtime.target import Target
from seer.runtime.trial import COLD_REPEATS, MIN_REPEATS, Bench, Ready, time_round
from seer.search.defaults import default_candidate
from seer.search.task import tasks_of

TARGET = Target.parse("llvm -threads=2")


def dense_net(layers: int, width: int) -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("net")
    x = g.input((4, width), name="x")
    for _ in range(layers):
        x = x.dense(rng.standard_normal((width, width)).astype(np.float32) / width).relu()
    g.output(x)
    return g


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_sweep_reads_everything(threads: int) -> None:
    sweep = Sweep(1_000_000, TARGET.with_threads(threads))
    sweep()
    rows = 1_000_000 // (4 * 4096)
    assert sweep.total == rows * 4096


def test_weights_of_each_kernel() -> None:
    parts = partition(optimize(dense_net(3, 8)))
    assert weight_bytes(parts) == [8 * 8 * 4] * 3


def test_only_models_whose_other_weights_overflow_the_caches_are_swept() -> None:
    room = TARGET.num_threads * TARGET.l2_bytes
    assert TARGET.within([]) == TARGET.within([10 * room]) == TARGET.within([room // 2] * 3) == TARGET
    swept = replace(TARGET, l3_bytes=3 * room).within([room, room, room])
    assert swept.sweep_bytes == 3 * room
    assert replace(TARGET, l3_bytes=2 * room).within([room, room, room]).sweep_bytes == 4 * room
    swept = TARGET.within([room, room, room])
    assert swept.key != TARGET.key
    assert swept.is_host
    assert swept.within([1]).key == swept.key


def test_each_cold_run_follows_a_sweep() -> None:
    (task, *_) = tasks_of(partition(optimize(dense_net(1, 32))), TARGET)
    bench = Bench(build(task.sketches[0], np.zeros(0, np.int64), TARGET), seed=0)
    artifact = build(*default_candidate(task.dag, TARGET), TARGET)
    calls = []
    times = bench.measure(artifact, 2, float("inf"), lambda: calls.append(0))
    assert MIN_REPEATS <= len(times) == len(calls) <= COLD_REPEATS
    assert len(bench.measure(artifact, 2, 0.0, lambda: calls.append(0))) == 1  # hopeless: once


def test_one_sweep_serves_one_run_of_each_and_another_is_first_every_time() -> None:
    log: list[object] = []

    class Logged:
        def __init__(self, name: str) -> None:
            self.name = name

        def read_inputs(self) -> None:
            log.append("read")

        def seconds(self, number: int = 1) -> float:
            log.append(self.name)
            return 1e-6

    ready = [Logged("a"), Logged("b"), Logged("c")]
    times = time_round(cast(list[Ready], ready), lambda: log.append("sweep"))
    assert times == [(1e-6,) * COLD_REPEATS] * 3
    turns = ("abc", "bca", "cab", "abc")
    assert log[: 4 * 7] == [w for t in turns for w in ("sweep", "read", t[0], "read", t[1], "read", t[2])]
    assert log.count("sweep") == COLD_REPEATS


def test_tune_and_compile_agree_on_the_key() -> None:
    width = int((TARGET.num_threads * TARGET.l2_bytes) ** 0.5 / 4) + 512
    g = dense_net(4, width)
    assert sum(weight_bytes(partition(optimize(g)))) > 2 * TARGET.num_threads * TARGET.l2_bytes
    records = Records()
    seer.tune(g, TARGET, trials=3, records=records, seed=0, progress=False)
    assert {r.target_key.endswith(" swept") for r in records.all()} == {True}
    model = seer.compile(g, TARGET, records)
    x = np.random.default_rng(1).standard_normal((4, width)).astype(np.float32)
    expected = seer.compile(g, TARGET)(x)
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-6)
