"""Nest builders for GPUs: tiled, flat and rows (see Bind in seer/ir/sketch.py)."""

from __future__ import annotations

from dataclasses import replace

from seer.codegen.gpu.mma import matrix_roles
from seer.codegen.gpu.staged import dim_order, staged_dims
from seer.ir.dag import ComputeDAG
from seer.ir.expr import reads
from seer.ir.sketch import Bind, Loop, Nest, Param, Split, Staged
from seer.ir.tensor import Axis
from seer.runtime.target import Target
from seer.search import analysis

Built = tuple[Nest, tuple[Param, ...]]

UNROLL_CHOICES = (0, 16, 64, 512, 1024)  # Ansor's auto_unroll_max_step for GPUs
THREADS = (32, 64, 128, 256, 512, 1024)
STAGES = (1, 2, 3, 4)
COPIES_AHEAD = 80  # the compute capability that has cp.async
ITEMS = (1, 2, 4, 8)
# The largest trip counts that are drawn: virtual threads, threads, two levels of registers.
MOST_SPATIAL = (8, 256, 8, 8)
MOST_REDUCE = (32, 32)
# Blocks of matrices: rows and columns of a single axis, terms, and any other axis.
LINES = (8, 16, 32, 64, 128)
CHUNKS = (8, 16, 32, 64)
MOST_MATRIX = 64


