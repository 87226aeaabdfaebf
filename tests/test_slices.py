"""Batch slices: what can be cut, and sliced models against the reference and against whole ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import seer
from seer import driver
from seer.cli import random_inputs
from seer.codegen.model_entry import KernelCall, Loop, Slot, model_entry, num_calls
from seer.codegen.model_plan import plan_model
from seer.graph.graph import Graph, Value
from seer.graph.partition import Partition, Region, partition
from seer.graph.passes import optimize
from seer.graph.reference import run
from seer.graph.regions import choose, sliced
from seer.graph.slices import Slices, cut
from seer.ir.slices import leading_axis, slice_of
from seer.runtime.target import Target
from seer.search.task import tasks_of

TARGET = Target.parse("llvm -threads=2")
LARGE = replace(TARGET, l2_bytes=1 << 20, l3_bytes=32 << 20)
Rng = np.random.Generator
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {},
    "resnet18": {"image": 32, "classes": 10},
    "resnet50": {"image": 32, "classes": 10},
    "mobilenet": {"image": 32, "classes": 10, "width": 0.25},
    "mobilenet_v2": {"image": 32, "classes": 10, "width": 0.25},
    "bert_base": {"layers": 2, "seq_len": 8, "hidden": 16, "heads": 2, "vocabulary": 100},
    "vit_base": {"image": 32, "layers": 1, "hidden": 32, "heads": 2, "classes": 10},
    "gpt2": {"layers": 1, "sequence": 8, "hidden": 16, "heads": 2, "vocabulary": 100},
}


def forced(parts: Partition, pick: Callable[[list[int]], int] = max) -> Partition:
    """Every kernel that can be is in a region, the regions as long as they can be."""
    slices, regions, k = Slices(parts), [], 0
    while k < len(parts.subgraphs):
        start, counts = k, slices.counts(k)
        k += 1
        if not counts:
            continue
        count = pick(counts)
        while k < len(parts.subgraphs) and slices.allow(k, start, count):
            k += 1
        regions.append(Region(start, k, count))
    return cut(parts, regions)


def longest(parts: Partition, batch: int) -> Partition:
    """Regions of one slice for each element of a batch."""
    return forced(parts, lambda counts: batch if batch in counts else max(counts))


def weights(rng: Rng, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / max(1, np.prod(shape[:-1])) ** 0.5).astype(np.float32)


def check(
    monkeypatch: pytest.MonkeyPatch,
    graph: Graph,
    force: Callable[[Partition], Partition],
    tolerance: float = 1e-4,
    **options: Any,
) -> seer.CompiledModel:
    """Compile with forced regions and compare with the reference, by one thread and by two, twice."""
    monkeypatch.setattr(driver, "sliced", lambda parts, target: force(parts))
    model = seer.compile(graph, TARGET, **options)
    assert isinstance(model, seer.CompiledModel)
    for seed, threads in ((1, 1), (2, 2)):
        feed = random_inputs(graph, seed)
        found = model(**feed, num_threads=threads)
        for a, b in zip(found if isinstance(found, tuple) else (found,), run(graph, feed), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=tolerance)
    return model


# -- what can be cut -----------------------------------------------------------------------------


def dag_of(build: Callable[[Graph, Value], Value]) -> Any:
    g = Graph("one")
    g.output(build(g, g.input((4, 6, 5), name="x")))
    (s,) = partition(optimize(g)).subgraphs
    return s.dag


W = weights(np.random.default_rng(0), 5, 5)

CUT: dict[str, Callable[[Graph, Value], Value]] = {
    "relu": lambda g, x: x.relu(),
    "dense": lambda g, x: x.dense(W, W[0]).relu(),
    "softmax": lambda g, x: x.softmax(axis=1),
    "sum": lambda g, x: x.reduce_sum(axes=(1, 2)),
    "transpose": lambda g, x: x.transpose((0, 2, 1)),
    "concat": lambda g, x: g.concat([x, x.exp()], axis=2),
    "pad": lambda g, x: x.pad([(0, 0), (1, 1), (0, 2)], value=1.0),
    "slice": lambda g, x: x.slice((0, 1, 0), (4, 3, 5)),
    "broadcast": lambda g, x: x + g.input((6, 5), name="mask"),
    "one": lambda g, x: x * g.input((1, 6, 1), name="mask"),
    "norm": lambda g, x: x.layer_norm(W[0], W[1]),
}
WHOLE: dict[str, Callable[[Graph, Value], Value]] = {
    "softmax": lambda g, x: x.softmax(axis=0),
    "sum": lambda g, x: x.reduce_sum(axes=0),
    "transpose": lambda g, x: x.transpose((1, 0, 2)),
    "concat": lambda g, x: g.concat([x, x.exp()], axis=0),
    "pad": lambda g, x: x.pad([(0, 1), (0, 0), (0, 0)], value=1.0),
    "slice": lambda g, x: x.slice((0, 0, 0), (2, 6, 5)),
    "slice with a step": lambda g, x: x.slice((1, 0, 0), (4, 6, 5)),
    "constant": lambda g, x: x + weights(np.random.default_rng(1), 4, 1, 1),
    "no axis": lambda g, x: x.reduce_max(),
}


@pytest.mark.parametrize("name", CUT)
def test_falls_into_slices(name: str) -> None:
    dag = dag_of(CUT[name])
    leading = leading_axis(dag)
    assert leading is not None
    assert leading.extent == 4
    whole = [t.name for t in dag.inputs if t.name not in leading.sliced]
    assert all(dag.tensor(n).shape[0] != 4 for n in whole)
    small = slice_of(dag, leading, 2)
    assert small.output.shape == (2, *dag.output.shape[1:])
    assert [t.shape for t in small.inputs] == [
        (2, *t.shape[1:]) if t.name in leading.sliced else t.shape for t in dag.inputs
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_does_not_fall_into_slices(name: str) -> None:
    assert leading_axis(dag_of(WHOLE[name])) is None


def test_a_look_up_reads_its_table_whole() -> None:
    g = Graph("table")
    ids, table = g.input((4, 3), "int64", name="ids"), g.input((4, 5), name="table")
    g.output(g.gather(table, ids))
    (s,) = partition(optimize(g)).subgraphs
    leading = leading_axis(s.dag)
    assert leading is not None
    assert [t.name in leading.sliced for t in s.dag.inputs] == [v.name == "ids" for v in s.inputs]


def test_read_along_the_axis_and_otherwise() -> None:
    g = Graph("both")
    x = g.input((4, 4), name="x")
    g.output(x + x.transpose((1, 0)))
    (s,) = partition(optimize(g)).subgraphs
    assert leading_axis(s.dag) is None


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert_base", "gpt2"])
def test_slices_are_the_work_of_a_smaller_batch(name: str) -> None:
    def keys(batch: int, count: int) -> list[str]:
        parts = partition(optimize(seer.zoo.get(name, batch=batch, **SMALL[name])))
        parts = forced(parts, lambda _: count) if count > 1 else parts
        assert sum(parts.counts()) == count * len(parts.subgraphs)
        return [s.dag.workload_key for s in parts.subgraphs]

    assert keys(6, 3) == keys(2, 1)


def test_a_value_read_whole_ends_a_region() -> None:
    g = Graph("ends")
    x = g.input((4, 5), name="x")
    y = x.dense(W)
    g.output(y.softmax().transpose((1, 0)).dense(weights(np.random.default_rng(0), 4, 4)))
    parts = partition(optimize(g))
    assert forced(parts).regions[0].stop < len(parts.subgraphs)


# -- right answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_zoo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"resnet50": 2, "mobilenet_v2": 4}.get(name, 3)
    graph = seer.zoo.get(name, batch=batch, **SMALL[name])
    check(monkeypatch, graph, lambda parts: longest(parts, batch))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert_base", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_sixteen_bits(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers whole and in slices, with values between kernels in 16 bits."""
    narrow = driver.narrow
    monkeypatch.setattr(driver, "narrow", lambda graph, stored: narrow(graph, stored, 64))
    graph = seer.zoo.get(name, batch=4, **SMALL[name])
    feed = random_inputs(graph, 3)
    whole = seer.compile(graph, TARGET, dtype=dtype)(**feed)
    monkeypatch.setattr(driver, "sliced", lambda parts, target: longest(parts, 2))
    model = seer.compile(graph, TARGET, dtype=dtype)
    np.testing.assert_allclose(model(**feed), whole, rtol=0.02, atol=0.02 * np.abs(whole).max())


