"""The sketch rules of GPUs (Ansor, section 4.1), tried in order for each stage.

always-inline          everything that reduces nothing, but for the output
attach-reduction       a reduction that one row of its reader's kernel completes
ordered-reduction      a reduction that must keep its order, in one thread an element
multi-level-tiling     reductions with reuse, through shared memory and registers
tensor-cores           products of matrices
cross-thread-reduction the threads of a block share each element's terms
simple-reduction       each thread reduces elements of its own
rows                   an output whose rows depend on reductions: one kernel for all
skip                   element-wise kernels
"""

from __future__ import annotations

import math
from dataclasses import replace

from seer.codegen.gpu.mma import matrix_roles
from seer.ir.dag import expand
from seer.ir.expr import walk
from seer.search import analysis, gpu_builders
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

# Nodes of an expression beyond which what it reads is computed once, in a kernel of its own.
MAX_INLINED_NODES = 400
# Output elements below which terms are shared among threads even where there is reuse.
FEW_ELEMENTS = 8192
MIN_SHARED_TERMS = 8
# Rows and columns from which a matrix product is worth tensor cores.
MIN_LINES = 8
# Terms up to which a thread may combine them straight from memory, though they are read again.
FEW_TERMS = 64


def _can_inline(p: Partial, stage: str) -> bool:
    if p.op(stage).reducer is not None or stage == p.dag.output.name:
        return False
    inlined = (*p.inlined, stage)
    for reader in p.readers(stage):
        body = expand(p.op(reader).body, inlined)
        if sum(1 for _ in walk(body)) > MAX_INLINED_NODES:
            return False
    return True


def _inline(p: Partial, stage: str) -> list[Partial]:
    return [replace(p, inlined=(*p.inlined, stage))]


def _attach(p: Partial, stage: str) -> list[Partial]:
    host = row_host(p, stage)
    assert host is not None
    return [p.attach(host, gpu_builders.part_of_rows(p.dag, stage), (1,), ())]


def _is_attachable(p: Partial, stage: str) -> bool:
    host = row_host(p, stage)
    return (
        host is not None
        and host.bind is not None
        and host.bind.pattern == "rows"
        and p.op(host.stage).reducer is None
        and is_row_reduction(p, stage)
    )


def _tile(p: Partial, stage: str) -> list[Partial]:
    return [tile_with_epilogue(p, stage, gpu_builders.tiled, f"SSSRRSRS({stage})")]


def _fits_tensor_cores(p: Partial, stage: str) -> bool:
    op = p.op(stage)
    has_them = p.target.gpu is not None and p.target.gpu.tf32_flops > 0 and not p.exact
    if not has_them or not _can_tile(p, stage) or op.reducer is None or op.reducer.name != "sum":
        return False
    roles = matrix_roles(p.dag, stage)
    if roles is None:
        return False
    sizes = [math.prod(a.extent for a in op.axes if a.name in axes) for axes in (roles.rows, roles.columns)]
    return min(sizes) >= MIN_LINES and analysis.reduce_points(op) >= MIN_SHARED_TERMS


def _multiply(p: Partial, stage: str) -> list[Partial]:
    return [tile_with_epilogue(p, stage, gpu_builders.tensor_tiled, f"mma({stage})")]


def _shares_terms(p: Partial, stage: str) -> bool:
    op = p.op(stage)
    if not is_commutative(p, stage) or analysis.reduce_points(op) < MIN_SHARED_TERMS:
        return False
    return analysis.spatial_points(op) < FEW_ELEMENTS or not analysis.has_reuse(op)


def _share_terms(p: Partial, stage: str) -> list[Partial]:
    return [tile_with_epilogue(p, stage, gpu_builders.shared_terms, f"cross-thread({stage})")]


def _reduce_inside(p: Partial, stage: str) -> list[Partial]:
    return [tile_with_epilogue(p, stage, gpu_builders.flat, f"flat({stage})")]


def _has_rows(p: Partial, stage: str) -> bool:
    return is_spatial(p, stage) and bool(analysis.row_axes(p.dag, stage, p.inlined))


def _rows(p: Partial, stage: str) -> list[Partial]:
    over = analysis.row_axes(p.dag, stage, p.inlined)
    nest, params = gpu_builders.rows(p.dag, stage, p.target, over)
    return [p.add(nest, params, f"rows({stage})")]


def is_worthwhile(p: Partial) -> bool:
    """Whether every kernel of rows does what rows are for: reductions and what reads them together."""
    return all(
        n.bind is None or n.bind.pattern != "rows" or bool(n.attached) or p.op(n.stage).reducer is not None
        for n in p.nests
    )


def _flat(p: Partial, stage: str) -> list[Partial]:
    nest, params = gpu_builders.flat(p.dag, stage, p.target)
    return [p.add(nest, params, f"simple({stage})")]


def _can_tile(p: Partial, stage: str) -> bool:
    return is_commutative(p, stage) and has_reuse(p, stage)


def _is_simple(p: Partial, stage: str) -> bool:
    has_few = analysis.reduce_points(p.op(stage)) <= FEW_TERMS
    return is_commutative(p, stage) and (has_few or not has_reuse(p, stage))


GPU_RULES: list[SketchRule] = [
    Rule("always-inline", _can_inline, _inline),
    Rule("attach-reduction", _is_attachable, _attach),
    Rule("ordered-reduction", is_ordered, _reduce_inside),
    Rule("multi-level-tiling", _can_tile, _tile, is_final=False),
    Rule("tensor-cores", _fits_tensor_cores, _multiply, is_final=False),
    Rule("cross-thread-reduction", _shares_terms, _share_terms, is_final=False),
    Rule("simple-reduction", _is_simple, _reduce_inside),
    Rule("decided", _can_tile, lambda p, s: []),
    Rule("rows", _has_rows, _rows, is_final=False),
    Rule("skip", is_spatial, _flat),
]
