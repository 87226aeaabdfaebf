"""Reductions over axes, and global pooling, which is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.errors import shown
from seer.graph.ops.common import axes_of, flag, require, require_float, require_rank
from seer.graph.registry import Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr
from seer.ir.tensor import MAX, SUM, Axis, Reducer, Tensor, compute, reduce_axis


def reduce_over(
    x: Tensor, axes: Sequence[int], reducer: Reducer, name: str, keepdims: bool = False, tag: str = ""
) -> Tensor:
    """`x` combined over axes; kept axes come in order, reduced ones have extent 1 if `keepdims`."""
    reduced = {a: reduce_axis(x.shape[a], f"r{k}") for k, a in enumerate(axes)}
    if not reduced:
        return compute(x.shape, lambda *i: x[i], name)
    shape = [1 if d in reduced else n for d, n in enumerate(x.shape) if keepdims or d not in reduced]

    def body(*i: Expr) -> Expr:
        return x[_positions(i, len(x.shape), reduced, keepdims)]

    return compute(shape, body, name, reduce=list(reduced.values()), reducer=reducer, tag=tag)


def _positions(i: Sequence[Expr], rank: int, reduced: dict[int, Axis], keepdims: bool) -> tuple[Expr, ...]:
    kept = iter(i)
    out: list[Expr] = []
    for d in range(rank):
        if d in reduced:
            out.append(reduced[d].var)
            if keepdims:
                next(kept)
        else:
            out.append(next(kept))
    return tuple(out)


def mean_over(x: Tensor, axes: Sequence[int], name: str, keepdims: bool) -> Tensor:
    """The mean over axes: a sum and a division."""
    count = math.prod(x.shape[a] for a in axes)
    total = reduce_over(x, axes, SUM, f"{name}_sum", keepdims)
    return compute(total.shape, lambda *i: total[i] / float(count), name)


def _infer(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    require(x.dtype != "bool", "input must be numbers, found bool; cast it first")
    attrs["axes"] = axes_of(attrs["axes"], len(x.shape))
    attrs["keepdims"] = flag(attrs["keepdims"], "keepdims")
    kept = [
        1 if d in attrs["axes"] else n
        for d, n in enumerate(x.shape)
        if attrs["keepdims"] or d not in attrs["axes"]
    ]
    return tuple(kept), x.dtype


def _infer_mean(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    require_float(inputs[0])
    return _infer(inputs, attrs)


def _infer_max(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    shape, dtype = _infer(inputs, attrs)
    empty = 0 in (inputs[0].shape[a] for a in attrs["axes"]) and 0 not in shape
    require(not empty, f"the largest of no elements: {list(inputs[0].shape)} over axes {attrs['axes']}")
    return shape, dtype


def _define_sum(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    return reduce_over(inputs[0], attrs["axes"], SUM, name, attrs["keepdims"], "reduce_sum")


def _define_max(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    return reduce_over(inputs[0], attrs["axes"], MAX, name, attrs["keepdims"], "reduce_max")


def _define_mean(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    return mean_over(inputs[0], attrs["axes"], name, attrs["keepdims"])


def _sum(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    return np.asarray(np.sum(x, axis=tuple(attrs["axes"]), keepdims=attrs["keepdims"], dtype=x.dtype))


def _mean(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    count = math.prod(arrays[0].shape[a] for a in attrs["axes"])
    return np.asarray(_sum(arrays, attrs) / arrays[0].dtype.type(count))


def _max(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.asarray(np.max(arrays[0], axis=tuple(attrs["axes"]), keepdims=attrs["keepdims"]))


_ATTRS = {"axes": None, "keepdims": False}

register_op(
    OpDef("reduce_sum", ("x",), _infer, _define_sum, _sum, "reduction", _ATTRS, "Sum over axes (None: all).")
)
register_op(
    OpDef(
        "reduce_mean",
        ("x",),
        _infer_mean,
        _define_mean,
        _mean,
        "reduction",
        _ATTRS,
        "Mean over axes (None: all); NaN over no elements.",
    )
)
register_op(
    OpDef(
        "reduce_max",
        ("x",),
        _infer_max,
        _define_max,
        _max,
        "reduction",
        _ATTRS,
        "Largest over axes (None: all); NaN if any element is.",
    )
)


# -- global pooling ------------------------------------------------------------------------------


def spatial_axes(attrs: Attrs) -> tuple[int, int]:
    """The two image axes of a layout."""
    return (2, 3) if attrs["layout"] == "NCHW" else (1, 2)


def require_layout(attrs: Attrs) -> None:
    """Raise GraphError unless the layout is one that images have."""
    layout = attrs["layout"]
    good = isinstance(layout, str) and layout in ("NCHW", "NHWC")
    require(good, f"layout must be 'NCHW' or 'NHWC', given {shown(layout)}")


def _infer_global(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    require_float(x)
    require_layout(attrs)
    require_rank(x, 4, attrs["layout"])
    axes = spatial_axes(attrs)
    require(all(x.shape[a] > 0 for a in axes), f"the image is empty: {list(x.shape)}")
    return tuple(1 if d in axes else n for d, n in enumerate(x.shape)), x.dtype


def _global(attrs: Attrs) -> dict[str, Any]:
    return {"axes": spatial_axes(attrs), "keepdims": True}


register_op(
    OpDef(
        "global_avg_pool",
        ("x",),
        _infer_global,
        lambda t, a, n: _define_mean(t, _global(a), n),
        lambda x, a: _mean(x, _global(a)),
        "reduction",
        {"layout": "NCHW"},
        "Mean over the image; (N, C, H, W) -> (N, C, 1, 1).",
    )
)
register_op(
    OpDef(
        "global_max_pool",
        ("x",),
        _infer_global,
        lambda t, a, n: _define_max(t, _global(a), n),
        lambda x, a: _max(x, _global(a)),
        "reduction",
        {"layout": "NCHW"},
        "Largest over the image; (N, C, H, W) -> (N, C, 1, 1).",
    )
)
