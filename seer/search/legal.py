"""Which rows are worth building: vectorised predicates that drop the hopeless before any lowering.

None of this is needed for right results (any row lowers to right code); a tile that cannot stay in
registers, or that unrolls to thousands of instructions, is slow to build and slow to run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.ir.sketch import Nest, Sketch
from seer.runtime.target import Target
from seer.search.gpu_legal import GPU_PREDICATES

MAX_STATEMENTS = 1200  # vector statements in one unrolled body
MAX_TILE_VERSIONS_STATEMENTS = 2500  # over all versions for tails

Predicate = Callable[[Nest, Sketch, np.ndarray, Target], np.ndarray]

PREDICATES: list[Predicate] = []


def register_predicate(predicate: Predicate) -> Predicate:
    """Add a condition on the rows (P, n_params) of a nest; it returns a bool array (P,)."""
    PREDICATES.append(predicate)
    return predicate


def legal(sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """Which canonical rows (P, n_params) satisfy every predicate for every nest: bool (P,)."""
    ok = np.ones(len(rows), dtype=bool)
    for nest in sketch.all_nests():
        for predicate in PREDICATES if target.gpu is None else GPU_PREDICATES:
            ok &= predicate(nest, sketch, rows, target)
    return ok


def column(sketch: Sketch, rows: np.ndarray, param: str) -> np.ndarray:
    """The values (P,) of one parameter."""
    return rows[:, sketch.column(param)]


def tile_vectors(nest: Nest, sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """Vectors (P,) that the register tile of a nest unrolls to."""
    lanes = target.lanes(sketch.dag.op(nest.stage).body.dtype)
    count = np.ones(len(rows), dtype=np.int64)
    for loop in nest.groups[-1]:
        params = nest.split(loop.axis).params
        if not params or loop.level == 0:
            extent = nest.split(loop.axis).extent
            size = np.full(len(rows), extent, dtype=np.int64)
        else:
            size = column(sketch, rows, params[loop.level - 1])
        count = count * (-(-size // lanes) if loop.axis == nest.vector else size)
    return count


@register_predicate
def _fits_registers(nest: Nest, sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """Accumulators leave room for an operand or two."""
    op = sketch.dag.op(nest.stage)
    if op.reducer is None or nest.vector in {a.name for a in op.reduce_axes}:
        return np.ones(len(rows), dtype=bool)
    result: np.ndarray = tile_vectors(nest, sketch, rows, target) <= target.num_vector_registers - 2
    return result


@register_predicate
def _is_small_code(nest: Nest, sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """The unrolled body, in all its versions for tails, stays small."""
    if not any(s.params for s in nest.splits):
        return np.ones(len(rows), dtype=bool)
    count = tile_vectors(nest, sketch, rows, target)
    versions = np.ones(len(rows), dtype=np.int64)
    for loop in nest.groups[-1]:
        split = nest.split(loop.axis)
        if split.params and loop.level > 0:
            t = column(sketch, rows, split.params[loop.level - 1])
            versions *= np.where(split.extent % t == 0, 1, 2)
    unroll = np.ones(len(rows), dtype=np.int64)
    if nest.unroll is not None:
        # Unrolling multiplies the body, but only up to the parameter's limit.
        unroll = np.maximum(column(sketch, rows, nest.unroll), count) // np.maximum(count, 1)
    body = count * np.maximum(unroll, 1)
    result: np.ndarray = (body <= MAX_STATEMENTS) & (body * versions <= MAX_TILE_VERSIONS_STATEMENTS)
    return result


@register_predicate
def _gives_whole_steps(nest: Nest, sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """A block holds all that some iterations of its consumer's outermost loops read."""
    ok = np.ones(len(rows), dtype=bool)
    for axis, _, step in nest.consumer.axes if nest.consumer is not None else ():
        split = nest.split(axis)
        block = np.ones(len(rows), dtype=np.int64)
        for p in split.params:
            block *= column(sketch, rows, p)
        ok &= (block % step == 0) | (block >= split.extent)
    return ok


@register_predicate
def _tile_fits_cache(nest: Nest, sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """A tile that is accumulated in memory stays in the second-level cache."""
    op = sketch.dag.op(nest.stage)
    if op.reducer is None or nest.finish >= len(nest.groups) - 1:
        return np.ones(len(rows), dtype=bool)
    size = np.full(len(rows), dtype_of(op.body.dtype).size_bytes, dtype=np.int64)
    reduced = {a.name for a in op.reduce_axes}
    for split in nest.splits:
        if split.axis in reduced:
            continue
        inner = np.ones(len(rows), dtype=np.int64)
        levels = [x.level for g in nest.groups[nest.finish :] for x in g if x.axis == split.axis]
        for level in levels:
            if level > 0:
                inner *= column(sketch, rows, split.params[level - 1])
            else:
                inner *= split.extent
        size *= np.minimum(inner, max(split.extent, 1))
    result: np.ndarray = size <= max(target.l2_bytes, 1)
    return result
