"""Graph passes: each takes a Graph and returns a new one that computes the same."""

from __future__ import annotations

from collections.abc import Callable

from seer import flags
from seer.graph.graph import Graph
from seer.graph.passes.channels_last import channels_last
from seer.graph.passes.fold_batch_norm import fold_batch_norm
from seer.graph.passes.fold_constants import fold_constants
from seer.graph.passes.merge_equal import merge_equal
from seer.graph.passes.simplify import simplify
from seer.graph.passes.split_bias import split_bias

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    fold_batch_norm,
    split_bias,
    channels_last,
    fold_constants,
    simplify,
    merge_equal,
)


def optimize(graph: Graph) -> Graph:
    """The graph as it is partitioned and compiled."""
    for p in PASSES:
        graph = p(graph)
    flags.debug("graph", lambda: str(graph))
    return graph


__all__ = ["PASSES", "optimize"]
