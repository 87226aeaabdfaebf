"""Loop IR: what a scheduled kernel is before it becomes machine code.

The whole grammar:

    Stmt = Seq(stmts)                          one after another
         | For(var, extent, kind, body)        var over range(extent), var is int64
         | Let(var, value, body)               a name for an index value
         | If(cond, then, orelse)              scalar condition; orelse may be None
         | Store(buffer, indices, value)       one element (or one vector, in a VECTORIZED loop)
         | Prefetch(buffer, indices, ahead)    hint: what lies `ahead` elements on is needed soon
         | Sync()                              GPU: every thread of the block comes here before any goes on
         | Exchange(buffer, indices, value, mask)   GPU: buffer[indices] = what thread `this ^ mask` has
                                               as `value`; all threads of the warp come here together
         | Mma(acc, at, a, a_at, b, b_at)      GPU: a warp multiplies matrices, 16x8 += 16xK * Kx8; see Mma
         | StartCopy(buffer, indices, value)   GPU: a Store that happens later; value is a Load, or a
                                               Select of a Load and 0
         | CommitCopies()                      GPU: the copies a thread has started are one group
         | WaitForCopies(pending)              GPU: all groups but the last `pending` have happened

    LoopProgram(name, params, buffers, body)

Semantics
    - SERIAL loops run in order. UNROLLED and VECTORIZED extents are Const.
    - A VECTORIZED loop's body holds only Store, Let and Seq; all lanes of one statement happen
      before the next statement. Loads of contiguous elements become vector loads.
    - A PARALLEL loop stands at the top of a nest: not inside another loop; its iterations are
      independent. Extent is Const.
    - A BLOCK loop is a grid of GPU blocks, and directly inside it (below Let) a THREAD loop its
      threads; a program for a GPU is one BLOCK loop. Extents are Const; iterations run at once, in
      no order but that of Sync.
    - Scopes: BLOCK_SHARED is memory that the threads of one GPU block share; inside a THREAD loop
      REGISTER is a thread's own.
    - ARG is an argument of the kernel. SHARED is scratch seen by all threads. THREAD is scratch
      private to one thread, its content does not outlive one parallel iteration. REGISTER is SSA
      values: after unrolling, every index is a constant, but the last, which is a constant or
      `vector var + constant`; the last extent is the number of lanes of a slot.
    - A Store into a REGISTER buffer inside a SERIAL loop becomes a loop-carried value.
    - Buffers are dense and row-major; contents are undefined until stored.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

from seer.dtypes import dtype as dtype_of
from seer.dtypes import is_narrow
from seer.ir.expr import Expr


class Scope(enum.Enum):
    """Where a buffer lives."""

    ARG = "arg"
    SHARED = "shared"
    THREAD = "thread"
    REGISTER = "register"
    BLOCK_SHARED = "block_shared"


class LoopKind(enum.Enum):
    """How a loop runs."""

    SERIAL = "for"
    PARALLEL = "parallel"
    UNROLLED = "unrolled"
    VECTORIZED = "vectorized"
    BLOCK = "block"
    THREAD = "thread"


@dataclass(frozen=True, eq=False)
class Buffer:
    """A dense row-major array of `shape` elements; equality is identity."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: Scope

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.num_elements * dtype_of(self.dtype).size_bytes

    def __repr__(self) -> str:
        return f"Buffer({self.name}: {self.dtype}{list(self.shape)} {self.scope.value})"


@dataclass(frozen=True, slots=True)
class Seq:
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For:
    """`var` over range(extent)."""

    var: str
    extent: Expr
    kind: LoopKind
    body: Stmt


@dataclass(frozen=True, slots=True)
class Let:
    """`var` stands for the int64 `value` inside `body`."""

    var: str
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class If:
    """A scalar branch."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[indices] = value`."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A hint to bring near what lies `ahead` elements after `buffer[indices]`; that may be beyond the end."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    ahead: Expr


@dataclass(frozen=True, slots=True)
class Sync:
    """All threads of a GPU block meet; what they stored in shared memory is seen by all."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """`buffer[indices]` = the `value` of the thread whose number differs by `mask` (xor, below 32)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    mask: int


