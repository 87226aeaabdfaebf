"""Cost models by family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from seer.search.cost_model import MIN_SAMPLES, CostModel, RandomModel, Samples, XGBoostModel, rank_accuracy


class FamilyModels:
    """One XGBoost model for each family, trained on that family's measurements alone (the paper's).

    A family's model scores at random until it holds (members of the family) x (measurements of a
    round) samples.
    """

    def __init__(self, families: Sequence[str], round_trials: int, seed: int = 0) -> None:
        self._families = list(families)
        members = Counter(families)
        self._models: dict[str, CostModel] = {
            f: XGBoostModel(seed, min_samples=max(MIN_SAMPLES, n * round_trials)) for f, n in members.items()
        }
        self._sizes: Counter[str] = Counter()

    def fit(self, samples: Sequence[Samples]) -> None:
        """Train the families that have new measurements."""
        for family, mine in by_family(samples, self._families).items():
            size = sum(len(s.labels) for s in mine)
            if size != self._sizes[family]:
                self._sizes[family] = size
                self._models[family].fit(mine)

    def predict(self, task: int, features: np.ndarray) -> np.ndarray:
        return self._models[self._families[task]].predict(task, features)

    def is_trained(self, task: int) -> bool:
        return self._models[self._families[task]].is_trained(task)


class NestedModels:
    """Models of nested families; each family uses the level that has predicted it best so far.

    Before a level learns new measurements it is tested on them. A narrow family is so split off from
    a wide one while its own model orders its candidates better, and joined with it while the wide
    one's does (few measurements, or true relatives).

    Args:
        levels: for each level, from narrow to wide, the family of every task.
        seed: of the models.
    """

    MEMORY = 0.7  # weight of the past in a level's accuracy

    def __init__(self, levels: Sequence[Sequence[str]], seed: int = 0) -> None:
        self._levels = [list(level) for level in levels]
        self._models: list[dict[str, CostModel]] = [
            {f: XGBoostModel(seed) for f in dict.fromkeys(level)} for level in self._levels
        ]
        self._accuracy: dict[tuple[int, str], float] = {}
        self._seen: Counter[int] = Counter()
        self._sizes: Counter[tuple[int, str]] = Counter()
        self._random = RandomModel(seed)

    def fit(self, samples: Sequence[Samples]) -> None:
        """Test every level on what is new, then train those that have new measurements."""
        for s in samples:
            self._test(s)
        for number, level in enumerate(self._levels):
            for family, mine in by_family(samples, level).items():
                size = sum(len(s.labels) for s in mine)
                if size != self._sizes[number, family]:
                    self._sizes[number, family] = size
                    self._models[number][family].fit(mine)

    def _test(self, s: Samples) -> None:
        if s.is_prior:
            return
        new = len(s.labels) - self._seen[s.task]
        self._seen[s.task] = len(s.labels)
        if new < 2:
            return
        for number, level in enumerate(self._levels):
            model = self._models[number][level[s.task]]
            if not model.is_trained(s.task):
                continue
            found = rank_accuracy(model.predict(s.task, s.features[-new:]), s.labels[-new:])
            if found is not None:
                key = (number, self._levels[0][s.task])
                past = self._accuracy.get(key, 0.5)
                self._accuracy[key] = self.MEMORY * past + (1 - self.MEMORY) * found

    def level_of(self, task: int) -> int | None:
        """The level that scores a task's candidates, or None before any is trained."""
        family = self._levels[0][task]
        trained = [n for n, level in enumerate(self._levels) if self._models[n][level[task]].is_trained(task)]
        # Where nothing is known the widest has seen most.
        return max(trained, key=lambda n: (self._accuracy.get((n, family), 0.5), n), default=None)

    def accuracy(self, task: int) -> float:
        """Recent held-out rank accuracy for the task's family (0.5: chance, or unknown)."""
        level = self.level_of(task)
        return 0.5 if level is None else self._accuracy.get((level, self._levels[0][task]), 0.5)

    def predict(self, task: int, features: np.ndarray) -> np.ndarray:
        level = self.level_of(task)
        if level is None:
            return self._random.predict(task, features)
        return self._models[level][self._levels[level][task]].predict(task, features)

    def is_trained(self, task: int) -> bool:
        return self.level_of(task) is not None


def by_family(samples: Sequence[Samples], families: Sequence[str]) -> dict[str, list[Samples]]:
    """Samples divided among their tasks' families."""
    out: dict[str, list[Samples]] = {}
    for s in samples:
        out.setdefault(families[s.task], []).append(s)
    return out
