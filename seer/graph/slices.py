"""Slices of kernels: which of a model's kernels can run for one part of the batch after another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from seer.graph.graph import Value
from seer.graph.partition import Partition, Region
from seer.ir.dag import ComputeDAG
from seer.ir.slices import Leading, leading_axis, slice_of

MAX_SLICES = 64


def cut(parts: Partition, regions: Iterable[Region]) -> Partition:
    """The partition with given regions, whose kernels `Slices` must allow there."""
    subgraphs = list(parts.subgraphs)
    slices = Slices(parts)
    made: dict[tuple[str, int], ComputeDAG] = {}
    regions = tuple(regions)
    for r in regions:
        for k in range(r.start, r.stop):
            s, leading = subgraphs[k], slices.leading[k]
            assert leading is not None and slices.allow(k, r.start, r.count)
            key = (s.dag.workload_key, r.count)
            if key not in made:
                made[key] = slice_of(s.dag, leading, r.count)
            subgraphs[k] = replace(s, dag=made[key], sliced=slices.sliced[k])
    return Partition(tuple(subgraphs), parts.aliases, regions)


class Slices:
    """Which kernels of a partition can run slice by slice, and which together.

    Attributes:
        leading: the leading axis of each kernel that has one.
        sliced: the inputs that each of these reads along it.
    """

    def __init__(self, parts: Partition) -> None:
        known: dict[str, Leading | None] = {}
        self._origin = parts.origin
        self._subgraphs = parts.subgraphs
        self._maker = {s.output: k for k, s in enumerate(parts.subgraphs)}
        self.leading: list[Leading | None] = []
        self.sliced: list[frozenset[Value]] = []
        for s in parts.subgraphs:
            key = s.dag.workload_key
            if key not in known:
                known[key] = leading_axis(s.dag)
            found = known[key]
            names = found.sliced if found is not None else ()
            inputs = zip(s.inputs, s.dag.inputs, strict=True)
            self.leading.append(found)
            self.sliced.append(frozenset(v for v, t in inputs if t.name in names))

    def counts(self, k: int) -> list[int]:
        """Into how many slices kernel k can be cut."""
        leading = self.leading[k]
        if leading is None:
            return []
        most = min(MAX_SLICES, leading.extent)
        return [c for c in range(2, most + 1) if leading.extent % c == 0]

    def allow(self, k: int, start: int, count: int) -> bool:
        """Whether kernel k can join the kernels start..k-1 as a region of so many slices."""
        leading = self.leading[k]
        if leading is None or leading.extent % count:
            return False
        made_there = (v for v in self._subgraphs[k].inputs if self._maker.get(self._origin(v), -1) >= start)
        return all(v in self.sliced[k] for v in made_there)
