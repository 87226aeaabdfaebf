"""A seer graph as an ONNX model, for the systems that read one.

batch_norm is folded as seer folds it. Weights are in ONNX's order. Between channels-last convolutions
and pools there are no transposes: a value is turned once, where an operator needs the other order; with
`is_nchw` images are taken and returned in ONNX's own order, so that a single kernel has none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import seer
from seer.dtypes import promote
from seer.graph.graph import Value
from seer.graph.passes.fold_batch_norm import fold_batch_norm

OPSET = 20
IR_VERSION = 9
_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True)
class OnnxModel:
    """A model and how its arrays lie.

    Attributes:
        data: the serialised model.
        nchw_inputs: names of the inputs that it takes as (N, C, H, W) where the graph has (N, H, W, C).
        nchw_outputs: numbers of the outputs that it returns so.
    """

    data: bytes
    nchw_inputs: frozenset[str]
    nchw_outputs: frozenset[int]

    def feed(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs in the order in which the model takes them, contiguous."""
        return {
            k: np.asarray(a.transpose(_TO_NCHW) if k in self.nchw_inputs else a, order="C")
            for k, a in arrays.items()
        }

    def outputs(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs in the graph's order, from the model's."""
        return [
            a.transpose(_TO_NHWC) if k in self.nchw_outputs else np.asarray(a) for k, a in enumerate(arrays)
        ]


def to_onnx(graph: seer.Graph, is_nchw: bool = False) -> OnnxModel:
    """The model of a graph.

    Args:
        graph: every operator must be one that `supported` lists.
        is_nchw: channels-last images come and go as (N, C, H, W).

    Raises:
        UserError: if an operator has no ONNX form here.
    """
    return _Export(fold_batch_norm(graph), is_nchw).model()


def supported() -> list[str]:
    """Names of the operators that can be written."""
    return sorted([*_OPS, *_RENAMED])


class _Export:
    """The nodes so far, and the name of each value, in each of the two orders of an image."""

    def __init__(self, graph: seer.Graph, is_nchw: bool) -> None:
        import onnx

        self.onnx, self.graph, self.is_nchw = onnx, graph, is_nchw
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.names: dict[Value, str] = {}
        self.nchw: dict[Value, str] = {}
        self.count = 0

    def model(self) -> OnnxModel:
        values = self.graph.values()
        images = {v.node.inputs[0] for v in values if _is_channels_last(v)}
        inputs, turned_in = [], set()
        for v in self.graph.inputs:
            turned = self.is_nchw and v in images
            (self.nchw if turned else self.names)[v] = v.name
            if turned:
                turned_in.add(v.name)
            inputs.append(self.info(v.name, v, turned))
        for v in values:
            if v.node.op not in ("input", "constant"):
                self.write(v)
        outputs, turned_out = [], set()
        for k, v in enumerate(self.graph.outputs):
            turned = self.is_nchw and v in self.nchw
            if turned:
                turned_out.add(k)
            self.add("Identity", [self.nchw[v] if turned else self.name(v)], f"output{k}")
            outputs.append(self.info(f"output{k}", v, turned))
        h = self.onnx.helper
        body = h.make_graph(self.nodes, self.graph.name, inputs, outputs, list(self.weights.values()))
        model = h.make_model(body, opset_imports=[h.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        return OnnxModel(model.SerializeToString(), frozenset(turned_in), frozenset(turned_out))

    def write(self, v: Value) -> None:
        op, inputs = v.node.op, v.node.inputs
        if op in _RENAMED:
            self.names[v] = self.add(_RENAMED[op], [self.name(i) for i in inputs])
        elif op in _OPS:
            _OPS[op](self, v)
        else:
            known = ", ".join(supported())
            raise seer.errors.UserError(f"{op} ({v.name}) has no ONNX form here; there are {known}")

    def info(self, name: str, v: Value, turned: bool) -> Any:
        shape = [v.shape[a] for a in _TO_NCHW] if turned else v.shape
        return self.onnx.helper.make_tensor_value_info(name, self.dtype(v.dtype), shape)

    def dtype(self, name: str) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)))

    def add(self, op: str, inputs: Sequence[str], output: str | None = None, **attrs: Any) -> str:
        """Add a node; returns the name of its output."""
        self.count += 1
        name = output or f"v{self.count}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], f"n{self.count}", **attrs))
        return name

    def name(self, v: Value) -> str:
        """The name of a value in its own order; a constant is written when it is first asked for."""
        if v not in self.names:
            if v.node.op == "constant":
                self.names[v] = self.weight(v.node.attrs["value"])
            else:
                self.names[v] = self.add("Transpose", [self.nchw[v]], perm=_TO_NHWC)
        return self.names[v]

    def image(self, v: Value, layout: str) -> str:
        """The name of an image as (N, C, H, W)."""
        if layout == "NCHW":
            return self.name(v)
        if v not in self.nchw:
            self.nchw[v] = self.add("Transpose", [self.name(v)], perm=_TO_NCHW)
        return self.nchw[v]

    def set_image(self, v: Value, layout: str, name: str) -> None:
        """Say which (N, C, H, W) value an image is."""
        (self.names if layout == "NCHW" else self.nchw)[v] = name

    def turned(self, v: Value, axes: Sequence[int]) -> str:
        """The name of a value with other axes: another constant, or a node."""
        if v.node.op == "constant":
            return self.weight(v.node.attrs["value"].transpose(axes))
        return self.add("Transpose", [self.name(v)], perm=list(axes))

    def weight(self, array: Any) -> str:
        """Add an initializer; returns its name."""
        self.count += 1
        name = f"w{self.count}"
        self.weights[name] = self.onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def numbers(self, values: Sequence[int]) -> str:
        """Add an int64 initializer."""
        return self.weight(np.asarray(values, np.int64).reshape(len(values)))


def _is_channels_last(v: Value) -> bool:
    return v.node.op.endswith("_nhwc") or v.node.attrs.get("layout") == "NHWC"


# -- convolutions and pools ----------------------------------------------------------------------


def _window(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that convolutions and pools share."""
    return {"strides": attrs["stride"], "pads": attrs["padding"]}


def _conv(e: _Export, v: Value) -> None:
    x, w, *bias = v.node.inputs
    attrs = v.node.attrs
    inputs = [e.name(x), e.name(w), *map(e.name, bias)]
    more = {"dilations": attrs["dilation"], "group": attrs["groups"]}
    e.names[v] = e.add("Conv", inputs, **_window(attrs), **more)


def _conv_nhwc(e: _Export, v: Value) -> None:
    x, w = v.node.inputs
    attrs = v.node.attrs
    inputs = [e.image(x, "NHWC"), e.turned(w, (3, 2, 0, 1))]
    more = {"dilations": attrs["dilation"], "group": attrs["groups"]}
    e.nchw[v] = e.add("Conv", inputs, **_window(attrs), **more)


def _depthwise(e: _Export, v: Value) -> None:
    x, w = v.node.inputs
    attrs = v.node.attrs
    (kh, kw, c), shape = w.shape, (w.shape[2], 1, *w.shape[:2])
    if w.node.op == "constant":
        kernel = e.weight(w.node.attrs["value"].transpose(2, 0, 1).reshape(c, 1, kh, kw))
    else:
        kernel = e.add("Reshape", [e.turned(w, (2, 0, 1)), e.numbers(shape)])
    more = {"dilations": attrs["dilation"], "group": c}
    e.nchw[v] = e.add("Conv", [e.image(x, "NHWC"), kernel], **_window(attrs), **more)


def _pool(e: _Export, v: Value) -> None:
    """Without ONNX's ceil_mode, whose rule has changed: windows that hang over the end are padded."""
    x, attrs = v.node.inputs[0], v.node.attrs
    layout, is_max = attrs["layout"], v.node.op == "max_pool"
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    pads = list(attrs["padding"])
    for d, a in enumerate(axes):
        reach = (v.shape[a] - 1) * attrs["stride"][d] + attrs["kernel"][d]
        more = reach - (x.shape[a] + pads[d] + pads[d + 2])
        if more > 0 and not is_max and attrs["count_include_pad"]:
            raise seer.errors.UserError(f"{v.name}: no ONNX form of ceil_mode with count_include_pad here")
        pads[d + 2] += max(0, more)
    options: dict[str, Any] = {"kernel_shape": attrs["kernel"], "strides": attrs["stride"], "pads": pads}
    if not is_max:
        options["count_include_pad"] = int(attrs["count_include_pad"])
    e.set_image(v, layout, e.add("MaxPool" if is_max else "AveragePool", [e.image(x, layout)], **options))


def _global_pool(e: _Export, v: Value) -> None:
    layout = v.node.attrs["layout"]
    op = "GlobalAveragePool" if v.node.op == "global_avg_pool" else "GlobalMaxPool"
    e.set_image(v, layout, e.add(op, [e.image(v.node.inputs[0], layout)]))


# -- products ------------------------------------------------------------------------------------


def _dense(e: _Export, v: Value) -> None:
    x, w, *bias = v.node.inputs
    if x.ndim == 2:
        e.names[v] = e.add("Gemm", [e.name(x), e.name(w), *map(e.name, bias)])
        return
    y = e.add("MatMul", [e.name(x), e.name(w)])
    e.names[v] = e.add("Add", [y, e.name(bias[0])]) if bias else y


def _matmul(e: _Export, v: Value) -> None:
    """A transposed matrix is Gemm's flag where there are no batches, else a Transpose."""
    a, b = v.node.inputs
    flags = [v.node.attrs["transpose_a"], v.node.attrs["transpose_b"]]
    if any(flags) and a.ndim == b.ndim == 2 and v.dtype.startswith("float"):
        options: dict[str, Any] = {"transA": int(flags[0]), "transB": int(flags[1])}
        e.names[v] = e.add("Gemm", [e.name(a), e.name(b)], **options)
        return
    sides = []
    for side, flag in zip((a, b), flags, strict=True):
        n = side.ndim
        sides.append(e.turned(side, [*range(n - 2), n - 1, n - 2]) if flag else e.name(side))
    e.names[v] = e.add("MatMul", sides)


# -- element by element --------------------------------------------------------------------------


def _binary(op: str) -> Callable[[_Export, Value], None]:
    def write(e: _Export, v: Value) -> None:
        dtype = promote(*(i.dtype for i in v.node.inputs))
        sides = []
        for i in v.node.inputs:
            name = e.name(i)
            sides.append(name if i.dtype == dtype else e.add("Cast", [name], to=e.dtype(dtype)))
        e.names[v] = e.add(op, sides)

    return write


def _relu6(e: _Export, v: Value) -> None:
    low, high = (e.weight(np.asarray(n, v.dtype)) for n in (0, 6))
    e.names[v] = e.add("Clip", [e.name(v.node.inputs[0]), low, high])


def _gelu(e: _Export, v: Value) -> None:
    e.names[v] = e.add("Gelu", [e.name(v.node.inputs[0])], approximate=v.node.attrs["approximate"])


def _cast(e: _Export, v: Value) -> None:
    e.names[v] = e.add("Cast", [e.name(v.node.inputs[0])], to=e.dtype(v.dtype))


# -- along axes ----------------------------------------------------------------------------------


def _softmax(e: _Export, v: Value) -> None:
    e.names[v] = e.add("Softmax", [e.name(v.node.inputs[0])], axis=v.node.attrs["axis"])


def _layer_norm(e: _Export, v: Value) -> None:
    x, *weights = v.node.inputs
    names = [e.name(w) for w in weights] or [e.weight(np.ones(x.shape[-1], x.dtype))]
    inputs = [e.name(x), *names]
    e.names[v] = e.add("LayerNormalization", inputs, axis=-1, epsilon=float(v.node.attrs["eps"]))


def _reduce(op: str) -> Callable[[_Export, Value], None]:
    def write(e: _Export, v: Value) -> None:
        x, attrs = v.node.inputs[0], v.node.attrs
        inputs = [e.name(x), e.numbers(attrs["axes"])]
        options: dict[str, Any] = {"keepdims": int(attrs["keepdims"]), "noop_with_empty_axes": 1}
        e.names[v] = e.add(op, inputs, **options)

    return write


# -- moving --------------------------------------------------------------------------------------


def _reshape(e: _Export, v: Value) -> None:
    options: dict[str, Any] = {"allowzero": 1} if 0 in v.shape else {}
    e.names[v] = e.add("Reshape", [e.name(v.node.inputs[0]), e.numbers(v.shape)], **options)


def _transpose(e: _Export, v: Value) -> None:
    e.names[v] = e.turned(v.node.inputs[0], v.node.attrs["axes"])


def _concat(e: _Export, v: Value) -> None:
    e.names[v] = e.add("Concat", [e.name(i) for i in v.node.inputs], axis=v.node.attrs["axis"])


def _slice(e: _Export, v: Value) -> None:
    a = v.node.attrs
    bounds = [e.numbers(n) for n in (a["begin"], a["end"], range(v.ndim), a["step"])]
    e.names[v] = e.add("Slice", [e.name(v.node.inputs[0]), *bounds])


def _pad(e: _Export, v: Value) -> None:
    pads = v.node.attrs["padding"]
    amounts = e.numbers([*(a for a, _ in pads), *(b for _, b in pads)])
    value = e.weight(np.asarray(v.node.attrs["value"], v.dtype))
    e.names[v] = e.add("Pad", [e.name(v.node.inputs[0]), amounts, value])


def _gather(e: _Export, v: Value) -> None:
    inputs = [e.name(i) for i in v.node.inputs]
    e.names[v] = e.add("Gather", inputs, axis=v.node.attrs.get("axis", 0))


_RENAMED = {
    "relu": "Relu",
    "neg": "Neg",
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
}

_OPS: dict[str, Callable[[_Export, Value], None]] = {
    "conv2d": _conv,
    "conv2d_nhwc": _conv_nhwc,
    "depthwise_conv2d_nhwc": _depthwise,
    "max_pool": _pool,
    "avg_pool": _pool,
    "global_avg_pool": _global_pool,
    "global_max_pool": _global_pool,
    "dense": _dense,
    "matmul": _matmul,
    "add": _binary("Add"),
    "sub": _binary("Sub"),
    "mul": _binary("Mul"),
    "div": _binary("Div"),
    "max": _binary("Max"),
    "min": _binary("Min"),
    "pow": _binary("Pow"),
    "relu6": _relu6,
    "gelu": _gelu,
    "cast": _cast,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_mean": _reduce("ReduceMean"),
    "reduce_max": _reduce("ReduceMax"),
    "reshape": _reshape,
    "flatten": _reshape,
    "transpose": _transpose,
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "embedding": _gather,
}
