"""Search strategies against each other: latency over time and over measurements, several seeds.

python -m benchmarks.search --out runs                      # everything; hours. Goes on where it stopped.
python -m benchmarks.search --only resnet18 --trials 400 --strategies ansor seer --seeds 3 --json out.json
python -m benchmarks.search --out runs --peers --tvm-python PYTHON --ansor-python PYTHON

A target says on what; `--target "cuda -device=emulated"` compares the strategies by simulated times, which
say nothing about a GPU but cost no machine: nothing is run, so results are not compared, unless the target
has -check=results or -check=all.

"warm" is seer that starts with what the runs of the first strategy learnt about the other models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import seer
from benchmarks import search_peers
from benchmarks.networks import network
from benchmarks.peers import optional
from benchmarks.report import Row, table, write_json
from benchmarks.settle import Settled
from seer.backends import backend_of
from seer.driver import resolved
from seer.ir.sketch import Sketch
from seer.runtime.measure import Candidate, Measurer, MeasureResult
from seer.runtime.records import Records
from seer.search.events import TuneEvent

SMALL = {"only": ["mlp"], "strategies": ["ansor", "random", "seer"], "trials": 40, "seeds": 1}  # simulated
DEFAULTS = ("resnet18", "resnet50", "mobilenet_0.5", "mobilenet_v2_0.5", "bert_small")
STRATEGIES = ("ansor", "random", "familyseer", "seer", "warm")
WARM = "warm"
SUMMARY = (
    "model",
    "strategy",
    "runs",
    "latency_ms",
    "seconds",
    "simulated_s",
    "measurements",
    "times_faster",
    "times_fewer",
    "never_reached_seeds",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        target = _target(args)
    except seer.errors.SeerError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    for name, value in SMALL.items() if target.devices.is_emulated else ():
        if getattr(args, name) is None:
            setattr(args, name, value)
    models, strategies = args.only or list(DEFAULTS), args.strategies or list(STRATEGIES)
    args.trials, args.seeds = args.trials or 400, args.seeds or 3
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        rows: list[Row] = []
        try:
            # A warm run reads the cold runs of the other models, so those come first.
            for strategy in sorted(strategies, key=lambda s: s.startswith(WARM)):
                for name in models:
                    for seed in range(args.seeds):
                        rows += Run(out, name, strategy, seed, args.trials, target).curve(
                            [m for m in models if m != name], strategies[0]
                        )
                        write_json(args.json, rows)
            if not (args.raw or target.devices.is_emulated):
                rows += [r for name in models for r in settled(out, name, rows, args.trials, target)]
            summary = [r for name in models for r in summarise(name, rows, strategies[0])]
            show(summary, strategies[0])
            if args.plot is not None:
                plot(args.plot, rows)
            if args.peers:
                pythons = {"metaschedule": args.tvm_python, "ansor-tvm": args.ansor_python}
                rows += search_peers.compare(
                    out, pythons, args.peer_strategy, args.seeds, args.threads, args.seconds
                )
        except seer.errors.SeerError as e:
            print(f"error: {e}", file=sys.stderr)
            return 2
        write_json(args.json, [*rows, *summary])
    return 0


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="MODEL", help="a model (may be repeated)")
    p.add_argument("--target", default="llvm", help="what to tune for (default llvm: this CPU)")
    p.add_argument(
        "--strategies",
        nargs="+",
        help="names, with options after commas; the first is the reference",
    )
    p.add_argument("--trials", type=int, help="measurements of each run (default 400; 40 simulated)")
    p.add_argument("--seeds", type=int, help="runs of each (default 3; 1 simulated)")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument(
        "--out", type=Path, metavar="FOLDER", help="keep runs here; finished ones are not repeated"
    )
    p.add_argument("--raw", action="store_true", help="compare the times of trials: time nothing again")
    p.add_argument("--peers", action="store_true", help="also kernels against TVM")
    p.add_argument("--tvm-python", type=Path, metavar="PATH", help="an interpreter with apache-tvm")
    p.add_argument("--ansor-python", type=Path, metavar="PATH", help="an interpreter with hhb-tvm")
    p.add_argument("--peer-strategy", default="seer", help="the strategy that meets TVM (default seer)")
    p.add_argument("--seconds", type=float, default=600, help="of each search of a kernel (default 600)")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves (needs matplotlib)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the curves")
    return p


def _target(args: argparse.Namespace) -> seer.Target:
    """The target, which this machine must be able to run; emulated trials run only if it is asked for."""
    text = args.target
    if text.split()[0] == "llvm" and "-threads=" not in text:
        return resolved(seer.Target.parse(text).with_threads(args.threads))[1]
    target = resolved(text)[1]
    if target.devices.is_emulated:
        if "-check=" not in text:
            target = seer.Target.parse(f"{text} -check=none")
        how = {"none": "nothing is run, results are not compared", "all": "every access is watched"}
        print(
            f"{target}: latencies are simulated and say nothing about a GPU; "
            f"{how.get(target.devices.check, 'results are compared')}. seconds: wall time of the search; "
            "simulated_s: what the trials would have run on the simulated device"
        )
    return target


class Stopwatch:
    """A Measurer that adds up how long trials ran on the device, by its own clock."""

    def __init__(self, inner: Measurer) -> None:
        self._inner = inner
        self.seconds = 0.0

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        """See Measurer.measure."""
        yield from map(self._note, self._inner.measure(naive, candidates, best_s))

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """See Measurer.remeasure."""
        return [self._note(r) for r in self._inner.remeasure(naive, candidates)]

    def _note(self, result: MeasureResult) -> MeasureResult:
        self.seconds += sum(result.times)
        return result

    def close(self) -> None:
        """Close what is watched."""
        self._inner.close()


class Run:
    """One search: its records and its curve lie in a folder, under a name of its own."""

    def __init__(
        self, out: Path, model: str, strategy: str, seed: int, trials: int, target: seer.Target
    ) -> None:
        self.out, self.model, self.strategy, self.seed = out, model, strategy, seed
        self.trials, self.target = trials, target

    @property
    def stem(self) -> str:
        where = f"t{self.target.num_threads}" if self.target.gpu is None else f"-{self.target.key}"
        where = where.replace(" ", "-").replace("/", "-")
        return f"{self.model}-{self.strategy.replace(',', '+')}-{self.seed}-{self.trials}{where}"

    @property
    def records(self) -> Path:
        return self.out / f"{self.stem}.db"

    def curve(self, others: Sequence[str], reference: str) -> list[Row]:
        """A row whenever the model's latency is known and has changed.

        A finished run is read; one that was stopped is made anew, since its times would have a gap.
        """
        file = self.out / f"{self.stem}.json"
        if file.exists():
            rows: list[Row] = json.loads(file.read_text())
            return rows
        for old in self.out.glob(f"{self.stem}.db*"):
            old.unlink()
        rows = self._tune(self._store(others, reference))
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(rows))
        partial.rename(file)
        print(
            f"{self.stem}: {rows[-1]['latency_ms']:.3f} ms" if rows else f"{self.stem}: nothing", flush=True
        )
        return rows

    def _store(self, others: Sequence[str], reference: str) -> Records | None:
        """For a warm run, the reference's records of the other models, same seed."""
        if not self.strategy.startswith(WARM):
            return None
        store = Records()
        for name in others:
            cold = Run(self.out, name, reference, self.seed, self.trials, self.target)
            if cold.records.exists():
                with Records(cold.records) as found:
                    store.append(found.all())
        return store

    def _tune(self, store: Records | None) -> list[Row]:
        rows: list[Row] = []
        clock: Stopwatch | None = None

        def note(e: TuneEvent) -> None:
            if math.isfinite(e.latency_s) and e.kind in ("measured", "end"):
                rows.append(
                    {
                        "model": self.model,
                        "strategy": self.strategy,
                        "seed": self.seed,
                        "seconds": e.elapsed_s,
                        "simulated_s": clock.seconds if clock is not None else None,
                        "measurements": e.trials,
                        "latency_ms": 1e3 * e.latency_s,
                        "is_final": e.kind == "end",
                    }
                )

        strategy = self.strategy
        if strategy.startswith(WARM):
            strategy = "seer" + strategy.removeprefix(WARM)
        with Records(self.records) as records, contextlib.ExitStack() as opened:
            if self.target.devices.is_emulated:
                clock = Stopwatch(backend_of(self.target).measurer(self.target))
                opened.callback(clock.close)
            seer.tune(
                network(self.model),
                self.target,
                measurer=clock,
                trials=self.trials,
                seed=self.seed,
                strategy=strategy,
                progress=note,
                records=records,
                store=store,
                cold=True,
            )
        return rows


