"""Whole models: tuned, untuned and the peers that are installed, interleaved.

python -m benchmarks.models --only resnet18 --trials 400 --threads 2 --json out.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import with_fast_numpy

if __name__ == "__main__":
    with_fast_numpy()

import numpy as np

import seer
from benchmarks.peers import close, limit_threads, optional
from benchmarks.report import Row, table, write_json
from benchmarks.torch_models import torch_runner
from seer.cli import random_inputs
from seer.graph import reference
from seer.runtime.timing import medians

DEFAULTS = ("mlp", "digits", "resnet18", "mobilenet_v2", "bert_base", "vit_base", "gpt2")
COLUMNS = ("case", "system", "threads", "median_ms", "vs_seer", "trials", "seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    torch = optional("torch") if args.peers else None
    rows: list[Row] = []
    try:
        for threads in args.threads or [2]:
            limit_threads(threads, torch)
            for name in args.only or DEFAULTS:
                rows += run_model(name, args.batch, threads, args, torch)
                table(name, [r for r in rows if (r["model"], r["threads"]) == (name, threads)], COLUMNS)
                write_json(args.json, rows)
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def run_model(name: str, batch: int, threads: int, args: argparse.Namespace, torch: Any) -> list[Row]:
    """Tune a model and time every system on it."""
    graph = seer.zoo.get(name, batch=batch)
    target = seer.Target.parse(f"llvm -threads={threads}")
    trials = args.trials
    start = time.perf_counter()
    tuned = seer.tune(
        graph, target, trials=trials, seed=args.seed, records=args.records, strategy=args.strategy
    )
    seconds = time.perf_counter() - start
    feed = random_inputs(graph)
    models = {"seer": seer.compile(graph, target, tuned.records), "seer-untuned": seer.compile(graph, target)}
    systems: dict[str, Callable[[], Any]] = {
        k: (lambda m=m: m(**feed))  # type: ignore[misc]
        for k, m in models.items()
    }
    systems["numpy"] = lambda: reference.run(graph, feed)[0]
    if torch is not None:
        systems["torch"] = torch_runner(torch, graph, feed)
    expected = reference.run(graph, feed)[0]
    for system, call in systems.items():
        if not close(np.asarray(call()), expected):
            raise SystemExit(f"{name}: {system} computes something else than NumPy")
    times = medians(systems, rounds=5)
    rows = []
    for system, s in times.items():
        row: Row = {
            "case": f"{name}_b{batch}",
            "model": name,
            "system": system,
            "threads": threads,
            "median_ms": 1e3 * s,
            "vs_seer": s / times["seer"],
        }
        if system == "seer":
            row |= {"trials": tuned.trials, "seconds": seconds, "errors": tuned.errors}
        rows.append(row)
    return rows


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="NAME", help="a zoo model (may be repeated)")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--trials", type=int, default=400, help="measurements for each model (default 400)")
    p.add_argument("--threads", type=int, action="append", help="threads (default 2)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--strategy", default="ansor")
    p.add_argument("--records", type=Path, help="keep the trials in this database")
    p.add_argument("--peers", action="store_true", help="also torch, where it is installed")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    return p


if __name__ == "__main__":
    sys.exit(main())
