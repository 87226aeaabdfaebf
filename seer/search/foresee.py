"""Foresee tuning: after a round of one task, its relatives get short rounds (FamilySeer, section 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seer.ir.dag import ComputeDAG
from seer.search.evolution import Candidate, Searcher
from seer.search.scheduler import GradientScheduler, TaskState
from seer.search.strategies import Strategy

MAX_RELATIVES = 3


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


def distance(a: ComputeDAG, b: ComputeDAG) -> float:
    """How far two relatives' shapes are apart: log ratios of operations, and of what they read and write."""
    return sum(
        abs(math.log(max(x, 1) / max(y, 1)))
        for x, y in (
            (a.flop_count, b.flop_count),
            (math.prod(a.output.shape), math.prod(b.output.shape)),
            (a.output.shape[-1] if a.output.shape else 1, b.output.shape[-1] if b.output.shape else 1),
        )
    )


def transfer(source: Searcher, candidates: Sequence[Candidate], target: Searcher) -> list[Candidate]:
    """Candidates of one task as candidates of another: named parameters carry over.

    Sketches correspond by their keys; trip counts are cut to what the other task's axes can use.
    """
    moved = (
        candidate_of(source.sketches[k].key, source.sketches[k].values(row), target) for k, row in candidates
    )
    return [c for c in moved if c is not None]


def candidate_of(sketch_key: str, params: dict[str, int], target: Searcher) -> Candidate | None:
    """Named parameters of a sketch as a legal candidate of a task, if the task has that sketch."""
    for k in target.bred:
        sketch = target.sketches[k]
        if sketch.key == sketch_key and {p.name for p in sketch.params} == set(params):
            row = sketch.canonical(sketch.row(params)[None])[0]
            return (k, row) if target.is_legal(k, row) else None
    return None
