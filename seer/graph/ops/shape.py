"""Operators that move elements: reshape, transpose, concat, slice, pad, gather and their like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.errors import GraphError, shown
from seer.graph.ops.common import MAX_STEP, axis_of, is_whole, items_of, padded, require, wholes
from seer.graph.registry import REQUIRED, Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr, as_expr, cast, maximum, minimum, select
from seer.ir.tensor import Tensor, compute

# -- reshape and flatten -------------------------------------------------------------------------


def _infer_reshape(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    given = attrs["shape"]
    shape = list(wholes((given,) if is_whole(given) else given, "shape"))
    size = math.prod(x.shape)
    require(
        all(n >= -1 for n in shape) and shape.count(-1) <= 1,
        f"shape must be extents >= 0 and at most one -1, given {shown(given)}",
    )
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        require(
            known > 0 and size % known == 0,
            f"{list(x.shape)} has {size} elements: no -1 fits shape {shown(given)}",
        )
        shape[shape.index(-1)] = size // known
    require(
        math.prod(shape) == size,
        f"{list(x.shape)} has {size} elements, shape {shown(given)} has {shown(math.prod(shape))}",
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
    good = is_whole(axis) and 0 <= axis <= rank
    require(good, f"axis must be a whole number in 0..{rank}, given {shown(axis)}")
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
    given = attrs["axes"]
    axes = tuple(reversed(range(rank))) if given is None else wholes(given, "axes")
    axes = tuple(axis_of(a, rank, "axes") for a in axes)
    require(
        sorted(axes) == list(range(rank)), f"axes must be an order of 0..{rank - 1}, given {shown(given)}"
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
    given = {k: (None,) * rank if attrs[k] is None and k == "step" else attrs[k] for k in _BOUNDS}
    bounds = [_bounds(v, rank, k, x.shape) for k, v in given.items()]
    begin, end, steps = [], [], []
    for b, e, s, n in zip(*bounds, x.shape, strict=True):
        require(s is None or s > 0, f"step must be >= 1 in every dimension, given {shown(attrs['step'])}")
        start, stop, stride = slice(b, e, s).indices(n)
        begin.append(start)
        end.append(max(start, stop))
        steps.append(min(stride, max(1, n)))  # a larger one reaches no other element
    attrs["begin"], attrs["end"], attrs["step"] = tuple(begin), tuple(end), tuple(steps)
    return _slice_shape(attrs), x.dtype


_BOUNDS = ("begin", "end", "step")


def _bounds(value: Any, rank: int, what: str, shape: Sequence[int]) -> list[int | None]:
    """A number or None for each dimension."""
    items = items_of(value)
    if items is None or not all(v is None or is_whole(v) for v in items):
        raise GraphError(
            f"{what} must be a sequence of whole numbers or Nones, one a dimension, given {shown(value)}"
        )
    require(
        len(items) == rank,
        f"begin, end and step need {rank} numbers each, for {list(shape)}, given {shown(value)}",
    )
    return [v if v is None else int(v) for v in items]


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
    given = attrs["padding"]
    pairs = [items_of(p) for p in items_of(given) or []]
    good = len(pairs) == len(x.shape) and all(
        p is not None and len(p) == 2 and all(is_whole(n) and 0 <= n <= MAX_STEP for n in p) for p in pairs
    )
    require(
        good and (pairs or items_of(given) == []),
        f"padding must be {len(x.shape)} pairs (before, after) of whole numbers >= 0 (and < 2^31), "
        f"given {shown(given)}",
    )
    pads = tuple((int(p[0]), int(p[1])) for p in pairs if p)
    attrs["value"] = _fill(attrs["value"], x.dtype)
    attrs["padding"] = pads
    return tuple(n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)), x.dtype


def _fill(value: Any, dtype: str) -> float | int:
    """What padding is filled with: a number that the dtype holds."""
    good = is_whole(value) or isinstance(value, bool | np.bool_ | float | np.floating)
    try:
        filled = (float if dtype.startswith("float") else int)(value if good else 0)
        if isinstance(filled, float):
            fits = not math.isfinite(filled) or abs(filled) <= float(np.finfo(dtype).max)
        else:
            low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            fits = filled == value and low <= filled <= high
    except (OverflowError, ValueError):  # no float is so large; no integer is infinity or NaN
        fits = False
    require(good and fits, f"value must be a number that {dtype} holds, given {shown(value)}")
    return filled


def _define_pad(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    (x,), pads = inputs, attrs["padding"]
    shape = [n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)]
    out = padded(x, [a for a, _ in pads], shape, attrs["value"], name)
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
