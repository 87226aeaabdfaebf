"""Sketch rules: how the loop structures of a ComputeDAG are derived (Ansor, section 4.1).

Stages are visited from the output to the inputs. At each stage the rules are tried in order; a
rule that applies makes new partial sketches, and may end the list for that stage. A rule is one
registered class: add one with `register_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from seer import flags
from seer.errors import ScheduleError
from seer.ir.dag import ComputeDAG
from seer.ir.sketch import INLINE, ROOT, Attached, Nest, Param, Sketch
from seer.ir.tensor import ComputeOp
from seer.runtime.target import Target
from seer.search import analysis, builders, winograd  # noqa: F401  (winograd registers itself)
from seer.search.alternatives import alternatives


@dataclass(frozen=True)
class Partial:
    """A sketch under construction.

    Attributes:
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

RULES: list[SketchRule] = []


def register_rule(rule: SketchRule, before: str | None = None) -> SketchRule:
    """Add a rule, at the end or before the rule called `before`."""
    names = [r.name for r in RULES]
    RULES.insert(len(RULES) if before is None else names.index(before), rule)
    generate_sketches.cache_clear()
    return rule


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


# -- the rules -----------------------------------------------------------------------------------


def _can_inline(p: Partial, stage: str) -> bool:
    op = p.op(stage)
    if op.reducer is not None or stage == p.dag.output.name:
        return False
    return analysis.is_cheap(op) or analysis.is_read_once(p.dag, stage)


def _inline(p: Partial, stage: str) -> list[Partial]:
    return [replace(p, inlined=(*p.inlined, stage))]


def _is_attachable(p: Partial, stage: str) -> bool:
    """A stage that reduces nothing and is read in one nest only."""
    return p.op(stage).reducer is None and stage != p.dag.output.name and p.host(stage) is not None


def _attach(p: Partial, stage: str) -> list[Partial]:
    host = p.host(stage)
    assert host is not None
    packed = any(k.tensor == stage for k in host.packs)
    whole = packed or not analysis.has_regions(p.dag, stage, p.inlined)
    inner = () if whole else tuple(range(1, max(host.finish, 1) + 1))
    nest, params = builders.plain_nest(p.dag, stage)
    return [p.attach(host, nest, (*inner, ROOT, INLINE), params)]


def _row_host(p: Partial, stage: str) -> Nest | None:
    """The nest in whose first group a reduction is complete: its axes are that group's axes."""
    host = p.host(stage)
    if host is None or p.op(stage).reducer is None or len(host.groups) < 2:
        return None
    fixed = {x.axis for x in host.groups[0]}
    return host if analysis.is_fixed_by(p.dag, stage, host, fixed, p.inlined) else None


def _attach_reduction(p: Partial, stage: str) -> list[Partial]:
    host = _row_host(p, stage)
    assert host is not None
    lanes = analysis.can_use_lanes(p.dag, stage)
    build = builders.lanes_nest if lanes else builders.reduce_nest
    nest, params = build(p.dag, stage, p.target, parallel=False)
    return [p.attach(host, nest, (1,), params)]


def _epilogue_of(p: Partial, stage: str) -> Nest | None:
    """A simple root nest whose stage reads `stage` only at its own position (Ansor: fusible consumer)."""
    if stage == p.dag.output.name:
        return None
    host = p.host(stage)
    if host is None or host.epilogue is not None or p.op(host.stage).reducer is not None:
        return None
    if host.attached:
        return None
    return host if analysis.is_elementwise_of(p.dag, host.stage, stage, p.inlined) else None


def _tile(p: Partial, stage: str, build: Builder, label: str) -> Partial:
    """With `stage` in a tiled nest, and its element-wise consumer in the nest's epilogue."""
    consumer = _epilogue_of(p, stage)
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


def _is_written_out(p: Partial, stage: str) -> bool:
    op = p.op(stage)
    return bool(op.written_out) and op.reducer is None


def _write_out(p: Partial, stage: str) -> list[Partial]:
    return [_tile(p, stage, builders.written_out_nest, f"straight({stage})")]


def _has_reuse(p: Partial, stage: str) -> bool:
    return analysis.has_reuse(p.op(stage))


def _multi_level(p: Partial, stage: str) -> list[Partial]:
    """SSSRRS, finished from registers, and SSRSRS, accumulated in a tile buffer (cache write)."""
    out = [_tile(p, stage, builders.register_tiled, f"SSSRRS({stage})")]
    if analysis.reduce_points(p.op(stage)) > 1:
        out.append(_tile(p, stage, builders.cache_tiled, f"SSRSRS({stage})"))
    return out


