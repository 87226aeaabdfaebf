"""TaskTrials: the candidates of one task that were measured, their times and their features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seer.runtime.records import LUCK
from seer.search.defaults import default_number
from seer.search.events import TaskStatus
from seer.search.evolution import Candidate, Searcher
from seer.search.features import features
from seer.search.scheduler import TaskState
from seer.search.task import SearchTask

FINALISTS = 4


def candidate_id(candidate: Candidate) -> tuple[int, bytes]:
    """A candidate as a key."""
    return candidate[0], candidate[1].tobytes()


@dataclass
class TaskTrials:
    """One task's candidates and results.

    Attributes:
        pending: candidates to measure before any search.
        results: seconds of each candidate, infinity for failures.
        matrix: features of each candidate.
        finals: seconds of the candidates that were timed again.
        later_s: fastest trial since then.
        rounds: number of the next stream of random numbers.
    """

    searcher: Searcher
    state: TaskState
    pending: list[Candidate]
    candidates: list[Candidate] = field(default_factory=list)
    results: list[float] = field(default_factory=list)
    matrix: list[np.ndarray] = field(default_factory=list)
    finals: dict[tuple[int, bytes], float] = field(default_factory=dict)
    later_s: float = math.inf
    errors: int = 0
    rounds: int = 0

    @cached_property
    def _default_number(self) -> int:
        return default_number(self.searcher.sketches, self.task.target)

    @property
    def task(self) -> SearchTask:
        return self.state.task

    def features(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """The features (N, n_features) of candidates, computed for each sketch at once."""
        out: dict[int, np.ndarray] = {}
        for k in {c[0] for c in candidates}:
            at = [i for i, c in enumerate(candidates) if c[0] == k]
            rows = np.stack([candidates[i][1] for i in at])
            matrix = features(self.searcher.sketches[k], rows, self.task.target)
            out.update(zip(at, matrix, strict=True))
        return np.stack([out[i] for i in range(len(candidates))])

    def add(self, candidate: Candidate, seconds: float, seen: np.ndarray) -> None:
        """Note a result and the features that the cost model sees."""
        self.candidates.append(candidate)
        self.results.append(seconds)
        self.matrix.append(seen)
        self.later_s = min(self.later_s, seconds)
        self.state.trials += 1
        self.errors += not math.isfinite(seconds)

    def add_final(self, candidate: Candidate, seconds: float) -> None:
        """Note that a candidate was timed again."""
        self.finals[candidate_id(candidate)] = seconds
        self.later_s = math.inf

    def best(self, count: int) -> list[Candidate]:
        """The fastest candidates, fastest first."""
        return [self.candidates[i] for i in self._order()[:count]]

    def _order(self) -> list[int]:
        return [i for s, i in sorted((s, i) for i, s in enumerate(self.results) if math.isfinite(s))]

    def finalists(self) -> list[Candidate]:
        """The candidates that may be the fastest, and the default one."""
        close = [i for i in self._order()[:FINALISTS] if self.results[i] <= LUCK * self.best_s]
        found = [*(self.candidates[i] for i in close), *self.defaults()]
        return list({candidate_id(c): c for c in found}.values())

    def defaults(self) -> list[Candidate]:
        """The measured candidate that an untuned model runs, if there is one."""
        number = self._default_number
        found = (c for c, s in zip(self.candidates, self.results, strict=True) if c[0] == number)
        return [c for c in [next(found, None)] if c is not None]

    @property
    def best_s(self) -> float:
        """The fastest trial."""
        return min(self.results, default=math.inf)

    @property
    def final_s(self) -> float:
        """The time of what would be compiled now, as Records.best chooses it."""
        final = min(self.finals.values(), default=math.inf)
        if math.isinf(final):
            return self.best_s
        return self.later_s if LUCK * self.later_s < final else final

    def labels(self) -> np.ndarray:
        """Best time / time: 1 for the fastest, 0 for failures."""
        times = np.array(self.results)
        return np.where(np.isfinite(times), self.best_s / np.maximum(times, 1e-12), 0.0)

    def status(self) -> TaskStatus:
        """The task for an event; final times where there are any."""
        known = {candidate_id(c): s for c, s in zip(self.candidates, self.results, strict=True)} | self.finals
        naive = next((known[candidate_id(c)] for c in self.candidates if c[0] == 0), math.inf)
        default = next((known[candidate_id(c)] for c in self.defaults()), math.inf)
        t = self.task
        return TaskStatus(
            t.name,
            t.weight,
            self.state.trials,
            self.final_s,
            naive,
            default,
            self.errors,
            t.dag.flop_count / 1e9,
        )
