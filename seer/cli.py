"""The command line: `seer models`, `seer tune MODEL`, `seer bench MODEL`."""

from __future__ import annotations

import argparse
import functools
import inspect
import math
import os
import select
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from seer import driver, zoo
from seer.backends import Model, backend_of
from seer.dtypes import convert, is_narrow
from seer.errors import SeerError, UserError
from seer.frontend.onnx import from_onnx
from seer.graph import reference
from seer.graph.graph import Graph
from seer.runtime.target import Target
from seer.runtime.timing import medians
from seer.search.families import RULES, families_of
from seer.search.strategies import DEFAULT, strategy_names
from seer.search.task import tasks_of
from seer.version import __version__

INTERRUPTED = 130  # the status of commands that Ctrl-C ended

Run = Callable[[], Any]


PIPE_CLOSED = 141  # what a shell says of a program that wrote to a pipe that nobody reads any more


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    try:
        try:
            return _run(argv)
        finally:  # help and errors end here too
            for stream in _streams():
                stream.flush()
    except (BrokenPipeError, SystemExit) as e:  # the display makes the one the other
        closed = [s for s in _streams() if _is_closed(s)]
        if not closed or (isinstance(e, SystemExit) and not e.code):
            raise
        for stream in closed:  # the interpreter flushes them once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return PIPE_CLOSED


def _streams() -> list[TextIO]:
    return [s for s in (sys.stdout, sys.stderr) if s is not None]


