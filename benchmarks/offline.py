"""Cost models and strategies compared on recorded measurements alone; nothing is measured.

python -m benchmarks.offline --make-pool pool.db      # measure candidates of every task (long)
python -m benchmarks.offline --pool pool.db --json out.json

First: how well one model and models by family rank candidates that they have not seen: other candidates
of known subgraphs, unknown subgraphs, subgraphs of unknown models. Then: strategies and their parts, where
a proposed candidate is exchanged for the most similar one of the pool.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import seer
from benchmarks.pool import PoolMeasurer, PoolTask, in_pool, make_pool, read_pool
from benchmarks.report import Row, table, write_json
from seer.runtime.records import Records
from seer.search.cost_model import Samples, XGBoostModel, rank_accuracy
from seer.search.events import TuneEvent
from seer.search.families import families_of
from seer.search.task import SearchTask
from seer.search.tuner import tune_tasks

DEFAULTS = ("resnet18", "mobilenet_v2_0.5", "bert_small")
RULES = ("none", "op", "hash", "auto")
FOLDS = 4
RANKING = ("split", "families", "tasks", "own_family", "top1", "top5", "rank_accuracy")
ABLATION = ("model", "part", "strategy", "runs", "mean_score", "final_score", "trials_to_95", "never")
# What each part is: the strategy with it, to be compared with those round it.
PARTS = {
    "nothing": "random",
    "one model": "ansor",
    "one model, no crossover": "ansor,crossover=0",
    "families only": "familyseer,foresee=0",
    "foresee only": "ansor,families=op,foresee=16",
    "transfer only": "ansor,families=op,transfer=1",
    "foresee 8": "familyseer,foresee=8",
    "foresee 16": "familyseer,foresee=16",
    "foresee 32": "familyseer,foresee=32",
    "foresee 64": "familyseer,foresee=64",
    "everything": "seer",
    "everything but transfer": "seer,transfer=0",
    "everything but foresee": "seer,foresee=0",
    "everything but crossover": "seer,crossover=0",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__.split("\n")[0])
    p.add_argument("--pool", type=Path, metavar="FILE", help="the measured candidates")
    p.add_argument("--make-pool", type=Path, metavar="FILE", help="measure them (goes on where it stopped)")
    p.add_argument("--candidates", type=int, default=64, help="of each task, when they are measured")
    p.add_argument("--only", action="append", metavar="MODEL", help="a zoo model (may be repeated)")
    p.add_argument("--seeds", type=int, default=3, help="replayed runs of each strategy (default 3)")
    p.add_argument("--population", type=int, default=512, help="of a replayed search, at most")
    p.add_argument("--threads", type=int, default=2, help="threads of the target")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    args = p.parse_args(argv)
    target = seer.Target.parse(f"llvm -threads={args.threads}")
    models = args.only or list(DEFAULTS)
    try:
        if args.make_pool is not None:
            make_pool(args.make_pool, models, target, args.candidates)
        path = args.pool or args.make_pool
        if path is None or not path.exists():
            raise seer.errors.UserError("no pool: --pool FILE, or --make-pool FILE to measure one")
        pool = read_pool(path, models, target)
        if not pool:
            raise seer.errors.UserError(f"{path} holds no candidates of {', '.join(models)} on {target}")
    except seer.errors.SeerError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    rows = ranking(pool, models)
    table("ranking candidates that the model has not seen", rows, RANKING)
    with Records(path) as records:
        measurer = PoolMeasurer(records.all())
    for model in models:
        mine = [q for q in pool if model in q.models]
        if mine:
            found = [ablate(model, part, mine, measurer, args.seeds, args.population) for part in PARTS]
            table(f"{model}: strategies in the pool", found, ABLATION)
            rows += found
    write_json(args.json, rows)
    return 0


# -- ranking -----------------------------------------------------------------------------------------

# The candidates to train on and those to test on, for each task; None for none.
Parts = list[tuple[np.ndarray | None, np.ndarray | None]]


def ranking(pool: Sequence[PoolTask], models: Sequence[str]) -> list[Row]:
    """A row for each split and rule of families."""
    splits: dict[str, Callable[[], Iterator[Parts]]] = {
        "candidates": lambda: _by_candidate(pool),
        "subgraphs": lambda: _by_subgraph(pool),
        "models": lambda: _by_model(pool, models),
    }
    rows = []
    for split, parts in splits.items():
        for rule in RULES:
            found = [r for p in parts() for r in _evaluate(pool, p, rule)]
            if found:
                rows.append(
                    {
                        "kind": "ranking",
                        "split": split,
                        "families": rule,
                        "tasks": len(found),
                        **{k: statistics.fmean(r[k] for r in found) for k in found[0]},
                    }
                )
    return rows


def _by_candidate(pool: Sequence[PoolTask]) -> Iterator[Parts]:
    """Half of each task's candidates."""
    rng = np.random.default_rng(0)
    halves: Parts = []
    for q in pool:
        order = rng.permutation(len(q.seconds))
        halves.append((order[: len(order) // 2], order[len(order) // 2 :]))
    yield halves


def _by_subgraph(pool: Sequence[PoolTask]) -> Iterator[Parts]:
    """One task of so many at a time."""
    fold = np.random.default_rng(0).permutation(len(pool)) % FOLDS
    for k in range(FOLDS):
        yield [_whole(q, fold[i] != k) for i, q in enumerate(pool)]


def _by_model(pool: Sequence[PoolTask], models: Sequence[str]) -> Iterator[Parts]:
    """One model at a time, with the tasks that it shares with others."""
    if len(models) > 1:
        for m in models:
            yield [_whole(q, m not in q.models) for q in pool]


def _whole(q: PoolTask, trains: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    every = np.arange(len(q.seconds))
    return (every, None) if trains else (None, every)


def _evaluate(pool: Sequence[PoolTask], parts: Parts, rule: str) -> list[dict[str, float]]:
    """How each tested task's candidates are ranked by the model of its family, or of all without one."""
    names = families_of([q.task for q in pool], rule)
    samples = [
        Samples(i, q.matrix[train], q.labels[train])
        for i, (q, (train, _)) in enumerate(zip(pool, parts, strict=True))
        if train is not None
    ]
    models: dict[str, XGBoostModel] = {}
    for name in ("", *dict.fromkeys(names)):
        models[name] = XGBoostModel()
        models[name].fit([s for s in samples if name in ("", names[s.task])])
    out = []
    for i, (q, (_, test)) in enumerate(zip(pool, parts, strict=True)):
        if test is None or not np.isfinite(q.seconds[test]).any():
            continue
        own = models[names[i]].is_trained(i)
        if not (own or models[""].is_trained(i)):
            continue
        scores = (models[names[i]] if own else models[""]).predict(i, q.matrix[test])
        order = np.argsort(-scores, kind="stable")
        best = float(q.labels[test].max())
        out.append(
            {
                "own_family": float(own),
                "top1": float(q.labels[test][order[0]]) / best,
                "top5": float(q.labels[test][order[:5]].max()) / best,
                "rank_accuracy": rank_accuracy(scores, q.labels[test]) or 0.5,
            }
        )
    return out


# -- replayed strategies -----------------------------------------------------------------------------


def ablate(
    model: str, part: str, pool: Sequence[PoolTask], measurer: PoolMeasurer, seeds: int, population: int
) -> Row:
    """Replay one strategy on a model's tasks until half of the pool is known.

    The score is the latency of the pool's best candidates / the latency so far, 0 before every task has
    a time; mean_score is its mean over the trials.
    """
    weights = {q.task.key: q.task.weight for q in pool}
    optimum = sum(weights[q.task.key] * q.best_s for q in pool)
    budget = sum(len(q.seconds) for q in pool) // 2
    tasks: list[SearchTask] = [q.task for q in pool]
    means, finals, reached = [], [], []
    for seed in range(seeds):
        curve: list[tuple[int, float]] = [(0, 0.0)]

        def note(e: TuneEvent, curve: list[tuple[int, float]] = curve) -> None:
            if e.kind == "measured":
                curve.append((e.trials, optimum / e.latency_s if math.isfinite(e.latency_s) else 0.0))

        strategy = in_pool(PARTS[part], pool, round_trials=8, population=population)
        with Records() as records:
            tune_tasks(tasks, measurer, records, strategy, trials=budget, seed=seed, callback=note)
        ends = [n for n, _ in curve[1:]] + [budget]
        means.append(sum(s * (end - n) for (n, s), end in zip(curve, ends, strict=True)) / budget)
        finals.append(curve[-1][1])
        reached.append(next((n for n, s in curve if s >= 0.95), math.inf))
    hit = [n for n in reached if math.isfinite(n)]
    return {
        "kind": "ablation",
        "model": model,
        "part": part,
        "strategy": PARTS[part],
        "runs": seeds,
        "budget": budget,
        "mean_score": statistics.fmean(means),
        "final_score": statistics.fmean(finals),
        "trials_to_95": statistics.fmean(hit) if hit else None,
        "never": len(reached) - len(hit),
    }


if __name__ == "__main__":
    sys.exit(main())
