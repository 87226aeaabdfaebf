"""Nest builders: the loop patterns that the sketch rules choose from.

A pattern such as SSSRRS (outer to inner) says how many levels each spatial (S) and reduce (R)
axis has and how the levels interleave; the last S is the register tile.
"""

from __future__ import annotations

import math
from dataclasses import replace

from seer.dtypes import dtype as dtype_of
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Var, reads
from seer.ir.sketch import PREFETCHED, Loop, Nest, Pack, Param, Sketch, Split
from seer.ir.tensor import Axis, ComputeOp, Tensor
from seer.runtime.target import Target
from seer.search import analysis

UNROLL_CHOICES = (0, 16, 64, 512)  # Ansor's auto_unroll_max_step for CPUs

Built = tuple[Nest, tuple[Param, ...]]


def register_tiled(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """SSSRRS: each register tile is reduced in one go and finished from registers."""
    return tiled(dag, stage, target, "SSSRRS", finish=3)


def cache_tiled(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """SSRSRS: a tile buffer is accumulated over blocks of the reduction (Ansor's cache write)."""
    return tiled(dag, stage, target, "SSRSRS", finish=2)


def reduce_nest(dag: ComputeDAG, stage: str, target: Target, parallel: bool = True) -> Built:
    """SRS: a reduction whose inputs are read once (pooling), vectorised along a spatial axis."""
    return tiled(dag, stage, target, "SRS", finish=1, parallel=parallel)


def tiled(
    dag: ComputeDAG, stage: str, target: Target, pattern: str, finish: int, parallel: bool = True
) -> Built:
    """A nest of the given pattern with one trip-count param per inner level of each axis."""
    op = dag.op(stage)
    vector = vector_axis(op)
    levels = {"S": pattern.count("S"), "R": pattern.count("R")}
    splits, params = [], []
    for kind, axes in (("S", op.axes), ("R", op.reduce_axes)):
        for a in axes:
            split, new = split_axis(stage, a, levels[kind], a.name == vector)
            splits.append(split)
            params += new
    by_axis = {s.axis: s for s in splits}
    groups = []
    seen = {"S": 0, "R": 0}
    for kind in pattern:
        axes = op.axes if kind == "S" else op.reduce_axes
        level = seen[kind]
        seen[kind] += 1
        ordered = (
            sorted(axes, key=lambda a: a.name == vector) if kind == "S" and level == levels["S"] - 1 else axes
        )
        groups.append(tuple(Loop(a.name, level) for a in ordered if level <= len(by_axis[a.name].params)))
    packs, pack_params = packs_of(dag, stage, groups, vector, target)
    unroll = Param(f"{stage}.unroll", "unroll", choices=UNROLL_CHOICES)
    params += [unroll, *pack_params]
    run = None
    if parallel:
        run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))
        params.append(run)
    nest = Nest(
        stage,
        tuple(splits),
        tuple(groups),
        finish,
        vector,
        packs=packs,
        parallel=run.name if run else None,
        unroll=unroll.name,
    )
    return nest, tuple(params)


def split_axis(stage: str, axis: Axis, levels: int, vector: bool) -> tuple[Split, list[Param]]:
    """An axis cut into `levels`; one of extent 0 or 1 is left alone."""
    if axis.extent <= 1:
        return Split(axis.name, axis.extent), []
    key = f"{stage}.{axis.name}"
    params = [
        Param(f"{key}.{k}", "tile", key, axis.extent, vector=vector and k == levels - 1)
        for k in range(1, levels)
    ]
    return Split(axis.name, axis.extent, tuple(p.name for p in params)), params


def vector_axis(op: ComputeOp) -> str | None:
    """The spatial axis to vectorise: the last, or a longer one if the last is very short."""
    if not op.axes:
        return None
    last = op.axes[-1]
    if last.extent >= 4:
        return last.name
    best = max(op.axes, key=lambda a: (min(a.extent, 16), a is last))
    return best.name if best.extent > 1 else None


def packs_of(
    dag: ComputeDAG, stage: str, groups: list[tuple[Loop, ...]], vector: str | None, target: Target
) -> tuple[tuple[Pack, ...], list[Param]]:
    """The tensors that may be read packed: read once, each index an axis of its own, with reuse."""
    op = dag.op(stage)
    if not analysis.has_reuse(op):
        return (), []
    packs, params = [], []
    found = reads(op.body)
    for r in found:
        dims = tuple(i.name if isinstance(i, Var) else None for i in r.indices)
        names = [d for d in dims if d is not None]
        plain = all(d is not None or n == 1 for d, n in zip(dims, r.tensor.shape, strict=True))
        once = sum(q.tensor is r.tensor for q in found) == 1
        if not plain or len(names) < 2 or len(set(names)) < len(names) or not once:
            continue
        loops = tuple(x for g in groups for x in g if x.axis in names)
        choices: tuple[int, ...] = (0, 1)
        if loops[-1].axis == vector and _streams(dag, r.tensor, target):
            choices = (0, 1, PREFETCHED)
        param = Param(f"{stage}.pack.{r.tensor.name}", "choice", choices=choices)
        packs.append(Pack(r.tensor.name, dims, loops, param.name))
        params.append(param)
    return tuple(packs), params


