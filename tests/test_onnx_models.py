"""Graphs written as ONNX models, run by onnxruntime, against the NumPy reference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from op_cases import CASES, single

import seer
from benchmarks.cases import parse
from benchmarks.onnx_models import OnnxModel, supported, to_onnx
from seer.cli import random_inputs
from seer.graph import reference
from seer.graph.registry import op_names

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def run(model: OnnxModel, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.data, providers=["CPUExecutionProvider"])
    return model.outputs(session.run(None, model.feed(feed)))


def check(graph: seer.Graph, is_nchw: bool = False) -> OnnxModel:
    feed = random_inputs(graph)
    model = to_onnx(graph, is_nchw)
    for out, expected in zip(run(model, feed), reference.run(graph, feed), strict=True):
        assert out.shape == expected.shape
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    return model


NONEMPTY = [c for c in CASES if all(0 not in s for s in c[1])]


@pytest.mark.parametrize(("op", "shapes", "attrs"), NONEMPTY, ids=lambda v: str(v))
def test_each_operator(op: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any]) -> None:
    check(single(op, shapes, attrs))


def test_pools_that_cannot_be_written_are_refused() -> None:
    graph = single("avg_pool", ((1, 2, 8, 5),), {"kernel": 3, "ceil_mode": True})
    with pytest.raises(seer.errors.UserError, match="ceil_mode"):
        to_onnx(graph)


def test_every_operator_is_there() -> None:
    # batch_norm is folded; widen is of 16-bit storage, which only seer's own passes choose.
    assert set(op_names()) - set(supported()) <= {"batch_norm", "widen"}


def test_weights_are_in_onnx_order() -> None:
    g = seer.Graph("g")
    rng = np.random.default_rng(0)
    x = g.input((2, 9, 8, 6), name="x")
    w = [rng.standard_normal(s, np.float32) for s in ((3, 3, 6, 4), (3, 3, 4), (4, 5), (7, 5))]
    y = g.depthwise_conv2d_nhwc(g.conv2d_nhwc(x, w[0], padding=1), w[1], stride=2)
    y = y.max_pool(2, layout="NHWC").global_avg_pool(layout="NHWC").flatten().dense(w[2])
    g.output(y.matmul(w[3], transpose_b=True))
    for is_nchw in (False, True):
        model = check(g, is_nchw)
        proto = pytest.importorskip("onnx").load_from_string(model.data)
        turns = [n.op_type for n in proto.graph.node].count("Transpose")
        assert turns == (1 if is_nchw else 2)  # before flatten, and of the input
        assert model.nchw_inputs == ({"x"} if is_nchw else frozenset())


def test_nodes_that_models_have() -> None:
    g = seer.Graph("g")
    rng = np.random.default_rng(0)
    tokens = g.input((2, 5), "int64", name="tokens")
    table = g.constant(rng.standard_normal((100, 8), np.float32))
    x = g.concat([table.embedding(tokens), table.gather(tokens)], axis=1) * 0.5
    g.output(x.matmul(table, transpose_b=True), x.cast("int32"))
    h = g.input((1, 3, 8, 8), name="image")
    h = h.conv2d(rng.standard_normal((4, 3, 3, 3), np.float32), padding=1)
    h = h.batch_norm(*(rng.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(4)))
    g.output(h, h.sigmoid())
    check(g)


@pytest.mark.parametrize("is_nchw", [False, True])
@pytest.mark.parametrize("name", ["dense_4x9x6", "conv2d_3x9x8_5_3x3_s2", "depthwise_5x7x6_3x3"])
def test_kernel_cases(name: str, is_nchw: bool) -> None:
    case = parse(name)
    model = to_onnx(case.graph, is_nchw)
    (out,) = run(model, case.feed)
    np.testing.assert_allclose(out, case.numpy(), rtol=1e-4, atol=1e-4)
    assert bool(model.nchw_outputs) == (is_nchw and not name.startswith("dense"))


SMALL: dict[str, dict[str, int]] = {
    "mlp": {},
    "digits": {},
    "resnet18": {"image": 32},
    "mobilenet": {"image": 32},
    "mobilenet_v2": {"image": 32},
    "bert_base": {"layers": 1, "hidden": 32, "heads": 4, "seq_len": 9},
    "vit_base": {"layers": 1, "hidden": 32, "heads": 4, "image": 32},
    "gpt2": {"layers": 1, "hidden": 32, "heads": 4, "sequence": 9, "vocabulary": 100},
}


@pytest.mark.parametrize("name", [n for n in SMALL if n in seer.zoo.names()])
def test_zoo(name: str) -> None:
    graph = seer.zoo.get(name, batch=2, **SMALL[name])
    feed = random_inputs(graph)
    for out, expected in zip(run(to_onnx(graph), feed), reference.run(graph, feed), strict=True):
        assert np.linalg.norm(out - expected) <= 1e-4 * np.linalg.norm(expected)
