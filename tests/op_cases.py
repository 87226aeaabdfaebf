"""One-operator graphs: (operator, shapes of the inputs, attributes)."""

from __future__ import annotations

from typing import Any

import numpy as np

from seer.graph.graph import Graph

Case = tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]

ELEMENTWISE = ("relu", "relu6", "neg", "abs", "exp", "tanh", "erf", "sigmoid", "gelu")
SHAPES: tuple[tuple[int, ...], ...] = ((3, 37), (), (1,), (0, 4), (7, 1, 13))

CASES: list[Case] = [
    *((op, (shape,), {}) for op in ELEMENTWISE for shape in SHAPES),
    ("gelu", ((5, 19),), {"approximate": "tanh"}),
    *((op, ((3, 1, 5), (7, 1)), {}) for op in ("add", "sub", "mul", "div", "max", "min")),
    ("add", ((), (4,)), {}),
    ("mul", ((0, 3), (3,)), {}),
    ("matmul", ((7, 13), (13, 5)), {}),
    ("matmul", ((13, 7), (5, 13)), {"transpose_a": True, "transpose_b": True}),
    ("matmul", ((2, 1, 3, 4), (5, 4, 6)), {}),
    ("matmul", ((3, 0), (0, 5)), {}),
    ("matmul", ((1, 1), (1, 1)), {}),
    ("dense", ((5, 7), (7, 31), (31,)), {}),
    ("dense", ((2, 3, 7), (7, 4)), {}),
    ("dense", ((7,), (7, 4)), {}),
    ("conv2d", ((1, 3, 9, 7), (8, 3, 3, 3), (8,)), {"padding": 1}),
    ("conv2d", ((2, 4, 9, 8), (6, 2, 3, 2)), {"padding": (0, 1, 2, 0), "groups": 2, "stride": (2, 1)}),
    ("conv2d", ((1, 3, 12, 11), (5, 3, 3, 3)), {"dilation": 2, "padding": "same"}),
    ("conv2d", ((1, 5, 7, 7), (5, 1, 3, 3)), {"groups": 5, "padding": 1, "stride": 2}),
    ("conv2d", ((1, 4, 5, 5), (8, 1, 3, 3)), {"groups": 4}),
    ("conv2d", ((1, 3, 1, 1), (2, 3, 1, 1)), {}),
    ("conv2d_nhwc", ((1, 9, 7, 3), (3, 3, 3, 8)), {"padding": 1, "stride": 2}),
    ("conv2d_nhwc", ((1, 5, 5, 4), (3, 3, 2, 6)), {"groups": 2}),
    ("depthwise_conv2d_nhwc", ((1, 9, 7, 19), (3, 3, 19)), {"padding": 1}),
    ("max_pool", ((1, 3, 9, 7),), {"kernel": 3, "stride": 2, "padding": 1}),
    ("max_pool", ((1, 9, 7, 5),), {"kernel": 3, "stride": 2, "padding": 1, "layout": "NHWC"}),
    ("max_pool", ((1, 2, 8, 5),), {"kernel": (3, 2), "ceil_mode": True}),
    ("avg_pool", ((1, 3, 9, 7),), {"kernel": 3, "stride": 2, "padding": 1}),
    ("avg_pool", ((1, 3, 9, 8),), {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    ("avg_pool", ((1, 2, 8, 5),), {"kernel": (3, 2), "ceil_mode": True, "padding": (1, 0, 0, 1)}),
    ("avg_pool", ((1, 9, 7, 5),), {"kernel": 2, "layout": "NHWC"}),
    ("global_avg_pool", ((2, 5, 7, 3),), {}),
    ("global_max_pool", ((1, 7, 3, 5),), {"layout": "NHWC"}),
    ("reduce_sum", ((3, 5, 7),), {"axes": (0, 2)}),
    ("reduce_sum", ((3, 5),), {}),
    ("reduce_sum", ((3, 0),), {"axes": 1}),
    ("reduce_mean", ((3, 37),), {"axes": -1, "keepdims": True}),
    ("reduce_max", ((13, 5),), {"axes": 0}),
    ("reduce_max", ((),), {}),
    ("softmax", ((4, 37),), {}),
    ("softmax", ((4, 7, 3),), {"axis": 1}),
    ("softmax", ((3, 1),), {}),
    ("softmax", ((2, 0),), {}),
    ("layer_norm", ((3, 41), (41,), (41,)), {}),
    ("layer_norm", ((2, 3, 8),), {"eps": 1e-3}),
    ("reshape", ((3, 4, 5),), {"shape": (5, -1)}),
    ("reshape", ((1,),), {"shape": ()}),
    ("flatten", ((3, 4, 5),), {}),
    ("transpose", ((3, 4, 5),), {"axes": (2, 0, 1)}),
    ("transpose", ((13, 7),), {}),
    ("slice", ((7, 9),), {"begin": (1, -4), "end": (6, 9), "step": (2, 1)}),
    ("slice", ((7,),), {"begin": (5,), "end": (2,)}),
    ("pad", ((3, 4),), {"padding": ((1, 0), (2, 3)), "value": -1.5}),
]


def single(
    op: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any], dtype: str = "float32"
) -> Graph:
    """A graph of one operator on inputs x0, x1, ..."""
    g = Graph(op)
    inputs = [g.input(s, dtype, name=f"x{k}") for k, s in enumerate(shapes)]
    g.output(g.apply(op, *inputs, **attrs))
    return g


def random_feed(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats and small integers for every input of a graph."""
    rng = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for v in g.inputs:
        if v.dtype.startswith("float"):
            out[v.name] = np.asarray(rng.standard_normal(v.shape), v.dtype)
        else:
            out[v.name] = np.asarray(rng.integers(0, 5, v.shape), v.dtype)
    return out
