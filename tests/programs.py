"""ComputeDAGs that together reach every sketch rule and every kind of loop."""

from __future__ import annotations

import numpy as np

from seer.dtypes import convert, is_narrow
from seer.ir.dag import ComputeDAG
from seer.ir.expr import all_of, as_expr, call, maximum, select
from seer.ir.tensor import MAX, SUM, Reducer, compute, placeholder, reduce_axis
from seer.runtime.target import Target
from seer.search.task import SearchTask


def matmul(m: int, n: int, k: int, *, constant: bool = True, relu: bool = True) -> ComputeDAG:
    a, b = placeholder((m, k), name="a"), placeholder((k, n), name="b", constant=constant)
    r = reduce_axis(k, "k")
    c = compute((m, n), lambda i, j: a[i, r.var] * b[r.var, j], "c", reduce=[r], reducer=SUM, tag="matmul")
    if not relu:
        return ComputeDAG(c, [a, b])
    bias = placeholder((n,), name="bias", constant=True)
    s = compute((m, n), lambda i, j: c[i, j] + bias[j], "s")
    return ComputeDAG(compute((m, n), lambda i, j: maximum(s[i, j], 0.0), "y"), [a, b, bias])


def batch_matmul(b: int, m: int, n: int, k: int) -> ComputeDAG:
    x, y = placeholder((b, m, k), name="x"), placeholder((b, n, k), name="y")
    r = reduce_axis(k, "k")
    return ComputeDAG(
        compute((b, m, n), lambda h, i, j: x[h, i, r.var] * y[h, j, r.var], "z", reduce=[r], reducer=SUM),
        [x, y],
    )


def conv(h: int, w: int, ci: int, co: int, k: int, stride: int = 1) -> ComputeDAG:
    """NHWC, padded by k // 2, with a bias, a residual and a relu."""
    p = k // 2
    x = placeholder((1, h, w, ci), name="x")
    f = placeholder((k, k, ci, co), name="f", constant=True)
    oh, ow = (h + 2 * p - k) // stride + 1, (w + 2 * p - k) // stride + 1
    bias, skip = placeholder((co,), name="bias", constant=True), placeholder((1, oh, ow, co), name="skip")
    padded = compute(
        (1, h + 2 * p, w + 2 * p, ci),
        lambda n, i, j, c: select(all_of(i >= p, i < h + p, j >= p, j < w + p), x[n, i - p, j - p, c], 0.0),
        "padded",
    )
    rh, rw, rc = reduce_axis(k, "rh"), reduce_axis(k, "rw"), reduce_axis(ci, "rc")
    y = compute(
        (1, oh, ow, co),
        lambda n, i, j, c: (
            padded[n, i * stride + rh.var, j * stride + rw.var, rc.var] * f[rh.var, rw.var, rc.var, c]
        ),
        "y",
        reduce=[rh, rw, rc],
        reducer=SUM,
        tag="conv2d",
    )
    out = compute(
        (1, oh, ow, co), lambda n, i, j, c: maximum(y[n, i, j, c] + bias[c] + skip[n, i, j, c], 0.0), "out"
    )
    return ComputeDAG(out, [x, f, bias, skip])


def depthwise(h: int, w: int, c: int, k: int = 3) -> ComputeDAG:
    p = k // 2
    x, f = placeholder((1, h, w, c), name="x"), placeholder((k, k, c), name="f", constant=True)
    padded = compute(
        (1, h + 2 * p, w + 2 * p, c),
        lambda n, i, j, q: select(all_of(i >= p, i < h + p, j >= p, j < w + p), x[n, i - p, j - p, q], 0.0),
        "padded",
    )
    rh, rw = reduce_axis(k, "rh"), reduce_axis(k, "rw")
    y = compute(
        (1, h, w, c),
        lambda n, i, j, q: padded[n, i + rh.var, j + rw.var, q] * f[rh.var, rw.var, q],
        "y",
        reduce=[rh, rw],
        reducer=SUM,
        tag="depthwise_conv2d",
    )
    return ComputeDAG(compute((1, h, w, c), lambda n, i, j, q: maximum(y[n, i, j, q], 0.0), "out"), [x, f])


