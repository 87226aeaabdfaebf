"""The features of candidates from the tables of their sketch, by functions compiled once for all sketches.

Each function goes through the population, one candidate after another, in plain loops: a candidate
costs the same in a population of any size. Every number is a fact of the lowered program
(tests/plain_features.py reads it off there):

- trips: how often a loop of the main statement runs, in the tile in which all loops run in full;
- box: the ranges of indices at which a tensor is read while the loops inside a boundary run;
- piece: what of a box is contiguous in memory, so many cache lines of it.
"""

from __future__ import annotations

import math
from math import log2
from typing import Any

import numba
import numpy as np

from seer.ir.sketch import PREFETCHED
from seer.search.feature_tables import (
    BOUNDARIES,
    N_CONSTANTS,
    N_LANES,
    N_LOOPS,
    N_THREADS,
    N_TILE,
    N_TRAFFIC,
    Accesses,
    Loops,
    Nests,
    Packs,
    Tables,
)


def _compiled(function: Any) -> Any:
    """Compiled when it is first called, and kept on disk where there is a place for it."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no folder that numba may write to
        return numba.njit(nogil=True, error_model="numpy")(function)


def fill(t: Tables, rows: np.ndarray, out: np.ndarray) -> None:
    """Write the features (P, N_FEATURES) float32 of canonical rows (P, n_params) int64."""
    count, groups = len(rows), int(t.loops.group_ptr[1])
    trips = np.ones((count, len(t.loops.extent), t.loops.columns.shape[1] + 1), dtype=np.int64)
    steps = np.ones_like(trips)
    covered = np.ones((count, groups + 1, int(t.loops.axis_ptr[1])), dtype=np.int64)
    iterations = np.ones((count, groups + 1))
    inside = np.zeros((count, BOUNDARIES + 1))
    buffered = np.zeros(count, dtype=np.bool_)
    tile_bytes = np.zeros(count)
    n = N_CONSTANTS
    out[:, :n] = t.constants
    _trips(t.loops, rows, trips, steps)
    _cover(t.loops, trips, covered, iterations, buffered)
    _tile(t.loops, t.accesses, t.machine, trips, steps, out[:, n:])
    _unroll(t.loops, t.unroll, rows, trips, steps, buffered, out[:, n:])
    n += N_TILE
    _loop_trips(t.loops, trips, out[:, n:])
    n += N_LOOPS
    _loads(t.loops, t.nests, t.accesses, t.packs, t.machine, rows, trips, covered, inside, out[:, n:])
    _stores(t.loops, t.out_bytes, t.out_scale, t.out_extent, t.machine, covered, buffered, inside, tile_bytes)
    n += N_LANES
    _traffic(t.machine, t.constants[0], iterations, inside, out[:, n:])
    n += N_TRAFFIC
    _threads(t.nests.parallel[0], t.machine[2], rows, iterations, out[:, n:])
    n += N_THREADS
    _copies(t.packs, rows, trips, tile_bytes, out[:, n:])
    _other_nests(t.loops, t.nests, rows, trips, out[:, n:])


@_compiled
def _trips(t: Loops, rows: np.ndarray, trips: np.ndarray, steps: np.ndarray) -> None:
    """Trips of each level of each axis, and how far one of them moves."""
    depth = t.columns.shape[1]
    for p in range(len(rows)):
        for a in range(len(t.extent)):
            step = 1
            for level in range(depth, 0, -1):
                c = t.columns[a, level - 1]
                if c >= 0:
                    trips[p, a, level] = rows[p, c]
                    steps[p, a, level] = step
                    step *= rows[p, c]
            steps[p, a, 0] = step
            trips[p, a, 0] = -(-t.extent[a] // step)
        for k in range(len(t.lanes_axis)):
            a = t.lanes_axis[k]
            if a >= 0:  # whole vectors only; what is left runs in loops of its own
                size = max(trips[p, a, 1] // t.lanes[k] * t.lanes[k], 1)
                trips[p, a, 1] = steps[p, a, 0] = size
                trips[p, a, 0] = t.extent[a] // size


@_compiled
def _cover(
    t: Loops, trips: np.ndarray, covered: np.ndarray, iterations: np.ndarray, buffered: np.ndarray
) -> None:
    """Positions of each axis that groups g, g + 1, ... run over; iterations of the groups before g.

    And whether several register tiles share a tile buffer.
    """
    groups, axes = t.group_ptr[1], t.axis_ptr[1]
    for p in range(len(trips)):
        for g in range(groups - 1, -1, -1):
            for a in range(axes):
                covered[p, g, a] = covered[p, g + 1, a]
            for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                a = t.axis[x]
                covered[p, g, a] = min(covered[p, g, a] * trips[p, a, t.level[x]], t.extent[a])
        for g in range(groups):
            count = 1.0
            for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                count *= trips[p, t.axis[x], t.level[x]]
            iterations[p, g + 1] = iterations[p, g] * count
        if t.shape[3]:
            buffered[p] = True
        elif t.shape[0] and t.lanes_axis[0] < 0:
            for x in range(t.loop_ptr[t.shape[1]], t.loop_ptr[groups - 1]):
                if not t.is_reduce[t.axis[x]] and trips[p, t.axis[x], t.level[x]] > 1:
                    buffered[p] = True


@_compiled
def _tile(
    t: Loops, reads: Accesses, machine: np.ndarray, trips: np.ndarray, steps: np.ndarray, out: np.ndarray
) -> None:
    """The register tile: its size, what it loads, what it wastes."""
    groups, vector, lanes = t.group_ptr[1], t.vector[0], machine[0]
    for p in range(len(trips)):
        wide, vectors = 1, 1
        for x in range(t.loop_ptr[groups - 1], t.loop_ptr[groups]):
            if t.axis[x] == vector:
                wide = trips[p, vector, t.level[x]]
            else:
                vectors *= trips[p, t.axis[x], t.level[x]]
        chunks = -(-wide // lanes)
        vectors *= chunks
        loads = 0
        for i in range(len(reads.size)):
            count = 1
            for x in range(t.loop_ptr[groups - 1], t.loop_ptr[groups]):
                a = t.axis[x]
                if reads.uses[i, a]:
                    count *= chunks if a == vector else trips[p, a, t.level[x]]
            loads += count
        padded, extent = 1.0, 1.0
        for a in range(t.axis_ptr[1]):
            padded *= trips[p, a, 0] * steps[p, a, 0]
            extent *= t.extent[a]
        out[p, 0] = vectors
        out[p, 1] = chunks
        out[p, 2] = vectors / chunks
        out[p, 3] = wide / (chunks * lanes)
        out[p, 4] = wide % lanes == 0
        out[p, 5] = loads / vectors
        out[p, 6] = vectors / machine[1]
        out[p, 7] = 4 * abs(log2(padded / extent))


@_compiled
def _unroll(
    t: Loops,
    column: int,
    rows: np.ndarray,
    trips: np.ndarray,
    steps: np.ndarray,
    buffered: np.ndarray,
    out: np.ndarray,
) -> None:
    """Copies of the tile that unrolled reduce loops make: innermost first, up to the limit."""
    last = t.loop_ptr[t.group_ptr[1] - 1]
    for p in range(len(rows)):
        first = t.loop_ptr[t.shape[2] if buffered[p] else t.shape[1]]
        limit = rows[p, column] if column >= 0 else 0
        unrolled, statements = 1, int(out[p, 0])
        for x in range(last - 1, first - 1, -1):
            a, level = t.axis[x], t.level[x]
            count = trips[p, a, level]
            if not t.is_reduce[a] or count == 1:
                continue
            statements *= count
            if statements > limit:
                break
            # A loop that is shorter in the last tile does not unroll.
            step = steps[p, a, level]
            is_whole = -(-t.extent[a] // step) * step >= trips[p, a, 0] * steps[p, a, 0]
            if level == 0 or is_whole or t.extent[a] % steps[p, a, level - 1] == 0:
                unrolled *= count
        out[p, 8] = log2(unrolled)
        out[p, 9] = log2(unrolled * out[p, 0])


@_compiled
def _loop_trips(t: Loops, trips: np.ndarray, out: np.ndarray) -> None:
    """Trips of each group, from the innermost out: spatial, reduce, and those of the vector axis."""
    for p in range(len(trips)):
        for k in range(BOUNDARIES):
            spatial, reduced, along = 1.0, 1.0, 1.0
            g = t.group_ptr[1] - 1 - k
            if g >= 0:
                for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                    a = t.axis[x]
                    count = trips[p, a, t.level[x]]
                    if t.is_reduce[a]:
                        reduced *= count
                    else:
                        spatial *= count
                    if a == t.vector[0]:
                        along *= count
            out[p, 3 * k] = log2(spatial)
            out[p, 3 * k + 1] = log2(reduced)
            out[p, 3 * k + 2] = log2(along)


@_compiled
def _loads(
    t: Loops,
    nests: Nests,
    reads: Accesses,
    packs: Packs,
    machine: np.ndarray,
    rows: np.ndarray,
    trips: np.ndarray,
    covered: np.ndarray,
    inside: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the bytes of cache lines that the main statement loads inside each boundary.

    And count what the lanes of its loads read: one element, neighbours, elements apart.
    """
    groups, vector, line = t.group_ptr[1], t.vector[0], machine[3]
    for p in range(len(rows)):
        is_vector = False
        for x in range(t.loop_ptr[groups - 1], t.loop_ptr[groups]):
            is_vector = is_vector or (t.axis[x] == vector and trips[p, vector, t.level[x]] > 1)
        out[p, 0] = out[p, 1] = out[p, 2] = 0
        for i in range(len(reads.size)):
            pack = reads.pack[i]
            if pack >= 0 and rows[p, packs.column[pack]] == 0:
                pack = -1
            lanes = reads.lanes[i] if pack < 0 else packs.lanes[pack]
            out[p, lanes if is_vector else 0] += 1
            share = reads.size[i] / line
            place = 0  # inside so many groups the tensor is a buffer of one thread
            k = reads.host[i]
            if k >= 0 and pack < 0:
                place = rows[p, nests.where[k]] if nests.where[k] >= 0 else nests.depth[k]
            for b in range(BOUNDARIES + 1):
                outer = max(groups - b, 0)
                piece, pieces, is_whole = 1, 1, True
                if pack >= 0:
                    for d in range(packs.ptr[pack + 1] - 1, packs.ptr[pack] - 1, -1):
                        full = trips[p, packs.axis[d], packs.level[d]]
                        box = full if packs.group[d] >= outer else 1
                        if is_whole:
                            piece *= box
                        else:
                            pieces *= box
                        is_whole = is_whole and box == full
                else:
                    here = max(outer, place)
                    for d in range(reads.ptr[i + 1] - 1, reads.ptr[i] - 1, -1):
                        box = 1
                        for s in range(reads.term_ptr[d], reads.term_ptr[d + 1]):
                            box += reads.term_step[s] * (covered[p, here, reads.term_axis[s]] - 1)
                        box = min(box, reads.extent[d]) if reads.affine[d] else reads.extent[d]
                        if is_whole:
                            piece *= box
                        else:
                            pieces *= box
                        # Of a thread's own buffer only the rows are known to be contiguous.
                        is_whole = is_whole and box == reads.extent[d] and place <= 0
                inside[p, b] += pieces * np.ceil(piece * share) * line


