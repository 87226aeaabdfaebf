"""Single kernels: seer tuned and untuned against NumPy (and torch), interleaved.

python -m benchmarks.kernels                                  # the standard list, 1 and 2 threads
python -m benchmarks.kernels --only matmul_1024x1024x1024 --trials 128 --threads 1 --json out.json
"""

from __future__ import annotations

import argparse
import statistics
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
from benchmarks.cases import DEFAULTS, Case, parse
from benchmarks.peers import close, limit_threads, optional
from benchmarks.report import Row, table, write_json
from seer.runtime.timing import medians

COLUMNS = ("case", "system", "threads", "median_ms", "gflops", "vs_numpy", "trials", "seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        cases = [parse(name, args.seed) for name in args.only or DEFAULTS]
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    torch = optional("torch") if args.peers else None
    rows: list[Row] = []
    for threads in args.threads or [1, 2]:
        limit_threads(threads, torch)
        for case in cases:
            rows += run_case(case, threads, args.trials, args.seed, args.records, args.strategy, torch)
            table(case.name, [r for r in rows if (r["case"], r["threads"]) == (case.name, threads)], COLUMNS)
            write_json(args.json, rows)
    for threads in args.threads or [1, 2]:
        ratios = [r["vs_numpy"] for r in rows if r["system"] == "seer" and r["threads"] == threads]
        print(
            f"{threads} threads: seer / NumPy speed, geometric mean {statistics.geometric_mean(ratios):.2f}"
        )
    return 0


def run_case(
    case: Case, threads: int, trials: int, seed: int, records: Path | None, strategy: str, torch: Any = None
) -> list[Row]:
    """Tune a case and time every system on it."""
    target = seer.Target.parse(f"llvm -threads={threads}")
    start = time.perf_counter()
    tuned = seer.tune(
        case.graph, target, trials=trials, seed=seed, records=records, strategy=strategy, progress=False
    )
    seconds = time.perf_counter() - start
    models = {
        "seer": seer.compile(case.graph, target, tuned.records),
        "seer-untuned": seer.compile(case.graph, target),
    }
    systems: dict[str, Callable[[], Any]] = {
        name: (lambda m=m: m(**case.feed))  # type: ignore[misc]
        for name, m in models.items()
    }
    systems["numpy"] = case.numpy
    if torch is not None and case.torch is not None:
        systems["torch"] = case.torch(torch)
    expected = case.numpy()
    for name, call in systems.items():
        if not close(np.asarray(call()), expected):
            raise SystemExit(f"{case.name}: {name} computes something else than NumPy")
    times = medians(systems)
    rows = []
    for name, s in times.items():
        row: Row = {
            "case": case.name,
            "system": name,
            "threads": threads,
            "median_ms": 1e3 * s,
            "gflops": case.flop / s / 1e9 if case.flop else None,
            "vs_numpy": times["numpy"] / s,
        }
        if name == "seer":
            row |= {"trials": tuned.trials, "seconds": seconds, "errors": tuned.errors}
        rows.append(row)
    return rows


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="NAME", help="a case (any shape; may be repeated)")
    p.add_argument("--trials", type=int, default=128, help="measurements for each case (default 128)")
    p.add_argument("--threads", type=int, action="append", help="threads (default: 1, then 2)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--strategy", default="ansor")
    p.add_argument("--records", type=Path, help="keep the trials in this database")
    p.add_argument("--peers", action="store_true", help="also torch, where it is installed")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    return p


if __name__ == "__main__":
    sys.exit(main())
