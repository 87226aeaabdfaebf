"""How a partitioned graph runs: the kernels in order, and where every array lies meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from seer.codegen.artifact import ArgSpec, PackSpec
from seer.codegen.memory_plan import Lifetime, plan_memory
from seer.codegen.model_entry import Copy, KernelCall, Loop, Slot, Step
from seer.codegen.weights import Weight, Weights
from seer.graph.graph import Graph, Value
from seer.graph.partition import Partition, Subgraph


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
    for region in partition.runs():
        calls = tuple(
            KernelCall(kernels[k].name, layout.slots(partition.subgraphs[k], kernels[k].args, region.count))
            for k in range(region.start, region.stop)
            if kernels[k].args[-1].size_bytes
        )
        if region.count == 1:
            steps += calls
        elif calls:
            steps.append(Loop(region.count, calls))
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
        self._origin = partition.origin
        self._graph = graph
        self.constants = _Constants()
        self._slots = {v: Slot("inputs", k) for k, v in enumerate(graph.inputs)}
        computed = {s.output for s in partition.subgraphs}
        for k, v in enumerate(graph.outputs):
            origin = self._origin(v)
            if origin in computed and origin not in self._slots:
                self._slots[origin] = Slot("outputs", k)  # the kernel writes the output itself
        self._passing: set[Value] = set()  # of which there is one slice at a time
        self.arena_bytes = self._place_intermediates(partition)

    def slots(self, s: Subgraph, args: Sequence[ArgSpec], count: int) -> tuple[Slot, ...]:
        """The slots of a kernel's arguments, in a region of `count` slices or (1) in none."""
        sliced = s.sliced | {s.output} if count > 1 else set()
        out = []
        for v, spec in zip((*s.inputs, s.output), args, strict=True):
            is_whole = v not in sliced or self._origin(v) in self._passing
            slot = self.slot(v, spec)
            out.append(slot if is_whole else replace(slot, stride=_spec(v).size_bytes // count))
        return tuple(out)

    def slot(self, value: Value, spec: ArgSpec) -> Slot:
        """The slot of a whole array, or the only one of the slices of what stays in a region."""
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

    def _place_intermediates(self, partition: Partition) -> int:
        """Give every computed value that has no slot yet its place in the arena; return its size.

        What only one region makes and reads needs room for one slice; other values that a region makes
        or reads are in use from its first kernel on, or to its last.
        """
        region = {k: r for r in partition.runs() for k in range(r.start, r.stop)}
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for k, s in enumerate(partition.subgraphs):
            first[s.output] = last[s.output] = k
            for v in s.inputs:
                last[self._origin(v)] = k
        lives = []
        values = [v for v in first if v not in self._slots]
        for v in values:
            made, read = region[first[v]], region[last[v]]
            if made is read and made.count > 1:
                self._passing.add(v)
                lives.append(Lifetime(_spec(v).size_bytes // made.count, first[v], last[v]))
            else:
                lives.append(Lifetime(_spec(v).size_bytes, made.start, read.stop - 1))
        plan = plan_memory(lives)
        self._slots |= {v: Slot("arena", o) for v, o in zip(values, plan.offsets, strict=True)}
        return plan.size_bytes
