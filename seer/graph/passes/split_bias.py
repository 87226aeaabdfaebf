"""The bias of a convolution becomes an addition, which fuses like any other."""

from __future__ import annotations

import numpy as np

from seer.graph.graph import Graph, Value
from seer.graph.passes.rewrite import constant_of, rebuild


def split_bias(graph: Graph) -> Graph:
    """conv2d(x, w, bias) -> conv2d(x, w) + bias."""

    def rule(new: Graph, v: Value, inputs: tuple[Value, ...]) -> Value | None:
        if v.node.op != "conv2d" or len(inputs) < 3:
            return None
        product = new.apply("conv2d", *inputs[:2], **v.node.attrs)
        known = constant_of(v.node.inputs[2])
        shape = (-1, 1, 1)
        bias = inputs[2].reshape(shape) if known is None else new.constant(np.reshape(known, shape))
        return new.apply("add", product, bias, name=v.name)

    return rebuild(graph, rule)
