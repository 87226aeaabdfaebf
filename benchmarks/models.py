"""Whole models: tuned, untuned and the peers that are installed, interleaved.

python -m benchmarks.models --peers --only resnet18 --trials 400 --threads 2 --json out.json
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import with_fast_numpy

if __name__ == "__main__":
    with_fast_numpy()

import numpy as np

import seer
from benchmarks.compare import checked, rows_of, summary
from benchmarks.engines import Run
from benchmarks.memory import RUNS, memory_of
from benchmarks.peers import PEERS, Modules
from benchmarks.report import Row, table, write_json
from benchmarks.work import bytes_of, flop_of
from seer.cli import random_inputs
from seer.graph import reference
from seer.runtime.timing import medians
from seer.search.strategies import DEFAULT

DEFAULTS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "vit_base", "gpt2")
BATCHES = (1, 8)
COLUMNS = (
    "case",
    "system",
    "threads",
    "median_ms",
    "gflops",
    "roofline",
    "vs_best_peer",
    "vs_seer",
    "trials",
    "seconds",
    "peak_mb",
)
LOW = 1.0  # cases in which a peer is faster are listed
ROUNDS = 5
MEMORY_NOTE = (
    f"peak_mb: what making a model ready and running it {RUNS} times adds to a process with NumPy; for seer "
    "compiling with its records, for torch, onnxruntime and OpenVINO reading a file"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    peers = Modules(PEERS if args.peers else ())
    rows: list[Row] = []
    try:
        names = args.only or _in_zoo(DEFAULTS)
        with tempfile.TemporaryDirectory() as folder:
            if args.memory and args.records is None:
                args.records = Path(folder) / "records.db"
            for threads in args.threads or [2]:
                peers.limit_threads(threads)
                for name in names:
                    for batch in args.batch or BATCHES:
                        new = run_model(name, batch, threads, args, peers)
                        rows += new
                        table(f"{name}, batch {batch}", new, COLUMNS)
                        write_json(args.json, rows)
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if args.memory:
        print(MEMORY_NOTE)
    print(summary(rows, "vs_best_peer", "best peer's time / seer's", LOW))
    return 0


def _in_zoo(names: Sequence[str]) -> list[str]:
    """The models that the zoo has; a notice for each other."""
    for name in names:
        if name not in seer.zoo.names():
            print(f"{name} is not in the zoo: skipped", file=sys.stderr)
    return [n for n in names if n in seer.zoo.names()]


def run_model(name: str, batch: int, threads: int, args: argparse.Namespace, peers: Modules) -> list[Row]:
    """Tune a model and time every system on it."""
    graph = seer.zoo.get(name, batch=batch)
    target = seer.Target.parse(f"llvm -threads={threads}")
    start = time.perf_counter()
    tuned = seer.tune(
        graph, target, trials=args.trials, seed=args.seed, records=args.records, strategy=args.strategy
    )
    seconds = time.perf_counter() - start
    feed = random_inputs(graph)
    models = {"seer": seer.compile(graph, target, tuned.records), "seer-untuned": seer.compile(graph, target)}
    runs = {k: Run(functools.partial(_call, m, feed), _as_list) for k, m in models.items()}
    runs |= peers.runs(graph, feed, threads)
    case = f"{name}_b{batch}"
    runs = checked(runs, reference.run(graph, feed), case)
    if not args.peers:  # an oracle, too slow to be timed beside systems that are made to be fast
        runs["numpy"] = Run(functools.partial(reference.run, graph, feed), _as_list)
    times = medians({system: run.call for system, run in runs.items()}, ROUNDS)
    common = {"case": case, "model": name, "batch": batch}
    rows = rows_of(times, flop_of(graph), bytes_of(graph), threads, common)
    memory = {}
    if args.memory:
        memory = memory_of(name, batch, threads, args.records, ("seer", *peers.found))
    for row in rows:
        row["vs_seer"] = times[row["system"]] / times["seer"]
        row |= memory.get(row["system"], {})
        if row["system"] == "seer":
            row |= {"trials": tuned.trials, "seconds": seconds, "errors": tuned.errors}
    return rows


def _call(model: seer.CompiledModel, feed: Mapping[str, Any]) -> Any:
    return model(**feed)


def _as_list(out: Any) -> list[np.ndarray]:
    return list(out) if isinstance(out, tuple | list) else [out]


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="NAME", help="a zoo model (may be repeated)")
    p.add_argument("--batch", type=int, action="append", help="batch size (default: 1, then 8)")
    p.add_argument("--trials", type=int, default=400, help="measurements for each model (default 400)")
    p.add_argument("--threads", type=int, action="append", help="threads (default 2)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--strategy", default=DEFAULT)
    p.add_argument("--records", type=Path, help="keep the trials in this database")
    p.add_argument("--peers", action="store_true", help=f"also {', '.join(PEERS)}, where installed")
    p.add_argument("--memory", action="store_true", help="also peak memory, in fresh processes")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    return p


if __name__ == "__main__":
    sys.exit(main())
