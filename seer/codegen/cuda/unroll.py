"""How far compilers may unroll a loop.

The loops were chosen with their register tiles. A compiler that unrolls more of them than was asked
for loads operands of many terms, or many copies, before it uses any: accumulators lose their
registers to what is on its way.
"""

from __future__ import annotations

from seer.ir.expr import Const
from seer.ir.loops import (
    Exchange,
    For,
    If,
    Let,
    LoopKind,
    Mma,
    Scope,
    Seq,
    StartCopy,
    Stmt,
    Store,
    walk_stmts,
)

COPIES_AT_ONCE = 4  # of a loop that does nothing else
# Loops round fewer statements are left to the compiler: they cost something beside their bodies.
LONG_BODY = 16
_MMA = 4  # accumulators


def unroll_pragma(kind: LoopKind, body: Stmt) -> str:
    """The line before a loop; "" if the compiler may do as it likes."""
    if kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED):
        return "#pragma unroll"
    if _is_copying(body):
        return f"#pragma unroll {COPIES_AT_ONCE}"
    return "#pragma unroll 1" if _statements(body) >= LONG_BODY else ""


def _is_copying(body: Stmt) -> bool:
    """Whether a loop's body stores to shared memory, and to nothing else."""
    stored = [s.buffer.scope for s in walk_stmts(body) if isinstance(s, (Store, StartCopy, Exchange))]
    return bool(stored) and all(scope is Scope.BLOCK_SHARED for scope in stored)


def _statements(s: Stmt) -> int:
    """How many there are with unrolled loops written out, other loops once."""
    match s:
        case Seq(stmts):
            return sum(map(_statements, stmts))
        case For(_, Const(trips), LoopKind.UNROLLED | LoopKind.VECTORIZED, body):
            return int(trips) * _statements(body)
        case For(_, _, _, body) | Let(_, _, body):
            return _statements(body)
        case If(_, then, orelse):
            return _statements(then) + (_statements(orelse) if orelse is not None else 0)
        case Mma():
            return _MMA
    return 1