def softmax(rows: int, columns: int) -> ComputeDAG:
    x = placeholder((rows, columns), name="x")
    r, s = reduce_axis(columns, "r"), reduce_axis(columns, "s")
    top = compute((rows,), lambda i: x[i, r.var], "top", reduce=[r], reducer=MAX)
    e = compute((rows, columns), lambda i, j: call("exp", x[i, j] - top[i]), "e")
    total = compute((rows,), lambda i: e[i, s.var], "total", reduce=[s], reducer=SUM)
    return ComputeDAG(compute((rows, columns), lambda i, j: e[i, j] / total[i], "y"), [x])


def layer_norm(rows: int, columns: int) -> ComputeDAG:
    x, y = placeholder((rows, columns), name="x"), placeholder((rows, columns), name="y")
    g = placeholder((columns,), name="g", constant=True)
    r, s = reduce_axis(columns, "r"), reduce_axis(columns, "s")
    z = compute((rows, columns), lambda i, j: x[i, j] + y[i, j], "z")
    total = compute((rows,), lambda i: z[i, r.var], "total", reduce=[r], reducer=SUM)
    mean = compute((rows,), lambda i: total[i] * (1.0 / columns), "mean")
    d = compute((rows, columns), lambda i, j: z[i, j] - mean[i], "d")
    squares = compute((rows,), lambda i: d[i, s.var] * d[i, s.var], "squares", reduce=[s], reducer=SUM)
    scale = compute((rows,), lambda i: 1.0 / call("sqrt", squares[i] * (1.0 / columns) + 1e-5), "scale")
    return ComputeDAG(compute((rows, columns), lambda i, j: d[i, j] * scale[i] * g[j], "out"), [x, y, g])


def max_pool(h: int, w: int, c: int) -> ComputeDAG:
    """3x3, stride 2, padded by 1 with the lowest number."""
    x = placeholder((1, h, w, c), name="x")
    oh, ow = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    rh, rw = reduce_axis(3, "rh"), reduce_axis(3, "rw")
    padded = compute(
        (1, h + 2, w + 2, c),
        lambda n, i, j, q: select(
            all_of(i >= 1, i < h + 1, j >= 1, j < w + 1), x[n, i - 1, j - 1, q], float("-inf")
        ),
        "padded",
    )
    return ComputeDAG(
        compute(
            (1, oh, ow, c),
            lambda n, i, j, q: padded[n, i * 2 + rh.var, j * 2 + rw.var, q],
            "y",
            reduce=[rh, rw],
            reducer=MAX,
        ),
        [x],
    )


def row_sum(rows: int, columns: int) -> ComputeDAG:
    x = placeholder((rows, columns), name="x")
    r = reduce_axis(columns, "r")
    return ComputeDAG(compute((rows,), lambda i: x[i, r.var], "y", reduce=[r], reducer=SUM), [x])


def column_max(rows: int, columns: int) -> ComputeDAG:
    x = placeholder((rows, columns), name="x")
    r = reduce_axis(rows, "r")
    return ComputeDAG(compute((columns,), lambda j: -x[r.var, j], "y", reduce=[r], reducer=MAX), [x])


def total(rows: int, columns: int) -> ComputeDAG:
    """Everything into a tensor of rank 0."""
    x = placeholder((rows, columns), name="x")
    r, s = reduce_axis(rows, "r"), reduce_axis(columns, "s")
    return ComputeDAG(compute((), lambda: x[r.var, s.var], "y", reduce=[r, s], reducer=SUM), [x])


def _latest(a, b):  # type: ignore[no-untyped-def]
    return a * 0.5 + b


def _zero(_dtype: str) -> float:
    return 0.0


DECAY = Reducer("decay", _latest, _zero, commutative=False)


def decay(rows: int, columns: int) -> ComputeDAG:
    """A reducer whose order matters."""
    x = placeholder((rows, columns), name="x")
    r = reduce_axis(columns, "r")
    return ComputeDAG(compute((rows,), lambda i: x[i, r.var], "y", reduce=[r], reducer=DECAY), [x])


