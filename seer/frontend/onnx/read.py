"""From an ONNX model to a graph: reads the file, folds what is known, calls the importers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.dtypes import is_narrow
from seer.errors import GraphError, SeerError, UserError
from seer.frontend.onnx.registry import Call, Known, importer_of, supported
from seer.graph.graph import Graph, Value
from seer.graph.ops.common import is_whole

MIN_OPSET = 7
_RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
)
_DOMAINS = ("", "ai.onnx")


def from_onnx(model: Any, dims: Mapping[str, int] | None = None) -> Graph:
    """An ONNX model as a graph, with its names of inputs and outputs.

    Args:
        model: the path of a file, or an onnx.ModelProto.
        dims: the size of each dimension that the model leaves open, by its name: {"batch": 1}.

    Raises:
        UserError: if onnx is not installed, the file is none of ONNX, a dimension stays open, or an
            operator is not supported; the message names the node.
    """
    onnx = _onnx()
    where = str(model) if isinstance(model, str | Path) else "the model"
    proto = _load(onnx, model, where)
    return _Reader(onnx, proto, where, dict(dims or {})).graph()


def _onnx() -> Any:
    """The onnx package, which only this module needs."""
    try:
        for name in ("onnx.helper", "onnx.numpy_helper", "onnx.reference"):
            importlib.import_module(name)
        return importlib.import_module("onnx")
    except ImportError as e:
        raise UserError(f"reading ONNX models needs the package onnx: pip install 'seer[onnx]' ({e})") from e


def _load(onnx: Any, model: Any, where: str) -> Any:
    if isinstance(model, str | Path):
        if not Path(model).is_file():
            raise UserError(f"there is no file {where}")
        try:
            model = onnx.load(model)
        except Exception as e:  # protobuf has its own errors, and those of the file system
            raise UserError(f"{where} is not an ONNX model: {e}") from e
    if not isinstance(model, onnx.ModelProto):
        raise UserError(f"an ONNX model is a path or an onnx.ModelProto, given {type(model).__name__}")
    if not len(model.graph.output):
        raise UserError(f"{where} is not an ONNX model: it has no outputs")
    return model


class _Reader:
    def __init__(self, onnx: Any, proto: Any, where: str, dims: dict[str, int]) -> None:
        self.onnx = onnx
        self.proto = proto
        self.where = where
        self.dims = dims
        versions = {d.domain: d.version for d in proto.opset_import if d.domain in _DOMAINS}
        self.opset = int(max(versions.values(), default=0))
        if self.opset < MIN_OPSET:
            raise UserError(
                f"{where} is written for version {self.opset} of ONNX's operators, not >= {MIN_OPSET}"
            )
        self.new = Graph(proto.graph.name or "onnx")
        self.known: dict[str, Known] = {}
        self.constants: dict[int, Value] = {}  # of arrays in `known`, by their ids
        g = proto.graph
        self.read = {n for k in g.node for n in k.input} | {v.name for v in g.output}

    def graph(self) -> Graph:
        g = self.proto.graph
        self.new.avoid(name for n in g.node for name in n.output)
        for t in g.initializer:
            self.known[t.name] = self._array(t, t.name)
        if len(g.sparse_initializer):
            raise UserError(f"{self.where}: sparse weights are not supported")
        for v in g.input:
            if v.name not in self.known:
                self.known[v.name] = self._input(v)
        for node in g.node:
            self._node(node)
        self.new.output(*(self._output(v.name) for v in g.output))
        return self.new

    def _place(self, node: Any) -> str:
        name = node.name or (node.output[0] if node.output else "without a name")
        return f"{self.where}: node {name!r} ({node.op_type})"

    # -- inputs, weights, outputs --------------------------------------------------------------

    def _input(self, v: Any) -> Value:
        kind = v.type.tensor_type
        if not v.type.HasField("tensor_type"):
            raise UserError(f"{self.where}: input {v.name!r} is not a tensor")
        if not kind.HasField("shape"):
            raise UserError(f"{self.where}: input {v.name!r} has no shape; only static shapes are supported")
        shape = [self._extent(v.name, k, d) for k, d in enumerate(kind.shape.dim)]
        return self.new.input(shape, self._dtype(kind.elem_type, f"input {v.name!r}"), v.name)

    def _extent(self, name: str, k: int, dim: Any) -> int:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        label = dim.dim_param
        if label in self.dims:
            extent = self.dims[label]
            if not is_whole(extent) or extent < 0:
                raise UserError(
                    f"{self.where}: dimension {label} of input {name!r} is a whole number >= 0, "
                    f"given {extent!r}"
                )
            return int(extent)
        how = f"give it, as in from_onnx(model, dims={{{label!r}: 1}})" if label else "it has no name either"
        raise UserError(f"{self.where}: dimension {k} ({label or '?'}) of input {name!r} is not known; {how}")

    def _dtype(self, elem_type: int, what: str) -> str:
        try:
            name = self.onnx.helper.tensor_dtype_to_np_dtype(elem_type).name
            found = dtype_of(name).name
        except (KeyError, SeerError) as e:
            label = self.onnx.TensorProto.DataType.Name(elem_type).lower()
            raise UserError(f"{self.where}: {what} is {label}, which seer does not have") from e
        if is_narrow(found):
            raise UserError(
                f"{self.where}: {what} is {found}; convert the model to float32, and compile it with "
                f"dtype={found!r} to store its weights so"
            )
        return found

    def _array(self, tensor: Any, name: str) -> np.ndarray:
        self._dtype(tensor.data_type, f"{name!r}")
        try:
            return np.asarray(self.onnx.numpy_helper.to_array(tensor))
        except (ValueError, TypeError, OSError) as e:
            raise UserError(f"{self.where}: {name!r} cannot be read: {e}") from e

    def _output(self, name: str) -> Value:
        x = self.known.get(name)
        if x is None:
            raise UserError(f"{self.where}: nothing computes the output {name!r}")
        return x if isinstance(x, Value) else self.new.constant(x, name)

    # -- nodes ---------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        missing = [n for n in node.input if n and n not in self.known]
        if missing:
            raise UserError(f"{self._place(node)}: nothing before it computes {', '.join(missing)}")
        inputs = tuple(self.known[n] if n else None for n in node.input)
        if self._can_fold(node, inputs):
            self._bind(node, self._folded(node))
            return
        function = importer_of(node.op_type) if node.domain in _DOMAINS else None
        if function is None:
            raise UserError(
                f"{self._place(node)}: seer has no importer for {node.domain or 'ai.onnx'}.{node.op_type}; "
                f"it has {', '.join(supported())}, and anything computed from constants alone"
            )
        attrs, wanted = self._attributes(node), self._wanted(node)
        call = Call(self.new, node.op_type, inputs, attrs, wanted, self.opset, self.constants)
        try:
            result = function(call)
        except (GraphError, KeyError, TypeError, ValueError) as e:
            raise UserError(f"{self._place(node)}: {e}") from e
        self._bind(node, list(result) if isinstance(result, list) else [result])

    def _wanted(self, node: Any) -> tuple[str, ...]:
        """Names of outputs, "" for those that nothing reads (but for the first)."""
        many = node.op_type == "Split"
        return tuple(n if many or k == 0 or n in self.read else "" for k, n in enumerate(node.output))

    def _bind(self, node: Any, results: list[Any]) -> None:
        for name, x in zip(node.output, results, strict=False):
            if name:
                self.known[name] = x

    def _attributes(self, node: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for a in node.attribute:
            value = self.onnx.helper.get_attribute_value(a)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif a.type in (a.INTS, a.FLOATS):
                value = list(value)
            out[a.name] = value
        if node.op_type == "Cast":
            out["to"] = self._dtype(out["to"], f"{self._place(node)}: the result")
        return out

    # -- folding -------------------------------------------------------------------------------

    def _can_fold(self, node: Any, inputs: tuple[Known | None, ...]) -> bool:
        has_graph = any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)
        unknown = any(isinstance(x, Value) for x in inputs)
        is_random = node.op_type in _RANDOM
        return not (unknown or has_graph or is_random) and node.domain in _DOMAINS

    def _folded(self, node: Any) -> list[np.ndarray]:
        """The outputs of a node on constants, by ONNX's reference implementation."""
        helper = self.onnx.helper
        feed = {n: self.known[n] for n in node.input if n}
        given = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in feed.items()
        ]
        results = [n for n in node.output if n]
        made = [helper.make_empty_tensor_value_info(n) for n in results]
        one = helper.make_graph([node], "constants", given, made)
        model = helper.make_model(one, opset_imports=list(self.proto.opset_import))
        try:
            with np.errstate(all="ignore"):
                outputs = self.onnx.reference.ReferenceEvaluator(model).run(None, feed)
        except Exception as e:  # any of NumPy's, from any operator
            raise UserError(f"{self._place(node)} cannot be computed ahead: {e}") from e
        by_name = dict(zip(results, outputs, strict=True))
        return [np.asarray(by_name[n]) if n else np.empty(0) for n in node.output]
