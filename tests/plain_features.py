"""The features of a candidate, read off its lowered program: what seer/search/features.py is compared with.

Nothing here knows the candidate's parameters. Loops, their trips, tensors and their indices are those of
the LoopProgram; the sketch says only which loop belongs to which group, and the naive program how much
arithmetic there is. Facts are those of the full tile: the `then` of every If, outer loops at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from plain_program import Env, Level, Site, flop_of, sites, value

from seer.codegen.lower import lower
from seer.dtypes import dtype as dtype_of
from seer.ir.expr import Call, Expr, Load, variables, walk
from seer.ir.loops import Buffer, LoopKind, LoopProgram, Prefetch, Scope, walk_stmts
from seer.ir.sketch import Loop, Nest, Sketch
from seer.runtime.target import Target
from seer.search.builders import naive_sketch
from seer.search.feature_tables import BOUNDARIES, main_nest, structure_features, workload_features

Part = tuple[Site, tuple[Expr, ...]]  # a statement, and indices of something in it


class PlainFeatures:
    """The features of one lowered program."""

    def __init__(self, sketch: Sketch, program: LoopProgram, target: Target) -> None:
        self.sketch, self.program, self.target = sketch, program, target
        self.sites = sites(program)
        self.nest = main_nest(sketch)
        self.op = sketch.dag.op(self.nest.stage)
        self.lanes = target.lanes(self.op.body.dtype)
        self.versions = self.main_sites(self.nest)
        self.mains = [s for s in self.versions if s.is_full]
        self.main = self.mains[0]
        self._spans: dict[tuple[int, Expr, frozenset[str]], list[int] | None] = {}
        self.tile_loops, self.group_of = self._groups()

    # -- finding things ------------------------------------------------------------------------

    def main_sites(self, nest: Nest) -> list[Site]:
        """The statements that do a nest's work: for each version of its tile, each part of its vectors."""
        if self.sketch.dag.op(nest.stage).reducer is None:
            return self.stores_to(nest.output)
        found = [
            s
            for s in self.sites
            if s.store.buffer.scope is Scope.REGISTER
            and s.store.buffer.name.rpartition("_")[0] == nest.stage
            and any(isinstance(e, Load) and e.buffer is s.store.buffer for e in walk(s.store.value))
        ]
        in_lanes = nest.vector in {a.name for a in self.sketch.dag.op(nest.stage).reduce_axes}
        return found[:1] if in_lanes else found

    def stores_to(self, tensor: str) -> list[Site]:
        """The Stores into the buffer of a tensor."""
        return [s for s in self.sites if self.is_buffer_of(s.store.buffer, tensor)]

    def is_buffer_of(self, b: Buffer, tensor: str) -> bool:
        if b.scope is Scope.ARG:
            return b.name == tensor
        return b.scope in (Scope.SHARED, Scope.THREAD) and b.name.rpartition("_")[0] == tensor

    def _groups(self) -> tuple[set[str], dict[str, Loop]]:
        """Variables of the main statement's tile, and the loop of the sketch that each variable is."""
        names = {f"{x.axis}{x.level}": x for g in self.nest.groups for x in g}
        tile = {x.axis: x for x in self.nest.groups[-1]}
        assert not set(names) & set(tile), (names, tile)
        loops: dict[str, Loop] = {}
        in_tile = set()
        for s in self.versions:
            for k, x in enumerate(s.levels):
                inner = s.levels[k + 1 :]
                is_vector = x.kind is LoopKind.VECTORIZED
                is_chunk = x.hint == "c" and len(inner) == 1 and inner[0].kind is LoopKind.VECTORIZED
                if is_vector or (is_chunk and x.kind is LoopKind.UNROLLED):
                    loops[x.var] = tile[self.nest.vector or ""]
                    in_tile.add(x.var)
                elif x.hint in names:
                    loops[x.var] = names[x.hint]
                elif x.hint in tile and x.kind is LoopKind.UNROLLED:
                    loops[x.var] = tile[x.hint]
                    in_tile.add(x.var)
                else:  # one element after another along an axis that does not fill a vector
                    loops[x.var] = Loop(x.hint, 0)
        return in_tile, loops

    def group(self, var: str) -> int:
        loop = self.group_of[var]
        return next(k for k, g in enumerate(self.nest.groups) if loop in g)

    # -- counting ------------------------------------------------------------------------------

    def trips(self) -> dict[Loop, int]:
        """Trips of each loop of the sketch (1 where the program has no such loop)."""
        out = {x: 1 for g in self.nest.groups for x in g}
        first = self.mains[0]
        for x in first.levels:
            loop = self.group_of[x.var]
            if x.var not in self.tile_loops or loop.axis != self.nest.vector:
                out[loop] *= x.trips
        if self.nest.vector is not None and self.nest.groups[-1]:
            along = next(x for x in self.nest.groups[-1] if x.axis == self.nest.vector)
            out[along] *= self.wide()
        return out

    def wide(self) -> int:
        """Positions along the vector axis in the tile: those of all parts together."""
        total = 0
        for s in self.mains:
            part = 1
            for x in s.levels:
                if x.var in self.tile_loops and self.group_of[x.var].axis == self.nest.vector:
                    part *= x.trips
            total += part
        return total

    def iterations(self, depth: int) -> float:
        """Runs of the loops of the first `depth` groups."""
        return math.prod(n for x, n in self.trips().items() if self._group_of_loop(x) < depth)

    def _group_of_loop(self, loop: Loop) -> int:
        return next(k for k, g in enumerate(self.nest.groups) if loop in g)

    def slopes(self, s: Site, index: Expr, loops: Sequence[Level]) -> dict[str, int] | None:
        """By how much an index moves with each of some loops; None if it does not move evenly."""
        if any(isinstance(e, Load) for e in walk(index)):
            return None
        base = value(index, {}, s.lets)
        out = {x.var: value(index, {x.var: 1}, s.lets) - base for x in loops if x.trips > 1}
        rng = np.random.default_rng(0)
        for _ in range(8):
            at = {x.var: int(rng.integers(0, max(x.trips, 1))) for x in loops}
            if value(index, at, s.lets) != base + sum(at[v] * c for v, c in out.items()):
                return None
        return out

    def box(self, parts: list[Part], shape: tuple[int, ...], depth: int) -> list[int]:
        """Range of each index while the loops inside the first `depth` groups run, all parts together."""
        out = []
        for d, n in enumerate(shape):
            ends = [self.ends(s, indices[d], depth) for s, indices in parts]
            if any(e is None for e in ends):
                span = n
            else:
                known = [v for e in ends if e is not None for v in e]
                span = max(known) - min(known) + 1 if known else 1
            out.append(min(span, max(n, 1)))
        return out

    def ends(self, s: Site, index: Expr, depth: int) -> list[int] | None:
        """The smallest and largest value of an index, nothing if it never runs.

        None if it does not move evenly with each loop.
        """
        used = self.used([index], s)
        conditions = [(c, branch) for c, branch in s.conditions if self.used([c], s) & used]
        used |= self.used([c for c, _ in conditions], s)
        inner = frozenset(x.var for x in s.levels if x.var in used and self.depth_of(x) >= depth)
        key = (id(s), index, inner)
        if key not in self._spans:
            loops = [x for x in s.levels if x.var in used]
            self._spans[key] = self.find_ends(s, index, loops, inner, conditions)
        return self._spans[key]

    def find_ends(
        self,
        s: Site,
        index: Expr,
        loops: list[Level],
        inner: frozenset[str],
        conditions: list[tuple[Expr, bool]],
    ) -> list[int] | None:
        is_output = self.is_buffer_of(s.store.buffer, self.nest.stored) and index in s.store.indices
        if any(isinstance(e, Load) for e in walk(index)):
            return None
        if not is_output and self.slopes(s, index, [x for x in loops if x.var in inner]) is None:
            return None
        points: dict[str, np.ndarray] = {}
        count = 1
        for x in loops:
            extent: Any = x.trips if x.loop.var != x.var else value(x.loop.extent, points, s.lets)
            trips = (
                np.broadcast_to(extent, count) if x.var in inner else np.minimum(extent, np.ones(count, int))
            )
            points = {name: np.repeat(at, trips) for name, at in points.items()}
            first = np.cumsum(trips) - trips
            count = int(trips.sum())
            points[x.var] = np.arange(count) - np.repeat(first, trips)
        happens = np.ones(count, dtype=bool)
        for c, branch in conditions:
            happens &= np.broadcast_to(value(c, points, s.lets), count) == branch
        seen = np.broadcast_to(value(index, points, s.lets), count)[happens]
        return [int(seen.min()), int(seen.max())] if len(seen) else []

    def used(self, exprs: list[Expr], s: Site) -> set[str]:
        """The loop variables that decide some expressions."""
        found: set[str] = set()
        todo = [v for e in exprs for v in variables(e)]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            loops = [x for x in s.levels if x.var == name and x.loop.var == name]
            todo += [v for x in loops for v in variables(x.loop.extent)]
            todo += list(variables(s.lets[name])) if name in s.lets else []
        return found & {x.var for x in s.levels}

    def depth_of(self, x: Level) -> int:
        """The group of a loop; loops of a finished tile's own are innermost."""
        return self.group(x.var) if x.var in self.group_of else len(self.nest.groups)

    def lines(self, box: list[int], b: Buffer, size: int) -> float:
        """Cache lines of a box; pieces that follow each other in memory count as one."""
        piece, whole = 1, True
        for extent, n in zip(reversed(box), reversed(b.shape), strict=True):
            if whole:
                piece *= extent
            whole = whole and extent == max(n, 1) and b.scope is not Scope.THREAD
        line = self.target.cache_line_bytes
        return math.prod(box) / piece * math.ceil(piece * size / line) * line

    def accesses(self) -> dict[tuple[Buffer, int], list[Part]]:
        """What the main statement loads: for each place in its expression, the indices in every version."""
        out: dict[tuple[Buffer, int], list[Part]] = {}
        for s in self.versions:
            found: dict[tuple[Buffer, tuple[Expr, ...]], None] = {}
            for e in walk(s.store.value):
                if isinstance(e, Load) and e.buffer.scope is not Scope.REGISTER:
                    found[e.buffer, e.indices] = None
            for k, (b, indices) in enumerate(found):
                out.setdefault((b, k), []).append((s, indices))
        return out

    # -- the features --------------------------------------------------------------------------

    def all(self) -> list[float]:
        calls = sum(isinstance(e, Call) and e.name != "fma" for e in walk(self.main.store.value))
        outputs = float(math.prod(self.program.params[-1].shape))
        flop = float(
            flop_of(lower(naive_sketch(self.sketch.dag), np.zeros(0, np.int64), self.target).program)
        )
        return [
            *workload_features(self.sketch, flop, outputs, self.target),
            *structure_features(self.sketch),
            float(calls),
            *self.tile(),
            *self.loops(),
            *self.memory(flop),
            *self.threads(),
            *self.scratch(),
            *self.others(),
            self.prefetches(),
        ]

    def tile(self) -> list[float]:
        trips, wide = self.trips(), self.wide()
        vectors = sum(
            math.prod(x.trips for x in s.levels if x.var in self.tile_loops and x.kind is LoopKind.UNROLLED)
            for s in self.mains
        )
        rows = math.prod(
            x.trips
            for x in self.mains[0].levels
            if x.var in self.tile_loops and self.group_of[x.var].axis != self.nest.vector
        )
        chunks = vectors // rows
        unrolled = math.prod(
            x.trips for x in self.main.levels if x.kind is LoopKind.UNROLLED and x.var not in self.tile_loops
        )
        padded = math.prod(trips.values()) / math.prod(max(s.extent, 1) for s in self.nest.splits)
        return [
            vectors,
            chunks,
            rows,
            wide / (chunks * self.lanes),
            all(self.vector_trips(s) == self.lanes for s in self.mains),
            self.vector_loads() / vectors,
            vectors / self.target.num_vector_registers,
            4 * abs(math.log2(padded)),
            math.log2(unrolled),
            math.log2(unrolled * vectors),
        ]

    def vector_trips(self, s: Site) -> int:
        return math.prod(x.trips for x in s.levels if x.kind is LoopKind.VECTORIZED)

    def vector_loads(self) -> int:
        """Different loads in the unrolled tile, each of one vector or of one element for all lanes."""
        total = 0
        for parts in self.accesses().values():
            seen = set()
            for s, indices in [p for p in parts if p[0].is_full]:
                unrolled = [x for x in s.levels if x.var in self.tile_loops and x.kind is LoopKind.UNROLLED]
                for at in np.ndindex(*(x.trips for x in unrolled)):
                    env = {x.var: i for x, i in zip(unrolled, at, strict=True)}
                    seen.add(tuple(self.index(i, env, s) for i in indices))
            total += len(seen)
        return total

    def index(self, e: Expr, env: Env, s: Site) -> object:
        """An index at a point; what a load decides is known by its own index."""
        loads = [n for n in walk(e) if isinstance(n, Load)]
        if loads:
            return tuple(self.index(i, env, s) for n in loads for i in n.indices)
        return value(e, env, s.lets)

    def loops(self) -> list[float]:
        trips = self.trips()
        reduced = {a.name for a in self.op.reduce_axes}
        out: list[float] = []
        for k in range(BOUNDARIES):
            g = len(self.nest.groups) - 1 - k
            mine = [x for x in trips if self._group_of_loop(x) == g] if g >= 0 else []
            for keep in (
                [x for x in mine if x.axis not in reduced],
                [x for x in mine if x.axis in reduced],
                [x for x in mine if x.axis == self.nest.vector],
            ):
                out += [math.log2(math.prod(trips[x] for x in keep))]
        return out

    def result_sites(self) -> tuple[list[Site], list[Site]]:
        """Where the tile buffer is stored to from registers, and where the output is stored."""
        name = f"{self.nest.stage}_tile"
        tile = [
            s
            for s in self.stores_to(name)
            if isinstance(s.store.value, Load) and s.store.value.buffer.scope is Scope.REGISTER
        ]
        return tile, self.stores_to(self.nest.stored)

    def memory(self, flop: float) -> list[float]:
        groups = len(self.nest.groups)
        tile, output = self.result_sites()
        inside, moved = [], []
        for b in range(BOUNDARIES + 1):
            depth = max(groups - b, 0)
            touched = 0.0
            for (buffer, _), parts in self.accesses().items():
                size = dtype_of(buffer.dtype).size_bytes
                touched += self.lines(self.box(parts, buffer.shape, depth), buffer, size)
            for stores, deepest in ((tile, self.reduce_depth()), (output, self.output_depth())):
                if stores and depth <= deepest:
                    buffer = stores[0].store.buffer
                    parts = [(s, s.store.indices) for s in stores]
                    box = self.box(parts, buffer.shape, depth)
                    touched += self.lines(box, buffer, dtype_of(buffer.dtype).size_bytes)
            inside.append(touched)
            moved.append(touched * self.iterations(depth))
        out: list[float] = []
        for b in range(1, BOUNDARIES + 1):
            out += [math.log2(inside[b] + 1), math.log2(moved[b] / max(flop, 1) * 64 + 1)]
        for cache in (self.target.l1_bytes, self.target.l2_bytes, self.target.l3_bytes):
            traffic = min([moved[0], *(m for i, m in zip(inside, moved, strict=True) if i <= cache)])
            out += [math.log2(traffic + 1), math.log2(traffic / max(flop, 1) * 64 + 1)]
        return self.lane_counts() + out

    def reduce_depth(self) -> int:
        """Groups around the registers' loops of a tile buffer: after them come only reduce loops."""
        reduced = {a.name for a in self.op.reduce_axes}
        groups, last = self.nest.groups, len(self.nest.groups) - 1
        return next(
            d
            for d in range(self.nest.finish, last + 1)
            if all(x.axis in reduced for g in groups[d:last] for x in g)
        )

    def output_depth(self) -> int:
        return self.nest.finish if self.op.reducer is not None else len(self.nest.groups)

    def lane_counts(self) -> list[float]:
        counts = [0.0, 0.0, 0.0]
        for parts in self.accesses().values():
            s, indices = parts[0]
            vector = next((x.var for x in s.levels if x.kind is LoopKind.VECTORIZED), None)
            moves = []
            for i in indices:
                slopes = self.slopes(s, i, s.levels)
                if vector is None:
                    moves.append(0)
                elif slopes is None:
                    moves.append(2 if vector in variables(i) else 0)
                else:
                    moves.append(slopes.get(vector, 0))
            if not any(moves):
                counts[0] += 1
            elif moves[-1] == 1 and not any(moves[:-1]):
                counts[1] += 1
            else:
                counts[2] += 1
        return counts

    def threads(self) -> list[float]:
        pieces = math.prod(x.trips for x in self.main.levels if x.kind is LoopKind.PARALLEL)
        n = self.target.num_threads
        return [
            pieces > 1,
            math.log2(pieces),
            pieces / (math.ceil(pieces / n) * n),
            math.log2(pieces / n + 1),
        ]

    def scratch(self) -> list[float]:
        dag = self.sketch.dag
        here = [p for p in self.nest.packs if self.packed_buffers(p.tensor)]
        ahead = [
            p
            for p in self.nest.packs
            for b in self.program.params
            if b.name == p.tensor and len(b.shape) != len(dag.tensor(p.tensor).shape)
        ]
        attached = [(n, a.nest) for n in self.sketch.all_nests() for a in n.attached]
        attached += [(n, n.consumer.nest) for n in self.sketch.all_nests() if n.consumer is not None]
        inlined, rooted, runs = 0, 0, 0.0
        for host, nest in attached:
            stores = self.stores_to(nest.output)
            if not stores:
                inlined += 1
            elif stores[0].store.buffer.scope is Scope.SHARED:
                rooted += 1
                runs += 1
            else:
                runs += self.shared_trips(stores[0], self.main_sites(host)[0])
        tile = [b for b in self.program.buffers if self.is_buffer_of(b, f"{self.nest.stage}_tile")]
        shared = [b for b in self.program.buffers if b.scope is Scope.SHARED]
        return [
            float(len(here) + len(ahead)),
            float(len(here)),
            float(inlined),
            float(rooted),
            math.log2(runs + 1),
            math.log2(sum(b.size_bytes for b in tile) + 1),
            math.log2(sum(b.size_bytes for b in shared) + 1),
        ]

    def prefetches(self) -> float:
        """Buffers that the main nest prefetches from."""
        found = {s.buffer for s in walk_stmts(self.program.body) if isinstance(s, Prefetch)}
        return float(sum(b.name in {p.tensor for p in self.nest.packs} for b in found))

    def packed_buffers(self, tensor: str) -> list[Buffer]:
        return [b for b in self.program.buffers if self.is_buffer_of(b, f"{tensor}_packed")]

    def shared_trips(self, a: Site, b: Site) -> int:
        """Runs of the loops that two statements share."""
        out = 1
        for x, y in zip(a.levels, b.levels, strict=False):
            if x.var != y.var:
                break
            out *= x.trips
        return out

    def others(self) -> list[float]:
        points, serial, narrow = 0.0, 0.0, 0.0
        for nest in self.sketch.all_nests():
            stores = self.stores_to(nest.output)
            if nest is self.nest or not stores:
                continue
            op = self.sketch.dag.op(nest.stage)
            size = float(math.prod(self.sketch.dag.tensor(nest.output).shape))
            points += size
            serial += 0 if stores[0].is_parallel else size
            if op.reducer is not None or any(nest is n for n in self.sketch.nests):
                lanes = self.target.lanes(op.body.dtype)
                narrow += (
                    size
                    if any(self.vector_trips(s) % lanes for s in self.main_sites(nest) if s.is_full)
                    else 0
                )
        return [math.log2(points + 1), math.log2(serial + 1), math.log2(narrow + 1)]


def plain_features(sketch: Sketch, program: LoopProgram, target: Target) -> np.ndarray:
    """The float32 features of a lowered candidate."""
    return np.array(PlainFeatures(sketch, program, target).all(), dtype=np.float32)
