"""Nodes that compute the same become one."""

from __future__ import annotations

from typing import Any

from seer.graph.graph import Graph, Value
from seer.graph.passes.rewrite import copy, rebuild


def merge_equal(graph: Graph) -> Graph:
    """Merge operators with the same inputs and attributes (outputs keep their own names)."""
    known: dict[Any, Value] = {}
    outputs = set(graph.outputs)

    def rule(new: Graph, v: Value, inputs: tuple[Value, ...]) -> Value | None:
        key = (v.node.op, inputs, tuple(sorted((k, repr(a)) for k, a in v.node.attrs.items())))
        if key in known:
            return None if v in outputs else known[key]
        known[key] = copy(new, v, inputs)
        return known[key]

    return rebuild(graph, rule)
