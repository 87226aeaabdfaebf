"""Matrix products: matmul with broadcasting batches, and dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.graph.ops.common import broadcast_read, broadcast_shape, flag, require, require_same_dtype
from seer.graph.registry import Attrs, OpDef, Typed, register_op
from seer.ir.expr import Expr
from seer.ir.tensor import SUM, Tensor, compute, reduce_axis


def _infer_matmul(inputs: Sequence[Typed], attrs: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    a, b = inputs
    require_same_dtype(a, b)
    require(a.dtype != "bool", "inputs must be numbers, found bool; cast them first")
    low = min(len(a.shape), len(b.shape))
    require(low >= 2, f"both inputs need at least 2 dimensions, found {list(a.shape)} and {list(b.shape)}")
    for what in ("transpose_a", "transpose_b"):
        attrs[what] = flag(attrs[what], what)
    m, k = _matrix(a.shape, attrs["transpose_a"])
    k2, n = _matrix(b.shape, attrs["transpose_b"])
    require(
        k == k2,
        f"inner extents differ: {k} columns of {list(a.shape)}, {k2} rows of {list(b.shape)}"
        " (after transposition, if any)",
    )
    batch = broadcast_shape(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    return (*batch, m, n), a.dtype


def _matrix(shape: Sequence[int], transpose: bool) -> tuple[int, int]:
    rows, columns = shape[-2], shape[-1]
    return (columns, rows) if transpose else (rows, columns)


def _define_matmul(inputs: Sequence[Tensor], attrs: Attrs, name: str) -> Tensor:
    a, b = inputs
    m, k = _matrix(a.shape, attrs["transpose_a"])
    _, n = _matrix(b.shape, attrs["transpose_b"])
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    r = reduce_axis(k, "k")

    def body(*i: Expr) -> Expr:
        outer, row, column = i[:-2], i[-2], i[-1]
        left = (r.var, row) if attrs["transpose_a"] else (row, r.var)
        right = (column, r.var) if attrs["transpose_b"] else (r.var, column)
        return _read(a, outer, left) * _read(b, outer, right)

    names = [*(f"b{d}" for d in range(len(batch))), "i", "j"]
    tag = "batch_matmul" if batch else "matmul"
    return compute((*batch, m, n), body, name, reduce=[r], reducer=SUM, tag=tag, axis_names=names)


def _read(t: Tensor, outer: Sequence[Expr], inner: tuple[Expr, Expr]) -> Expr:
    """An element of a matrix; only the batch dimensions broadcast."""
    if len(t.shape) == 2:
        return t[inner]
    batch = list(outer)[len(outer) - (len(t.shape) - 2) :]
    shown = broadcast_read(_Shape(t.shape[:-2]), batch)  # type: ignore[arg-type]
    return t[(*shown, *inner)]  # type: ignore[misc]


class _Shape:
    """Stands for a tensor where only its broadcast indices are wanted."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __getitem__(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return indices


def _matmul(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b = arrays
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    return np.asarray(np.matmul(a, b))


register_op(
    OpDef(
        "matmul",
        ("a", "b"),
        _infer_matmul,
        _define_matmul,
        _matmul,
        "anchor",
        {"transpose_a": False, "transpose_b": False},
        "Matrix product of the last two dimensions; the others broadcast.",
    )
)


def _infer_dense(inputs: Sequence[Typed], _: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    x, w, *bias = inputs
    require_same_dtype(*inputs)
    require(len(x.shape) >= 1, "x needs at least 1 dimension (..., in)")
    require(len(w.shape) == 2, f"w must be (in, out), found {list(w.shape)}")
    require(
        x.shape[-1] == w.shape[0],
        f"x has {x.shape[-1]} features in {list(x.shape)}, w takes {w.shape[0]} in {list(w.shape)}",
    )
    for b in bias:
        require(tuple(b.shape) == (w.shape[1],), f"bias must be [{w.shape[1]}], found {list(b.shape)}")
    return (*x.shape[:-1], w.shape[1]), x.dtype


def _define_dense(inputs: Sequence[Tensor], _: Attrs, name: str) -> Tensor:
    x, w, *bias = inputs
    r = reduce_axis(w.shape[0], "k")
    shape = (*x.shape[:-1], w.shape[1])
    names = [*(f"i{d}" for d in range(len(shape) - 1)), "j"]

    def product(*i: Expr) -> Expr:
        return x[(*i[:-1], r.var)] * w[r.var, i[-1]]

    stage = f"{name}_product" if bias else name
    y = compute(shape, product, stage, reduce=[r], reducer=SUM, tag="dense", axis_names=names)
    if not bias:
        return y
    return compute(shape, lambda *i: y[i] + bias[0][i[-1]], name, axis_names=names)


def _dense(arrays: Sequence[np.ndarray], _: Attrs) -> np.ndarray:
    x, w, *bias = arrays
    return np.asarray(np.matmul(x, w) + (bias[0] if bias else 0))


register_op(
    OpDef(
        "dense",
        ("x", "w", "bias?"),
        _infer_dense,
        _define_dense,
        _dense,
        "anchor",
        {},
        "x @ w + bias with x (..., in), w (in, out), bias (out).",
    )
)
