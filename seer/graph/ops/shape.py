"""Operators that move elements: reshape, transpose, concat, slice, pad, gather, ..."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.graph.ops.common import axis_of, padded, require
from seer.graph.registry import REQUIRED, Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr, as_expr, cast, maximum, minimum, select
from seer.ir.tensor import Tensor, compute

# -- reshape and flatten -------------------------------------------------------------------------


def _infer_reshape(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    given = attrs["shape"]
    shape = [operator.index(n) for n in ((given,) if isinstance(given, int | np.integer) else given)]
    size = math.prod(x.shape)
    require(
        all(n >= -1 for n in shape) and shape.count(-1) <= 1,
        f"a shape has extents >= 0 and at most one -1, given {given}",
    )
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        require(known > 0 and size % known == 0, f"{list(x.shape)} has {size} elements: no -1 fits {given}")
        shape[shape.index(-1)] = size // known
    require(
        math.prod(shape) == size,
        f"{list(x.shape)} has {size} elements, {given} has {math.prod(shape)}",
    )
    attrs["shape"] = tuple(shape)
    return tuple(shape), x.dtype


def _define_reshape(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    return reshaped(inputs[0], attrs["shape"], name)


def reshaped(x: Tensor, shape: Sequence[int], name: str) -> Tensor:
    """`x` with the same elements in the same order in another shape."""

    def body(*i: Expr) -> Expr:
        flat: Expr = as_expr(0)
        for v, n in zip(i, shape, strict=True):
            flat = flat * n + v
        at: list[Expr] = []
        for n in reversed(x.shape):
            at.append(flat % n if n > 1 else as_expr(0))
            flat = flat // max(n, 1)
        return x[tuple(reversed(at))]

    return compute(shape, body, name)


register_op(
    OpDef(
        "reshape",
        ("x",),
        _infer_reshape,
        _define_reshape,
        lambda arrays, attrs: arrays[0].reshape(attrs["shape"]),
        "injective",
        {"shape": REQUIRED},
        "The same elements in another shape; one extent may be -1.",
    )
)


def _infer_flatten(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    rank = len(x.shape)
    axis = attrs["axis"]
    require(
        isinstance(axis, int | np.integer) and 0 <= axis <= rank, f"axis must be in 0..{rank}, given {axis}"
    )
    return (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), x.dtype


def _flat_shape(shape: Sequence[int], attrs: Attrs) -> tuple[int, int]:
    return math.prod(shape[: attrs["axis"]]), math.prod(shape[attrs["axis"] :])


register_op(
    OpDef(
        "flatten",
        ("x",),
        _infer_flatten,
        lambda t, a, n: reshaped(t[0], _flat_shape(t[0].shape, a), n),
        lambda x, a: x[0].reshape(_flat_shape(x[0].shape, a)),
        "injective",
        {"axis": 1},
        "A matrix: dimensions before the axis as rows, the others as columns.",
    )
)


# -- transpose -----------------------------------------------------------------------------------


def _infer_transpose(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    rank = len(x.shape)
    axes = tuple(reversed(range(rank))) if attrs["axes"] is None else tuple(attrs["axes"])
    axes = tuple(axis_of(a, rank) for a in axes)
    require(
        sorted(axes) == list(range(rank)), f"axes must be an order of 0..{rank - 1}, given {attrs['axes']}"
    )
    attrs["axes"] = axes
    return tuple(x.shape[a] for a in axes), x.dtype


def _define_transpose(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    (x,), axes = inputs, attrs["axes"]

    def body(*i: Expr) -> Expr:
        at: list[Expr] = [as_expr(0)] * len(axes)
        for v, a in zip(i, axes, strict=True):
            at[a] = v
        return x[tuple(at)]

    return compute([x.shape[a] for a in axes], body, name)


register_op(
    OpDef(
        "transpose",
        ("x",),
        _infer_transpose,
        _define_transpose,
        lambda arrays, attrs: arrays[0].transpose(attrs["axes"]),
        "injective",
        {"axes": None},
        "Dimensions in another order (None: reversed).",
    )
)


# -- concat --------------------------------------------------------------------------------------


def _infer_concat(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    require(len(inputs) > 0, "there is nothing to join")
    first = inputs[0]
    attrs["axis"] = axis = axis_of(attrs["axis"], len(first.shape))
    for v in inputs:
        same = len(v.shape) == len(first.shape) and all(
            a == b for d, (a, b) in enumerate(zip(v.shape, first.shape, strict=True)) if d != axis
        )
        require(same, f"shapes must agree but for dimension {axis}: {list(first.shape)}, {list(v.shape)}")
        require(v.dtype == first.dtype, f"dtypes must agree: {first.dtype}, {v.dtype}")
    shape = list(first.shape)
    shape[axis] = sum(v.shape[axis] for v in inputs)
    return tuple(shape), first.dtype


def _define_concat(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    axis = attrs["axis"]
    parts = [t for t in inputs if t.shape[axis] > 0] or [inputs[0]]
    shape = list(inputs[0].shape)
    shape[axis] = sum(t.shape[axis] for t in inputs)

    def body(*i: Expr) -> Expr:
        end = shape[axis]
        out: Expr | None = None
        for t in reversed(parts):
            start = end - t.shape[axis]
            at = [v - start if d == axis else v for d, v in enumerate(i)]
            out = t[tuple(at)] if out is None else select(i[axis] < end, t[tuple(at)], out)
            end = start
        assert out is not None
        return out

    return compute(shape, body, name)


register_op(
    OpDef(
        "concat",
        ("*",),
        _infer_concat,
        _define_concat,
        lambda arrays, attrs: np.concatenate(arrays, axis=attrs["axis"]),
        "injective",
        {"axis": 0},
        "Values one after another along an axis.",
    )
)


# -- slice and pad -------------------------------------------------------------------------------


def _infer_slice(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    rank = len(x.shape)
    step = attrs["step"] if attrs["step"] is not None else (1,) * rank
    bounds = [list(b) for b in (attrs["begin"], attrs["end"], step)]
    require(
        all(len(b) == rank for b in bounds),
        f"begin, end and step need {rank} numbers each, for {list(x.shape)}",
    )
    begin, end, steps = [], [], []
    for b, e, s, n in zip(*bounds, x.shape, strict=True):
        require(s is None or s > 0, f"steps must be >= 1, given {step}")
        start, stop, stride = slice(b, e, s).indices(n)
        begin.append(start)
        end.append(max(start, stop))
        steps.append(stride)
    attrs["begin"], attrs["end"], attrs["step"] = tuple(begin), tuple(end), tuple(steps)
    return _slice_shape(attrs), x.dtype


def _slice_shape(attrs: Attrs) -> tuple[int, ...]:
    each = zip(attrs["begin"], attrs["end"], attrs["step"], strict=True)
    return tuple(-(-(e - b) // s) for b, e, s in each)


def _define_slice(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    (x,) = inputs

    def body(*i: Expr) -> Expr:
        each = zip(i, attrs["begin"], attrs["step"], strict=True)
        return x[tuple(v * s + b for v, b, s in each)]

    return compute(_slice_shape(attrs), body, name)


def _slice(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    each = zip(attrs["begin"], attrs["end"], attrs["step"], strict=True)
    return arrays[0][tuple(slice(b, e, s) for b, e, s in each)]


register_op(
    OpDef(
        "slice",
        ("x",),
        _infer_slice,
        _define_slice,
        _slice,
        "injective",
        {"begin": REQUIRED, "end": REQUIRED, "step": None},
        "x[begin:end:step] in every dimension, as Python counts; steps are positive.",
    )
)


def _infer_pad(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    pads = tuple((int(a), int(b)) for a, b in attrs["padding"])
    require(len(pads) == len(x.shape), f"padding needs {len(x.shape)} (before, after) pairs, given {pads}")
    require(all(a >= 0 and b >= 0 for a, b in pads), f"padding must be >= 0, given {pads}")
    attrs["padding"] = pads
    return tuple(n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)), x.dtype


def _define_pad(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    (x,), pads = inputs, attrs["padding"]
    shape = [n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)]
    value = attrs["value"] if x.dtype.startswith("float") else int(attrs["value"])
    out = padded(x, [a for a, _ in pads], shape, value, name)
    return compute(x.shape, lambda *i: x[i], name) if out is x else out


register_op(
    OpDef(
        "pad",
        ("x",),
        _infer_pad,
        _define_pad,
        lambda arrays, attrs: np.pad(arrays[0], attrs["padding"], constant_values=attrs["value"]),
        "injective",
        {"padding": REQUIRED, "value": 0.0},
        "A constant round the edges; padding is a (before, after) pair per dimension.",
    )
)


# -- gather --------------------------------------------------------------------------------------


def _infer_gather(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, indices = inputs
    require(indices.dtype in ("int32", "int64"), f"indices must be int32 or int64, found {indices.dtype}")
    require(len(x.shape) >= 1, "x needs at least 1 dimension")
    attrs["axis"] = axis = axis_of(attrs["axis"], len(x.shape))
    empty = x.shape[axis] == 0 and 0 not in indices.shape
    require(not empty, f"nothing can be taken from {list(x.shape)} along dimension {axis}")
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype


def _define_gather(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    x, indices = inputs
    axis, n = attrs["axis"], x.shape[attrs["axis"]]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    end = axis + len(indices.shape)

    def body(*i: Expr) -> Expr:
        k = cast(indices[i[axis:end]], "int64")
        k = select(k < 0, k + n, k)
        return x[(*i[:axis], maximum(minimum(k, n - 1), 0), *i[end:])]

    return compute(shape, body, name)


def _gather(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, indices = arrays
    return np.take(x, indices, axis=attrs["axis"], mode="raise")


_GATHER_DOC = (
    "Elements of x at indices along an axis; negative ones count from the end. A compiled model takes "
    "the nearest element for an index out of range; the NumPy reference raises IndexError."
)
register_op(
    OpDef(
        "gather",
        ("x", "indices"),
        _infer_gather,
        _define_gather,
        _gather,
        "injective",
        {"axis": 0},
        _GATHER_DOC,
    )
)


register_op(
    OpDef(
        "embedding",
        ("table", "indices"),
        lambda v, _: _infer_gather(v, {"axis": 0}),
        lambda t, _, n: _define_gather(t, {"axis": 0}, n),
        lambda x, _: _gather(x, {"axis": 0}),
        "injective",
        {},
        "Rows of a table (rows, width) at integer indices.",
    )
)
