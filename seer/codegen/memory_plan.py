"""Where each intermediate array of a model lies: arrays that never live together share bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An array of `size_bytes` that is in use during the steps first..last, both included."""

    size_bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether there is a step at which both are in use."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One offset (bytes, a multiple of ALIGNMENT) per array, in an arena of `size_bytes`."""

    offsets: tuple[int, ...]
    size_bytes: int


def align(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of ALIGNMENT."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place the largest arrays first, each at the lowest offset that is free throughout its life.

    The greedy order is that of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net
    Inference (arXiv 2001.03288), "greedy by size"; on networks it is within a few percent of the
    lower bound.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for k in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size_bytes, lifetimes[i].first)):
        neighbours = sorted(
            (offsets[j], offsets[j] + align(lifetimes[j].size_bytes))
            for j in placed
            if lifetimes[j].meets(lifetimes[k])
        )
        offset = 0
        for begin, end in neighbours:
            if offset + align(lifetimes[k].size_bytes) <= begin:
                break
            offset = max(offset, end)
        offsets[k] = offset
        placed.append(k)
    ends = (o + align(life.size_bytes) for o, life in zip(offsets, lifetimes, strict=True))
    return MemoryPlan(tuple(offsets), max(ends, default=0))
