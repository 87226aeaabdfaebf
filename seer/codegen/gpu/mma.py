"""Matrix products by tensor cores: the warps of a block multiply pieces of 16x8 by 8x8, or of 16x16 by 16x8.

    block of the output (some rows times some columns)
      for each block of the reduction
        sync; both inputs -> shared memory, rows padded to lie in different banks; sync
        for each 8 or 16 terms: fragments of both inputs -> registers; all pieces of the warp multiplied
      epilogue of each finished element that lies inside the output

Rows are the axes that only one input has, columns those that only the other has: the rows of a
convolution are its pixels. Sums are of float32, and factors are what they are: float32 times float32 is
three products of tf32, 8 terms at a time. What is stored in 16 bits goes to tensor cores of 16 bits, 16
terms at a time: once if both factors have the same 16-bit type; a float32 that it is multiplied by is
the sum of two of bfloat16, and so is a float16 then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seer.codegen.gpu.common import Lets, grid, guarded, param, store_finished, take_apart, unrolled, wrap
from seer.codegen.gpu.pipeline import pipeline
from seer.codegen.gpu.staged import StagedCopy, staged_dims
from seer.codegen.gpu.tiled import factor, zero_padded_axes
from seer.codegen.lower.context import Context
from seer.dtypes import is_narrow
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Binary, Expr, Load, Read, Var, all_of, as_expr, minimum, substitute, variables
from seer.ir.loops import For, LoopKind, Mma, Scope, Stmt, Store, Sync, seq
from seer.ir.simplify import simplify
from seer.ir.sketch import Nest
from seer.ir.tensor import identity_of

ROWS, COLUMNS, WARP = 16, 8, 32


@dataclass(frozen=True)
class Roles:
    """Which matrix product a stage is: sum of a[rows, terms] * b[terms, columns], for each of `batch`."""

    a: Read
    b: Read
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    terms: str
    other_terms: tuple[str, ...]

    @property
    def types(self) -> tuple[str, str]:
        """The types of the factors as they are stored."""
        return self.a.tensor.dtype, self.b.tensor.dtype

    @property
    def piece_terms(self) -> int:
        """Terms that a tensor core multiplies at a time."""
        return 16 if any(map(is_narrow, self.types)) else 8

    @property
    def products(self) -> int:
        """Products of tensor cores for one of these."""
        if self.types[0] == self.types[1]:
            return 1 if is_narrow(self.types[0]) else 3
        return 2 if "bfloat16" in self.types else 3


def matrix_roles(dag: ComputeDAG, stage: str) -> Roles | None:
    """The roles of a stage's axes, or None if it is no product of matrices."""
    op = dag.op(stage)
    body = op.body
    if not (isinstance(body, Binary) and body.op == "*" and body.dtype == "float32" and op.reduce_axes):
        return None
    a, b = factor(body.a), factor(body.b)
    if a is None or b is None or a.tensor is b.tensor:
        return None
    if a.tensor.dtype != b.tensor.dtype and "float32" not in (a.tensor.dtype, b.tensor.dtype):
        return None
    if any(staged_dims(dag, stage, r.tensor.name) is None for r in (a, b)):
        return None
    in_a, in_b = (set().union(*map(variables, r.indices)) for r in (a, b))
    real = [x.name for x in op.axes if x.extent > 1]
    rows = tuple(x for x in real if x in in_a - in_b)
    columns = tuple(x for x in real if x in in_b - in_a)
    batch = tuple(x for x in real if x in in_a & in_b)
    if not rows or not columns or len(rows) + len(columns) + len(batch) < len(real):
        return None
    last = op.reduce_axes[-1].name
    if last not in zero_padded_axes(dag, op, {a.tensor.name: 1, b.tensor.name: 1}):
        return None
    return Roles(a, b, rows, columns, batch, last, tuple(x.name for x in op.reduce_axes[:-1]))


