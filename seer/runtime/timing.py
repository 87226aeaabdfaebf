"""Timing things against each other on a shared, noisy machine.

They run in turn, many rounds; each turn begins with a pause in which the threads of what ran before
stop spinning (NumPy's go on for about 0.1 s), and one call to wake its own. What counts is the median
over rounds, and a ratio is taken between turns of the same run only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

PAUSE_S = 0.15
TURN_S = 0.02
ROUNDS = 9


def medians(systems: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of one call of each."""
    turns: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(max(1, rounds)):
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