def _streams(dag: ComputeDAG, tensor: Tensor, target: Target) -> bool:
    """Whether a tensor is packed ahead, and too large to be in a core's cache from call to call."""
    size = math.prod(tensor.shape) * dtype_of(tensor.dtype).size_bytes
    return dag.is_own_constant(tensor.name) and size > target.l2_bytes


def lanes_nest(dag: ComputeDAG, stage: str, target: Target, parallel: bool = True) -> Built:
    """A reduction along a contiguous axis whose vector lanes hold partial results (rfactor)."""
    op = dag.op(stage)
    axis = op.reduce_axes[-1]
    lanes = target.lanes(op.body.dtype)
    vector = Param(f"{stage}.{axis.name}.1", "tile", f"{stage}.{axis.name}", axis.extent, vector=True)
    splits = tuple(Split(a.name, a.extent) for a in (*op.axes, *op.reduce_axes[:-1]))
    outer = tuple(Loop(a.name, 0) for a in op.axes)
    inner = tuple(Loop(a.name, 0) for a in op.reduce_axes)
    params = [vector]
    run = None
    if parallel:
        run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))
        params.append(run)
    nest = Nest(
        stage,
        (*splits, Split(axis.name, axis.extent, (vector.name,))),
        (outer, inner, (Loop(axis.name, 1),)),
        1,
        axis.name,
        parallel=run.name if run else None,
    )
    assert lanes >= 1
    return nest, tuple(params)


def spatial_nest(dag: ComputeDAG, stage: str, target: Target, rows: tuple[str, ...]) -> Built:
    """A stage that reduces nothing: loops over `rows`, then the other axes, then a vector tile."""
    op = dag.op(stage)
    vector = vector_axis(op)
    if vector in rows:
        vector = None
    splits, params = [], []
    for a in op.axes:
        if a.name == vector:
            split, new = split_axis(stage, a, 2, True)
            splits.append(split)
            params += new
        else:
            splits.append(Split(a.name, a.extent))
    tile = tuple(Loop(s.axis, 1) for s in splits if s.params)
    if rows:
        first = tuple(Loop(a, 0) for a in rows)
        second = tuple(Loop(a.name, 0) for a in op.axes if a.name not in rows)
        groups: tuple[tuple[Loop, ...], ...] = (first, second, tile)
    else:
        groups = (tuple(Loop(a.name, 0) for a in op.axes), tile)
    run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))
    nest = Nest(stage, tuple(splits), groups, len(groups) - 1, vector if tile else None, parallel=run.name)
    return nest, (*params, run)


def written_out_nest(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """A stage that asks for straight code: its tile is what the op names, by one vector."""
    op = dag.op(stage)
    vector = vector_axis(op)
    sizes = dict(op.written_out)
    if vector not in sizes and vector is not None:
        extent = next(a.extent for a in op.axes if a.name == vector)
        sizes[vector] = min(extent, target.lanes(op.body.dtype))
    splits, params, outer, tile = [], [], [], []
    for a in op.axes:
        size = sizes.get(a.name, 1)
        if 1 < size < a.extent:
            key = f"{stage}.{a.name}"
            fixed = Param(f"{key}.1", "tile", key, a.extent, (size,), a.name == vector)
            params.append(fixed)
            splits.append(Split(a.name, a.extent, (fixed.name,)))
            outer.append(Loop(a.name, 0))
            tile.append(Loop(a.name, 1))
        else:
            splits.append(Split(a.name, a.extent))
            (tile if size > 1 else outer).append(Loop(a.name, 0))
    run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))
    inner = tuple(sorted(tile, key=lambda x: x.axis == vector))
    used = vector if any(x.axis == vector for x in inner) else None
    nest = Nest(stage, tuple(splits), (tuple(outer), inner), 1, used, parallel=run.name)
    return nest, (*params, run)


def plain_nest(dag: ComputeDAG, stage: str) -> Built:
    """A stage that reduces nothing in loops without tiles, for a region or for the whole."""
    run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))  # matters for the whole
    nest = replace(naive_nest(dag, stage), parallel=run.name)
    vector = vector_axis(dag.op(stage))
    if vector is None:
        return nest, (run,)
    loops = tuple(x for x in nest.groups[0] if x.axis != vector)
    return replace(nest, groups=(loops, (Loop(vector, 0),)), vector=vector), (run,)


def ordered_nest(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """A reduction that must keep its order: parallel over its elements, nothing else."""
    nest = naive_nest(dag, stage)
    run = Param(f"{stage}.parallel", "parallel", choices=(0, 1))
    return replace(nest, parallel=run.name), (run,)


def naive_nest(dag: ComputeDAG, stage: str) -> Nest:
    """Plain loops over the spatial axes, then the reduce axes, in order."""
    op = dag.op(stage)
    splits = tuple(Split(a.name, a.extent) for a in (*op.axes, *op.reduce_axes))
    spatial = tuple(Loop(a.name, 0) for a in op.axes)
    reduce_loops = tuple(Loop(a.name, 0) for a in op.reduce_axes)
    groups = (spatial, reduce_loops, ()) if op.reducer is not None else (spatial, ())
    return Nest(stage, splits, groups, 1)


def naive_sketch(dag: ComputeDAG) -> Sketch:
    """Every stage in plain loops of its own: what every candidate is checked against."""
    return Sketch(dag, "naive", (), tuple(naive_nest(dag, t.name) for t in dag.ops))