@_compiled
def _stores(
    t: Loops,
    out_bytes: np.ndarray,
    out_scale: np.ndarray,
    out_extent: np.ndarray,
    machine: np.ndarray,
    covered: np.ndarray,
    buffered: np.ndarray,
    inside: np.ndarray,
    tile_bytes: np.ndarray,
) -> None:
    """Add the bytes of the tile buffer and of the output inside each boundary; the tile buffer's size."""
    groups, line, finish = t.group_ptr[1], machine[3], t.shape[1]
    for p in range(len(covered)):
        for b in range(BOUNDARIES + 1):
            outer = max(groups - b, 0)
            for k in range(2):  # the tile buffer, the output
                if k == 0 and not (buffered[p] and outer <= t.shape[2]):
                    continue
                if k == 1 and outer > finish and t.shape[0]:  # in registers or in the tile buffer
                    continue
                here = max(outer, finish) if k == 0 else outer
                piece, pieces, is_whole = 1, 1, True
                for a in range(t.axis_ptr[1] - 1, -1, -1):
                    if not t.is_reduce[a] and (k == 0 or out_scale[a] > 0):
                        box = covered[p, here, a]
                        if k == 1:
                            box = min(box * out_scale[a], out_extent[a])
                        if is_whole:
                            piece *= box
                        else:
                            pieces *= box
                        is_whole = is_whole and k == 1 and box == out_extent[a]
                inside[p, b] += pieces * np.ceil(piece * out_bytes[k] / line) * line
                if k == 0:
                    tile_bytes[p] = max(tile_bytes[p], pieces * piece * out_bytes[0])


