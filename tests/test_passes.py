"""Passes and the partitioner: the same result, fewer nodes, the expected kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import seer
from seer.cli import random_inputs
from seer.graph.graph import Graph, Value
from seer.graph.partition import Partition, partition
from seer.graph.passes import PASSES, optimize
from seer.graph.reference import run
from seer.ir.interp import eval_dag


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def conv_block(g: Graph, x: Value, out: int, stride: int = 1, groups: int = 1) -> Value:
    w, b, scale, shift, mean = arrays((out, x.shape[1] // groups, 3, 3), *[(out,)] * 4)
    y = x.conv2d(w, b, stride=stride, padding=1, groups=groups)
    return y.batch_norm(scale, shift, mean, np.abs(b) + np.float32(0.5))


def residual() -> Graph:
    g = Graph("residual")
    x = g.input((1, 5, 9, 7), name="x")
    y = conv_block(g, x, 8).relu()
    y = conv_block(g, y, 8)
    short = conv_block(g, x, 8)
    g.output((y + short).relu(name="y"))
    return g


def mixed() -> Graph:
    g = Graph("mixed")
    x = g.input((2, 6, 8, 8), name="x")
    a = conv_block(g, x, 4, stride=2).sigmoid()
    b = x.max_pool(2)
    c = conv_block(g, g.concat([a, b], axis=1), 10, groups=10)
    d = c.slice((0, 1, 0, 0), (2, 9, 4, 4)).pad(((0, 0), (0, 0), (1, 1), (0, 2)), value=0.5)
    e = d * arrays((8, 1, 1))[0] + 1.0
    g.output(
        e.softmax(axis=1),
        e.reduce_mean(axes=(2, 3)),
        e.global_avg_pool().flatten(),
        x.transpose((0, 2, 3, 1)),
    )
    return g


def kept_dims() -> Graph:
    g = Graph("kept")
    x = g.input((1, 3, 6, 6), name="x")
    y = conv_block(g, x, 8)
    gate = y.reduce_mean(axes=(2, 3), keepdims=True).sigmoid()
    g.output(y * gate, y.reduce_max(axes=1, keepdims=True), y.reshape((8, 36)))
    return g


def constants() -> Graph:
    g = Graph("constants")
    (a, b) = arrays((4, 5), (5, 3))
    x = g.input((4, 3), name="x")
    k = g.constant(a).matmul(g.constant(b)).relu()
    g.output(x + k, k.transpose(), g.constant(a))
    return g


def twice() -> Graph:
    g = Graph("twice")
    x = g.input((3, 4), name="x")
    y = x.exp() + x.exp()
    g.output(y, y, x, x.reshape((12,)), y.transpose().transpose(), y.cast("float32"), name_of(x.exp()))
    return g


def name_of(v: Value) -> Value:
    return v


GRAPHS: list[Callable[[], Graph]] = [residual, mixed, kept_dims, constants, twice]


def run_partition(p: Partition, graph: Graph, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Kernel by kernel, with the plain evaluator."""
    known: dict[Value, np.ndarray] = {v: feed[v.name] for v in graph.inputs}

    def get(v: Value) -> np.ndarray:
        if v.node.op == "constant":
            return np.asarray(v.node.attrs["value"])
        if v in p.aliases:
            return get(p.aliases[v]).reshape(v.shape)
        return known[v]

    for s in p.subgraphs:
        given = dict(zip((t.name for t in s.dag.inputs), map(get, s.inputs), strict=True))
        known[s.output] = eval_dag(s.dag, given)
    return [get(v) for v in graph.outputs]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_passes_and_partition_keep_the_result(make: Callable[[], Graph]) -> None:
    graph = make()
    feed = random_inputs(graph)
    expected = run(graph, feed)
    names = [v.name for v in graph.outputs]
    for p in PASSES:
        graph = p(graph)
        for a, b in zip(run(graph, feed), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=p.__name__)
        assert [v.name for v in graph.inputs] == [v.name for v in make().inputs]
    assert len(graph.outputs) == len(names)
    for a, b in zip(run_partition(partition(graph), graph, feed), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_compiled_graphs_are_right(make: Callable[[], Graph]) -> None:
    graph = make()
    feed = random_inputs(graph, seed=1)
    out = seer.compile(graph)(**feed)
    outputs = out if isinstance(out, tuple) else (out,)
    for a, b in zip(outputs, run(graph, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def ops_of(graph: Graph) -> list[str]:
    return [v.node.op for v in graph.values() if v.node.op not in ("input", "constant")]


def test_batch_norm_is_folded() -> None:
    assert "batch_norm" not in ops_of(optimize(residual()))
    assert "batch_norm" not in ops_of(optimize(seer.zoo.resnet18(image=32)))


def test_batch_norm_that_cannot_be_folded_stays_right() -> None:
    g = Graph("shared")
    x = g.input((1, 3, 5, 5), name="x")
    (w,) = arrays((4, 3, 1, 1))
    y = x.conv2d(w)  # read twice: the normalised and the plain value are both needed
    n = y.batch_norm(*arrays((4,), (4,), (4,)), np.full(4, 0.7, np.float32))
    g.output(n + y)
    feed = random_inputs(g)
    np.testing.assert_allclose(seer.compile(g)(**feed), run(g, feed)[0], rtol=1e-4, atol=1e-5)


def test_kernels_of_a_residual_block() -> None:
    p = partition(optimize(residual()))
    text = str(p).splitlines()
    kernels = [line.split(" = ")[1] for line in text if "conv2d" in line]
    assert sorted(kernels) == [
        "conv2d_nhwc + add",
        "conv2d_nhwc + add + add + relu",
        "conv2d_nhwc + add + relu",
    ]


def test_resnet18_is_23_kernels_of_21_kinds() -> None:
    p = partition(optimize(seer.zoo.resnet18()))
    assert len(p.subgraphs) == 23
    assert len({s.dag.workload_key for s in p.subgraphs}) == 21
    assert all(
        s.dag is t.dag for s in p.subgraphs for t in p.subgraphs if s.dag.workload_key == t.dag.workload_key
    )


def test_workloads_do_not_depend_on_names() -> None:
    def keys(prefix: str) -> list[str]:
        g = Graph(prefix)
        x = g.input((3, 8), name=f"{prefix}_x")
        g.output(x.dense(arrays((8, 4))[0], name=f"{prefix}_fc").relu(name=f"{prefix}_relu"))
        return [s.dag.workload_key for s in partition(optimize(g)).subgraphs]

    assert keys("one") == keys("two")


def test_transposes_are_left_at_the_borders_only() -> None:
    ops = ops_of(optimize(residual()))
    assert ops.count("transpose") == 2
    g = optimize(seer.zoo.resnet18(image=32))
    assert ops_of(g).count("transpose") == 1  # the image; what leaves is 1 x 1


def test_moves_cancel() -> None:
    g = Graph("moves")
    x = g.input((2, 3, 4), name="x")
    y = x.transpose((2, 0, 1)).transpose((1, 2, 0)).reshape((6, 4)).reshape((2, 3, 4)).cast("float32")
    g.output(y.relu())
    assert ops_of(optimize(g)) == ["relu"]
