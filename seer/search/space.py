"""The space of a sketch: random rows, mutation and crossover, as operations on integer arrays.

A tile parameter is drawn from the useful trip counts of its axis: the divisors of the extent, powers
of two and small numbers (any number is legal, tails are handled, but these are where fast code is).
Everything works on a population, an int64 array of shape (P, n_params).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from seer.ir.sketch import Param, Sketch
from seer.runtime.gpu import Gpu
from seer.runtime.target import Target
from seer.search.gpu_space import within_limits

# How often a mutation changes each kind of parameter (Ansor's mutation rules).
MUTATION_WEIGHTS = {"tile": 0.90, "unroll": 0.04, "location": 0.05, "choice": 0.05, "parallel": 0.01}
# Small trip counts that are worth trying whatever the extent.
SMALL = 16


@dataclass(frozen=True)
class Space:
    """How rows of one sketch are drawn.

    Attributes:
        sketch: the loop structure.
        values: the values of each parameter that sampling draws from.
        gpu: the GPU whose limits samples keep, or None.
        size: how many rows there are to draw, at most.
    """

    sketch: Sketch
    values: tuple[np.ndarray, ...]
    gpu: Gpu | None = None

    @property
    def size(self) -> float:
        size = 1.0
        for v in self.values:
            size *= len(v)
        return size

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Random canonical rows (count, n_params); repeats are possible."""
        rows = np.ones((count, len(self.values)), dtype=np.int64)
        for columns in self.sketch.tile_axes.values():
            self._sample_axis(rows, columns, rng)
        for c, (p, values) in enumerate(zip(self.sketch.params, self.values, strict=True)):
            if p.kind != "tile":
                rows[:, c] = rng.choice(values, count, p=_weights(p, values))
        rows = self.sketch.canonical(rows)
        return rows if self.gpu is None else within_limits(self.sketch, rows, self.gpu, rng)

    def _sample_axis(self, rows: np.ndarray, columns: tuple[int, ...], rng: np.random.Generator) -> None:
        """Trip counts of one axis, innermost first, each from what is left of the extent."""
        count = len(rows)
        left = np.full(count, max(self.sketch.params[columns[0]].extent, 1), dtype=np.int64)
        for c in reversed(columns):
            values = self.values[c]
            n_usable = np.searchsorted(values, left, side="right")
            picked = values[(rng.random(count) * np.maximum(n_usable, 1)).astype(np.int64)]
            rows[:, c] = np.minimum(picked, left)
            left = -(-left // rows[:, c])

    def mutate(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each row with one parameter changed."""
        out = rows.copy()
        if not self.values:
            return out
        kinds = np.array([MUTATION_WEIGHTS[p.kind] for p in self.sketch.params])
        per_kind = {k: sum(p.kind == k for p in self.sketch.params) for k in MUTATION_WEIGHTS}
        weights = kinds / np.array([per_kind[p.kind] for p in self.sketch.params])
        weights *= np.array([len(v) > 1 for v in self.values])
        if weights.sum() == 0:
            return out
        column = rng.choice(len(self.values), len(rows), p=weights / weights.sum())
        for c in np.unique(column):
            self._mutate_column(out, int(c), np.flatnonzero(column == c), rng)
        return self.sketch.canonical(out)

    def _mutate_column(self, rows: np.ndarray, c: int, at: np.ndarray, rng: np.random.Generator) -> None:
        """A tile moves a factor to or from another level of its axis, or is drawn anew."""
        values, p = self.values[c], self.sketch.params[c]
        if p.kind != "tile":
            shift = rng.integers(1, len(values), len(at))
            index = np.searchsorted(np.sort(values), rows[at, c])
            rows[at, c] = np.sort(values)[(index + shift) % len(values)]
            return
        old = rows[at, c]
        near = rng.random(len(at)) < 0.5
        index = np.searchsorted(values, old)
        step = np.where(rng.random(len(at)) < 0.5, -1, 1)
        stepped = values[np.clip(index + step, 0, len(values) - 1)]
        anew = values[rng.integers(0, len(values), len(at))]
        rows[at, c] = np.where(near, stepped, anew)
        siblings = [d for d in self.sketch.tile_axes[p.axis] if d != c]
        if siblings:  # half of the time another level of the axis makes up for it
            d = np.array(siblings)[rng.integers(0, len(siblings), len(at))]
            trade = rng.random(len(at)) < 0.5
            product = old * rows[at, d]
            made_up = np.maximum(1, product // np.maximum(rows[at, c], 1))
            rows[at, d] = np.where(trade, made_up, rows[at, d])

    def cross(self, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each pair's child: for each axis (or other parameter) all columns of one parent."""
        out = a.copy()
        groups = list(self.sketch.tile_axes.values())
        tiled = {c for g in groups for c in g}
        groups += [(c,) for c in range(len(self.values)) if c not in tiled]
        for columns in groups:
            take = rng.random(len(a)) < 0.5
            for c in columns:
                out[take, c] = b[take, c]
        return self.sketch.canonical(out)


def _weights(p: Param, values: np.ndarray) -> np.ndarray | None:
    """Parallel is nearly always right; everything else is equally likely."""
    if p.kind == "parallel" and len(values) == 2:
        return np.where(values == 1, 0.9, 0.1)
    return None


@lru_cache(maxsize=1024)
def space_of(sketch: Sketch, target: Target) -> Space:
    """The space of a sketch on a target."""
    return Space(sketch, tuple(_values(p, sketch, target) for p in sketch.params), target.gpu)


def _values(p: Param, sketch: Sketch, target: Target) -> np.ndarray:
    if p.kind == "parallel" and target.num_threads == 1:
        return np.array([0])
    if p.choices:
        return np.array(p.choices, dtype=np.int64)
    if p.vector:
        lanes = target.lanes(sketch.dag.op(p.name.split(".")[0]).body.dtype)
        most = min(p.extent, 8 * lanes)
        wide = list(range(lanes, most + 1, lanes))
        narrow = [n for n in _divisors(p.extent) if n < lanes and n >= lanes // 4]
        return np.array(sorted({*wide, *narrow, min(p.extent, lanes)}), dtype=np.int64)
    powers = [1 << k for k in range(max(p.extent, 1).bit_length())]
    small = [n for n in range(1, SMALL + 1) if n <= p.extent]
    most = p.most or p.extent
    return np.array(sorted(n for n in {*_divisors(p.extent), *powers, *small} if n <= most), dtype=np.int64)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, max(n, 1) + 1) if max(n, 1) % d == 0]