@_compiled
def _traffic(
    machine: np.ndarray, log_flop: float, iterations: np.ndarray, inside: np.ndarray, out: np.ndarray
) -> None:
    """Bytes touched inside each boundary, bytes moved across it, and the traffic of each cache."""
    groups = iterations.shape[1] - 1
    per_flop = 64 / max(2.0**log_flop - 1.0, 1.0)
    for p in range(len(out)):
        for b in range(1, BOUNDARIES + 1):
            out[p, 2 * b - 2] = log2(inside[p, b] + 1)
            moved = inside[p, b] * iterations[p, max(groups - b, 0)]
            out[p, 2 * b - 1] = log2(moved * per_flop + 1)
        for level in range(3):
            traffic = inside[p, 0] * iterations[p, groups]
            for b in range(BOUNDARIES + 1):
                if inside[p, b] <= machine[4 + level]:
                    traffic = min(traffic, inside[p, b] * iterations[p, max(groups - b, 0)])
            out[p, 2 * (BOUNDARIES + level)] = log2(traffic + 1)
            out[p, 2 * (BOUNDARIES + level) + 1] = log2(traffic * per_flop + 1)


@_compiled
def _threads(column: int, threads: int, rows: np.ndarray, iterations: np.ndarray, out: np.ndarray) -> None:
    """Iterations to share among threads, and how evenly they divide."""
    for p in range(len(rows)):
        pieces = iterations[p, 1] if column >= 0 and rows[p, column] == 1 else 1.0
        out[p, 0] = pieces > 1
        out[p, 1] = log2(pieces)
        out[p, 2] = pieces / (math.ceil(pieces / threads) * threads)
        out[p, 3] = log2(pieces / threads + 1)


