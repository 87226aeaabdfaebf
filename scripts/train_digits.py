"""Trains the weights of the zoo's `digits` model in plain NumPy and writes seer/zoo/digits.npz.

    python scripts/train_digits.py        # needs scikit-learn; about two minutes

The first 1297 images train, the last 500 are held out. The result depends on the seed alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

Array = np.ndarray
Weights = dict[str, Array]

OUT = Path(__file__).resolve().parent.parent / "seer" / "zoo" / "digits.npz"
HELD_OUT = 500


def windows(x: Array) -> Array:
    """3x3 windows of padded images: (N, H, W, C * 9)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    n, c, h, w = view.shape[:4]
    return view.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


class Conv:
    """A padded 3x3 convolution and relu."""

    def __init__(self, weights: Weights, name: str) -> None:
        self.weights, self.w, self.b = weights, f"{name}_w", f"{name}_b"

    def forward(self, x: Array) -> Array:
        w = self.weights[self.w]
        self.columns = windows(x)
        y = self.columns @ w.reshape(len(w), -1).T + self.weights[self.b]
        self.y = np.maximum(y, 0).transpose(0, 3, 1, 2)
        return self.y

    def backward(self, dy: Array, grads: Weights) -> Array:
        w = self.weights[self.w]
        d = (dy * (self.y > 0)).transpose(0, 2, 3, 1)
        flat = d.reshape(-1, len(w))
        grads[self.w] = (flat.T @ self.columns.reshape(len(flat), -1)).reshape(w.shape)
        grads[self.b] = flat.sum(0)
        turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        back = windows(d.transpose(0, 3, 1, 2)) @ turned.reshape(len(turned), -1).T
        return back.transpose(0, 3, 1, 2)


class Pool:
    """Largest of 2x2."""

    def forward(self, x: Array) -> Array:
        n, c, h, w = x.shape
        self.x = x.reshape(n, c, h // 2, 2, w // 2, 2)
        self.y = self.x.max(axis=(3, 5), keepdims=True)
        return self.y[:, :, :, 0, :, 0]

    def backward(self, dy: Array) -> Array:
        hit = self.x == self.y
        d = hit * dy[:, :, :, None, :, None] / hit.sum(axis=(3, 5), keepdims=True)
        n, c, h, _, w, _ = d.shape
        return d.reshape(n, c, h * 2, w * 2)


class Network:
    """conv, conv, pool, conv, pool, dense, softmax."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights: Weights = {}
        for name, out, ins in (("conv1", 32, 1), ("conv2", 32, 32), ("conv3", 64, 32)):
            self.weights[f"{name}_w"] = rng.standard_normal((out, ins, 3, 3)) * (2 / (ins * 9)) ** 0.5
            self.weights[f"{name}_b"] = np.zeros(out)
        self.weights["dense_w"] = rng.standard_normal((256, 10)) * 256**-0.5
        self.weights["dense_b"] = np.zeros(10)
        self.convs = [Conv(self.weights, f"conv{k}") for k in (1, 2, 3)]
        self.pools = [Pool(), Pool()]

    def forward(self, x: Array) -> Array:
        y = self.convs[1].forward(self.convs[0].forward(x))
        y = self.pools[0].forward(y)
        y = self.pools[1].forward(self.convs[2].forward(y))
        self.features = y.reshape(len(y), -1)
        logits = self.features @ self.weights["dense_w"] + self.weights["dense_b"]
        e = np.exp(logits - logits.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def gradients(self, x: Array, labels: Array) -> Weights:
        p = self.forward(x)
        p[np.arange(len(x)), labels] -= 1
        p /= len(x)
        grads = {"dense_w": self.features.T @ p, "dense_b": p.sum(0)}
        d = (p @ self.weights["dense_w"].T).reshape(len(x), 64, 2, 2)
        d = self.convs[2].backward(self.pools[1].backward(d), grads)
        d = self.convs[1].backward(self.pools[0].backward(d), grads)
        self.convs[0].backward(d, grads)
        return grads


def shifted(x: Array, rng: np.random.Generator) -> Array:
    """Each image moved by at most one pixel."""
    out = np.empty_like(x)
    for k, (i, j) in enumerate(rng.integers(-1, 2, (len(x), 2))):
        padded = np.pad(x[k, 0], 1)
        out[k, 0] = padded[1 + i : 9 + i, 1 + j : 9 + j]
    return out


def train(x: Array, labels: Array, epochs: int = 40, batch: int = 32, seed: int = 0) -> Network:
    """Adam with a decaying step."""
    net, rng = Network(seed), np.random.default_rng(seed + 1)
    first = {k: np.zeros_like(w) for k, w in net.weights.items()}
    second = {k: np.zeros_like(w) for k, w in net.weights.items()}
    step = 0
    for epoch in range(epochs):
        rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        order = rng.permutation(len(x))
        for start in range(0, len(x), batch):
            step += 1
            picked = order[start : start + batch]
            for k, g in net.gradients(shifted(x[picked], rng), labels[picked]).items():
                first[k] += 0.1 * (g - first[k])
                second[k] += 0.001 * (g * g - second[k])
                m, v = first[k] / (1 - 0.9**step), second[k] / (1 - 0.999**step)
                net.weights[k] -= rate * m / (np.sqrt(v) + 1e-8)
    return net


def main() -> None:
    """Train, report, write."""
    data = load_digits()
    x, labels = data.images[:, None] / 16.0, data.target
    net = train(x[:-HELD_OUT], labels[:-HELD_OUT])
    for what, part in (("training", slice(None, -HELD_OUT)), ("held-out", slice(-HELD_OUT, None))):
        right = (net.forward(x[part]).argmax(1) == labels[part]).mean()
        print(f"{what}: {100 * right:.1f} % right")
    np.savez_compressed(OUT, **{k: w.astype(np.float32) for k, w in net.weights.items()})
    print(f"wrote {OUT} ({OUT.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