@dataclass(frozen=True, slots=True)
class Mma:
    """The 32 threads of a warp together: C (16, 8) += A (16, K) * B (K, 8), C of float32.

    K is 8 where A and B are float32, and 16 where one or both are of 16 bits; of two that are of 16
    bits both have one type. Each thread holds parts of the matrices in the last dimension of REGISTER
    buffers; with g = its number in the warp // 4, q = that number % 4 and w = K / 8:
        a[a_at, i * w + p] is A[g + 8 * (i % 2), w * (q + 4 * (i // 2)) + p]   i < 4, p < w
        b[b_at, i * w + p] is B[w * (q + 4 * i) + p, g]                        i < 2, p < w
        acc[at, i] is C[g + 8 * (i // 2), 2 * q + i % 2]                       i < 4
    """

    acc: Buffer
    at: tuple[Expr, ...]
    a: Buffer
    a_at: tuple[Expr, ...]
    b: Buffer
    b_at: tuple[Expr, ...]

    @property
    def narrow(self) -> str | None:
        """The 16-bit type of a factor, if there is one."""
        return next((b.dtype for b in (self.a, self.b) if is_narrow(b.dtype)), None)

    @property
    def terms(self) -> int:
        """K."""
        return 8 if self.narrow is None else 16

    @property
    def parts(self) -> tuple[tuple[Buffer, tuple[Expr, ...], int], ...]:
        """(buffer, indices but the last, extent of the last) of A, B and C."""
        wide = self.terms // 8
        return ((self.a, self.a_at, 4 * wide), (self.b, self.b_at, 2 * wide), (self.acc, self.at, 4))


@dataclass(frozen=True, slots=True)
class StartCopy:
    """`buffer[indices] = value` from an argument to shared memory, until WaitForCopies at the latest."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class CommitCopies:
    """Ends a group of copies; it may be empty."""


@dataclass(frozen=True, slots=True)
class WaitForCopies:
    """The thread's copies have happened, but for its last `pending` groups; a Sync shows them to others."""

    pending: int


Stmt = Union[Seq, For, Let, If, Store, Prefetch, Sync, Exchange, Mma, StartCopy, CommitCopies, WaitForCopies]


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """One kernel.

    Attributes:
        name: a C identifier.
        params: the ARG buffers, inputs in ComputeDAG order, then the output.
        buffers: every SHARED, THREAD, BLOCK_SHARED and REGISTER buffer used in the body.
        body: a statement; PARALLEL loops only at its top level (below Seq and Let).
    """

    name: str
    params: tuple[Buffer, ...]
    buffers: tuple[Buffer, ...]
    body: Stmt


def seq(*stmts: Stmt | None) -> Stmt:
    """A Seq without empty or nested parts; a single statement stays itself."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Seq):
            flat.extend(s.stmts)
        elif s is not None:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def sub_stmts(s: Stmt) -> tuple[Stmt, ...]:
    """The direct sub-statements."""
    match s:
        case Seq(stmts):
            return stmts
        case For(_, _, _, body) | Let(_, _, body):
            return (body,)
        case If(_, then, orelse):
            return (then,) if orelse is None else (then, orelse)
        case Store() | Prefetch() | Sync() | Exchange() | Mma() | StartCopy():
            return ()
        case CommitCopies() | WaitForCopies():
            return ()


def walk_stmts(s: Stmt) -> Iterator[Stmt]:
    """Every statement, parents first."""
    yield s
    for k in sub_stmts(s):
        yield from walk_stmts(k)


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `fn` applied to each expression it holds directly (extents included)."""
    match s:
        case Seq(stmts):
            return Seq(tuple(map_exprs(k, fn) for k in stmts))
        case For(var, extent, kind, body):
            return For(var, fn(extent), kind, map_exprs(body, fn))
        case Let(var, value, body):
            return Let(var, fn(value), map_exprs(body, fn))
        case If(cond, then, orelse):
            return If(fn(cond), map_exprs(then, fn), None if orelse is None else map_exprs(orelse, fn))
        case Store(buffer, indices, value):
            return Store(buffer, tuple(fn(i) for i in indices), fn(value))
        case Prefetch(buffer, indices, ahead):
            return Prefetch(buffer, tuple(fn(i) for i in indices), fn(ahead))
        case Exchange(buffer, indices, value, mask):
            return Exchange(buffer, tuple(fn(i) for i in indices), fn(value), mask)
        case Mma(acc, at, a, a_at, b, b_at):
            at, a_at, b_at = (tuple(map(fn, x)) for x in (at, a_at, b_at))
            return Mma(acc, at, a, a_at, b, b_at)
        case StartCopy(buffer, indices, value):
            return StartCopy(buffer, tuple(fn(i) for i in indices), fn(value))
        case Sync() | CommitCopies() | WaitForCopies():
            return s