def test_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = seer.zoo.get("resnet18", batch=3, **SMALL["resnet18"])
    check(monkeypatch, graph, forced, exact=True)


def matrix_step(g: Graph, rng: Rng, x: Value, pool: list[Value]) -> Value:
    """One more operator on a value of rank 3."""
    same = [v for v in pool if v.shape == x.shape]
    other = same[rng.integers(len(same))]
    b, m, n = x.shape
    steps: list[Callable[[], Value]] = [
        lambda: x.relu(),
        lambda: x + other,
        lambda: x * other.tanh(),
        lambda: x - weights(rng, n),
        lambda: x * weights(rng, b, 1, n),
        lambda: x.dense(weights(rng, n, 5), weights(rng, 5)),
        lambda: x.softmax(axis=int(rng.integers(-3, 3))),
        lambda: x.layer_norm(weights(rng, n), weights(rng, n)),
        lambda: x.transpose((0, 2, 1)),
        lambda: x.transpose((1, 0, 2)).relu().transpose((1, 0, 2)),
        lambda: x.reshape((b * m, n)).dense(weights(rng, n, n)).reshape((b, m, n)),
        lambda: x @ other.transpose((0, 2, 1)),
        lambda: x - x.reduce_mean(axes=int(rng.integers(3)), keepdims=True),
        lambda: g.concat([x, other], axis=int(rng.integers(1, 3))),
        lambda: g.concat([x, other], axis=0).slice((1, 0, 0), (b + 1, m, n)),
        lambda: x.pad([(0, 0), (1, 0), (0, 1)], value=0.5),
        lambda: x.pad([(1, 1), (0, 0), (0, 0)]).slice((2, 0, 0), (b + 2, m, n)),
    ]
    return steps[rng.integers(len(steps))]()


