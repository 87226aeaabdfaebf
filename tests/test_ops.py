"""Every operator's tensor expression and machine code agree with its NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest
from op_cases import CASES, Case, random_feed, single

import seer
from seer.codegen.build import build
from seer.errors import GraphError
from seer.graph.graph import MAX_RANK, Graph
from seer.graph.reference import run
from seer.graph.registry import op_def, op_names
from seer.ir.dag import ComputeDAG
from seer.ir.interp import eval_dag
from seer.ir.tensor import placeholder
from seer.runtime.kernel import run_artifact
from seer.runtime.target import Target
from seer.search.defaults import default_candidate

TARGET = Target.parse("llvm -threads=2")


def dag_of(g: Graph) -> ComputeDAG:
    """The tensor expression of a one-operator graph."""
    node = g.outputs[0].node
    inputs = [placeholder(v.shape, v.dtype, v.name) for v in node.inputs]
    return ComputeDAG(op_def(node.op).define(inputs, node.attrs, "y"), inputs)


def compiled(dag: ComputeDAG, feed: dict[str, np.ndarray]) -> np.ndarray:
    sketch, row = default_candidate(dag, TARGET)
    return run_artifact(build(sketch, row, TARGET), [feed[t.name] for t in dag.inputs], 2)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}".replace(" ", ""))
def test_operator(case: Case) -> None:
    g = single(*case)
    feed = random_feed(g)
    (expected,) = run(g, feed)
    value = g.outputs[0]
    assert (expected.shape, expected.dtype.name) == (value.shape, value.dtype)
    dag = dag_of(g)
    np.testing.assert_allclose(eval_dag(dag, feed), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(compiled(dag, feed), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", ["relu", "add", "matmul", "reduce_sum", "transpose", "exp", "softmax"])
def test_float64(op: str) -> None:
    shapes = {"add": ((3, 5), (5,)), "matmul": ((7, 13), (13, 5))}.get(op, ((3, 37),))
    g = single(op, shapes, {}, "float64")
    feed = random_feed(g)
    out = compiled(dag_of(g), feed)
    assert out.dtype == np.float64
    np.testing.assert_allclose(out, run(g, feed)[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", ["add", "mul", "max", "matmul", "reduce_sum", "reduce_max", "relu", "abs"])
def test_integers(op: str, dtype: str) -> None:
    shapes = {
        "add": ((3, 5), (5,)),
        "mul": ((3, 5), (5,)),
        "max": ((4, 5), (5,)),
        "matmul": ((7, 13), (13, 5)),
    }
    g = single(op, shapes.get(op, ((3, 17),)), {}, dtype)
    rng = np.random.default_rng(0)
    feed = {v.name: rng.integers(-99, 99, v.shape).astype(dtype) for v in g.inputs}
    out = compiled(dag_of(g), feed)
    np.testing.assert_array_equal(out, run(g, feed)[0])


@pytest.mark.parametrize("to", ["float32", "float64", "int32", "int64", "bool"])
@pytest.mark.parametrize("source", ["float32", "float64", "int32", "int64"])
def test_cast(source: str, to: str) -> None:
    g = Graph("cast")
    g.output(g.input((37,), source, name="x").cast(to))
    x = np.linspace(-7.9, 7.9, 37).astype(source)
    x[3] = 0
    np.testing.assert_array_equal(compiled(dag_of(g), {"x": x}), x.astype(to))


@pytest.mark.parametrize("index_type", ["int32", "int64"])
def test_gather_and_embedding(index_type: str) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((7, 5)).astype(np.float32)
    picked = np.array([[0, 6, -1], [3, -7, 2]], index_type)
    for op, attrs, expected in (
        ("gather", {"axis": 0}, table[picked]),
        ("embedding", {}, table[picked]),
    ):
        g = Graph(op)
        x, i = g.input(table.shape, name="x"), g.input(picked.shape, index_type, name="i")
        g.output(g.apply(op, x, i, **attrs))
        feed = {"x": table, "i": picked}
        np.testing.assert_array_equal(run(g, feed)[0], expected)
        np.testing.assert_array_equal(compiled(dag_of(g), feed), expected)
    far = Graph("far")
    far.output(far.input((4, 3), name="x").gather(far.input((2,), "int64", name="i"), axis=1))
    out = compiled(dag_of(far), {"x": table[:4, :3], "i": np.array([99, -99])})
    np.testing.assert_array_equal(out, table[:4, [2, 0]])


def test_concat() -> None:
    g = Graph("concat")
    parts = [g.input((2, n, 3), name=f"x{n}") for n in (5, 0, 1, 7)]
    g.output(g.concat(parts, axis=1))
    feed = random_feed(g)
    np.testing.assert_array_equal(compiled(dag_of(g), feed), run(g, feed)[0])


def test_batch_norm() -> None:
    g = Graph("bn")
    g.output(g.batch_norm(g.input((2, 5, 3, 3), name="x"), *(g.input((5,), name=f"p{k}") for k in range(4))))
    feed = random_feed(g)
    feed["p3"] = np.abs(feed["p3"]) + np.float32(0.1)
    np.testing.assert_allclose(compiled(dag_of(g), feed), run(g, feed)[0], rtol=1e-5, atol=1e-5)


def test_pow_follows_c() -> None:
    x = np.array([-2.0, -0.5, 0.0, 1.0, 3.0, np.inf, np.nan], np.float32)
    g = Graph("pow")
    g.output(g.input((7, 1), name="x") ** g.input((7,), name="z"))
    feed = {"x": x[:, None], "z": x}
    np.testing.assert_allclose(compiled(dag_of(g), feed), run(g, feed)[0], rtol=1e-6)


# -- NaN and padding, after faults reported of other compilers -------------------------------------


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins_in_either_operand(op: str) -> None:
    nan = np.nan
    a, b = np.array([nan, 1, nan, 0], np.float32), np.array([1, nan, nan, 0], np.float32)
    g = single(op, ((4,), (4,)), {})
    np.testing.assert_array_equal(compiled(dag_of(g), {"x0": a, "x1": b}), [nan, nan, nan, 0])


@pytest.mark.parametrize("position", [0, 5, 36])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_odd_numbers_in_a_row_of_softmax(odd: float, position: int) -> None:
    """A NaN, or two infinities to subtract, make their row NaN and no other; all of a row may be odd."""
    x = np.random.default_rng(7).standard_normal((4, 37)).astype(np.float32)
    x[1, position] = x[2, :] = odd
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        expected = e / e.sum(axis=1, keepdims=True)
    assert np.isnan(expected[2]).all()
    found = compiled(dag_of(single("softmax", ((4, 37),), {"axis": 1})), {"x0": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_nan_stays_in_relu_and_reductions() -> None:
    nan = np.nan
    x = np.array([nan, 1, nan, -2] * 9, np.float32)
    np.testing.assert_array_equal(compiled(dag_of(single("relu", ((36,),), {})), {"x0": x}), np.maximum(x, 0))
    np.testing.assert_array_equal(
        compiled(dag_of(single("relu6", ((36,),), {})), {"x0": x * 7}), np.clip(x * 7, 0, 6)
    )
    for position in range(37):
        row = np.arange(37, dtype=np.float32)
        row[position] = nan
        assert np.isnan(compiled(dag_of(single("reduce_max", ((37,),), {})), {"x0": row})[()])
    image = np.ones((1, 1, 4, 4), np.float32)
    image[0, 0, 1, 2] = nan
    g = single("max_pool", ((1, 1, 4, 4),), {"kernel": 2})
    np.testing.assert_array_equal(
        compiled(dag_of(g), {"x0": image}), np.array([[[[1, nan], [1, 1]]]], np.float32)
    )


def test_average_with_asymmetric_padding() -> None:
    g = single("avg_pool", ((1, 1, 2, 2),), {"kernel": 2, "stride": 1, "padding": (0, 0, 1, 1)})
    out = compiled(dag_of(g), {"x0": np.ones((1, 1, 2, 2), np.float32)})
    np.testing.assert_allclose(out[0, 0], [[1, 0.5], [0.5, 0.25]])


def test_average_with_ceil_mode() -> None:
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    g = single("avg_pool", (x.shape,), {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True})
    expected = [[14 / 9, 10 / 3, 2], [19 / 3, 11, 6], [4.5, 7.5, 4]]
    np.testing.assert_allclose(compiled(dag_of(g), {"x0": x})[0, 0], expected, rtol=1e-6)
    g = single("avg_pool", (x.shape,), {"kernel": 3, "stride": 2, "ceil_mode": True})
    np.testing.assert_allclose(compiled(dag_of(g), {"x0": x})[0, 0], [[6, 7.5], [12, 13.5]], rtol=1e-6)


def test_same_padding_with_dilation_keeps_the_size() -> None:
    g = single("conv2d", ((1, 1, 22, 22), (1, 1, 3, 3)), {"dilation": 2, "padding": "same"})
    assert g.outputs[0].shape == (1, 1, 22, 22)
    assert g.outputs[0].node.attrs["padding"] == (2, 2, 2, 2)


def test_depthwise_multiplier() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 4, 4, 4)).astype(np.float32)
    w = rng.standard_normal((8, 1, 2, 2)).astype(np.float32)
    g = single("conv2d", (x.shape, w.shape), {"groups": 4})
    out = compiled(dag_of(g), {"x0": x, "x1": w})
    for channel in range(8):
        alone = single("conv2d", ((1, 1, 4, 4), (1, 1, 2, 2)), {})
        feed = {"x0": x[:, channel // 2, None], "x1": w[channel, None]}
        np.testing.assert_allclose(out[:, channel], run(alone, feed)[0][:, 0], rtol=1e-5, atol=1e-6)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "words"),
    [
        ("add", ((3, 4), (5,)), {}, ["add_0", "[3, 4]", "[5]", "equal or 1"]),
        ("matmul", ((3, 4), (5, 6)), {}, ["4 columns", "5 rows"]),
        ("matmul", ((3,), (3, 6)), {}, ["at least 2 dimensions"]),
        ("dense", ((2, 3), (4, 5)), {}, ["3 features", "takes 4"]),
        ("conv2d", ((1, 3, 8, 8), (4, 5, 3, 3)), {}, ["take 5 channels", "input has 3"]),
        ("conv2d", ((1, 3, 2, 2), (4, 3, 3, 3)), {}, ["kernel of 3", "image of 2"]),
        ("conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), {"stride": 0}, ["stride", ">= 1"]),
        ("conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), {"stride": 1.5}, ["stride", ">= 1", "1.5"]),
        ("conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), {"dilation": 1.5}, ["dilation", ">= 1", "1.5"]),
        ("conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), {"padding": 1.5}, ["padding", "'same'", "1.5"]),
        ("reduce_sum", ((3, 4),), {"axes": 1.5}, ["axes", "1.5"]),
        ("conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), {"padding": "some"}, ["padding", "'same'"]),
        ("reshape", ((3, 4),), {"shape": (5, 2)}, ["12 elements", "has 10"]),
        ("transpose", ((3, 4),), {"axes": (0, 0)}, ["order of 0..1"]),
        ("softmax", ((3, 4),), {"axis": 2}, ["-2..1", "given 2"]),
        ("reduce_max", ((3, 0),), {"axes": 1}, ["largest of no elements"]),
        ("max_pool", ((1, 1, 4, 4),), {"kernel": 2, "padding": 2}, ["wholly in padding"]),
        ("layer_norm", ((3, 4), (3,)), {}, ["scale must be [4]", "found [3]"]),
        ("slice", ((3, 4),), {"begin": (0,), "end": (1,)}, ["need 2 numbers"]),
    ],
)
def test_errors_name_node_and_shapes(op: str, shapes: tuple, attrs: dict, words: list[str]) -> None:  # type: ignore[type-arg]
    with pytest.raises(GraphError) as e:
        single(op, shapes, attrs)
    for word in ["node", op, *words]:
        assert word in str(e.value), str(e.value)


def test_wrong_calls_are_graph_errors() -> None:
    g = Graph("g")
    x = g.input((2, 3), "int32", name="x")
    with pytest.raises(GraphError, match="cast"):
        x.exp()
    with pytest.raises(GraphError, match="unexpected keyword"):
        x.relu(alpha=1)
    with pytest.raises(GraphError, match="missing a required argument"):
        g.matmul(x)
    with pytest.raises(GraphError, match="already"):
        g.input((1,), name="x")
    with pytest.raises(GraphError, match="belongs to graph"):
        x + Graph("other").input((2, 3), "int32")
    with pytest.raises(AttributeError, match="no attribute"):
        x.does_not_exist()


@pytest.mark.parametrize(
    ("dtype", "number", "into"),
    [
        ("int32", 2**40, "int32"),
        ("int64", -(2**70), "int64"),
        ("float32", 10**39, "float32"),
        ("float32", 1e39, "float32"),
        ("float64", 10**400, "float64"),
        ("int32", 1e39, "float32"),
        ("bool", 2**70, "int64"),
    ],
)
def test_numbers_that_do_not_fit(dtype: str, number: float, into: str) -> None:
    x = Graph("g").input((2,), dtype, name="x")
    with pytest.raises(GraphError, match=f"add: the number .* does not fit into {into}"):
        x + number


def test_numbers_take_the_dtype_beside_them() -> None:
    g = Graph("g")
    x = g.input((2,), "bool", name="x")
    y = g.input((2,), "float32", name="y")
    g.output(x + 3, y + 2, y + float("inf"), y + float("nan"))
    feed = {"x": np.array([True, False]), "y": np.array([1, -np.inf], np.float32)}
    right = (np.array([4, 3]), [3, -np.inf], [np.inf, np.nan], [np.nan, np.nan])
    for found, expected in zip(run(g, feed), right, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [v.dtype for v in g.outputs] == ["int64", "float32", "float32", "float32"]


def test_no_more_dimensions_than_numpy_has() -> None:
    assert np.zeros((1,) * MAX_RANK).ndim == MAX_RANK
    with pytest.raises(ValueError, match="dimension"):
        np.zeros((1,) * (MAX_RANK + 1))
    g = Graph("g")
    assert g.input((1,) * MAX_RANK).ndim == MAX_RANK
    with pytest.raises(GraphError, match=f"{MAX_RANK + 1} dimensions"):
        g.input((1,) * (MAX_RANK + 1))
    with pytest.raises(GraphError, match=f"{MAX_RANK + 1} dimensions"):
        g.input((1,)).reshape((1,) * (MAX_RANK + 1))


def test_convolution_without_output_channels() -> None:
    g = single("conv2d", ((1, 3, 8, 8), (0, 3, 3, 3)), {})
    feed = random_feed(g)
    assert run(g, feed)[0].shape == compiled(dag_of(g), feed).shape == (1, 0, 6, 6)


def test_square_root_as_a_power() -> None:
    x = np.array([-np.inf, 4, -4, 0], np.float32)
    g = Graph("pow")
    g.output(g.input((4,), name="x") ** 0.5)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(run(g, {"x": x})[0], np.array([np.inf, 2, np.nan, 0], np.float32))


def test_names_that_are_no_operators_are_told_of_near_ones() -> None:
    x = Graph("g").input((2,), name="x")
    for name, near in (("sum", "reduce_sum"), ("max_pol", "max_pool"), ("Relu", "relu")):
        with pytest.raises(AttributeError, match=f"did you mean .*{near}"):
            getattr(x, name)


def test_operators_are_functions_and_methods() -> None:
    g = Graph("g")
    x = g.input((2, 3), name="x")
    assert seer.ops.relu(x).node.op == x.relu().node.op == g.relu(x).node.op == "relu"
    assert "kernel" in str(__import__("inspect").signature(seer.ops.max_pool))
    assert set(dir(seer.ops)) <= set(op_names())
    assert (2.0 - x).node.inputs[0].dtype == "float32"
    assert (x / 2).dtype == "float32"


def test_graph_prints() -> None:
    g = Graph("net")
    g.output(g.input((1, 4), name="x").dense(np.ones((4, 2), np.float32), name="fc").relu())
    assert str(g) == (
        "graph net\n"
        "  x: float32[1, 4] = input\n"
        "  constant_0: float32[4, 2] = constant\n"
        "  fc: float32[1, 2] = dense(x, constant_0)\n"
        "  relu_0: float32[1, 2] = relu(fc)\n"
        "  return relu_0"
    )
