"""A seer graph run by torch, operator by operator, in torch's best layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import seer
from seer.graph.graph import Value
from seer.graph.passes.fold_batch_norm import fold_batch_norm


def torch_runner(
    torch: Any, graph: seer.Graph, feed: Mapping[str, np.ndarray], device: str = "cpu"
) -> Callable[[], Any]:
    """A function that runs the graph; weights are prepared ahead, batch_norm is folded as seer does."""
    folded = fold_batch_norm(graph)
    values = folded.values()
    constants: dict[Value, Any] = {}
    for v in values:
        if v.node.op == "constant":
            t = torch.from_numpy(np.array(v.node.attrs["value"])).to(device)
            constants[v] = t.to(memory_format=torch.channels_last) if t.ndim == 4 else t
    inputs = {v.name: torch.from_numpy(feed[v.name]).to(device) for v in folded.inputs}
    for name, t in inputs.items():
        if t.ndim == 4:
            inputs[name] = t.to(memory_format=torch.channels_last)
    steps = [(v, _OPS[v.node.op]) for v in values if v.node.op not in ("input", "constant")]

    def run() -> Any:
        known = dict(constants)
        known.update({v: inputs[v.name] for v in folded.inputs})
        with torch.inference_mode():
            for v, op in steps:
                known[v] = op(torch, [known[i] for i in v.node.inputs], v.node.attrs)
        return known[folded.outputs[0]]

    return run


def _conv(t: Any, x: list[Any], a: Mapping[str, Any]) -> Any:
    top, left, bottom, right = a["padding"]
    image = x[0]
    if (top, left) != (bottom, right):
        image, top, left = t.nn.functional.pad(image, (left, right, top, bottom)), 0, 0
    bias = x[2] if len(x) > 2 else None
    return t.nn.functional.conv2d(image, x[1], bias, a["stride"], (top, left), a["dilation"], a["groups"])


def _layer_norm(t: Any, x: list[Any], a: Mapping[str, Any]) -> Any:
    return t.nn.functional.layer_norm(x[0], x[0].shape[-1:], *x[1:], eps=a["eps"])


def _dense(t: Any, x: list[Any], _: Mapping[str, Any]) -> Any:
    return (
        t.addmm(x[2], x[0], x[1])
        if len(x) > 2 and x[0].ndim == 2
        else x[0] @ x[1] + (x[2] if len(x) > 2 else 0)
    )


def _matmul(_: Any, x: list[Any], a: Mapping[str, Any]) -> Any:
    left, right = (y.mT if a[k] else y for y, k in zip(x, ("transpose_a", "transpose_b"), strict=True))
    return left @ right


def _slice(_: Any, x: list[Any], a: Mapping[str, Any]) -> Any:
    each = zip(a["begin"], a["end"], a["step"], strict=True)
    return x[0][tuple(slice(b, e, s) for b, e, s in each)]


def _max_pool(t: Any, x: list[Any], a: Mapping[str, Any]) -> Any:
    return t.nn.functional.max_pool2d(x[0], a["kernel"], a["stride"], a["padding"][:2])


_OPS: dict[str, Callable[[Any, list[Any], Mapping[str, Any]], Any]] = {
    "conv2d": _conv,
    "dense": _dense,
    "layer_norm": _layer_norm,
    "max_pool": _max_pool,
    "relu": lambda t, x, a: t.relu(x[0]),
    "relu6": lambda t, x, a: t.nn.functional.relu6(x[0]),
    "gelu": lambda t, x, a: t.nn.functional.gelu(x[0], approximate=a["approximate"]),
    "softmax": lambda t, x, a: t.softmax(x[0], a["axis"]),
    "add": lambda t, x, a: x[0] + x[1],
    "mul": lambda t, x, a: x[0] * x[1],
    "matmul": _matmul,
    "concat": lambda t, x, a: t.cat(x, a["axis"]),
    "slice": _slice,
    "embedding": lambda t, x, a: t.nn.functional.embedding(x[1], x[0]),
    "global_avg_pool": lambda t, x, a: x[0].mean((2, 3), keepdim=True),
    "flatten": lambda t, x, a: x[0].flatten(a["axis"]),
    "reshape": lambda t, x, a: x[0].reshape(a["shape"]),
    "transpose": lambda t, x, a: x[0].permute(a["axes"]),
}