def gelu(*shape: int) -> ComputeDAG:
    x = placeholder(shape, name="x")
    return ComputeDAG(
        compute(shape, lambda *i: x[i] * 0.5 * (1.0 + call("erf", x[i] * 0.70710678)), "y"), [x]
    )


def transpose(rows: int, columns: int) -> ComputeDAG:
    x = placeholder((rows, columns), name="x")
    return ComputeDAG(compute((columns, rows), lambda i, j: x[j, i] * 2.0, "y"), [x])


def shifted(rows: int, columns: int) -> ComputeDAG:
    """exp of the row above (of the first 0), and twice the row below (of the last 0)."""
    x = placeholder((rows, columns), name="x")

    def both(i, j):  # type: ignore[no-untyped-def]
        above = select(as_expr(1) <= i, call("exp", x[i - 1, j]), 0.0)
        return above + select(as_expr(rows - 1) <= i, 0.0, x[i + 1, j] * 2.0)

    return ComputeDAG(compute((rows, columns), both, "y"), [x])


def reshape(a: int, b: int, c: int) -> ComputeDAG:
    """(a, b * c) read as (a * b, c), then transposed."""
    x = placeholder((a, b * c), name="x")
    flat = compute((a * b, c), lambda i, j: x[(i * c + j) // (b * c), (i * c + j) % (b * c)] + 1.0, "flat")
    return ComputeDAG(compute((c, a * b), lambda i, j: flat[j, i], "y"), [x])


def gather(rows: int, columns: int, picked: int) -> ComputeDAG:
    x, i = placeholder((rows, columns), name="x"), placeholder((picked,), "int64", name="i")
    y = compute((picked, columns), lambda p, j: x[maximum(0, i[p] % rows), j], "y")
    return ComputeDAG(y, [x, i])


PROGRAMS: dict[str, ComputeDAG] = {
    "matmul": matmul(13, 37, 7),
    "matmul_even": matmul(16, 32, 8, constant=False),
    "matmul_alone": matmul(5, 17, 31, relu=False),
    "matmul_thin": matmul(1, 40, 9),
    "matmul_one": matmul(1, 1, 1),
    "matmul_empty_sum": matmul(3, 5, 0),
    "matmul_empty": matmul(0, 5, 4),
    "batch_matmul": batch_matmul(3, 5, 7, 6),
    "conv": conv(7, 6, 3, 17, 3),
    "conv_stride": conv(9, 9, 4, 8, 3, stride=2),
    "conv_1x1": conv(5, 7, 6, 16, 1),
    "depthwise": depthwise(7, 5, 19),
    "softmax": softmax(5, 37),
    "softmax_one": softmax(1, 1),
    "softmax_empty": softmax(0, 4),
    "layer_norm": layer_norm(3, 41),
    "max_pool": max_pool(7, 9, 5),
    "row_sum": row_sum(3, 197),
    "column_max": column_max(7, 13),
    "total": total(7, 31),
    "decay": decay(5, 13),
    "gelu": gelu(3, 37),
    "gelu_scalar": gelu(),
    "gelu_empty": gelu(3, 0),
    "shifted": shifted(7, 64),
    "transpose": transpose(13, 7),
    "reshape": reshape(3, 4, 5),
    "gather": gather(7, 5, 11),
}


def random_inputs(dag: ComputeDAG, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats, and integers from -50 to 50."""
    rng = np.random.default_rng(seed)
    out = {}
    for t in dag.inputs:
        if is_narrow(t.dtype):
            out[t.name] = convert(rng.standard_normal(t.shape), "float64", t.dtype)
            continue
        if t.dtype.startswith("float"):
            out[t.name] = rng.standard_normal(t.shape).astype(t.dtype)
        else:
            out[t.name] = rng.integers(-50, 50, t.shape).astype(t.dtype)
    return out


def small_tasks(target: Target) -> list[SearchTask]:
    """A model of three kernels to tune."""
    return [
        SearchTask(matmul(64, 64, 64), target, 2, "matmul"),
        SearchTask(conv(14, 14, 16, 32, 3), target, 1, "conv"),
        SearchTask(softmax(16, 64), target, 3, "softmax"),
    ]