def tiled(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """SSSRRSRS: blocks, virtual threads, threads, reduction, registers (Ansor)."""
    op = dag.op(stage)
    splits, params = [], []
    for axes, most in ((op.axes, MOST_SPATIAL), (op.reduce_axes, MOST_REDUCE)):
        for a in axes:
            split, new = _split(stage, a, most)
            splits.append(split)
            params += new
    levels = {s.axis: len(s.params) for s in splits}
    groups = []
    seen = {"S": 0, "R": 0}
    for kind in "SSSRRSRS":
        axes = op.axes if kind == "S" else op.reduce_axes
        groups.append(tuple(Loop(a.name, seen[kind]) for a in axes if seen[kind] <= levels[a.name]))
        seen[kind] += 1
    staged = []
    reduced = {a.name for a in op.reduce_axes}
    for name in dict.fromkeys(r.tensor.name for r in reads(op.body)):
        dims = staged_dims(dag, stage, name)
        if dims is None:
            continue
        is_other = dim_order(dims, reduced, 2) != dim_order(dims, reduced, 1)
        param = Param(f"{stage}.shared.{name}", "choice", choices=(1, 2, 0) if is_other else (1, 0))
        staged.append(Staged(name, param.name))
        params.append(param)
    unroll = Param(f"{stage}.unroll", "unroll", choices=UNROLL_CHOICES)
    params.append(unroll)
    stages = _stages(stage, target) if staged else None
    params += [stages] if stages else []
    bind = Bind("tiled", staged=tuple(staged), stages=stages.name if stages else None)
    return Nest(stage, tuple(splits), tuple(groups), 3, unroll=unroll.name, bind=bind), tuple(params)


def _stages(stage: str, target: Target) -> Param | None:
    """How many pieces are in shared memory at once, where copies can be started ahead."""
    if target.gpu is None or target.gpu.capability < COPIES_AHEAD:
        return None
    return Param(f"{stage}.stages", "choice", choices=STAGES)


def _split(stage: str, axis: Axis, most: tuple[int, ...]) -> tuple[Split, list[Param]]:
    """An axis cut into one level more than there are limits; one of extent 0 or 1 is left alone."""
    if axis.extent <= 1:
        return Split(axis.name, axis.extent), []
    key = f"{stage}.{axis.name}"
    params = [Param(f"{key}.{k}", "tile", key, axis.extent, most=m) for k, m in enumerate(most, 1)]
    return Split(axis.name, axis.extent, tuple(p.name for p in params)), params


def tensor_tiled(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """A matrix product by tensor cores: blocks of rows and columns, warps that share them."""
    op = dag.op(stage)
    roles = matrix_roles(dag, stage)
    assert roles is not None
    splits, params = [], []
    for a in (*op.axes, *op.reduce_axes):
        if a.extent <= 1 or a.name in roles.batch:
            splits.append(Split(a.name, a.extent))
            continue
        param = Param(f"{stage}.{a.name}.1", "tile", f"{stage}.{a.name}", a.extent, most=MOST_MATRIX)
        if a.name in roles.columns or (a.name,) == roles.rows:
            param = replace(param, choices=tuple(n for n in LINES if n < 2 * a.extent))
        if a.name == roles.terms:
            unit = roles.piece_terms
            chunks = tuple(n for n in CHUNKS if unit <= n < 2 * a.extent)
            param = replace(param, choices=chunks or (unit,))
        splits.append(Split(a.name, a.extent, (param.name,)))
        params.append(param)
    warps = [Param(f"{stage}.warps.{n}", "choice", choices=(1, 2, 4, 8)) for n in ("rows", "columns")]
    unroll = Param(f"{stage}.unroll", "unroll", choices=(0, 64, 512))
    groups = (tuple(Loop(a.name, 0) for a in op.axes), tuple(Loop(a.name, 0) for a in op.reduce_axes), ())
    stages = _stages(stage, target)
    warps += [stages] if stages else []
    bind = Bind("mma", warps=(warps[0].name, warps[1].name), stages=stages.name if stages else None)
    nest = Nest(stage, tuple(splits), groups, 1, unroll=unroll.name, bind=bind)
    return nest, (*params, *warps, unroll)


def flat(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """One index over the output; a reduction runs inside each thread."""
    op = dag.op(stage)
    params = [
        Param(f"{stage}.threads", "choice", choices=THREADS),
        Param(f"{stage}.items", "choice", choices=ITEMS),
    ]
    unroll = None
    if op.reducer is not None and analysis.reduce_points(op) > 1:
        unroll = Param(f"{stage}.unroll", "unroll", choices=UNROLL_CHOICES)
        params.append(unroll)
    bind = Bind("flat", threads=params[0].name, items=params[1].name)
    nest = _plain(dag, stage, bind, unroll.name if unroll else None)
    return nest, tuple(params)


def rows(dag: ComputeDAG, stage: str, target: Target, over: tuple[str, ...]) -> Built:
    """Rows over the axes `over`; the threads of a row share its reductions and its other axes."""
    op = dag.op(stage)
    params = (
        Param(f"{stage}.threads", "choice", choices=(2, 4, 8, 16, *THREADS)),
        Param(f"{stage}.rows", "choice", choices=(1, 2, 4, 8, 16, 32)),
        Param(f"{stage}.items", "choice", choices=ITEMS),
    )
    bind = Bind("rows", threads=params[0].name, rows=params[1].name, items=params[2].name)
    first = tuple(Loop(a, 0) for a in over)
    rest = tuple(Loop(a.name, 0) for a in (*op.axes, *op.reduce_axes) if a.name not in over)
    splits = tuple(Split(a.name, a.extent) for a in (*op.axes, *op.reduce_axes))
    return Nest(stage, splits, (first, rest, ()), 1, bind=bind), params


def shared_terms(dag: ComputeDAG, stage: str, target: Target) -> Built:
    """A reduction whose elements are rows: the threads of a row share its terms."""
    return rows(dag, stage, target, tuple(a.name for a in dag.op(stage).axes))


def part_of_rows(dag: ComputeDAG, stage: str) -> Nest:
    """A reduction that the threads of a row compute together."""
    return _plain(dag, stage, None, None)


def _plain(dag: ComputeDAG, stage: str, bind: Bind | None, unroll: str | None) -> Nest:
    op = dag.op(stage)
    splits = tuple(Split(a.name, a.extent) for a in (*op.axes, *op.reduce_axes))
    spatial = tuple(Loop(a.name, 0) for a in op.axes)
    reduced = tuple(Loop(a.name, 0) for a in op.reduce_axes)
    return Nest(stage, splits, (spatial, reduced, ()), 1, unroll=unroll, bind=bind)
