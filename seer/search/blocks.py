"""A reduction and the straight code that reads it, block by block: what lies between never leaves the cache.

A block is a range of each axis that the two have in common. The reduction of a block goes into a tile
buffer, then the block of the result is computed from it; what the reduction itself reads of straight
code may be computed for the block, too.
"""

from __future__ import annotations

import math
from dataclasses import replace

from seer.dtypes import dtype as dtype_of
from seer.ir.dag import ComputeDAG, expand
from seer.ir.expr import reads, variables
from seer.ir.simplify import simplify
from seer.ir.sketch import Consumer, Loop, Nest, Param
from seer.ir.tensor import Axis
from seer.runtime.target import Target
from seer.search import builders
from seer.search.partial import Partial, has_reuse, is_commutative


def is_consumed(p: Partial, stage: str) -> bool:
    """Whether a stage can be reduced block by block for the straight code that reads it, and it may pay.

    Every block reads the constants again: they must be at hand in a core's own cache.
    """
    if not (is_commutative(p, stage) and has_reuse(p, stage)):
        return False
    constants = {r.tensor for r in reads(p.op(stage).body) if p.dag.is_own_constant(r.tensor.name)}
    size = sum(math.prod(t.shape) * dtype_of(t.dtype).size_bytes for t in constants)
    return size <= p.target.l2_bytes and consumer_of(p, stage) is not None


def consume(p: Partial, stage: str) -> list[Partial]:
    """With the stage in a nest of blocks, its reader computed at the end of each."""
    consumer = consumer_of(p, stage)
    assert consumer is not None
    gone = consumer.nest.parallel
    p = replace(
        p,
        nests=tuple(n for n in p.nests if n is not consumer.nest),
        params=tuple(q for q in p.params if q.name != gone),
    )
    inner = replace(consumer, nest=replace(consumer.nest, parallel=None))
    nest, params = block_nest(p.dag, stage, p.target, inner)
    return [p.add(nest, params, f"blocks({stage})")]


def consumer_of(p: Partial, stage: str) -> Consumer | None:
    """The straight code of the result that reads a stage piece by piece, or None.

    Each of its axes must follow one axis of the stage; axes of the stage that it indexes by numbers
    only are read whole.
    """
    host = p.host(stage)
    if host is None or host.output != p.dag.output.name or host.attached or host.consumer is not None:
        return None
    op = p.op(host.stage)
    tile = dict(op.written_out)
    if not tile or op.reducer is not None:
        return None
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in op.axes}
    found = {id(r): r for r in reads(expand(op.body, p.inlined)) if r.tensor.name == stage}
    axes: list[tuple[str, str, int]] = []
    for d, mine in enumerate(p.op(stage).axes):
        indices = {simplify(r.indices[d], ranges) for r in found.values()}
        names = {v for i in indices for v in variables(i)}
        if not names:
            continue
        axis = next((a for a in op.axes if a.name in names), None)
        if axis is None or len(indices) > 1:
            return None
        size = tile.get(axis.name, 1)
        if simplify(axis.var // size, ranges) not in indices:
            return None
        axes.append((mine.name, axis.name, 1 if size > 1 else _step(p, host, axis)))
    together = {axis for _, axis, _ in axes}
    if any(a.extent > 1 and a.name not in together for a in op.axes):
        return None
    return Consumer(host, tuple(axes))


def _step(p: Partial, nest: Nest, axis: Axis) -> int:
    """Positions along an axis that one iteration of a nest's outermost loop covers."""
    if Loop(axis.name, 0) not in nest.groups[0]:
        return axis.extent
    names = nest.split(axis.name).params
    return next((q.choices[0] for q in p.params if q.name in names), 1)


def block_nest(dag: ComputeDAG, stage: str, target: Target, consumer: Consumer) -> builders.Built:
    """Blocks in parallel; in each the axes that are read whole, round register tiles reduced in one go."""
    op = dag.op(stage)
    blocked = {mine for mine, _, _ in consumer.axes}
    vector = builders.vector_axis(op)
    vector = vector if vector in blocked else None
    splits, params = [], []
    for a in op.axes:
        split, new = builders.split_axis(stage, a, 3 if a.name in blocked else 1, a.name == vector)
        splits.append(split)
        params += new
    for a in op.reduce_axes:
        split, new = builders.split_axis(stage, a, 2, False)
        splits.append(split)
        params += new
    levels = {s.axis: len(s.params) for s in splits}
    whole = [a for a in op.axes if a.name not in blocked]
    shared = sorted((a for a in op.axes if a.name in blocked), key=lambda a: a.name != vector)
    tile = sorted((a for a in op.axes if levels[a.name] == 2), key=lambda a: a.name == vector)
    groups = (
        tuple(Loop(a.name, 0) for a in op.axes if a.name in blocked),
        (
            *(Loop(a.name, 0) for a in whole),
            *(Loop(a.name, 1) for a in shared if levels[a.name] == 2),
        ),
        tuple(Loop(a.name, 0) for a in op.reduce_axes),
        tuple(Loop(a.name, 1) for a in op.reduce_axes if levels[a.name] == 1),
        tuple(Loop(a.name, 2) for a in tile),
    )
    packs, pack_params = builders.packs_of(dag, stage, list(groups), vector, target)
    ahead = [k for k, pack in enumerate(packs) if dag.is_own_constant(pack.tensor)]
    unroll = Param(f"{stage}.unroll", "unroll", choices=builders.UNROLL_CHOICES)
    run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))
    nest = Nest(
        stage,
        tuple(splits),
        groups,
        1,
        vector,
        packs=tuple(packs[k] for k in ahead),
        parallel=run.name,
        unroll=unroll.name,
        consumer=consumer,
    )
    return nest, (*params, unroll, *(pack_params[k] for k in ahead), run)
