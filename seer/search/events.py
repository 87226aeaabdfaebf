"""What a tuning run tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskStatus:
    """One task at a moment.

    Attributes:
        best_s: fastest run so far (infinity before any).
        naive_s: the naive schedule's time (infinity if unknown).
        default_s: the time of the schedule used without tuning (infinity if unknown).
    """

    name: str
    weight: int
    trials: int
    best_s: float
    naive_s: float
    default_s: float
    errors: int
    gflop: float


@dataclass(frozen=True)
class TuneEvent:
    """A moment of a tuning run.

    Attributes:
        kind: "start", "round" (a round begins), "measured" (it ended) or "end".
        strategy: the strategy's name.
        task: number of the task that the event is about, or None.
        tasks: every task.
        trials: measurements so far, those of an earlier run included.
        budget: trials to make in all, or None for no limit.
        latency_s: sum of weight * best over tasks, infinity while some task has none.
        elapsed_s: since the start.
        errors: failures by reason.
        rank_accuracy: share of measured pairs that the model had ordered rightly before, if known.
    """

    kind: str
    strategy: str
    task: int | None
    tasks: tuple[TaskStatus, ...]
    trials: int
    budget: int | None
    latency_s: float
    elapsed_s: float
    errors: dict[str, int]
    rank_accuracy: float | None = None


Callback = Callable[[TuneEvent], None]


def ignore(_: TuneEvent) -> None:
    """A callback for nobody."""
