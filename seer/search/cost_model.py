"""Cost models: from features to a score, higher is better."""

from __future__ import annotations

from collections.abc import Sequence
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


class CostModel(Protocol):
    """Ranks candidates before they are measured."""

    def fit(self, features: np.ndarray, labels: np.ndarray, task_sizes: Sequence[int]) -> None:
        """Learn from all measurements so far.

        Args:
            features: (N, n_features) float32.
            labels: (N,) best time of the task / time, 0 for failures.
            task_sizes: how many of the rows, in order, belong to each task.
        """
        ...

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Scores (P,)."""
        ...

    @property
    def is_trained(self) -> bool:
        """Whether scores mean anything yet."""
        ...


class RandomModel:
    """Scores that mean nothing: what a search without a model does."""

    is_trained = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def fit(self, features: np.ndarray, labels: np.ndarray, task_sizes: Sequence[int]) -> None:
        """Learn nothing."""

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self._rng.random(len(features))


class XGBoostModel:
    """Gradient-boosted trees on features; the loss is weighted by the label, so that fast candidates count.

    Until it has MIN_SAMPLES measurements it scores at random.
    """

    def __init__(self, seed: int = 0, num_threads: int = 2) -> None:
        self._seed, self._threads = seed, num_threads
        self._booster: Any = None
        self._random = RandomModel(seed)

    @property
    def is_trained(self) -> bool:
        return self._booster is not None

    def fit(self, features: np.ndarray, labels: np.ndarray, task_sizes: Sequence[int]) -> None:
        """See CostModel.fit."""
        if len(labels) < MIN_SAMPLES:
            return
        import xgboost

        data = xgboost.DMatrix(features, labels, weight=np.maximum(labels, 0.05), nthread=self._threads)
        params = {**PARAMS, "seed": self._seed, "nthread": self._threads}
        self._booster = xgboost.train(params, data, ROUNDS)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """See CostModel.predict."""
        if self._booster is None:
            return self._random.predict(features)
        return np.asarray(self._booster.inplace_predict(features), dtype=np.float64)
