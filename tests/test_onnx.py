"""ONNX models, made by onnx.helper, against ONNX's own reference implementation."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import seer
from benchmarks.onnx_models import to_onnx
from seer.cli import main, random_inputs
from seer.errors import UserError
from seer.frontend.onnx import supported
from seer.graph import reference

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
F = np.float32


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
) -> Any:
    """`inputs` are arrays, of which shape and dtype are taken, or (dtype, dims)."""
    given = []
    for name, x in inputs.items():
        dtype, dims = (x.dtype, x.shape) if isinstance(x, np.ndarray) else x
        given.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)
        )
    made = [helper.make_empty_tensor_value_info(n) for n in outputs]
    stored = [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", given, made, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check(proto: Any, feed: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> seer.Graph:
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, dict(feed))
    g = seer.from_onnx(proto)
    compiled = seer.compile(g)
    out = compiled(**{v.name: feed[v.name] for v in g.inputs})
    outputs = out if isinstance(out, tuple) else (out,)
    plain = reference.run(g, {v.name: feed[v.name] for v in g.inputs})
    for results in (outputs, plain):
        for a, b in zip(results, expected, strict=True):
            assert a.shape == np.shape(b)
            assert a.dtype == np.asarray(b).dtype
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return g


def one(
    op: str,
    feed: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    order: Sequence[str] | None = None,
    n_outputs: int = 1,
    **attrs: Any,
) -> seer.Graph:
    """A model of one node."""
    names = list(order) if order is not None else [*feed, *(weights or {})]
    outputs = [f"y{k}" for k in range(n_outputs)]
    return check(
        model([helper.make_node(op, names, outputs, "the_node", **attrs)], feed, outputs, weights, opset),
        feed,
    )


X = {"x": array(2, 3, 4, 5)}
IMAGE = {"x": array(2, 6, 11, 9)}


@pytest.mark.parametrize(
    "op",
    [
        "Relu",
        "Neg",
        "Abs",
        "Exp",
        "Tanh",
        "Erf",
        "Sigmoid",
        "HardSwish",
        "Softplus",
        "Elu",
        "Mish",
        "Identity",
    ],
)
def test_unary(op: str) -> None:
    one(op, X)


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_unary_of_positive_numbers(op: str) -> None:
    one(op, {"x": np.abs(array(4, 7)) + F(0.1)})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_binary(op: str) -> None:
    one(op, {"a": array(2, 3, 4), "b": array(3, 1, seed=1)})
    one(op, {"a": array(2, 3, 4)}, {"w": array(4, seed=2)})
    one(op, {"a": array(2, 3, 4)}, {"w": array(1, seed=2)[0]})
    one(op, {"a": array(2, 3, 4)}, {"w": array(4, seed=2)}, order=["w", "a"])


def test_many_operands() -> None:
    feed = {"a": array(3, 4), "b": array(3, 4, seed=1), "c": array(4, seed=2)}
    for op in ("Sum", "Max", "Min"):
        one(op, feed)
    one("Sum", {"a": array(3)})


def test_parameters() -> None:
    one("LeakyRelu", X, alpha=0.3)
    one("HardSigmoid", X, alpha=0.3, beta=0.4)
    one("Gelu", X, opset=20)
    one("Gelu", X, opset=20, approximate="tanh")
    one("Pow", X, {"p": np.array(2.0, F)})
    one("Pow", X, {"p": np.array(3, np.int64)})
    one("Pow", {"x": np.abs(array(7))}, {"p": np.array([0.5], F)})
    one("Cast", {"x": 10 * array(9)}, to=onnx.TensorProto.INT64)
    one("Cast", {"x": ints(1, 2, -3)}, to=onnx.TensorProto.FLOAT)
    one("Dropout", X)


def test_clip() -> None:
    low, high = np.array(-0.5, F), np.array(0.7, F)
    one("Clip", X, {"low": low, "high": high})
    one("Clip", X, {"low": low})
    one("Clip", X, {"high": high}, order=["x", "", "high"])
    one("Clip", X, {"low": np.array(0, F), "high": np.array(6, F)})
    one("Clip", X, {"low": np.array(0, F)})
    one("Clip", X, opset=7, min=-0.25, max=0.5)
    one("Clip", X, opset=7)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"pads": [0, 2, 1, 1], "strides": [1, 2], "kernel_shape": [3, 3]},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "VALID"},
    ],
)
def test_conv(attrs: dict[str, Any]) -> None:
    one("Conv", IMAGE, {"w": array(4, 6, 3, 3, seed=1), "b": array(4, seed=2)}, **attrs)


def test_grouped_convs() -> None:
    one("Conv", IMAGE, {"w": array(6, 1, 3, 3, seed=1)}, group=6, pads=[1, 1, 1, 1])
    one("Conv", IMAGE, {"w": array(8, 3, 2, 2, seed=1)}, group=2)


@pytest.mark.parametrize(
    "attrs",
    [{}, {"strides": [2, 2]}, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, {"strides": [3, 2], "ceil_mode": 1}],
)
def test_pools(attrs: dict[str, Any]) -> None:
    one("MaxPool", IMAGE, kernel_shape=[3, 3], **attrs)
    one("AveragePool", IMAGE, kernel_shape=[3, 2], opset=19, **attrs)
    one("AveragePool", IMAGE, kernel_shape=[3, 3], opset=19, count_include_pad=1, **attrs)


def test_global_pools() -> None:
    one("GlobalAveragePool", IMAGE)
    one("GlobalMaxPool", IMAGE)


def test_gemm() -> None:
    a, w, b = array(4, 5), array(5, 7, seed=1), array(7, seed=2)
    one("Gemm", {"a": a}, {"w": w, "b": b})
    one("Gemm", {"a": a}, {"w": w.T.copy(), "b": b}, transB=1)
    one("Gemm", {"a": a}, {"w": w})
    one("Gemm", {"a": a.T.copy()}, {"w": w, "b": b}, transA=1, alpha=0.5, beta=2.0)
    one("Gemm", {"a": a}, {"w": w, "b": array(4, 1, seed=3)})
    one("Gemm", {"a": a, "w": w.T.copy(), "b": b}, transB=1, alpha=0.5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 5), (5, 6)),
        ((2, 4, 5), (5, 6)),
        ((2, 3, 4, 5), (3, 5, 6)),
        ((5,), (5, 6)),
        ((4, 5), (5,)),
        ((5,), (5,)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = array(*left), array(*right, seed=1)
    one("MatMul", {"a": a, "b": b})
    one("MatMul", {"a": a}, {"b": b})


def test_normalisations() -> None:
    c = [array(6, seed=k) for k in range(3)]
    weights = dict(zip(("scale", "bias", "mean"), c, strict=True)) | {
        "var": np.abs(array(6, seed=4)) + F(0.5)
    }
    one("BatchNormalization", IMAGE, weights, epsilon=1e-3)
    one(
        "LayerNormalization", {"x": array(3, 7)}, {"s": array(7, seed=1), "b": array(7, seed=2)}, epsilon=1e-3
    )
    one("LayerNormalization", {"x": array(3, 7)}, {"s": array(7, seed=1)})
    one(
        "LayerNormalization",
        {"x": array(3, 4, 7)},
        {"s": array(4, 7, seed=1), "b": array(4, 7, seed=2)},
        axis=1,
    )


def test_softmax() -> None:
    one("Softmax", X)
    one("Softmax", X, axis=1)
    one("LogSoftmax", X, axis=-2)
    # Before version 13 everything from the axis on is one dimension.
    proto = model([helper.make_node("Softmax", ["x"], ["y"], axis=2)], X, ["y"], opset=11)
    out = seer.compile(seer.from_onnx(proto))(X["x"])
    flat = np.exp(X["x"].reshape(6, 20))
    np.testing.assert_allclose(out, (flat / flat.sum(1, keepdims=True)).reshape(X["x"].shape), rtol=1e-5)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_reductions(op: str) -> None:
    one(op, X, {"axes": ints(1, -1)})
    one(op, X, {"axes": ints(2)}, keepdims=0)
    one(op, X, keepdims=0)
    one(op, X, noop_with_empty_axes=1)
    one(op, X, opset=11, axes=[1, 2], keepdims=0)


def test_moves() -> None:
    one("Reshape", X, {"shape": ints(0, -1, 10)})
    one("Flatten", X)
    one("Flatten", X, axis=-1)
    one("Transpose", X, perm=[0, 2, 3, 1])
    one("Transpose", X)
    one("Concat", {"a": array(2, 3), "b": array(2, 5)}, {"w": array(2, 1)}, axis=-1)
    one("Squeeze", {"x": array(1, 3, 1)}, {"axes": ints(0, -1)})
    one("Squeeze", {"x": array(1, 3, 1)})
    one("Squeeze", {"x": array(1, 3, 1)}, opset=11, axes=[2])
    one("Unsqueeze", {"x": array(3, 4)}, {"axes": ints(0, -1)})
    one("Expand", {"x": array(3, 1)}, {"shape": ints(2, 1, 4)})


def test_slices() -> None:
    names = ("starts", "ends", "axes", "steps")

    def given(*rows: Sequence[int]) -> dict[str, np.ndarray]:
        return {n: ints(*r) for n, r in zip(names, rows, strict=False)}

    one("Slice", X, given([0, 1], [2, 3]))
    one("Slice", X, given([1, -2], [2**63 - 1, 9], [2, -1]))
    one("Slice", X, given([0], [-1], [3], [2]))
    one("Slice", X, opset=9, starts=[1], ends=[3], axes=[1])


def test_pads() -> None:
    pads = ints(0, 1, 0, 2, 1, 0, 0, 3)
    one("Pad", X, {"pads": pads})
    one("Pad", X, {"pads": pads, "value": np.array(1.5, F)})
    one("Pad", X, {"pads": ints(1, 2), "axes": ints(-1)}, order=["x", "pads", "", "axes"])
    one("Pad", X, opset=10, pads=list(pads), value=2.0)


def test_gathers() -> None:
    one("Gather", {"i": np.array([[0, 5], [-1, 3]])}, {"table": array(7, 4)}, order=["table", "i"])
    one("Gather", X, {"i": ints(2, 0)}, axis=2)
    one("Gather", X, {"i": np.array(-1)}, axis=1)


def test_splits() -> None:
    one("Split", {"x": array(6, 4)}, n_outputs=3, num_outputs=3)
    one("Split", {"x": array(7, 4)}, n_outputs=3, num_outputs=3)
    one("Split", {"x": array(2, 6)}, {"sizes": ints(1, 3, 2)}, n_outputs=3, axis=1)
    one("Split", {"x": array(2, 6)}, opset=11, n_outputs=2, axis=1, split=[2, 4])


# -- models ----------------------------------------------------------------------------------------


def test_shapes_are_folded() -> None:
    """What exporters write for x.reshape(x.shape[0], -1)."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0))),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(ints(0))),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Constant", [], ["minus"], value=numpy_helper.from_array(ints(-1))),
        helper.make_node("Concat", ["n1", "minus"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    g = check(model(nodes, X, ["y"]), X)
    assert [v.node.op for v in g.values()] == ["input", "reshape"]


def small_net() -> tuple[Any, dict[str, np.ndarray]]:
    weights = {
        "w1": array(8, 3, 3, 3, seed=1) * F(0.3),
        "w2": array(8, 1, 3, 3, seed=2) * F(0.3),
        "w3": array(5, 8, seed=3),
        "b3": array(5, seed=4),
        **{n: np.abs(array(8, seed=5 + k)) + F(0.5) for k, n in enumerate(("scale", "shift", "mean", "var"))},
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c1", "scale", "shift", "mean", "var"], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["a2"]),
        helper.make_node("GlobalAveragePool", ["a2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
    ]
    feed = {"image": array(2, 3, 12, 12)}
    return model(nodes, feed, ["probabilities", "logits"], weights), feed


def test_a_convolutional_net() -> None:
    g = check(*small_net())
    assert [v.name for v in g.inputs] == ["image"]
    assert [v.name for v in g.outputs] == ["probabilities", "logits"]


def test_attention() -> None:
    """A layer of a transformer, in the operators of an exporter, with tied and transposed weights."""
    h, heads, n = 16, 2, 6
    weights = {k: array(h, h, seed=s) * F(0.2) for s, k in enumerate(("wq", "wk", "wv", "wo"))}
    weights |= {
        "table": array(30, h, seed=9),
        "split": ints(1, n, heads, h // heads),
        "join": ints(1, n, h),
        "root": np.array((h // heads) ** 0.5, F),
        "mask": np.triu(np.full((n, n), -np.inf, F), 1),
        "s": array(h, seed=10),
        "b": array(h, seed=11),
    }
    nodes = [helper.make_node("Gather", ["table", "tokens"], ["x"])]
    for k in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{k}"], [f"{k}0"]),
            helper.make_node("Reshape", [f"{k}0", "split"], [f"{k}1"]),
            helper.make_node("Transpose", [f"{k}1"], [k], perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s0"]),
        helper.make_node("Div", ["s0", "root"], ["s1"]),
        helper.make_node("Add", ["s1", "mask"], ["s2"]),
        helper.make_node("Softmax", ["s2"], ["a"], axis=-1),
        helper.make_node("MatMul", ["a", "v"], ["o0"]),
        helper.make_node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["o1", "join"], ["o2"]),
        helper.make_node("MatMul", ["o2", "wo"], ["o3"]),
        helper.make_node("Add", ["o3", "x"], ["z"]),
        helper.make_node("LayerNormalization", ["z", "s", "b"], ["ln"]),
        helper.make_node("Transpose", ["table"], ["tied"], perm=[1, 0]),
        helper.make_node("MatMul", ["ln", "tied"], ["logits"]),
    ]
    feed = {"tokens": np.array([[3, 1, 4, 1, 5, 29]])}
    check(model(nodes, feed, ["logits"], weights), feed, 1e-4)


def test_files_dimensions_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = {"w": array(20, 6)}
    path = tmp_path / "net.onnx"
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    onnx.save(model([node], {"x": (F, ["batch", "width"])}, ["y"], w), path)
    g = seer.from_onnx(path, {"batch": 3, "width": 20})
    assert g.inputs[0].shape == (3, 20)
    args = [str(path), "--batch", "2", "--set", "width=20"]
    assert main(["tune", *args, "--trials", "8", "--records", str(tmp_path / "r.db")]) == 0
    assert "test: 1 tasks, 8 trials" in capsys.readouterr().out
    assert main(["bench", *args, "--records", str(tmp_path / "r.db"), "--repeat", "2"]) == 0
    assert "relative error" in capsys.readouterr().out
    assert main(["tune", str(path), "--trials", "8"]) == 2
    assert "dimension 1 (width) of input 'x' is not known" in capsys.readouterr().err


ZOO: list[tuple[str, dict[str, Any]]] = [
    ("mobilenet_v2", {"image": 32, "width": 0.25}),
    ("gpt2", {"layers": 1, "sequence": 9, "hidden": 32, "heads": 2, "vocabulary": 120}),
    ("vit_base", {"image": 32, "layers": 1, "hidden": 32, "heads": 2}),
]


@pytest.mark.parametrize(("name", "options"), ZOO, ids=lambda v: str(v)[:12])
def test_models_written_and_read_again(name: str, options: dict[str, Any]) -> None:
    graph = seer.zoo.get(name, **options)
    again = seer.from_onnx(onnx.load_model_from_string(to_onnx(graph).data))
    feed = random_inputs(graph)
    fed = {b.name: feed[a.name] for a, b in zip(graph.inputs, again.inputs, strict=True)}
    (out,), (expected,) = reference.run(again, fed), reference.run(graph, feed)
    assert np.linalg.norm(out - expected) <= 1e-5 * np.linalg.norm(expected)


# -- errors ----------------------------------------------------------------------------------------


def fails(nodes: Sequence[Any], words: str, feed: Mapping[str, Any] | None = None, **options: Any) -> None:
    with pytest.raises(UserError, match=words):
        seer.from_onnx(model(nodes, feed or X, ["y"], **options))


def test_errors_name_the_node() -> None:
    node = helper.make_node
    fails(
        [node("NonZero", ["x"], ["y"], "find")], r"node 'find' \(NonZero\): seer has no importer for ai.onnx"
    )
    fails([node("Softmax", ["x"], ["y"], "soft", axis=7)], r"node 'soft' \(Softmax\).*axis must be")
    fails(
        [node("Conv", ["x", "w"], ["y"], "c")],
        r"node 'c' \(Conv\).*channels",
        weights={"w": array(2, 9, 3, 3)},
    )
    fails([node("Add", ["x", "w"], ["y"])], r"node 'y' \(Add\).*do not broadcast", weights={"w": array(9)})
    fails([node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT16)], "is float16; convert the model")
    fails([node("Cast", ["x"], ["y"], to=onnx.TensorProto.UINT8)], "is uint8, which seer does not have")
    fails([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2])], "attribute dilations")
    fails([node("Pad", ["x", "p"], ["y"], mode="edge")], "mode is 'edge'", weights={"p": ints(*[1] * 8)})
    two = {"x": array(2, 3), "s": ints(3, 2)}
    fails(
        [node("Reshape", ["x", "s"], ["y"], "r")],
        r"'r' \(Reshape\): shape must be known ahead, but s is",
        two,
    )
    steps = {n: ints(v) for n, v in {"a": 3, "b": 0, "axes": 0, "steps": -1}.items()}
    fails([node("Slice", ["x", *steps], ["y"])], "steps must be >= 1", weights=steps)


def test_errors_of_models(tmp_path: Path) -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    fails(relu, "dimension 0 .n. of input 'x' is not known; give it, as in from_onnx", {"x": (F, ["n", 3])})
    for extent in (-2, 1.5, True, "2"):
        with pytest.raises(UserError, match="dimension n of input 'x' is a whole number >= 0, given"):
            seer.from_onnx(model(relu, {"x": (F, ["n", 3])}, ["y"]), {"n": extent})  # type: ignore[dict-item]
    fails(relu, "it has no name either", {"x": (F, [None, 3])})
    fails(relu, "version 6 of ONNX's operators, not >= 7", opset=6)
    fails(relu, "input 'x' is float16", {"x": np.zeros(3, np.float16)})
    late = [helper.make_node("Relu", ["z"], ["y"], "early"), helper.make_node("Relu", ["x"], ["z"])]
    fails(late, "node 'early' .Relu.: nothing before it computes z")
    with pytest.raises(UserError, match="there is no file"):
        seer.from_onnx(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(UserError, match="is not an ONNX model"):
        seer.from_onnx(tmp_path / "text.onnx")
    with pytest.raises(UserError, match=r"a path or an onnx.ModelProto, given int"):
        seer.from_onnx(3)


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx.reference", None)
    with pytest.raises(UserError, match=r"pip install 'seer\[onnx\]'"):
        seer.from_onnx("net.onnx")


def test_the_importers_are_listed() -> None:
    wanted = """
    Conv Gemm MatMul Add Sub Mul Div Relu Clip Sigmoid Tanh Erf Exp Sqrt Softmax LayerNormalization
    BatchNormalization MaxPool AveragePool GlobalAveragePool ReduceSum ReduceMean ReduceMax Reshape Transpose
    Flatten Concat Slice Pad Cast Gather Identity Shape"""
    assert set(wanted.split()) <= set(supported())
