"""SearchTask: one distinct kernel of a model and how often it occurs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from seer.graph.partition import Partition
from seer.ir.dag import ComputeDAG
from seer.ir.sketch import Sketch
from seer.runtime.target import Target
from seer.search.rules import generate_sketches
from seer.search.space import space_of


@dataclass(frozen=True, eq=False)
class SearchTask:
    """A ComputeDAG to find fast code for.

    Attributes:
        dag: what to compute.
        target: on what.
        weight: how often it occurs in the model; the objective is the sum of weight * latency.
        name: for people: the anchor operator and its output's shape.
        exact: whether algorithms that are equal up to rounding only are left out.
    """

    dag: ComputeDAG
    target: Target
    weight: int = 1
    name: str = ""
    exact: bool = False

    @property
    def key(self) -> str:
        """The workload's identity; records are kept by it."""
        return self.dag.workload_key

    @cached_property
    def sketches(self) -> tuple[Sketch, ...]:
        """The naive sketch, then the derived ones, best guess first."""
        return generate_sketches(self.dag, self.target, self.exact)

    @cached_property
    def space_size(self) -> float:
        """How many candidates there are, at most."""
        return sum(space_of(s, self.target).size for s in self.sketches)

    def __repr__(self) -> str:
        return f"SearchTask({self.name or self.dag.tag}, weight {self.weight})"


def tasks_of(partition: Partition, target: Target, exact: bool = False) -> list[SearchTask]:
    """One task per distinct subgraph of a model, in the order of first use.

    A subgraph counts once for each of its slices. Those whose output has no elements need no code and
    make no task.
    """
    weights: dict[str, int] = {}
    dags: dict[str, ComputeDAG] = {}
    for s, count in zip(partition.subgraphs, partition.counts(), strict=True):
        if 0 in s.dag.output.shape:
            continue
        dags.setdefault(s.dag.workload_key, s.dag)
        weights[s.dag.workload_key] = weights.get(s.dag.workload_key, 0) + count
    return [SearchTask(dag, target, weights[key], task_name(dag), exact) for key, dag in dags.items()]


def task_name(dag: ComputeDAG) -> str:
    """The operator and shapes, such as "conv2d 1x56x56x64 <- 1x56x56x64"."""
    out = _shape(dag.output.shape)
    first = next((t for t in dag.inputs), None)
    return f"{dag.tag} {out}" + (f" <- {_shape(first.shape)}" if first is not None else "")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
