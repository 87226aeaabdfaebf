"""A small convolutional network for scikit-learn's 8x8 digits, trained by scripts/train_digits.py."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from seer.errors import UserError
from seer.graph.graph import Graph

WEIGHTS = Path(__file__).with_name("digits.npz")
TRAINING_IMAGES = 1297  # the first ones of scikit-learn's digits; the other 500 are held out


@lru_cache(maxsize=1)
def _weights() -> dict[str, np.ndarray]:
    if not WEIGHTS.exists():
        raise UserError(f"{WEIGHTS} is missing; run scripts/train_digits.py")
    with np.load(WEIGHTS) as file:
        return dict(file)


def digits(batch: int = 1) -> Graph:
    """Images (batch, 1, 8, 8) with pixels 0..1 -> probabilities (batch, 10)."""
    w = _weights()
    g = Graph("digits")
    x = g.input((batch, 1, 8, 8), name="image")
    y = x.conv2d(w["conv1_w"], w["conv1_b"], padding=1).relu()
    y = y.conv2d(w["conv2_w"], w["conv2_b"], padding=1).relu().max_pool(2)
    y = y.conv2d(w["conv3_w"], w["conv3_b"], padding=1).relu().max_pool(2)
    y = y.flatten().dense(w["dense_w"], w["dense_b"])
    g.output(y.softmax(name="probabilities"))
    return g
