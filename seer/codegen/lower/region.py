"""Which part of a producer the rest of a nest reads: interval analysis on index expressions."""

from __future__ import annotations

from dataclasses import dataclass

from seer.codegen.lower.context import Context
from seer.errors import ScheduleError
from seer.ir.expr import Expr, Var, as_expr, minimum, reads, substitute, variables
from seer.ir.simplify import affine, bounds, from_affine, simplify
from seer.ir.sketch import Nest
from seer.ir.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class Span:
    """Part of one dimension: `extent` elements from `base`, of which `limit` exist (None: all)."""

    base: Expr
    extent: int
    limit: Expr | None = None


Spans = dict[str, Span]


def region_of(ctx: Context, nest: Nest, tensor: str, depth: int, spans: Spans) -> tuple[Span, ...]:
    """The region of `tensor` that the nest needs while its axes cover `spans`.

    Readers are the nest's stage, its epilogue and the producers attached at `depth` or deeper,
    inlined stages between them expanded.
    """
    dag = ctx.sketch.dag
    found: list[tuple[Span | None, ...]] = []
    for reader, reader_spans in _readers(ctx, nest, tensor, depth, spans):
        mine = [r for r in reads(ctx.expand(reader.body)) if r.tensor.name == tensor]
        found += [tuple(_span(ctx, i, reader_spans) for i in r.indices) for r in mine]
    if not found:
        raise ScheduleError(f"sketch {ctx.sketch.key}: {tensor} is attached where nothing reads it")
    shape = dag.tensor(tensor).shape
    return tuple(_clip(ctx, _union([f[d] for f in found], n), n) for d, n in enumerate(shape))


def _readers(
    ctx: Context, nest: Nest, tensor: str, depth: int, spans: Spans
) -> list[tuple[ComputeOp, Spans]]:
    """The ops of a nest that may read `tensor`, each with what its axes cover."""
    stage = ctx.op(nest.stage)
    out = [(stage, spans)]
    if nest.epilogue is not None:
        last = ctx.op(nest.epilogue)
        out.append((last, {a.name: spans[b.name] for a, b in zip(last.axes, stage.axes, strict=True)}))
    for a in nest.attached:
        name = a.nest.output
        if ctx.location(a) < depth or name == tensor or tensor in ctx.inlined:
            continue
        op = ctx.op(name)
        if not any(r.tensor.name == tensor for r in reads(ctx.expand(op.body))):
            continue
        inner = dict(zip((x.name for x in op.axes), region_of(ctx, nest, name, depth, spans), strict=True))
        inner.update({x.name: Span(as_expr(0), x.extent) for x in op.reduce_axes})
        out.append((op, inner))
    return out


def _span(ctx: Context, index: Expr, spans: Spans) -> Span | None:
    """The values that an index takes, or None if it is not affine in the axes."""
    local = {a: Var(f"{a}.local") for a in spans}
    moved = substitute(index, {a: s.base + local[a] for a, s in spans.items()})
    ranges = {**ctx.ranges, **{local[a].name: (0, max(s.extent - 1, 0)) for a, s in spans.items()}}
    terms, constant = affine(simplify(moved, ranges))
    names = {v.name for v in local.values()}
    inner = {t: c for t, c in terms.items() if variables(t) & names}
    if any(not isinstance(t, Var) for t in inner):
        return None
    lo, hi = bounds(from_affine(inner, 0), ranges)
    base = from_affine({t: c for t, c in terms.items() if t not in inner}, constant + lo)
    return Span(base, hi - lo + 1)


def _union(spans: list[Span | None], extent: int) -> Span:
    """One span that covers all; the whole dimension if their bases cannot be compared."""
    whole = Span(as_expr(0), extent)
    out = spans[0]
    for s in spans[1:]:
        if out is None or s is None:
            return whole
        terms, shift = affine(s.base - out.base)
        if terms:
            return whole
        lo, hi = min(0, shift), max(out.extent, shift + s.extent)
        out = Span(out.base + lo, hi - lo)
    return whole if out is None else out


def _clip(ctx: Context, span: Span, extent: int) -> Span:
    """A span within the dimension; `limit` says what is left at its end."""
    if span.extent >= extent:
        return Span(as_expr(0), extent)
    base = simplify(span.base, ctx.ranges)
    lo, hi = bounds(base, ctx.ranges)
    if lo < 0:
        return Span(as_expr(0), extent)
    if hi + span.extent <= extent:
        return Span(base, span.extent)
    left = simplify(as_expr(extent) - base, ctx.ranges)
    return Span(base, span.extent, simplify(minimum(left, span.extent), ctx.ranges))
