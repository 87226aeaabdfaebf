"""Foresee tuning: after a round of one task, its relatives get short rounds (FamilySeer, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seer.search.evolution import Searcher
from seer.search.scheduler import GradientScheduler, TaskState
from seer.search.strategies import Strategy

MAX_RELATIVES = 3

Candidate = tuple[int, np.ndarray]


def relatives_to_foresee(
    strategy: Strategy, families: Sequence[str], states: Sequence[TaskState], k: int, trust: float
) -> list[int]:
    """The members of task k's family that get a short round, the steepest gradient first.

    The paper's algorithm takes one. An adaptive strategy takes as many as the model's held-out rank
    accuracy (`trust`: 0.5 is chance, 1 is perfect) justifies.
    """
    if strategy.foresee == 0:
        return []
    gradient = GradientScheduler()
    relatives = [
        j
        for j, s in enumerate(states)
        if j != k and families[j] == families[k] and s.history and not s.is_exhausted
    ]
    relatives.sort(key=lambda j: -gradient.gain(states, j))
    count = 1
    if strategy.is_adaptive:
        count = round(MAX_RELATIVES * max(0.0, 2 * trust - 1))
    return relatives[:count]


def transfer(source: Searcher, candidates: Sequence[Candidate], target: Searcher) -> list[Candidate]:
    """Candidates of one task as candidates of another: named parameters carry over.

    A sketch stands for the one of the same key, or with the same parameters; trip counts are cut to
    what the other task's axes can use.
    """
    out = []
    for number, row in candidates:
        values = source.sketches[number].values(row)
        for k in target.bred:
            sketch = target.sketches[k]
            same = sketch.key == source.sketches[number].key
            if same and {p.name for p in sketch.params} == set(values):
                out.append((k, sketch.canonical(sketch.row(values)[None])[0]))
                break
    return [(k, row) for k, row in out if target.is_legal(k, row)]
