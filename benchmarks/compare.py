"""Rows of one interleaved comparison, and what they come to over all cases."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.engines import Run
from benchmarks.peers import PEERS
from benchmarks.report import Row
from benchmarks.roofline import measure


def checked(runs: Mapping[str, Run], expected: Sequence[np.ndarray], case: str) -> dict[str, Run]:
    """The systems that compute what NumPy does; a peer that does not is left out with a notice.

    Raises:
        SystemExit: if it is seer that does not.
    """
    out = {}
    for name, run in runs.items():
        if run.check(expected):
            out[name] = run
        elif name in PEERS:
            print(f"{case}: {name} computes something else than NumPy: skipped", file=sys.stderr)
        else:
            raise SystemExit(f"{case}: {name} computes something else than NumPy")
    return out


def rows_of(
    times: Mapping[str, float], flop: float, size_bytes: float, threads: int, common: Mapping[str, Any]
) -> list[Row]:
    """A row for each system.

    Args:
        times: seconds of each system, of one run of `medians`.
        flop: floating-point operations; 0 where only bytes count.
        size_bytes: bytes moved at the least.
        threads: threads of every system.
        common: fields that all rows begin with.

    Each row's `vs_best_peer` is the best peer's time divided by its own.
    """
    machine = measure(threads)
    peers = [s for name, s in times.items() if name in PEERS]
    rows = []
    for name, s in times.items():
        row: Row = {
            **common,
            "system": name,
            "threads": threads,
            "median_ms": 1e3 * s,
            "gflops": flop / s / 1e9 if flop else None,
            "roofline": machine.fraction(flop, size_bytes, s),
        }
        if peers:
            row["vs_best_peer"] = min(peers) / s
        rows.append(row)
    return rows


def summary(rows: Sequence[Row], column: str, label: str, low: float) -> str:
    """The geometric mean of seer's `column` for each number of threads, and the cases where it is low.

    Args:
        rows: of all cases.
        column: a ratio of times; rows without it are left out.
        label: what the ratio says.
        low: cases below it are listed, worst first.
    """
    lines = []
    for threads in dict.fromkeys(r["threads"] for r in rows):
        mine = [r for r in rows if r["system"] == "seer" and r["threads"] == threads and r.get(column)]
        if not mine:
            continue
        mean = statistics.geometric_mean(r[column] for r in mine)
        lines.append(f"{threads} threads: {label}, geometric mean of {len(mine)}: {mean:.2f}")
        under = sorted((r[column], r["case"]) for r in mine if r[column] < low)
        listed = ", ".join(f"{case} {ratio:.2f}" for ratio, case in under)
        lines.append(f"  below {low}: {listed or 'none'}")
    return "\n".join(lines)
