"""Every zoo model, compiled without tuning, against its NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import seer
from seer.cli import random_inputs
from seer.errors import UserError
from seer.graph.graph import Graph
from seer.graph.reference import run

SMALL: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {}),
    ("mlp", {"batch": 3, "hidden": (31, 7)}),
    ("digits", {}),
    ("digits", {"batch": 5}),
    ("resnet18", {"image": 64}),
    ("resnet50", {"image": 32, "batch": 2}),
    ("mobilenet_v2", {"image": 64, "width": 0.5}),
    ("mobilenet", {"image": 32, "width": 0.25}),
    ("bert_base", {"layers": 1, "seq_len": 37, "hidden": 96, "heads": 4, "vocabulary": 500}),
    ("bert_base", {"layers": 2, "seq_len": 16, "batch": 2, "hidden": 64, "heads": 2, "vocabulary": 99}),
    ("vit_base", {"image": 48, "layers": 1, "hidden": 96, "heads": 4, "classes": 11}),
    ("vit_base", {"image": 42, "patch": 14, "layers": 2, "hidden": 64, "heads": 2, "batch": 2}),
    ("gpt2", {"layers": 1, "sequence": 37, "hidden": 96, "heads": 4, "vocabulary": 501}),
    ("gpt2", {"layers": 2, "sequence": 16, "batch": 2, "hidden": 64, "heads": 2, "vocabulary": 99}),
]
FULL: list[tuple[str, dict[str, Any]]] = [
    ("resnet18", {}),
    ("resnet34", {}),
    ("resnet50", {}),
    ("mobilenet", {}),
    ("mobilenet_v2", {}),
    ("bert_base", {}),
    ("vit_base", {}),
    ("gpt2", {}),
]


def relative_error(model: Graph, compiled: Any, seed: int = 0) -> float:
    feed = random_inputs(model, seed)
    out = compiled(**feed)
    outputs = out if isinstance(out, tuple) else (out,)
    worst = 0.0
    for a, b in zip(outputs, run(model, feed), strict=True):
        assert a.shape == b.shape
        worst = max(worst, float(np.linalg.norm(a - b) / np.linalg.norm(b)))
    return worst


@pytest.mark.parametrize(("name", "options"), SMALL, ids=lambda v: str(v).replace(" ", ""))
def test_untuned_models_are_right(name: str, options: dict[str, Any]) -> None:
    model = seer.zoo.get(name, **options)
    assert relative_error(model, seer.compile(model)) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), FULL, ids=lambda v: str(v))
def test_full_size_models_are_right(name: str, options: dict[str, Any]) -> None:
    model = seer.zoo.get(name, **options)
    assert relative_error(model, seer.compile(model)) <= 1e-5


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert_base", "vit_base", "gpt2"])
def test_weights_come_from_the_seed(name: str) -> None:
    options: dict[str, Any] = {"image": 32}
    if name == "vit_base":
        options["layers"] = 1
    if name in ("bert_base", "gpt2"):
        options = {"layers": 1, "vocabulary": 50}
    feed = random_inputs(seer.zoo.get(name, **options))
    feed = {k: v % 50 if v.dtype.kind == "i" else v for k, v in feed.items()}
    a, b, c = (run(seer.zoo.get(name, seed=s, **options), feed)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.linalg.norm(a - c) > 0.1 * np.linalg.norm(a)
    assert 0.01 < np.abs(a).mean() < 100  # neither vanished nor exploded


def test_digits_reads_digits() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    from seer.zoo.digits import TRAINING_IMAGES

    x = (data.images[TRAINING_IMAGES:, None] / 16).astype(np.float32)
    labels = data.target[TRAINING_IMAGES:]
    model = seer.zoo.digits(batch=len(x))
    reference = run(model, {"image": x})[0].argmax(1)
    assert (reference == labels).mean() >= 0.98
    untuned = seer.compile(model)(x).argmax(1)
    tuned_records = seer.tune(model, trials=48, seed=0, progress=False).records
    tuned = seer.compile(model, records=tuned_records)(x).argmax(1)
    np.testing.assert_array_equal(untuned, reference)
    np.testing.assert_array_equal(tuned, reference)


def test_names_and_errors() -> None:
    assert {"mlp", "digits", "resnet18", "mobilenet_v2", "bert_base"} <= set(seer.zoo.names())
    with pytest.raises(UserError, match="unknown model 'vgg'; the zoo has mlp"):
        seer.zoo.get("vgg")
    with pytest.raises(UserError, match="unexpected keyword argument 'size'"):
        seer.zoo.get("resnet18", size=3)
    with pytest.raises(UserError, match="do not divide"):
        seer.zoo.bert_base(hidden=100, heads=3)
    with pytest.raises(UserError, match="gpt2: 768 hidden units do not divide into 5 heads"):
        seer.zoo.gpt2(heads=5)
    with pytest.raises(UserError, match="an image of 100 does not divide into patches of 16"):
        seer.zoo.vit_base(image=100)


def test_gpt2_does_not_look_ahead() -> None:
    model = seer.zoo.gpt2(sequence=8, layers=1, hidden=32, heads=2, vocabulary=50)
    compiled = seer.compile(model)
    tokens = np.arange(8)[None]
    changed = tokens.copy()
    changed[0, 5] = 40
    a, b = compiled(tokens), compiled(changed)
    np.testing.assert_array_equal(a[:, :5], b[:, :5])
    assert (np.abs(a[:, 5:] - b[:, 5:]).max(axis=-1) > 1e-4).all()
