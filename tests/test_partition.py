"""The partitioner: what makes a kernel, and random graphs evaluated kernel by kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import seer
from seer.cli import random_inputs
from seer.graph.graph import Graph, Value
from seer.graph.partition import Partition, Subgraph, partition
from seer.graph.passes import optimize
from seer.graph.reference import run
from seer.graph.registry import op_def
from seer.ir.interp import eval_dag
from seer.ir.tensor import Placeholder


def run_kernels(p: Partition, graph: Graph, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """A partitioned graph, kernel by kernel in the partition's order, by the plain evaluator."""
    known = {v: feed[v.name] for v in graph.inputs}

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


def kernels(graph: Graph) -> list[str]:
    """Each kernel's operators, in running order."""
    return [" + ".join(n.op for n in s.nodes) for s in partition(graph).subgraphs]


def anchors(s: Subgraph) -> int:
    return sum(op_def(n.op).fusion in ("anchor", "reduction") for n in s.nodes)


# -- random graphs -------------------------------------------------------------------------------

Rng = np.random.Generator


def matrix_step(g: Graph, rng: Rng, x: Value, pool: list[Value]) -> Value:
    """One more operator on a value of rank 2 or 3."""
    same = [v for v in pool if v.shape == x.shape]
    other = same[rng.integers(len(same))]
    steps: list[Callable[[], Value]] = [
        lambda: x.relu(),
        lambda: x.tanh() * 0.5,
        lambda: x + other,
        lambda: x * other,
        lambda: x - weights(rng, x.shape[-1]),
        lambda: x.transpose(rng.permutation(x.ndim)),
        lambda: x.reshape((x.shape[0], -1) if x.ndim == 3 else (x.shape[0], 1, x.shape[1])),
        lambda: x @ weights(rng, x.shape[-1], int(rng.integers(1, 6))),
        lambda: x.dense(weights(rng, x.shape[-1], 5), weights(rng, 5)),
        lambda: x.softmax(axis=int(rng.integers(-x.ndim, x.ndim))),
        lambda: x.layer_norm(weights(rng, x.shape[-1]), weights(rng, x.shape[-1])),
        lambda: x.reduce_sum(axes=int(rng.integers(x.ndim)), keepdims=True),
        lambda: g.concat([x, other], axis=int(rng.integers(x.ndim))),
        lambda: x.pad([(int(rng.integers(2)), int(rng.integers(2)))] * x.ndim, value=0.25),
        lambda: x.slice((0,) * x.ndim, [max(1, n - 1) for n in x.shape]),
    ]
    return steps[rng.integers(len(steps))]()


def image_step(g: Graph, rng: Rng, x: Value, pool: list[Value]) -> Value:
    """One more operator on an image."""
    same = [v for v in pool if v.shape == x.shape]
    other = same[rng.integers(len(same))]
    c = x.shape[1]
    out = int(rng.integers(1, 6))
    steps: list[Callable[[], Value]] = [
        lambda: x.conv2d(weights(rng, out, c, 3, 3), weights(rng, out), padding=1),
        lambda: x.conv2d(weights(rng, out, c, 1, 1)),
        lambda: x.conv2d(weights(rng, c, 1, 3, 3), padding=(2, 1, 1, 1), groups=c),
        lambda: x.batch_norm(*(np.abs(weights(rng, c)) + np.float32(0.5) for _ in range(4))),
        lambda: x.max_pool(3, stride=1, padding=1),
        lambda: x.avg_pool(3, stride=2, padding=1),
        lambda: x.relu(),
        lambda: x + other,
        lambda: x * weights(rng, c, 1, 1),
        lambda: x * x.reduce_mean(axes=(2, 3), keepdims=True).sigmoid(),
        lambda: x * 0.5 + weights(rng, x.shape[-1]),
        lambda: g.concat([x, other], axis=int(rng.choice([-3, -1, 1, 2]))),
        lambda: x.pad([(0, 0), (0, 1), (1, 0), (0, 0)], value=-1.0),
        lambda: x.slice((0, 0, 0, 0), (1, max(1, c - 1), *x.shape[2:])),
        lambda: x.softmax(axis=1),
        lambda: x.transpose((0, 1, 3, 2)),
        lambda: x.reshape((1, x.shape[2], c, x.shape[3])),
        lambda: x.reduce_max(axes=2, keepdims=True),
    ]
    return steps[rng.integers(len(steps))]()


