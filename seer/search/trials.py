"""TaskTrials: the candidates of one task that were measured, their times and their features."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from seer.runtime.choice import LUCK, Choice, Timed, choose
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
        seeds: of these, those that come from a store.
        results: seconds of each candidate, infinity for failures.
        matrix: features of each candidate.
        timings: trials and final times in the order in which they were made.
        timed_again: the candidates that have final times.
        rounds: number of the next stream of random numbers.
    """

    searcher: Searcher
    state: TaskState
    pending: list[Candidate]
    seeds: list[Candidate] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    results: list[float] = field(default_factory=list)
    matrix: list[np.ndarray] = field(default_factory=list)
    timings: list[Timed] = field(default_factory=list)
    timed_again: dict[tuple[int, bytes], Candidate] = field(default_factory=dict)
    errors: int = 0
    rounds: int = 0
    _chosen: Choice | None = None  # of the timings so far: every event asks for it

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
        self._note(Timed(candidate_id(candidate), seconds))
        self.state.trials += 1
        self.errors += not math.isfinite(seconds)

    def add_final(self, candidate: Candidate, seconds: float) -> None:
        """Note that a candidate was timed again."""
        self._note(Timed(candidate_id(candidate), seconds, is_final=True))
        self.timed_again[candidate_id(candidate)] = candidate

    def _note(self, timed: Timed) -> None:
        self.timings.append(timed)
        self._chosen = None

    def best(self, count: int) -> list[Candidate]:
        """The fastest candidates, fastest first."""
        return [self.candidates[i] for i in self._order()[:count]]

    def _order(self) -> list[int]:
        return [i for s, i in sorted((s, i) for i, s in enumerate(self.results) if math.isfinite(s))]

    def finalists(self, count: int = FINALISTS) -> list[Candidate]:
        """Candidates that may be the fastest, at most `count` new ones, and what they must beat.

        That is the winner of earlier contests, and what an untuned model runs, measured or not.
        """
        close = [i for i in self._order()[:count] if self.results[i] <= LUCK * self.best_s]
        number = self.choice().number
        winner = None if number is None else self.timed_again.get(self.timings[number].name)  # type: ignore[call-overload]
        found = [*(self.candidates[i] for i in close), *([winner] if winner else []), self.searcher.default]
        return list({candidate_id(c): c for c in found}.values())

    @property
    def is_open(self) -> bool:
        """Whether something was measured since the finalists were compared."""
        after = itertools.takewhile(lambda t: not t.is_final, reversed(self.timings))
        return any(math.isfinite(t.seconds) for t in after)

    def choice(self) -> Choice:
        """What would be compiled now, as Records.best chooses it."""
        if self._chosen is None:
            self._chosen = choose(self.timings, candidate_id(self.searcher.default))
        return self._chosen

    @property
    def best_s(self) -> float:
        """The fastest trial."""
        return min(self.results, default=math.inf)

    def labels(self) -> np.ndarray:
        """Best time / time: 1 for the fastest, 0 for failures."""
        times = np.array(self.results)
        return np.where(np.isfinite(times), self.best_s / np.maximum(times, 1e-12), 0.0)

    def status(self, is_end: bool = False) -> TaskStatus:
        """The task for an event.

        Before any contest the fastest trial counts while the search goes on, and at its end what is chosen.
        """
        latest = {t.name: t.seconds for t in self.timings}
        naive = next((latest[candidate_id(c)] for c in self.candidates if c[0] == 0), math.inf)
        choice = self.choice()
        is_chosen = is_end or bool(self.timed_again)
        t = self.task
        return TaskStatus(
            t.name,
            t.weight,
            self.state.trials,
            choice.seconds if is_chosen else self.best_s,
            naive,
            choice.default_s,
            self.errors,
            t.dag.flop_count / 1e9,
        )
