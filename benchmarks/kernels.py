"""Single kernels: seer tuned and untuned against NumPy, and with --peers other systems, interleaved.

python -m benchmarks.kernels                                  # the standard list, 1 and 2 threads
python -m benchmarks.kernels --only matmul_1024x1024x1024 --trials 128 --threads 1 --json out.json
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import with_fast_numpy

if __name__ == "__main__":
    with_fast_numpy()


import seer
from benchmarks.cases import DEFAULTS, Case, parse
from benchmarks.compare import checked, rows_of, summary
from benchmarks.engines import Run
from benchmarks.peers import PEERS, Modules
from benchmarks.report import Row, table, write_json
from benchmarks.work import bytes_of
from seer.runtime.timing import medians
from seer.search.strategies import DEFAULT

COLUMNS = (
    "case",
    "system",
    "threads",
    "median_ms",
    "gflops",
    "roofline",
    "vs_numpy",
    "vs_best_peer",
    "trials",
    "seconds",
)
LOW = 0.9  # cases slower than the best peer by more are listed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        cases = [parse(name, args.seed) for name in args.only or DEFAULTS]
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    peers = Modules(PEERS if args.peers else ())
    rows: list[Row] = []
    for threads in args.threads or [1, 2]:
        peers.limit_threads(threads)
        for case in cases:
            new = run_case(case, threads, args, peers)
            rows += new
            table(case.name, new, COLUMNS)
            write_json(args.json, rows)
    print(summary(rows, "vs_numpy", "NumPy's time / seer's", LOW))
    print(summary(rows, "vs_best_peer", "best peer's time / seer's", LOW))
    return 0


def run_case(case: Case, threads: int, args: argparse.Namespace, peers: Modules) -> list[Row]:
    """Tune a case and time every system on it."""
    target = seer.Target.parse(f"llvm -threads={threads}")
    start = time.perf_counter()
    tuned = seer.tune(
        case.graph,
        target,
        trials=args.trials,
        seed=args.seed,
        records=args.records,
        strategy=args.strategy,
        progress=False,
    )
    seconds = time.perf_counter() - start
    models = {
        "seer": seer.compile(case.graph, target, tuned.records),
        "seer-untuned": seer.compile(case.graph, target),
    }
    runs = {k: Run(functools.partial(_call, m, case.feed), lambda out: [out]) for k, m in models.items()}
    runs["numpy"] = Run(case.numpy, lambda out: [out])
    runs |= peers.runs(case.graph, case.feed, threads, case.torch)
    runs = checked(runs, [case.numpy()], case.name)
    times = medians({name: run.call for name, run in runs.items()})
    rows = rows_of(times, case.flop, bytes_of(case.graph), threads, {"case": case.name})
    for row in rows:
        row["vs_numpy"] = times["numpy"] / times[row["system"]]
        if row["system"] == "seer":
            row |= {"trials": tuned.trials, "seconds": seconds, "errors": tuned.errors}
    return rows


def _call(model: seer.CompiledModel, feed: Mapping[str, Any]) -> Any:
    return model(**feed)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="NAME", help="a case (any shape; may be repeated)")
    p.add_argument("--trials", type=int, default=128, help="measurements for each case (default 128)")
    p.add_argument("--threads", type=int, action="append", help="threads (default: 1, then 2)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--strategy", default=DEFAULT)
    p.add_argument("--records", type=Path, help="keep the trials in this database")
    p.add_argument("--peers", action="store_true", help=f"also {', '.join(PEERS)}, where installed")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    return p


if __name__ == "__main__":
    sys.exit(main())
