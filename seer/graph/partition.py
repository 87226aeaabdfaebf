"""The partitioner: which operators run in one kernel.

A kernel has at most one anchor (a convolution, a matrix product, a reduction). Element-wise
operators join the kernel of the value that they read, if nothing else reads it; whatever moves or
computes elements one by one (padding, transposes, scaling) joins the kernel of its only reader.
Reshapes are no kernels at all: they name the same memory.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from seer import flags
from seer.dtypes import dtype as dtype_of
from seer.graph.graph import Graph, Node, Value
from seer.graph.passes.rewrite import reader_counts
from seer.graph.registry import op_def
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Const
from seer.ir.tensor import Tensor, compute, converted, placeholder

VIEWS = ("reshape", "flatten")


@dataclass(frozen=True)
class Subgraph:
    """The operators of one kernel.

    Attributes:
        nodes: inputs before users.
        inputs: what the kernel reads, constants included, in the order of the DAG's inputs.
        output: what it computes.
        dag: its tensor expressions; names depend on its structure alone, so equal subgraphs of any
            model have equal DAGs. In a region it is that of one slice.
        sliced: in a region, those of the inputs of which it reads one slice at a time.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    output: Value
    dag: ComputeDAG
    sliced: frozenset[Value] = frozenset()


@dataclass(frozen=True)
class Region:
    """Neighbouring kernels that run slice by slice: all of them for the first slice, then for the next.

    Slice k of an array is the k-th of `count` equal pieces of its memory.

    Attributes:
        start: position of its first kernel.
        stop: position after its last kernel.
        count: number of slices.
    """

    start: int
    stop: int
    count: int


@dataclass(frozen=True)
class Partition:
    """A graph cut into kernels.

    Attributes:
        subgraphs: in an order in which they can run.
        aliases: values that are another value's memory under another shape.
        regions: in the order of their kernels, without overlap; what is in none runs for the whole batch.
    """

    subgraphs: tuple[Subgraph, ...]
    aliases: Mapping[Value, Value]
    regions: tuple[Region, ...] = ()

    def origin(self, value: Value) -> Value:
        """The value in whose memory another lies."""
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def runs(self) -> list[Region]:
        """The regions, and each other kernel as one of its own with a single slice, in order."""
        out: list[Region] = []
        for r in (*self.regions, Region(len(self.subgraphs), len(self.subgraphs), 1)):
            begin = out[-1].stop if out else 0
            out += [Region(k, k + 1, 1) for k in range(begin, r.start)]
            out += [r] if r.stop > r.start else []
        return out

    def counts(self) -> list[int]:
        """How often each kernel runs: the number of its slices."""
        return [r.count for r in self.runs() for _ in range(r.start, r.stop)]

    def __str__(self) -> str:
        lines = []
        for r in self.runs():
            if r.count > 1:
                lines.append(f"{r.count} slices, one after another:")
            for s in self.subgraphs[r.start : r.stop]:
                ops = " + ".join(n.op for n in s.nodes)
                indent = "  " if r.count > 1 else ""
                lines.append(f"{indent}{s.output.name}: {s.output.dtype}{list(s.output.shape)} = {ops}")
        return "\n".join(lines)


def partition(graph: Graph) -> Partition:
    """Cut an optimised graph into kernels."""
    aliases = {v: v.node.inputs[0] for v in graph.values() if v.node.op in VIEWS}
    groups = _Groups(graph, aliases)
    for v in groups.computed:
        groups.join_producers(v)
    made: dict[str, ComputeDAG] = {}
    subgraphs = []
    for members in groups.in_order():
        s = _subgraph(members)
        dag = made.setdefault(s.dag.workload_key, s.dag)
        subgraphs.append(Subgraph(s.nodes, s.inputs, s.output, dag))
    out = Partition(tuple(subgraphs), aliases)
    flags.debug("partition", lambda: str(out))
    flags.debug("dag", lambda: "\n\n".join(str(d) for d in made.values()))
    return out


def weight_bytes(parts: Partition) -> list[int]:
    """Bytes of the weights of each subgraph; those that several share count for the first."""
    seen: set[Value] = set()
    out = []
    for s in parts.subgraphs:
        mine = {v for v in s.inputs if v.node.op == "constant"} - seen
        seen |= mine
        out.append(sum(map(size_of, mine)))
    return out


