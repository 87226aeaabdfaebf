"""How much a graph computes and moves at the least, by its shapes alone."""

from __future__ import annotations

import math

import seer
from seer.dtypes import dtype
from seer.graph.graph import Value
from seer.graph.passes.fold_batch_norm import fold_batch_norm
from seer.graph.registry import op_def

_LOOKUPS = ("embedding", "gather")  # of their table they read only what they return


def flop_of(graph: seer.Graph) -> int:
    """Multiplications and additions of convolutions and matrix products, as their definitions have them."""
    return sum(2 * math.prod(v.shape) * _products(v) for v in graph.values())


def bytes_of(graph: seer.Graph) -> int:
    """Inputs, weights, outputs, and what lies between kernels, each moved once.

    Between kernels lie the results of convolutions, products and reductions; everything element by
    element can be part of one of these.
    """
    graph = fold_batch_norm(graph)
    values = graph.values()
    looked_up = {v.node.inputs[0] for v in values if v.node.op in _LOOKUPS}
    read = {i for v in values if v.node.op not in _LOOKUPS for i in v.node.inputs}
    moved = set(graph.outputs)
    for v in values:
        op = v.node.op
        if op == "constant":
            is_moved = v in read or v not in looked_up
        else:
            is_moved = op in ("input", *_LOOKUPS) or op_def(op).fusion in ("anchor", "reduction")
        if is_moved:
            moved.add(v)
    return sum(math.prod(v.shape) * dtype(v.dtype).size_bytes for v in moved)


def _products(v: Value) -> int:
    """Products in each element of a value."""
    inputs = [i.shape for i in v.node.inputs]
    match v.node.op:
        case "conv2d":
            return math.prod(inputs[1][1:])
        case "conv2d_nhwc":
            return math.prod(inputs[1][:3])
        case "depthwise_conv2d_nhwc":
            return math.prod(inputs[1][:2])
        case "dense":
            return inputs[1][0]
        case "matmul":
            return inputs[0][-2 if v.node.attrs["transpose_a"] else -1]
    return 0
