"""Other algorithms for a task: ComputeDAGs that compute the same from the same inputs.

An alternative takes the inputs of the task's own DAG in the same order (a weight may be replaced by
something derived from it ahead of the run) and gives the same output up to rounding. Its sketches
stand beside the task's own, and measurement chooses. `seer.compile(..., exact=True)` and
`seer.tune(..., exact=True)` do without all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from seer.ir.dag import ComputeDAG


@dataclass(frozen=True, eq=False)
class Alternative:
    """One other way to compute a DAG; `name` begins the keys of its sketches.

    With `in_blocks` it is for sketches only in which a consumer is computed block by block.
    """

    name: str
    dag: ComputeDAG
    in_blocks: bool = False


Rewrite = Callable[[ComputeDAG], Iterable[Alternative]]

REWRITES: dict[str, Rewrite] = {}


def register_alternative(name: str, rewrite: Rewrite) -> None:
    """Add an algorithm: `rewrite` gives the alternatives that it has for a DAG (none if it has not)."""
    REWRITES[name] = rewrite


def alternatives(dag: ComputeDAG) -> list[Alternative]:
    """Every alternative of a DAG, in the order in which the algorithms were registered."""
    return [a for rewrite in REWRITES.values() for a in rewrite(dag)]
