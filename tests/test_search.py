"""Sampling, legality, features, evolution, schedulers, and tuning as a whole."""

from __future__ import annotations

import math
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from programs import PROGRAMS, conv, gelu, matmul, small_tasks

from seer.errors import UserError
from seer.ir.sketch import Sketch
from seer.runtime.choice import LUCK
from seer.runtime.measure import Candidate, MeasureResult, ReplayMeasurer
from seer.runtime.records import MeasureRecord, Records
from seer.runtime.target import Target
from seer.search.cost_model import RandomModel, Samples, XGBoostModel, rank_accuracy
from seer.search.defaults import default_row
from seer.search.events import TuneEvent, ignore
from seer.search.evolution import Searcher
from seer.search.features import features
from seer.search.foresee import distance, transfer
from seer.search.legal import legal, tile_vectors
from seer.search.rules import generate_sketches
from seer.search.scheduler import GradientScheduler, RoundRobinScheduler, TaskState
from seer.search.space import space_of
from seer.search.strategies import strategy_of
from seer.search.task import SearchTask
from seer.search.trials import candidate_id
from seer.search.tuner import TRANSFERRED, TaskModel, TuneSummary, _Run, tune_tasks

TARGET = Target.parse("llvm -cpu=skylake-avx512 -threads=2")


def every_sketch() -> list[Sketch]:
    return [s for dag in PROGRAMS.values() for s in generate_sketches(dag, TARGET)]


# -- the space -------------------------------------------------------------------------------------


def test_rows_are_canonical_and_in_range() -> None:
    rng = np.random.default_rng(0)
    for sketch in every_sketch():
        space = space_of(sketch, TARGET)
        rows = space.sample(64, rng)
        for child in (rows, space.mutate(rows, rng), space.cross(rows, rows[::-1], rng)):
            assert child.shape == (64, len(sketch.params))
            np.testing.assert_array_equal(sketch.canonical(child), child)
            for c, p in enumerate(sketch.params):
                if p.kind == "tile":
                    assert (child[:, c] >= 1).all()
                    assert (child[:, c] <= max(p.extent, 1)).all()


def test_mutation_changes_most_rows_and_little_of_each() -> None:
    sketch = generate_sketches(conv(14, 14, 32, 64, 3), TARGET)[1]
    space, rng = space_of(sketch, TARGET), np.random.default_rng(1)
    rows = space.sample(500, rng)
    changed = (space.mutate(rows, rng) != rows).sum(axis=1)
    assert (changed > 0).mean() > 0.7
    assert changed.mean() < 4


def test_a_child_has_each_axis_from_one_parent() -> None:
    sketch = generate_sketches(matmul(64, 64, 64), TARGET)[1]
    space, rng = space_of(sketch, TARGET), np.random.default_rng(2)
    a, b = space.sample(100, rng), space.sample(100, rng)
    child = space.cross(a, b, rng)
    for columns in sketch.tile_axes.values():
        picked = list(columns)
        from_a = (child[:, picked] == a[:, picked]).all(axis=1)
        from_b = (child[:, picked] == b[:, picked]).all(axis=1)
        assert (from_a | from_b).all()


def test_default_rows_are_legal() -> None:
    for sketch in every_sketch()[1:]:
        row = default_row(sketch, TARGET)
        assert legal(sketch, row[None], TARGET).all(), (sketch.key, sketch.values(row))


def test_accumulators_of_legal_rows_fit_the_registers() -> None:
    sketch = generate_sketches(matmul(64, 96, 64), TARGET)[1]
    rows = space_of(sketch, TARGET).sample(2000, np.random.default_rng(3))
    kept = rows[legal(sketch, rows, TARGET)]
    assert 0 < len(kept) < len(rows)
    assert tile_vectors(sketch.nests[0], sketch, kept, TARGET).max() <= 30


# -- features and model ----------------------------------------------------------------------------


def test_features_have_one_width_and_are_finite() -> None:
    rng = np.random.default_rng(4)
    widths = set()
    for sketch in every_sketch():
        matrix = features(sketch, space_of(sketch, TARGET).sample(16, rng), TARGET)
        assert matrix.dtype == np.float32
        assert np.isfinite(matrix).all(), sketch.key
        widths.add(matrix.shape)
    assert len(widths) == 1


