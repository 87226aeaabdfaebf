"""Kernel cases by name: a graph for seer, the best NumPy form, and torch if it is installed.

    matmul_MxNxK            both operands are inputs
    batch_matmul_BxMxKxN    (B, M, K) @ (B, K, N), both inputs
    dense_MxNxK             the right operand is a weight, known ahead
    conv2d_CxHxW_O_KHxKW[_sS]      padded to keep the size (divided by the stride); batch 1
    depthwise_CxHxW_KHxKW[_sS]
    softmax_AxBx...         along the last dimension
    layernorm_RxC           along the last dimension, with scale and bias

Images are channels-last for every system, and weights are in the order that it likes best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import seer

DEFAULTS = (
    "matmul_512x512x512",
    "matmul_1024x1024x1024",
    "matmul_2048x2048x512",
    "dense_128x768x768",
    "dense_128x3072x768",
    "batch_matmul_12x128x64x128",
    "conv2d_64x56x56_64_3x3",
    "conv2d_128x28x28_128_3x3",
    "conv2d_512x7x7_512_3x3",
    "conv2d_256x56x56_64_1x1",
    "conv2d_3x224x224_64_7x7_s2",
    "depthwise_144x56x56_3x3",
    "softmax_12x128x128",
    "layernorm_128x768",
)


@dataclass(frozen=True)
class Case:
    """One kernel.

    Attributes:
        name: as on the command line.
        graph: what seer compiles.
        feed: random inputs, by name.
        numpy: the best NumPy form, ready to call.
        flop: floating-point operations, or 0 where bandwidth is what counts.
        torch: makes the torch form, given the module; None where there is none.
    """

    name: str
    graph: seer.Graph
    feed: dict[str, np.ndarray]
    numpy: Callable[[], np.ndarray]
    flop: int
    torch: Callable[[Any], Callable[[], Any]] | None


class CaseError(seer.errors.UserError):
    """A case's name cannot be read."""


