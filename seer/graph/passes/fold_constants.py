"""What depends on constants alone is computed once, here."""

from __future__ import annotations

import numpy as np

from seer.dtypes import numpy_dtype
from seer.graph.graph import Graph, Value
from seer.graph.passes.rewrite import is_constant, rebuild
from seer.graph.registry import op_def

MAX_GROWTH = 4  # a result that is this much larger than its inputs is made at run time


def fold_constants(graph: Graph) -> Graph:
    """Evaluate operators whose inputs are all constants by their NumPy reference."""

    def rule(new: Graph, v: Value, inputs: tuple[Value, ...]) -> Value | None:
        if not inputs or not all(map(is_constant, inputs)):
            return None
        arrays = [np.asarray(i.node.attrs["value"]) for i in inputs]
        if np.prod(v.shape) > MAX_GROWTH * max(1024, sum(a.size for a in arrays)):
            return None
        with np.errstate(all="ignore"):
            out = op_def(v.node.op).reference(arrays, v.node.attrs)
        return new.constant(np.asarray(out, numpy_dtype(v.dtype)), v.name, v.dtype, copy=False)

    return rebuild(graph, rule)
