"""Operators that move elements: reshape, transpose, concat, slice, pad, gather, ..."""

from __future__ import annotations

import numpy as np

from seer.errors import GraphError
from seer.frontend.onnx.registry import Call, Result, importer
from seer.graph.graph import Value


@importer("Reshape")
def _reshape(c: Call) -> Result:
    x, shape = c.value(0), c.numbers(1, "shape")
    if shape is None:
        raise GraphError("the shape is missing")
    if not c.attrs.get("allowzero", 0):  # 0 keeps the extent
        if any(n == 0 and k >= x.ndim for k, n in enumerate(shape)):
            raise GraphError(f"shape {shape} keeps a dimension that {list(x.shape)} does not have")
        shape = [x.shape[k] if n == 0 else n for k, n in enumerate(shape)]
    return c.result("reshape", x, tuple(shape))


@importer("Flatten")
def _flatten(c: Call) -> Result:
    x, axis = c.value(0), int(c.attrs.get("axis", 1))
    return c.result("flatten", x, axis=axis + x.ndim if axis < 0 else axis)


@importer("Squeeze")
def _squeeze(c: Call) -> Result:
    x, axes = c.value(0), c.numbers(1, "axes")
    gone = {a % x.ndim for a in axes} if axes is not None else {d for d, n in enumerate(x.shape) if n == 1}
    wrong = [d for d in gone if x.shape[d] != 1]
    if wrong:
        raise GraphError(f"dimensions {wrong} of {list(x.shape)} are not 1")
    return c.result("reshape", x, tuple(n for d, n in enumerate(x.shape) if d not in gone))


@importer("Unsqueeze")
def _unsqueeze(c: Call) -> Result:
    x, axes = c.value(0), c.numbers(1, "axes") or []
    rank = x.ndim + len(axes)
    new = {a % rank for a in axes}
    old = iter(x.shape)
    return c.result("reshape", x, tuple(1 if d in new else next(old) for d in range(rank)))


@importer("Transpose")
def _transpose(c: Call) -> Result:
    return c.result("transpose", c.value(0), axes=c.attrs.get("perm"))


@importer("Concat")
def _concat(c: Call) -> Result:
    return c.result("concat", c.values(), axis=int(c.attrs["axis"]))


@importer("Split")
def _split(c: Call) -> Result:
    """Equal parts (the last one smaller), or parts of given sizes."""
    x, sizes = c.value(0), c.numbers(1, "split")
    axis = int(c.attrs.get("axis", 0)) % x.ndim
    if sizes is None:
        step = -(-x.shape[axis] // len(c.outputs))
        sizes = [max(0, min(step, x.shape[axis] - k * step)) for k in range(len(c.outputs))]
    if sum(sizes) != x.shape[axis] or len(sizes) != len(c.outputs):
        raise GraphError(
            f"{len(c.outputs)} parts of {sizes} do not make up dimension {axis} of {list(x.shape)}"
        )
    parts, start = [], 0
    for name, n in zip(c.outputs, sizes, strict=True):
        begin, end = [0] * x.ndim, list(x.shape)
        begin[axis], end[axis] = start, start + n
        parts.append(c.graph.apply("slice", x, begin, end, name=name or None))
        start += n
    return parts


@importer("Slice")
def _slice(c: Call) -> Result:
    """Bounds are attributes before version 10, inputs since."""
    x = c.value(0)
    starts, ends, axes, steps = (
        c.numbers(k + 1, n) for k, n in enumerate(("starts", "ends", "axes", "steps"))
    )
    if starts is None or ends is None:
        raise GraphError("starts and ends are missing")
    begin: list[int | None] = [None] * x.ndim
    end: list[int | None] = [None] * x.ndim
    step = [1] * x.ndim
    for k, axis in enumerate(axes if axes is not None else range(len(starts))):
        begin[axis % x.ndim], end[axis % x.ndim] = starts[k], ends[k]
        step[axis % x.ndim] = 1 if steps is None else steps[k]
    if any(s < 1 for s in step):
        raise GraphError(f"steps must be >= 1, found {steps}")
    return c.result("slice", x, begin, end, step)


@importer("Pad")
def _pad(c: Call) -> Result:
    """Padding is an attribute before version 11, an input since."""
    c.refuse(mode="constant")
    x, pads, axes = c.value(0), c.numbers(1, "pads"), c.numbers(3, "axes")
    if pads is None:
        raise GraphError("pads are missing")
    value = c.array(2, "the value")
    fill = c.attrs.get("value", 0.0) if value is None else value.item()
    padding = [(0, 0)] * x.ndim
    for k, axis in enumerate(axes if axes is not None else range(x.ndim)):
        padding[axis % x.ndim] = (pads[k], pads[k + len(pads) // 2])
    return c.result("pad", x, padding, value=fill)


@importer("Gather")
def _gather(c: Call) -> Result:
    x, axis = c.value(0), int(c.attrs.get("axis", 0))
    indices = c.inputs[1]
    if isinstance(indices, np.ndarray) and indices.ndim == 0:  # one slice: cheaper than looking it up
        axis, k = axis % x.ndim, int(indices)
        begin, end = [0] * x.ndim, list(x.shape)
        begin[axis] = k + x.shape[axis] if k < 0 else k
        end[axis] = begin[axis] + 1
        if not 0 <= begin[axis] < x.shape[axis]:
            raise GraphError(f"index {k} is outside dimension {axis} of {list(x.shape)}")
        picked = c.apply("slice", x, begin, end)
        return c.result("reshape", picked, (*x.shape[:axis], *x.shape[axis + 1 :]))
    return c.result("gather", x, c.value(1), axis=axis)


@importer("Expand")
def _expand(c: Call) -> Result:
    x, shape = c.value(0), c.numbers(1, "shape")
    wanted = np.broadcast_shapes(x.shape, tuple(shape or ()))
    return _broadcast(c, x, wanted)


def _broadcast(c: Call, x: Value, shape: tuple[int, ...]) -> Value:
    """By an addition of zeros, which becomes part of the kernel that reads it."""
    if tuple(shape) == x.shape:
        return x
    if x.dtype == "bool":
        raise GraphError("a bool cannot be expanded")
    # -0.0 is what leaves every float as it is.
    zero = np.full(shape, -0.0 if x.dtype.startswith("float") else 0, x.dtype)
    return c.result("add", x, zero)
