"""Layers with random weights, scaled so that activations keep their size through a network."""

from __future__ import annotations

import numpy as np

from seer.graph.graph import Graph, Value


class Layers:
    """Adds layers to a graph; all weights come from one seed."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
        """float32 numbers from a normal distribution."""
        out = self.rng.standard_normal(shape, dtype=np.float32)
        out *= np.float32(scale)
        out += np.float32(mean)
        return out

    def conv(self, x: Value, out: int, kernel: int, stride: int = 1, groups: int = 1) -> Value:
        """A convolution padded to keep the size (divided by the stride), and its batch_norm."""
        per_group = x.shape[1] // groups
        w = self.normal(out, per_group, kernel, kernel, scale=(2 / (per_group * kernel**2)) ** 0.5)
        y = x.conv2d(self.graph.constant(w), stride=stride, padding=kernel // 2, groups=groups)
        return self.batch_norm(y)

    def batch_norm(self, x: Value) -> Value:
        """Statistics near those of what comes in, so that values stay near 1."""
        c = x.shape[1]
        scale, bias = self.normal(c, scale=0.1, mean=0.8), self.normal(c, scale=0.1)
        mean, variance = self.normal(c, scale=0.1), np.abs(self.normal(c, scale=0.2, mean=1.0)) + 0.1
        constants = [self.graph.constant(a.astype(np.float32)) for a in (scale, bias, mean, variance)]
        return x.batch_norm(*constants)

    def dense(self, x: Value, out: int, gain: float = 1.0) -> Value:
        """X @ w + bias."""
        w = self.normal(x.shape[-1], out, scale=gain * x.shape[-1] ** -0.5)
        return x.dense(self.graph.constant(w), self.graph.constant(self.normal(out, scale=0.1)))

    def layer_norm(self, x: Value, eps: float = 1e-12) -> Value:
        """Along the last dimension, with scale and bias."""
        n = x.shape[-1]
        scale, bias = self.normal(n, scale=0.1, mean=1.0), self.normal(n, scale=0.1)
        return x.layer_norm(self.graph.constant(scale), self.graph.constant(bias), eps=eps)
