"""Moves that cancel, and moves that are none."""

from __future__ import annotations

from seer.graph.graph import Graph, Value
from seer.graph.passes.rewrite import rebuild


def simplify(graph: Graph) -> Graph:
    """Remove identities, join transposes and reshapes, and turn transposes of unit extents into reshapes."""
    outputs = set(graph.outputs)

    def rule(new: Graph, v: Value, inputs: tuple[Value, ...]) -> Value | None:
        found = _simpler(new, v, inputs)
        # An output keeps its name, so it stays a node of its own.
        return None if found is None or (v in outputs and found.name != v.name) else found

    return rebuild(graph, rule)


def _simpler(new: Graph, v: Value, inputs: tuple[Value, ...]) -> Value | None:
    match v.node.op:
        case "transpose":
            return _transpose(new, v, inputs[0])
        case "reshape" | "flatten":
            return _reshape(new, v, inputs[0])
        case "cast" if inputs[0].dtype == v.dtype:
            return inputs[0]
    return None


def _transpose(new: Graph, v: Value, x: Value) -> Value | None:
    axes, direct = v.node.attrs["axes"], x
    while x.node.op == "transpose":
        axes = tuple(x.node.attrs["axes"][a] for a in axes)
        x = x.node.inputs[0]
    if axes == tuple(range(len(axes))):
        return x
    long = [a for a in axes if x.shape[a] != 1]
    if long == sorted(long):
        return new.apply("reshape", x, v.shape, name=v.name)
    if x is direct:
        return None
    return new.apply("transpose", x, axes, name=v.name)


def _reshape(new: Graph, v: Value, x: Value) -> Value | None:
    while x.node.op in ("reshape", "flatten"):
        x = x.node.inputs[0]
    if x.shape == v.shape:
        return x
    return new.apply("reshape", x, v.shape, name=v.name)
