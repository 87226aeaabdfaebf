"""Search strategies against each other: latency over time and over measurements, several seeds.

python -m benchmarks.search --only resnet18 --trials 400 --strategies ansor,random --seeds 3 --json out.json
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import seer
from benchmarks.report import Row, table, write_json
from seer.search.events import TuneEvent
from seer.search.strategies import strategy_names

DEFAULTS = ("resnet18", "mobilenet_v2", "bert_base")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="MODEL", help="a zoo model (may be repeated)")
    p.add_argument("--strategies", default=",".join(strategy_names()), help="names, separated by commas")
    p.add_argument("--trials", type=int, default=400, help="measurements of each run (default 400)")
    p.add_argument("--seeds", type=int, default=3, help="runs of each (default 3)")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json", type=Path, metavar="FILE", help="write the curves")
    args = p.parse_args(argv)
    rows: list[Row] = []
    try:
        for name in args.only or DEFAULTS:
            for seed in range(args.seeds):
                for strategy in args.strategies.split(","):
                    rows += curve(name, strategy, seed, args.trials, args.threads)
                    write_json(args.json, rows)
            summarise(name, [r for r in rows if r["model"] == name])
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def curve(name: str, strategy: str, seed: int, trials: int, threads: int) -> list[Row]:
    """One run: a row whenever the model's latency is known and has changed."""
    rows: list[Row] = []

    def note(e: TuneEvent) -> None:
        if math.isfinite(e.latency_s) and e.kind in ("measured", "end"):
            rows.append(
                {
                    "model": name,
                    "strategy": strategy,
                    "seed": seed,
                    "seconds": e.elapsed_s,
                    "measurements": e.trials,
                    "latency_ms": 1e3 * e.latency_s,
                }
            )

    target = seer.Target.parse(f"llvm -threads={threads}")
    seer.tune(seer.zoo.get(name), target, trials=trials, seed=seed, strategy=strategy, progress=note)
    return rows


def summarise(name: str, rows: Sequence[Row]) -> None:
    """The end of each run, and medians over seeds."""
    out: list[Row] = []
    for strategy in dict.fromkeys(r["strategy"] for r in rows):
        ends = [
            [r for r in rows if (r["strategy"], r["seed"]) == (strategy, s)][-1]
            for s in dict.fromkeys(r["seed"] for r in rows if r["strategy"] == strategy)
        ]
        out.append(
            {
                "strategy": strategy,
                "runs": len(ends),
                "latency_ms": statistics.median(e["latency_ms"] for e in ends),
                "seconds": statistics.median(e["seconds"] for e in ends),
                "measurements": statistics.median(e["measurements"] for e in ends),
            }
        )
    table(name, out, ("strategy", "runs", "latency_ms", "seconds", "measurements"))


if __name__ == "__main__":
    sys.exit(main())
