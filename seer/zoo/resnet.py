"""Residual networks (He et al., arXiv 1512.03385; version 1.5: the 3x3 convolution has the stride)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seer.graph.graph import Graph, Value
from seer.zoo.layers import Layers

Block = Callable[[Layers, Value, int, int], Value]


def _basic(layers: Layers, x: Value, width: int, stride: int) -> Value:
    """Two 3x3 convolutions and the shortcut."""
    y = layers.conv(x, width, 3, stride).relu()
    y = layers.conv(y, width, 3)
    return (y + _shortcut(layers, x, width, stride)).relu()


def _bottleneck(layers: Layers, x: Value, width: int, stride: int) -> Value:
    """1x1 to the width, 3x3, 1x1 to four times the width, and the shortcut."""
    y = layers.conv(x, width, 1).relu()
    y = layers.conv(y, width, 3, stride).relu()
    y = layers.conv(y, 4 * width, 1)
    return (y + _shortcut(layers, x, 4 * width, stride)).relu()


def _shortcut(layers: Layers, x: Value, out: int, stride: int) -> Value:
    return x if x.shape[1] == out and stride == 1 else layers.conv(x, out, 1, stride)


def _resnet(
    name: str,
    block: Block,
    depths: Sequence[int],
    batch: int,
    image: int,
    width: float,
    classes: int,
    seed: int,
) -> Graph:
    g = Graph(name)
    layers = Layers(g, seed)
    x = g.input((batch, 3, image, image), name="image")
    first = max(round(64 * width), 1)
    y = layers.conv(x, first, 7, 2).relu().max_pool(3, stride=2, padding=1)
    for stage, depth in enumerate(depths):
        for k in range(depth):
            y = block(layers, y, first << stage, 2 if stage > 0 and k == 0 else 1)
    y = y.global_avg_pool().flatten()
    y = layers.dense(y, classes)
    g.output(y)
    return g


def resnet18(
    batch: int = 1, image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 0
) -> Graph:
    """ResNet-18 with a width multiplier: (batch, 3, image, image) -> (batch, classes)."""
    return _resnet("resnet18", _basic, (2, 2, 2, 2), batch, image, width, classes, seed)


def resnet34(
    batch: int = 1, image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 0
) -> Graph:
    """ResNet-34 with a width multiplier: (batch, 3, image, image) -> (batch, classes)."""
    return _resnet("resnet34", _basic, (3, 4, 6, 3), batch, image, width, classes, seed)


def resnet50(
    batch: int = 1, image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 0
) -> Graph:
    """ResNet-50 with a width multiplier: (batch, 3, image, image) -> (batch, classes)."""
    return _resnet("resnet50", _bottleneck, (3, 4, 6, 3), batch, image, width, classes, seed)
