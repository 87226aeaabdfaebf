"""Good parameters on a GPU without measuring: the formula's first choice among many random rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from seer.ir.sketch import Sketch
from seer.runtime.target import Target
from seer.search.gpu_prior import predicted_seconds
from seer.search.legal import legal
from seer.search.space import space_of

SAMPLES = 4096
ROUNDS = 4  # of mutations of the best so far
KEPT = 64


@lru_cache(maxsize=1024)
def _best(sketch: Sketch, target: Target) -> tuple[int, ...]:
    space = space_of(sketch, target)
    rng = np.random.default_rng(0)
    plain = sketch.canonical(np.array([[p.choices[0] if p.choices else 1 for p in sketch.params]]))
    rows = np.concatenate([plain, space.sample(SAMPLES, rng)])
    rows = rows[legal(sketch, rows, target)]
    for _ in range(ROUNDS):
        if not len(rows):
            break
        order = np.argsort(predicted_seconds(sketch, rows, target), kind="stable")[:KEPT]
        best = rows[order]
        near = space.mutate(np.repeat(best, SAMPLES // (8 * len(best)) + 1, axis=0), rng)
        rows = np.concatenate([best, near[legal(sketch, near, target)]])
    if not len(rows):
        return tuple(plain[0].tolist())
    return tuple(rows[int(np.argmin(predicted_seconds(sketch, rows, target)))].tolist())


def gpu_default_row(sketch: Sketch, target: Target) -> np.ndarray:
    """A canonical (n_params,) row; always the same for the same sketch."""
    if not sketch.params:
        return np.zeros(0, np.int64)
    row: np.ndarray = sketch.canonical(np.array(_best(sketch, target), np.int64)[None])[0]
    return row


def gpu_default_number(sketches: Sequence[Sketch], target: Target) -> int:
    """The number of the sketch whose default row the formula likes best."""
    numbers = range(1, len(sketches)) if len(sketches) > 1 else range(1)
    rows = {k: gpu_default_row(sketches[k], target) for k in numbers}
    return min(numbers, key=lambda k: float(predicted_seconds(sketches[k], rows[k][None], target)[0]))
