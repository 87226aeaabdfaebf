"""Candidates scored each second: sampling, mutation, legality, features and prediction together.

python -m benchmarks.throughput --json out.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import seer
from benchmarks.cases import parse
from benchmarks.report import Row, table, write_json
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.search.cost_model import Samples, XGBoostModel
from seer.search.evolution import EvolutionOptions, Searcher
from seer.search.features import features
from seer.search.legal import legal
from seer.search.space import space_of
from seer.search.task import SearchTask, tasks_of
from seer.search.tuner import TaskModel

POPULATIONS = (1024, 2048, 8192, 32768)
DEFAULTS = ("conv2d_64x56x56_64_3x3", "matmul_1024x1024x1024", "softmax_12x128x128")
COLUMNS = (
    "case",
    "population",
    "candidates_per_s",
    "sample_us",
    "mutate_us",
    "legal_us",
    "features_us",
    "predict_us",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="NAME", help="a case (may be repeated)")
    p.add_argument("--threads", type=int, default=2, help="threads of the target")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    args = p.parse_args(argv)
    rows: list[Row] = []
    for name in args.only or DEFAULTS:
        target = seer.Target.parse(f"llvm -threads={args.threads}")
        task = tasks_of(partition(optimize(parse(name).graph)), target)[0]
        model = trained_model(task)
        rows += [run(name, task, model, population) for population in POPULATIONS]
    table("candidates per second", rows, COLUMNS)
    write_json(args.json, rows)
    return 0


def trained_model(task: SearchTask, samples: int = 1000) -> XGBoostModel:
    """A model of the size that a run of some hundred trials has; the labels do not matter here."""
    rng = np.random.default_rng(0)
    sketch = task.sketches[1]
    rows = space_of(sketch, task.target).sample(samples, rng)
    model = XGBoostModel()
    model.fit([Samples(0, features(sketch, rows, task.target), rng.random(samples))])
    return model


def run(name: str, task: SearchTask, model: XGBoostModel, population: int) -> Row:
    """One evolutionary search, and its parts alone (microseconds a candidate)."""
    searcher = Searcher(task, EvolutionOptions(population=population))
    rng = np.random.default_rng(1)
    scorer = TaskModel(model, 0)
    searcher.propose(16, [], scorer, rng)
    scored, start = searcher.n_scored, time.perf_counter()
    searcher.propose(64, [], scorer, rng)
    seconds = time.perf_counter() - start
    sketch = task.sketches[1]
    space = space_of(sketch, task.target)
    rows = space.sample(population, rng)
    matrix = features(sketch, rows, task.target)
    parts = {
        "sample_us": lambda: space.sample(population, rng),
        "mutate_us": lambda: space.mutate(rows, rng),
        "legal_us": lambda: legal(sketch, rows, task.target),
        "features_us": lambda: features(sketch, rows, task.target),
        "predict_us": lambda: model.predict(0, matrix),
    }
    out: Row = {
        "case": name,
        "population": population,
        "candidates_per_s": round((searcher.n_scored - scored) / seconds),
        "seconds": seconds,
    }
    for part, call in parts.items():
        call()
        start = time.perf_counter()
        call()
        out[part] = 1e6 * (time.perf_counter() - start) / population
    return out


if __name__ == "__main__":
    sys.exit(main())
