"""Rebuilding a graph value by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from seer.graph.graph import Graph, Value

# Given the new graph, an old value and its new inputs: the new value, or None to copy the node.
Rule = Callable[[Graph, Value, tuple[Value, ...]], Value | None]


def rebuild(graph: Graph, rule: Rule) -> Graph:
    """A new graph in which `rule` replaces values; what no output needs is left out.

    Inputs are kept, used or not. Outputs keep their names where the rule makes a value of its own
    under the old name.
    """
    new = Graph(graph.name)
    new.avoid(n.name for n in graph.nodes)
    done: dict[Value, Value] = {}
    for v in graph.values():
        inputs = tuple(done[i] for i in v.node.inputs)
        replaced = None if v.node.op in ("input", "constant") else rule(new, v, inputs)
        done[v] = copy(new, v, inputs) if replaced is None else replaced
    new.output(*(done[v] for v in graph.outputs))
    return new


def copy(new: Graph, v: Value, inputs: tuple[Value, ...], **attrs: Any) -> Value:
    """The same node in a new graph, with other inputs and some attributes changed."""
    if v.node.op == "input":
        return new.input(v.shape, v.dtype, v.name)
    if v.node.op == "constant":
        return new.constant(v.node.attrs["value"], v.name, v.dtype, copy=False)
    return make(new, v.node.op, inputs, {**v.node.attrs, **attrs}, v.name)


def make(new: Graph, op: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any], name: str) -> Value:
    """A node with inputs in order, also for operators that take a list."""
    if op == "concat":
        return new.apply(op, list(inputs), name=name, **attrs)
    return new.apply(op, *inputs, name=name, **attrs)


def constant_of(v: Value) -> np.ndarray | None:
    """The array of a constant value, or None."""
    return np.asarray(v.node.attrs["value"]) if v.node.op == "constant" else None


def is_constant(v: Value) -> bool:
    """Whether a value is known when a model is compiled."""
    return v.node.op == "constant"


def reader_counts(graph: Graph) -> dict[Value, int]:
    """How often each value is read, being an output included."""
    counts = dict.fromkeys(graph.values(), 0)
    for v in graph.values():
        for i in v.node.inputs:
            counts[i] += 1
    for v in graph.outputs:
        counts[v] += 1
    return counts
