"""Images with their channels last: vectors of channels are contiguous, and weights pack by channel.

Convolutions and pools change to channels-last; what stands between them follows, so that transposes
are left only where an image enters or leaves. Weights are constants and are transposed here, those
of a dense layer after a flattened image too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seer.graph.graph import Graph, Value
from seer.graph.passes.rewrite import constant_of, copy, is_constant, make
from seer.graph.pending import Constant, later, transposed
from seer.graph.registry import op_def

TO_LAST = (0, 2, 3, 1)
TO_FIRST = (0, 3, 1, 2)
NEW_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}  # where each dimension of NCHW is in NHWC


def channels_last(graph: Graph) -> Graph:
    """Rewrite convolutions and pools to NHWC."""
    if not any(v.node.op in _IMAGE_OPS for v in graph.values()):
        return graph
    return _Rewriter(graph).run()


@dataclass
class _Rewriter:
    graph: Graph
    new: Graph = field(init=False)
    plain: dict[Value, Value] = field(default_factory=dict)  # as the user wrote it
    last: dict[Value, Value] = field(default_factory=dict)  # transposed to channels-last
    flat: dict[Value, Value] = field(default_factory=dict)  # the image of a flattened image, made if read

    def run(self) -> Graph:
        self.new = Graph(self.graph.name)
        self.new.avoid(n.name for n in self.graph.nodes)
        outputs = set(self.graph.outputs)
        for v in self.graph.values():
            rule = _RULES.get(v.node.op, _follow if op_def_is_elementwise(v) else None)
            made = rule(self, v, f"{v.name}_last" if v in outputs else v.name) if rule else None
            if made is not None:
                self.last[v] = made
            elif self.is_flat(v):
                self.flat[v] = v.node.inputs[0]
            elif (product := self.flat_product(v)) is not None:
                self.plain[v] = product
            else:
                self.plain[v] = copy(self.new, v, tuple(self.as_plain(i) for i in v.node.inputs))
        for v in self.graph.outputs:
            if v in self.last and v not in self.plain:
                self.plain[v] = self.new.apply("transpose", self.last[v], TO_FIRST, name=v.name)
        self.new.output(*(self.as_plain(v) for v in self.graph.outputs))
        return self.new

    def as_plain(self, v: Value) -> Value:
        """The new value in the user's layout."""
        if v not in self.plain and v in self.flat:
            self.plain[v] = copy(self.new, v, (self.as_plain(self.flat[v]),))
        elif v not in self.plain:
            self.plain[v] = self.new.apply("transpose", self.last[v], TO_FIRST)
        return self.plain[v]

    def as_last(self, v: Value) -> Value:
        """The new value in channels-last."""
        if v not in self.last:
            self.last[v] = self.new.apply("transpose", self.as_plain(v), TO_LAST)
        return self.last[v]

    def is_flat(self, v: Value) -> bool:
        """Whether a value is a channels-last image as a row per batch."""
        if v.node.op not in ("flatten", "reshape") or v.node.inputs[0] not in self.last:
            return False
        shape = v.node.inputs[0].shape
        return v.shape == (shape[0], math.prod(shape[1:]))

    def flat_product(self, v: Value) -> Value | None:
        """A dense of a flattened image: the rows of the weights move, not the pixels."""
        if v.node.op != "dense" or v.node.inputs[0] not in self.flat:
            return None
        x, w, *bias = v.node.inputs
        if not is_constant(w):
            return None
        image = self.flat[x]
        rows = np.arange(w.shape[0]).reshape(image.shape[1:]).transpose(1, 2, 0).ravel()
        row = self.new.apply("reshape", self.as_last(image), x.shape)
        moved = self.constant(later(w.node.attrs["value"], lambda a: a[rows], w.shape), w.name)
        return self.new.apply("dense", row, moved, *map(self.as_plain, bias), name=v.name)

    def constant(self, value: Constant, name: str) -> Value:
        return self.new.constant(value, f"{name}_last{len(self.new.nodes)}")


def op_def_is_elementwise(v: Value) -> bool:
    """Whether a value is computed element by element."""
    if v.node.op in ("input", "constant"):
        return False
    return op_def(v.node.op).fusion == "elementwise" and v.node.op != "batch_norm"


Rule = Callable[[_Rewriter, Value, str], Value | None]


