"""A seer graph run by torch, operator by operator, in torch's best layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # running a program needs nothing of seer
    import seer

# Plain data, so that torch can save it: weights by name, steps (name, operator, inputs, attributes),
# and the names of the outputs.
Program = dict[str, Any]


def program_of(torch: Any, graph: seer.Graph) -> Program:
    """What to run; weights are prepared ahead, batch_norm is folded as seer does."""
    from seer.graph.passes.fold_batch_norm import fold_batch_norm

    folded = fold_batch_norm(graph)
    weights: dict[str, Any] = {}
    steps: list[tuple[str, str, list[str], dict[str, Any]]] = []
    for v in folded.values():
        node = v.node
        if node.op == "constant":
            weights[v.name] = _best_layout(torch, torch.from_numpy(np.array(node.attrs["value"])))
        elif node.op != "input":
            if node.op not in _OPS:
                raise NotImplementedError(f"{node.op} ({v.name}) has no torch form here")
            steps.append((v.name, node.op, [i.name for i in node.inputs], dict(node.attrs)))
    return {"weights": weights, "steps": steps, "outputs": [v.name for v in folded.outputs]}


def torch_runner(torch: Any, program: Program, feed: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    """A function that runs a program on its inputs and returns the list of outputs."""
    start = dict(program["weights"])
    start.update({name: _best_layout(torch, torch.from_numpy(a)) for name, a in feed.items()})
    last = {i: name for name, _, inputs, _ in program["steps"] for i in inputs}
    kept = {*start, *program["outputs"]}
    steps = []
    for name, op, inputs, attrs in program["steps"]:
        done = [i for i in dict.fromkeys(inputs) if last[i] == name and i not in kept]
        steps.append((name, _OPS[op], inputs, attrs, done))

    def run() -> list[Any]:
        known = dict(start)
        with torch.inference_mode():
            for name, op, inputs, attrs, done in steps:
                known[name] = op(torch, [known[i] for i in inputs], attrs)
                for i in done:  # its memory serves what comes next
                    del known[i]
        return [known[name] for name in program["outputs"]]

    return run


def _best_layout(torch: Any, t: Any) -> Any:
    """Images and kernels of convolutions with channels last."""
    return t.to(memory_format=torch.channels_last) if t.ndim == 4 else t


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
    "sub": lambda t, x, a: x[0] - x[1],
    "mul": lambda t, x, a: x[0] * x[1],
    "div": lambda t, x, a: x[0] / x[1],
    "tanh": lambda t, x, a: t.tanh(x[0]),
    "sigmoid": lambda t, x, a: t.sigmoid(x[0]),
    "matmul": _matmul,
    "concat": lambda t, x, a: t.cat(x, a["axis"]),
    "slice": _slice,
    "embedding": lambda t, x, a: t.nn.functional.embedding(x[1], x[0]),
    "global_avg_pool": lambda t, x, a: x[0].mean((2, 3), keepdim=True),
    "flatten": lambda t, x, a: x[0].flatten(a["axis"]),
    "reshape": lambda t, x, a: x[0].reshape(a["shape"]),
    "transpose": lambda t, x, a: x[0].permute(a["axes"]),
}
