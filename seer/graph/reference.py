"""A graph by NumPy, operator by operator: what every compiled model is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from seer.dtypes import numpy_dtype
from seer.errors import UserError
from seer.graph.graph import Graph, Value
from seer.graph.registry import op_def


def run(graph: Graph, inputs: Mapping[str, np.ndarray], precise: bool = False) -> list[np.ndarray]:
    """The outputs of a graph.

    Args:
        graph: the model.
        inputs: an array for each input's name, of its shape and dtype.
        precise: compute float32 in float64 throughout, for measuring errors.

    Raises:
        UserError: if an input is missing or does not fit.
    """
    last_use = _last_uses(graph)
    arrays: dict[Value, np.ndarray] = {}
    for step, v in enumerate(graph.values()):
        if v.node.op == "input":
            a = inputs.get(v.name)
            if a is None or a.shape != v.shape or a.dtype != numpy_dtype(v.dtype):
                found = "nothing" if a is None else f"{a.dtype}{list(a.shape)}"
                raise UserError(f"input {v.name} must be {v.dtype}{list(v.shape)}, given {found}")
        elif v.node.op == "constant":
            a = np.asarray(v.node.attrs["value"])
        else:
            with np.errstate(all="ignore"):
                out = op_def(v.node.op).reference([arrays[i] for i in v.node.inputs], v.node.attrs)
            a = np.asarray(out)
            if not (precise and a.dtype == np.float64):
                a = a.astype(numpy_dtype(v.dtype), copy=False)
            for i in v.node.inputs:
                if last_use[i] == step and i in arrays:
                    del arrays[i]
        arrays[v] = a.astype(np.float64) if precise and a.dtype == np.float32 else a
    return [arrays[v] for v in graph.outputs]


def _last_uses(graph: Graph) -> dict[Value, int]:
    last = {}
    for step, v in enumerate(graph.values()):
        for i in v.node.inputs:
            last[i] = step
    forever = len(graph.nodes) + 1
    return last | dict.fromkeys(graph.outputs, forever)
