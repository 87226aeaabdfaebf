"""Evolutionary search inside one task: score a population, breed the best, keep what scores highest.

The loop is Ansor's (Zheng et al., OSDI 2020, section 5.1): random samples and the best measured
candidates, generations of mutation and crossover chosen by the cost model's score, and a few random
candidates in each batch that is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from seer.ir.sketch import Sketch
from seer.search.defaults import default_number, default_row
from seer.search.features import features
from seer.search.legal import legal
from seer.search.space import Space, space_of
from seer.search.task import SearchTask

Candidate = tuple[int, np.ndarray]  # sketch number and canonical row
Rows = dict[int, np.ndarray]  # sketch number -> canonical rows


class Scorer(Protocol):
    """A cost model as one task sees it."""

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Scores (P,), higher is better."""
        ...

    @property
    def is_trained(self) -> bool:
        """Whether scores mean anything yet."""
        ...


@dataclass(frozen=True)
class EvolutionOptions:
    """Ansor's constants.

    Attributes:
        population: candidates of one generation.
        generations: how often they are bred.
        mutation: share of children by mutation; the others are copies or crossings.
        crossover: share of children by crossing two parents.
        random_share: share of each measured batch that is random.
        best_share: largest share of the first population that is the best measured.
    """

    population: int = 2048
    generations: int = 4
    mutation: float = 0.85
    crossover: float = 0.10
    random_share: float = 0.05
    best_share: float = 0.2


