"""Sketch rules: how the loop structures of a ComputeDAG are derived (Ansor, section 4.1).

Stages are visited from the output to the inputs. At each stage the rules are tried in order; a
rule that applies makes new partial sketches, and may end the list for that stage. A rule is one
registered class: add one with `register_rule`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from seer import flags
from seer.errors import ScheduleError
from seer.ir.dag import ComputeDAG
from seer.ir.sketch import INLINE, ROOT, Sketch
from seer.runtime.target import Target
from seer.search import analysis, blocks, builders, winograd  # noqa: F401  (winograd registers itself)
from seer.search.alternatives import alternatives
from seer.search.gpu_rules import GPU_RULES, is_worthwhile
from seer.search.partial import (
    Partial,
    Rule,
    SketchRule,
    has_reuse,
    is_commutative,
    is_ordered,
    is_row_reduction,
    is_spatial,
    row_host,
    tile_with_epilogue,
)

RULES: list[SketchRule] = []


def register_rule(
    rule: SketchRule, before: str | None = None, rules: list[SketchRule] | None = None
) -> SketchRule:
    """Add a rule, at the end or before the rule called `before`; to the CPU's rules, or to `rules`."""
    found = RULES if rules is None else rules
    names = [r.name for r in found]
    found.insert(len(found) if before is None else names.index(before), rule)
    generate_sketches.cache_clear()
    return rule


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
    read_late = host.consumer is not None and host.consumer.nest.stage in p.readers(stage)
    whole = packed or read_late or not analysis.has_regions(p.dag, stage, p.inlined)
    inner = () if whole else tuple(range(1, max(host.finish, 1) + 1))
    nest, params = builders.plain_nest(p.dag, stage)
    return [p.attach(host, nest, (*inner, ROOT, INLINE), params)]


def _attach_reduction(p: Partial, stage: str) -> list[Partial]:
    host = row_host(p, stage)
    assert host is not None
    lanes = analysis.can_use_lanes(p.dag, stage)
    build = builders.lanes_nest if lanes else builders.reduce_nest
    nest, params = build(p.dag, stage, p.target, parallel=False)
    return [p.attach(host, nest, (1,), params)]


def _is_written_out(p: Partial, stage: str) -> bool:
    op = p.op(stage)
    return bool(op.written_out) and op.reducer is None


def _write_out(p: Partial, stage: str) -> list[Partial]:
    host = p.host(stage)
    if host is not None and host.consumer is not None:  # made for a block, which reads it from the cache
        nest, params = builders.written_out_nest(p.dag, stage, p.target)
        return [p.attach(host, nest, (1, ROOT), params)]
    return [tile_with_epilogue(p, stage, builders.written_out_nest, f"straight({stage})")]


def _multi_level(p: Partial, stage: str) -> list[Partial]:
    """SSSRRS, finished from registers, and SSRSRS, accumulated in a tile buffer (cache write)."""
    out = [tile_with_epilogue(p, stage, builders.register_tiled, f"SSSRRS({stage})")]
    if analysis.reduce_points(p.op(stage)) > 1:
        out.append(tile_with_epilogue(p, stage, builders.cache_tiled, f"SSRSRS({stage})"))
    return out


def _wants_lanes(p: Partial, stage: str) -> bool:
    if not is_commutative(p, stage) or not analysis.can_use_lanes(p.dag, stage):
        return False
    op = p.op(stage)
    few = analysis.spatial_points(op) < 16 * p.target.lanes(op.body.dtype)
    return few or not analysis.has_reuse(op)


def _rfactor(p: Partial, stage: str) -> list[Partial]:
    return [tile_with_epilogue(p, stage, builders.lanes_nest, f"rfactor({stage})")]


def _simple_reduce(p: Partial, stage: str) -> list[Partial]:
    return [tile_with_epilogue(p, stage, builders.reduce_nest, f"SRS({stage})")]


def _ordered_reduce(p: Partial, stage: str) -> list[Partial]:
    nest, params = builders.ordered_nest(p.dag, stage, p.target)
    return [p.add(nest, params, f"ordered({stage})")]


def _skip(p: Partial, stage: str) -> list[Partial]:
    rows = analysis.row_axes(p.dag, stage, p.inlined)
    nest, params = builders.spatial_nest(p.dag, stage, p.target, rows=rows)
    return [p.add(nest, params, f"simple({stage})")]


RULES += [
    Rule("straight-code", _is_written_out, _write_out),
    Rule("always-inline", _can_inline, _inline),
    Rule("compute-location", _is_attachable, _attach),
    Rule("attach-reduction", is_row_reduction, _attach_reduction),
    Rule("ordered-reduction", is_ordered, _ordered_reduce),
    Rule("rfactor", _wants_lanes, _rfactor, is_final=False),
    Rule("consumed-in-blocks", blocks.is_consumed, blocks.consume),
    Rule("multi-level-tiling", lambda p, s: is_commutative(p, s) and has_reuse(p, s), _multi_level),
    Rule("simple-reduction", is_commutative, _simple_reduce),
    Rule("skip", is_spatial, _skip),
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
    partials = derive(Partial(dag, target, exact=exact))
    for other in () if exact or target.gpu is not None else alternatives(dag):
        found = derive(Partial(other.dag, target, label=(other.name,), algorithm=other.name))
        partials += [p for p in found if not other.in_blocks or any(n.consumer for n in p.nests)]
    if target.gpu is not None:
        partials = [p for p in partials if is_worthwhile(p)]
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
    for rule in RULES if p.target.gpu is None else GPU_RULES:
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
