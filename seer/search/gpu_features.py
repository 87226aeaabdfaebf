"""Features of GPU candidates: a row describes the heaviest kernel and sums up the others."""

from __future__ import annotations

import math

import numpy as np

from seer.codegen.gpu.common import VECTOR
from seer.ir.sketch import Sketch
from seer.runtime.target import Target
from seer.search.gpu_prior import nest_seconds
from seer.search.gpu_view import GpuNest, gpu_nests

_TAGS = ("matmul", "conv2d", "depthwise_conv2d", "softmax", "pool", "elementwise")
_PATTERNS = ("tiled", "rows", "flat", "mma")


def _log(x: np.ndarray | float) -> np.ndarray:
    return np.asarray(np.log2(np.maximum(x, 1e-9) + 1.0))


def gpu_features(sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """The (P, n_features) float32 matrix of canonical rows (P, n_params)."""
    assert target.gpu is not None
    nests = gpu_nests(sketch, rows, target.gpu)
    main = max(nests, key=lambda n: (n.flop, n.points))
    others = [n for n in nests if n is not main]
    seconds = {id(n): nest_seconds(n, target.gpu) for n in nests}
    zero = np.zeros(len(rows))
    rest = sum((seconds[id(n)] for n in others), zero)
    columns = [
        *_constants(sketch, len(rows)),
        *_grid(main),
        *_tile(main),
        *_memory(main),
        *_levels(main),
        -np.log2(seconds[id(main)]),
        _log(rest * 1e6),
        np.full(len(rows), float(len(nests))),
    ]
    return np.stack([np.broadcast_to(c, (len(rows),)) for c in columns], axis=1).astype(np.float32)


def _constants(sketch: Sketch, count: int) -> list[np.ndarray]:
    dag = sketch.dag
    tag = "pool" if "pool" in dag.tag else {"dense": "matmul", "batch_matmul": "matmul"}.get(dag.tag, dag.tag)
    values = [float(_log(float(dag.flop_count))), float(_log(float(math.prod(dag.output.shape))))]
    values += [float(len(dag.ops)), *(float(tag == t) for t in _TAGS)]
    return [np.full(count, v) for v in values]


def _grid(v: GpuNest) -> list[np.ndarray]:
    """Blocks and threads, and how they fill the machine."""
    warp = v.gpu.warp_size
    return [
        *(np.full(v.count, float(v.pattern == p)) for p in _PATTERNS),
        _log(v.blocks),
        _log(v.threads),
        v.threads / (np.ceil(v.threads / warp) * warp),
        _log(v.vthreads),
        v.busy,
        v.occupancy,
        v.blocks_per_sm.astype(float),
        _log(v.blocks * v.threads / (v.gpu.num_sms * v.gpu.max_threads_per_sm)),
        _log(v.row_threads) if v.pattern in ("rows", "flat") else np.zeros(v.count),
        _log(v.rows_per_block),
        _log(v.items),
        _log(v.stages),
        np.full(v.count, float(v.pattern == "mma" and v.roles.piece_terms == 16)),
        np.full(v.count, float(v.roles.products if v.pattern == "mma" else 0)),
    ]


def _tile(v: GpuNest) -> list[np.ndarray]:
    """What a thread computes: accumulators, registers, loads for each multiply-add, waste."""
    unroll = v.column(v.nest.unroll, 0).astype(float)
    last = v.trip(v.axes[-1], 4) if v.pattern == "tiled" and v.axes else v.items
    return [
        _log(v.tile),
        v.registers.astype(float),
        v.registers * v.threads / v.gpu.registers_per_sm,
        v.fragments / np.maximum(v.tile, 1),
        _log(v.padded - 1 + 1e-9) * 4,
        _log(unroll),
        np.minimum(unroll / np.maximum(v.tile, 1), 64),
        _log(v.serial),
        (last % VECTOR == 0).astype(float),
    ]


def _memory(v: GpuNest) -> list[np.ndarray]:
    """Shared memory, traffic, coalescing, arithmetic intensity."""
    chosen = [choice for _, choice, _ in v.staged()]
    zero = np.zeros(v.count)
    return [
        _log(v.shared_bytes),
        v.shared_bytes * np.maximum(v.blocks_per_sm, 1) / v.gpu.shared_bytes_per_sm,
        _log(v.moved_bytes),
        np.full(v.count, float(_log(v.unique_bytes))),
        _log(v.flop / v.moved_bytes),
        np.full(v.count, float(_log(v.flop / max(v.unique_bytes, 1.0)))),
        v.moved_bytes / max(v.unique_bytes, 1.0),
        v.waste.astype(float),
        _log(v.steps),
        sum(((c > 0).astype(float) for c in chosen), zero),
        sum(((c == 2).astype(float) for c in chosen), zero),
        np.full(v.count, float(len(chosen))),
    ]


def _levels(v: GpuNest) -> list[np.ndarray]:
    """Trips of each level of a tiled nest, spatial and reduce."""
    if v.pattern == "mma":
        sizes = [*v.pieces, *v.warps, v.covered[v.roles.terms]]
        return [*map(_log, sizes), *([np.zeros(v.count)] * 3)]
    if v.pattern != "tiled":
        return [np.zeros(v.count)] * 8
    spatial = [_log(v.product(v.axes, level)) for level in range(5)]
    return spatial + [_log(v.product(v.reduced, level)) for level in range(3)]
