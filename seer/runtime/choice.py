"""Which of a workload's timings to believe: what is compiled, and what a run reports.

Times of different moments cannot be compared on a shared machine: a candidate that was timed in a bad
moment looks slow, and whatever was timed after it fast. Only a contest, in which candidates take turns,
is a comparison; a time outside of one owes up to LUCK to the moment.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

LUCK = 1.25  # how much the fastest of many trials may owe to luck, at most


@dataclass(frozen=True)
class Timed:
    """One timing.

    Attributes:
        name: of which candidate.
        seconds: infinity for a failure.
        is_final: whether it was one of a contest.
    """

    name: Hashable
    seconds: float
    is_final: bool = False


@dataclass(frozen=True)
class Choice:
    """What to compile.

    Attributes:
        number: of the timing that decided; None if none did: the default candidate has to do.
        seconds: its time (infinity without).
        default_s: the default candidate's time beside it (infinity if unknown).
    """

    number: int | None
    seconds: float = math.inf
    default_s: float = math.inf


def choose(timings: Sequence[Timed], default: Hashable = None) -> Choice:
    """The fastest candidate, as far as its timings show that it is no slower than the default one.

    Of a candidate its latest contest counts, relative to the default's time there. What was timed after all
    contests (by a run that was stopped before it held its own) wins only if it is faster by more than luck:
    than the winner, or than the default one where there was no contest yet.

    Args:
        timings: in the order in which they were made; neighbours that are final are one contest.
        default: what is compiled without records; None for any candidate to be as good as it.
    """
    contests = _contests(timings)
    own = [i for i, t in enumerate(timings) if t.name == default and default is not None]
    tried = [i for i in own if not timings[i].is_final][-1:]
    if contests:
        winner = _winner(timings, contests, own, tried)
    elif tried:
        winner = _choice(timings, tried[0], timings[tried[0]].seconds)
    elif default is None:
        winner = Choice(None)
    else:
        return Choice(None)
    after = range(contests[-1][-1] + 1 if contests else 0, len(timings))
    best = min(after, key=lambda i: timings[i].seconds, default=None)
    if best is not None and LUCK * timings[best].seconds < winner.seconds:
        return _choice(timings, best, winner.default_s)
    return winner


def _contests(timings: Sequence[Timed]) -> list[list[int]]:
    """The numbers of the timings of each contest, without those contests in which everything failed."""
    runs = [
        [*run] for is_final, run in groupby(range(len(timings)), lambda i: timings[i].is_final) if is_final
    ]
    return [c for c in runs if any(math.isfinite(timings[i].seconds) for i in c)]


def _winner(
    timings: Sequence[Timed], contests: Sequence[Sequence[int]], own: Sequence[int], tried: Sequence[int]
) -> Choice:
    """The best of all contests; those with the default candidate count, if there are any.

    Args:
        timings: all of them.
        contests: numbers of the timings of each.
        own: numbers of the default candidate's timings.
        tried: number of its trial, if there was one.
    """
    latest: dict[Hashable, Choice] = {}
    for c in contests:
        for i in (i for i in own if i in c):
            latest |= {timings[k].name: _choice(timings, k, timings[i].seconds) for k in c}
    if latest:
        fine = [c for c in latest.values() if c.number is not None]
        return min(fine, key=lambda c: (c.seconds / max(c.default_s, 1e-12), c.seconds), default=Choice(None))
    default_s = timings[tried[0]].seconds if tried else math.inf
    found = [_choice(timings, i, default_s) for i in (*chain.from_iterable(contests), *tried)]
    return min(found, key=lambda c: c.seconds)


def _choice(timings: Sequence[Timed], number: int, default_s: float) -> Choice:
    seconds = timings[number].seconds
    return Choice(number if math.isfinite(seconds) else None, seconds, default_s)
