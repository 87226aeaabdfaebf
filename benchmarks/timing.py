"""Timing systems against each other on a shared, noisy machine.

Systems run in turn, many rounds; each turn begins with a pause in which the threads of the system
before it stop spinning, and one call to wake its own. What counts is the median over rounds, and a
ratio is taken between turns of the same run only.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

PAUSE_S = 0.15
TURN_S = 0.02
ROUNDS = 9

# Set where some OpenBLAS builds need them; they slow down NumPy, so a comparison must not have them.
_HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def with_fast_numpy() -> None:
    """Start this process again without variables that slow down NumPy (read when it is imported)."""
    if any(v in os.environ for v in _HANDICAPS):
        env = {k: v for k, v in os.environ.items() if k not in _HANDICAPS}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def medians(systems: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of one call of each system."""
    turns: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, call in systems.items():
            time.sleep(PAUSE_S)
            call()
            turns[name].append(_turn(call))
    return {name: statistics.median(t) for name, t in turns.items()}


def _turn(call: Callable[[], Any]) -> float:
    """Median seconds of the calls of one turn."""
    times: list[float] = []
    end = time.perf_counter() + TURN_S
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
