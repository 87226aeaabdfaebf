"""One loop nest: tiled loops, attached producers, accumulators in registers or a tile buffer."""

from __future__ import annotations

from collections.abc import Callable

from seer.codegen.lower.context import Context, Override, PackedPlace, Place
from seer.codegen.lower.lanes import reduce_by_lanes
from seer.codegen.lower.loops import fuse_parallel
from seer.codegen.lower.prefetch import prefetches
from seer.codegen.lower.region import Span, Spans, region_of
from seer.codegen.lower.spatial import lower_spatial
from seer.codegen.lower.tile import Accumulators, Locals, Slot, TileShape, tile_loops, versions
from seer.errors import ScheduleError
from seer.ir.expr import Binary, Call, Const, Expr, Load, Read, as_expr, minimum, substitute
from seer.ir.loops import For, LoopKind, Scope, Stmt, Store, seq
from seer.ir.simplify import simplify
from seer.ir.sketch import INLINE, ROOT, Consumer, Loop, Nest, Pack, trip_counts
from seer.ir.tensor import identity_of


def lower_nest(ctx: Context, nest: Nest, spans: Spans | None = None) -> Stmt:
    """Lower a nest over its whole extents, or over `spans` of its spatial axes if it is attached."""
    return NestLowering(ctx, nest, spans).lower()


def lower_window(ctx: Context, nest: Nest, windows: Spans) -> Stmt:
    """Lower a nest for some iterations only of its outermost loops: for each axis in `windows` these."""
    return NestLowering(ctx, nest, None, windows).lower()


