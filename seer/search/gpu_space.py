"""Random rows brought within a GPU's limits: few rows drawn freely are, most are a few halvings away."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seer.ir.sketch import Nest, Sketch
from seer.runtime.gpu import Gpu
from seer.search.gpu_view import GpuNest

ROUNDS = 24
# A thread's accumulators in most good kernels are at most so many.
MOST_TILE = 128

VTHREAD, THREAD, REGISTERS, REDUCE = (1,), (2,), (1, 3, 4), (1, 2)


def within_limits(sketch: Sketch, rows: np.ndarray, gpu: Gpu, rng: np.random.Generator) -> np.ndarray:
    """Canonical rows (P, n_params), tiles of those beyond a limit halved until they are within."""
    out: np.ndarray = rows
    for nest in sketch.nests:
        if nest.bind is not None and nest.bind.pattern == "tiled":
            out = _tiled(sketch, nest, out.copy(), gpu, rng)
        elif nest.bind is not None and nest.bind.pattern == "mma":
            out = _matrix(sketch, nest, out.copy(), gpu, rng)
        elif nest.bind is not None and nest.bind.pattern == "rows":
            out = _rows(sketch, nest, out.copy(), gpu)
    return out


def _tiled(sketch: Sketch, nest: Nest, rows: np.ndarray, gpu: Gpu, rng: np.random.Generator) -> np.ndarray:
    op = sketch.dag.op(nest.stage)
    spatial, reduced = [a.name for a in op.axes], [a.name for a in op.reduce_axes]
    limits: list[tuple[list[str], tuple[int, ...], Callable[[GpuNest], np.ndarray]]] = [
        (spatial, VTHREAD, lambda v: v.vthreads > v.gpu.max_vthreads),
        (spatial, THREAD, lambda v: v.threads > v.gpu.max_threads_per_block),
        (spatial, REGISTERS, lambda v: (v.tile > MOST_TILE) | (v.registers > v.gpu.registers_per_thread)),
        (spatial, THREAD, _needs_more_registers),
        (reduced, REDUCE, lambda v: v.shared_bytes > v.gpu.shared_bytes_per_block),
        (spatial, (1, 2, 3, 4), lambda v: v.shared_bytes > v.gpu.shared_bytes_per_block),
    ]
    for axes, levels, is_over in limits:
        rows = _halved(sketch, nest, rows, gpu, _columns(sketch, nest, axes, levels), is_over, rng)
    return rows


def _needs_more_registers(v: GpuNest) -> np.ndarray:
    over: np.ndarray = v.gpu.block_registers(v.registers, v.threads) > v.gpu.registers_per_sm
    return over


def _halved(
    sketch: Sketch,
    nest: Nest,
    rows: np.ndarray,
    gpu: Gpu,
    columns: list[int],
    is_over: Callable[[GpuNest], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Rows with some of the columns halved until they are not over a limit, or all are 1."""
    for _ in range(ROUNDS if columns else 0):
        over = np.flatnonzero(is_over(GpuNest(sketch, nest, rows, gpu)))
        over = over[(rows[over][:, columns] > 1).any(axis=1)]
        if not len(over):
            break
        # One of the tiles, a larger one rather than a smaller.
        size = rows[over][:, columns] - 1.0
        picked = np.argmax(np.log(size + 1) + (size > 0) * rng.random(size.shape), axis=1)
        at = np.array(columns)[picked]
        rows[over, at] = -(-rows[over, at] // 2)
        rows = sketch.canonical(rows)
    return rows


def _matrix(sketch: Sketch, nest: Nest, rows: np.ndarray, gpu: Gpu, rng: np.random.Generator) -> np.ndarray:
    """Fewer warps, then smaller blocks of matrices."""
    assert nest.bind is not None
    op = sketch.dag.op(nest.stage)
    warps = [sketch.column(p) for p in nest.bind.warps]
    spatial = _columns(sketch, nest, [a.name for a in op.axes], (1,))
    terms = _columns(sketch, nest, [a.name for a in op.reduce_axes], (1,))
    limits: list[tuple[list[int], Callable[[GpuNest], np.ndarray]]] = [
        (warps, lambda v: v.threads > v.gpu.max_threads_per_block),
        (spatial, lambda v: (v.tile > MOST_TILE) | (v.registers > v.gpu.registers_per_thread)),
        (spatial, _needs_more_registers),
        (terms, lambda v: v.shared_bytes > v.gpu.shared_bytes_per_block),
        (spatial, lambda v: v.shared_bytes > v.gpu.shared_bytes_per_block),
    ]
    for columns, is_over in limits:
        rows = _halved(sketch, nest, rows, gpu, columns, is_over, rng)
    return rows


def _columns(sketch: Sketch, nest: Nest, axes: list[str], levels: tuple[int, ...]) -> list[int]:
    out = []
    for a in axes:
        params = nest.split(a).params
        out += [sketch.column(params[k - 1]) for k in levels if k <= len(params)]
    return out


def _rows(sketch: Sketch, nest: Nest, rows: np.ndarray, gpu: Gpu) -> np.ndarray:
    """Fewer rows a block."""
    assert nest.bind is not None and nest.bind.rows is not None
    c = sketch.column(nest.bind.rows)
    for _ in range(ROUNDS):
        over = (GpuNest(sketch, nest, rows, gpu).threads > gpu.max_threads_per_block) & (rows[:, c] > 1)
        if not over.any():
            break
        rows[over, c] //= 2
    return rows
