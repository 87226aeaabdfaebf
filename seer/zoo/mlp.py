"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from seer.graph.graph import Graph
from seer.zoo.layers import Layers


def mlp(
    batch: int = 1, features: int = 784, hidden: Sequence[int] = (512, 256), classes: int = 10, seed: int = 0
) -> Graph:
    """Dense layers with relu, then softmax: (batch, features) -> (batch, classes)."""
    g = Graph("mlp")
    layers = Layers(g, seed)
    x = g.input((batch, features), name="x")
    for n in hidden:
        x = layers.dense(x, n, gain=2**0.5).relu()
    g.output(layers.dense(x, classes).softmax(name="probabilities"))
    return g