def _is_closed(stream: TextIO) -> bool:
    """Whether what a stream writes to is a pipe that nobody reads."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors and hang-ups are told of in any case
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except OSError:  # it has no descriptor
        return False


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.command(args)
    except SeerError as e:
        print(f"seer: error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("seer: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="seer", description="A tensor compiler that tunes itself.")
    parser.add_argument("--version", action="version", version=f"seer {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    models = commands.add_parser("models", help="list the models of the zoo")
    models.set_defaults(command=_models)

    tune = commands.add_parser("tune", help="search for fast code for a model")
    _model_arguments(tune)
    tune.add_argument("--trials", type=int, help="measurements in all (default: 64 per task)")
    tune.add_argument("--seconds", type=float, help="wall time")
    tune.add_argument("--seed", type=int, help="decides every random choice (default 0)")
    tune.add_argument(
        "--strategy",
        default=DEFAULT,
        help=f"how to search: {', '.join(strategy_names())} (default {DEFAULT})",
    )
    tune.add_argument("--warm", type=Path, metavar="RECORDS", help="start from records of other models")
    tune.add_argument("--cold", action="store_true", help="start from nothing, not from seer's own store")
    tune.add_argument("--compare", action="store_true", help="then time tuned, untuned and NumPy")
    tune.set_defaults(command=_tune)

    families = commands.add_parser("families", help="show which kernels of a model are relatives, and why")
    _model_arguments(families)
    families.add_argument("--rule", default="auto", choices=[r for r in RULES if r != "none"])
    families.set_defaults(command=_families)

    bench = commands.add_parser("bench", help="time a model: tuned (with --records), untuned and NumPy")
    _model_arguments(bench)
    bench.add_argument("--repeat", type=int, default=10, help="turns of each (default 10)")
    bench.set_defaults(command=_bench)
    return parser


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a model of the zoo (`seer models` lists them), or FILE.onnx"
    )
    parser.add_argument("--batch", type=int, default=1, help="batch size (default 1)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=N",
        help="another argument of the model; the size of an open dimension of an ONNX file",
    )
    parser.add_argument(
        "--target",
        default="llvm",
        help="what to compile for (default llvm: this CPU), cuda, or 'cuda -device=emulated'",
    )
    parser.add_argument("--threads", type=int, help="threads (default: all CPUs)")
    parser.add_argument(
        "--dtype", default="float32", help="what weights are stored as: float32, float16 or bfloat16"
    )
    parser.add_argument("--records", type=Path, help="the records database")
    parser.add_argument(
        "--exact", action="store_true", help="no algorithm that is equal up to rounding only (Winograd)"
    )


def _load(args: argparse.Namespace) -> tuple[Graph, Target]:
    options: dict[str, Any] = {"batch": args.batch}
    for item in args.set:
        name, equals, value = item.partition("=")
        try:
            options[name] = float(value) if "." in value else int(value)
            equals = equals if math.isfinite(options[name]) else ""
        except (ValueError, OverflowError):
            equals = ""
        if not equals:
            raise UserError(f"--set {item}: NAME=NUMBER is needed, such as image=224")
    target = Target.parse(args.target)
    if args.threads is not None:
        target = target.with_threads(args.threads)
    if args.model.endswith(".onnx"):
        sizes = dict.fromkeys(("batch", "batch_size", "N"), args.batch)
        for k, v in options.items():
            if isinstance(v, float):
                raise UserError(f"--set {k}={v}: an open dimension is a whole number")
        return from_onnx(args.model, {**sizes, **options}), target
    return zoo.get(args.model, **options), target


def _models(_: argparse.Namespace) -> int:
    for name in zoo.names():
        function = zoo.MODELS[name]
        first = (inspect.getdoc(function) or "").split("\n")[0]
        print(f"{name:14} {first}")
        print(f"{'':14} {zoo.arguments(name)}")
    return 0


def _tune(args: argparse.Namespace) -> int:
    model, target = _load(args)
    result = driver.tune(
        model,
        target,
        trials=args.trials,
        seconds=args.seconds,
        records=args.records,
        seed=args.seed,
        strategy=args.strategy,
        store=args.warm,
        exact=args.exact,
        dtype=args.dtype,
        cold=args.cold,
    )
    print(result)
    tuned = driver.compile(model, target, result.records, args.exact, args.dtype)
    untuned = driver.compile(model, target, exact=args.exact, dtype=args.dtype)
    _report(model, target, {"tuned": tuned, "untuned": untuned}, 10, with_numpy=args.compare)
    if args.records is not None:
        print(f"records: {args.records}")
    return INTERRUPTED if result.summary.is_interrupted else 0


def _families(args: argparse.Namespace) -> int:
    model, target = _load(args)
    tasks = tasks_of(*driver.kernels_of(driver.prepare(model, args.dtype), target))
    names = families_of(tasks, args.rule)
    for family in dict.fromkeys(names):
        members = [t for t, n in zip(tasks, names, strict=True) if n == family]
        print(f"{family}: {len(members)} of {len(tasks)} tasks")
        for t in members:
            print(f"  {t.weight} x {t.name}")
    return 0


def _bench(args: argparse.Namespace) -> int:
    if args.repeat < 1:
        raise UserError(f"--repeat {args.repeat}: at least 1 turn is needed")
    model, target = _load(args)
    compiled = {"untuned": driver.compile(model, target, exact=args.exact, dtype=args.dtype)}
    if args.records is not None:
        compiled = {"tuned": driver.compile(model, target, args.records, args.exact, args.dtype), **compiled}
    _report(model, target, compiled, args.repeat, with_numpy=True)
    return 0


def _report(
    model: Graph, target: Target, compiled: Mapping[str, Model], repeat: int, with_numpy: bool
) -> None:
    """Check the compiled models against NumPy and print interleaved medians."""
    feed = random_inputs(model)
    runs: dict[str, Run] = {name: functools.partial(_call, m, feed) for name, m in compiled.items()}
    expected = reference.run(model, feed)
    for name, run in runs.items():
        outputs = run()
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        error = max(_relative_error(a, b) for a, b in zip(outputs, expected, strict=True))
        print(f"{name:8} relative error {error:.1e}")
    own_clock = backend_of(target).seconds
    seconds_of = {}
    if own_clock is not None:
        turns = [
            {name: statistics.median(own_clock(m, 3)) for name, m in compiled.items()} for _ in range(repeat)
        ]
        seconds_of = {name: statistics.median(t[name] for t in turns) for name in compiled}
        runs = {}
        what = "simulated; they say nothing about a GPU" if target.devices.is_emulated else "the device's own"
        print(f"times of {' and '.join(compiled)} are {what}")
    if with_numpy:
        runs["numpy"] = lambda: reference.run(model, feed)
    seconds_of |= medians(runs, repeat)
    first = next(iter(seconds_of.values()))
    for name, seconds in seconds_of.items():
        print(f"{name:8} {1e3 * seconds:10.3f} ms   {seconds / first:6.2f}x")


def _call(model: Model, feed: Mapping[str, Any]) -> Any:
    return model(**feed)


def random_inputs(model: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats, and integers from 0 to 99, for every input of a graph."""
    rng = np.random.default_rng(seed)
    out = {}
    for v in model.inputs:
        if v.dtype.startswith("float"):
            out[v.name] = np.asarray(rng.standard_normal(v.shape), v.dtype)
        elif is_narrow(v.dtype):
            out[v.name] = convert(rng.standard_normal(v.shape), "float64", v.dtype)
        else:
            out[v.name] = np.asarray(rng.integers(0, 100, v.shape), v.dtype)
    return out


def _relative_error(a: np.ndarray, b: np.ndarray) -> float:
    scale = float(np.linalg.norm(b.astype(np.float64)))
    difference = float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
    return difference / scale if scale else difference


if __name__ == "__main__":
    sys.exit(main())
