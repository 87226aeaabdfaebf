"""Reductions over axes."""

from __future__ import annotations

from seer.frontend.onnx.registry import Call, Result, importer

_NAMES = {"ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max"}


@importer(*_NAMES)
def _reduce(c: Call) -> Result:
    """Axes are an attribute in older versions, an input in newer ones; none means all."""
    x = c.value(0)
    axes = c.numbers(1, "axes")
    if not axes:
        if c.attrs.get("noop_with_empty_axes", 0):
            return x
        axes = None
    return c.result(_NAMES[c.op], x, axes=axes, keepdims=bool(c.attrs.get("keepdims", 1)))
