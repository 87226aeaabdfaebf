"""Task schedulers: which task gets the next round of measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from seer.search.task import SearchTask


@dataclass
class TaskState:
    """What is known of one task while tuning.

    Attributes:
        history: best seconds after each round.
        trials: measurements so far.
        is_exhausted: nothing is left to measure.
    """

    task: SearchTask
    history: list[float] = field(default_factory=list)
    trials: int = 0
    is_exhausted: bool = False

    @property
    def best_s(self) -> float:
        return self.history[-1] if self.history else math.inf


class TaskScheduler(Protocol):
    """Picks the task that gets the next round."""

    def pick(self, states: Sequence[TaskState]) -> int | None:
        """The number of a task that is not exhausted, or None if there is none."""
        ...


class RoundRobinScheduler:
    """Every task in turn."""

    def pick(self, states: Sequence[TaskState]) -> int | None:
        """See TaskScheduler.pick."""
        live = [k for k, s in enumerate(states) if not s.is_exhausted]
        return min(live, key=lambda k: (len(states[k].history), k), default=None)


class GradientScheduler:
    """The task whose next round promises most for the whole model (Ansor, section 6; FamilySeer).

    A round for every task first. Then the steepest estimated descent of sum(weight * best), from the
    task's own recent progress, from optimism (a round brings the t-th part of it), and from how well
    similar tasks do per operation.

    Args:
        heaviest_first: the first rounds go to the tasks with the most operations first.
    """

    def __init__(
        self, alpha: float = 0.2, beta: float = 2.0, window: int = 3, heaviest_first: bool = False
    ) -> None:
        self.alpha, self.beta, self.window = alpha, beta, window
        self.heaviest_first = heaviest_first

    def pick(self, states: Sequence[TaskState]) -> int | None:
        """See TaskScheduler.pick."""
        live = [k for k, s in enumerate(states) if not s.is_exhausted]
        if not live:
            return None
        new = [k for k in live if not states[k].history]
        if new:
            return max(new, key=lambda k: _operations(states[k])) if self.heaviest_first else new[0]
        gains = [self.gain(states, k) for k in live]
        return live[int(np.argmax(gains))]

    def gain(self, states: Sequence[TaskState], k: int) -> float:
        """Estimated seconds that a round of task k takes off the model's latency."""
        s = states[k]
        g = s.best_s
        if not math.isfinite(g):
            return math.inf
        t = len(s.history)
        back = s.history[-1 - self.window] if t > self.window else s.history[0]
        backward = (g - back) / self.window if math.isfinite(back) else -g
        forward = min(g - g / t, self.beta * self._by_similar(states, k)) - g
        return -s.task.weight * (self.alpha * backward + (1 - self.alpha) * forward)

    def _by_similar(self, states: Sequence[TaskState], k: int) -> float:
        """Seconds that task k takes at the best rate of any task of its kind."""
        mine = states[k].task.dag
        rates = [
            s.task.dag.flop_count / s.best_s
            for s in states
            if s.task.dag.tag == mine.tag and math.isfinite(s.best_s) and s.best_s > 0
        ]
        return mine.flop_count / max(rates) if rates and max(rates) > 0 else math.inf


def _operations(state: TaskState) -> int:
    return state.task.weight * state.task.dag.flop_count