@dataclass
class Searcher:
    """Proposes candidates of one task.

    Attributes:
        seen: what was proposed or measured before, never to be proposed again.
    """

    task: SearchTask
    options: EvolutionOptions = field(default_factory=EvolutionOptions)
    seen: set[tuple[int, bytes]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sketches: tuple[Sketch, ...] = self.task.sketches
        self.spaces: list[Space] = [space_of(s, self.task.target) for s in self.sketches]
        # The naive sketch is measured with the defaults and never bred.
        self.bred = [k for k, s in enumerate(self.spaces) if k > 0 and s.size > 1]
        self.n_scored = 0
        self._defaults: dict[int, Candidate] = {}

    @cached_property
    def default(self) -> Candidate:
        """What an untuned model runs."""
        return self.default_of(default_number(self.sketches, self.task.target))

    def default_of(self, k: int) -> Candidate:
        """The default of a sketch; it is worked out once, as it takes some milliseconds."""
        if k not in self._defaults:
            self._defaults[k] = (k, default_row(self.sketches[k], self.task.target))
        return self._defaults[k]

    def first(self) -> list[Candidate]:
        """The default of every sketch, those with the fewest operations first, and the naive candidate.

        What an untuned model runs comes first: with however few trials, a tuned one is no slower.
        """
        order = sorted(
            range(1, len(self.sketches)),
            key=lambda k: (k != self.default[0], self.sketches[k].dag.flop_count),
        )
        out = [self.default_of(k) for k in order]
        out.append((0, np.zeros(len(self.sketches[0].params), dtype=np.int64)))
        return [c for c in out if self.mark(c)]

    def mark(self, candidate: Candidate) -> bool:
        """Note that a candidate was proposed; false if it was before."""
        key = (candidate[0], candidate[1].tobytes())
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def propose(
        self, count: int, best: list[Candidate], model: Scorer, rng: np.random.Generator
    ) -> list[Candidate]:
        """Up to `count` new candidates, best first; fewer when the space is exhausted.

        Args:
            count: how many are wanted.
            best: the best measured candidates so far, fastest first.
            model: ranks them.
            rng: source of all randomness.
        """
        if not self.bred or count <= 0:
            return []
        # Rounded up or down by chance, so that short rounds have their share of random ones, too.
        n_random = int(count * self.options.random_share + rng.random()) if model.is_trained else 0
        ranked = self._evolve(best, model, rng)
        out = self.take(ranked, count - n_random)
        fill = self._sample(4 * count, rng)
        out += self.take(_shuffled(fill, rng), count - len(out))
        if len(out) < count:
            out += self.take(_shuffled(self._enumerate_more(count, rng), rng), count - len(out))
        return out

    def _evolve(self, best: list[Candidate], model: Scorer, rng: np.random.Generator) -> Iterator[Candidate]:
        """Candidates of all generations, highest score first."""
        population = self._first_population(best, rng)
        scored: list[tuple[Rows, dict[int, np.ndarray]]] = []
        for generation in range(self.options.generations + 1):
            scores = self.score(population, model)
            scored.append((population, scores))
            if generation < self.options.generations:
                population = self._breed(population, scores, rng)
        return _by_score(scored)

    def score(self, population: Rows, model: Scorer) -> dict[int, np.ndarray]:
        """The model's score of every row."""
        out = {}
        for k, rows in population.items():
            out[k] = model.predict(features(self.sketches[k], rows, self.task.target))
            self.n_scored += len(rows)
        return out

    def _first_population(self, best: list[Candidate], rng: np.random.Generator) -> Rows:
        size = self.options.population
        kept = [c for c in best if c[0] in self.bred][: int(size * self.options.best_share)]
        defaults = [self.default_of(k) for k in self.bred]
        near: Rows = {}
        for k in self.bred:
            mine = [r for j, r in (*kept, *defaults) if j == k]
            parents = np.stack(mine)[rng.integers(0, len(mine), size // (4 * len(self.bred)))]
            near[k] = np.concatenate([np.stack(mine), self._legal(k, self.spaces[k].mutate(parents, rng))])
        rest = self._sample(size - sum(map(len, near.values())), rng)
        return {k: np.concatenate([near[k], rest[k]]) for k in self.bred}

    def _sample(self, count: int, rng: np.random.Generator) -> Rows:
        """About `count` random legal rows, divided evenly among the sketches."""
        share = max(1, -(-count // len(self.bred)))
        out: Rows = {}
        for k in self.bred:
            rows = self._legal(k, self.spaces[k].sample(2 * share, rng))
            if len(rows) < share:  # few are legal: look among more
                rows = np.concatenate([rows, self._legal(k, self.spaces[k].sample(16 * share, rng))])
            out[k] = rows[:share]
        return out

    def _enumerate_more(self, count: int, rng: np.random.Generator) -> Rows:
        """A last look for unseen rows in a space that is nearly exhausted."""
        return {k: self._legal(k, self.spaces[k].sample(64 * count, rng)) for k in self.bred}

    def is_legal(self, k: int, row: np.ndarray) -> bool:
        """Whether one row may be measured."""
        return len(self._legal(k, row[None])) == 1

    def _legal(self, k: int, rows: np.ndarray) -> np.ndarray:
        kept: np.ndarray = rows[legal(self.sketches[k], rows, self.task.target)]
        return kept

    def _breed(self, population: Rows, scores: dict[int, np.ndarray], rng: np.random.Generator) -> Rows:
        """The next generation: parents are drawn in proportion to their score."""
        ks = [k for k in population if len(population[k])]
        owner = np.concatenate([np.full(len(population[k]), k) for k in ks])
        index = np.concatenate([np.arange(len(population[k])) for k in ks])
        weight = np.concatenate([scores[k] for k in ks])
        weight = np.maximum(weight - weight.min(), 0) + 1e-6
        picked = rng.choice(len(owner), self.options.population, p=weight / weight.sum())
        out: Rows = {}
        for k in ks:
            parents = population[k][index[picked[owner[picked] == k]]]
            if not len(parents):
                out[k] = population[k][:0]
                continue
            how = rng.random(len(parents))
            child = parents.copy()
            mutate = how < self.options.mutation
            cross = ~mutate & (how < self.options.mutation + self.options.crossover)
            child[mutate] = self.spaces[k].mutate(parents[mutate], rng)
            others = parents[rng.integers(0, len(parents), int(cross.sum()))]
            child[cross] = self.spaces[k].cross(parents[cross], others, rng)
            out[k] = self._legal(k, child)
        return out

    def take(self, ranked: Iterable[Candidate], count: int) -> list[Candidate]:
        """The first `count` that are new."""
        out: list[Candidate] = []
        for c in ranked:
            if len(out) >= count:
                break
            if self.mark(c):
                out.append(c)
        return out


def _by_score(scored: list[tuple[Rows, dict[int, np.ndarray]]]) -> Iterator[Candidate]:
    """The rows of all generations, highest score first, repeats included."""
    rows = [(k, r) for population, _ in scored for k, rs in population.items() for r in rs]
    values = np.concatenate([s[k] for population, s in scored for k in population])
    return (rows[i] for i in np.argsort(-values, kind="stable"))


def _shuffled(rows: Rows, rng: np.random.Generator) -> list[Candidate]:
    flat = [(k, r) for k, rs in rows.items() for r in rs]
    return [flat[i] for i in rng.permutation(len(flat))]
