"""What is compiled after tuning on a machine that is disturbed: never what is known to be slower."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from programs import small_tasks

from seer.driver import best_candidate
from seer.ir.sketch import Sketch
from seer.runtime.choice import LUCK, Timed, choose
from seer.runtime.measure import Candidate, MeasureResult
from seer.runtime.records import Records
from seer.runtime.target import Target
from seer.search.defaults import default_candidate
from seer.search.strategies import strategy_of
from seer.search.task import SearchTask
from seer.search.tuner import TuneSummary, tune_tasks

TARGET = Target.parse("llvm -cpu=skylake-avx512 -threads=2")
INF = math.inf

# -- the rule ----------------------------------------------------------------------------------------


def timed(text: str) -> list[Timed]:
    """Timings such as "d=3 a=2 | d=3.1 a=2.5 | b=1": between bars are trials, contests, trials, ..."""
    out = []
    for k, part in enumerate(text.split("|")):
        for word in part.split():
            name, seconds = word.split("=")
            out.append(Timed(name, float(seconds), k % 2 == 1))
    return out


@pytest.mark.parametrize(
    ("text", "name", "default_s"),
    [
        ("", None, INF),
        ("a=1", None, INF),  # what was never compared with the default one
        ("d=3", "d", 3),
        ("d=inf", None, INF),
        ("d=3 a=2", "a", 3),
        ("d=3 a=2.9", "d", 3),  # may be luck
        ("d=inf a=2", "a", INF),  # the default one does not work
        ("d=3 a=1 | d=1 a=2 |", "d", 1),  # it was timed in a bad moment
        ("d=3 a=1 | d=3 a=2.9 |", "a", 3),
        ("d=3 a=1 | a=inf d=3 |", "d", 3),
        ("a=1 | a=2 d=3 | b=1.7", "a", 3),
        ("a=1 | a=2 d=3 | b=1.5", "b", 3),
        ("a=1 | a=2 d=3 | b=1.5 | a=1 b=1.1 d=1.2 |", "a", 1.2),
        ("a=1 | a=1 d=2 | b=1 | b=7 d=9 |", "a", 2),  # half is better than seven ninths
        ("a=1 | a=1 d=2 | b=1 | b=7 a=8 d=9 |", "b", 9),  # the latest counts
        ("a=1 | a=1 d=2 | b=1 | b=7 a=9 d=8 |", "b", 8),
        ("a=1 | a=inf d=inf | b=1", None, INF),
        ("d=2 a=1 | a=inf d=inf | b=1", "a", 2),  # that contest says nothing
        ("a=1 | a=1 b=2 |", "a", INF),  # of an older seer, without the default one
        ("d=3 a=1 | a=1 b=2 |", "a", 3),
        ("d=0.5 a=1 | a=1 b=2 |", "d", 0.5),
    ],
)
def test_what_is_chosen(text: str, name: str | None, default_s: float) -> None:
    timings = timed(text)
    choice = choose(timings, "d")
    assert (None if choice.number is None else timings[choice.number].name) == name
    assert choice.default_s == default_s
    assert choice.seconds == (INF if choice.number is None else timings[choice.number].seconds)


def test_without_a_default_one_the_fastest_wins() -> None:
    for text, name in (
        ("a=2 b=1", "b"),
        ("a=2 b=1 | a=1 b=2 |", "a"),
        ("| a=1 | b=0.9", "a"),
        ("| a=1 | b=0.7", "b"),
    ):
        timings = timed(text)
        number = choose(timings).number
        assert number is not None
        assert timings[number].name == name


@pytest.mark.parametrize("seed", range(20))
def test_never_slower_than_the_default_one_beside_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["d", "a", "b", "c"]
    for _ in range(200):
        timings = [
            Timed(
                names[rng.integers(4)],
                rng.choice([rng.random() + 0.1, INF], p=[0.9, 0.1]),
                bool(rng.integers(2)),
            )
            for _ in range(rng.integers(12))
        ]
        choice = choose(timings, "d")
        assert choice.number is None or choice.seconds <= choice.default_s
        assert choice.number is None or math.isfinite(choice.seconds)
        if (
            choice.number is not None
            and not timings[choice.number].is_final
            and timings[choice.number].name != "d"
        ):
            beaten = [t.seconds for t in timings if t.name == "d" and t.is_final]
            assert not beaten or LUCK * choice.seconds < max(beaten)


# -- on a disturbed machine --------------------------------------------------------------------------


def cost(sketch: Sketch, row: np.ndarray) -> float:
    """A made-up time on a quiet machine, in which the default schedules are good ones."""
    seconds = 1e-3 * (10 if sketch.key == "naive" else 1)
    for value, column in zip(row, range(len(row)), strict=True):
        seconds *= 1 + 0.05 * abs(math.log2(max(int(value), 1)) - column % 4)
    default, best = default_candidate(sketch.dag, TARGET)
    return 0.5 * seconds if (default.key, best.tolist()) == (sketch.key, row.tolist()) else seconds


class Disturbed:
    """A machine on which everything takes up to 300 times as long for a while, and what takes turns alike."""

    def __init__(self, seed: int, stop_after: int | None = None) -> None:
        self.rng, self.load, self.left = np.random.default_rng(seed), 1.0, stop_after
        self.contests: list[tuple[Sketch, list[Candidate]]] = []

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        for sketch, row in candidates:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            if self.rng.random() < 0.5:
                self.load = 300 ** self.rng.random()
            if self.rng.random() < 0.1:
                yield MeasureResult(INF, "timeout", "too busy")
            else:
                yield MeasureResult(self.load * cost(sketch, row))

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        self.load = 300 ** self.rng.random()
        self.contests.append((naive, list(candidates)))
        return [MeasureResult(self.load * cost(s, r)) for s, r in candidates]

    def close(self) -> None:
        pass


def tasks() -> list[SearchTask]:
    return small_tasks(TARGET)


def tune(
    records: Records, machine: Disturbed, trials: int | None, seconds: float | None = None
) -> TuneSummary:
    return tune_tasks(tasks(), machine, records, strategy_of("random"), trials=trials, seconds=seconds)


def ratios(records: Records) -> list[float]:
    """What is compiled over what an untuned model runs, by the times on a quiet machine."""
    return [
        cost(*best_candidate(t.dag, TARGET, records)) / cost(*default_candidate(t.dag, TARGET))
        for t in tasks()
    ]


def check_report(records: Records, summary: TuneSummary) -> None:
    """What a run reports is what its records choose, and never slower than the default schedules."""
    for t, status in zip(tasks(), summary.statuses, strict=True):
        sketch, row = default_candidate(t.dag, TARGET)
        best = records.best(t.key, TARGET.key, (sketch.key, sketch.values(row)))
        assert status.best_s == (INF if best is None else best.seconds)
        assert best is None or status.best_s <= status.default_s
    if math.isfinite(summary.latency_s):
        assert summary.latency_s <= summary.default_latency_s


@pytest.mark.parametrize("trials", [0, 1, 2, 5, 25, 60])
@pytest.mark.parametrize("seed", range(3))
def test_tuned_is_no_slower_than_untuned(seed: int, trials: int) -> None:
    records = Records()
    machine = Disturbed(seed)
    summary = tune(records, machine, trials)
    assert max(ratios(records)) <= 1
    check_report(records, summary)
    again = tune(records, machine, trials)  # nothing is left to do, and the report is the same
    assert (again.latency_s, again.default_latency_s) == (summary.latency_s, summary.default_latency_s)
    tune(records, machine, trials + 9)
    assert max(ratios(records)) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_a_stopped_run_reports_what_its_records_choose(seed: int) -> None:
    records = Records()
    for stop in (1, 9, 30):
        summary = tune(records, Disturbed(seed, stop), 200)
        assert summary.is_interrupted
        check_report(records, summary)
    check_report(records, tune(records, Disturbed(seed), summary.trials))  # compares the finalists after all
    assert max(ratios(records)) <= 1


def test_what_was_found_is_compared_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("seer.search.tuner.time", types.SimpleNamespace(perf_counter=lambda: now))

    class Slow(Disturbed):
        def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
            nonlocal now
            now += 10.0
            return super().remeasure(naive, candidates)

        def measure(
            self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
        ) -> Iterator[MeasureResult]:
            nonlocal now
            for r in super().measure(naive, candidates, best_s):
                now += 0.2
                yield r

    for seed in range(3):
        now, records, machine = 0.0, Records(), Slow(seed)
        check_report(records, tune(records, machine, None, seconds=12.0))
        assert max(ratios(records)) <= 1
        for naive, candidates in machine.contests:
            sketch, row = default_candidate(naive.dag, TARGET)
            assert any(s.key == sketch.key and (r == row).all() for s, r in candidates)
        assert all(len(c) == 2 for _, c in machine.contests[1:])  # no time but for what they must beat
