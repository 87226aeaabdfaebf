"""MobileNet (Howard et al., arXiv 1704.04861) and MobileNetV2 (Sandler et al., arXiv 1801.04381)."""

from __future__ import annotations

from seer.graph.graph import Graph, Value
from seer.zoo.layers import Layers

# Expansion, output channels, repeats, stride of the first.
_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


# Output channels and stride of each depthwise-separable block of the first MobileNet.
_SEPARABLE = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)


def _channels(n: float) -> int:
    """To a multiple of 8, at most 10 % fewer."""
    out = max(8, int(n + 4) // 8 * 8)
    return out + 8 if out < 0.9 * n else out


def _inverted(layers: Layers, x: Value, expansion: int, out: int, stride: int) -> Value:
    """1x1 to more channels, 3x3 by channel, 1x1 back, and the shortcut where shapes allow."""
    c = x.shape[1]
    y = x if expansion == 1 else layers.conv(x, c * expansion, 1).relu6()
    y = layers.conv(y, c * expansion, 3, stride, groups=c * expansion).relu6()
    y = layers.conv(y, out, 1)
    return x + y if stride == 1 and c == out else y


def mobilenet_v2(
    batch: int = 1, image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 0
) -> Graph:
    """MobileNetV2 with a width multiplier: (batch, 3, image, image) -> (batch, classes)."""
    g = Graph("mobilenet_v2")
    layers = Layers(g, seed)
    x = g.input((batch, 3, image, image), name="image")
    y = layers.conv(x, _channels(32 * width), 3, 2).relu6()
    for expansion, out, repeats, stride in _BLOCKS:
        for k in range(repeats):
            y = _inverted(layers, y, expansion, _channels(out * width), stride if k == 0 else 1)
    y = layers.conv(y, _channels(1280 * max(1.0, width)), 1).relu6()
    g.output(layers.dense(y.global_avg_pool().flatten(), classes))
    return g


def mobilenet(
    batch: int = 1, image: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 0
) -> Graph:
    """MobileNet with a width multiplier: (batch, 3, image, image) -> (batch, classes)."""
    g = Graph("mobilenet")
    layers = Layers(g, seed)
    x = g.input((batch, 3, image, image), name="image")
    y = layers.conv(x, _channels(32 * width), 3, 2).relu6()
    for out, stride in _SEPARABLE:
        c = y.shape[1]
        y = layers.conv(y, c, 3, stride, groups=c).relu6()
        y = layers.conv(y, _channels(out * width), 1).relu6()
    g.output(layers.dense(y.global_avg_pool().flatten(), classes))
    return g
