"""How a partitioned graph runs: the kernels in order, and where every array lies meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from seer.codegen.artifact import ArgSpec, PackSpec
from seer.codegen.memory_plan import Lifetime, plan_memory
from seer.codegen.model_entry import Copy, KernelCall, Slot, Step
from seer.codegen.weights import Weight, Weights
from seer.graph.graph import Graph, Value
from seer.graph.partition import Partition


class KernelLike(Protocol):
    """What a plan needs to know of a kernel, whatever it is compiled to."""

    @property
    def name(self) -> str: ...

    @property
    def args(self) -> tuple[ArgSpec, ...]: ...

    def scratch_size(self, num_threads: int) -> int:
        """Bytes of scratch one call needs."""
        ...


KernelT = TypeVar("KernelT", bound=KernelLike)


@dataclass(frozen=True)
class ModelPlan(Generic[KernelT]):
    """Everything that a compiled model consists of, but for the linked code.

    Attributes:
        constants: the weights; whoever loads the plan takes them.
        steps: kernel calls and copies, in the order of execution.
        arena_bytes: intermediate arrays; the kernels' scratch comes after them.
        artifacts: each distinct kernel once.
    """

    name: str
    inputs: tuple[ArgSpec, ...]
    outputs: tuple[ArgSpec, ...]
    constants: Weights
    steps: tuple[Step, ...]
    arena_bytes: int
    artifacts: tuple[KernelT, ...]

    def arena_size(self, num_threads: int) -> int:
        """Bytes that one call with `num_threads` needs: intermediate arrays and scratch."""
        return self.arena_bytes + max((a.scratch_size(num_threads) for a in self.artifacts), default=0)

    @property
    def constant_bytes(self) -> int:
        """Bytes of all weights, as packed."""
        return sum(self.constants.sizes)


def plan_model(graph: Graph, partition: Partition, kernels: Sequence[KernelT]) -> ModelPlan[KernelT]:
    """Lay out a model.

    Args:
        graph: the optimised graph.
        partition: its subgraphs, in topological order.
        kernels: one kernel per subgraph; equal subgraphs may share one.
    """
    layout = _Layout(graph, partition)
    steps: list[Step] = []
    for subgraph, artifact in zip(partition.subgraphs, kernels, strict=True):
        if artifact.args[-1].size_bytes == 0:
            continue
        values = (*subgraph.inputs, subgraph.output)
        slots = tuple(layout.slot(v, a) for v, a in zip(values, artifact.args, strict=True))
        steps.append(KernelCall(artifact.name, slots))
    steps += layout.output_copies()
    return ModelPlan(
        name=graph.name,
        inputs=tuple(_spec(v) for v in graph.inputs),
        outputs=tuple(_spec(v) for v in graph.outputs),
        constants=Weights(layout.constants.weights),
        steps=tuple(steps),
        arena_bytes=layout.arena_bytes,
        artifacts=tuple({a.name: a for a in kernels}.values()),
    )


def _spec(v: Value) -> ArgSpec:
    return ArgSpec(v.name, tuple(v.shape), v.dtype)


@dataclass
class _Constants:
    """The table of weights; one entry per value and packing."""

    weights: list[Weight] = field(default_factory=list)
    _index: dict[tuple[Value, PackSpec | None], int] = field(default_factory=dict)

    def slot(self, value: Value, spec: ArgSpec) -> Slot:
        key = (value, spec.pack)
        if key not in self._index:
            self._index[key] = len(self.weights)
            self.weights.append(Weight(value.node.attrs["value"], spec))
        return Slot("constants", self._index[key])


class _Layout:
    """Where each value of the graph is stored; a view is stored where its origin is."""

    def __init__(self, graph: Graph, partition: Partition) -> None:
        self._aliases = partition.aliases
        self._graph = graph
        self.constants = _Constants()
        self._slots = {v: Slot("inputs", k) for k, v in enumerate(graph.inputs)}
        computed = {s.output for s in partition.subgraphs}
        for k, v in enumerate(graph.outputs):
            origin = self._origin(v)
            if origin in computed and origin not in self._slots:
                self._slots[origin] = Slot("outputs", k)  # the kernel writes the output itself
        self.arena_bytes = self._place_intermediates(partition)

    def slot(self, value: Value, spec: ArgSpec) -> Slot:
        """The slot of a kernel's argument."""
        origin = self._origin(value)
        if origin.node.op == "constant":
            return self.constants.slot(origin, spec)
        return self._slots[origin]

    def output_copies(self) -> list[Step]:
        """Copies for the outputs that no kernel writes: inputs, constants, and the same value again."""
        copies: list[Step] = []
        for k, v in enumerate(self._graph.outputs):
            spec, here = _spec(v), Slot("outputs", k)
            source = self.slot(v, spec)
            if source != here and spec.size_bytes:
                copies.append(Copy(source, here, spec.size_bytes))
        return copies

    def _origin(self, value: Value) -> Value:
        while value in self._aliases:
            value = self._aliases[value]
        return value

    def _place_intermediates(self, partition: Partition) -> int:
        """Give every computed value that has no slot yet its place in the arena; return its size."""
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for step, s in enumerate(partition.subgraphs):
            first[s.output] = last[s.output] = step
            for v in s.inputs:
                last[self._origin(v)] = step
        values = [v for v in first if v not in self._slots]
        plan = plan_memory([Lifetime(_spec(v).size_bytes, first[v], last[v]) for v in values])
        self._slots |= {v: Slot("arena", o) for v, o in zip(values, plan.offsets, strict=True)}
        return plan.size_bytes
