"""What GPU loop programs mean: all threads of all blocks, one statement at a time, as NumPy arrays.

Every thread of the grid is a lane of an array. Branches and loops of unequal length mask lanes out.
It is an error to read or write outside a buffer, to read what was never written, for two threads to
write one element of the output, and for one thread of a block to touch in shared memory what another
one wrote (or to write what another one touched) without a Sync in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from seer.dtypes import convert, numpy_dtype
from seer.errors import VerifyError
from seer.ir.expr import Binary, Call, Cast, Compare, Const, Expr, Load, Select, Unary, Var
from seer.ir.interp import BINARY, CALLS, COMPARE, argument, number
from seer.ir.loops import (
    Buffer,
    CommitCopies,
    Exchange,
    For,
    If,
    Let,
    LoopKind,
    LoopProgram,
    Mma,
    Scope,
    Seq,
    StartCopy,
    Stmt,
    Store,
    Sync,
    WaitForCopies,
    walk_stmts,
)

WARP = 32
_NOBODY, _MANY = -1, -2

Env = dict[str, Any]
_Copy = tuple[Buffer, np.ndarray, Any, np.ndarray]  # to, where, what, of which lanes


def run_gpu_program(program: LoopProgram, arrays: Mapping[str, np.ndarray]) -> None:
    """Run one GPU program; the array of its last param is filled in place.

    Args:
        program: one BLOCK loop round a THREAD loop.
        arrays: for each param's name, a C-contiguous array of its shape and dtype.

    Raises:
        UserError: if an array is missing or does not fit.
        VerifyError: if the program reads or writes where it must not, or threads race.
    """
    _Grid(program, arrays).run_program()


class _Grid:
    def __init__(self, program: LoopProgram, arrays: Mapping[str, np.ndarray]) -> None:
        self.program = program
        loops = {s.kind: s for s in walk_stmts(program.body) if isinstance(s, For)}
        self.blocks = _extent(loops[LoopKind.BLOCK])
        self.threads = _extent(loops[LoopKind.THREAD])
        self.n = self.blocks * self.threads
        self.lane = np.arange(self.n)
        self.block, self.thread = self.lane // self.threads, self.lane % self.threads
        self.memory: dict[Buffer, np.ndarray] = {}
        self.written: dict[Buffer, np.ndarray] = {}
        for b in program.params:
            self.memory[b] = argument(b, arrays).reshape(-1)
        self.out = program.params[-1]
        self.written[self.out] = np.zeros(self.memory[self.out].size, bool)
        for b in program.buffers:
            copies = self.blocks if b.scope is Scope.BLOCK_SHARED else self.n
            self.memory[b] = np.zeros(copies * b.num_elements, numpy_dtype(b.dtype))
            self.written[b] = np.zeros(copies * b.num_elements, bool)
        shared = [b for b in program.buffers if b.scope is Scope.BLOCK_SHARED]
        self.writer = {b: np.full(self.memory[b].size, _NOBODY) for b in shared}
        self.reader = {b: np.full(self.memory[b].size, _NOBODY) for b in shared}

        self.started: list[_Copy] = []
        self.groups: list[list[_Copy]] = []

    def run_program(self) -> None:
        self.run(self.program.body, {}, np.ones(self.n, bool))

    # -- statements --------------------------------------------------------------------------

    def run(self, s: Stmt, env: Env, mask: np.ndarray) -> None:
        if not mask.any():
            return
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.run(k, env, mask)
            case For(var, _, LoopKind.BLOCK, body):
                self.run(body, {**env, var: self.block}, mask)
            case For(var, _, LoopKind.THREAD, body):
                self.run(body, {**env, var: self.thread}, mask)
            case For(var, extent, _, body):
                trips = np.broadcast_to(self.value(extent, env, mask), (self.n,))
                for n in range(int(trips[mask].max())):
                    self.run(body, {**env, var: np.int64(n)}, mask & (n < trips))
            case Let(var, value, body):
                self.run(body, {**env, var: self.value(value, env, mask)}, mask)
            case If(cond, then, orelse):
                holds = np.broadcast_to(self.value(cond, env, mask), (self.n,))
                self.run(then, env, mask & holds)
                if orelse is not None:
                    self.run(orelse, env, mask & ~holds)
            case Store(buffer, indices, value):
                self._store(buffer, self._at(buffer, indices, env, mask), self.value(value, env, mask), mask)
            case Exchange(buffer, indices, value, other):
                self._exchange(buffer, self._at(buffer, indices, env, mask), value, other, env, mask)
            case Mma():
                self._mma(s, env, mask)
            case StartCopy(buffer, indices, value):
                at = self._at(buffer, indices, env, mask)
                self._check_alone(buffer, at[mask], mask, self.reader[buffer])
                self.started.append((buffer, at, self.value(value, env, mask), mask))
            case CommitCopies():
                self.groups.append(self.started)
                self.started = []
            case WaitForCopies(pending):
                while len(self.groups) > pending:
                    for buffer, at, copied, lanes in self.groups.pop(0):
                        self._store(buffer, at, copied, lanes)
            case Sync():
                self._sync(mask)

    def _sync(self, mask: np.ndarray) -> None:
        here = mask.reshape(self.blocks, self.threads)
        every, some = here.all(axis=1), here.any(axis=1)
        if (every != some).any():
            raise VerifyError(f"sync: only some threads of block {int(np.argmax(every != some))} come")
        for b in self.writer:
            for table in (self.writer[b], self.reader[b]):
                table.reshape(self.blocks, -1)[every] = _NOBODY

    def _exchange(
        self, buffer: Buffer, at: np.ndarray, value: Expr, other: int, env: Env, mask: np.ndarray
    ) -> None:
        partner_thread = self.thread ^ other
        partner = self.block * self.threads + partner_thread
        alone = mask & ((partner_thread >= self.threads) | ~mask[np.minimum(partner, self.n - 1)])
        if alone.any():
            raise VerifyError(f"exchange: thread {int(self.thread[alone][0])} has no partner")
        mine = np.broadcast_to(self.value(value, env, mask), (self.n,))
        self._store(buffer, at, mine[np.minimum(partner, self.n - 1)], mask)

    def _mma(self, s: Mma, env: Env, mask: np.ndarray) -> None:
        """Every warp's matrices, put together from the fragments of its lanes."""
        whole = mask.reshape(-1, WARP)
        if self.threads % WARP or (whole.all(axis=1) != whole.any(axis=1)).any():
            raise VerifyError("mma: not every thread of a warp comes")
        lane = np.arange(WARP)
        g, q = lane // 4, lane % 4
        k, w = s.terms, s.terms // 8
        a, b, c = (np.zeros((len(whole), *shape)) for shape in ((16, k), (k, 8), (16, 8)))
        places: tuple[tuple[np.ndarray, Callable[[int], tuple[np.ndarray, np.ndarray]]], ...] = (
            (a, lambda i: (g + 8 * (i // w % 2), w * (q + 4 * (i // w // 2)) + i % w)),
            (b, lambda i: (w * (q + 4 * (i // w)) + i % w, g)),
            (c, lambda i: (g + 8 * (i // 2), 2 * q + i % 2)),
        )
        slots = []
        for (matrix, place), (buffer, at, count) in zip(places, s.parts, strict=True):
            for i in range(count):
                where = self._at(buffer, (*at, Const(i, "int64")), env, mask)
                part = convert(self._load(buffer, where, mask), buffer.dtype, "float32")
                matrix[(slice(None), *place(i))] = part.reshape(-1, WARP)
                slots.append(where)
        with np.errstate(all="ignore"):
            out = (c + a @ b).astype(np.float32)
        for i, where in enumerate(slots[-4:]):
            self._store(s.acc, where, out[(slice(None), *places[2][1](i))].reshape(-1), mask)

    def _store(self, buffer: Buffer, at: np.ndarray, value: Any, mask: np.ndarray) -> None:
        where = at[mask]
        if buffer is self.out and (self.written[buffer][where].any() or len(np.unique(where)) < len(where)):
            raise VerifyError(f"{buffer!r}: an element is written twice")
        if buffer in self.writer:
            self._check_alone(buffer, where, mask, self.writer[buffer])
            self._check_alone(buffer, where, mask, self.reader[buffer])
            me = self.lane[mask]
            self.writer[buffer][where] = me
            if (self.writer[buffer][where] != me).any():
                raise VerifyError(f"{buffer!r}: two threads write one element")
        self.memory[buffer][where] = np.broadcast_to(value, (self.n,))[mask]
        self.written[buffer][where] = True

    def _check_alone(self, buffer: Buffer, where: np.ndarray, mask: np.ndarray, table: np.ndarray) -> None:
        others = table[where]
        bad = (others != _NOBODY) & (others != self.lane[mask])
        if bad.any():
            k = int(np.argmax(bad))
            raise VerifyError(
                f"{buffer!r}: threads {self.lane[mask][k]} and {others[k]} meet at {where[k]} without a sync"
            )

    def _load(self, buffer: Buffer, at: np.ndarray, mask: np.ndarray) -> np.ndarray:
        where = at[mask]
        if buffer in self.written and not self.written[buffer][where].all():
            raise VerifyError(f"{buffer!r}: read before it is written")
        if buffer in self.writer:
            self._check_alone(buffer, where, mask, self.writer[buffer])
            readers, me = self.reader[buffer], self.lane[mask]
            old = readers[where]
            readers[where] = np.where((old == _NOBODY) | (old == me), me, _MANY)
            # Several lanes may read one element at once.
            readers[where] = np.where(readers[where] == me, readers[where], _MANY)
        memory = self.memory[buffer]
        if memory.size == 0:
            return np.zeros(self.n, memory.dtype)
        out: np.ndarray = memory[np.where(mask, at, 0)]
        return out

    def _at(self, buffer: Buffer, indices: tuple[Expr, ...], env: Env, mask: np.ndarray) -> np.ndarray:
        """Each lane's position in the buffer's memory."""
        flat: Any = np.int64(0)
        for d, (i, n) in enumerate(zip(indices, buffer.shape, strict=True)):
            k = np.broadcast_to(self.value(i, env, mask), (self.n,))
            bad = mask & ((k < 0) | (k >= n))
            if bad.any():
                lane = int(np.argmax(bad))
                raise VerifyError(
                    f"{buffer!r}: index {k[lane]} of dimension {d} is outside "
                    f"(block {self.block[lane]}, thread {self.thread[lane]})"
                )
            flat = flat * n + k
        out: np.ndarray = np.broadcast_to(flat, (self.n,))
        if buffer.scope is Scope.BLOCK_SHARED:
            out = out + self.block * buffer.num_elements
        if buffer.scope is Scope.REGISTER:
            out = out + self.lane * buffer.num_elements
        return out

    # -- expressions -------------------------------------------------------------------------

    def value(self, e: Expr, env: Env, mask: np.ndarray) -> Any:
        """The value of an expression in every lane of `mask`; a number if all lanes have the same."""
        match e:
            case Load(buffer, indices):
                return self._load(buffer, self._at(buffer, indices, env, mask), mask)
            case Select(cond, a, b):
                holds = np.broadcast_to(self.value(cond, env, mask), (self.n,))
                sides = []
                for x, where in ((a, mask & holds), (b, mask & ~holds)):
                    sides.append(
                        self.value(x, env, where) if where.any() else np.zeros(1, numpy_dtype(x.dtype))[0]
                    )
                return np.where(holds, *sides)
            case Const(value, dtype):
                return number(value, dtype)
            case Var(name, _):
                return env[name]
            case Unary(op, a):
                x = self.value(a, env, mask)
                return np.negative(x) if op == "neg" else np.logical_not(x)
            case Binary(op, a, b):
                with np.errstate(all="ignore"):
                    return BINARY[op](self.value(a, env, mask), self.value(b, env, mask))
            case Compare(op, a, b):
                return COMPARE[op](self.value(a, env, mask), self.value(b, env, mask))
            case Cast(a, dtype):
                with np.errstate(all="ignore"):
                    return convert(self.value(a, env, mask), a.dtype, dtype)
            case Call(name, args, dtype):
                kind = "float64" if dtype == "float32" else dtype
                wide = [np.asarray(self.value(a, env, mask), kind) for a in args]
                with np.errstate(all="ignore"):
                    return np.asarray(CALLS[name](*wide)).astype(dtype)
        raise VerifyError(f"not a loop-level expression: {e}")


def _extent(loop: For) -> int:
    assert isinstance(loop.extent, Const)
    return int(loop.extent.value)
