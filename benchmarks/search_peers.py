"""seer's search against TVM's on single kernels: latency after one, three and ten minutes.

A part of `python -m benchmarks.search --peers`. The peers run in interpreters of their own, since their
packages do not go together with seer's: MetaSchedule (apache-tvm 0.27) and Ansor (hhb-tvm 3.2, Python 3.8,
xgboost < 1.6). Each system's times are its own measurements of its best candidate so far.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import seer
from benchmarks.cases import parse
from benchmarks.peer_kernels import CASES
from benchmarks.report import Row, table
from seer.search.events import TuneEvent

HERE = Path(__file__).resolve().parent
MINUTES = (1, 3, 10)
SCRIPTS = {"metaschedule": HERE / "peer_metaschedule.py", "ansor-tvm": HERE / "peer_ansor.py"}


def compare(
    out: Path, pythons: dict[str, Path | None], strategy: str, seeds: int, threads: int, seconds: float
) -> list[Row]:
    """Curves of every system on every case, and the summary; finished runs are read, not made again."""
    rows: list[Row] = []
    systems = ["seer", *(name for name, python in pythons.items() if _works(name, python))]
    for case in CASES:
        for seed in range(seeds):
            for system in systems:
                file = out / f"{case}-{system}-{seed}.json"
                if not file.exists():
                    python = pythons.get(system)
                    if python is None:
                        found = _seer_curve(case, strategy, seed, threads, seconds)
                    else:
                        found = _peer_curve(system, python, case, seed, threads, seconds)
                    keys = {"kind": "kernel", "case": case, "system": system, "seed": seed}
                    partial = file.with_suffix(".partial")
                    partial.write_text(json.dumps([{**keys, **r} for r in found]))
                    partial.rename(file)
                rows += json.loads(file.read_text())
    _summarise(rows, systems, seconds)
    return rows


def _works(name: str, python: Path | None) -> bool:
    """Whether an interpreter with the peer is there; a notice if not."""
    if python is None:
        print(f"{name}: no interpreter given: skipped", file=sys.stderr)
        return False
    try:
        found = subprocess.run([python, "-c", "import tvm"], capture_output=True, timeout=120, check=False)
        works = found.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    if not works:
        print(f"{name}: {python} cannot import tvm: skipped", file=sys.stderr)
    return works


def _seer_curve(case: str, strategy: str, seed: int, threads: int, seconds: float) -> list[Row]:
    rows: list[Row] = []

    def note(e: TuneEvent) -> None:
        if math.isfinite(e.latency_s):
            rows.append({"seconds": e.elapsed_s, "measurements": e.trials, "latency_ms": 1e3 * e.latency_s})

    target = seer.Target.parse(f"llvm -threads={threads}")
    seer.tune(
        parse(case).graph,
        target,
        seconds=seconds,
        seed=seed,
        strategy=strategy,
        progress=note,
        cold=True,
    )
    return rows


def _peer_curve(system: str, python: Path, case: str, seed: int, threads: int, seconds: float) -> list[Row]:
    """Run a peer until its time is over; the time to start it does not count."""
    process = subprocess.Popen(
        [python, SCRIPTS[system], case, str(threads), str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
    )
    timer = threading.Timer(seconds + 30, _kill, [process])
    timer.start()
    rows: list[Row] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("CURVE "):
                row = json.loads(line.removeprefix("CURVE "))
                if row["seconds"] > seconds:
                    break
                if "latency_ms" in row:
                    rows.append(row)
    finally:
        timer.cancel()
        _kill(process)
        process.wait()
    return rows


def _kill(process: subprocess.Popen[str]) -> None:
    """End a peer and the workers that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    time.sleep(0.2)


def _summarise(rows: Sequence[Row], systems: Sequence[str], seconds: float) -> None:
    """The latency of each system after some minutes."""
    minutes = [m for m in MINUTES if 60 * m <= seconds] or [seconds / 60]
    out: list[Row] = []
    for case in CASES:
        for system in systems:
            mine = [r for r in rows if (r["case"], r["system"]) == (case, system)]
            row: Row = {"case": case, "system": system}
            for m in minutes:
                best = []
                for seed in dict.fromkeys(r["seed"] for r in mine):
                    run = [r["latency_ms"] for r in mine if r["seed"] == seed and r["seconds"] <= 60 * m]
                    best += [min(run)] if run else []
                row[f"{m:g}_min_ms"] = statistics.median(best) if best else None
            out.append(row)
    table("latency after some minutes (median of the seeds)", out, ("case", "system", *_names(minutes)))


def _names(minutes: Sequence[float]) -> list[str]:
    return [f"{m:g}_min_ms" for m in minutes]
