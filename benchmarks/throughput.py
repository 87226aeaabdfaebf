"""Candidates scored each second: sampling, mutation, legality, features and prediction together.

python -m benchmarks.throughput --json out.json

Rows say along which axis they grow: "population" (those of the strategies among them), "statements" (of
the kernel) or "families" (each with a task and a model of its own, searched in turn).
"""

from __future__ import annotations

import argparse
import statistics
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
from seer.search.cost_model import Samples
from seer.search.evolution import EvolutionOptions, Searcher
from seer.search.families import families_of
from seer.search.family_model import FamilyModels
from seer.search.features import features
from seer.search.legal import legal
from seer.search.space import space_of
from seer.search.strategies import strategy_of
from seer.search.task import SearchTask, tasks_of
from seer.search.tuner import TaskModel

POPULATIONS = (1024, 2048, 4096, 8192, 32768)
STRATEGY = "seer"
# Kernels of more and more statements, and of more and more families.
STATEMENTS = ("matmul_1024x1024x1024", "conv2d_64x56x56_64_3x3", "softmax_12x128x128", "layernorm_128x768")
FAMILIES = (
    "conv2d_64x56x56_64_3x3",
    "matmul_1024x1024x1024",
    "softmax_12x128x128",
    "depthwise_144x56x56_3x3",
    "layernorm_128x768",
)
DEFAULTS = ("conv2d_64x56x56_64_3x3", "matmul_1024x1024x1024", "softmax_12x128x128")
COLUMNS = ("case", "axis", "population", "statements", "families", "candidates_per_s")
PARTS = ("case", "population", "sample_us", "mutate_us", "legal_us", "features_us", "predict_us")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="NAME", help="a case (may be repeated)")
    p.add_argument("--threads", type=int, default=2, help="threads of the target")
    p.add_argument("--repeat", type=int, default=7, help="searches whose median counts (default 7)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    args = p.parse_args(argv)
    target = seer.Target.parse(f"llvm -threads={args.threads}")
    rows: list[Row] = []
    for name in args.only or DEFAULTS:
        task = task_of(name, target)
        rows += [run("population", name, [task], n, args.repeat) for n in POPULATIONS]
    usual = strategy_of(STRATEGY).evolution.population
    if not args.only:
        rows += [run("statements", n, [task_of(n, target)], usual, args.repeat) for n in STATEMENTS]
        tasks = [task_of(n, target) for n in FAMILIES]
        rows += [
            run("families", "+".join(FAMILIES[:n]), tasks[:n], usual, args.repeat)
            for n in range(1, len(tasks) + 1)
        ]
    table("candidates per second", [{**r, "case": r["case"][:40]} for r in rows], COLUMNS)
    table("microseconds a candidate", [r for r in rows if r["axis"] == "population"], PARTS)
    write_json(args.json, rows)
    return 0


def task_of(name: str, target: seer.Target) -> SearchTask:
    """The first kernel of a case."""
    return tasks_of(partition(optimize(parse(name).graph)), target)[0]


def trained_models(tasks: Sequence[SearchTask], samples: int = 1000) -> FamilyModels:
    """A model a family, each of the size that a run of some hundred trials has; labels do not matter here."""
    rng = np.random.default_rng(0)
    model = FamilyModels(families_of(tasks, "op"), 1)
    found = []
    for k, task in enumerate(tasks):
        rows = space_of(task.sketches[1], task.target).sample(samples, rng)
        found.append(Samples(k, features(task.sketches[1], rows, task.target), rng.random(samples)))
    model.fit(found)
    return model


def run(axis: str, name: str, tasks: Sequence[SearchTask], population: int, repeat: int) -> Row:
    """Evolutionary searches of some tasks in turn (median of several), and the parts of the first alone."""
    model = trained_models(tasks)
    searchers = [Searcher(t, EvolutionOptions(population=population)) for t in tasks]
    rng = np.random.default_rng(1)
    for k, s in enumerate(searchers):
        s.propose(16, [], TaskModel(model, k), rng)
    seconds = []
    for _ in range(repeat):
        scored, start = sum(s.n_scored for s in searchers), time.perf_counter()
        for k, s in enumerate(searchers):
            s.propose(64, [], TaskModel(model, k), rng)
        scored = sum(s.n_scored for s in searchers) - scored
        seconds.append((time.perf_counter() - start) / scored)
    sketch, target = tasks[0].sketches[1], tasks[0].target
    space = space_of(sketch, target)
    rows = space.sample(population, rng)
    matrix = features(sketch, rows, target)
    parts = {
        "sample_us": lambda: space.sample(population, rng),
        "mutate_us": lambda: space.mutate(rows, rng),
        "legal_us": lambda: legal(sketch, rows, target),
        "features_us": lambda: features(sketch, rows, target),
        "predict_us": lambda: model.predict(0, matrix),
    }
    out: Row = {
        "axis": axis,
        "case": name,
        "population": population,
        "statements": sum(len(t.dag.ops) for t in tasks),
        "families": len(tasks),
        "candidates_per_s": round(1 / statistics.median(seconds)),
        "seconds": statistics.median(seconds) * population,
    }
    for part, call in parts.items():
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        out[part] = 1e6 * statistics.median(times) / population
    return out


if __name__ == "__main__":
    sys.exit(main())
