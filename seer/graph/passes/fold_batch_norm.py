"""Batch normalisation with known statistics becomes weights of the convolution before it."""

from __future__ import annotations

import numpy as np

from seer.dtypes import numpy_dtype
from seer.graph.graph import Graph, Value
from seer.graph.passes.rewrite import constant_of, is_constant, reader_counts, rebuild
from seer.graph.pending import later


def fold_batch_norm(graph: Graph) -> Graph:
    """Into a conv2d or dense that only it reads; else as one multiplication and one addition."""
    counts = reader_counts(graph)
    folded = {
        v.node.inputs[0]: v
        for v in graph.values()
        if v.node.op == "batch_norm" and _is_known(v) and _can_take(v, counts)
    }

    def rule(new: Graph, v: Value, inputs: tuple[Value, ...]) -> Value | None:
        if v in folded:  # the convolution, with its normalisation
            return _fold(new, v, folded[v], inputs)
        if v.node.op != "batch_norm" or not _is_known(v):
            return None
        if v.node.inputs[0] in folded:
            return inputs[0]
        scale, shift = _affine(v)
        shape = [1] * len(v.shape)
        shape[v.node.attrs["axis"]] = -1
        product = new.apply("mul", inputs[0], scale.astype(v.dtype).reshape(shape))
        return new.apply("add", product, shift.astype(v.dtype).reshape(shape), name=v.name)

    return rebuild(graph, rule)


def _is_known(v: Value) -> bool:
    return all(map(is_constant, v.node.inputs[1:]))


def _can_take(v: Value, counts: dict[Value, int]) -> bool:
    """Whether the normalised value is a convolution with constant weights that nothing else reads."""
    before = v.node.inputs[0]
    axis = {"conv2d": 1, "dense": len(v.shape) - 1}.get(before.node.op)
    constant = all(map(is_constant, before.node.inputs[1:]))
    return axis == v.node.attrs["axis"] and counts[before] == 1 and constant


def _affine(v: Value) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift of a batch_norm, in float64."""
    scale, bias, mean, variance = (np.asarray(constant_of(i), np.float64) for i in v.node.inputs[1:])
    factor = scale / np.sqrt(variance + v.node.attrs["eps"])
    return factor, bias - mean * factor


def _fold(new: Graph, conv: Value, norm: Value, inputs: tuple[Value, ...]) -> Value:
    scale, shift = _affine(norm)
    weights = conv.node.inputs[1]
    factor = scale[:, None, None, None] if conv.node.op == "conv2d" else scale
    dtype = numpy_dtype(conv.dtype)

    def scaled(array: np.ndarray) -> np.ndarray:
        """In float64 and rounded once, without a whole copy in float64."""
        out = np.empty(array.shape, dtype)
        np.multiply(array, factor, out=out, dtype=np.float64, casting="unsafe")
        return out

    if len(inputs) > 2:
        shift = shift + scale * constant_of(conv.node.inputs[2])
    folded = later(weights.node.attrs["value"], scaled, weights.shape, dtype)
    w = new.constant(folded, f"{weights.name}_folded_{conv.name}")
    b = new.constant(shift.astype(conv.dtype), f"{conv.name}_shift")
    return new.apply(conv.node.op, inputs[0], w, b, name=norm.name, **conv.node.attrs)
