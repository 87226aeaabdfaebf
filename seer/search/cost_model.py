"""Cost models: from features to a score, higher is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

# The paper's constants.
PARAMS: dict[str, Any] = {
    "max_depth": 10,
    "eta": 0.2,
    "gamma": 0.001,
    "min_child_weight": 0,
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_bin": 64,
    "verbosity": 0,
}
ROUNDS = 60
MIN_SAMPLES = 16
GROWTH = 1.1


@dataclass(frozen=True)
class Samples:
    """All measurements of one task.

    Attributes:
        task: its number in the run.
        features: (N, n_features) float32, in the order in which they were measured.
        labels: (N,) best time of the task / time; 0 for failures.
        is_prior: measurements of relatives from an earlier run.
        weight: how much each counts.
    """

    task: int
    features: np.ndarray
    labels: np.ndarray
    is_prior: bool = False
    weight: float = 1.0


class CostModel(Protocol):
    """Ranks candidates before they are measured."""

    def fit(self, samples: Sequence[Samples]) -> None:
        """Learn from all measurements so far."""
        ...

    def predict(self, task: int, features: np.ndarray) -> np.ndarray:
        """Scores (P,) of candidates of one task."""
        ...

    def is_trained(self, task: int) -> bool:
        """Whether scores of that task mean anything yet."""
        ...


class RandomModel:
    """Scores that mean nothing: what a search without a model does."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def fit(self, samples: Sequence[Samples]) -> None:
        """Learn nothing."""

    def predict(self, task: int, features: np.ndarray) -> np.ndarray:
        return self._rng.random(len(features))

    def is_trained(self, task: int) -> bool:
        return False


class XGBoostModel:
    """Gradient-boosted trees for all tasks; the loss is weighted by the label, so that fast ones count.

    Until it has `min_samples` measurements it scores at random; later it is trained again whenever it
    has GROWTH times as many as the last time. One thread trains and predicts: the data is small, and
    several would wait for each other at every node of every tree when they do not have the CPUs alone.
    """

    def __init__(self, seed: int = 0, min_samples: int = MIN_SAMPLES) -> None:
        self._seed, self._min_samples = seed, min_samples
        self._n_trained = 0
        self._booster: Any = None
        self._random = RandomModel(seed)

    def is_trained(self, task: int) -> bool:
        return self._booster is not None

    def fit(self, samples: Sequence[Samples]) -> None:
        """See CostModel.fit."""
        own = sum(len(s.labels) for s in samples if not s.is_prior)
        count = sum(len(s.labels) for s in samples)
        if count < self._min_samples or (self._booster is not None and own < GROWTH * self._n_trained):
            return
        self._n_trained = own
        import xgboost

        features = np.concatenate([s.features for s in samples])
        labels = np.concatenate([s.labels for s in samples])
        counts = np.concatenate([np.full(len(s.labels), s.weight) for s in samples])
        weight = counts * np.maximum(labels, 0.05)
        data = xgboost.DMatrix(features, labels, weight=weight, nthread=1)
        params = {**PARAMS, "seed": self._seed, "nthread": 1}
        self._booster = xgboost.train(params, data, ROUNDS)

    def predict(self, task: int, features: np.ndarray) -> np.ndarray:
        """See CostModel.predict."""
        if self._booster is None:
            return self._random.predict(task, features)
        return np.asarray(self._booster.inplace_predict(features), dtype=np.float64)


def rank_accuracy(scores: np.ndarray, labels: np.ndarray, tie: float = 0.02) -> float | None:
    """Share of pairs that the scores order as the labels do; pairs closer than `tie` do not count.

    None if no pair counts; 0.5 is chance.
    """
    gap = labels[:, None] - labels[None]
    counts = gap > tie
    if not counts.any():
        return None
    order = scores[:, None] - scores[None]
    right = (order > 0) + 0.5 * (order == 0)
    return float(right[counts].mean())
