"""The finalists of a task timed against each other: in turn, so that a disturbance falls on all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from seer.runtime.trial import SLOW_FACTOR

FINAL_ROUNDS = 5

T = TypeVar("T")
Answer = tuple[Any, ...]  # ("ok", value) or ("error", reason, message)


def contest(
    checked: Sequence[Answer], time_round: Callable[[list[Any]], Sequence[Sequence[float]]]
) -> list[Answer]:
    """The median of each finalist's times in each round; those that failed keep their reason.

    What is much slower than the fastest is in the first round only.

    Args:
        checked: the finalists, loaded and checked once, or why they are not.
        time_round: times some of them.
    """
    ready = {k: answer[1] for k, answer in enumerate(checked) if answer[0] == "ok"}
    rounds: dict[int, list[float]] = {k: [] for k in ready}
    running = list(ready)
    for _ in range(FINAL_ROUNDS if ready else 0):
        found = time_round([ready[k] for k in running])
        for k, times in zip(running, found, strict=True):
            rounds[k].append(statistics.median(times))
        best_s = min(map(min, rounds.values()))
        running = [k for k in running if min(rounds[k]) <= SLOW_FACTOR * best_s]
    return [("ok", tuple(rounds[k])) if k in rounds else answer for k, answer in enumerate(checked)]


def ask(send: Callable[[Sequence[T]], Answer], finalists: Sequence[T]) -> list[Answer]:
    """The answers of a worker to one request with all finalists.

    If it is lost on the way, each finalist has a request of its own, so that only the culprit fails.
    """
    answer = send(finalists)
    is_lost = answer[0] != "ok" or any(a[1] == "crash" for a in answer[1] if a[0] != "ok")
    if not is_lost or len(finalists) <= 1:
        return list(answer[1]) if answer[0] == "ok" else [answer] * len(finalists)
    return [a for f in finalists for a in ask(send, [f])]
