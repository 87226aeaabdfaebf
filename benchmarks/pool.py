"""Pools: measured candidates of every task of some models, in a records database.

A pool answers questions about models and strategies without measuring: every candidate that is proposed
is exchanged for the most similar one of the pool, whose time is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

import seer
from benchmarks.networks import network
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.runtime.measure import Candidate as Measured
from seer.runtime.measure import LocalMeasurer, MeasureResult, ReplayMeasurer
from seer.runtime.records import MeasureRecord, Records
from seer.runtime.target import Target
from seer.search.evolution import Candidate, EvolutionOptions, Scorer, Searcher
from seer.search.features import features
from seer.search.strategies import Strategy, strategy_of
from seer.search.task import SearchTask, tasks_of
from seer.search.tuner import tune_tasks

MIN_CANDIDATES = 8  # of a task that counts


@dataclass(frozen=True)
class PoolTask:
    """The measured candidates of one task.

    Attributes:
        matrix: (N, n_features) float32.
        seconds: (N,), infinity for failures.
    """

    task: SearchTask
    models: tuple[str, ...]
    candidates: list[Candidate]
    matrix: np.ndarray
    seconds: np.ndarray

    @property
    def best_s(self) -> float:
        return float(self.seconds.min())

    @property
    def labels(self) -> np.ndarray:
        """Best time / time, 0 for failures."""
        return np.where(np.isfinite(self.seconds), self.best_s / self.seconds, 0.0)


def tasks_by_model(models: Sequence[str], target: Target) -> dict[str, list[SearchTask]]:
    """The tasks of each model."""
    return {m: tasks_of(partition(optimize(network(m))), target) for m in models}


def make_pool(path: Path, models: Sequence[str], target: Target, count: int, seed: int = 0) -> None:
    """Measure `count` candidates of each task, random ones first; a run that was stopped goes on."""
    measurer = LocalMeasurer(target)
    done: set[str] = set()
    try:
        with Records(path) as records:
            for model, tasks in tasks_by_model(models, target).items():
                for k, task in enumerate(t for t in tasks if t.key not in done):
                    done.add(task.key)
                    found = tune_tasks(
                        [task], measurer, records, strategy_of("ansor"), trials=count, seed=seed
                    )
                    print(f"{model} {k + 1}/{len(tasks)} {task.name}: {found.new_trials} new", flush=True)
    finally:
        measurer.close()


def read_pool(path: Path, models: Sequence[str], target: Target) -> list[PoolTask]:
    """The pool's tasks that belong to the models and have candidates enough."""
    with Records(path) as records:
        found = records.all()
    by_task: dict[str, list[MeasureRecord]] = {}
    for r in found:
        if r.stage == "trial" and r.target_key == target.key:
            by_task.setdefault(r.workload_key, []).append(r)
    users: dict[str, list[str]] = {}
    tasks: dict[str, SearchTask] = {}
    for model, mine in tasks_by_model(models, target).items():
        for t in mine:
            tasks.setdefault(t.key, t)
            users.setdefault(t.key, []).append(model)
    out = [_pool_task(t, tuple(users[k]), by_task.get(k, [])) for k, t in tasks.items()]
    return [p for p in out if np.isfinite(p.seconds).sum() >= MIN_CANDIDATES]


def _pool_task(task: SearchTask, models: tuple[str, ...], records: Sequence[MeasureRecord]) -> PoolTask:
    numbers = {s.key: k for k, s in enumerate(task.sketches)}
    candidates, seconds = [], []
    for r in records:
        k = numbers.get(r.sketch_key)
        if k is not None and {p.name for p in task.sketches[k].params} == set(r.params):
            candidates.append((k, task.sketches[k].row(r.params)))
            seconds.append(r.seconds)
    matrix = np.concatenate(
        [features(task.sketches[k], row[None], task.target) for k, row in candidates] or [np.zeros((0, 1))]
    )
    return PoolTask(task, models, candidates, matrix, np.array(seconds))


# -- searching in a pool -----------------------------------------------------------------------------


@dataclass
class PoolSearcher(Searcher):
    """Exchanges each proposed candidate for the most similar one of the pool that was not proposed yet."""

    pool: PoolTask | None = None
    left: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.pool is not None
        self.left = list(range(len(self.pool.candidates)))
        self._scale = self.pool.matrix.std(axis=0) + 1e-6

    def first(self) -> list[Candidate]:
        """The naive candidate and the defaults, as far as the pool has them."""
        assert self.pool is not None
        wanted = {(k, r.tobytes()) for k, r in super().first()}
        found = [i for i in self.left if self._key(i) in wanted]
        self.left = [i for i in self.left if i not in found]
        return [self.pool.candidates[i] for i in found]

    def propose(
        self, count: int, best: list[Candidate], model: Scorer, rng: np.random.Generator
    ) -> list[Candidate]:
        """See Searcher.propose."""
        assert self.pool is not None
        wanted = super().propose(min(count, len(self.left)), best, model, rng)
        return [self.pool.candidates[self._nearest(k, row)] for k, row in wanted if self.left]

    def _nearest(self, k: int, row: np.ndarray) -> int:
        assert self.pool is not None
        seen = features(self.sketches[k], row[None], self.task.target)
        distance = np.abs((self.pool.matrix[self.left] - seen) / self._scale).sum(axis=1)
        return self.left.pop(int(np.argmin(distance)))

    def _key(self, i: int) -> tuple[int, bytes]:
        assert self.pool is not None
        k, row = self.pool.candidates[i]
        return k, row.tobytes()


class PoolMeasurer(ReplayMeasurer):
    """Answers with the pool's times, final times too."""

    def remeasure(self, naive: seer.ir.sketch.Sketch, candidates: Sequence[Measured]) -> list[MeasureResult]:
        """See Measurer.remeasure."""
        return self.measure(naive, candidates, math.inf)


@dataclass(frozen=True)
class PoolStrategy(Strategy):
    """A strategy whose rounds are as long as the pool is small.

    Attributes:
        trials_a_round: measurements of a round.
    """

    trials_a_round: int = 16

    def round_trials(self, trials: int | None, seconds: float | None, n_tasks: int) -> int:
        return self.trials_a_round


def in_pool(text: str, pool: Sequence[PoolTask], round_trials: int, population: int) -> PoolStrategy:
    """A strategy as `strategy_of` reads it, searching in a pool.

    A foreseen round keeps its share of a round: foresee=16 is a quarter, as 16 is of 64.
    """
    strategy = strategy_of(text)
    by_key = {p.task.key: p for p in pool}

    def searcher(task: SearchTask, options: EvolutionOptions) -> Searcher:
        return PoolSearcher(task, options, pool=by_key[task.key])

    values = {f.name: getattr(strategy, f.name) for f in fields(Strategy)}
    values["make_searcher"] = searcher
    values["foresee"] = math.ceil(strategy.foresee * round_trials / 64)
    values["evolution"] = EvolutionOptions(
        min(population, strategy.evolution.population),
        strategy.evolution.generations,
        crossover=strategy.evolution.crossover,
    )
    return PoolStrategy(**values, trials_a_round=round_trials)
