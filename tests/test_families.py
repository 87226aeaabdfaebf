"""Families, their models, foresee tuning and transfer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from programs import conv, depthwise, gelu, matmul, softmax
from test_search import FakeMeasurer

from seer.errors import RecordError, UserError
from seer.runtime.records import Records
from seer.runtime.target import Target
from seer.search.cost_model import Samples, rank_accuracy
from seer.search.evolution import Searcher
from seer.search.families import RULES, families_of
from seer.search.family_model import FamilyModels, NestedModels
from seer.search.features import NAMES, VERSION, features
from seer.search.foresee import relatives_to_foresee, transfer
from seer.search.scheduler import TaskState
from seer.search.space import space_of
from seer.search.strategies import strategy_of
from seer.search.task import SearchTask
from seer.search.tuner import tune_tasks
from seer.search.warm import ENOUGH, FOREIGN_WEIGHT, SAMPLES_EACH, SHIPPED, WarmStart, faded, shipped

TARGET = Target.parse("llvm -cpu=skylake-avx512 -threads=2")


def tasks() -> list[SearchTask]:
    dags = [
        conv(14, 14, 32, 64, 3),
        conv(28, 28, 32, 64, 3),
        conv(14, 14, 32, 64, 1),
        depthwise(14, 14, 32),
        matmul(64, 64, 64),
        matmul(64, 64, 64, relu=False),
        softmax(16, 64),
        gelu(3, 37),
    ]
    return [SearchTask(d, TARGET) for d in dags]


def groups(rule: str) -> list[set[int]]:
    names = families_of(tasks(), rule)
    return [{k for k, n in enumerate(names) if n == f} for f in dict.fromkeys(names)]


def test_the_papers_families() -> None:
    assert groups("op") == [{0, 1, 2}, {3}, {4, 5}, {6}, {7}]
    assert groups("hash") == [{0, 1}, {2}, {3}, {4}, {5}, {6}, {7}]
    assert groups("ind") == [{k} for k in range(8)]
    assert groups("none") == [set(range(8))]


def test_similar_tasks_are_one_family_and_others_are_not() -> None:
    found = groups("auto")
    assert {0, 1} in found  # the same convolution on another image
    assert {2} in found  # 1x1: a matmul in disguise
    assert {4, 5} in found
    with pytest.raises(UserError, match="unknown families 'fun'; seer has op"):
        families_of(tasks(), "fun")
    assert set(RULES) == {"op", "hash", "ind", "auto", "none"}


def test_rank_accuracy() -> None:
    labels = np.array([0.1, 0.5, 1.0])
    assert rank_accuracy(labels, labels) == 1.0
    assert rank_accuracy(-labels, labels) == 0.0
    assert rank_accuracy(np.zeros(3), labels) == 0.5
    assert rank_accuracy(labels, np.ones(3)) is None


def samples(k: int, count: int, sign: float, seed: int = 0) -> Samples:
    """Labels that rise with the unrolling and vector tile (or fall, with sign -1)."""
    task = tasks()[k]
    sketch = task.sketches[1]
    rows = space_of(sketch, TARGET).sample(count, np.random.default_rng(seed))
    matrix = features(sketch, rows, TARGET)
    value = sign * (matrix[:, NAMES.index("vectors")] + matrix[:, NAMES.index("log unrolled")])
    labels = (value - value.min()) / (np.ptp(value) + 1e-9)
    return Samples(k, matrix, labels * 0.9 + 0.1)


def accuracy(model: FamilyModels | NestedModels, s: Samples) -> float:
    found = rank_accuracy(model.predict(s.task, s.features), s.labels)
    assert found is not None
    return found


def test_a_family_learns_from_its_members_alone() -> None:
    names = families_of(tasks(), "op")
    model = FamilyModels(names, round_trials=8)
    model.fit([samples(0, 200, 1.0), samples(4, 200, -1.0)])
    assert [model.is_trained(k) for k in range(8)] == [True, True, True, False, True, True, False, False]
    assert accuracy(model, samples(1, 200, 1.0, seed=9)) > 0.7  # a relative that was never measured
    assert accuracy(model, samples(5, 200, -1.0, seed=9)) > 0.7


def test_a_family_warms_up() -> None:
    model = FamilyModels(families_of(tasks(), "op"), round_trials=64)
    model.fit([samples(0, 100, 1.0)])
    assert not model.is_trained(0)  # three convolutions: 3 x 64 measurements are needed
    model.fit([samples(0, 100, 1.0), samples(1, 100, 1.0)])
    assert model.is_trained(2)


def test_nested_models_choose_the_level_that_predicts() -> None:
    ts = tasks()
    levels = [families_of(ts, r) for r in ("auto", "none")]
    model = NestedModels(levels)
    assert not model.is_trained(0)
    parts = [samples(0, 300, 1.0), samples(4, 300, -1.0)]
    for end in range(20, 301, 20):  # rounds: contradicting families confuse the wide model
        model.fit([Samples(s.task, s.features[:end], s.labels[:end]) for s in parts])
    assert model.accuracy(0) > 0.7
    assert accuracy(model, samples(0, 200, 1.0, seed=5)) > 0.75
    assert accuracy(model, samples(4, 200, -1.0, seed=5)) > 0.75
    assert model.level_of(7) == 1  # never measured: the widest is all there is


def test_foresee_takes_the_steepest_relative() -> None:
    ts = tasks()
    names = families_of(ts, "op")
    states = [TaskState(t, [1.0, 0.9]) for t in ts]
    states[2] = TaskState(ts[2], [9.0, 5.0])
    paper = strategy_of("familyseer")
    assert relatives_to_foresee(paper, names, states, 0, 1.0) == [2]
    assert relatives_to_foresee(paper, names, states, 3, 1.0) == []  # no relatives
    assert relatives_to_foresee(strategy_of("familyseer,foresee=0"), names, states, 0, 1.0) == []
    states[2].is_exhausted = True
    assert relatives_to_foresee(paper, names, states, 0, 1.0) == [1]


def test_an_adaptive_foresee_trusts_the_model_as_far_as_it_was_right() -> None:
    ts = tasks()
    states = [TaskState(t, [1.0]) for t in ts]
    names = ["one"] * len(ts)
    counts = [
        len(relatives_to_foresee(strategy_of("seer"), names, states, 0, trust))
        for trust in (0.4, 0.5, 0.75, 1)
    ]
    assert counts == [0, 0, 2, 3]


def test_parameters_transfer_by_name() -> None:
    a, b = (Searcher(SearchTask(conv(n, n, 32, 64, 3), TARGET)) for n in (28, 7))
    rows = space_of(a.sketches[1], TARGET).sample(50, np.random.default_rng(0))
    rows = rows[[a.is_legal(1, r) for r in rows]]
    moved = transfer(a, [(1, r) for r in rows], b)
    assert 0 < len(moved) <= len(rows)
    for k, row in moved:
        assert b.sketches[k].key == a.sketches[1].key
        np.testing.assert_array_equal(b.sketches[k].canonical(row[None])[0], row)
    assert transfer(a, [(1, rows[0])], Searcher(SearchTask(gelu(3, 37), TARGET))) == []


def test_options_change_one_part() -> None:
    base = strategy_of("seer")
    assert (strategy_of("seer,foresee=32").foresee, base.foresee) == (32, 8)
    assert not strategy_of("seer,transfer=0").transfer
    assert strategy_of("familyseer,families=ind").families == "ind"
    assert strategy_of("ansor,crossover=0").evolution.crossover == 0
    assert strategy_of("seer,foresee=0").name == "seer,foresee=0"


def test_a_store_of_another_model_gives_a_warm_start() -> None:
    store = Records()
    other = [SearchTask(conv(n, n, 32, 64, 3), TARGET, exact=True) for n in (28, 21)]
    tune_tasks(other, FakeMeasurer(), store, strategy_of("seer"), trials=120)
    mine = SearchTask(conv(35, 35, 32, 64, 3), TARGET, exact=True)
    warm = WarmStart.of(store).without({mine.key})
    family = families_of([mine], "auto")[0]
    prior = warm.samples([family], TARGET.key)
    assert all(s.is_prior and s.weight == 1.0 and s.labels.max() == 1.0 for s in prior)
    assert sum(len(s.labels) for s in prior) == 120
    seeds = warm.seeds(family, Searcher(mine))
    assert 0 < len(seeds) <= 8
    results = {}
    for name, given in (("cold", None), ("warm", warm)):
        records = Records()
        tune_tasks([mine], FakeMeasurer(), records, strategy_of("seer"), trials=12, store=given)
        results[name] = min(r.seconds for r in records.all() if r.sketch_key != "naive")
    assert results["warm"] < 0.95 * results["cold"], results


def test_what_another_cpu_measured_counts_less_and_then_nothing() -> None:
    store = Records()
    task = tasks()[0]
    tune_tasks([task], FakeMeasurer(), store, strategy_of("seer"), trials=20)
    warm = WarmStart.of(store)
    assert warm.without({task.key}).workloads == ()
    (s,) = warm.samples(families_of([task], "auto"), "another CPU")
    weights = [[p.weight for p in faded([s], {0: n})] for n in (0, ENOUGH // 2, ENOUGH)]
    assert weights == [[FOREIGN_WEIGHT], [FOREIGN_WEIGHT / 2], []]
    (same,) = warm.samples(families_of([task], "auto"), TARGET.key)
    assert faded([same], {0: ENOUGH})[0].weight == 1.0


def test_a_store_as_a_file(tmp_path: Path) -> None:
    store = Records()
    tune_tasks([tasks()[0]], FakeMeasurer(), store, strategy_of("seer"), trials=60)
    warm = WarmStart.of(store)
    warm.save(tmp_path / "s.npz")
    (mine,), (found,) = warm.workloads, WarmStart.load(tmp_path / "s.npz").workloads
    assert (found.family, found.key, found.target_key) == (mine.family, mine.key, mine.target_key)
    assert found.best == mine.best
    assert 16 <= len(found.labels) <= SAMPLES_EACH
    assert found.labels[0] == 1.0
    np.testing.assert_allclose(found.features[0], mine.features[0], rtol=1e-3)
    with pytest.raises(RecordError, match="not a usable file"):
        WarmStart.load(tmp_path / "none.npz")


def test_the_shipped_store_fits_this_version() -> None:
    path = SHIPPED / "llvm.npz"
    assert path.stat().st_size < 2_000_000
    with np.load(path) as data:
        assert int(data["version"]) == VERSION, "make it anew: scripts/make_store.py"
    assert len(shipped("llvm").workloads) > 10