def test_features_of_a_row_do_not_depend_on_its_neighbours() -> None:
    sketch = generate_sketches(conv(14, 14, 32, 64, 3), TARGET)[1]
    rows = space_of(sketch, TARGET).sample(50, np.random.default_rng(5))
    together = features(sketch, rows, TARGET)
    np.testing.assert_array_equal(features(sketch, rows[7:8], TARGET)[0], together[7])
    assert len(np.unique(together, axis=0)) > 45


def cost(sketch: Sketch, row: np.ndarray) -> float:
    """A made-up run time with an optimum to find: square-ish tiles of 96 elements."""
    v = sketch.values(row)
    seconds = 1e-3 * sketch.dag.flop_count / 1e6
    for name, value in v.items():
        seconds *= 1 + 0.1 * abs(math.log2(max(value, 1)) - len(name) % 4)
    return seconds * (3 if sketch.key == "naive" else 1)


def test_the_model_learns_to_rank() -> None:
    sketch = generate_sketches(matmul(64, 64, 64), TARGET)[1]
    rows = space_of(sketch, TARGET).sample(600, np.random.default_rng(6))
    rows[:, sketch.column("c.unroll")] = 16  # a limit, which changes the program only where it bites
    times = np.array([cost(sketch, r) for r in rows])
    matrix = features(sketch, rows, TARGET)
    model = XGBoostModel()
    assert not model.is_trained(0)
    model.fit([Samples(0, matrix[:400], times[:400].min() / times[:400])])
    accuracy = rank_accuracy(model.predict(0, matrix[400:]), times.min() / times[400:])
    assert accuracy is not None
    assert accuracy > 0.75


# -- evolution -------------------------------------------------------------------------------------


def test_candidates_are_never_proposed_twice() -> None:
    searcher = Searcher(SearchTask(gelu(16, 64), TARGET))
    rng, model = np.random.default_rng(0), TaskModel(RandomModel(), 0)
    seen = [(k, r.tobytes()) for k, r in searcher.first()]
    for _ in range(20):
        seen += [(k, r.tobytes()) for k, r in searcher.propose(8, [], model, rng)]
    assert len(set(seen)) == len(seen)
    assert searcher.propose(8, [], model, rng) == []  # the space is exhausted


class Favourite:
    """A trained model that likes large numbers."""

    is_trained = True

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(features.sum(axis=1), dtype=np.float64)


def liked(searcher: Searcher, batch: list[tuple[int, np.ndarray]]) -> float:
    """The favourite's mean score of a batch."""
    return float(
        np.mean([Favourite().predict(features(searcher.sketches[k], r[None], TARGET)) for k, r in batch])
    )


def test_what_was_measured_leaves_room_for_the_next_best() -> None:
    searcher = Searcher(SearchTask(matmul(64, 64, 64), TARGET))
    blind = liked(searcher, searcher.propose(100, [], TaskModel(RandomModel(), 0), np.random.default_rng(9)))
    for _ in range(8):  # the same population each time
        batch = searcher.propose(100, [], Favourite(), np.random.default_rng(0))
        assert len(batch) == 100
        assert liked(searcher, batch) > 1.02 * blind  # chosen, not drawn


def test_a_single_proposal_is_seldom_a_random_one() -> None:
    searcher = Searcher(SearchTask(matmul(64, 64, 64), TARGET))
    best = liked(searcher, searcher.propose(20, [], Favourite(), np.random.default_rng(99)))
    found = [searcher.propose(1, [], Favourite(), np.random.default_rng(seed)) for seed in range(20)]
    assert sum(liked(searcher, batch) > 0.97 * best for batch in found) >= 15


# -- schedulers ------------------------------------------------------------------------------------


def state(history: Sequence[float], weight: int = 1, n: int = 64) -> TaskState:
    return TaskState(SearchTask(matmul(n, n, n), TARGET, weight), list(history))


def test_round_robin() -> None:
    states = [state([1]), state([]), state([1, 1])]
    assert RoundRobinScheduler().pick(states) == 1
    states[1].is_exhausted = True
    assert RoundRobinScheduler().pick(states) == 0


