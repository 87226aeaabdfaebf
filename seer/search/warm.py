"""Warm start: measurements of other workloads, from an earlier run or another model.

A store is a records database. Its trials carry the features that the cost model saw and the family of
their workload, so a new model's families start with a trained model and with the best parameters of
their relatives. A store made on another CPU is a prior for the model, not for the parameters' times:
labels are relative to the best of their own workload and CPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from seer.runtime.records import MeasureRecord, Records
from seer.search.cost_model import Samples
from seer.search.evolution import Candidate, Searcher
from seer.search.features import VERSION
from seer.search.foresee import candidate_of

BEST_OF_EACH = 3  # parameters that each relative hands over
MAX_SEEDS = 8  # measured first in a warm task


@dataclass(frozen=True)
class WarmStart:
    """What a store knows, by family."""

    trials: dict[str, list[list[MeasureRecord]]]  # family -> trials of each workload, fastest first

    @staticmethod
    def read(store: Records, target_key: str, exclude: Collection[str]) -> WarmStart:
        """The trials of a store, leaving out some workloads; those of this target if it has any."""
        usable = [
            r
            for r in store.all()
            if r.stage == "trial"
            and r.features
            and r.feature_version == VERSION
            and r.workload_key not in exclude
        ]
        mine = [r for r in usable if r.target_key == target_key]
        found: dict[tuple[str, str, str], list[MeasureRecord]] = {}
        for r in mine or usable:
            found.setdefault((r.family, r.workload_key, r.target_key), []).append(r)
        out: dict[str, list[list[MeasureRecord]]] = {}
        for (family, _, _), records in found.items():
            if any(r.ok for r in records):
                out.setdefault(family, []).append(sorted(records, key=lambda r: r.seconds))
        return WarmStart(out)

    def samples(self, families: Sequence[str]) -> list[Samples]:
        """Training data for the families of a run's tasks, each under the number of its first task."""
        out = []
        for family, workloads in self.trials.items():
            if family not in families:
                continue
            matrix = [np.frombuffer(r.features, np.float32) for w in workloads for r in w]
            labels = [
                w[0].seconds / r.seconds if math.isfinite(r.seconds) else 0.0 for w in workloads for r in w
            ]
            out.append(Samples(families.index(family), np.stack(matrix), np.array(labels), is_prior=True))
        return out

    def seeds(self, family: str, target: Searcher) -> list[Candidate]:
        """The best parameters of a family's workloads, made to fit a task."""
        out: list[Candidate] = []
        for rank in range(BEST_OF_EACH):
            for w in self.trials.get(family, []):
                if rank < len(w) and w[rank].ok:
                    found = candidate_of(w[rank].sketch_key, w[rank].params, target)
                    out += [] if found is None else [found]
        return out[:MAX_SEEDS]