def _is_commutative(p: Partial, stage: str) -> bool:
    op = p.op(stage)
    return op.reducer is not None and op.reducer.commutative


def _wants_lanes(p: Partial, stage: str) -> bool:
    if not _is_commutative(p, stage) or not analysis.can_use_lanes(p.dag, stage):
        return False
    op = p.op(stage)
    few = analysis.spatial_points(op) < 16 * p.target.lanes(op.body.dtype)
    return few or not analysis.has_reuse(op)


def _rfactor(p: Partial, stage: str) -> list[Partial]:
    return [_tile(p, stage, builders.lanes_nest, f"rfactor({stage})")]


def _simple_reduce(p: Partial, stage: str) -> list[Partial]:
    return [_tile(p, stage, builders.reduce_nest, f"SRS({stage})")]


def _ordered_reduce(p: Partial, stage: str) -> list[Partial]:
    nest, params = builders.ordered_nest(p.dag, stage, p.target)
    return [p.add(nest, params, f"ordered({stage})")]


def _skip(p: Partial, stage: str) -> list[Partial]:
    rows = analysis.row_axes(p.dag, stage, p.inlined)
    nest, params = builders.spatial_nest(p.dag, stage, p.target, rows=rows)
    return [p.add(nest, params, f"simple({stage})")]


def _is_ordered(p: Partial, stage: str) -> bool:
    return p.op(stage).reducer is not None and not _is_commutative(p, stage)


def _is_row_reduction(p: Partial, stage: str) -> bool:
    """A reduction without reuse that one iteration of its reader's first group completes."""
    return (
        _is_commutative(p, stage)
        and not _has_reuse(p, stage)
        and _epilogue_of(p, stage) is None
        and _row_host(p, stage) is not None
    )


def _is_spatial(p: Partial, stage: str) -> bool:
    return p.op(stage).reducer is None


RULES += [
    Rule("straight-code", _is_written_out, _write_out),
    Rule("always-inline", _can_inline, _inline),
    Rule("compute-location", _is_attachable, _attach),
    Rule("attach-reduction", _is_row_reduction, _attach_reduction),
    Rule("ordered-reduction", _is_ordered, _ordered_reduce),
    Rule("rfactor", _wants_lanes, _rfactor, is_final=False),
    Rule("multi-level-tiling", lambda p, s: _is_commutative(p, s) and _has_reuse(p, s), _multi_level),
    Rule("simple-reduction", _is_commutative, _simple_reduce),
    Rule("skip", _is_spatial, _skip),
]


# -- derivation ----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def generate_sketches(dag: ComputeDAG, target: Target, exact: bool = False) -> tuple[Sketch, ...]:
    """Every sketch of a ComputeDAG; the first is the naive one, the second the best guess.

    Args:
        dag: what to compute.
        target: on what.
        exact: leave out the algorithms that are equal up to rounding only.

    Raises:
        ScheduleError: if no rule decides some stage.
    """
    partials = derive(Partial(dag, target))
    for other in () if exact else alternatives(dag):
        partials += derive(Partial(other.dag, target, label=(other.name,), algorithm=other.name))
    sketches = [builders.naive_sketch(dag)]
    seen = {sketches[0].key}
    for p in partials:
        sketch = finish(p)
        if sketch.key not in seen:
            seen.add(sketch.key)
            sketches.append(sketch)
    flags.debug("sketch", lambda: "\n".join(f"{dag.tag}: {s!r}" for s in sketches))
    return tuple(sketches)


def derive(start: Partial) -> list[Partial]:
    """Every way to decide all stages, from the output to the inputs."""
    partials = [start]
    for t in reversed(start.dag.ops):
        partials = [new for p in partials for new in _decide(p, t.name)]
    return partials


def _decide(p: Partial, stage: str) -> list[Partial]:
    if not p.readers(stage) and stage != p.dag.output.name:
        return [p]
    out: list[Partial] = []
    for rule in RULES:
        if rule.applies(p, stage):
            out += rule.apply(p, stage)
            if rule.is_final:
                break
    if not out:
        raise ScheduleError(f"no sketch rule decides stage {stage} of\n{p.dag}")
    return out


def finish(p: Partial) -> Sketch:
    """The sketch of a partial in which every stage is decided."""
    return Sketch(p.dag, " ".join(p.label) or "inline", p.params, p.nests, p.inlined, p.algorithm)