class NestLowering:
    """The state of one nest as its loops are entered, outer to inner."""

    def __init__(self, ctx: Context, nest: Nest, spans: Spans | None, windows: Spans | None = None) -> None:
        self.ctx, self.nest = ctx, nest
        self.windows = windows or {}
        self.op = ctx.op(nest.stage)
        self.dtype = self.op.body.dtype
        self.lanes = ctx.target.lanes(self.dtype)
        self.is_root = spans is None and windows is None
        self.base: dict[str, Expr] = {}
        self.extent: dict[str, int] = {}
        for a in (*self.op.axes, *self.op.reduce_axes):
            span = (spans or {}).get(a.name) or Span(as_expr(0), a.extent)
            if span.limit is not None:
                raise ScheduleError(f"sketch {ctx.sketch.key}: {nest.stage} is attached to a ragged tile")
            self.base[a.name], self.extent[a.name] = span.base, span.extent
        self.trips = {s.axis: self._trips(s.axis) for s in nest.splits}
        self.vars: dict[Loop, Expr] = {}
        self.tile = len(nest.groups) - 1
        self.reduce_names = {a.name for a in self.op.reduce_axes}
        self.buffer: Place | None = None

    def _trips(self, axis: str) -> tuple[int, ...]:
        split = self.nest.split(axis)
        inner, step = [], 1
        for p in reversed(split.params):
            t = max(1, min(self.ctx.values[p], -(-max(self.extent[axis], 1) // step)))
            inner.append(t)
            step *= t
        return trip_counts(self.extent[axis], tuple(reversed(inner)))

    # -- positions ---------------------------------------------------------------------------

    def step(self, loop: Loop) -> int:
        """How far one iteration of a loop moves along its axis."""
        out = 1
        for t in self.trips[loop.axis][loop.level + 1 :]:
            out *= t
        return out

    def offset(self, axis: str) -> Expr:
        """Position along an axis, from its base, of the loops entered so far."""
        out: Expr = as_expr(0)
        for level in range(len(self.trips[axis])):
            var = self.vars.get(Loop(axis, level))
            if var is not None:
                out = out + var * self.step(Loop(axis, level))
        return out

    def covered(self, axis: str, depth: int) -> int:
        """Elements of an axis that the loops inside the first `depth` groups run over."""
        inside = [x for g in self.nest.groups[:depth] for x in g if x.axis == axis]
        return min(self.step(inside[-1]), self.extent[axis]) if inside else self.extent[axis]

    def spans_at(self, depth: int) -> Spans:
        """What each axis covers inside the first `depth` groups."""
        out = {}
        for axis in self.trips:
            base = simplify(self.base[axis] + self.offset(axis), self.ctx.ranges)
            out[axis] = Span(base, self.covered(axis, depth))
        return out

    def trip(self, loop: Loop) -> Expr:
        """Trips of a loop at this place: shorter in the last, partial tile of an axis."""
        trips, extent = self.trips[loop.axis], self.extent[loop.axis]
        if loop.level == 0:
            return as_expr(trips[0])
        step, outer_step = self.step(loop), self.step(Loop(loop.axis, loop.level - 1))
        if extent % outer_step == 0:
            return as_expr(trips[loop.level])
        left: Expr = as_expr(-(-extent // step))
        for level in range(loop.level):
            left = left - self.vars[Loop(loop.axis, level)] * (self.step(Loop(loop.axis, level)) // step)
        return simplify(minimum(as_expr(trips[loop.level]), left), self.ctx.ranges)

    # -- loops -------------------------------------------------------------------------------

    def lower(self) -> Stmt:
        return self.enter(0)

    def enter(self, depth: int) -> Stmt:
        """Everything inside the first `depth` groups."""
        if depth == self.nest.finish:
            body = self.finish() if self.op.reducer is not None else self.spatial_tile()
        else:
            body = self.group(depth, lambda: self.enter(depth + 1))
        return seq(*self.attach(depth), body) if depth == 0 else body

    def group(
        self, depth: int, inside: Callable[[], Stmt], kinds: dict[Loop, LoopKind] | None = None
    ) -> Stmt:
        """The loops of group `depth` round the producers attached there and `inside()`."""
        loops = self.nest.groups[depth]
        opened: list[tuple[str, Expr, LoopKind]] = []
        for x in loops:
            trip, start, most = self.trip(x), as_expr(0), self.trips[x.axis][x.level]
            if x.level == 0 and x.axis in self.windows:
                window = self.windows[x.axis]
                start, most = window.base, window.extent
                trip = as_expr(most) if window.limit is None else window.limit
            if isinstance(trip, Const) and trip.value == 1:
                self.vars[x] = start
                continue
            var = self.ctx.fresh(f"{x.axis}{x.level}", most)
            self.vars[x] = start + var
            opened.append((var.name, trip, (kinds or {}).get(x, LoopKind.SERIAL)))
        body = seq(*self.attach(depth + 1), inside())
        for x in loops:
            del self.vars[x]
        if depth == 0 and self.is_parallel() and opened:
            extents = [(name, int(t.value)) for name, t, _ in opened if isinstance(t, Const)]
            return fuse_parallel(self.ctx, extents, body)
        for name, trip, kind in reversed(opened):
            body = For(name, trip, kind, body)
        return body

    def is_parallel(self) -> bool:
        return self.is_root and self.nest.parallel is not None and self.ctx.values[self.nest.parallel] == 1

    def attach(self, depth: int) -> list[Stmt]:
        """The producers attached at a depth, each for the region that is needed here."""
        out: list[Stmt] = []
        here = [
            a for a in self.nest.attached if self.ctx.location(a) == depth and depth not in (ROOT, INLINE)
        ]
        if not here:
            return out
        spans = self.spans_at(depth)
        for a in here:
            name = a.nest.output
            region = region_of(self.ctx, self.nest, name, depth, spans)
            tensor = self.ctx.sketch.dag.tensor(name)
            shape = tuple(max(s.extent, 1) for s in region)
            buffer = self.ctx.new_buffer(name, shape, tensor.dtype, Scope.THREAD)
            self.ctx.places[name] = Place(buffer, tuple(s.base for s in region))
            op = self.ctx.op(name)
            if op.written_out:
                out.append(lower_window(self.ctx, a.nest, self._whole_steps(a.nest, region)))
            elif op.reducer is None:
                out.append(lower_spatial(self.ctx, op, region, self.ctx.places[name]))
            else:
                inner = dict(zip((x.name for x in op.axes), region, strict=True))
                out.append(lower_nest(self.ctx, a.nest, inner))
        return out

    def _whole_steps(self, nest: Nest, region: tuple[Span, ...]) -> Spans:
        """A region of straight code: part of the axes of which a tile has one position, all of the others."""
        out = {}
        for a, span in zip(self.ctx.op(nest.stage).axes, region, strict=True):
            if span.extent < a.extent:
                if nest.split(a.name).params or any(x.axis == a.name for x in nest.groups[-1]):
                    raise ScheduleError(
                        f"sketch {self.ctx.sketch.key}: part of {nest.stage}'s axis {a.name} is straight code"
                    )
                out[a.name] = span
        return out

    # -- the tile ----------------------------------------------------------------------------

    def tile_axes(self) -> list[tuple[str, int, int, Expr]]:
        """(axis, tile extent, extent, offset) of the spatial axes of the register tile."""
        out = []
        for x in self.nest.groups[self.tile]:
            if x.axis in self.reduce_names:
                continue
            out.append((x.axis, self.trips[x.axis][x.level], self.extent[x.axis], self.offset(x.axis)))
        return out

    def vector_axis(self) -> str | None:
        return self.nest.vector

    def spatial_tile(self) -> Stmt:
        """The tile of a stage that reduces nothing: compute and store each element."""

        def make(sizes: dict[str, int]) -> Stmt:
            shape = TileShape(sizes, self.vector_axis(), self.lanes)

            def body(local: Locals, _: Slot | None) -> Stmt:
                at = self.axis_values(local)
                value = self.ctx.resolve(substitute(self.op.body, at))
                return self.finished(tuple(at[a.name] for a in self.op.axes), value)

            return tile_loops(self.ctx, shape, None, body)

        return versions(self.ctx, self.tile_axes(), make)

    def axis_values(self, local: Locals) -> dict[str, Expr]:
        """The value of every axis at a position within the tile."""
        return {
            axis: self.base[axis] + self.offset(axis) + local.get(axis, as_expr(0)) for axis in self.trips
        }

    def store(self, place: Place, indices: tuple[Expr, ...], value: Expr) -> Stmt:
        return Store(place.buffer, tuple(simplify(i, self.ctx.ranges) for i in place.at(indices)), value)

    # -- reductions --------------------------------------------------------------------------

    def finish(self) -> Stmt:
        """Initialise, reduce and finish what the loops so far have fixed."""
        if self.nest.vector in self.reduce_names:
            return reduce_by_lanes(self)
        if self.nest.consumer is not None:
            return self.consumed_tile(self.nest.consumer)
        inner_spatial = [
            x
            for g in self.nest.groups[self.nest.finish : self.tile]
            for x in g
            if x.axis not in self.reduce_names and self.trips[x.axis][x.level] > 1
        ]
        if not inner_spatial:
            return self.register_tiles(self.nest.finish, self.init_identity, self.epilogue_from_registers)
        return self.buffered_tile()

    def register_tiles(
        self,
        depth: int,
        init: Callable[[Locals, Slot], Stmt],
        done: Callable[[Locals, Slot], Stmt],
    ) -> Stmt:
        """All versions of: fill the accumulators, run the loops inside `depth`, use the result."""
        skipped = [
            x for g in self.nest.groups[depth : self.tile] for x in g if x.axis not in self.reduce_names
        ]
        for x in skipped:
            self.vars[x] = as_expr(0)

        def make(sizes: dict[str, int]) -> Stmt:
            shape = TileShape(sizes, self.vector_axis(), self.lanes)
            acc = Accumulators(self.ctx, self.nest.stage, self.dtype, shape)

            def tile(fn: Callable[[Locals, Slot], Stmt]) -> Stmt:
                def body(local: Locals, slot: Slot | None) -> Stmt:
                    assert slot is not None
                    return fn(local, slot)

                return tile_loops(self.ctx, shape, acc, body)

            kinds = self.unrolled(depth, shape.statements)
            start = tile(init)

            def step() -> Stmt:
                return seq(tile(self.update), *prefetches(self.ctx, self.nest, self.trips, sizes, self.vars))

            update = self.reduce_loops(depth, kinds, step)
            return seq(start, update, tile(done))

        out = versions(self.ctx, self.tile_axes(), make)
        for x in skipped:
            del self.vars[x]
        return out

    def reduce_loops(self, depth: int, kinds: dict[Loop, LoopKind], inside: Callable[[], Stmt]) -> Stmt:
        """The reduce loops of groups[depth:tile]; spatial loops there have one trip."""
        if depth == self.tile:
            return inside()
        loops = [x for x in self.nest.groups[depth] if x.axis in self.reduce_names]
        opened: list[tuple[str, Expr, LoopKind]] = []
        for x in loops:
            trip = self.trip(x)
            if isinstance(trip, Const) and trip.value == 1:
                self.vars[x] = as_expr(0)
                continue
            var = self.ctx.fresh(f"{x.axis}{x.level}", self.trips[x.axis][x.level])
            self.vars[x] = var
            kind = kinds.get(x, LoopKind.SERIAL) if isinstance(trip, Const) else LoopKind.SERIAL
            opened.append((var.name, trip, kind))
        body = seq(*self.attach(depth + 1), self.reduce_loops(depth + 1, kinds, inside))
        for x in loops:
            del self.vars[x]
        for name, trip, kind in reversed(opened):
            body = For(name, trip, kind, body)
        return body

    def unrolled(self, depth: int, statements: int) -> dict[Loop, LoopKind]:
        """Which reduce loops unroll: innermost first, while the unroll param allows the statements."""
        if self.nest.unroll is None:
            return {}
        limit = self.ctx.values[self.nest.unroll]
        out: dict[Loop, LoopKind] = {}
        for g in reversed(self.nest.groups[depth : self.tile]):
            for x in reversed(g):
                trips = self.trips[x.axis][x.level]
                if x.axis not in self.reduce_names or trips == 1:
                    continue
                statements *= trips
                if statements > limit:
                    return out
                out[x] = LoopKind.UNROLLED
        return out

    def init_identity(self, _: Locals, slot: Slot) -> Stmt:
        return Store(slot[0], slot[1], identity_of(self.op))

    def update(self, local: Locals, slot: Slot) -> Stmt:
        """Acc = combine(acc, body), a sum of products as one fused multiply-add."""
        acc = Load(slot[0], slot[1])
        value = self.ctx.resolve(substitute(self.op.body, self.axis_values(local)), self.packed_reads(local))
        return Store(slot[0], slot[1], self.combine(acc, value))

    def combine(self, acc: Expr, value: Expr) -> Expr:
        assert self.op.reducer is not None
        is_product = isinstance(value, Binary) and value.op == "*" and value.dtype.startswith("float")
        if self.op.reducer.name == "sum" and is_product:
            assert isinstance(value, Binary)
            return Call("fma", (value.a, value.b, acc), value.dtype)
        return self.op.reducer.combine(acc, value)

    def packed_reads(self, local: Locals) -> Override | None:
        """Answers reads of packed tensors by the loop variables instead of the axes."""
        packed: dict[str, tuple[Pack, PackedPlace]] = {
            p.tensor: (p, self.ctx.packed[p]) for p in self.nest.packs if p in self.ctx.packed
        }
        if not packed:
            return None

        def answer(r: Read) -> Expr | None:
            found = packed.get(r.tensor.name)
            if found is None:
                return None
            pack, place = found
            at = [self.vars[x] if x in self.vars else local.get(x.axis, as_expr(0)) for x in pack.loops]
            return Load(place.buffer, tuple(simplify(i, self.ctx.ranges) for i in at))

        return answer

    def epilogue_from_registers(self, local: Locals, slot: Slot) -> Stmt:
        """Store the finished element: the stage itself, or its epilogue."""
        at = self.axis_values(local)
        indices = tuple(at[a.name] for a in self.op.axes)
        return self.finished(indices, Load(slot[0], slot[1]))

    def finished(self, indices: tuple[Expr, ...], value: Expr) -> Stmt:
        """Store `value` of the stage at `indices`, through the epilogue if there is one."""
        if self.nest.epilogue is not None:
            last = self.ctx.op(self.nest.epilogue)
            body = substitute(last.body, {a.name: i for a, i in zip(last.axes, indices, strict=True)})
            result = value
            value = self.ctx.resolve(body, lambda r: result if r.tensor.name == self.nest.stage else None)
        return self.store(self.ctx.places[self.nest.output], indices, value)

    # -- accumulation in memory --------------------------------------------------------------

    def consumed_tile(self, consumer: Consumer) -> Stmt:
        """Reduce into a tile buffer, register tile by register tile, and compute the consumer from it."""
        spans = {axis: self._ragged(axis, span) for axis, span in self.spans_at(self.nest.finish).items()}
        self.buffer = place = self._tile_place(tuple(spans[a.name] for a in self.op.axes))

        def whole() -> Stmt:
            return self.register_tiles(self.nest.finish + 1, self.init_identity, self.store_tile)

        body = self.group(self.nest.finish, whole)
        self.ctx.places[self.nest.output] = place
        windows = {axis: self._steps(mine, spans[mine], step) for mine, axis, step in consumer.axes}
        return seq(body, lower_window(self.ctx, consumer.nest, windows))

    def _steps(self, axis: str, span: Span, step: int) -> Span:
        """A span counted in steps of several positions."""
        if span.extent % step and span.extent < self.extent[axis]:
            raise ScheduleError(f"sketch {self.ctx.sketch.key}: {axis} is cut inside {step} neighbours")
        base, limit = simplify(span.base // step, self.ctx.ranges), None
        if span.limit is not None:
            limit = simplify((span.limit + (step - 1)) // step, self.ctx.ranges)
        return Span(base, -(-span.extent // step), limit)

    def _tile_place(self, region: tuple[Span, ...]) -> Place:
        shape = tuple(max(s.extent, 1) for s in region)
        buffer = self.ctx.new_buffer(f"{self.nest.stage}_tile", shape, self.dtype, Scope.THREAD)
        return Place(buffer, tuple(s.base for s in region))

    def buffered_tile(self) -> Stmt:
        """Reduce into a tile buffer that several passes over register tiles add to."""
        spans = self.spans_at(self.nest.finish)
        region = tuple(self._ragged(a.name, spans[a.name]) for a in self.op.axes)
        self.buffer = place = self._tile_place(region)
        buffer = place.buffer
        fill = lower_spatial(self.ctx, self.op, region, place, value=identity_of(self.op))
        body = self.inner_groups(self.nest.finish)
        last = self.op if self.nest.epilogue is None else self.ctx.op(self.nest.epilogue)

        def from_buffer(r: Read) -> Expr | None:
            if r.tensor.name != self.nest.stage:
                return None
            return Load(buffer, tuple(simplify(i, self.ctx.ranges) for i in place.at(r.indices)))

        value = None
        if self.nest.epilogue is None:
            value = Read(self.ctx.sketch.dag.tensor(self.nest.stage), tuple(a.var for a in self.op.axes))
        done = lower_spatial(
            self.ctx, last, region, self.ctx.places[self.nest.output], value=value, override=from_buffer
        )
        return seq(fill, body, done)

    def _ragged(self, axis: str, span: Span) -> Span:
        """The span of an axis, with the limit of a partial tile at its end."""
        if self.extent[axis] % max(span.extent, 1) == 0:
            return span
        left = as_expr(self.extent[axis]) - self.offset(axis)
        limit = simplify(minimum(left, as_expr(span.extent)), self.ctx.ranges)
        return Span(span.base, span.extent, None if isinstance(limit, Const) else limit)

    def inner_groups(self, depth: int) -> Stmt:
        """Groups between the tile buffer and the register tiles that add to it."""
        rest = self.nest.groups[depth : self.tile]
        if all(x.axis in self.reduce_names for g in rest for x in g):
            return self.register_tiles(depth, self.load_tile, self.store_tile)
        return self.group(depth, lambda: self.inner_groups(depth + 1))

    def _tile_index(self, local: Locals) -> tuple[Expr, ...]:
        assert self.buffer is not None
        at = self.axis_values(local)
        indices = self.buffer.at(tuple(at[a.name] for a in self.op.axes))
        return tuple(simplify(i, self.ctx.ranges) for i in indices)

    def load_tile(self, local: Locals, slot: Slot) -> Stmt:
        assert self.buffer is not None
        return Store(slot[0], slot[1], Load(self.buffer.buffer, self._tile_index(local)))

    def store_tile(self, local: Locals, slot: Slot) -> Stmt:
        assert self.buffer is not None
        return Store(self.buffer.buffer, self._tile_index(local), Load(slot[0], slot[1]))
