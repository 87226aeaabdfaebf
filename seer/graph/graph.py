"""The graph API: what a user writes a model in.

    g = seer.Graph("net")
    x = g.input((1, 3, 32, 32), name="x")
    w = g.constant(weights, name="w")
    y = g.conv2d(x, w, stride=2, padding=1).relu()
    g.output(y)

Shapes and dtypes are inferred at each call; a call that cannot work raises GraphError at once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seer import memory
from seer.dtypes import dtype as dtype_of
from seer.dtypes import is_float, is_narrow, numpy_dtype
from seer.errors import GraphError, SeerError, shown
from seer.graph import ops  # noqa: F401  (registers the operators)
from seer.graph.pending import Constant, Pending
from seer.graph.registry import bind, function_names, op_def

MAX_BYTES = 2**63 - 1  # of one array, empty dimensions left out
MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # NumPy's

# Operators that take 16-bit floats: they compute nothing.
_MOVES = ("widen", "reshape", "flatten", "transpose", "slice", "concat", "gather", "embedding")


@dataclass(frozen=True, eq=False)
class Node:
    """One operator applied to values.

    Attributes:
        op: the operator's name; "input" and "constant" for the leaves.
        attrs: normalised attributes; a constant's array (or Pending) is attrs["value"].
        name: unique in the graph.
    """

    op: str
    inputs: tuple[Value, ...]
    attrs: Mapping[str, Any]
    name: str


@dataclass(frozen=True, eq=False)
class Value:
    """The result of a node; equality is identity.

    Attributes:
        shape: extents, in elements.
        dtype: element type.
        graph: the graph it belongs to.
    """

    node: Node = field(repr=False)
    shape: tuple[int, ...]
    dtype: str
    graph: Graph = field(repr=False)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Value({self.name}: {self.dtype}{list(self.shape)})"

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name.startswith("_") or name not in function_names():
            raise AttributeError(_no_attribute("Value", name))
        return lambda *args, **kwargs: self.graph.apply(name, self, *args, **kwargs)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *function_names()]

    def __add__(self, other: Operand) -> Value:
        return self.graph.apply("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.graph.apply("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.graph.apply("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.graph.apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.graph.apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.graph.apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.graph.apply("div", other, self)

    def __pow__(self, other: Operand) -> Value:
        return self.graph.apply("pow", self, other)

    def __matmul__(self, other: Operand) -> Value:
        return self.graph.apply("matmul", self, other)

    def __neg__(self) -> Value:
        return self.graph.apply("neg", self)


Operand = Value | np.ndarray | float | int


def _no_attribute(kind: str, name: str) -> str:
    """What to say of an attribute that is none: operators of a similar name, and where all are."""
    text = f"a seer {kind} has no attribute {name!r}"
    if name.startswith("_"):
        return text
    names = function_names()
    near = [n for n in names if name.lower() in n.split("_")]
    near += [n for n in difflib.get_close_matches(name.lower(), names) if n not in near]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{text}{hint} (seer.graph.registry.op_names() lists the operators)"


def _number(op: str, value: float | int, dtype: str) -> np.ndarray:
    """A Python number as a constant beside an operand of `dtype`.

    It takes that dtype, except a float beside integers, which is float32, and an integer beside bools.

    Raises:
        GraphError: if it does not fit.
    """
    if isinstance(value, float):
        own = dtype if is_float(dtype) else "float32"
    else:
        own = "int64" if dtype == "bool" else "float32" if is_narrow(dtype) else dtype
    try:
        with np.errstate(over="ignore"):
            out = np.asarray(value, own)
        fits = bool(np.isfinite(out)) or (isinstance(value, float) and not math.isfinite(value))
    except OverflowError:
        fits = False
    if not fits:
        raise GraphError(f"{op}: the number {shown(value)} does not fit into {own}, beside {dtype}")
    return out


class Graph:
    """A model: nodes in the order in which they were made.

    Attributes:
        name: the model's name.
        nodes: every node, inputs before users.
        inputs: the input values, in the order of their declaration.
        outputs: what the model returns.
    """

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self._names: set[str] = set()
        self._avoided: set[str] = set()
        self._counts: dict[str, int] = {}

    # -- leaves --------------------------------------------------------------------------------

    def input(self, shape: Sequence[int], dtype: str = "float32", name: str | None = None) -> Value:
        """Declare an input of the given shape (elements) and dtype."""
        dims = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in dims):
            raise GraphError(f"input {name or ''}: a shape is whole numbers >= 0, given {shape}")
        sizes = tuple(int(n) for n in dims)
        value = self._add("input", (), {}, name, sizes, dtype_of(dtype).name)
        self.inputs.append(value)
        return value

    def constant(
        self, array: Any, name: str | None = None, dtype: str | None = None, copy: bool = True
    ) -> Value:
        """A constant; the array is copied. Python floats become float32.

        `dtype` tells how the array's bits are to be read, where that is not what NumPy says: uint16
        for "bfloat16". Without `copy` the array is handed over: nothing may write to it from then on.
        """
        if isinstance(array, float):
            array = np.float32(array)
        if isinstance(array, Pending):
            value: Constant = array
        else:
            try:
                value = memory.kept(np.asarray(array)) if copy else np.asarray(array)
            except ValueError:  # rows of different lengths
                raise GraphError(f"constant {name or ''}: not an array: {shown(array)}") from None
        if value.dtype == object:
            raise GraphError(f"constant {name or ''}: not an array of numbers: {shown(array)}")
        dtype = dtype_of(value.dtype if dtype is None else dtype).name
        if value.dtype != numpy_dtype(dtype):
            raise GraphError(f"constant {name or ''}: {dtype} is not kept in an array of {value.dtype}")
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
        return self._add("constant", (), {"value": value}, name, value.shape, dtype)

    def output(self, *values: Value) -> None:
        """Declare outputs, after those declared before."""
        for v in values:
            if not isinstance(v, Value) or v.graph is not self:
                raise GraphError(f"graph {self.name}: output {v!r} is not a value of this graph")
            self.outputs.append(v)

    # -- operators -----------------------------------------------------------------------------

    def apply(self, op: str, *args: Any, name: str | None = None, **attrs: Any) -> Value:
        """Apply an operator by name; every operator is a method too.

        Raises:
            GraphError: if the operator does not take these inputs.
        """
        definition = op_def(op)
        given = bind(definition, args, attrs)
        given.pop("name", None)
        values: list[Any] = []
        for n in definition.inputs:
            v = given.pop("values" if n == "*" else n.rstrip("?"))
            if n == "*" and not isinstance(v, Iterable):
                raise GraphError(f"{op}: values must be a sequence of values, given {shown(v)}")
            values += list(v) if n == "*" else [] if v is None and n.endswith("?") else [v]
        inputs = self._as_values(op, values)
        narrow = next((v for v in inputs if is_narrow(v.dtype)), None)
        if narrow is not None and op not in _MOVES:
            raise GraphError(f"{op}: {narrow.name} is {narrow.dtype}, which is for storage; widen it first")
        normal = dict(given)
        label = name or self._fresh(op)
        try:
            shape, dtype = definition.infer(inputs, normal)
        except (SeerError, TypeError, ValueError, OverflowError) as e:
            operands = ", ".join(f"{v.name}: {v.dtype}{list(v.shape)}" for v in inputs)
            raise GraphError(f"graph {self.name}, node {label}: {op}({operands}): {e}") from None
        return self._add(op, inputs, normal, label, tuple(int(n) for n in shape), dtype)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name.startswith("_") or name not in function_names():
            raise AttributeError(_no_attribute("Graph", name))
        return lambda *args, **kwargs: self.apply(name, *args, **kwargs)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *function_names()]

    def _as_values(self, op: str, items: Sequence[Any]) -> tuple[Value, ...]:
        """Values stay; numbers and arrays become constants, numbers of the other operand's dtype."""
        dtypes = [v.dtype for v in items if isinstance(v, Value)]
        out = []
        for v in items:
            if isinstance(v, Value):
                if v.graph is not self:
                    raise GraphError(f"{op}: {v!r} belongs to graph {v.graph.name!r}, not {self.name!r}")
                out.append(v)
                continue
            if isinstance(v, int | float) and not isinstance(v, bool) and dtypes:
                v = _number(op, v, dtypes[0])
            try:
                out.append(self.constant(v))
            except SeerError as e:
                raise GraphError(f"{op}: {e}") from None
        return tuple(out)

    def _add(
        self,
        op: str,
        inputs: tuple[Value, ...],
        attrs: Mapping[str, Any],
        name: str | None,
        shape: tuple[int, ...],
        dtype: str,
    ) -> Value:
        if name is not None and not isinstance(name, str):
            raise GraphError(f"{op}: a name is a string, given {shown(name)}")
        label = name or self._fresh(op)
        size = math.prod(max(n, 1) for n in shape) * dtype_of(dtype).size_bytes
        if size > MAX_BYTES:
            raise GraphError(f"{op} {label}: an array of {shown(list(shape))} is larger than any memory")
        if len(shape) > MAX_RANK:
            raise GraphError(f"{op} {label}: {len(shape)} dimensions, there may be at most {MAX_RANK}")
        if label in self._names:
            raise GraphError(f"graph {self.name}: there is a node {label!r} already")
        self._names.add(label)
        node = Node(op, inputs, attrs, label)
        self.nodes.append(node)
        value = Value(node, shape, dtype, self)
        return value

    def _fresh(self, op: str) -> str:
        while True:
            k = self._counts.get(op, 0)
            self._counts[op] = k + 1
            label = f"{op}_{k}"
            if label not in self._names and label not in self._avoided:
                return label

    def avoid(self, names: Iterable[str]) -> None:
        """Never make up one of these names: a pass will give them to nodes that it copies."""
        self._avoided.update(names)

    # -- reading -------------------------------------------------------------------------------

    def values(self) -> list[Value]:
        """Every value that an output needs, and every input, inputs before users."""
        out: dict[Value, None] = dict.fromkeys(self.inputs)
        stack = [(v, False) for v in reversed(self.outputs)]
        while stack:
            v, done = stack.pop()
            if done:
                out[v] = None
            elif v not in out:
                stack.append((v, True))
                stack += [(i, False) for i in reversed(v.node.inputs) if i not in out]
        return list(out)

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        for v in self.values():
            kind = f"{v.dtype}[{', '.join(map(str, v.shape))}]"
            if v.node.op in ("input", "constant"):
                lines.append(f"  {v.name}: {kind} = {v.node.op}")
                continue
            args = [i.name for i in v.node.inputs]
            args += [f"{k}={a}" for k, a in v.node.attrs.items() if a is not None]
            lines.append(f"  {v.name}: {kind} = {v.node.op}({', '.join(args)})")
        lines.append(f"  return {', '.join(v.name for v in self.outputs) or 'nothing'}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Graph({self.name}: {len(self.nodes)} nodes)"
