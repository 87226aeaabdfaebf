"""Operators on each element alone."""

from __future__ import annotations

from functools import reduce

import numpy as np

from seer.errors import GraphError
from seer.frontend.onnx.registry import Call, Result, importer
from seer.graph.graph import Value

_SAME = {
    "Relu": "relu",
    "Neg": "neg",
    "Abs": "abs",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
}
_MANY = {"Sum": "add", "Max": "max", "Min": "min"}


@importer(*_SAME)
def _same(c: Call) -> Result:
    return c.result(_SAME[c.op], *c.values())


@importer(*_MANY)
def _many(c: Call) -> Result:
    """Any number of operands, two at a time."""
    *first, last = c.values()
    if not first:
        return last
    return c.result(_MANY[c.op], reduce(lambda a, b: c.apply(_MANY[c.op], a, b), first), last)


@importer("Pow")
def _pow(c: Call) -> Result:
    x, power = c.inputs[0], c.inputs[1]
    if isinstance(x, Value) and isinstance(power, np.ndarray) and power.size == 1 and power.ndim <= x.ndim:
        if power.item() == 2:
            return c.result("mul", x, x)
        if power.item() == 0.5 and x.dtype.startswith("float"):
            return c.result("sqrt", x)
    base = c.value(0)
    return c.result("pow", base, c.value(1).cast(base.dtype))


@importer("Reciprocal")
def _reciprocal(c: Call) -> Result:
    return c.result("div", 1.0, c.value(0))


@importer("Clip")
def _clip(c: Call) -> Result:
    """Bounds are attributes before version 11, inputs since."""
    x = c.value(0)
    low, high = (_bound(c, k, attr) for k, attr in ((1, "min"), (2, "max")))
    if low == 0 and high is None:
        return c.result("relu", x)
    if low == 0 and high == 6:
        return c.result("relu6", x)
    if low is None:
        return c.result("min", x, high) if high is not None else x
    return c.result("max", x, low) if high is None else c.result("min", c.apply("max", x, low), high)


def _bound(c: Call, k: int, attr: str) -> float | None:
    array = c.array(k, attr)
    if array is None:
        array = c.attrs.get(attr)
    if array is None:
        return None
    bound = np.asarray(array).item()
    return None if isinstance(bound, float) and abs(bound) >= float(np.finfo(np.float32).max) else bound


@importer("Gelu")
def _gelu(c: Call) -> Result:
    return c.result("gelu", c.value(0), approximate=c.attrs.get("approximate", "none"))


@importer("LeakyRelu")
def _leaky_relu(c: Call) -> Result:
    x = c.value(0)
    below = c.apply("min", x, 0.0) * float(c.attrs.get("alpha", 0.01))
    return c.result("add", c.apply("relu", x), below)


@importer("HardSigmoid", "HardSwish")
def _hard_sigmoid(c: Call) -> Result:
    """min(max(alpha x + beta, 0), 1), and x times that."""
    x, is_swish = c.value(0), c.op == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if is_swish else (c.attrs.get("alpha", 0.2), c.attrs.get("beta", 0.5))
    y = c.apply("relu", x * float(alpha) + float(beta))
    return c.result("mul", x, c.apply("min", y, 1.0)) if is_swish else c.result("min", y, 1.0)


@importer("Cast")
def _cast(c: Call) -> Result:
    x, to = c.value(0), c.attrs["to"]
    return x if x.dtype == to else c.result("cast", x, to)


@importer("Identity", "Dropout")
def _identity(c: Call) -> Result:
    if c.op == "Dropout" and len(c.inputs) > 2:
        training = c.array(2, "training_mode")
        if training is not None and training.item():
            raise GraphError("a Dropout that trains cannot be imported")
    c.require_one_output()
    return c.value(0)


@importer("Softplus")
def _softplus(c: Call) -> Result:
    """max(x, 0) + log(1 + exp(-|x|)): nothing overflows."""
    x = c.value(0)
    small = c.apply("exp", -c.apply("abs", x))
    return c.result("add", c.apply("relu", x), c.apply("log", small + 1.0))


@importer("Elu")
def _elu(c: Call) -> Result:
    x = c.value(0)
    below = (c.apply("exp", c.apply("min", x, 0.0)) - 1.0) * float(c.attrs.get("alpha", 1.0))
    return c.result("add", c.apply("relu", x), below)


@importer("Mish")
def _mish(c: Call) -> Result:
    x = c.value(0)
    small = c.apply("exp", -c.apply("abs", x))
    soft = c.apply("relu", x) + c.apply("log", small + 1.0)
    return c.result("mul", x, c.apply("tanh", soft))
