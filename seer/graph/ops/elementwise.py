"""Element-wise operators, with broadcasting where there are two inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seer.dtypes import convert, is_narrow, promote
from seer.dtypes import dtype as dtype_of
from seer.errors import GraphError, shown
from seer.graph.ops.common import broadcast_read, broadcast_shape, require, require_float
from seer.graph.registry import REQUIRED, Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr, call, cast, maximum, minimum
from seer.ir.tensor import Tensor, compute

Scalar = Callable[[Expr], Expr]
Array = Callable[[np.ndarray], np.ndarray]

_erf: Array = np.vectorize(math.erf, otypes=[np.float64])


def erf_reference(x: np.ndarray) -> np.ndarray:
    """The error function of every element, rounded once."""
    return np.asarray(_erf(x).astype(x.dtype)) if x.size else x


def _unary(name: str, scalar: Scalar, array: Array, doc: str, floats_only: bool = True) -> None:
    def infer(inputs: Sequence[Typed], _: dict[str, Any]) -> tuple[tuple[int, ...], str]:
        (x,) = inputs
        if floats_only:
            require_float(x)
        else:
            require(x.dtype != "bool", "input must be numbers, found bool; cast it first")
        return tuple(x.shape), x.dtype

    def define(inputs: Sequence[Tensor], _: Attrs, stage: str) -> Tensor:
        (x,) = inputs
        return compute(x.shape, lambda *i: scalar(x[i]), stage)

    def reference(arrays: Sequence[np.ndarray], _: Attrs) -> np.ndarray:
        return np.asarray(array(arrays[0]))

    register_op(OpDef(name, ("x",), infer, define, reference, "elementwise", {}, doc))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


_unary("relu", lambda x: maximum(x, 0), lambda x: np.maximum(x, 0), "max(x, 0); NaN stays.", False)
_unary(
    "relu6",
    lambda x: minimum(maximum(x, 0), 6),
    lambda x: np.minimum(np.maximum(x, 0), 6),
    "min(max(x, 0), 6); NaN stays.",
    False,
)
_unary("neg", lambda x: -x, np.negative, "-x.", False)
_unary("abs", lambda x: call("abs", x), np.abs, "|x|.", False)
_unary("exp", lambda x: call("exp", x), np.exp, "e to the x.")
_unary("log", lambda x: call("log", x), np.log, "Natural logarithm.")
_unary("sqrt", lambda x: call("sqrt", x), np.sqrt, "Square root; NaN below 0.")
_unary("tanh", lambda x: call("tanh", x), np.tanh, "Hyperbolic tangent.")
_unary("erf", lambda x: call("erf", x), erf_reference, "Error function.")
_unary("sigmoid", lambda x: call("sigmoid", x), _sigmoid, "1 / (1 + exp(-x)).")


# -- gelu ----------------------------------------------------------------------------------------


def _infer_gelu(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    require_float(x)
    form = attrs["approximate"]
    good = isinstance(form, str) and form in ("none", "tanh")
    require(good, f"approximate must be 'none' or 'tanh', given {shown(form)}")
    return tuple(x.shape), x.dtype


def _define_gelu(inputs: Sequence[Tensor], attrs: Attrs, stage: str) -> Tensor:
    (x,) = inputs
    scale = math.sqrt(0.5) if attrs["approximate"] == "none" else math.sqrt(2 / math.pi)

    def body(*i: Expr) -> Expr:
        v = x[i]
        if attrs["approximate"] == "none":
            inner = call("erf", v * scale)
        else:
            inner = call("tanh", (v + v * v * v * 0.044715) * scale)
        return v * 0.5 * (inner + 1.0)

    return compute(x.shape, body, stage)


def _gelu(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    if attrs["approximate"] == "none":
        return np.asarray(0.5 * x * (1 + erf_reference(x * x.dtype.type(math.sqrt(0.5)))))
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


register_op(
    OpDef(
        "gelu",
        ("x",),
        _infer_gelu,
        _define_gelu,
        _gelu,
        "elementwise",
        {"approximate": "none"},
        "x times the normal distribution function of x, exact (erf) or by the tanh form.",
    )
)


# -- two inputs ----------------------------------------------------------------------------------


def _binary(name: str, scalar: Callable[[Expr, Expr], Expr], array: Any, doc: str, floats_only: bool) -> None:
    def infer(inputs: Sequence[Typed], _: dict[str, Any]) -> tuple[tuple[int, ...], str]:
        a, b = inputs
        dtype = promote(a.dtype, b.dtype)
        require(dtype != "bool", "inputs must be numbers, found bool; cast them first")
        if floats_only and not dtype.startswith("float"):
            raise GraphError(f"inputs must be floats, found {a.dtype} and {b.dtype}; cast them first")
        return broadcast_shape(tuple(a.shape), tuple(b.shape)), dtype

    def define(inputs: Sequence[Tensor], _: Attrs, stage: str) -> Tensor:
        a, b = inputs
        dtype = promote(a.dtype, b.dtype)
        shape = broadcast_shape(a.shape, b.shape)

        def body(*i: Expr) -> Expr:
            return scalar(cast(broadcast_read(a, i), dtype), cast(broadcast_read(b, i), dtype))

        return compute(shape, body, stage)

    def reference(arrays: Sequence[np.ndarray], _: Attrs) -> np.ndarray:
        return np.asarray(array(*arrays))

    register_op(OpDef(name, ("a", "b"), infer, define, reference, "elementwise", {}, doc))


_binary("add", lambda a, b: a + b, np.add, "a + b, broadcasting.", False)
_binary("sub", lambda a, b: a - b, np.subtract, "a - b, broadcasting.", False)
_binary("mul", lambda a, b: a * b, np.multiply, "a * b, broadcasting.", False)
_binary("div", lambda a, b: a / b, np.divide, "a / b, broadcasting; floats.", True)
_binary("max", maximum, np.maximum, "The larger, broadcasting; NaN if either is.", False)
_binary("min", minimum, np.minimum, "The smaller, broadcasting; NaN if either is.", False)


def _pow(a: Expr, b: Expr) -> Expr:
    return call("pow", a, b)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of whole arrays: NumPy has shortcuts for one exponent, such as a square root, which differ at -inf."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    whole = [np.array(np.broadcast_to(v, shape), ndmin=1) for v in (a, b)]
    return np.asarray(np.power(*whole)).reshape(shape)


_binary("pow", _pow, _power, "a to the b, broadcasting; floats.", True)


# -- cast ----------------------------------------------------------------------------------------


def _infer_cast(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    attrs["dtype"] = dtype_of(attrs["dtype"]).name
    return tuple(inputs[0].shape), attrs["dtype"]


def _define_cast(inputs: Sequence[Tensor], attrs: Attrs, stage: str) -> Tensor:
    (x,) = inputs
    return compute(x.shape, lambda *i: cast(x[i], attrs["dtype"]), stage)


register_op(
    OpDef(
        "cast",
        ("x",),
        _infer_cast,
        _define_cast,
        lambda arrays, attrs: convert(arrays[0], arrays[0].dtype.name, attrs["dtype"]),
        "elementwise",
        {"dtype": REQUIRED},
        "Conversion to another dtype; a float becomes the integer towards zero.",
    )
)


def _infer_widen(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    (x,) = inputs
    require(is_narrow(x.dtype), f"input must be float16 or bfloat16, found {x.dtype}")
    attrs["source"] = x.dtype
    return tuple(x.shape), "float32"


register_op(
    OpDef(
        "widen",
        ("x",),
        _infer_widen,
        lambda t, _, stage: compute(t[0].shape, lambda *i: cast(t[0][i], "float32"), stage),
        lambda arrays, attrs: convert(arrays[0], attrs["source"], "float32"),
        "injective",  # it belongs to the kernel that reads it, never to the one before
        {"source": None},
        "What is stored as float16 or bfloat16, as float32; the source is found.",
    )
)