def weights(rng: Rng, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / max(1, np.prod(shape[:-1])) ** 0.5).astype(np.float32)


def random_matrices(seed: int) -> Graph:
    rng = np.random.default_rng([seed, 1])
    g = Graph(f"matrices{seed}")
    pool = [g.input((3, 4), name="a"), g.input((2, 3, 4), name="b")]
    for _ in range(12):
        pool.append(matrix_step(g, rng, pick(rng, pool, 600), pool))
    g.output(*{pool[-1]: 0, pool[rng.integers(len(pool))]: 0})
    return g


def random_images(seed: int) -> Graph:
    rng = np.random.default_rng([seed, 2])
    g = Graph(f"images{seed}")
    pool = [g.input((1, 3, 5, 4), name="image")]
    for _ in range(10):
        pool.append(image_step(g, rng, pick(rng, pool, 600), pool))
    last = pool[-1]
    wide = last.flatten()
    g.output(
        wide.dense(weights(rng, wide.shape[1], 3)), last.global_avg_pool(), pool[rng.integers(len(pool))]
    )
    return g


def pick(rng: Rng, pool: list[Value], limit: int) -> Value:
    """A late value, and not a large one."""
    small = [v for v in pool if np.prod(v.shape) <= limit]
    return small[max(0, len(small) - 1 - int(rng.geometric(0.5)) + 1)]