class MmaLowering:
    """The state of one matrix product."""

    def __init__(self, ctx: Context, nest: Nest) -> None:
        assert nest.bind is not None
        roles = matrix_roles(ctx.sketch.dag, nest.stage)
        assert roles is not None
        self.ctx, self.nest, self.roles = ctx, nest, roles
        self.op = ctx.op(nest.stage)
        self.extent = {a.name: a.extent for a in (*self.op.axes, *self.op.reduce_axes)}
        self.tile = {s.axis: ctx.values[s.params[0]] if s.params else 1 for s in nest.splits}
        self.tile[roles.terms] = -(-self.tile[roles.terms] // roles.piece_terms) * roles.piece_terms
        self.trips = {a: -(-n // self.tile[a]) for a, n in self.extent.items()}
        self.warps = tuple(ctx.values[p] for p in nest.bind.warps)
        self.size = (
            math.prod(self.tile[a] for a in roles.rows),
            math.prod(self.tile[a] for a in roles.columns),
        )
        self.pieces = (
            -(-self.size[0] // (ROWS * self.warps[0])),
            -(-self.size[1] // (COLUMNS * self.warps[1])),
        )
        reduced = {roles.terms, *roles.other_terms}
        self.stages = param(ctx, nest.bind.stages, 1)
        self.copies = [
            StagedCopy(ctx, nest.stage, r.tensor, reduced, 1, self.tile, roles.piece_terms, self.stages)
            for r in (roles.a, roles.b)
        ]
        self.acc = ctx.new_buffer(nest.stage, (*self.pieces, 4), "float32", Scope.REGISTER)
        self.side_by_side = roles.piece_terms // 8
        self.fragments = tuple(
            ctx.new_buffer(
                f"{r.tensor.name}_part", (pieces, count * self.side_by_side), r.tensor.dtype, Scope.REGISTER
            )
            for r, pieces, count in zip((roles.a, roles.b), self.pieces, (4, 2), strict=True)
        )
        self.start: dict[str, Expr] = {}
        self.inner: dict[str, Expr] = {}

    def lower(self) -> Stmt:
        blocks = math.prod(self.trips[a.name] for a in self.op.axes)
        self.threads = WARP * self.warps[0] * self.warps[1]
        return grid(self.ctx, blocks, self.threads, self.block)

    def block(self, block: Expr, thread: Expr) -> Stmt:
        ctx = self.ctx
        values, lets = take_apart(ctx, block, [(f"{a.name}0", self.trips[a.name]) for a in self.op.axes])
        for a, v in zip(self.op.axes, values, strict=True):
            self.start[a.name] = v * self.tile[a.name]
        dims = [("warp_row", self.warps[0]), ("warp_column", self.warps[1]), ("group", 8), ("quad", 4)]
        self.warp_parts, more = take_apart(ctx, thread, dims)
        self.thread = thread
        return wrap([*lets, *more], seq(self._fill(), self._blocks_of_terms(), self._finish()))

    def _fill(self) -> Stmt:
        loops = [(self.ctx.fresh("c", n), n) for n in (*self.pieces, 4)]
        at = tuple(v if n > 1 else as_expr(0) for v, n in loops)
        return unrolled(loops, Store(self.acc, at, identity_of(self.op)))

    # -- positions -----------------------------------------------------------------------------

    def _line(self, side: int, piece: Expr, within: Expr) -> Expr:
        """A row (side 0) or column (side 1) of the block."""
        unit = (ROWS, COLUMNS)[side]
        return (self.warp_parts[side] * self.pieces[side] + piece) * unit + within

    def _coordinates(self, side: int, line: Expr) -> tuple[dict[str, Expr], Lets, Expr]:
        """The axes' values of a row or column, and whether it lies in the block."""
        ctx, axes = self.ctx, (self.roles.rows, self.roles.columns)[side]
        count = self.size[side]
        is_inside = simplify(line < count, ctx.ranges)
        clamped = simplify(minimum(line, count - 1), ctx.ranges)
        values, lets = take_apart(ctx, clamped, [(a, self.tile[a]) for a in axes])
        return {a: self.start[a] + v for a, v in zip(axes, values, strict=True)}, lets, is_inside

    # -- the reduction ---------------------------------------------------------------------------

    def _blocks_of_terms(self) -> Stmt:
        ctx = self.ctx
        reduced = [*self.roles.other_terms, self.roles.terms]
        if self.stages > 1:
            return self._pipelined(reduced)
        opened: list[tuple[Var, int]] = []
        for a in reduced:
            var = ctx.fresh(f"{a}0", self.trips[a])
            self.start[a] = var * self.tile[a] if self.trips[a] != 1 else as_expr(0)
            if self.trips[a] != 1:
                opened.append((var, self.trips[a]))
        parts: list[Stmt] = [Sync()] if opened else []
        for c in self.copies:
            c.start(self.start)
            parts.append(c.copy(self.thread, self.threads, {}))
        body = seq(*parts, Sync(), self._terms())
        for var, n in reversed(opened):
            body = For(var.name, as_expr(n), LoopKind.SERIAL, body)
        return body

    def _pipelined(self, reduced: list[str]) -> Stmt:
        """The same with copies started ahead."""

        def enter(coordinates: Sequence[Expr]) -> dict[str, Expr]:
            for a, v in zip(reduced, coordinates, strict=True):
                self.start[a] = v * self.tile[a]
            return self.start

        def compute(coordinates: Sequence[Expr]) -> Stmt:
            enter(coordinates)
            return self._terms()

        blocks = [(f"{a}0", self.trips[a]) for a in reduced]
        return pipeline(
            self.ctx,
            blocks,
            self.copies,
            self.stages,
            enter,
            lambda c: c.copy(self.thread, self.threads, {}),
            compute,
        )

    def _terms(self) -> Stmt:
        """The terms of a block of the reduction, a piece at a time."""
        ctx = self.ctx
        opened: list[tuple[Var, Expr]] = []
        for a in self.roles.other_terms:
            left = simplify(minimum(as_expr(self.tile[a]), self.extent[a] - self.start[a]), ctx.ranges)
            var = ctx.fresh(f"{a}1", self.tile[a])
            self.inner[a] = var if self.tile[a] != 1 else as_expr(0)
            if self.tile[a] != 1:
                opened.append((var, left))
        steps = self.tile[self.roles.terms] // self.roles.piece_terms
        var = ctx.fresh(f"{self.roles.terms}1", steps)
        self.inner[self.roles.terms] = (var if steps > 1 else as_expr(0)) * self.roles.piece_terms
        body = seq(self._load(0), self._load(1), self._multiply())
        if steps > 1:
            limit = ctx.values[self.nest.unroll] if self.nest.unroll is not None else 0
            few = steps * self.pieces[0] * self.pieces[1] <= limit
            kind = LoopKind.UNROLLED if few else LoopKind.SERIAL
            body = For(var.name, as_expr(steps), kind, body)
        for v, trips in reversed(opened):
            body = For(v.name, trips, LoopKind.SERIAL, body)
        return body

    def _load(self, side: int) -> Stmt:
        """The fragments of one input: see Mma for which thread holds what."""
        ctx = self.ctx
        read = (self.roles.a, self.roles.b)[side]
        _, _, group, quad = self.warp_parts
        wide = self.side_by_side  # neighbouring terms of a thread
        p, v = ctx.fresh("p", self.pieces[side]), ctx.fresh("v", wide)
        lane: Expr = v if wide > 1 else as_expr(0)
        piece: Expr = p if self.pieces[side] > 1 else as_expr(0)
        stores: list[Stmt] = []
        for half in (0, 1) if side == 0 else (0,):
            at, lets, _ = self._coordinates(side, self._line(side, piece, group + 8 * half))
            inside: list[Stmt] = []
            for k in (0, 1):
                first = (quad + 4 * k) * wide
                term = {self.roles.terms: self.inner[self.roles.terms] + first + lane}
                where = {**self.start, **at}
                for a, x in {**self.inner, **term}.items():
                    where[a] = self.start[a] + x
                indices = tuple(substitute(i, where) for i in read.indices)
                value = Load(self.copies[side].buffer, self.copies[side].at(indices))
                number = (half + 2 * k if side == 0 else k) * wide
                store: Stmt = Store(self.fragments[side], (piece, number + lane), value)
                if wide > 1:
                    store = For(v.name, as_expr(wide), LoopKind.VECTORIZED, store)
                inside.append(store)
            stores.append(wrap(lets, seq(*inside)))
        return unrolled([(p, self.pieces[side])], seq(*stores))

    def _multiply(self) -> Stmt:
        loops = [(self.ctx.fresh(n, c), c) for n, c in zip("mn", self.pieces, strict=True)]
        m, n = (v if c > 1 else as_expr(0) for v, c in loops)
        return unrolled(loops, Mma(self.acc, (m, n), self.fragments[0], (m,), self.fragments[1], (n,)))

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self) -> Stmt:
        ctx = self.ctx
        loops = [(ctx.fresh(n, c), c) for n, c in zip("mn", self.pieces, strict=True)]
        m, n = (v if c > 1 else as_expr(0) for v, c in loops)
        _, _, group, quad = self.warp_parts
        stores: list[Stmt] = []
        for i in range(4):
            rows, row_lets, in_rows = self._coordinates(0, self._line(0, m, group + 8 * (i // 2)))
            columns, column_lets, in_columns = self._coordinates(1, self._line(1, n, quad * 2 + i % 2))
            at = {**{a.name: self.start[a.name] for a in self.op.axes}, **rows, **columns}
            inside = [simplify(at[a.name] < a.extent, ctx.ranges) for a in self.op.axes]
            indices = tuple(at[a.name] for a in self.op.axes)
            stored = store_finished(ctx, self.nest, indices, Load(self.acc, (m, n, as_expr(i))))
            body = guarded(all_of(in_rows, in_columns, *inside), stored)
            stores.append(wrap([*row_lets, *column_lets], body))
        return unrolled(loops, seq(*stores))


def lower_mma(ctx: Context, nest: Nest) -> Stmt:
    """The loops of a matrix product by tensor cores."""
    return MmaLowering(ctx, nest).lower()