def test_gradient_prefers_unseen_then_heavy_then_improving_tasks() -> None:
    pick = GradientScheduler().pick
    assert pick([state([1.0]), state([])]) == 1
    assert pick([state([1.0, 1.0]), state([1.0, 1.0], weight=5)]) == 1
    stuck, moving = [1.0] * 6, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert pick([state(stuck), state(moving)]) == 1
    gone = state([1.0], weight=99)
    gone.is_exhausted = True
    assert pick([gone]) is None
    unseen = [state([], n=8), state([], n=32), state([], weight=2, n=16)]
    assert pick(unseen) == 0
    assert GradientScheduler(heaviest_first=True).pick(unseen) == 1


def test_gradient_is_the_published_formula() -> None:
    states = [state([8.0, 6.0, 5.0, 4.0, 3.0], weight=2), state([1.0, 1.0], n=32)]
    # Five rounds, from 6 s to 3 s in the last three. The task itself is the fastest of its kind (the
    # other one takes 1 s for an eighth of the operations).
    backward, forward = (3.0 - 6.0) / 3, min(3.0 - 3.0 / 5, 2.0 * 3.0) - 3.0
    expected = -2 * (0.2 * backward + 0.8 * forward)
    assert GradientScheduler().gain(states, 0) == pytest.approx(expected)
    states[1].history[-1] = 1e-3  # now similar code runs 125 times faster: that promises more
    forward = 2.0 * states[0].task.dag.flop_count / (states[1].task.dag.flop_count / 1e-3) - 3.0
    expected = -2 * (0.2 * backward + 0.8 * forward)
    assert GradientScheduler().gain(states, 0) == pytest.approx(expected)


# -- tuning ----------------------------------------------------------------------------------------


class FakeMeasurer:
    """Times from a formula; it can stop the run like a user would."""

    def __init__(self, interrupt_after: int | None = None, fail: bool = False) -> None:
        self.calls = 0
        self.measured = 0
        self.interrupt_after, self.fail = interrupt_after, fail

    def measure(self, naive: Sketch, candidates: Sequence[Candidate], best_s: float) -> list[MeasureResult]:
        self.calls += 1
        if self.interrupt_after is not None and self.calls > self.interrupt_after:
            raise KeyboardInterrupt
        self.measured += len(candidates)
        if self.fail:
            return [MeasureResult(math.inf, "crash", "no luck") for _ in candidates]
        return [MeasureResult(cost(s, r), run_s=0.01) for s, r in candidates]

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        return [MeasureResult(1.01 * cost(s, r)) for s, r in candidates]

    def close(self) -> None:
        pass


def tasks() -> list[SearchTask]:
    return small_tasks(TARGET)


def tune(
    records: Records, measurer: object, trials: int | None, seed: int = 0, name: str = "ansor"
) -> TuneSummary:
    return tune_tasks(
        tasks(),
        measurer,
        records,
        strategy_of(name),
        trials=trials,
        seed=seed,  # type: ignore[arg-type]
    )


def trials_of(records: Records) -> list[MeasureRecord]:
    return [r for r in records.all() if r.stage == "trial"]


@pytest.mark.parametrize("name", ["ansor", "familyseer", "seer", "random"])
def test_tuning_spends_its_budget_and_improves(name: str) -> None:
    records = Records()
    summary = tune(records, FakeMeasurer(), 120, name=name)
    assert summary.trials == len(trials_of(records)) == 120
    assert summary.latency_s < 0.9 * summary.default_latency_s
    for t in tasks():
        trials = [r for r in records.for_workload(t.key, TARGET.key) if r.stage == "trial"]
        assert trials[0].sketch_key == t.sketches[1].key  # what an untuned model runs, measured first
        assert "naive" in {r.sketch_key for r in trials}  # always there
        keys = [(r.sketch_key, tuple(r.params.items())) for r in trials]
        assert len(set(keys)) == len(keys)


def test_a_sparing_run_sees_every_task_soon_and_hands_over_what_is_good() -> None:
    records = Records()
    tune(records, FakeMeasurer(), 6, name="seer")
    first = [r.workload_key for r in trials_of(records)]
    by_work = sorted(tasks(), key=lambda t: -t.weight * t.dag.flop_count)
    assert first == [t.key for t in by_work for _ in range(2)]


