"""Sketches under construction, and what the rules of every target ask about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from seer.ir.dag import ComputeDAG
from seer.ir.sketch import Attached, Nest, Param
from seer.ir.tensor import ComputeOp
from seer.runtime.target import Target
from seer.search import analysis


@dataclass(frozen=True)
class Partial:
    """A sketch under construction.

    Attributes:
        exact: whether algorithms that are equal up to rounding only are left out.
        nests: root nests so far, last to run first.
        inlined: stages always inlined.
        label: what was decided so far, for the sketch's key.
    """

    dag: ComputeDAG
    target: Target
    nests: tuple[Nest, ...] = ()
    params: tuple[Param, ...] = ()
    inlined: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    algorithm: str = ""
    exact: bool = False

    def op(self, stage: str) -> ComputeOp:
        return self.dag.op(stage)

    def add(self, nest: Nest, params: tuple[Param, ...], label: str) -> Partial:
        """With a nest that runs before those so far."""
        return replace(
            self, nests=(nest, *self.nests), params=self.params + params, label=(*self.label, label)
        )

    def host(self, stage: str) -> Nest | None:
        """The one root nest in which every reader of `stage` is computed, or None."""
        hosts = {id(n): n for r in self.readers(stage) for n in self.nests if r in _stages(n)}
        found = list(hosts.values())
        return (
            found[0] if len(found) == 1 and all(r in _stages(found[0]) for r in self.readers(stage)) else None
        )

    def readers(self, stage: str) -> list[str]:
        """The stages that read `stage`, through stages that are always inlined."""
        out: dict[str, None] = {}
        for t in self.dag.consumers[stage]:
            if t.name in self.inlined:
                out.update(dict.fromkeys(self.readers(t.name)))
            else:
                out[t.name] = None
        return list(out)

    def attach(self, host: Nest, nest: Nest, depths: tuple[int, ...], params: tuple[Param, ...]) -> Partial:
        """With `nest` attached to a root nest, its place a location param over `depths`."""
        where = Param(f"{nest.output}.location", "location", choices=depths)
        a = Attached(nest, depths[0], where.name)
        new_host = replace(host, attached=(a, *host.attached))
        return replace(
            self,
            nests=tuple(new_host if n is host else n for n in self.nests),
            params=(*self.params, *params, where),
            label=(*self.label, f"attach({nest.output})"),
        )


def _stages(nest: Nest) -> set[str]:
    out = {nest.stage, nest.output}
    for a in nest.attached:
        out |= _stages(a.nest)
    if nest.consumer is not None:
        out |= _stages(nest.consumer.nest)
    return out


class SketchRule(Protocol):
    """One way to decide a stage."""

    @property
    def name(self) -> str: ...

    def applies(self, partial: Partial, stage: str) -> bool:
        """Whether the rule can decide this stage."""
        ...

    def apply(self, partial: Partial, stage: str) -> list[Partial]:
        """The partial sketches in which the stage is decided."""
        ...

    @property
    def is_final(self) -> bool:
        """Whether, once it applies, the rules after it are not tried for the stage."""
        ...


Builder = Callable[..., tuple[Nest, tuple[Param, ...]]]


@dataclass(frozen=True)
class Rule:
    """A rule made of two functions."""

    name: str
    condition: Callable[[Partial, str], bool]
    action: Callable[[Partial, str], list[Partial]]
    is_final: bool = True

    def applies(self, partial: Partial, stage: str) -> bool:
        return self.condition(partial, stage)

    def apply(self, partial: Partial, stage: str) -> list[Partial]:
        return self.action(partial, stage)


# -- what rules share ------------------------------------------------------------------------------


def row_host(p: Partial, stage: str) -> Nest | None:
    """The nest in whose first group a reduction is complete: its axes are that group's axes."""
    host = p.host(stage)
    if host is None or p.op(stage).reducer is None or len(host.groups) < 2:
        return None
    fixed = {x.axis for x in host.groups[0]}
    return host if analysis.is_fixed_by(p.dag, stage, host, fixed, p.inlined) else None


def epilogue_of(p: Partial, stage: str) -> Nest | None:
    """A simple root nest whose stage reads `stage` only at its own position (Ansor: fusible consumer)."""
    if stage == p.dag.output.name:
        return None
    host = p.host(stage)
    if host is None or host.epilogue is not None or p.op(host.stage).reducer is not None:
        return None
    if host.attached or (host.bind is not None and host.bind.pattern != "flat"):
        return None
    return host if analysis.is_elementwise_of(p.dag, host.stage, stage, p.inlined) else None


def tile_with_epilogue(p: Partial, stage: str, build: Builder, label: str) -> Partial:
    """With `stage` in a tiled nest, and its element-wise consumer in the nest's epilogue."""
    consumer = epilogue_of(p, stage)
    if consumer is not None:
        gone = {q.name for q in p.params if q.name.startswith(f"{consumer.stage}.")}
        p = replace(
            p,
            nests=tuple(n for n in p.nests if n is not consumer),
            params=tuple(q for q in p.params if q.name not in gone),
            label=tuple(x for x in p.label if x != f"simple({consumer.stage})"),
        )
    nest, params = build(p.dag, stage, p.target)
    if consumer is not None:
        nest = replace(nest, epilogue=consumer.stage)
        label = f"{label}+{consumer.stage}"
    return p.add(nest, params, label)


def has_reuse(p: Partial, stage: str) -> bool:
    """Whether elements that the stage reads are read again."""
    return analysis.has_reuse(p.op(stage))


def is_commutative(p: Partial, stage: str) -> bool:
    """Whether the stage is a reduction whose terms may be combined in any order."""
    op = p.op(stage)
    return op.reducer is not None and op.reducer.commutative


def is_ordered(p: Partial, stage: str) -> bool:
    """Whether the stage is a reduction that must keep its order."""
    return p.op(stage).reducer is not None and not is_commutative(p, stage)


def is_row_reduction(p: Partial, stage: str) -> bool:
    """A reduction without reuse that one iteration of its reader's first group completes."""
    return (
        is_commutative(p, stage)
        and not has_reuse(p, stage)
        and epilogue_of(p, stage) is None
        and row_host(p, stage) is not None
    )


def is_spatial(p: Partial, stage: str) -> bool:
    """Whether the stage reduces nothing."""
    return p.op(stage).reducer is None
