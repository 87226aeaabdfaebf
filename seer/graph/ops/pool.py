"""Pooling over windows of an image, with PyTorch's rules for padding and ceil_mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.graph.ops.common import flag, padded, pads_of, pair, require, require_float, require_rank
from seer.graph.ops.conv import windows_of
from seer.graph.ops.reduce import require_layout, spatial_axes
from seer.graph.registry import REQUIRED, Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr, as_expr, cast, maximum, minimum
from seer.ir.tensor import MAX, SUM, Reducer, Tensor, compute, reduce_axis


def _infer(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    require_float(x)
    require_layout(attrs)
    require_rank(x, 4, attrs["layout"])
    attrs["kernel"] = pair(attrs["kernel"], "kernel")
    attrs["stride"] = attrs["kernel"] if attrs["stride"] is None else pair(attrs["stride"], "stride")
    for what in {"ceil_mode", "count_include_pad"} & attrs.keys():
        attrs[what] = flag(attrs[what], what)
    image = [x.shape[a] for a in spatial_axes(attrs)]
    attrs["padding"] = pads_of(attrs["padding"], image, attrs["kernel"], attrs["stride"], (1, 1))
    top, left, bottom, right = attrs["padding"]
    for k, before, after in zip(attrs["kernel"], (top, left), (bottom, right), strict=True):
        require(
            max(before, after) < k,
            f"padding {attrs['padding']} leaves windows of {attrs['kernel']} wholly in padding",
        )
    out = list(x.shape)
    for a, n in zip(spatial_axes(attrs), _out_sizes(image, attrs), strict=True):
        out[a] = n
    return tuple(out), x.dtype


def _out_sizes(image: Sequence[int], attrs: Attrs) -> tuple[int, int]:
    top, left, bottom, right = attrs["padding"]
    out = []
    for n, k, s, before, after in zip(
        image, attrs["kernel"], attrs["stride"], (top, left), (bottom, right), strict=True
    ):
        room = n + before + after - k
        require(room >= 0, f"a window of {k} does not fit an image of {n} + {before + after} padding")
        count = room // s + 1
        # With ceil_mode a last window may hang over the end, if it begins inside image or padding.
        if attrs["ceil_mode"] and room % s and count * s < n + before:
            count += 1
        out.append(count)
    return out[0], out[1]


def _pooled(x: Tensor, attrs: Attrs, name: str, reducer: Reducer, fill: float, tag: str) -> Tensor:
    """The reducer over each window."""
    axes = spatial_axes(attrs)
    image = [x.shape[a] for a in axes]
    out = _out_sizes(image, attrs)
    before, shape, full = [0] * 4, list(x.shape), list(x.shape)
    for d, a in enumerate(axes):
        before[a], shape[a] = attrs["padding"][d], out[d]
        reach = (out[d] - 1) * attrs["stride"][d] + attrs["kernel"][d]
        full[a] = max(reach, before[a] + image[d])
    xp = padded(x, before, full, fill, f"{name}_pad")
    window = [reduce_axis(k, f"r{'hw'[d]}") for d, k in enumerate(attrs["kernel"])]

    def body(*i: Expr) -> Expr:
        at = list(i)
        for d, a in enumerate(axes):
            at[a] = at[a] * attrs["stride"][d] + window[d].var
        return xp[tuple(at)]

    names = [c.lower() for c in attrs["layout"]]
    return compute(shape, body, name, reduce=window, reducer=reducer, tag=tag, axis_names=names)


def _define_max(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    return _pooled(inputs[0], attrs, name, MAX, float("-inf"), "max_pool")


def _define_avg(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    x = inputs[0]
    total = _pooled(x, attrs, f"{name}_sum", SUM, 0.0, "avg_pool")
    axes = spatial_axes(attrs)

    def body(*i: Expr) -> Expr:
        count: Expr = as_expr(1)
        for d, a in enumerate(axes):
            count = count * _count(i[a], x.shape[a], total.shape[a], attrs, d)
        return total[i] / cast(count, x.dtype)

    names = [c.lower() for c in attrs["layout"]]
    return compute(total.shape, body, name, axis_names=names)


def _count(i: Expr, size: int, out: int, attrs: Attrs, d: int) -> Expr:
    """Elements of window i along image axis d that the mean counts."""
    k, s = attrs["kernel"][d], attrs["stride"][d]
    before, after = attrs["padding"][d], attrs["padding"][d + 2]
    if attrs["count_include_pad"]:
        low, high = -before, size + after
    else:
        low, high = 0, size
    is_cut_before, is_cut_after = -before < low, (out - 1) * s - before + k > high
    start = i * s - before
    end: Expr = minimum(start + k, high) if is_cut_after else start + k
    begin: Expr = maximum(start, low) if is_cut_before else start
    return end - begin if is_cut_after or is_cut_before else as_expr(k)


def _windows(x: np.ndarray, attrs: Attrs, fill: float) -> tuple[np.ndarray, tuple[int, int]]:
    """Windows of an NCHW array, extended so that each output position has one."""
    image = x.shape[2:]
    out = _out_sizes(image, attrs)
    top, left, bottom, right = attrs["padding"]
    more = [
        max(0, (o - 1) * s + k - (n + p))
        for o, s, k, n, p in zip(
            out, attrs["stride"], attrs["kernel"], image, (top + bottom, left + right), strict=True
        )
    ]
    wider = {"padding": (top, left, bottom + more[0], right + more[1]), "stride": attrs["stride"]}
    view = windows_of(x, attrs["kernel"], wider, fill)
    return view[:, :, : out[0], : out[1]], out


def _first(x: np.ndarray, attrs: Attrs) -> np.ndarray:
    return x if attrs["layout"] == "NCHW" else x.transpose(0, 3, 1, 2)


def _back(x: np.ndarray, attrs: Attrs) -> np.ndarray:
    return x if attrs["layout"] == "NCHW" else x.transpose(0, 2, 3, 1)


def _max(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    view, _ = _windows(_first(arrays[0], attrs), attrs, float("-inf"))
    return _back(view.max(axis=(4, 5)), attrs)


def _avg(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = _first(arrays[0], attrs)
    view, out = _windows(x, attrs, 0.0)
    counts = []
    for d in range(2):
        n, k, s = x.shape[2 + d], attrs["kernel"][d], attrs["stride"][d]
        low, high = 0, n
        if attrs["count_include_pad"]:
            low, high = -attrs["padding"][d], n + attrs["padding"][d + 2]
        begin = np.arange(out[d]) * s - attrs["padding"][d]
        counts.append(np.minimum(begin + k, high) - np.maximum(begin, low))
    total = view.sum(axis=(4, 5), dtype=x.dtype)
    return _back(total / np.multiply.outer(counts[0], counts[1]).astype(x.dtype), attrs)


_ATTRS = {"kernel": REQUIRED, "stride": None, "padding": 0, "ceil_mode": False, "layout": "NCHW"}

register_op(
    OpDef(
        "max_pool",
        ("x",),
        _infer,
        _define_max,
        _max,
        "reduction",
        _ATTRS,
        "Largest of each window (stride None: the kernel); padding counts as -inf; NaN stays.",
    )
)
register_op(
    OpDef(
        "avg_pool",
        ("x",),
        _infer,
        _define_avg,
        _avg,
        "reduction",
        {**_ATTRS, "count_include_pad": True},
        "Mean of each window (stride None: the kernel); padding counts as 0, or not at all.",
    )
)