@_compiled
def _copies(t: Packs, rows: np.ndarray, trips: np.ndarray, tile_bytes: np.ndarray, out: np.ndarray) -> None:
    """Packed copies and the tile buffer; out[6] holds the bytes of copies made at run time so far."""
    for p in range(len(rows)):
        packed, packed_here, prefetched, shared = 0, 0, 0, 0
        for k in range(len(t.column)):
            if rows[p, t.column[k]] == 0:
                continue
            packed += t.nest[k] == 0
            prefetched += t.nest[k] == 0 and rows[p, t.column[k]] == PREFETCHED
            if not t.ahead[k]:
                packed_here += t.nest[k] == 0
                size = t.size[k]
                for d in range(t.ptr[k], t.ptr[k + 1]):
                    size *= trips[p, t.axis[d], t.level[d]]
                shared += size
        out[p, 0] = packed
        out[p, 1] = packed_here
        out[p, 5] = log2(tile_bytes[p] + 1)
        out[p, 6] = shared
        out[p, 10] = prefetched


@_compiled
def _runs(t: Loops, trips: np.ndarray, nest: int, groups: int) -> int:
    """Iterations of a nest's first groups, for one candidate."""
    count = 1
    first = t.group_ptr[nest]
    for x in range(t.loop_ptr[first], t.loop_ptr[first + groups]):
        count *= trips[t.axis[x], t.level[x]]
    return count


@_compiled
def _other_nests(t: Loops, nests: Nests, rows: np.ndarray, trips: np.ndarray, out: np.ndarray) -> None:
    """Where attached producers are computed, and what the nests beside the main one compute."""
    depth = t.columns.shape[1]
    for p in range(len(rows)):
        inlined, rooted, runs, shared = 0, 0, 0, float(out[p, 6])
        points, serial, narrow = 0.0, 0.0, 0.0
        for k in range(len(nests.host)):
            host, place = nests.host[k], 0
            if host >= 0:
                place = rows[p, nests.where[k]] if nests.where[k] >= 0 else nests.depth[k]
                if place < 0:
                    inlined += 1
                    continue
                rooted += place == 0
                runs += _runs(t, trips[p], host, place)
            shared += nests.shared_bytes[k] if place == 0 else 0
            if k == 0:
                continue
            outer = k if place == 0 else host
            column = nests.parallel[outer]
            is_parallel = column >= 0 and rows[p, column] == 1 and _runs(t, trips[p], outer, 1) > 1
            points += nests.size[k]
            serial += 0 if is_parallel else nests.size[k]
            if host >= 0 and not nests.reduces[k]:
                continue
            tile = 1  # of an attached reduction along rows, one element
            if t.vector[k] >= 0 and (host < 0 or t.lanes_axis[k] >= 0):
                for level in range(depth + 1):
                    if level == 0 or t.columns[t.vector[k], level - 1] >= 0:
                        tile = trips[p, t.vector[k], level]
            narrow += nests.size[k] if tile % t.lanes[k] else 0
        out[p, 2] = inlined
        out[p, 3] = rooted
        out[p, 4] = log2(runs + 1)
        out[p, 6] = log2(shared + 1)
        out[p, 7] = log2(points + 1)
        out[p, 8] = log2(serial + 1)
        out[p, 9] = log2(narrow + 1)
