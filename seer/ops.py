"""Every operator as a function: `seer.ops.relu(x)` is `x.relu()`.

The functions are made from the operator registry; help(seer.ops.conv2d) shows signature and meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seer.errors import GraphError
from seer.graph.graph import Value
from seer.graph.registry import OpDef, function_names, op_def, signature


def _function(op: OpDef) -> Callable[..., Value]:
    def function(*args: Any, **kwargs: Any) -> Value:
        flat: list[Any] = []
        for a in (*args, *kwargs.values()):
            flat += a if isinstance(a, list | tuple) else [a]
        graph = next((a.graph for a in flat if isinstance(a, Value)), None)
        if graph is None:
            raise GraphError(f"seer.ops.{op.name}: at least one argument must be a value of a graph")
        return graph.apply(op.name, *args, **kwargs)

    function.__name__ = function.__qualname__ = op.name
    function.__module__ = __name__
    function.__doc__ = op.doc
    function.__signature__ = signature(op)  # type: ignore[attr-defined]
    return function


def __getattr__(name: str) -> Callable[..., Value]:
    if name in function_names():
        globals()[name] = _function(op_def(name))
        return globals()[name]  # type: ignore[no-any-return]
    raise AttributeError(f"seer.ops has no operator {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return function_names()
