"""The operator registry: each operator is one OpDef, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from seer.errors import GraphError
from seer.ir.tensor import Tensor

Attrs = Mapping[str, Any]
Fusion = Literal["anchor", "elementwise", "injective", "reduction", "opaque"]


class Typed(Protocol):
    """What a shape rule sees of an input: a Value of the graph."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


Shape = tuple[int, ...]
Infer = Callable[[Sequence[Typed], dict[str, Any]], tuple[Shape, str]]
Define = Callable[[Sequence[Tensor], Attrs, str], Tensor]
Reference = Callable[[Sequence[np.ndarray], Attrs], np.ndarray]


@dataclass(frozen=True)
class OpDef:
    """One graph operator.

    Attributes:
        name: what the graph calls it.
        inputs: names of the inputs; one that ends in "?" may be left out; ("*",) takes any number.
        infer: (inputs, attrs) -> (shape, dtype); brings attrs to their normal form in place; raises
            GraphError (the graph adds the node's name).
        define: (tensors, attrs, name) -> the tensor expression; stages of its own begin with `name`.
        reference: (arrays, attrs) -> the result by NumPy, independent of `define`.
        fusion: how the partitioner may treat it. An anchor or a reduction computes each element from
            many; element-wise reads its inputs at its own position (broadcasting included); injective
            reads each element once, elsewhere.
        attrs: names of the attributes with their defaults.
        is_function: whether users call it (false for what only passes make).
    """

    name: str
    inputs: tuple[str, ...]
    infer: Infer
    define: Define
    reference: Reference
    fusion: Fusion
    attrs: Mapping[str, Any]
    doc: str = ""
    is_function: bool = True


_OPS: dict[str, OpDef] = {}


def register_op(op: OpDef) -> OpDef:
    """Add an operator.

    Raises:
        GraphError: if there is one of that name.
    """
    if op.name in _OPS:
        raise GraphError(f"operator {op.name!r} is registered already")
    _OPS[op.name] = op
    return op


def op_def(name: str) -> OpDef:
    """The operator called `name`.

    Raises:
        GraphError: if there is none.
    """
    if name not in _OPS:
        raise GraphError(f"unknown operator {name!r}; seer has {', '.join(sorted(_OPS))}")
    return _OPS[name]


def op_names() -> list[str]:
    """Every operator, sorted."""
    return sorted(_OPS)


def function_names() -> list[str]:
    """The operators that users call, sorted."""
    return [n for n in op_names() if op_def(n).is_function]


REQUIRED = inspect.Parameter.empty  # the default of an attribute that must be given


def signature(op: OpDef) -> inspect.Signature:
    """The Python signature under which users call the operator."""
    kinds = inspect.Parameter
    out = []
    for n in op.inputs:
        if n == "*":
            out.append(kinds("values", kinds.POSITIONAL_OR_KEYWORD))
        else:
            default = None if n.endswith("?") else kinds.empty
            out.append(kinds(n.rstrip("?"), kinds.POSITIONAL_OR_KEYWORD, default=default))
    optional = any(p.default is not kinds.empty for p in out)
    for n, default in op.attrs.items():
        kind = kinds.KEYWORD_ONLY if optional and default is REQUIRED else kinds.POSITIONAL_OR_KEYWORD
        out.append(kinds(n, kind, default=default))
    out.append(kinds("name", kinds.KEYWORD_ONLY, default=None))
    out.sort(key=lambda p: p.kind)
    return inspect.Signature(out)


def bind(op: OpDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, defaults filled in.

    Raises:
        GraphError: if an argument is missing or unknown.
    """
    try:
        bound = signature(op).bind(*args, **kwargs)
    except TypeError as e:
        raise GraphError(f"{op.name}{signature(op)}: {e}") from None
    bound.apply_defaults()
    return dict(bound.arguments)
