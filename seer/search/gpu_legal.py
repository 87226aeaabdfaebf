"""Which rows a GPU can run: vectorised limits of the programming model and of registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seer.ir.sketch import Nest, Sketch
from seer.runtime.target import Target
from seer.search.gpu_view import GpuNest

Predicate = Callable[[Nest, Sketch, np.ndarray, Target], np.ndarray]

GPU_PREDICATES: list[Predicate] = []
MAX_BLOCKS = 2**31 - 1


def register_gpu_predicate(predicate: Predicate) -> Predicate:
    """Add a condition on the rows (P, n_params) of a nest; it returns a bool array (P,)."""
    GPU_PREDICATES.append(predicate)
    return predicate


@register_gpu_predicate
def fits_gpu(nest: Nest, sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """Threads, virtual threads, shared memory, registers and blocks are within the limits."""
    if nest.bind is None or target.gpu is None:
        return np.ones(len(rows), dtype=bool)
    g, v = target.gpu, GpuNest(sketch, nest, rows, target.gpu)
    ok: np.ndarray = v.threads <= g.max_threads_per_block
    ok &= v.vthreads <= g.max_vthreads
    ok &= v.shared_bytes <= g.shared_bytes_per_block
    ok &= v.registers <= g.registers_per_thread
    ok &= g.block_registers(v.registers, v.threads) <= g.registers_per_sm
    ok &= v.blocks <= MAX_BLOCKS
    return ok
