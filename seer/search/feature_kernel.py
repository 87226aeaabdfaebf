"""The features of candidates from the tables of their sketch, compiled once for all sketches.

One candidate after another, in plain loops: a population of any size costs the same per candidate.
Every number is a fact of the lowered program (tests/plain_features.py reads it off there):

- trips: how often a loop of the main statement runs, in the tile in which all loops run in full;
- box: the ranges of indices at which a tensor is read while the loops inside a boundary run;
- runs: the pieces of a box that are contiguous in memory, each of so many cache lines.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from seer.search.feature_tables import Tables

BOUNDARIES = 6  # loop groups described, from the innermost out
N_FEATURES = 82

_log2 = math.log2


@numba.njit(cache=True)
def fill(t: Tables, rows: np.ndarray, out: np.ndarray) -> None:
    """Write the features (P, N_FEATURES) of canonical rows (P, n_params)."""
    n_axes, depth = t.columns.shape
    n_nests = len(t.vector)
    main_axes = t.axis_ptr[1]
    groups = t.group_ptr[1]
    n_access = len(t.access_bytes)
    trips = np.ones((n_axes, depth + 1), dtype=np.int64)
    steps = np.ones((n_axes, depth + 1), dtype=np.int64)
    n_levels = np.ones(n_axes, dtype=np.int64)
    covered = np.ones((groups + 1, n_axes), dtype=np.int64)
    iterations = np.ones(groups + 1, dtype=np.float64)
    inside = np.zeros(BOUNDARIES + 1, dtype=np.float64)
    moved = np.zeros(BOUNDARIES + 1, dtype=np.float64)
    lanes, registers, threads, line = t.machine[0], t.machine[1], t.machine[2], t.machine[3]
    finish, inner_depth, unroll_column = t.shape[0], t.shape[1], t.shape[2]
    vector, flop = t.vector[0], max(2.0 ** t.constants[0] - 1.0, 1.0)
    for a in range(n_axes):
        for level in range(depth):
            n_levels[a] += t.columns[a, level] >= 0

    for p in range(len(rows)):
        row, f = rows[p], out[p]

        # -- trips ---------------------------------------------------------------------------------
        for a in range(n_axes):
            m = n_levels[a] - 1
            step = 1
            for level in range(m, 0, -1):
                trips[a, level] = row[t.columns[a, level - 1]]
                steps[a, level] = step
                step *= trips[a, level]
            steps[a, 0] = step
            trips[a, 0] = -(-t.extent[a] // step)
        for k in range(n_nests):
            a = t.lanes_axis[k]
            if a >= 0:  # whole vectors only; what is left runs in loops of its own
                size = trips[a, 1] // t.nest_lanes[k] * t.nest_lanes[k]
                trips[a, 1] = max(size, 1)
                steps[a, 0] = max(size, 1)
                trips[a, 0] = t.extent[a] // max(size, 1)
        for a in range(main_axes):
            covered[groups, a] = 1
        for g in range(groups - 1, -1, -1):
            for a in range(main_axes):
                covered[g, a] = covered[g + 1, a]
            for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                covered[g, t.loop_axis[x]] *= trips[t.loop_axis[x], t.loop_level[x]]
        for g in range(groups):
            for a in range(main_axes):
                covered[g, a] = min(covered[g, a], t.extent[a])
            count = 1.0
            for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                count *= trips[t.loop_axis[x], t.loop_level[x]]
            iterations[g + 1] = iterations[g] * count

        # -- the register tile ---------------------------------------------------------------------
        n = 0
        for c in t.constants:
            f[n] = c
            n += 1
        wide, vectors = 1, 1
        for x in range(t.loop_ptr[groups - 1], t.loop_ptr[groups]):
            if t.loop_axis[x] == vector:
                wide = trips[vector, t.loop_level[x]]
            else:
                vectors *= trips[t.loop_axis[x], t.loop_level[x]]
        chunks = -(-wide // lanes)
        vectors *= chunks
        loads = 0.0
        for i in range(n_access):
            count = 1.0
            for x in range(t.loop_ptr[groups - 1], t.loop_ptr[groups]):
                a = t.loop_axis[x]
                used = False
                for d in range(t.access_ptr[i], t.access_ptr[i + 1]):
                    used = used or t.dim_steps[d, a] != 0
                if used:
                    count *= chunks if a == vector else trips[a, t.loop_level[x]]
            loads += count
        waste = 1.0
        for a in range(main_axes):
            waste *= trips[a, 0] * steps[a, 0] / t.extent[a]

        is_buffered = False
        if t.reduces[0] and t.lanes_axis[0] < 0:
            for g in range(finish, groups - 1):
                for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                    a = t.loop_axis[x]
                    is_buffered = is_buffered or (not t.is_reduce[a] and trips[a, t.loop_level[x]] > 1)
        reduce_depth = inner_depth if is_buffered else finish

        unrolled, statements = 1, vectors
        limit = row[unroll_column] if unroll_column >= 0 else 0
        for x in range(t.loop_ptr[groups - 1] - 1, t.loop_ptr[reduce_depth] - 1, -1):
            a, level = t.loop_axis[x], t.loop_level[x]
            if not t.is_reduce[a] or trips[a, level] == 1:
                continue
            statements *= trips[a, level]
            if statements > limit:
                break
            # A loop whose last run is shorter does not unroll.
            step = steps[a, level]
            whole = -(-t.extent[a] // step) * step >= trips[a, 0] * steps[a, 0]
            if level == 0 or whole or t.extent[a] % steps[a, level - 1] == 0:
                unrolled *= trips[a, level]

        f[n] = vectors
        f[n + 1] = chunks
        f[n + 2] = vectors / chunks
        f[n + 3] = wide / (chunks * lanes)
        f[n + 4] = wide % lanes == 0
        f[n + 5] = loads / vectors
        f[n + 6] = vectors / registers
        f[n + 7] = 4 * _log2(max(waste, 1 / waste))
        f[n + 8] = _log2(unrolled)
        f[n + 9] = _log2(unrolled * vectors)
        n += 10

        # -- loops, from the innermost group out -----------------------------------------------------
        for k in range(BOUNDARIES):
            spatial, reduced, along = 1.0, 1.0, 1.0
            g = groups - 1 - k
            if g >= 0:
                for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                    a = t.loop_axis[x]
                    count = trips[a, t.loop_level[x]]
                    if t.is_reduce[a]:
                        reduced *= count
                    else:
                        spatial *= count
                    if a == vector:
                        along *= count
            f[n] = _log2(spatial)
            f[n + 1] = _log2(reduced)
            f[n + 2] = _log2(along)
            n += 3

        # -- memory --------------------------------------------------------------------------------
        for k in range(BOUNDARIES + 1):
            inside[k] = 0.0
        same, neighbours, apart = 0, 0, 0
        for i in range(n_access):
            pack = t.access_pack[i]
            if pack >= 0 and row[t.pack_column[pack]] == 0:
                pack = -1
            how = t.access_lanes[i] if pack < 0 else t.pack_lanes[pack]
            if wide == 1 or how == 0:
                same += 1
            elif how == 1:
                neighbours += 1
            else:
                apart += 1
            place = 0  # number of outer groups in which the tensor is a buffer of one thread
            if t.access_host[i] >= 0 and pack < 0:
                k = t.access_host[i]
                place = row[t.where[k]] if t.where[k] >= 0 else t.depth[k]
            for b in range(BOUNDARIES + 1):
                outer = max(groups - b, 0)
                lines = 1.0
                if pack >= 0:
                    first, last = t.pack_ptr[pack], t.pack_ptr[pack + 1]
                    piece, is_whole, elements = 1.0, True, 1.0
                    for d in range(last - 1, first - 1, -1):
                        a, level = t.pack_axis[d], t.pack_level[d]
                        size = trips[a, level]
                        inner = False
                        for x in range(t.loop_ptr[outer], t.loop_ptr[groups]):
                            inner = inner or (t.loop_axis[x] == a and t.loop_level[x] == level)
                        box = size if inner else 1
                        elements *= box
                        if is_whole:
                            piece *= box
                        is_whole = is_whole and box == size
                    lines = elements / piece * math.ceil(piece * t.pack_bytes[pack] / line)
                else:
                    depth_here = max(outer, place)
                    piece, is_whole, elements = 1.0, True, 1.0
                    for d in range(t.access_ptr[i + 1] - 1, t.access_ptr[i] - 1, -1):
                        box = 1
                        for a in range(main_axes):
                            box += t.dim_steps[d, a] * (covered[depth_here, a] - 1)
                        if not t.dim_affine[d] or box > t.dim_extent[d]:
                            box = t.dim_extent[d]
                        elements *= box
                        if is_whole:
                            piece *= box
                        # Of a thread's own buffer only the rows are known to be contiguous.
                        is_whole = is_whole and box == t.dim_extent[d] and place <= 0
                    lines = elements / piece * math.ceil(piece * t.access_bytes[i] / line)
                inside[b] += lines * line
        tile_bytes = 0.0
        for b in range(BOUNDARIES + 1):
            outer = max(groups - b, 0)
            stored = outer <= finish or not t.reduces[0]
            for tile in range(2):  # the tile buffer, then the output
                if (tile == 0 and not (is_buffered and outer <= reduce_depth)) or (tile == 1 and not stored):
                    continue
                depth_here = max(outer, finish) if tile == 0 else outer
                piece, is_whole, elements = 1.0, True, 1.0
                for a in range(main_axes - 1, -1, -1):
                    if t.is_reduce[a]:
                        continue
                    box = covered[depth_here, a]
                    elements *= box
                    if is_whole:
                        piece *= box
                    is_whole = is_whole and tile == 1 and box == t.extent[a]
                inside[b] += elements / piece * math.ceil(piece * t.out_bytes[tile] / line) * line
                if tile == 0 and outer <= finish:
                    tile_bytes = elements * t.out_bytes[0]
            moved[b] = inside[b] * iterations[outer]
        for b in range(1, BOUNDARIES + 1):
            f[n] = _log2(inside[b] + 1)
            f[n + 1] = _log2(moved[b] / flop * 64 + 1)
            n += 2
        for level in range(3):
            traffic = moved[0]
            for b in range(BOUNDARIES + 1):
                if inside[b] <= t.machine[4 + level]:
                    traffic = min(traffic, moved[b])
            f[n] = _log2(traffic + 1)
            f[n + 1] = _log2(traffic / flop * 64 + 1)
            n += 2
        f[n] = same
        f[n + 1] = neighbours
        f[n + 2] = apart
        n += 3

        # -- threads -------------------------------------------------------------------------------
        pieces = 1.0
        if t.parallel[0] >= 0 and row[t.parallel[0]] == 1:
            pieces = iterations[1]
        f[n] = pieces > 1
        f[n + 1] = _log2(pieces)
        f[n + 2] = pieces / (math.ceil(pieces / threads) * threads)
        f[n + 3] = _log2(pieces / threads + 1)
        n += 4

        # -- scratch, packed copies and the other nests -----------------------------------------------
        packed, packed_here, shared = 0, 0, 0.0
        for k in range(len(t.pack_column)):
            if row[t.pack_column[k]] == 0:
                continue
            packed += t.pack_nest[k] == 0
            if not t.pack_ahead[k]:
                packed_here += t.pack_nest[k] == 0
                size = t.pack_bytes[k]
                for d in range(t.pack_ptr[k], t.pack_ptr[k + 1]):
                    size *= trips[t.pack_axis[d], t.pack_level[d]]
                shared += size
        repeated, rooted, runs, points, serial, narrow = 0, 0, 0.0, 0.0, 0.0, 0.0
        for k in range(n_nests):
            h, size = t.host[k], float(t.nest_size[k])
            is_parallel = False
            if h < 0:
                shared += t.shared_bytes[k]
                if t.parallel[k] >= 0 and row[t.parallel[k]] == 1:
                    count = 1
                    g = t.group_ptr[k]
                    for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                        count *= trips[t.loop_axis[x], t.loop_level[x]]
                    is_parallel = count > 1
            else:
                place = row[t.where[k]] if t.where[k] >= 0 else t.depth[k]
                if place < 0:
                    repeated += 1
                    continue
                if place == 0:
                    rooted += 1
                    runs += 1
                    shared += t.shared_bytes[k]
                else:
                    count = 1
                    for g in range(t.group_ptr[h], t.group_ptr[h] + place):
                        for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                            count *= trips[t.loop_axis[x], t.loop_level[x]]
                    runs += count
                    if t.parallel[h] >= 0 and row[t.parallel[h]] == 1:
                        count = 1
                        g = t.group_ptr[h]
                        for x in range(t.loop_ptr[g], t.loop_ptr[g + 1]):
                            count *= trips[t.loop_axis[x], t.loop_level[x]]
                        is_parallel = count > 1
            if k == 0:
                continue
            points += size
            if not is_parallel:
                serial += size
            if h < 0 or t.reduces[k]:
                tile = 1
                if t.vector[k] >= 0 and (h < 0 or t.lanes_axis[k] >= 0):
                    tile = trips[t.vector[k], n_levels[t.vector[k]] - 1]
                if tile % t.nest_lanes[k] != 0:
                    narrow += size
        f[n] = packed
        f[n + 1] = packed_here
        f[n + 2] = repeated
        f[n + 3] = rooted
        f[n + 4] = _log2(runs + 1)
        f[n + 5] = _log2(tile_bytes + 1)
        f[n + 6] = _log2(shared + 1)
        f[n + 7] = _log2(points + 1)
        f[n + 8] = _log2(serial + 1)
        f[n + 9] = _log2(narrow + 1)
