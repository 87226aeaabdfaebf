"""softmax, layer_norm and batch_norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.graph.ops.common import axis_of, number, require, require_float, require_same_dtype
from seer.graph.ops.reduce import reduce_over
from seer.graph.registry import Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr, as_expr, call
from seer.ir.tensor import SUM, TOP, Tensor, compute

# -- softmax -------------------------------------------------------------------------------------


def _infer_softmax(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    require_float(x)
    attrs["axis"] = axis_of(attrs["axis"], len(x.shape))
    return tuple(x.shape), x.dtype


def _define_softmax(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    (x,), axis = inputs, attrs["axis"]
    if x.shape[axis] == 0:
        return compute(x.shape, lambda *i: x[i], name)

    def row(i: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(v for d, v in enumerate(i) if d != axis)

    # A NaN that is passed over here comes back with its power, and spreads with the sum.
    top = reduce_over(x, (axis,), TOP, f"{name}_max", tag="softmax")
    e = compute(x.shape, lambda *i: call("exp", x[i] - top[row(i)]), f"{name}_exp")
    total = reduce_over(e, (axis,), SUM, f"{name}_sum", tag="softmax")
    # The sum is at least 1, since one power is: its inverse is an ordinary number.
    scale = compute(total.shape, lambda *i: as_expr(1.0, x.dtype) / total[i], f"{name}_scale")
    return compute(x.shape, lambda *i: e[i] * scale[row(i)], name)


def _softmax(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = arrays[0], attrs["axis"]
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


register_op(
    OpDef(
        "softmax",
        ("x",),
        _infer_softmax,
        _define_softmax,
        _softmax,
        "reduction",
        {"axis": -1},
        "exp(x) over its sum along an axis, safe for large x.",
    )
)


# -- layer_norm ----------------------------------------------------------------------------------


def _infer_layer_norm(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, *weights = inputs
    require_float(x)
    require_same_dtype(*inputs)
    require(len(x.shape) >= 1, "x needs at least 1 dimension")
    for w, what in zip(weights, ("scale", "bias"), strict=False):
        require(
            tuple(w.shape) == (x.shape[-1],),
            f"{what} must be [{x.shape[-1]}], as the last dimension of {list(x.shape)}, "
            f"found {list(w.shape)}",
        )
    attrs["eps"] = number(attrs["eps"], "eps", low=0)
    return tuple(x.shape), x.dtype


def _define_layer_norm(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    """In two passes: the mean, then the mean of squared differences (no cancellation)."""
    x, *weights = inputs
    axis, count = len(x.shape) - 1, float(x.shape[-1])
    total = reduce_over(x, (axis,), SUM, f"{name}_sum", tag="layer_norm")
    mean = compute(total.shape, lambda *i: total[i] / count, f"{name}_mean")
    centred = compute(x.shape, lambda *i: x[i] - mean[i[:-1]], f"{name}_centred")
    squared = compute(x.shape, lambda *i: centred[i] * centred[i], f"{name}_squared")
    squares = reduce_over(squared, (axis,), SUM, f"{name}_squares", tag="layer_norm")
    scale = compute(
        total.shape,
        lambda *i: as_expr(1.0, x.dtype) / call("sqrt", squares[i] / count + attrs["eps"]),
        f"{name}_scale",
    )

    def body(*i: Expr) -> Expr:
        y = centred[i] * scale[i[:-1]]
        for w, combine in zip(weights, ("*", "+"), strict=False):
            y = y * w[i[-1]] if combine == "*" else y + w[i[-1]]
        return y

    return compute(x.shape, body, name)


def _layer_norm(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, *weights = arrays
    centred = x - x.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + x.dtype.type(attrs["eps"]))
    if weights:
        y = y * weights[0]
    return np.asarray(y + weights[1] if len(weights) > 1 else y)


register_op(
    OpDef(
        "layer_norm",
        ("x", "scale?", "bias?"),
        _infer_layer_norm,
        _define_layer_norm,
        _layer_norm,
        "reduction",
        {"eps": 1e-5},
        "Mean 0 and variance 1 along the last dimension, then scale and bias.",
    )
)


# -- batch_norm ----------------------------------------------------------------------------------


def _infer_batch_norm(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, *weights = inputs
    require_float(x)
    require_same_dtype(*inputs)
    attrs["eps"] = number(attrs["eps"], "eps", low=0)
    attrs["axis"] = axis_of(attrs["axis"], len(x.shape))
    channels = x.shape[attrs["axis"]]
    for w, what in zip(weights, ("scale", "bias", "mean", "variance"), strict=True):
        require(
            tuple(w.shape) == (channels,),
            f"{what} must be [{channels}], as dimension {attrs['axis']} of {list(x.shape)}, "
            f"found {list(w.shape)}",
        )
    return tuple(x.shape), x.dtype


def _define_batch_norm(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    x, scale, bias, mean, variance = inputs
    axis = attrs["axis"]

    def body(*i: Expr) -> Expr:
        c = i[axis]
        deviation = call("sqrt", variance[c] + attrs["eps"])
        return (x[i] - mean[c]) / deviation * scale[c] + bias[c]

    return compute(x.shape, body, name)


def _batch_norm(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    shape = [-1 if d == attrs["axis"] else 1 for d in range(x.ndim)]
    scale, bias, mean, variance = (a.reshape(shape) for a in arrays[1:])
    return np.asarray((x - mean) / np.sqrt(variance + x.dtype.type(attrs["eps"])) * scale + bias)


register_op(
    OpDef(
        "batch_norm",
        ("x", "scale", "bias", "mean", "variance"),
        _infer_batch_norm,
        _define_batch_norm,
        _batch_norm,
        "elementwise",
        {"eps": 1e-5, "axis": 1},
        "(x - mean) / sqrt(variance + eps) * scale + bias, by channel; folded into a convolution before it.",
    )
)
