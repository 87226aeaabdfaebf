"""Convolutions: conv2d as users call it (NCHW), and the channels-last forms that passes make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.errors import shown
from seer.graph.ops.common import (
    is_whole,
    padded,
    pads_of,
    pair,
    require,
    require_rank,
    require_same_dtype,
)
from seer.graph.registry import Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr
from seer.ir.tensor import SUM, Tensor, compute, reduce_axis


@dataclass(frozen=True)
class _Sizes:
    """Extents of a convolution, whatever the layout."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    out: tuple[int, int]


def _normalise(attrs: dict[str, Any], image: Sequence[int], kernel: Sequence[int]) -> _Sizes:
    """Bring stride, dilation and padding to their normal form and work out the output's extents."""
    attrs["stride"] = pair(attrs["stride"], "stride")
    attrs["dilation"] = pair(attrs["dilation"], "dilation")
    require(min(kernel) > 0, f"the kernel is empty: {list(kernel)}")
    attrs["padding"] = pads_of(attrs["padding"], image, kernel, attrs["stride"], attrs["dilation"])
    return _sizes(attrs, image, kernel)


def _sizes(attrs: Attrs, image: Sequence[int], kernel: Sequence[int]) -> _Sizes:
    top, left, bottom, right = attrs["padding"]
    out = []
    for n, k, pads, s, d in zip(
        image, kernel, (top + bottom, left + right), attrs["stride"], attrs["dilation"], strict=True
    ):
        reach = (k - 1) * d + 1
        require(n + pads >= reach, f"a kernel of {reach} does not fit an image of {n} + {pads} padding")
        out.append((n + pads - reach) // s + 1)
    return _Sizes((image[0], image[1]), (kernel[0], kernel[1]), (out[0], out[1]))


def _check_channels(ci: int, co: int, per_group: int, groups: Any) -> None:
    good = is_whole(groups) and groups >= 1
    require(good, f"groups must be a whole number >= 1, given {shown(groups)}")
    require(
        ci % groups == 0 and co % groups == 0,
        f"{ci} input and {co} output channels do not divide into {shown(groups)} groups",
    )
    require(
        per_group * groups == ci,
        f"the weights take {per_group} channels x {shown(groups)} groups, the input has {ci}",
    )


# -- NCHW ----------------------------------------------------------------------------------------


def _infer_conv(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, w, *bias = inputs
    require_same_dtype(*inputs)
    require_rank(x, 4, "(N, C, H, W)")
    require_rank(w, 4, "(out, in / groups, KH, KW) in its weights")
    n, ci, h, wd = x.shape
    co, per_group, kh, kw = w.shape
    _check_channels(ci, co, per_group, attrs["groups"])
    for b in bias:
        require(tuple(b.shape) == (co,), f"bias must be [{co}], found {list(b.shape)}")
    sizes = _normalise(attrs, (h, wd), (kh, kw))
    return (n, co, *sizes.out), x.dtype


def _define_conv(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    x, w, *bias = inputs
    n, ci, h, wd = x.shape
    co, per_group, kh, kw = w.shape
    sizes = _sizes(attrs, (h, wd), (kh, kw))
    (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]
    top, left, bottom, right = attrs["padding"]
    xp = padded(x, (0, 0, top, left), (n, ci, h + top + bottom, wd + left + right), 0, f"{name}_pad")
    rc, rh, rw = reduce_axis(per_group, "rc"), reduce_axis(kh, "rh"), reduce_axis(kw, "rw")
    channel = _channel(co, ci, attrs["groups"])

    def body(b: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        read = xp[b, channel(o, rc.var), i * sh + rh.var * dh, j * sw + rw.var * dw]
        return read * w[o, rc.var, rh.var, rw.var]

    names = ("n", "c", "h", "w")
    shape = (n, co, *sizes.out)
    stage = f"{name}_sum" if bias else name
    y = compute(
        shape, body, stage, reduce=[rc, rh, rw], reducer=SUM, tag=_tag(attrs, ci, co), axis_names=names
    )
    if not bias:
        return y
    return compute(shape, lambda b, o, i, j: y[b, o, i, j] + bias[0][o], name, axis_names=names)


def _tag(attrs: Attrs, ci: int, co: int) -> str:
    if attrs["groups"] == ci == co and ci > 1:
        return "depthwise_conv2d"
    return "conv2d" if attrs["groups"] == 1 else "group_conv2d"


def _channel(co: int, ci: int, groups: int) -> Any:
    """The input channel that output channel `o` reads as its r-th."""
    if groups == 1:
        return lambda o, r: r
    if groups == ci == co:
        return lambda o, r: o
    return lambda o, r: (o // (co // groups)) * (ci // groups) + r


def _conv(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """im2col by strides, then one matrix product per group."""
    x, w, *bias = arrays
    co, per_group, kh, kw = w.shape
    groups = attrs["groups"]
    windows = windows_of(x, (kh, kw), attrs)  # (N, C, OH, OW, KH, KW)
    n, _, oh, ow = windows.shape[:4]
    outs = []
    for g in range(groups):
        part = windows[:, g * per_group : (g + 1) * per_group]
        columns = part.transpose(0, 2, 3, 1, 4, 5).reshape(n * oh * ow, per_group * kh * kw)
        kernel = w[g * (co // groups) : (g + 1) * (co // groups)].reshape(co // groups, per_group * kh * kw)
        outs.append((columns @ kernel.T).reshape(n, oh, ow, co // groups))
    y = np.concatenate(outs, axis=3).transpose(0, 3, 1, 2)
    return np.asarray(y + (bias[0][:, None, None] if bias else 0))


def windows_of(x: np.ndarray, kernel: tuple[int, int], attrs: Attrs, fill: float = 0.0) -> np.ndarray:
    """Views of every window of an NCHW array: (N, C, OH, OW, KH, KW)."""
    top, left, bottom, right = attrs["padding"]
    (sh, sw), (dh, dw) = attrs["stride"], attrs.get("dilation", (1, 1))
    xp = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    reach = ((kernel[0] - 1) * dh + 1, (kernel[1] - 1) * dw + 1)
    view = np.lib.stride_tricks.sliding_window_view(xp, reach, axis=(2, 3))
    return view[:, :, ::sh, ::sw, ::dh, ::dw]


_ATTRS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}

register_op(
    OpDef(
        "conv2d",
        ("x", "w", "bias?"),
        _infer_conv,
        _define_conv,
        _conv,
        "anchor",
        _ATTRS,
        "2-d convolution: x (N, C, H, W), w (out, C / groups, KH, KW), bias (out).",
    )
)


# -- channels last -------------------------------------------------------------------------------


def _infer_nhwc(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, w = inputs
    require_same_dtype(x, w)
    require_rank(x, 4, "(N, H, W, C)")
    require_rank(w, 4, "(KH, KW, in / groups, out) in its weights")
    n, h, wd, ci = x.shape
    kh, kw, per_group, co = w.shape
    _check_channels(ci, co, per_group, attrs["groups"])
    sizes = _normalise(attrs, (h, wd), (kh, kw))
    return (n, *sizes.out, co), x.dtype


def _define_nhwc(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    x, w = inputs
    ci, (kh, kw, per_group, co) = x.shape[3], w.shape
    rh, rw, rc = reduce_axis(kh, "rh"), reduce_axis(kw, "rw"), reduce_axis(per_group, "rc")
    channel = _channel(co, ci, attrs["groups"])
    xp, shape = _padded_nhwc(x, (kh, kw), attrs, name)
    (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]

    def body(b: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        read = xp[b, i * sh + rh.var * dh, j * sw + rw.var * dw, channel(o, rc.var)]
        return read * w[rh.var, rw.var, rc.var, o]

    return compute(
        (*shape, co),
        body,
        name,
        reduce=[rh, rw, rc],
        reducer=SUM,
        tag=_tag(attrs, ci, co),
        axis_names=("n", "h", "w", "c"),
    )


def _padded_nhwc(
    x: Tensor, kernel: tuple[int, int], attrs: Attrs, name: str
) -> tuple[Tensor, tuple[int, int, int]]:
    """The padded input, and the output's (N, OH, OW)."""
    n, h, wd, ci = x.shape
    sizes = _sizes(attrs, (h, wd), kernel)
    top, left, bottom, right = attrs["padding"]
    xp = padded(x, (0, top, left, 0), (n, h + top + bottom, wd + left + right, ci), 0, f"{name}_pad")
    return xp, (n, *sizes.out)


def _nhwc(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, w = arrays
    y = _conv([x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)], attrs)
    return y.transpose(0, 2, 3, 1)


register_op(
    OpDef(
        "conv2d_nhwc",
        ("x", "w"),
        _infer_nhwc,
        _define_nhwc,
        _nhwc,
        "anchor",
        _ATTRS,
        "2-d convolution: x (N, H, W, C), w (KH, KW, C / groups, out).",
    )
)


def _infer_depthwise(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, w = inputs
    require_same_dtype(x, w)
    require_rank(x, 4, "(N, H, W, C)")
    require_rank(w, 3, "(KH, KW, C) in its weights")
    n, h, wd, c = x.shape
    require(w.shape[2] == c, f"the weights have {w.shape[2]} channels, the input {c}")
    sizes = _normalise(attrs, (h, wd), w.shape[:2])
    return (n, *sizes.out, c), x.dtype


def _define_depthwise(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    x, w = inputs
    kh, kw, c = w.shape
    rh, rw = reduce_axis(kh, "rh"), reduce_axis(kw, "rw")
    xp, shape = _padded_nhwc(x, (kh, kw), attrs, name)
    (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]

    def body(b: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        return xp[b, i * sh + rh.var * dh, j * sw + rw.var * dw, o] * w[rh.var, rw.var, o]

    return compute(
        (*shape, c),
        body,
        name,
        reduce=[rh, rw],
        reducer=SUM,
        tag="depthwise_conv2d",
        axis_names=("n", "h", "w", "c"),
    )


def _depthwise(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, w = arrays
    windows = windows_of(x.transpose(0, 3, 1, 2), (w.shape[0], w.shape[1]), attrs)
    return np.asarray(np.einsum("nchwij,ijc->nhwc", windows, w))


register_op(
    OpDef(
        "depthwise_conv2d_nhwc",
        ("x", "w"),
        _infer_depthwise,
        _define_depthwise,
        _depthwise,
        "anchor",
        {"stride": 1, "padding": 0, "dilation": 1},
        "Each channel's own 2-d convolution: x (N, H, W, C), w (KH, KW, C).",
    )
)
