"""`tune_tasks`: the loop that picks a task, proposes candidates, measures them and learns."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from seer import flags
from seer.runtime.measure import Measurer, MeasureResult
from seer.runtime.records import MeasureRecord, Records
from seer.search.cost_model import CostModel, Samples, rank_accuracy
from seer.search.events import Callback, TaskStatus, TuneEvent, ignore
from seer.search.evolution import Searcher
from seer.search.families import by_similarity, families_of
from seer.search.family_model import NestedModels
from seer.search.features import VERSION, features
from seer.search.foresee import relatives_to_foresee, transfer
from seer.search.scheduler import TaskState
from seer.search.strategies import Strategy
from seer.search.task import SearchTask
from seer.search.warm import WarmStart

Candidate = tuple[int, np.ndarray]

FINALISTS = 4
TRANSFERRED = 4  # best candidates that each relative hands over


def _id(candidate: Candidate) -> tuple[int, bytes]:
    """A candidate as a key."""
    return candidate[0], candidate[1].tobytes()


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
    store: Records | None = None,
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
        store: records of other workloads to start warm from.
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


@dataclass
class _Task:
    """One task's candidates and results."""

    searcher: Searcher
    state: TaskState
    pending: list[Candidate]
    candidates: list[Candidate] = field(default_factory=list)
    results: list[float] = field(default_factory=list)  # seconds, infinity for failures
    matrix: list[np.ndarray] = field(default_factory=list)
    finals: dict[tuple[int, bytes], float] = field(default_factory=dict)
    new: int = 0
    errors: int = 0
    rounds: int = 0

    @property
    def task(self) -> SearchTask:
        return self.state.task

    def features(self, candidate: Candidate) -> np.ndarray:
        """The features (n_features,) of a candidate."""
        k, row = candidate
        found: np.ndarray = features(self.searcher.sketches[k], row[None], self.task.target)[0]
        return found

    def add(self, candidate: Candidate, seconds: float) -> None:
        """Note a result."""
        self.candidates.append(candidate)
        self.results.append(seconds)
        self.matrix.append(self.features(candidate))
        self.state.trials += 1
        self.errors += not math.isfinite(seconds)

    def best(self, count: int) -> list[Candidate]:
        """The fastest candidates, fastest first."""
        order = sorted((s, i) for i, s in enumerate(self.results) if math.isfinite(s))
        return [self.candidates[i] for _, i in order[:count]]

    def finalists(self) -> list[Candidate]:
        """The fastest candidates and the default one."""
        return list({_id(c): c for c in [*self.best(FINALISTS), *self.defaults()]}.values())

    def defaults(self) -> list[Candidate]:
        """The measured candidate that an untuned model runs, if there is one."""
        number = 1 if len(self.searcher.sketches) > 1 else 0
        found = (c for c, s in zip(self.candidates, self.results, strict=True) if c[0] == number)
        return [c for c in [next(found, None)] if c is not None]

    @property
    def best_s(self) -> float:
        """The fastest trial."""
        return min(self.results, default=math.inf)

    def labels(self) -> np.ndarray:
        """Best time / time: 1 for the fastest, 0 for failures."""
        times = np.array(self.results)
        best = self.best_s
        return np.where(np.isfinite(times), best / np.maximum(times, 1e-12), 0.0)

    def status(self) -> TaskStatus:
        """The task for an event; final times where there are any."""
        known = {_id(c): s for c, s in zip(self.candidates, self.results, strict=True)} | self.finals
        naive = next((known[_id(c)] for c in self.candidates if c[0] == 0), math.inf)
        default = next((known[_id(c)] for c in self.defaults()), math.inf)
        t = self.task
        return TaskStatus(
            t.name,
            t.weight,
            self.state.trials,
            min(self.finals.values(), default=self.best_s),
            naive,
            default,
            self.errors,
            t.dag.flop_count / 1e9,
        )


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
        self.errors: Counter[str] = Counter()
        self.trials = self.new_trials = 0
        self.start = time.perf_counter()
        self.search_s = 0.0
        self.tasks = []
        for t in tasks:
            searcher = Searcher(t, strategy.evolution)
            self.tasks.append(_Task(searcher, TaskState(t), searcher.first()))

    # -- budget --------------------------------------------------------------------------------

    def left(self) -> int:
        """Trials that may still be made."""
        return 1 << 60 if self.budget is None else self.budget - self.trials

    def has_budget(self) -> bool:
        """Whether trials and time are left."""
        in_time = self.seconds is None or time.perf_counter() - self.start < self.seconds
        return self.left() > 0 and in_time

    # -- other models' runs --------------------------------------------------------------------

    def warm_up(self, store: Records) -> None:
        """Take over what a store knows of the families of these tasks, but not of the tasks themselves."""
        if not self.tasks:
            return
        own = {t.task.key for t in self.tasks}
        warm = WarmStart.read(store, self.tasks[0].task.target.key, own)
        names = families_of([t.task for t in self.tasks], "auto")
        self.prior = warm.samples(names)
        for t, family in zip(self.tasks, names, strict=True):
            t.pending += [c for c in warm.seeds(family, t.searcher) if t.searcher.mark(c)]

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
                    t.finals[_id(candidate)] = r.seconds
                    continue
                t.searcher.mark(candidate)
                t.add(candidate, r.seconds)
                if r.strategy == self.strategy.name and r.seed == self.seed:
                    self.trials += 1
                    self.errors.update([r.error] if r.error else [])
            known = {_id(c) for c in t.candidates}
            t.pending = [c for c in t.pending if _id(c) not in known]
            if t.candidates:
                t.state.history.append(t.best_s)
                t.rounds = len(t.candidates)
        self._learn()

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
        sketches = t.searcher.sketches
        results = self.measurer.measure(sketches[0], [(sketches[s], row) for s, row in batch], t.best_s)
        self._record(t, batch, results)
        started = time.perf_counter()
        self._test(k, len(batch))
        self._learn()
        self.search_s += time.perf_counter() - started
        t.rounds += 1
        if count is None:
            t.state.history.append(t.best_s)
        else:
            t.state.history[-1] = t.best_s
        flags.debug(
            "search", lambda: f"{t.task!r}: round {t.rounds}, {len(batch)} trials, best {t.best_s:.3e} s"
        )
        self.tell("measured", k)

    def foresee(self, k: int) -> None:
        """Short rounds for the most promising relatives of task k, ranked by what was just learnt."""
        states = [t.state for t in self.tasks]
        for j in relatives_to_foresee(self.strategy, self.families, states, k, self._trust(k)):
            if self.has_budget():
                self.round(j, min(self.strategy.foresee, self.round_trials))

    def _trust(self, k: int) -> float:
        """How well candidates of task k's family were ordered before they were measured."""
        return self.model.accuracy(k) if isinstance(self.model, NestedModels) else 1.0

    def _propose(self, k: int, count: int) -> list[Candidate]:
        t = self.tasks[k]
        count = min(count, self.left())
        batch, t.pending = t.pending[:count], t.pending[count:]
        if len(batch) < count:
            best = t.best(self.strategy.evolution.population // 5)
            rng = _stream(self.seed, t.task.key, t.rounds)
            parents = best + self._transferred(k)
            batch += t.searcher.propose(count - len(batch), parents, TaskModel(self.model, k), rng)
        return batch

    def _transferred(self, k: int) -> list[Candidate]:
        """The best parameters of relatives, made to fit task k."""
        if not self.strategy.transfer:
            return []
        out = []
        for j, other in enumerate(self.tasks):
            if j != k and self.families[j] == self.families[k]:
                out += transfer(other.searcher, other.best(TRANSFERRED), self.tasks[k].searcher)
        return out

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

    def _record(self, t: _Task, batch: list[Candidate], results: list[MeasureResult]) -> None:
        self.records.append(self._as_record(t, c, r, "trial") for c, r in zip(batch, results, strict=True))
        for c, r in zip(batch, results, strict=True):
            t.add(c, r.seconds)
            self.errors.update([r.error] if r.error else [])
        t.new += len(batch)
        self.trials += len(batch)
        self.new_trials += len(batch)

    def _as_record(self, t: _Task, candidate: Candidate, r: MeasureResult, stage: str) -> MeasureRecord:
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
            features=t.features(candidate).tobytes(),
            feature_version=VERSION,
        )

    def finish(self) -> None:
        """Time the fastest candidates of each task that has new ones again, in turn.

        The fastest of many noisy trials is often a lucky one; these times decide what is compiled.
        """
        for t in self.tasks:
            candidates = t.finalists()
            if not t.new or len(candidates) < 2:
                continue
            sketches = t.searcher.sketches
            results = self.measurer.remeasure(sketches[0], [(sketches[k], row) for k, row in candidates])
            pairs = list(zip(candidates, results, strict=True))
            self.records.append(self._as_record(t, c, r, "final") for c, r in pairs)
            t.finals = {_id(c): r.seconds for c, r in pairs}

    def _learn(self) -> None:
        samples = [
            Samples(k, np.stack(t.matrix), t.labels())
            for k, t in enumerate(self.tasks)
            if math.isfinite(t.best_s)
        ]
        if samples or self.prior:
            self.model.fit([*self.prior, *samples])

    # -- telling -------------------------------------------------------------------------------

    def tell(self, kind: str, k: int | None) -> None:
        """Call the callback."""
        statuses = tuple(t.status() for t in self.tasks)
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
            tuple(t.status() for t in self.tasks),
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