def random_graph(seed: int) -> tuple[Graph, int]:
    rng = np.random.default_rng([seed, 7])
    batch = int(rng.choice([2, 4, 6, 7]))
    g = Graph(f"random{seed}")
    pool = [g.input((batch, 3, 4), name="a"), g.input((batch, 3, 4), name="b")]
    for _ in range(12):
        small = [v for v in pool if np.prod(v.shape) <= 600]
        pool.append(matrix_step(g, rng, small[max(0, len(small) - int(rng.geometric(0.5)))], pool))
    g.output(*{pool[-1]: 0, pool[rng.integers(len(pool))]: 0, pool[rng.integers(2, len(pool))]: 0})
    return g, batch


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = random_graph(seed)
    rng = np.random.default_rng(seed)
    seen: list[int] = []

    def force(parts: Partition) -> Partition:
        out = forced(parts, lambda counts: int(rng.choice(counts)))
        seen.extend(r.stop - r.start for r in out.regions)
        return out

    check(monkeypatch, graph, force)
    assert seen


def test_an_odd_batch_and_a_residual_that_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    g = Graph("odd")
    x = g.input((7, 3, 6, 5), name="x")
    a = x.conv2d(weights(rng, 3, 3, 3, 3), padding=1).relu()
    y = a.conv2d(weights(rng, 3, 3, 3, 3), padding=1).batch_norm(*(np.abs(weights(rng, 3)) for _ in range(4)))
    z = (y + a).conv2d(weights(rng, 4, 3, 1, 1)) * 0.5
    g.output(z.softmax(axis=0), z, y, x)

    def force(parts: Partition) -> Partition:
        slices = Slices(parts)
        stop = 0
        while stop < len(parts.subgraphs) and slices.allow(stop, 1, 7):
            stop += 1
        assert stop > 2
        return cut(parts, [Region(1, stop, 7)])

    check(monkeypatch, g, force)


# -- memory, entry point, tasks ------------------------------------------------------------------


