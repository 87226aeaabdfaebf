"""Search strategies against each other: latency over time and over measurements, several seeds.

python -m benchmarks.search --only resnet18 --trials 400 --strategies ansor seer --seeds 3 --json out.json
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import seer
from benchmarks.peers import optional
from benchmarks.report import Row, table, write_json
from seer.search.events import TuneEvent
from seer.search.strategies import strategy_names

DEFAULTS = ("resnet18", "mobilenet_v2", "bert_base")
SUMMARY = (
    "strategy",
    "runs",
    "latency_ms",
    "seconds",
    "measurements",
    "times_faster",
    "times_fewer",
    "never_reached_seeds",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="MODEL", help="a zoo model (may be repeated)")
    p.add_argument(
        "--strategies",
        nargs="+",
        default=strategy_names(),
        help="names, with options after commas; the first is the reference",
    )
    p.add_argument("--trials", type=int, default=400, help="measurements of each run (default 400)")
    p.add_argument("--seeds", type=int, default=3, help="runs of each (default 3)")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--warm", type=Path, metavar="RECORDS", help="all but the first start from these records")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves (needs matplotlib)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the curves")
    args = p.parse_args(argv)
    rows: list[Row] = []
    try:
        for name in args.only or DEFAULTS:
            for seed in range(args.seeds):
                for strategy in args.strategies:
                    rows += curve(
                        name,
                        strategy,
                        seed,
                        args.trials,
                        args.threads,
                        args.warm if strategy != args.strategies[0] else None,
                    )
                    write_json(args.json, rows)
            summarise(name, [r for r in rows if r["model"] == name], args.strategies[0])
            if args.plot is not None:
                plot(args.plot, rows)
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def curve(
    name: str, strategy: str, seed: int, trials: int, threads: int, warm: Path | None = None
) -> list[Row]:
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
                    "is_final": e.kind == "end",
                }
            )

    target = seer.Target.parse(f"llvm -threads={threads}")
    seer.tune(
        seer.zoo.get(name), target, trials=trials, seed=seed, strategy=strategy, progress=note, store=warm
    )
    return rows


def summarise(name: str, rows: Sequence[Row], reference: str) -> list[Row]:
    """Where each run ended, and how soon it was as good as the reference strategy ended (same seed)."""
    out: list[Row] = []
    for strategy in dict.fromkeys(r["strategy"] for r in rows):
        runs = [runs_of(rows, strategy, seed) for seed in dict.fromkeys(r["seed"] for r in rows)]
        faster, fewer, missed = [], [], []
        for run in runs:
            seed = run[0]["seed"]
            # Final times are taken anew; the way there is compared by the times of trials alone.
            end = on_the_way(runs_of(rows, reference, seed))[-1]
            hit = next((r for r in on_the_way(run) if r["latency_ms"] <= end["latency_ms"]), None)
            if hit is None:
                missed.append(seed)
            else:
                faster.append(end["seconds"] / hit["seconds"])
                fewer.append(end["measurements"] / hit["measurements"])
        out.append(
            {
                "model": name,
                "strategy": strategy,
                "runs": len(runs),
                "latency_ms": statistics.median(r[-1]["latency_ms"] for r in runs),
                "seconds": statistics.median(r[-1]["seconds"] for r in runs),
                "measurements": statistics.median(r[-1]["measurements"] for r in runs),
                "times_faster": statistics.geometric_mean(faster) if faster else None,
                "times_fewer": statistics.geometric_mean(fewer) if fewer else None,
                "never_reached_seeds": " ".join(map(str, missed)),
            }
        )
    table(f"{name}: to the final latency of {reference}", out, SUMMARY)
    return out


def on_the_way(run: Sequence[Row]) -> list[Row]:
    """A curve without its final times (the whole, if there is nothing else)."""
    return [r for r in run if not r["is_final"]] or list(run)


def runs_of(rows: Sequence[Row], strategy: str, seed: int) -> list[Row]:
    """The curve of one run."""
    return [r for r in rows if (r["strategy"], r["seed"]) == (strategy, seed)]


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Latency over time, a panel for each model, a line for each run."""
    pyplot = optional("matplotlib.pyplot")
    if pyplot is None:
        return
    models = list(dict.fromkeys(r["model"] for r in rows))
    strategies = list(dict.fromkeys(r["strategy"] for r in rows))
    figure, axes = pyplot.subplots(1, len(models), figsize=(5 * len(models), 4), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        for k, strategy in enumerate(strategies):
            mine = [r for r in rows if r["model"] == model]
            for n, seed in enumerate(dict.fromkeys(r["seed"] for r in mine)):
                run = runs_of(mine, strategy, seed)
                label = strategy if n == 0 else None
                x, y = [r["seconds"] for r in run], [r["latency_ms"] for r in run]
                axis.step(x, y, where="post", color=f"C{k}", alpha=0.7, label=label)
        axis.set(title=model, xlabel="seconds", ylabel="latency, ms")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
