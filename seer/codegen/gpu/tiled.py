"""Tiled reductions on a GPU: SSSRRSRS over blocks, virtual threads, threads and registers.

    block of the output
      accumulators of each thread = identity
      for each block of the reduction
        sync; inputs of the block -> shared memory, by all threads; sync
        for the terms of the block: accumulators = combine(accumulators, term), fully unrolled
      epilogue of each finished element, where it lies inside the output

Blocks that reach over the end of an axis compute on zeros, or on copies of the last element, and do
not store what lies outside. A reduce axis reaches over its end only where that adds zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from seer.codegen.gpu.common import (
    VECTOR,
    combine,
    grid,
    guarded,
    param,
    store_finished,
    take_apart,
    trips_of,
    unroll_kinds,
    unrolled,
    wrap,
)
from seer.codegen.gpu.pipeline import pipeline
from seer.codegen.gpu.staged import StagedCopy
from seer.codegen.lower.context import Context
from seer.dtypes import is_narrow
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Binary, Cast, Expr, Load, Read, Var, all_of, as_expr, minimum, rewrite, substitute
from seer.ir.loops import For, LoopKind, Scope, Stmt, Store, Sync, seq
from seer.ir.simplify import simplify
from seer.ir.sketch import Nest
from seer.ir.tensor import ComputeOp, identity_of

BLOCK, VTHREAD, THREAD, OUTER, INNER = range(5)  # levels of a spatial axis
R0, R1, R2 = range(3)  # levels of a reduce axis


def factor(e: Expr) -> Read | None:
    """What one side of a product reads, if it is nothing else than a read, widened or not."""
    if isinstance(e, Cast) and e.dtype == "float32" and is_narrow(e.a.dtype):
        e = e.a
    return e if isinstance(e, Read) else None


def zero_padded_axes(dag: ComputeDAG, op: ComputeOp, staged: dict[str, int]) -> set[str]:
    """The reduce axes that may run past their end: both factors of each product are zeros there.

    Args:
        dag: where the stage is.
        op: the stage.
        staged: the choice for each tensor that may be staged (0: it is not).
    """
    body = op.body
    is_product = isinstance(body, Binary) and body.op == "*" and op.reducer is not None
    if not is_product or op.reducer is None or op.reducer.name != "sum":
        return set()
    assert isinstance(body, Binary)
    sides = [s for s in (factor(body.a), factor(body.b)) if s is not None]
    if len(sides) < 2 or not all(staged.get(s.tensor.name, 0) for s in sides):
        return set()
    out = set()
    for a in op.reduce_axes:
        good = True
        for s in sides:
            exact = [
                d
                for d, i in enumerate(s.indices)
                if isinstance(i, Var) and i.name == a.name and s.tensor.shape[d] == a.extent
            ]
            good &= bool(exact)
        if good:
            out.add(a.name)
    return out


class TiledLowering:
    """The state of one tiled nest."""

    def __init__(self, ctx: Context, nest: Nest) -> None:
        assert nest.bind is not None
        self.ctx, self.nest = ctx, nest
        self.op = ctx.op(nest.stage)
        self.axes = [a.name for a in self.op.axes]
        self.reduced = [a.name for a in self.op.reduce_axes]
        self.extent = {a.name: a.extent for a in (*self.op.axes, *self.op.reduce_axes)}
        self.trips = {s.axis: trips_of(ctx, nest, s.axis) for s in nest.splits}
        self.choices = {s.tensor: ctx.values[s.param] for s in nest.bind.staged}
        self.padded = zero_padded_axes(ctx.sketch.dag, self.op, self.choices)
        self.vars: dict[tuple[str, int], Expr] = {}
        self.known: dict[str, int] = {}
        covered = {a: self.step(a, BLOCK) for a in self.axes} | {a: self.step(a, R0) for a in self.reduced}
        self.stages = param(ctx, nest.bind.stages, 1)
        make = partial(StagedCopy, ctx, nest.stage)
        self.copies = {
            t: make(ctx.sketch.dag.tensor(t), set(self.reduced), choice, covered, stages=self.stages)
            for t, choice in self.choices.items()
            if choice
        }
        dims = [n for _, n in self.tile_dims()]
        self.acc = ctx.new_buffer(nest.stage, tuple(dims) or (1,), self.op.body.dtype, Scope.REGISTER)

    def trip(self, axis: str, level: int) -> int:
        trips = self.trips[axis]
        return trips[level] if level < len(trips) else 1

    def step(self, axis: str, level: int) -> int:
        """How far one iteration of a level moves along its axis."""
        return math.prod(self.trips[axis][level + 1 :])

    def tile_dims(self) -> list[tuple[tuple[str, int], int]]:
        """((axis, level), trips) of the loops over what one thread computes, outer to inner."""
        loops = [(a, level) for level in (VTHREAD, OUTER, INNER) for a in self.axes]
        return [(x, self.trip(*x)) for x in loops if self.trip(*x) > 1]

    def position(self, axis: str) -> Expr:
        """The value of an axis for the loops entered so far."""
        out: Expr = as_expr(0)
        for level in range(len(self.trips[axis])):
            var = self.vars.get((axis, level))
            if var is not None:
                out = out + var * self.step(axis, level)
        return out

    # -- the nest ----------------------------------------------------------------------------

    def lower(self) -> Stmt:
        blocks = math.prod(self.trip(a, BLOCK) for a in self.axes)
        self.threads = math.prod(self.trip(a, THREAD) for a in self.axes)
        return grid(self.ctx, blocks, self.threads, self.block)

    def block(self, block: Expr, thread: Expr) -> Stmt:
        lets = []
        for index, level in ((block, BLOCK), (thread, THREAD)):
            dims = [(f"{a}{level}", self.trip(a, level)) for a in self.axes]
            values, more = take_apart(self.ctx, index, dims)
            lets += more
            self.vars |= {(a, level): v for a, v in zip(self.axes, values, strict=True)}
        self.thread = thread
        start = self.tile(lambda at: Store(self.acc, at, identity_of(self.op)))
        return wrap(lets, seq(start, self.blocks_of_terms(), self.finish()))

    def tile(self, body: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
        """Unrolled loops over what a thread computes round `body(indices of its accumulator)`."""
        loops = []
        for x, n in self.tile_dims():
            var = self.ctx.fresh(f"{x[0]}{x[1]}", n)
            self.vars[x] = var
            loops.append((x, var, n))
        inner = body(tuple(var for _, var, _ in loops) or (as_expr(0),))
        for x, _, _ in loops:
            del self.vars[x]
        return unrolled([(var, n) for _, var, n in loops], inner)

    def blocks_of_terms(self) -> Stmt:
        """The outer reduce loops: copies to shared memory, then the terms."""
        if self.stages > 1 and self.copies:
            return self.pipelined()
        opened = []
        for a in self.reduced:
            n = self.trip(a, R0)
            var = self.ctx.fresh(f"{a}0", n)
            self.vars[a, R0] = var if n != 1 else as_expr(0)
            if n != 1:
                opened.append((var, n))
        copies: list[Stmt] = []
        start = {a: self.block_start(a) for a in self.extent}
        for c in self.copies.values():
            c.start(start)
            copies.append(c.copy(self.thread, self.threads, self.known))
        if copies:
            copies = [*([Sync()] if opened else []), *copies, Sync()]
        body = seq(*copies, self.terms())
        for a in self.reduced:
            del self.vars[a, R0]
        for var, n in reversed(opened):
            body = For(var.name, as_expr(n), LoopKind.SERIAL, body)
        return body

    def pipelined(self) -> Stmt:
        """The same with copies started ahead."""

        def enter(coordinates: Sequence[Expr]) -> dict[str, Expr]:
            self.vars |= {(a, R0): v for a, v in zip(self.reduced, coordinates, strict=True)}
            return {a: self.block_start(a) for a in self.extent}

        def compute(coordinates: Sequence[Expr]) -> Stmt:
            enter(coordinates)
            return self.terms()

        blocks = [(f"{a}0", self.trip(a, R0)) for a in self.reduced]
        out = pipeline(
            self.ctx,
            blocks,
            list(self.copies.values()),
            self.stages,
            enter,
            lambda c: c.copy(self.thread, self.threads, self.known),
            compute,
        )
        for a in self.reduced:
            self.vars.pop((a, R0), None)
        return out

    def block_start(self, axis: str) -> Expr:
        """Where the block's part of an axis starts."""
        return self.vars[axis, 0] * self.step(axis, 0)

    def terms(self) -> Stmt:
        """The inner reduce loops round the update of every accumulator."""
        loops = [(a, level) for level in (R1, R2) for a in self.reduced if self.trip(a, level) > 1]
        limit = self.ctx.values[self.nest.unroll] if self.nest.unroll is not None else 0
        tile = math.prod(n for _, n in self.tile_dims())
        kinds = unroll_kinds([self.trip(*x) for x in loops], tile, limit)
        opened: list[tuple[Var, Expr, LoopKind]] = []
        for x, kind in zip(loops, kinds, strict=True):
            trip = self.ragged_trip(*x)
            var = self.ctx.fresh(f"{x[0]}{x[1]}", self.trip(*x))
            self.vars[x] = var
            opened.append((var, trip, kind if trip == as_expr(self.trip(*x)) else LoopKind.SERIAL))
        body = self.tile(self.update)
        for x in loops:
            del self.vars[x]
        for var, trip, kind in reversed(opened):
            body = For(var.name, trip, kind, body)
        return body

    def ragged_trip(self, axis: str, level: int) -> Expr:
        """Trips of a reduce loop here: fewer at the end of an axis, unless zeros are added there."""
        extent, step = self.extent[axis], self.step(axis, level)
        if axis in self.padded or extent % self.step(axis, level - 1) == 0:
            return as_expr(self.trip(axis, level))
        left: Expr = as_expr(-(-extent // step))
        for outer in range(level):
            var = self.vars.get((axis, outer))
            if var is not None:
                left = left - var * (self.step(axis, outer) // step)
        return simplify(minimum(as_expr(self.trip(axis, level)), left), self.ctx.ranges)

    def update(self, at: tuple[Expr, ...]) -> Stmt:
        acc = Load(self.acc, at)
        return Store(self.acc, at, combine(self.op, acc, self.term()))

    def term(self) -> Expr:
        """The stage's body at the position of the loops entered."""
        exact = {a: self.position(a) for a in self.extent}
        # What is read where it lies must exist: threads past the end read the last element.
        clamped: dict[str, Expr] = {}
        for a in self.extent:
            clamped[f"{a}.in"] = simplify(minimum(exact[a], self.extent[a] - 1), self.ctx.ranges)
        names = {a: Var(f"{a}.in") for a in self.axes}

        def mark(n: Expr) -> Expr | None:
            if isinstance(n, Read) and n.tensor.name not in self.copies:
                return Read(n.tensor, tuple(substitute(i, names) for i in n.indices))  # type: ignore[arg-type]
            return None

        def answer(r: Read) -> Expr | None:
            copy = self.copies.get(r.tensor.name)
            return None if copy is None else Load(copy.buffer, copy.at(r.indices))

        body = substitute(rewrite(self.op.body, mark), {**exact, **clamped})
        return self.ctx.resolve(body, answer)

    def finish(self) -> Stmt:
        """Store every finished element that lies inside the output."""
        last = self.axes[-1] if self.axes else ""
        inner = self.trip(last, INNER) if last else 1
        wide = inner % VECTOR == 0 and self.extent.get(last, 1) % VECTOR == 0
        loops = []
        lane: Expr = as_expr(0)
        v = self.ctx.fresh("v", VECTOR)
        slots: list[Expr] = []
        for x, n in self.tile_dims():
            if wide and x == (last, INNER):
                var, n = self.ctx.fresh(f"{x[0]}{x[1]}", n // VECTOR), n // VECTOR
                lane = v
                self.vars[x] = (var if n > 1 else as_expr(0)) * VECTOR
                slots.append(self.vars[x] + v)
            else:
                var = self.ctx.fresh(f"{x[0]}{x[1]}", n)
                self.vars[x] = var
                slots.append(var)
            loops.append((var, n))
        start = {a: self.position(a) for a in self.axes}
        inside = all_of(*(simplify(start[a] < self.extent[a], self.ctx.ranges) for a in self.axes))
        for x, _ in self.tile_dims():
            del self.vars[x]
        indices = tuple(start[a] + (lane if a == last else as_expr(0)) for a in self.axes)
        body = store_finished(self.ctx, self.nest, indices, Load(self.acc, tuple(slots) or (as_expr(0),)))
        if lane is v:
            body = For(v.name, as_expr(VECTOR), LoopKind.VECTORIZED, body)
        return unrolled(loops, guarded(inside, body))


def lower_tiled(ctx: Context, nest: Nest) -> Stmt:
    """The loops of a tiled nest."""
    return TiledLowering(ctx, nest).lower()
