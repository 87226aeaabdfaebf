"""Strategies: which model, which scheduler, which evolution; found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from seer.errors import UserError
from seer.search.cost_model import CostModel, RandomModel, XGBoostModel
from seer.search.evolution import EvolutionOptions
from seer.search.scheduler import GradientScheduler, RoundRobinScheduler, TaskScheduler

# Measurements of one round, when there is budget enough for several rounds of every task.
ROUND_TRIALS = 64
MIN_ROUND_TRIALS = 8


@dataclass(frozen=True)
class Strategy:
    """One way to search.

    Attributes:
        make_model: the cost model of a run, from its seed.
        make_scheduler: the task scheduler of a run.
        evolution: constants of the search inside a task.
    """

    name: str
    make_model: Callable[[int], CostModel]
    make_scheduler: Callable[[], TaskScheduler]
    evolution: EvolutionOptions = field(default_factory=EvolutionOptions)

    def round_trials(self, trials: int | None, n_tasks: int) -> int:
        """Measurements of a round: fewer if the budget would not give every task several rounds."""
        if trials is None:
            return ROUND_TRIALS
        several = max(MIN_ROUND_TRIALS, min(ROUND_TRIALS, trials // max(1, 3 * n_tasks)))
        return max(1, min(several, trials // max(1, n_tasks)))  # every task gets a round


_STRATEGIES: dict[str, Strategy] = {}


def register_strategy(strategy: Strategy) -> Strategy:
    """Add a strategy."""
    _STRATEGIES[strategy.name] = strategy
    return strategy


def strategy_of(name: str) -> Strategy:
    """The strategy called `name`.

    Raises:
        UserError: if there is none.
    """
    if name not in _STRATEGIES:
        raise UserError(f"unknown strategy {name!r}; seer has {', '.join(_STRATEGIES)}")
    return _STRATEGIES[name]


def strategy_names() -> list[str]:
    """Every strategy's name."""
    return list(_STRATEGIES)


DEFAULT = "ansor"

register_strategy(Strategy("ansor", XGBoostModel, GradientScheduler))
register_strategy(
    Strategy("random", RandomModel, RoundRobinScheduler, EvolutionOptions(population=256, generations=0))
)