def test_relatives_hand_their_best_over() -> None:
    twins = [SearchTask(matmul(n, 64, 64), TARGET, 1, f"matmul{n}") for n in (64, 128, 96)]
    for name in ("seer", "seer,handover=0"):
        run = _Run(twins, FakeMeasurer(), Records(), strategy_of(name), 1000, None, 0, ignore)
        run.resume()
        assert len(set(run.families)) == 1
        for k in (0, 1, 2, 0, 1):
            run.round(k)
        # The nearest relative's best comes first.
        t, (near, far) = run.tasks[2], (run.tasks[1], run.tasks[0])
        assert distance(near.task.dag, t.task.dag) < distance(far.task.dag, t.task.dag)
        handed = run._transferred(2)
        first = transfer(near.searcher, near.best(TRANSFERRED), t.searcher)[0]
        assert candidate_id(handed[0]) == candidate_id(first)
        known = {candidate_id(c) for c in t.candidates}
        new = list(dict.fromkeys(candidate_id(c) for c in handed if candidate_id(c) not in known))
        batch = [candidate_id(c) for c in run._propose(2, 8)]
        assert len(batch) == 8
        if run.strategy.handover:
            assert batch[:3] == new[:3]
        else:
            assert batch[:3] != new[:3]


def test_ansor_as_published_has_no_defaults() -> None:
    records = Records()
    tune(records, FakeMeasurer(), 60, name="ansor,defaults=0")
    assert len(trials_of(records)) == 60
    assert "naive" not in {r.sketch_key for r in trials_of(records)}
    with pytest.raises(UserError, match="defaults=0"):
        strategy_of("ansor,defaults=maybe")


def test_the_model_beats_chance() -> None:
    ratios = [
        tune(Records(), FakeMeasurer(), 300, seed).latency_s
        / tune(Records(), FakeMeasurer(), 300, seed, "random").latency_s
        for seed in range(5)
    ]
    assert np.median(ratios) < 0.9, ratios


def without_clock(records: Records) -> list[tuple[object, ...]]:
    return [
        (r.stage, r.workload_key, r.sketch_key, sorted(r.params.items()), r.seconds, r.error, r.seed)
        for r in records.all()
    ]


def test_same_seed_and_replayed_times_give_the_same_records() -> None:
    first, second, other = Records(), Records(), Records()
    tune(first, FakeMeasurer(), 90)
    tune(second, ReplayMeasurer(first.all()), 90)
    tune(other, FakeMeasurer(), 90, seed=1)
    assert without_clock(first) == without_clock(second)
    assert without_clock(first) != without_clock(other)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with Records(path) as records:
        stopped = tune(records, FakeMeasurer(interrupt_after=4), 100)
        assert stopped.is_interrupted
        assert 0 < stopped.trials == len(trials_of(records)) < 100
    with Records(path) as records:
        measurer = FakeMeasurer()
        summary = tune(records, measurer, 100)
        assert summary.trials == len(trials_of(records)) == 100
        assert measurer.measured == summary.new_trials == 100 - stopped.trials
        keys = [(r.workload_key, r.sketch_key, tuple(r.params.items())) for r in trials_of(records)]
        assert len(set(keys)) == 100
        assert tune(records, FakeMeasurer(), 100).new_trials == 0


