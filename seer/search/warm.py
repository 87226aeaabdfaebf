"""Warm start: what earlier runs learnt of families, for the tasks of another run.

A store holds, for each workload that was tuned, the features and relative times of some candidates and the
parameters of the best. It is made from a records database, or read from a compact file of plain arrays; seer
ships one for CPUs (seer/data, made by scripts/make_store.py). A new run's cost models start trained, and its
tasks begin with the best parameters of their relatives.

A store is a prior, not truth. Times are relative to the best of their own workload and machine, parameters
are measured like any others, and what was measured on another CPU counts less from the start and nothing
once a family has ENOUGH measurements of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from seer.errors import RecordError
from seer.runtime.records import MeasureRecord, Records
from seer.search.cost_model import Samples
from seer.search.evolution import Candidate, Searcher
from seer.search.features import VERSION
from seer.search.foresee import candidate_of

BEST_OF_EACH = 3  # parameters that each relative hands over
MAX_SEEDS = 8  # measured first in a warm task
FOREIGN_WEIGHT = 0.5  # of a sample from another CPU, at first
ENOUGH = 192  # measurements of a family after which other CPUs' samples are dropped: three full rounds
SAMPLES_EACH = 32  # of a workload in a file
SHIPPED = Path(__file__).resolve().parent.parent / "data"

Parameters = tuple[str, dict[str, int]]  # sketch key and named values


@dataclass(frozen=True)
class Workload:
    """What a store knows of one workload on one target.

    Attributes:
        features: (N, n_features) float32.
        labels: (N,) best time / time, 0 for failures.
        best: the fastest candidates' parameters, fastest first.
    """

    family: str
    key: str
    target_key: str
    features: np.ndarray
    labels: np.ndarray
    best: tuple[Parameters, ...]


@dataclass(frozen=True)
class WarmStart:
    """What a store knows."""

    workloads: tuple[Workload, ...]

    @staticmethod
    def of(store: Records, kind: str = "llvm") -> WarmStart:
        """The trials of a records database on a kind of target."""
        found: dict[tuple[str, str, str], list[MeasureRecord]] = {}
        for r in store.all():
            if r.target_key.split()[0] != kind:
                continue
            if r.stage == "trial" and r.features and r.feature_version == VERSION:
                found.setdefault((r.family, r.workload_key, r.target_key), []).append(r)
        return WarmStart(
            tuple(_workload(key, records) for key, records in found.items() if any(r.ok for r in records))
        )

    def without(self, keys: Collection[str]) -> WarmStart:
        """The store less some workloads."""
        return WarmStart(tuple(w for w in self.workloads if w.key not in keys))

    def samples(self, families: Sequence[str], target_key: str) -> list[Samples]:
        """Training data for the families of a run's tasks, each under the number of its first task."""
        out = []
        for w in self.workloads:
            if w.family in families and len(w.labels):
                weight = 1.0 if w.target_key == target_key else FOREIGN_WEIGHT
                out.append(
                    Samples(families.index(w.family), w.features, w.labels, is_prior=True, weight=weight)
                )
        return out

    def seeds(self, family: str, target: Searcher) -> list[Candidate]:
        """The best parameters of a family's workloads, made to fit a task; its own and its CPU's first."""
        task = target.task
        mine = sorted(
            (w for w in self.workloads if w.family == family),
            key=lambda w: (w.key != task.key, w.target_key != task.target.key),
        )
        out: list[Candidate] = []
        for rank in range(BEST_OF_EACH):
            for w in mine:
                if rank < len(w.best):
                    found = candidate_of(*w.best[rank], target)
                    out += [] if found is None else [found]
        return out[:MAX_SEEDS]

    # -- files -----------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write a file of plain arrays, with at most SAMPLES_EACH samples a workload."""
        some = [_thinned(w) for w in self.workloads]
        words = [[w.family, w.key, w.target_key, len(w.labels), list(w.best)] for w in some]
        np.savez_compressed(
            path,
            words=np.frombuffer(json.dumps(words).encode(), dtype=np.uint8),
            features=np.concatenate([w.features for w in some]).astype(np.float16),
            labels=np.concatenate([w.labels for w in some]).astype(np.float16),
            version=np.array(VERSION),
        )

    @staticmethod
    def load(path: Path) -> WarmStart:
        """Read a file; samples of another version of the features are left out.

        Raises:
            RecordError: if it is no such file.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                words = json.loads(data["words"].tobytes())
                features, labels = data["features"].astype(np.float32), data["labels"].astype(np.float64)
                is_current = int(data["version"]) == VERSION
        except (OSError, ValueError, KeyError) as e:
            raise RecordError(f"store {path}: not a usable file: {e}") from e
        out, start = [], 0
        for family, key, target_key, count, best in words:
            part = slice(start, start + count if is_current else start)
            chosen = tuple((str(s), {str(n): int(v) for n, v in p.items()}) for s, p in best)
            out.append(Workload(family, key, target_key, features[part], labels[part], chosen))
            start += count
        return WarmStart(tuple(out))


@lru_cache(maxsize=4)
def shipped(kind: str) -> WarmStart:
    """The store that comes with seer for a kind of target (empty if there is none)."""
    path = SHIPPED / f"{kind}.npz"
    return WarmStart.load(path) if path.exists() else WarmStart(())


def faded(prior: Sequence[Samples], own: dict[int, int]) -> list[Samples]:
    """Prior samples, those of other CPUs the lighter the more measurements a family has of its own.

    Args:
        prior: from WarmStart.samples.
        own: measurements of the family of each prior's task.
    """
    out = []
    for s in prior:
        weight = s.weight if s.weight == 1.0 else s.weight * (1 - own.get(s.task, 0) / ENOUGH)
        if weight > 0:
            out.append(replace(s, weight=weight))
    return out


def _workload(key: tuple[str, str, str], records: Sequence[MeasureRecord]) -> Workload:
    records = sorted(records, key=lambda r: r.seconds)
    best_s = records[0].seconds
    labels = [best_s / r.seconds if math.isfinite(r.seconds) else 0.0 for r in records]
    family, workload_key, target_key = key
    return Workload(
        family,
        workload_key,
        target_key,
        np.stack([np.frombuffer(r.features, np.float32) for r in records]),
        np.array(labels),
        tuple((r.sketch_key, r.params) for r in records[:BEST_OF_EACH] if r.ok),
    )


def _thinned(w: Workload) -> Workload:
    """The fastest quarter of the samples, and of the others evenly many from fast to slow."""
    count = len(w.labels)
    if count <= SAMPLES_EACH:
        return w
    fast = np.arange(SAMPLES_EACH // 4)
    rest = np.linspace(len(fast), count - 1, SAMPLES_EACH - len(fast)).astype(int)
    kept = np.concatenate([fast, np.unique(rest)])
    return replace(w, features=w.features[kept], labels=w.labels[kept])