def settled(out: Path, name: str, rows: Sequence[Row], trials: int, target: seer.Target) -> list[Row]:
    """The curves of a model's runs with all its candidates timed again side by side."""
    rows = [r for r in rows if r["model"] == name]
    pairs = dict.fromkeys((r["strategy"], r["seed"]) for r in rows)
    runs = {pair: Run(out, name, *pair, trials, target).records for pair in pairs}
    print(f"{name}: timing what led a run again", flush=True)
    times = Settled(network(name), target, out / f"{name}-settled-t{target.num_threads}.json")
    times.measure(list(runs.values()))
    curves = [times.curve(path, runs_of(rows, *pair)) for pair, path in runs.items()]
    return [r for curve in curves for r in curve]


def show(summary: Sequence[Row], reference: str) -> None:
    """The table of all models, geometric means, and every run that never reached the reference."""
    table(f"to the final latency of {reference} (same seed)", summary, SUMMARY)
    means = []
    for strategy in dict.fromkeys(r["strategy"] for r in summary):
        mine = [r for r in summary if r["strategy"] == strategy]
        hit = [r for r in mine if r["times_faster"] is not None]
        means.append(
            {
                "strategy": strategy,
                "models": len(mine),
                "times_faster": _mean(r["times_faster"] for r in hit),
                "times_fewer": _mean(r["times_fewer"] for r in hit),
                "times_better": _mean(r["times_better"] for r in mine),
                "never": sum(len(r["never_reached_seeds"].split()) for r in mine),
            }
        )
    table("geometric means over models", means, tuple(means[0]) if means else ())
    for r in summary:
        if r["never_reached_seeds"]:
            print(
                f"never as good as {reference}: {r['model']}, {r['strategy']}, "
                f"seeds {r['never_reached_seeds']}"
            )


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.geometric_mean(known) if known else None


