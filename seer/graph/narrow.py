"""Storing a model in 16 bits: weights, and the large arrays between kernels.

    y = dense(x, w)   ->   y = dense(x, widen(w16))        w16 is made ahead of time

All arithmetic stays in float32: what is stored is widened in the kernel that reads it, and narrowed in
the kernel that makes it. It runs after the other passes, which would fold or merge what it writes.
"""

from __future__ import annotations

import math

from seer import flags
from seer.dtypes import NARROW, convert, numpy_dtype
from seer.errors import UserError
from seer.graph.graph import Graph, Value
from seer.graph.partition import VIEWS, partition
from seer.graph.passes.rewrite import copy
from seer.graph.pending import later

MIN_WEIGHTS = 1024  # elements of a constant worth narrowing
# Bytes of an array between kernels that is worth narrowing: smaller ones stay in a core's cache,
# where converting costs more than it saves.
MIN_BETWEEN_BYTES = 1 << 20

_LOOK_UPS = ("gather", "embedding")


def storage_type(dtype: str) -> str | None:
    """The 16-bit type that a model is to be stored in, or None for float32.

    Raises:
        UserError: for any other type.
    """
    if dtype == "float32":
        return None
    if dtype not in NARROW:
        raise UserError(f"a model's dtype is float32 or, for storage, {' or '.join(NARROW)}; given {dtype!r}")
    return dtype


def narrow(graph: Graph, dtype: str, min_between_bytes: int = MIN_BETWEEN_BYTES) -> Graph:
    """The graph with float32 weights and large values between kernels stored as `dtype`.

    Inputs, outputs, vectors (biases, scales) and small constants stay as they are.
    """
    out = _Narrower(graph, dtype, _between_kernels(graph, min_between_bytes)).run()
    flags.debug("graph", lambda: str(out))
    return out


def _between_kernels(graph: Graph, min_bytes: int) -> set[Value]:
    """Large float32 values that one kernel writes and others read."""
    parts = partition(graph)
    outputs = {parts.origin(v) for v in graph.outputs}
    return {
        s.output
        for s in parts.subgraphs
        if s.output not in outputs
        and s.output.dtype == "float32"
        and 4 * math.prod(s.output.shape) >= max(1, min_bytes)
    }


def _is_weight(v: Value) -> bool:
    if v.node.op != "constant" or v.dtype != "float32":
        return False
    return math.prod(v.shape) >= MIN_WEIGHTS and sum(n > 1 for n in v.shape) >= 2


class _Narrower:
    def __init__(self, graph: Graph, dtype: str, between: set[Value]) -> None:
        self.graph = graph
        self.dtype = dtype
        self.between = between
        self.new = Graph(graph.name)
        self.new.avoid(n.name for n in graph.nodes)
        self.done: dict[Value, Value] = {}  # with the dtype it has now
        self.outputs = set(graph.outputs)

    def run(self) -> Graph:
        for v in self.graph.values():
            self.done[v] = self._value(v)
        self.new.output(*(self.done[v] for v in self.graph.outputs))
        return self.new

    def _value(self, v: Value) -> Value:
        if _is_weight(v) and v not in self.outputs:
            stored = later(
                v.node.attrs["value"],
                lambda a: convert(a, v.dtype, self.dtype),
                v.shape,
                numpy_dtype(self.dtype),
            )
            return self.new.constant(stored, v.name, self.dtype)
        if v.node.op in VIEWS or v.node.op in _LOOK_UPS:
            inputs = tuple(self.done[i] for i in v.node.inputs)
            if inputs[0].dtype == self.dtype and v in self.outputs:  # the host sees float32
                inputs = (self._wide(v.node.inputs[0]), *inputs[1:])
            return copy(self.new, v, inputs)
        made = copy(self.new, v, tuple(self._wide(i) for i in v.node.inputs))
        return made.cast(self.dtype) if v in self.between else made

    def _wide(self, v: Value) -> Value:
        """For one reader, so that widening is that kernel's work."""
        known = self.done[v]
        return known if known.dtype == v.dtype else self.new.apply("widen", known)
