"""Strategies: which families, models, scheduler and evolution; found by name, varied by options.

    ansor         one model over all tasks, gradient scheduler
    familyseer    a model for each family, and foresee tuning, as the paper has it
    seer          nested families, foresee by the model's trustworthiness, transfer of parameters
    random        no model, every task in turn

Options change one part alone: "seer,foresee=0", "familyseer,families=ind", "ansor,crossover=0".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from seer.errors import UserError
from seer.search.cost_model import CostModel, RandomModel, XGBoostModel
from seer.search.evolution import EvolutionOptions, Searcher
from seer.search.families import RULES, families_of
from seer.search.family_model import FamilyModels, NestedModels
from seer.search.scheduler import GradientScheduler, RoundRobinScheduler, TaskScheduler
from seer.search.task import SearchTask

# Measurements of one round, when there is budget enough for several rounds of every task.
ROUND_TRIALS = 64
MIN_ROUND_TRIALS = 8
TRIAL_S = 0.2  # what a trial takes, roughly, to make trials of a budget of time
FORESEE_TRIALS = 16  # the paper's
HANDOVER = 3


@dataclass(frozen=True)
class Strategy:
    """One way to search.

    Attributes:
        make_model: the cost model of a run, from tasks, measurements of a round, and seed.
        make_scheduler: the task scheduler of a run.
        evolution: constants of the search inside a task.
        families: the rule by which tasks are relatives (for foresee and transfer).
        foresee: measurements of the round that a relative gets after each round; 0 for none.
        is_adaptive: foresee more relatives where the model proves trustworthy, fewer where not.
        transfer: seed a task's search with the best parameters of its relatives.
        handover: candidates of each round that are the relatives' best, measured without being ranked.
        is_sparing: the first round of a task is short, so that the scheduler soon knows where the time
            goes, and what a store knows comes first.
        has_defaults: whether a task's first candidates are the defaults of its sketches; Ansor, as it
            was published, has none and begins at random.
        make_searcher: what proposes candidates of a task.
    """

    name: str
    make_model: Callable[[Strategy, Sequence[SearchTask], int, int], CostModel]
    make_scheduler: Callable[[], TaskScheduler]
    evolution: EvolutionOptions = field(default_factory=EvolutionOptions)
    families: str = "none"
    foresee: int = 0
    is_adaptive: bool = False
    transfer: bool = False
    handover: int = 0
    is_sparing: bool = False
    has_defaults: bool = True
    make_searcher: Callable[[SearchTask, EvolutionOptions], Searcher] = Searcher

    def round_trials(self, trials: int | None, seconds: float | None, n_tasks: int) -> int:
        """Measurements of a round: fewer if the budget would not give every task several rounds."""
        if trials is None and seconds is None:
            return ROUND_TRIALS
        if trials is None:
            trials = round((seconds or 0) / TRIAL_S)
        several = max(MIN_ROUND_TRIALS, min(ROUND_TRIALS, trials // max(1, 3 * n_tasks)))
        return max(1, min(several, trials // max(1, n_tasks)))  # every task gets a round


_STRATEGIES: dict[str, Strategy] = {}


def register_strategy(strategy: Strategy) -> Strategy:
    """Add a strategy."""
    _STRATEGIES[strategy.name] = strategy
    return strategy


def strategy_of(text: str) -> Strategy:
    """The strategy of a name, with options: "seer,foresee=0,transfer=0".

    Raises:
        UserError: if the name or an option is unknown.
    """
    name, *options = text.split(",")
    if name not in _STRATEGIES:
        raise UserError(f"unknown strategy {name!r}; seer has {', '.join(_STRATEGIES)}")
    out = _STRATEGIES[name]
    for option in options:
        out = _with_option(out, text, option)
    return replace(out, name=text)


def _with_option(strategy: Strategy, text: str, option: str) -> Strategy:
    key, _, value = option.partition("=")
    if key == "families" and value in RULES:
        return replace(strategy, families=value)
    if value.isdecimal():
        n = int(value)
        match key:
            case "foresee":
                return replace(strategy, foresee=n, is_adaptive=strategy.is_adaptive and n > 0)
            case "transfer":
                return replace(strategy, transfer=bool(n))
            case "adaptive":
                return replace(strategy, is_adaptive=bool(n))
            case "handover":
                return replace(strategy, handover=n)
            case "sparing":
                return replace(strategy, is_sparing=bool(n))
            case "defaults":
                return replace(strategy, has_defaults=bool(n))
            case "crossover":
                share = EvolutionOptions().crossover if n else 0.0
                return replace(strategy, evolution=replace(strategy.evolution, crossover=share))
    raise UserError(
        f"strategy {text!r}: {option!r} is no option; there are families={'|'.join(RULES)}, foresee=N, "
        "transfer=0|1, handover=N, sparing=0|1, defaults=0|1, adaptive=0|1, crossover=0|1"
    )


def strategy_names() -> list[str]:
    """Every strategy's name."""
    return list(_STRATEGIES)


DEFAULT = "seer"


def _one_model(_s: Strategy, _t: Sequence[SearchTask], _n: int, seed: int) -> CostModel:
    return XGBoostModel(seed)


def _family_models(s: Strategy, tasks: Sequence[SearchTask], round_trials: int, seed: int) -> CostModel:
    return FamilyModels(families_of(tasks, s.families), round_trials, seed)


def _nested_models(s: Strategy, tasks: Sequence[SearchTask], _n: int, seed: int) -> CostModel:
    levels = [families_of(tasks, rule) for rule in dict.fromkeys((s.families, "op", "none"))]
    return NestedModels(levels, seed)


def _no_model(_s: Strategy, _t: Sequence[SearchTask], _n: int, seed: int) -> CostModel:
    return RandomModel(seed)


register_strategy(Strategy("ansor", _one_model, GradientScheduler))
register_strategy(
    Strategy("familyseer", _family_models, GradientScheduler, families="op", foresee=FORESEE_TRIALS)
)
register_strategy(
    Strategy(
        "seer",
        _nested_models,
        lambda: GradientScheduler(heaviest_first=True),
        EvolutionOptions(population=4096),
        families="auto",
        foresee=MIN_ROUND_TRIALS,
        is_adaptive=True,
        transfer=True,
        handover=HANDOVER,
        is_sparing=True,
    )
)
register_strategy(
    Strategy("random", _no_model, RoundRobinScheduler, EvolutionOptions(population=256, generations=0))
)