def summarise(name: str, rows: Sequence[Row], reference: str) -> list[Row]:
    """Where each run ended, and how soon it was as good as the reference strategy ended (same seed).

    By settled curves, where there are any.
    """
    rows = [r for r in rows if r.get("model") == name]
    rows = [r for r in rows if r.get("is_settled")] or rows
    out: list[Row] = []
    for strategy in dict.fromkeys(r["strategy"] for r in rows):
        runs = [runs_of(rows, strategy, seed) for seed in dict.fromkeys(r["seed"] for r in rows)]
        faster, fewer, better, missed = [], [], [], []
        for run in [r for r in runs if r]:
            seed = run[0]["seed"]
            end = on_the_way(runs_of(rows, reference, seed))[-1]
            hit = next((r for r in on_the_way(run) if r["latency_ms"] <= end["latency_ms"]), None)
            better.append(end["latency_ms"] / on_the_way(run)[-1]["latency_ms"])
            if hit is None:
                missed.append(seed)
            else:
                # From when the reference first was as good as it ended, not from when it stopped.
                first = next(
                    r
                    for r in on_the_way(runs_of(rows, reference, seed))
                    if r["latency_ms"] <= end["latency_ms"]
                )
                faster.append(first["seconds"] / hit["seconds"])
                fewer.append(first["measurements"] / hit["measurements"])
        out.append(
            {
                "kind": "summary",
                "model": name,
                "strategy": strategy,
                "runs": len(runs),
                "latency_ms": statistics.median(r[-1]["latency_ms"] for r in runs if r),
                "seconds": statistics.median(r[-1]["seconds"] for r in runs if r),
                "simulated_s": _median(r[-1].get("simulated_s") for r in runs if r),
                "measurements": statistics.median(r[-1]["measurements"] for r in runs if r),
                "times_faster": _mean(faster),
                "times_fewer": _mean(fewer),
                "times_better": _mean(better),
                "never_reached_seeds": " ".join(map(str, missed)),
            }
        )
    return out


def on_the_way(run: Sequence[Row]) -> list[Row]:
    """A curve to compare: without its final times, which are taken anew, unless all times are."""
    return [r for r in run if r.get("is_settled") or not r["is_final"]] or list(run)


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
                run = runs_of([r for r in mine if r.get("is_settled")] or mine, strategy, seed)
                label = strategy if n == 0 else None
                x, y = [r["seconds"] for r in run], [r["latency_ms"] for r in run]
                axis.step(x, y, where="post", color=f"C{k}", alpha=0.7, label=label)
        axis.set(title=model, xlabel="seconds", ylabel="latency, ms")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