def _conv(r: _Rewriter, v: Value, name: str) -> Value | None:
    x, w = v.node.inputs
    if not is_constant(w):
        return None
    kernel: Constant = w.node.attrs["value"]
    attrs = dict(v.node.attrs)
    ci, co = x.shape[1], w.shape[0]
    if attrs["groups"] == ci == co and ci > 1:
        del attrs["groups"]
        weights = r.constant(later(kernel, lambda a: a[:, 0].transpose(1, 2, 0), (*w.shape[2:], co)), w.name)
        return r.new.apply("depthwise_conv2d_nhwc", r.as_last(x), weights, name=name, **attrs)
    weights = r.constant(transposed(kernel, (2, 3, 1, 0)), w.name)
    return r.new.apply("conv2d_nhwc", r.as_last(x), weights, name=name, **attrs)


def _pool(r: _Rewriter, v: Value, name: str) -> Value | None:
    if v.node.attrs["layout"] != "NCHW":
        return None
    attrs = {**v.node.attrs, "layout": "NHWC"}
    return r.new.apply(v.node.op, r.as_last(v.node.inputs[0]), name=name, **attrs)


def _follow(r: _Rewriter, v: Value, name: str) -> Value | None:
    """An element-wise operator stays in the layout of its (largest) inputs."""
    images = [i for i in v.node.inputs if i in r.last and i not in r.plain and i.shape == v.shape]
    if not images:
        return None
    inputs = []
    for i in v.node.inputs:
        moved = _as_last_operand(r, i)
        if moved is None:
            return None
        inputs.append(moved)
    return make(r.new, v.node.op, tuple(inputs), v.node.attrs, name)


def _as_last_operand(r: _Rewriter, v: Value) -> Value | None:
    """An operand that may broadcast: its dimensions are those of NCHW from the end."""
    if len(v.shape) == 4:
        array = constant_of(v)
        return r.as_last(v) if array is None else r.constant(array.transpose(TO_LAST), v.name)
    if not v.shape:
        return r.as_plain(v)
    array = constant_of(v)
    if array is None:
        return None
    full = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return r.constant(full.transpose(TO_LAST), v.name)


def _is_last(r: _Rewriter, v: Value) -> bool:
    return all(i in r.last for i in v.node.inputs)


def _axis(r: _Rewriter, v: Value, name: str) -> Value | None:
    """The axis of concat, softmax and batch_norm moves."""
    images = v.node.inputs if v.node.op == "concat" else v.node.inputs[:1]
    if not all(i in r.last for i in images):
        return None
    inputs = tuple(r.as_last(i) if i in images else r.as_plain(i) for i in v.node.inputs)
    attrs = {**v.node.attrs, "axis": NEW_AXIS[v.node.attrs["axis"]]}
    return make(r.new, v.node.op, inputs, attrs, name)


def _by_dimension(*keys: str) -> Rule:
    """Of pad and slice, what is given per dimension moves."""

    def rule(r: _Rewriter, v: Value, name: str) -> Value | None:
        if not _is_last(r, v):
            return None
        attrs: dict[str, Any] = dict(v.node.attrs)
        for k in keys:
            attrs[k] = tuple(attrs[k][a] for a in TO_LAST)
        return r.new.apply(v.node.op, r.as_last(v.node.inputs[0]), name=name, **attrs)

    return rule


def _reduce(r: _Rewriter, v: Value, name: str) -> Value | None:
    """A reduction that keeps its dimensions stays channels-last."""
    if not _is_last(r, v) or not v.node.attrs["keepdims"]:
        return None
    axes = tuple(sorted(NEW_AXIS[a] for a in v.node.attrs["axes"]))
    return r.new.apply(v.node.op, r.as_last(v.node.inputs[0]), name=name, axes=axes, keepdims=True)


_RULES: dict[str, Rule] = {
    "conv2d": _conv,
    **dict.fromkeys(("max_pool", "avg_pool", "global_avg_pool", "global_max_pool"), _pool),
    **dict.fromkeys(("concat", "softmax", "batch_norm"), _axis),
    **dict.fromkeys(("reduce_sum", "reduce_mean", "reduce_max"), _reduce),
    "pad": _by_dimension("padding"),
    "slice": _by_dimension("begin", "end", "step"),
}

_IMAGE_OPS = ("conv2d", "max_pool", "avg_pool", "global_avg_pool", "global_max_pool")
