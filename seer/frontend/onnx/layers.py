"""Convolutions, pools, matrix products and normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seer.errors import GraphError
from seer.frontend.onnx.registry import Call, Result, importer
from seer.graph.graph import Value

# -- convolutions and pools ------------------------------------------------------------------------


@importer("Conv")
def _conv(c: Call) -> Result:
    x, w = c.value(0), c.value(1)
    _require_image(x)
    kernel = tuple(w.shape[2:])
    given = tuple(c.attrs.get("kernel_shape", kernel))
    if given != kernel:
        raise GraphError(f"kernel_shape is {given}, but the weights are {list(w.shape)}")
    stride, dilation = _pair(c, "strides"), _pair(c, "dilations")
    padding = _padding(c, x.shape[2:], kernel, stride, dilation)
    attrs = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": int(c.attrs.get("group", 1)),
    }
    bias = [c.value(2)] if len(c.inputs) > 2 and c.inputs[2] is not None else []
    return c.result("conv2d", x, w, *bias, **attrs)


@importer("MaxPool", "AveragePool")
def _pool(c: Call) -> Result:
    x = c.value(0)
    _require_image(x)
    c.require_one_output()
    c.refuse(storage_order=0, dilations=[1, 1])
    kernel, stride = tuple(c.attrs["kernel_shape"]), _pair(c, "strides")
    attrs = {
        "kernel": kernel,
        "stride": stride,
        "padding": _padding(c, x.shape[2:], kernel, stride, (1, 1)),
        "ceil_mode": bool(c.attrs.get("ceil_mode", 0)),
    }
    if c.op == "MaxPool":
        return c.result("max_pool", x, **attrs)
    return c.result("avg_pool", x, count_include_pad=bool(c.attrs.get("count_include_pad", 0)), **attrs)


@importer("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(c: Call) -> Result:
    _require_image(c.value(0))
    return c.result("global_avg_pool" if c.op == "GlobalAveragePool" else "global_max_pool", c.value(0))


def _require_image(x: Value) -> None:
    if x.ndim != 4:
        raise GraphError(f"seer has this for images (N, C, H, W) only, found {list(x.shape)}")


def _pair(c: Call, attr: str) -> tuple[int, int]:
    a, b = c.attrs.get(attr, (1, 1))
    return int(a), int(b)


def _padding(
    c: Call, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int, int, int]:
    """(top, left, bottom, right), from `pads` or `auto_pad`."""
    auto = c.attrs.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        top, left, bottom, right = c.attrs.get("pads", (0, 0, 0, 0))
        return int(top), int(left), int(bottom), int(right)
    if auto == "VALID":
        return 0, 0, 0, 0
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise GraphError(f"auto_pad is {auto!r}")
    begin, end = [], []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        small, large = total // 2, total - total // 2
        begin.append(small if auto == "SAME_UPPER" else large)
        end.append(large if auto == "SAME_UPPER" else small)
    return begin[0], begin[1], end[0], end[1]


# -- matrix products -------------------------------------------------------------------------------


@importer("Gemm")
def _gemm(c: Call) -> Result:
    """Alpha * A @ B + beta * C; with constant weights it is a dense layer."""
    alpha, beta = float(c.attrs.get("alpha", 1.0)), float(c.attrs.get("beta", 1.0))
    a = c.value(0)
    if c.attrs.get("transA", 0):
        a = a.transpose()
    weights, bias = c.inputs[1], c.inputs[2] if len(c.inputs) > 2 else None
    if isinstance(weights, np.ndarray):
        w = weights.T if c.attrs.get("transB", 0) else weights
        w = w if alpha == 1 else (w * w.dtype.type(alpha))
        if bias is None:
            return c.result("dense", a, w)
        if isinstance(bias, np.ndarray) and bias.shape in ((w.shape[1],), (1, w.shape[1])):
            known = bias.reshape(-1)
            return c.result("dense", a, w, known if beta == 1 else known * known.dtype.type(beta))
        y = c.apply("dense", a, w)
    else:
        y = c.apply("matmul", a, c.value(1), transpose_b=bool(c.attrs.get("transB", 0)))
        y = y if alpha == 1 else y * alpha
    if bias is None:
        return y
    return c.result("add", y, c.value(2) if beta == 1 else c.value(2) * beta)


@importer("MatMul")
def _matmul(c: Call) -> Result:
    a, b = c.value(0), c.value(1)
    if a.ndim == 0 or b.ndim == 0:
        raise GraphError(f"operands need at least 1 dimension, found {list(a.shape)} and {list(b.shape)}")
    if b.ndim == 2 and isinstance(c.inputs[1], np.ndarray):
        return c.result("dense", a, b)
    # As NumPy does it: a vector is a row on the left and a column on the right.
    left = a.reshape((1, a.shape[0])) if a.ndim == 1 else a
    right = b.reshape((b.shape[0], 1)) if b.ndim == 1 else b
    if a.ndim > 1 and b.ndim > 1:
        return c.result("matmul", a, b)
    y = c.apply("matmul", left, right)
    shape = list(y.shape)
    if b.ndim == 1:
        shape.pop()
    if a.ndim == 1:
        shape.pop(-1 if b.ndim == 1 else -2)
    return c.result("reshape", y, tuple(shape))


# -- normalisations --------------------------------------------------------------------------------


@importer("BatchNormalization")
def _batch_norm(c: Call) -> Result:
    c.refuse(training_mode=0, spatial=1)
    c.require_one_output()
    return c.result("batch_norm", *c.values(), eps=float(c.attrs.get("epsilon", 1e-5)))


@importer("LayerNormalization")
def _layer_norm(c: Call) -> Result:
    x = c.value(0)
    c.require_one_output()
    axis = int(c.attrs.get("axis", -1)) % max(x.ndim, 1)
    inputs = [c.value(k) for k in range(1, len(c.inputs)) if c.inputs[k] is not None]
    eps = float(c.attrs.get("epsilon", 1e-5))
    if axis == x.ndim - 1:
        flat = [v.reshape((-1,)) for v in inputs]
        return c.result("layer_norm", x, *flat, eps=eps)
    # Several dimensions at once are one long one.
    rows = int(np.prod(x.shape[:axis]))
    columns = int(np.prod(x.shape[axis:]))
    y = c.apply("layer_norm", x.reshape((rows, columns)), *(v.reshape((-1,)) for v in inputs), eps=eps)
    return c.result("reshape", y, x.shape)


@importer("Softmax", "LogSoftmax")
def _softmax(c: Call) -> Result:
    """Before version 13 all dimensions from the axis on are taken together."""
    x = c.value(0)
    axis = int(c.attrs.get("axis", -1 if c.opset >= 13 else 1))
    axis = axis + x.ndim if axis < 0 else axis
    together = c.opset < 13 and axis != x.ndim - 1
    y = x.reshape((int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))) if together else x
    along = 1 if together else axis
    if c.op == "LogSoftmax":
        y = y - c.apply("reduce_max", y, axes=(along,), keepdims=True)
        total = c.apply("reduce_sum", c.apply("exp", y), axes=(along,), keepdims=True)
        y = c.apply("sub", y, c.apply("log", total)) if together else c.result("sub", y, total.log())
    elif together:
        y = c.apply("softmax", y, axis=along)
    else:
        y = c.result("softmax", y, axis=along)
    return c.result("reshape", y, x.shape) if together else y