class Killed(FakeMeasurer):
    """Gives some results of each batch, then the user has enough."""

    def measure(  # type: ignore[override]
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        for k, r in enumerate(super().measure(naive, candidates, best_s)):
            if k == 5:
                raise KeyboardInterrupt
            yield r


def test_a_run_stopped_within_a_round_keeps_what_was_measured() -> None:
    records = Records()
    stopped = tune(records, Killed(), 100)
    assert stopped.is_interrupted
    assert stopped.trials == len(trials_of(records)) == 5
    measurer = FakeMeasurer()
    assert tune(records, measurer, 40).trials == len(trials_of(records)) == 40
    assert measurer.measured == 40 - stopped.trials


def test_a_budget_of_time_ends_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    clock = types.SimpleNamespace(perf_counter=lambda: now, time=time.time)
    monkeypatch.setattr("seer.search.tuner.time", clock)

    class Slow(FakeMeasurer):
        def measure(  # type: ignore[override]
            self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
        ) -> Iterator[MeasureResult]:
            nonlocal now
            for r in super().measure(naive, candidates, best_s):
                now += 0.05
                yield r

    records = Records()
    run = tune_tasks(tasks(), Slow(), records, strategy_of("random"), trials=None, seconds=0.3)
    assert run.trials == len(trials_of(records)) == 5  # a fifth is kept for timing the best again


def test_features_of_an_earlier_run_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records()
    tune(records, FakeMeasurer(), 30)
    stored = {r.features for r in trials_of(records)}
    assert len(stored) > 20
    monkeypatch.setattr("seer.search.trials.features", None)
    assert tune(records, FakeMeasurer(), 30).trials == 30


def test_better_trials_of_a_stopped_run_count() -> None:
    task, records = tasks()[:1], Records()
    first = tune_tasks(task, FakeMeasurer(), records, strategy_of("ansor"), trials=20)
    second = tune_tasks(task, FakeMeasurer(interrupt_after=8), records, strategy_of("ansor"), trials=900)
    assert second.is_interrupted
    best = records.best(task[0].key, TARGET.key)
    assert best is not None
    assert best.stage == "trial"
    assert LUCK * best.seconds < first.statuses[0].best_s
    assert second.statuses[0].best_s == best.seconds
    third = tune_tasks(task, FakeMeasurer(), records, strategy_of("ansor"), trials=second.trials)
    assert third.new_trials == 0
    best = records.best(task[0].key, TARGET.key)
    assert best is not None
    assert best.stage == "final"  # the finalists of the stopped run were timed after all


@pytest.mark.parametrize("trials", [0, 1, 2])
def test_tiny_budgets(trials: int) -> None:
    records = Records()
    assert tune(records, FakeMeasurer(), trials).trials == len(trials_of(records)) == trials


def test_failures_are_recorded_with_their_reason() -> None:
    records = Records()
    summary = tune(records, FakeMeasurer(fail=True), 40)
    assert summary.errors == {"crash": 40}
    assert {(r.error, r.message) for r in records.all()} == {("crash", "no luck")}
    assert summary.latency_s == math.inf


def test_an_exhausted_space_ends_the_run() -> None:
    tiny = [SearchTask(gelu(), TARGET), SearchTask(gelu(3, 5), TARGET)]
    summary = tune_tasks(tiny, FakeMeasurer(), Records(), strategy_of("ansor"), trials=10_000)
    assert 0 < summary.trials < 200
    assert tune_tasks([], FakeMeasurer(), Records(), strategy_of("ansor"), trials=10).trials == 0


def test_lucky_trials_do_not_win() -> None:
    class Lucky(FakeMeasurer):
        """Every trial looks fast but the default one; timed again, the default one is the fastest."""

        def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
            default = default_row(tasks()[0].sketches[1], TARGET)
            first = [s.key == tasks()[0].sketches[1].key and (r == default).all() for s, r in candidates]
            return [MeasureResult(1.0 if f else 2.0) for f in first]

    records = Records()
    summary = tune_tasks(tasks()[:1], Lucky(), records, strategy_of("ansor"), trials=40)
    best = records.best(tasks()[0].key, TARGET.key)
    assert best is not None
    assert (best.stage, best.seconds) == ("final", 1.0)
    assert summary.statuses[0].best_s == summary.statuses[0].default_s == 1.0


def test_events_tell_the_story() -> None:
    events: list[TuneEvent] = []
    tune_tasks(tasks(), FakeMeasurer(), Records(), strategy_of("ansor"), trials=60, callback=events.append)
    assert [events[0].kind, events[1].kind, events[-1].kind] == ["start", "round", "end"]
    assert [e.trials for e in events] == sorted(e.trials for e in events)
    assert events[-1].trials == events[-1].budget == 60
    assert events[-1].latency_s == sum(t.weight * t.best_s for t in events[-1].tasks)


def test_unknown_strategy() -> None:
    with pytest.raises(UserError, match="unknown strategy 'magic'; seer has ansor, familyseer, seer, random"):
        strategy_of("magic")
    with pytest.raises(UserError, match="'foresee=many' is no option; there are families=op"):
        strategy_of("seer,foresee=many")


@pytest.mark.parametrize("name", ["familyseer", "seer"])
def test_every_task_has_a_round_before_any_is_foreseen(name: str) -> None:
    sizes = [(m, n) for m in (16, 24, 32, 40) for n in (32, 48, 64)]
    many = [SearchTask(matmul(m, n, 32), TARGET, 1, f"matmul{m}x{n}") for m, n in sizes]
    records = Records()
    summary = tune_tasks(many, FakeMeasurer(), records, strategy_of(name), trials=2 * len(many), seed=0)
    assert all(s.trials > 0 for s in summary.statuses)