@pytest.mark.parametrize("make", [random_matrices, random_images], ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(make: Callable[[int], Graph], seed: int) -> None:
    graph = make(seed)
    feed = random_inputs(graph, seed)
    better = optimize(graph)
    p = partition(better)
    check_structure(p, better)
    for a, b in zip(run_kernels(p, better, feed), run(graph, feed), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def check_structure(p: Partition, graph: Graph) -> None:
    """Every value in one place, kernels with at most one anchor, in an order in which they can run."""
    inside = [n for s in p.subgraphs for n in s.nodes]
    computed = {v.node for v in graph.values()} - {
        v.node for v in graph.values() if v.node.op in ("input", "constant") or v in p.aliases
    }
    assert len(inside) == len(set(inside))
    assert set(inside) == computed
    ready: set[Value] = set(graph.inputs)
    for s in p.subgraphs:
        assert anchors(s) <= 1
        assert [t.shape for t in s.dag.inputs] == [v.shape for v in s.inputs]
        assert [t.op == Placeholder(constant=True) for t in s.dag.inputs] == [
            v.node.op == "constant" for v in s.inputs
        ]
        for v in s.inputs:
            while v in p.aliases:
                v = p.aliases[v]
            assert v.node.op == "constant" or v in ready
        ready.add(s.output)


@pytest.mark.parametrize("seed", range(3))
def test_of_the_kernels_that_are_ready_the_first_made_runs(seed: int) -> None:
    """The order in the graph of groups, worked out by looking for the next one every time."""
    rng = np.random.default_rng(seed)
    g = Graph("order")
    pool = [g.input((4, 6), name="x")]
    for _ in range(40):
        a, b = (pool[k] for k in rng.integers(len(pool), size=2))
        steps = [a.exp, a.softmax, lambda a=a, b=b: a + b, lambda a=a: a.reshape((6, 4)).reshape((4, 6))]
        pool.append(steps[rng.integers(4)]())
    g.output(*(pool[k] for k in rng.permutation(len(pool))[:12]))
    p = partition(g)
    made = {v: k for k, v in enumerate(g.values())}
    members = {v: s for s in p.subgraphs for v in g.values() if v.node in s.nodes}
    reads = {s: {members[i] for v in s.inputs for i in [behind(p, v)] if i in members} for s in p.subgraphs}
    left, order = list(p.subgraphs), []
    while left:
        ready = [s for s in left if not reads[s] & set(left)]
        order.append(min(ready, key=lambda s: min(made[v] for v in members if members[v] is s)))
        left.remove(order[-1])
    assert [s.output.name for s in p.subgraphs] == [s.output.name for s in order]


def behind(p: Partition, v: Value) -> Value:
    """The value whose memory another one is."""
    while v in p.aliases:
        v = p.aliases[v]
    return v


# -- what is fused -------------------------------------------------------------------------------


def test_a_value_with_two_readers_ends_a_kernel() -> None:
    g = Graph("two")
    x = g.input((4, 6), name="x")
    y = x.dense(weights(np.random.default_rng(0), 6, 6)).relu()
    g.output(y.exp() + y)
    assert kernels(g) == ["dense + relu", "exp + add"]


def test_an_output_ends_a_kernel() -> None:
    g = Graph("seen")
    x = g.input((4, 6), name="x")
    y = x.dense(weights(np.random.default_rng(0), 6, 6))
    g.output(y, y.relu())
    assert kernels(g) == ["dense", "relu"]


def test_of_two_anchors_the_later_takes_the_addition() -> None:
    g = Graph("sum")
    rng = np.random.default_rng(0)
    x = g.input((4, 6), name="x")
    g.output((x.dense(weights(rng, 6, 5)) + x.dense(weights(rng, 6, 5)).tanh()).relu())
    assert kernels(g) == ["dense", "dense + tanh + add + relu"]


def test_attention_and_norms_of_bert() -> None:
    found = kernels(optimize(seer.zoo.bert_base(layers=1, seq_len=8, hidden=16, heads=2, vocabulary=100)))
    assert sorted(found) == sorted(
        [
            "embedding + add + layer_norm",
            *["dense"] * 3,
            "transpose + transpose + matmul + mul",  # the scale of the scores
            "softmax",
            "transpose + matmul",
            "transpose",  # a reshape between it and its reader
            *["dense + add"] * 2,  # the residual sums, which layer_norm and the next sum read
            *["layer_norm"] * 2,
            "dense + gelu",
        ]
    )


def test_scale_and_mask_join_the_softmax() -> None:
    g = Graph("masked")
    x, mask = g.input((2, 5, 5), name="x"), g.input((5, 5), name="mask")
    g.output((x * 0.125 + mask).softmax())
    assert kernels(g) == ["mul + add + softmax"]


def test_a_sum_joins_the_layer_norm_that_alone_reads_it() -> None:
    rng = np.random.default_rng(0)

    def norm(shared: bool) -> list[str]:
        g = Graph("norm")
        x, y = g.input((4, 6), name="x"), g.input((4, 6), name="y")
        total = x + y
        g.output(total.layer_norm(weights(rng, 6), weights(rng, 6)))
        if shared:
            g.output(total)
        return kernels(g)

    assert norm(shared=False) == ["add + layer_norm"]
    assert norm(shared=True) == ["add", "layer_norm"]


def test_reshapes_are_no_kernels() -> None:
    g = Graph("views")
    x = g.input((2, 6), name="x")
    y = x.reshape((3, 4)).relu().flatten().reshape((12,))
    g.output(y, x.reshape((12,)))
    graph = optimize(g)
    p = partition(graph)
    assert [" + ".join(n.op for n in s.nodes) for s in p.subgraphs] == ["relu"]
    assert {v.name for v in graph.outputs} <= {v.name for v in p.aliases}


def test_a_graph_without_operators_has_no_kernels() -> None:
    g = Graph("nothing")
    g.output(g.input((3,), name="x"), g.constant(np.arange(3.0)))
    assert partition(optimize(g)).subgraphs == ()


def test_equal_kernels_are_one_dag() -> None:
    p = partition(optimize(seer.zoo.bert_base(layers=3, seq_len=8, hidden=16, heads=2, vocabulary=100)))
    for s, t in itertools.combinations(p.subgraphs, 2):
        assert (s.dag.workload_key == t.dag.workload_key) == (s.dag is t.dag)
    assert len({s.dag.workload_key for s in p.subgraphs}) == 10  # whatever the number of layers


def test_constants_that_differ_in_role_are_different_work() -> None:
    def key(weight_is_constant: bool) -> str:
        g = Graph("role")
        x = g.input((3, 4), name="x")
        w = weights(np.random.default_rng(0), 4, 5)
        g.output(x @ (g.constant(w) if weight_is_constant else g.input(w.shape, name="w")))
        return partition(g).subgraphs[0].dag.workload_key

    assert key(True) != key(False)  # constant weights can be packed ahead
