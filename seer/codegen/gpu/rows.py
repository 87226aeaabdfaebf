"""Rows kernels: the threads of a row share its reductions (Ansor's cross-thread reduction).

A softmax over the last axis, one kernel:

    block b; thread t: row = b * rows + t // threads, x = t % threads
      for each reduction that the row's elements need, in order:
        acc = identity; for every `threads`-th term from x: acc = combine(acc, term)
        acc of all threads of the row combined: by exchanges within a warp, then in shared memory
      for every `threads`-th element of the row from x: store it

Threads of a row lie side by side where terms do in memory; otherwise rows lie side by side. A block
that reaches past the last row computes the last row again and stores nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from seer.codegen.gpu.combine import RowOfThreads, combine_threads
from seer.codegen.gpu.common import (
    VECTOR,
    combine,
    grid,
    guarded,
    param,
    store_finished,
    take_apart,
    wrap,
)
from seer.codegen.gpu.contiguous import reads_side_by_side
from seer.codegen.lower.context import Context
from seer.errors import ScheduleError
from seer.ir.expr import Expr, Load, Read, Var, all_of, as_expr, minimum, reads, substitute
from seer.ir.loops import Buffer, For, LoopKind, Scope, Stmt, Store, seq
from seer.ir.simplify import simplify
from seer.ir.sketch import Nest
from seer.ir.tensor import Axis, ComputeOp, identity_of


def threads_are_neighbours(
    nest: Nest, op_of: Callable[[str], ComputeOp], expand: Callable[[Expr], Expr]
) -> bool:
    """Whether the threads of a row of a nest, rather than its rows, should lie side by side."""
    reductions = [op_of(s) for s in (nest.stage, *(a.nest.stage for a in nest.attached))]
    return all(
        reads_side_by_side(expand, op, op.reduce_axes[-1].name) for op in reductions if op.reducer is not None
    )


def lower_rows(ctx: Context, nest: Nest) -> Stmt:
    """The loops of a rows nest."""
    return _Rows(ctx, nest).lower()


class _Rows:
    def __init__(self, ctx: Context, nest: Nest) -> None:
        assert nest.bind is not None
        self.ctx, self.nest = ctx, nest
        self.op = ctx.op(nest.stage)
        self.threads = param(ctx, nest.bind.threads, 32)
        self.per_block = param(ctx, nest.bind.rows, 1)
        self.items = param(ctx, nest.bind.items, 1)
        over = {x.axis for x in nest.groups[0]}
        self.row_axes = [a for a in self.op.axes if a.name in over]
        self.other_axes = [a for a in self.op.axes if a.name not in over]
        self.rows = math.prod(a.extent for a in self.row_axes)
        self.results: dict[str, Load] = {}  # finished reductions of this row

    def lower(self) -> Stmt:
        blocks = -(-self.rows // self.per_block)
        return grid(self.ctx, blocks, self.threads * self.per_block, self.block)

    def block(self, block: Expr, thread: Expr) -> Stmt:
        ctx = self.ctx
        is_near = threads_are_neighbours(self.nest, ctx.op, ctx.expand)
        dims = [("row", self.per_block), ("x", self.threads)]
        values, lets = take_apart(ctx, thread, dims if is_near else dims[::-1])
        y, x = values if is_near else values[::-1]
        self.row_of_threads = RowOfThreads(self.threads, self.per_block, x, y, is_near)
        row = simplify(block * self.per_block + y, ctx.ranges)
        self.is_inside = simplify(row < self.rows, ctx.ranges)
        axes, more = take_apart(
            ctx,
            simplify(minimum(row, self.rows - 1), ctx.ranges),
            [(a.name, a.extent) for a in self.row_axes],
        )
        self.at: dict[str, Expr] = {a.name: v for a, v in zip(self.row_axes, axes, strict=True)}
        parts = [self.reduction(a.nest.stage) for a in self.nest.attached]
        if self.op.reducer is not None:
            return wrap([*lets, *more], seq(*parts, self.single()))
        return wrap([*lets, *more], seq(*parts, self.elements()))

    # -- reductions --------------------------------------------------------------------------

    def reduction(self, stage: str) -> Stmt:
        """A reduction of this row; its result is in a register of every thread."""
        op = self.ctx.op(stage)
        at = self.position_of(stage, op)
        acc = self.ctx.new_buffer(stage, (1,), op.body.dtype, Scope.REGISTER)
        body = self.terms(op, at, acc)
        self.results[stage] = Load(acc, (as_expr(0),))
        return seq(body, *combine_threads(self.ctx, op, acc, self.row_of_threads))

    def position_of(self, stage: str, op: ComputeOp) -> dict[str, Expr]:
        """Where a reduction is read by this row: its axes in terms of the row's."""
        names = {a.name: a.var for a in self.op.axes}
        found = self._find(self.op, stage, names) or self._through(stage)
        if found is None:
            raise ScheduleError(f"sketch {self.ctx.sketch.key}: {stage} is not read by {self.nest.stage}")
        return {a.name: substitute(i, self.at) for a, i in zip(op.axes, found, strict=True)}

    def _through(self, stage: str) -> tuple[Expr, ...] | None:
        """The indices of a reduction that only other reductions of the row read."""
        for a in self.nest.attached:
            op = self.ctx.op(a.nest.stage)
            if a.nest.stage == stage or not any(
                r.tensor.name == stage for r in reads(self.ctx.expand(op.body))
            ):
                continue
            outer = self.position_of(a.nest.stage, op)
            found = self._find(op, stage, {})
            if found is not None:
                return tuple(substitute(i, outer) for i in found)
        return None

    def _find(self, op: ComputeOp, stage: str, names: dict[str, Var]) -> tuple[Expr, ...] | None:
        for r in reads(self.ctx.expand(op.body)):
            if r.tensor.name == stage:
                return r.indices
        return None

    def terms(self, op: ComputeOp, at: dict[str, Expr], acc: Buffer) -> Stmt:
        """This thread's share of the terms, in `acc`."""
        zero = (as_expr(0),)
        terms = math.prod(a.extent for a in op.reduce_axes)

        last = op.reduce_axes[-1]
        is_wide = (
            self.items % VECTOR == 0
            and last.extent % VECTOR == 0
            and reads_side_by_side(self.ctx.expand, op, last.name)
        )
        wide = self.ctx.new_buffer(f"{acc.name}_lanes", (VECTOR,), acc.dtype, Scope.REGISTER)
        into = wide if is_wide else acc

        def body(values: dict[str, Expr], lane: Expr) -> Stmt:
            term = self.resolve(substitute(op.body, {**at, **values}))
            return Store(into, (lane,), combine(op, Load(into, (lane,)), term))

        loop = self.shared_loop(op.reduce_axes, terms, body, is_wide)
        start: list[Stmt] = [Store(acc, zero, identity_of(op))]
        if not is_wide:
            return seq(*start, loop)
        assert op.reducer is not None
        v, w = self.ctx.fresh("v", VECTOR), self.ctx.fresh("v", VECTOR)
        fill: Stmt = Store(wide, (v,), identity_of(op))
        whole: Stmt = Store(acc, zero, op.reducer.combine(Load(acc, zero), Load(wide, (w,))))
        return seq(
            *start,
            For(v.name, as_expr(VECTOR), LoopKind.UNROLLED, fill),
            loop,
            For(w.name, as_expr(VECTOR), LoopKind.UNROLLED, whole),
        )

    def shared_loop(
        self, axes: tuple[Axis, ...], count: int, body: Callable[[dict[str, Expr], Expr], Stmt], is_wide: bool
    ) -> Stmt:
        """Every `threads`-th of `count` index tuples, `items` of them unrolled at a time."""
        ctx = self.ctx
        width = VECTOR if is_wide and self.items % VECTOR == 0 and axes[-1].extent % VECTOR == 0 else 1
        pieces = count // width
        rounds = -(-pieces // self.threads)
        inner = min(self.items // width, max(rounds, 1))
        outer = -(-rounds // inner)
        r, c, v = ctx.fresh("r", outer), ctx.fresh("c", inner), ctx.fresh("v", width)
        step = (r if outer > 1 else as_expr(0)) * inner + (c if inner > 1 else as_expr(0))
        index = simplify(step * self.threads + self.row_of_threads.x, ctx.ranges)
        fits = simplify(index < pieces, ctx.ranges)
        flat = ctx.fresh("n", max(pieces, 1))
        ctx.ranges[flat.name] = (0, max(pieces - 1, 0) * width)
        lane: Expr = v if width > 1 else as_expr(0)
        values, lets = take_apart(ctx, flat, [(a.name, a.extent) for a in axes], {flat.name: width})
        at = {a.name: x for a, x in zip(axes, values, strict=True)}
        if width > 1:
            at[axes[-1].name] = at[axes[-1].name] + lane
        inside = body(at, lane)
        if width > 1:
            inside = For(v.name, as_expr(width), LoopKind.VECTORIZED, inside)
        inside = guarded(fits, wrap([(flat.name, index * width), *lets], inside))
        if inner > 1:
            inside = For(c.name, as_expr(inner), LoopKind.UNROLLED, inside)
        if outer != 1:
            inside = For(r.name, as_expr(outer), LoopKind.SERIAL, inside)
        return inside

    def resolve(self, e: Expr) -> Expr:
        def answer(r: Read) -> Expr | None:
            return self.results.get(r.tensor.name)

        return self.ctx.resolve(e, answer)

    # -- what is stored ------------------------------------------------------------------------

    def single(self) -> Stmt:
        """The stage is a reduction: one element a row, stored by the row's first thread."""
        acc = self.ctx.new_buffer(self.nest.stage, (1,), self.op.body.dtype, Scope.REGISTER)
        body = self.terms(self.op, dict(self.at), acc)
        indices = tuple(self.at[a.name] for a in self.op.axes)
        stored = store_finished(self.ctx, self.nest, indices, Load(acc, (as_expr(0),)))
        first = simplify(self.row_of_threads.x < 1, self.ctx.ranges)
        return seq(
            body,
            *combine_threads(self.ctx, self.op, acc, self.row_of_threads),
            guarded(all_of(self.is_inside, first), stored),
        )

    def elements(self) -> Stmt:
        """The stage's elements of this row."""
        count = math.prod(a.extent for a in self.other_axes)

        def body(values: dict[str, Expr], lane: Expr) -> Stmt:
            at = {**self.at, **values}
            value = self.resolve(substitute(self.op.body, at))
            place = self.ctx.places[self.nest.output]
            indices = tuple(simplify(at[a.name], self.ctx.ranges) for a in self.op.axes)
            return Store(place.buffer, indices, value)

        is_wide = bool(self.other_axes) and self.other_axes[-1] is self.op.axes[-1]
        return guarded(self.is_inside, self.shared_loop(tuple(self.other_axes), count, body, is_wide))
