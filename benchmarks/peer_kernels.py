"""The kernels of the comparison with other compilers, as tensor expressions of TVM.

Imported by the interpreters of the peers, so it needs nothing but TVM and runs on Python 3.8.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

CASES = (
    "matmul_1024x1024x1024",
    "conv2d_64x56x56_64_3x3",
    "conv2d_256x56x56_64_1x1",
    "depthwise_144x56x56_3x3",
    "softmax_12x128x128",
)


def expressions(te: Any, tir: Any, name: str) -> list[Any]:
    """The input and output tensors of a case (see benchmarks/cases.py for the names)."""
    kind, _, rest = name.partition("_")
    numbers = [int(n) for n in re.findall(r"\d+", rest)]
    if kind == "matmul":
        m, n, k = numbers
        a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
        r = te.reduce_axis((0, k), name="k")
        return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")]
    if kind == "conv2d":
        c, h, w, o, kh, kw = numbers
        x, f = te.placeholder((1, h, w, c), name="X"), te.placeholder((kh, kw, c, o), name="F")
        p = _padded(te, tir, x, kh // 2, kw // 2)
        rh, rw, rc = (te.reduce_axis((0, e), name=n) for e, n in ((kh, "rh"), (kw, "rw"), (c, "rc")))
        y = te.compute(
            (1, h, w, o),
            lambda n, i, j, k: te.sum(p[n, i + rh, j + rw, rc] * f[rh, rw, rc, k], axis=[rh, rw, rc]),
            name="Y",
        )
        return [x, f, y]
    if kind == "depthwise":
        c, h, w, kh, kw = numbers
        x, f = te.placeholder((1, h, w, c), name="X"), te.placeholder((kh, kw, c), name="F")
        p = _padded(te, tir, x, kh // 2, kw // 2)
        rh, rw = te.reduce_axis((0, kh), name="rh"), te.reduce_axis((0, kw), name="rw")
        y = te.compute(
            (1, h, w, c),
            lambda n, i, j, k: te.sum(p[n, i + rh, j + rw, k] * f[rh, rw, k], axis=[rh, rw]),
            name="Y",
        )
        return [x, f, y]
    if kind == "softmax":
        shape = tuple(numbers)
        x = te.placeholder(shape, name="X")
        r, s = te.reduce_axis((0, shape[-1]), name="r"), te.reduce_axis((0, shape[-1]), name="s")
        top = te.compute(shape[:-1], lambda *i: te.max(x[(*i, r)], axis=r), name="top")
        e = te.compute(shape, lambda *i: te.exp(x[i] - top[i[:-1]]), name="e")
        total = te.compute(shape[:-1], lambda *i: te.sum(e[(*i, s)], axis=s), name="total")
        return [x, te.compute(shape, lambda *i: e[i] / total[i[:-1]], name="Y")]
    raise SystemExit(f"unknown case {name}")


def _padded(te: Any, tir: Any, x: Any, ph: int, pw: int) -> Any:
    if ph == pw == 0:
        return x
    n, h, w, c = (int(e) for e in x.shape)

    def at(b: Any, i: Any, j: Any, k: Any) -> Any:
        inside = tir.all(i >= ph, i < h + ph, j >= pw, j < w + pw)
        return tir.if_then_else(inside, x[b, i - ph, j - pw, k], tir.const(0.0, "float32"))

    return te.compute((n, h + 2 * ph, w + 2 * pw, c), at, name="P")


class Curve:
    """Writes a JSON line whenever the best time or the number of measurements changes."""

    def __init__(self) -> None:
        self.start, self.best, self.count = time.time(), float("inf"), 0

    def add(self, seconds: list[float]) -> None:
        """Note the run times of some measured candidates (infinity for failures)."""
        self.count += len(seconds)
        self.best = min([self.best, *seconds])
        row = {"seconds": time.time() - self.start, "measurements": self.count}
        if self.best < float("inf"):
            row["latency_ms"] = 1e3 * self.best
        sys.stdout.write("CURVE " + json.dumps(row) + "\n")
        sys.stdout.flush()
