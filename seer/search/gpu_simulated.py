"""How long a candidate takes on an emulated device: the formula, and what the formula does not see.

If the truth were the formula by which the first candidates are chosen, there would be nothing to
find. So it is bent by a smooth function of the candidate's features, drawn once for each
architecture and the same for all kernels: near candidates have near times, relatives have much in
common, and a search can learn it. None of this says anything about a real GPU.
"""

from __future__ import annotations

import zlib

import numpy as np

from seer.ir.sketch import Sketch
from seer.runtime.target import Target
from seer.search.gpu_features import gpu_features
from seer.search.gpu_prior import nest_seconds
from seer.search.gpu_view import gpu_nests

WAVES = 64
SCALE = 0.15  # radians that one unit of a feature (a factor of two, mostly) turns a wave
DEPTH = 0.35  # standard deviation of the logarithm of what it does to a time


def simulated_seconds(sketch: Sketch, row: np.ndarray, target: Target) -> np.ndarray:
    """Seconds (n_kernels,) of a canonical row (n_params,), without noise."""
    assert target.gpu is not None
    rows = np.asarray(row)[None]
    formula = [float(nest_seconds(n, target.gpu)[0]) for n in gpu_nests(sketch, rows, target.gpu)]
    features = gpu_features(sketch, rows, target)[0].astype(np.float64)
    rng = np.random.default_rng(zlib.crc32(target.cpu.encode()))
    turns = rng.standard_normal((WAVES, len(features))) * SCALE
    phases = rng.uniform(0, 2 * np.pi, WAVES)
    bend = np.cos(turns @ features + phases).sum() * np.sqrt(2 / WAVES)
    out: np.ndarray = np.array(formula) * np.exp(DEPTH * bend)
    return out