def size_of(v: Value) -> int:
    """Bytes of a value."""
    return math.prod(v.shape) * dtype_of(v.dtype).size_bytes


@dataclass
class _Groups:
    """Sets of values that become kernels; each begins with one value and they join."""

    graph: Graph
    aliases: Mapping[Value, Value]
    computed: list[Value] = field(init=False)
    group: dict[Value, list[Value]] = field(init=False)

    def __post_init__(self) -> None:
        leaves = ("input", "constant")
        self.computed = [v for v in self.graph.values() if v.node.op not in leaves and v not in self.aliases]
        self.group = {v: [v] for v in self.computed}
        self.order = {v: k for k, v in enumerate(self.computed)}
        self.readers = reader_counts(self.graph)

    def join_producers(self, v: Value) -> None:
        """Join to v's group the groups of inputs that only v reads, where that is one kernel's work."""
        inputs = [i for i in dict.fromkeys(v.node.inputs) if i in self.group and self.readers[i] == 1]
        if self.kind(v) == "elementwise":
            same = [i for i in inputs if i.shape == v.shape and self.has_anchor(i)]
            if same:  # of several anchors the last: the others are ready by then
                self.join(max(same, key=lambda i: self.order[i]), v)
        for i in inputs:
            if i not in self.group[v] and not self.has_anchor(i) and self.kind(v) != "opaque":
                self.join(i, v)

    def kind(self, v: Value) -> str:
        return op_def(v.node.op).fusion

    def has_anchor(self, v: Value) -> bool:
        """Whether the group computes something that takes many elements for one."""
        return any(self.kind(m) in ("anchor", "reduction", "opaque") for m in self.group[v])

    def join(self, a: Value, b: Value) -> None:
        """Make one group of two."""
        members = sorted({*self.group[a], *self.group[b]}, key=lambda m: self.order[m])
        for m in members:
            self.group[m] = members

    def in_order(self) -> list[list[Value]]:
        """The groups, each after those whose values it reads; of those that are ready, the first made."""
        first = {v: self.order[self.group[v][0]] for v in self.computed}
        g = nx.DiGraph()
        g.add_nodes_from(first.values())
        for v in self.computed:
            for i in v.node.inputs:
                while i in self.aliases:
                    i = self.aliases[i]
                if i in first and first[i] != first[v]:
                    g.add_edge(first[i], first[v])
        return [self.group[self.computed[k]] for k in nx.lexicographical_topological_sort(g)]


def _subgraph(members: list[Value]) -> Subgraph:
    """The tensor expressions of a group, the last member being its output."""
    inside = set(members)
    inputs: dict[Value, Tensor] = {}
    tensors: dict[Value, Tensor] = {}
    counts: dict[str, itertools.count[int]] = {}
    for v in members:
        for i in v.node.inputs:
            if i in inside or i in tensors:
                continue
            number = _scalar(i)
            if number is None:
                constant = i.node.op == "constant"
                inputs[i] = tensors[i] = placeholder(i.shape, i.dtype, f"in{len(inputs)}", constant)
            else:
                tensors[i] = compute((), lambda n=number: n, f"number{len(tensors)}")
        stem = re.sub(r"\W", "_", v.node.op)
        k = next(counts.setdefault(stem, itertools.count()))
        name = stem if k == 0 else f"{stem}{k + 1}"
        args = [tensors[i] for i in v.node.inputs]
        if v.node.op == "widen" and v is not members[-1]:
            # Read as it is stored: what is known of weights (that they can be packed ahead) holds.
            tensors[v] = converted(args[0], v.dtype)
            continue
        tensors[v] = op_def(v.node.op).define(args, v.node.attrs, name)
    dag = ComputeDAG(tensors[members[-1]], list(inputs.values()))
    return Subgraph(tuple(v.node for v in members), tuple(inputs), members[-1], dag)


def _scalar(v: Value) -> Const | None:
    """The number that a constant of rank 0 is: it becomes part of the code."""
    if v.node.op != "constant" or v.shape:
        return None
    return Const(np.asarray(v.node.attrs["value"]).item(), v.dtype)
