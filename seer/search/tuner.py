"""`tune_tasks`: the loop that picks a task, proposes candidates, measures them and learns."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seer import flags
from seer.runtime.measure import Measurer, MeasureResult
from seer.runtime.records import MeasureRecord, Records
from seer.search.cost_model import CostModel, Samples, rank_accuracy
from seer.search.events import Callback, TaskStatus, TuneEvent, ignore
from seer.search.evolution import Candidate
from seer.search.families import by_similarity, families_of
from seer.search.family_model import NestedModels
from seer.search.features import VERSION
from seer.search.foresee import distance, relatives_to_foresee, transfer
from seer.search.scheduler import TaskState
from seer.search.strategies import Strategy
from seer.search.task import SearchTask
from seer.search.trials import FINALISTS, TaskTrials, candidate_id
from seer.search.warm import MAX_SEEDS, WarmStart, faded

FIRST_TRIALS = 2  # of a task's first round if the strategy is sparing: they are built side by side
TRANSFERRED = 4  # best candidates that each relative hands over
FINAL_S = 0.3  # what timing a finalist again takes, roughly
FINAL_SHARE = 0.2  # of a budget of time, at most, for that


@dataclass(frozen=True)
class TuneSummary:
    """What a run came to.

    Attributes:
        statuses: every task at the end.
        trials: measurements, those of the same run stopped earlier included.
        new_trials: measurements made now.
        errors: failures by reason.
        seconds: wall time.
        search_s: the part spent proposing and learning.
        is_interrupted: whether Ctrl-C ended it.
    """

    statuses: tuple[TaskStatus, ...]
    trials: int
    new_trials: int
    errors: dict[str, int]
    seconds: float
    search_s: float
    is_interrupted: bool

    @property
    def latency_s(self) -> float:
        """Sum of weight * best time over the tasks."""
        return sum(s.weight * s.best_s for s in self.statuses)

    @property
    def default_latency_s(self) -> float:
        """The same sum for the schedules used without tuning."""
        return sum(s.weight * s.default_s for s in self.statuses)


def tune_tasks(
    tasks: Sequence[SearchTask],
    measurer: Measurer,
    records: Records,
    strategy: Strategy,
    *,
    trials: int | None,
    seconds: float | None = None,
    seed: int = 0,
    callback: Callback = ignore,
    store: WarmStart | None = None,
) -> TuneSummary:
    """Tune tasks until the budget is spent, every space is exhausted, or Ctrl-C.

    Args:
        tasks: what to tune.
        measurer: times candidates.
        records: where every trial goes at once. Trials of this strategy and seed that are there
            already count as made, so a stopped run goes on where it was; others are known, too.
        strategy: how to search.
        trials: measurements in all, or None.
        seconds: wall time, or None.
        seed: decides every random choice.
        callback: told of every round.
        store: what is known of families, to start warm from.
    """
    run = _Run(tasks, measurer, records, strategy, trials, seconds, seed, callback)
    if store is not None:
        run.warm_up(store)
    run.resume()
    run.tell("start", None)
    interrupted = False
    try:
        while run.has_budget():
            k = run.scheduler.pick([t.state for t in run.tasks])
            if k is None:
                break
            run.round(k)
            run.foresee(k)
        run.finish()
    except KeyboardInterrupt:
        interrupted = True
    run.tell("end", None)
    return run.summary(interrupted)


@dataclass(frozen=True)
class TaskModel:
    """The cost model as one task sees it."""

    model: CostModel
    task: int

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self.model.predict(self.task, features)

    @property
    def is_trained(self) -> bool:
        return self.model.is_trained(self.task)


class _Run:
    """The state of one tuning run."""

    def __init__(
        self,
        tasks: Sequence[SearchTask],
        measurer: Measurer,
        records: Records,
        strategy: Strategy,
        trials: int | None,
        seconds: float | None,
        seed: int,
        callback: Callback,
    ) -> None:
        self.measurer, self.records, self.strategy = measurer, records, strategy
        self.budget, self.seconds, self.seed, self.callback = trials, seconds, seed, callback
        self.scheduler = strategy.make_scheduler()
        self.round_trials = strategy.round_trials(trials, seconds, len(tasks))
        self.model = strategy.make_model(strategy, tasks, self.round_trials, seed)
        self.families = families_of(tasks, strategy.families)
        self.rank_accuracy: float | None = None
        self.prior: list[Samples] = []
        self.prior_families: list[str] = []
        self.errors: Counter[str] = Counter()
        self.trials = self.new_trials = 0
        self.start = time.perf_counter()
        self.search_s = 0.0
        self.tasks = []
        for t in tasks:
            searcher = strategy.make_searcher(t, strategy.evolution)
            first = searcher.first() if strategy.has_defaults else []
            self.tasks.append(TaskTrials(searcher, TaskState(t), first))

    # -- budget --------------------------------------------------------------------------------

    def left(self) -> int:
        """Trials that may still be made."""
        return 1 << 60 if self.budget is None else self.budget - self.trials

    def has_budget(self) -> bool:
        """Whether trials and time are left; some time is kept for the finalists."""
        return self.left() > 0 and self._has_time(self._finish_s())

    def _has_time(self, reserve: float = 0.0) -> bool:
        return self.seconds is None or time.perf_counter() - self.start < self.seconds - reserve

    def _finish_s(self) -> float:
        """Time to keep for the finalists."""
        needed = FINAL_S * (FINALISTS + 1) * len(self.tasks)
        return min(needed, FINAL_SHARE * (self.seconds or 0.0))

    # -- other models' runs --------------------------------------------------------------------

    def warm_up(self, store: WarmStart) -> None:
        """Take over what a store knows of the families of these tasks."""
        if not self.tasks:
            return
        names = families_of([t.task for t in self.tasks], "auto")
        self.prior = store.samples(names, self.tasks[0].task.target.key)
        self.prior_families = names
        for t, family in zip(self.tasks, names, strict=True):
            t.seeds = t.searcher.take(store.seeds(family, t.searcher), MAX_SEEDS)

    # -- an earlier run ------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over what the records hold of these tasks."""
        for t in self.tasks:
            numbers = {s.key: k for k, s in enumerate(t.searcher.sketches)}
            for r in self.records.for_workload(t.task.key, t.task.target.key):
                k = numbers.get(r.sketch_key)
                sketch = t.searcher.sketches[k] if k is not None else None
                if sketch is None or k is None or {p.name for p in sketch.params} != set(r.params):
                    continue
                candidate = (k, sketch.row(r.params))
                if r.stage == "final":
                    t.add_final(candidate, r.seconds)
                    continue
                t.searcher.mark(candidate)
                is_current = bool(r.features) and r.feature_version == VERSION
                seen = np.frombuffer(r.features, np.float32) if is_current else t.features([candidate])[0]
                t.add(candidate, r.seconds, seen)
                if r.strategy == self.strategy.name and r.seed == self.seed:
                    self.trials += 1
                    self.errors.update([r.error] if r.error else [])
            if t.candidates:
                t.state.history.append(t.best_s)
                t.rounds = len(t.candidates)
        self._learn()
        for k, t in enumerate(self.tasks):
            known = {candidate_id(c) for c in t.candidates}
            t.pending = [c for c in self._with_seeds(k) if candidate_id(c) not in known]

    def _with_seeds(self, k: int) -> list[Candidate]:
        """What task k measures before any search: defaults, and the seeds of a store."""
        t = self.tasks[k]
        if not self.strategy.is_sparing or not t.seeds:
            return t.pending + t.seeds
        scores = TaskModel(self.model, k).predict(t.features(t.seeds))
        best, *others = (t.seeds[i] for i in np.argsort(-scores, kind="stable"))
        return [best, *t.pending[:1], *others, *t.pending[1:]]

    # -- a round -------------------------------------------------------------------------------

    def round(self, k: int, count: int | None = None) -> None:
        """Propose, measure, record, learn: one task, one batch.

        With a `count` it is a foreseen round, which does not count as a visit of the task.
        """
        t = self.tasks[k]
        started = time.perf_counter()
        batch = self._propose(k, count or self.round_trials)
        self.search_s += time.perf_counter() - started
        if not batch:
            t.state.is_exhausted = True
            t.state.history.append(t.best_s)
            return
        self.tell("round", k)
        n_measured = self._measure(t, batch)
        started = time.perf_counter()
        self._test(k, n_measured)
        self._learn()
        self.search_s += time.perf_counter() - started
        t.rounds += 1
        if count is None:
            t.state.history.append(t.best_s)
        else:
            t.state.history[-1] = t.best_s
        flags.debug(
            "search", lambda: f"{t.task!r}: round {t.rounds}, {n_measured} trials, best {t.best_s:.3e} s"
        )
        self.tell("measured", k)

    def foresee(self, k: int) -> None:
        """Short rounds for the most promising relatives of task k, ranked by what was just learnt.

        None before every task has had a round of its own: with few trials some would have none.
        """
        states = [t.state for t in self.tasks]
        if not all(s.history or s.is_exhausted for s in states):
            return
        for j in relatives_to_foresee(self.strategy, self.families, states, k, self._trust(k)):
            if self.has_budget():
                self.round(j, min(self.strategy.foresee, self.round_trials))

    def _trust(self, k: int) -> float:
        """How well candidates of task k's family were ordered before they were measured."""
        return self.model.accuracy(k) if isinstance(self.model, NestedModels) else 1.0

    def _propose(self, k: int, count: int) -> list[Candidate]:
        t = self.tasks[k]
        count = min(count, self.left())
        is_first = not t.results
        if self.strategy.is_sparing and t.pending and is_first:
            count = min(count, FIRST_TRIALS)
        handed = [] if is_first else self._transferred(k)
        batch = t.searcher.take(handed, min(self.strategy.handover, count - 1))
        room = count - len(batch)
        if self.strategy.is_sparing and not is_first and self.model.is_trained(k):
            room = min(room, -(-count // 2))  # the model may know better than what was good elsewhere
        batch, t.pending = batch + t.pending[:room], t.pending[room:]
        if len(batch) < count:
            best = t.best(self.strategy.evolution.population // 5)
            rng = _stream(self.seed, t.task.key, t.rounds)
            parents = best + handed
            batch += t.searcher.propose(count - len(batch), parents, TaskModel(self.model, k), rng)
        return batch

    def _transferred(self, k: int) -> list[Candidate]:
        """The best parameters of relatives, made to fit task k: those of the nearest first."""
        if not self.strategy.transfer:
            return []
        t = self.tasks[k]
        relatives = [o for j, o in enumerate(self.tasks) if j != k and self.families[j] == self.families[k]]
        relatives.sort(key=lambda o: distance(o.task.dag, t.task.dag))
        moved = [transfer(o.searcher, o.best(TRANSFERRED), t.searcher) for o in relatives]
        by_rank = itertools.zip_longest(*moved)
        return [c for ranks in by_rank for c in ranks if c is not None]

    def _test(self, k: int, count: int) -> None:
        """Compare what the model thought of the last batch with what was measured."""
        t = self.tasks[k]
        if not self.model.is_trained(k):
            return
        scores = self.model.predict(k, np.stack(t.matrix[-count:]))
        found = rank_accuracy(scores, t.labels()[-count:])
        if found is not None:
            past = found if self.rank_accuracy is None else self.rank_accuracy
            self.rank_accuracy = 0.8 * past + 0.2 * found

    def _measure(self, t: TaskTrials, batch: list[Candidate]) -> int:
        """Measure candidates, each recorded as soon as it is known, while there is time; how many were."""
        sketches = t.searcher.sketches
        matrix = t.features(batch)
        results = self.measurer.measure(sketches[0], [(sketches[s], row) for s, row in batch], t.best_s)
        count = 0
        for c, seen, r in zip(batch, matrix, results, strict=True):
            self.records.append([self._as_record(t, c, r, "trial", seen)])
            t.add(c, r.seconds, seen)
            self.errors.update([r.error] if r.error else [])
            self.trials += 1
            self.new_trials += 1
            count += 1
            if not self._has_time(self._finish_s()):
                break
        return count

    def _as_record(
        self, t: TaskTrials, candidate: Candidate, r: MeasureResult, stage: str, seen: np.ndarray
    ) -> MeasureRecord:
        k, row = candidate
        sketch = t.searcher.sketches[k]
        return MeasureRecord(
            t.task.key,
            t.task.target.key,
            sketch.key,
            sketch.values(row),
            r.seconds,
            r.error,
            r.message[:500],
            self.seed,
            self.strategy.name,
            r.build_s,
            r.run_s,
            stage=stage,
            family=by_similarity(t.task.dag),
            features=seen.tobytes(),
            feature_version=VERSION,
        )

    def finish(self) -> None:
        """Time the fastest candidates of each task that has new ones again, in turn.

        The fastest of many noisy trials is often a lucky one; these times decide what is compiled. The
        tasks that take most of the model's time come first. What has no time left for all its finalists is
        compared with the default schedule alone, be it late: without that it could not be known as faster.
        """
        ranked = sorted(
            (t for t in self.tasks if t.is_open), key=lambda t: (-t.task.weight * t.best_s, t.task.key)
        )
        for n, t in enumerate(ranked):
            candidates = t.finalists()
            pairs_s = 2 * FINAL_S * (len(ranked) - n - 1)
            if not self._has_time(FINAL_S * len(candidates) + pairs_s):
                candidates = t.finalists(1)
            if len(candidates) < 2:
                continue
            sketches = t.searcher.sketches
            results = self.measurer.remeasure(sketches[0], [(sketches[k], row) for k, row in candidates])
            triples = list(zip(candidates, results, t.features(candidates), strict=True))
            self.records.append(self._as_record(t, c, r, "final", seen) for c, r, seen in triples)
            for c, r, _ in triples:
                t.add_final(c, r.seconds)

    def _learn(self) -> None:
        samples = [
            Samples(k, np.stack(t.matrix), t.labels())
            for k, t in enumerate(self.tasks)
            if math.isfinite(t.best_s)
        ]
        own = Counter(dict.fromkeys(self.prior_families, 0))
        for t, family in zip(self.tasks, self.prior_families, strict=False):
            own[family] += len(t.results)
        counts = {s.task: own[self.prior_families[s.task]] for s in self.prior}
        if samples or self.prior:
            self.model.fit([*faded(self.prior, counts), *samples])

    # -- telling -------------------------------------------------------------------------------

    def tell(self, kind: str, k: int | None) -> None:
        """Call the callback."""
        statuses = tuple(t.status(kind == "end") for t in self.tasks)
        self.callback(
            TuneEvent(
                kind,
                self.strategy.name,
                k,
                statuses,
                self.trials,
                self.budget,
                sum(s.weight * s.best_s for s in statuses),
                time.perf_counter() - self.start,
                dict(self.errors),
                self.rank_accuracy,
            )
        )

    def summary(self, is_interrupted: bool) -> TuneSummary:
        """The run's result."""
        return TuneSummary(
            tuple(t.status(is_end=True) for t in self.tasks),
            self.trials,
            self.new_trials,
            dict(self.errors),
            time.perf_counter() - self.start,
            self.search_s,
            is_interrupted,
        )


def _stream(seed: int, key: str, number: int) -> np.random.Generator:
    """A stream of random numbers of its own for each round of each task (counter-based)."""
    digest = hashlib.sha256(f"{seed} {key} {number}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
