"""The importers: one function for each ONNX operator.

An importer gets a Call and returns what the node computes: a Value, an array where the result is known
ahead, or a list of them where there are several outputs. It raises GraphError for what seer cannot do;
the reader adds the node's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from seer.errors import GraphError
from seer.graph.graph import Graph, Value

Known = Union[Value, np.ndarray]
Result = Union[Value, np.ndarray, Sequence[Known]]


@dataclass(frozen=True)
class Call:
    """One ONNX node to import.

    Attributes:
        graph: the graph that is being built.
        op: the ONNX operator.
        inputs: its inputs; None for one that is left out.
        attrs: its attributes as Python values.
        outputs: the names of its outputs; "" for one that nobody wants.
        opset: the version of ONNX's operators that the model is written for.
        constants: the value of each known array that was needed in the graph, by the array's id.
    """

    graph: Graph
    op: str
    inputs: tuple[Known | None, ...]
    attrs: Mapping[str, Any]
    outputs: tuple[str, ...]
    opset: int
    constants: dict[int, Value]

    def value(self, k: int) -> Value:
        """Input k as a value of the graph."""
        x = self.inputs[k] if k < len(self.inputs) else None
        if x is None:
            raise GraphError(f"input {k} is missing")
        if isinstance(x, Value):
            return x
        if id(x) not in self.constants:
            self.constants[id(x)] = self.graph.constant(x)
        return self.constants[id(x)]

    def values(self) -> list[Value]:
        """All inputs as values of the graph."""
        return [self.value(k) for k in range(len(self.inputs))]

    def array(self, k: int, what: str) -> np.ndarray | None:
        """Input k, which must be known ahead, or None if it is left out."""
        x = self.inputs[k] if k < len(self.inputs) else None
        if isinstance(x, Value):
            raise GraphError(f"{what} must be known ahead, but {x.name} is computed when the model runs")
        return x

    def numbers(self, k: int, attr: str) -> list[int] | None:
        """Whole numbers that are input k in newer versions and an attribute in older ones."""
        if attr in self.attrs:
            given = self.attrs[attr]
            return [int(n) for n in given] if isinstance(given, Sequence) else [int(given)]
        array = self.array(k, attr)
        return None if array is None else [int(n) for n in np.ravel(array)]

    def apply(self, op: str, *args: Any, **attrs: Any) -> Value:
        """A seer operator on the way to the result."""
        return self.graph.apply(op, *args, **attrs)

    def result(self, op: str, *args: Any, **attrs: Any) -> Value:
        """The seer operator that computes the node's (first) output, and has its name."""
        return self.graph.apply(op, *args, name=self.outputs[0] or None, **attrs)

    def require_one_output(self) -> None:
        """Raise GraphError if more than the first output is used."""
        if any(self.outputs[1:]):
            raise GraphError(f"only the first output can be used, not {', '.join(self.outputs[1:])}")

    def refuse(self, **allowed: Any) -> None:
        """Raise GraphError if an attribute has another value than the one that seer can do."""
        for name, value in allowed.items():
            given = self.attrs.get(name, value)
            if given != value:
                raise GraphError(f"attribute {name} is {given!r}; seer has only {value!r}")


Importer = Callable[[Call], Result]

_IMPORTERS: dict[str, Importer] = {}


def importer(*names: str) -> Callable[[Importer], Importer]:
    """Register a function as the importer of these ONNX operators."""

    def register(function: Importer) -> Importer:
        for name in names:
            if name in _IMPORTERS:
                raise GraphError(f"there is an importer of {name!r} already")
            _IMPORTERS[name] = function
        return function

    return register


def importer_of(name: str) -> Importer | None:
    """The importer of an ONNX operator, or None."""
    return _IMPORTERS.get(name)


def supported() -> list[str]:
    """The ONNX operators that can be imported, sorted."""
    return sorted(_IMPORTERS)