def parse(name: str, seed: int = 0) -> Case:
    """The case of a name.

    Raises:
        CaseError: if the name has no known form.
    """
    rng = np.random.default_rng(seed)
    kind = next((k for k in _KINDS if name.startswith(k + "_")), None)
    match = re.fullmatch(_KINDS[kind][0], name[len(kind) + 1 :]) if kind else None
    if kind is None or match is None:
        forms = "matmul_MxNxK, batch_matmul_BxMxKxN, dense_MxNxK, conv2d_CxHxW_O_KHxKW[_sS], "
        raise CaseError(
            f"case {name!r}: known forms are {forms}depthwise_CxHxW_KHxKW[_sS], softmax_AxB, layernorm_RxC"
        )
    numbers = [int(n) if n else 1 for n in re.findall(r"\d+", match.group(0))]
    if "_s" not in name and kind in ("conv2d", "depthwise"):
        numbers.append(1)
    make: Callable[..., Case] = _KINDS[kind][1]
    return make(name, rng, *numbers)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _matmul(name: str, rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    a, b = _normal(rng, m, k), _normal(rng, k, n)
    g = seer.Graph(name)
    g.output(g.input(a.shape, name="a") @ g.input(b.shape, name="b"))

    def torch(t: Any) -> Callable[[], Any]:
        x, y = t.from_numpy(a), t.from_numpy(b)
        return lambda: x @ y

    return Case(name, g, {"a": a, "b": b}, lambda: a @ b, 2 * m * n * k, torch)


def _dense(name: str, rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    a, w = _normal(rng, m, k), _normal(rng, k, n)
    g = seer.Graph(name)
    g.output(g.input(a.shape, name="a").dense(w))

    def torch(t: Any) -> Callable[[], Any]:
        x, y = t.from_numpy(a), t.from_numpy(np.ascontiguousarray(w.T))
        return lambda: t.nn.functional.linear(x, y)

    return Case(name, g, {"a": a}, lambda: a @ w, 2 * m * n * k, torch)


def _batch_matmul(name: str, rng: np.random.Generator, b: int, m: int, k: int, n: int) -> Case:
    x, y = _normal(rng, b, m, k), _normal(rng, b, k, n)
    g = seer.Graph(name)
    g.output(g.input(x.shape, name="x") @ g.input(y.shape, name="y"))

    def torch(t: Any) -> Callable[[], Any]:
        p, q = t.from_numpy(x), t.from_numpy(y)
        return lambda: t.bmm(p, q)

    return Case(name, g, {"x": x, "y": y}, lambda: np.matmul(x, y), 2 * b * m * n * k, torch)


def _conv2d(
    name: str, rng: np.random.Generator, c: int, h: int, w: int, o: int, kh: int, kw: int, s: int
) -> Case:
    x, f = _normal(rng, 1, h, w, c), _normal(rng, kh, kw, c, o)
    pads = (kh // 2, kw // 2)
    g = seer.Graph(name)
    y = g.conv2d_nhwc(g.input(x.shape, name="x"), f, stride=s, padding=pads)
    g.output(y)
    columns = f.reshape(kh * kw * c, o)

    def numpy() -> np.ndarray:
        if (kh, kw, s) == (1, 1, 1):
            return (x.reshape(h * w, c) @ columns).reshape(1, h, w, o)
        windows = _windows(x, (kh, kw), pads, s)  # (1, OH, OW, C, KH, KW)
        flat = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, kh * kw * c)
        return (flat @ columns).reshape(y.shape)

    def torch(t: Any) -> Callable[[], Any]:
        p = t.from_numpy(x).permute(0, 3, 1, 2)
        q = t.from_numpy(f.transpose(3, 2, 0, 1).copy()).to(memory_format=t.channels_last)
        return lambda: t.nn.functional.conv2d(p, q, stride=s, padding=pads).permute(0, 2, 3, 1)

    flop = 2 * math.prod(y.shape) * kh * kw * c
    return Case(name, g, {"x": x}, numpy, flop, torch)


def _windows(x: np.ndarray, kernel: tuple[int, int], pads: tuple[int, int], stride: int) -> np.ndarray:
    (ph, pw) = pads
    xp = np.pad(x, ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(xp, kernel, axis=(1, 2))
    return view[:, ::stride, ::stride]


def _depthwise(name: str, rng: np.random.Generator, c: int, h: int, w: int, kh: int, kw: int, s: int) -> Case:
    x, f = _normal(rng, 1, h, w, c), _normal(rng, kh, kw, c)
    pads = (kh // 2, kw // 2)
    g = seer.Graph(name)
    y = g.depthwise_conv2d_nhwc(g.input(x.shape, name="x"), f, stride=s, padding=pads)
    g.output(y)

    def numpy() -> np.ndarray:
        xp = np.pad(x, ((0, 0), (pads[0],) * 2, (pads[1],) * 2, (0, 0)))
        oh, ow = y.shape[1:3]
        out = np.zeros(y.shape, np.float32)
        for i in range(kh):
            for j in range(kw):
                out += xp[:, i : i + (oh - 1) * s + 1 : s, j : j + (ow - 1) * s + 1 : s] * f[i, j]
        return out

    def torch(t: Any) -> Callable[[], Any]:
        p = t.from_numpy(x).permute(0, 3, 1, 2)
        q = t.from_numpy(f.transpose(2, 0, 1)[:, None].copy())
        return lambda: t.nn.functional.conv2d(p, q, stride=s, padding=pads, groups=c).permute(0, 2, 3, 1)

    return Case(name, g, {"x": x}, numpy, 2 * math.prod(y.shape) * kh * kw, torch)


def _softmax(name: str, rng: np.random.Generator, *shape: int) -> Case:
    x = _normal(rng, *shape)
    g = seer.Graph(name)
    g.output(g.input(x.shape, name="x").softmax())

    def numpy() -> np.ndarray:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        e /= e.sum(axis=-1, keepdims=True)
        return e

    def torch(t: Any) -> Callable[[], Any]:
        p = t.from_numpy(x)
        return lambda: t.softmax(p, -1)

    return Case(name, g, {"x": x}, numpy, 0, torch)


def _layernorm(name: str, rng: np.random.Generator, rows: int, columns: int) -> Case:
    x, scale, bias = _normal(rng, rows, columns), _normal(rng, columns), _normal(rng, columns)
    g = seer.Graph(name)
    g.output(g.input(x.shape, name="x").layer_norm(scale, bias, eps=1e-5))

    def numpy() -> np.ndarray:
        d = x - x.mean(axis=-1, keepdims=True)
        d /= np.sqrt((d * d).mean(axis=-1, keepdims=True) + np.float32(1e-5))
        d *= scale
        d += bias
        return d

    def torch(t: Any) -> Callable[[], Any]:
        p, a, b = (t.from_numpy(v) for v in (x, scale, bias))
        return lambda: t.nn.functional.layer_norm(p, (columns,), a, b, 1e-5)

    return Case(name, g, {"x": x}, numpy, 0, torch)


_N = r"\d+"
_KINDS: dict[str, tuple[str, Callable[..., Case]]] = {
    "batch_matmul": (f"{_N}x{_N}x{_N}x{_N}", _batch_matmul),
    "matmul": (f"{_N}x{_N}x{_N}", _matmul),
    "dense": (f"{_N}x{_N}x{_N}", _dense),
    "conv2d": (f"{_N}x{_N}x{_N}_{_N}_{_N}x{_N}(?:_s{_N})?", _conv2d),
    "depthwise": (f"{_N}x{_N}x{_N}_{_N}x{_N}(?:_s{_N})?", _depthwise),
    "softmax": (f"{_N}(?:x{_N})*", _softmax),
    "layernorm": (f"{_N}x{_N}", _layernorm),
}
