"""How long a candidate takes on a GPU, by a formula: what ranks candidates before anything is measured.

A kernel takes as long as the slowest of: arithmetic (with the loads from shared memory that go with
it), traffic to the device's memory, traffic to the caches; each divided by how well the machine is
filled. No constant here was fitted to a measurement.
"""

from __future__ import annotations

import numpy as np

from seer.ir.sketch import Sketch
from seer.runtime.gpu import Gpu
from seer.runtime.target import Target
from seer.search.gpu_view import GpuNest, gpu_nests

L2_SPEEDUP = 3.0  # bandwidth of the second-level cache, in that of the device's memory
WAIT_S = 1.0e-7  # a barrier with loads behind it
BLOCK_S = 5.0e-9  # a multiprocessor's time to start a block
LATENCY_S = 6.0e-7  # from asking memory to having
ENOUGH_WARPS = 16  # warps of a multiprocessor that hide latencies
IMPOSSIBLE_S = 1e3


def predicted_seconds(sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """Seconds (P,) of each canonical row (P, n_params)."""
    assert target.gpu is not None
    out = np.zeros(len(rows))
    for nest in gpu_nests(sketch, rows, target.gpu):
        out += nest_seconds(nest, target.gpu)
    return out


def nest_seconds(v: GpuNest, gpu: Gpu) -> np.ndarray:
    """Seconds (P,) of one kernel."""
    warps = np.ceil(v.threads / gpu.warp_size)
    lanes = v.threads / (warps * gpu.warp_size)
    active = np.minimum(v.blocks_per_sm, np.ceil(v.blocks / gpu.num_sms)) * warps
    # Independent work of a thread hides latency as more warps would.
    hidden = np.minimum(1.0, active * np.minimum(np.sqrt(v.tile), 4.0) / ENOUGH_WARPS)
    busy = np.maximum(v.busy, 1e-6)
    blocks_in_turn = v.blocks / (gpu.num_sms * busy)
    arithmetic = blocks_in_turn * v.cycles / (gpu.clock_hz * np.maximum(hidden, 1e-3))
    filled = np.minimum(1.0, v.blocks * v.threads / (gpu.num_sms * gpu.warp_size * ENOUGH_WARPS))
    filled = np.maximum(filled * np.minimum(1.0, 0.5 + lanes / 2), 1e-4)
    device = v.unique_bytes / (gpu.bandwidth * filled)
    caches = v.moved_bytes / (gpu.bandwidth * L2_SPEEDUP * filled)
    waves = np.ceil(v.blocks / (gpu.num_sms * np.maximum(v.blocks_per_sm, 1)))
    cycles = v.serial * 4 / gpu.clock_hz
    waits = waves * (
        v.steps * WAIT_S / v.stages / np.maximum(np.minimum(v.blocks_per_sm, 4), 1) + LATENCY_S + cycles
    )
    # Many small blocks take time to start, large ones wait for the last of their threads.
    waits = waits + v.blocks / gpu.num_sms * BLOCK_S + LATENCY_S / 10 * v.threads / gpu.max_threads_per_block
    total = gpu.launch_s + np.maximum(np.maximum(arithmetic, device), caches) + waits
    return np.where(v.blocks_per_sm > 0, total, IMPOSSIBLE_S)