def chain(batch: int, steps: int = 4, n: int = 64) -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("chain")
    y = g.input((batch, n, n), name="x")
    for _ in range(steps):
        y = y.dense(weights(rng, n, n)).softmax()
    g.output(y)
    return g


def test_what_stays_in_a_region_has_the_size_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced_model = check(monkeypatch, chain(8), lambda p: longest(p, 8))
    whole_model = check(monkeypatch, chain(8), lambda p: p)
    array = 8 * 64 * 64 * 4
    assert whole_model.num_kernels == 8
    assert sliced_model.num_kernels == 8 * 8
    assert whole_model.arena_bytes - sliced_model.arena_bytes >= 2 * array * 7 // 8


def test_entry_point_of_a_loop() -> None:
    a, b, c = Slot("inputs", 0, 40), Slot("arena", 64), Slot("outputs", 0, 24)
    steps = [
        Loop(5, (KernelCall("f", (a, b)), KernelCall("g", (b, c)))),
        KernelCall("h", (replace(c, stride=0),)),
    ]
    assert num_calls(steps) == 11
    text = model_entry("run", steps, 128)
    assert [line.strip() for line in text.splitlines() if "mul" in line or "call" in line] == [
        "%inputs_0.0.40.by = mul i64 %turn0, 40",
        "%outputs_0.0.24.by = mul i64 %turn0, 24",
        "call void @f(ptr %inputs_0.0.40, ptr %arena_64, ptr %scratch, i32 %num_threads)",
        "call void @g(ptr %arena_64, ptr %outputs_0.0.24, ptr %scratch, i32 %num_threads)",
        "call void @h(ptr %outputs_0, ptr %scratch, i32 %num_threads)",
    ]


def test_tasks_count_slices() -> None:
    parts = partition(optimize(chain(6, steps=3)))
    whole, cut_up = tasks_of(parts, TARGET), tasks_of(forced(parts, lambda c: 3), TARGET)
    assert [3 * t.weight for t in whole] == [t.weight for t in cut_up]
    assert {t.dag.output.shape[0] for t in cut_up} == {2}


def test_the_text_shows_regions() -> None:
    parts = partition(optimize(chain(6, steps=2)))
    text = str(cut(parts, [Region(1, 3, 3)])).splitlines()
    assert text[1] == "3 slices, one after another:"
    assert [line.startswith("  ") for line in text] == [False, False, True, True, False]


# -- which ---------------------------------------------------------------------------------------


def test_small_models_and_single_batches_stay_whole() -> None:
    for graph in (
        seer.zoo.get("mobilenet_v2", batch=1),
        seer.zoo.get("mobilenet_v2", batch=8, image=32),
        seer.zoo.get("bert_base", batch=1, layers=2),
        chain(8),
    ):
        parts = partition(optimize(graph))
        assert choose(parts, LARGE) == []
        assert sliced(parts, LARGE) == parts


def test_large_arrays_between_light_kernels_are_cut() -> None:
    g = Graph("light")
    y = g.input((16, 512, 1024), name="x")
    for _ in range(4):
        y = y.softmax()
    g.output(y)
    parts = partition(optimize(g))
    (region,) = choose(parts, LARGE)
    assert (region.start, region.stop) == (0, 4)
    assert region.count in (4, 8, 16)
    assert choose(parts, replace(LARGE, l3_bytes=1 << 30)) == []


def test_gpus_have_no_slices() -> None:
    parts = partition(optimize(chain(6)))
    assert sliced(parts, Target.parse("cuda -arch=sm_80 -device=emulated")) is parts


def test_plan_of_a_whole_model_is_as_before() -> None:
    graph = optimize(chain(2))
    parts = partition(graph)
    kernels = driver.build_kernels(
        {s.dag.workload_key: driver.best_candidate(s.dag, TARGET, None) for s in parts.subgraphs}, TARGET
    )
    plan = plan_model(graph, parts, [kernels[s.dag.workload_key] for s in parts.subgraphs])
    assert all(isinstance(s, KernelCall) and not any(a.stride for a in s.args) for s in plan.steps)
