"""The rules of GPU loop programs: what the verifier refuses, and the faults that running them finds."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_helpers import CUDA
from programs import matmul, softmax

from seer.codegen.cuda import generate
from seer.errors import VerifyError
from seer.ir.expr import Expr, Load, Var, as_expr, call, select
from seer.ir.loops import (
    Buffer,
    CommitCopies,
    Exchange,
    For,
    If,
    LoopKind,
    LoopProgram,
    Mma,
    Scope,
    StartCopy,
    Stmt,
    Store,
    Sync,
    WaitForCopies,
    seq,
)
from seer.ir.printer import print_program
from seer.ir.simt import run_gpu_program
from seer.ir.verify import verify_program
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

BLOCKS, THREADS = 3, 32
N = BLOCKS * THREADS
X, Y = (Buffer(n, (N,), "float32", Scope.ARG) for n in "xy")
SHARED = Buffer("tile", (THREADS,), "float32", Scope.BLOCK_SHARED)
OWN = Buffer("own", (1,), "float32", Scope.REGISTER)
B, T = Var("b"), Var("t")
AT = B * THREADS + T
ZERO = as_expr(0)


def program(*stmts: Stmt) -> LoopProgram:
    inner = For("t", as_expr(THREADS), LoopKind.THREAD, seq(*stmts))
    body = For("b", as_expr(BLOCKS), LoopKind.BLOCK, inner)
    return LoopProgram("k", (X, Y), (SHARED, OWN), body)


def run(*stmts: Stmt) -> np.ndarray:
    p = program(*stmts)
    verify_program(p)
    y = np.zeros(N, np.float32)
    run_gpu_program(p, {"x": np.arange(N, dtype=np.float32), "y": y})
    return y


def mirrored(at: Expr = T) -> Expr:
    return Load(SHARED, (as_expr(THREADS - 1) - at,))


FILL = Store(SHARED, (T,), Load(X, (AT,)))
DRAIN = Store(Y, (AT,), mirrored())
EXPECTED = np.arange(N, dtype=np.float32).reshape(BLOCKS, THREADS)[:, ::-1].reshape(-1)


def test_threads_of_a_block_share_memory() -> None:
    np.testing.assert_array_equal(run(FILL, Sync(), DRAIN), EXPECTED)


def test_copies_started_ahead() -> None:
    start = StartCopy(SHARED, (T,), Load(X, (AT,)))
    found = run(start, CommitCopies(), WaitForCopies(0), Sync(), DRAIN)
    np.testing.assert_array_equal(found, EXPECTED)


def test_exchange_within_a_warp() -> None:
    swap = Exchange(OWN, (ZERO,), Load(X, (AT,)), 1)
    found = run(swap, Store(Y, (AT,), Load(OWN, (ZERO,))))
    np.testing.assert_array_equal(found, np.arange(N) ^ 1)


FAULTS: dict[str, tuple[tuple[Stmt, ...], str]] = {
    "no sync": ((FILL, DRAIN), "meet at"),
    "no wait": (
        (StartCopy(SHARED, (T,), Load(X, (AT,))), CommitCopies(), WaitForCopies(1), Sync(), DRAIN),
        "read before it is written",
    ),
    "unwritten": ((Sync(), DRAIN), "read before it is written"),
    "overwritten": ((FILL, Sync(), DRAIN, Store(SHARED, (T,), as_expr(0.0))), "meet at"),
    "outside": (
        (Store(Y, (AT,), Load(X, (AT + select(T < 31, ZERO, as_expr(N)),))),),
        "outside",
    ),
    "twice": ((Store(Y, (B * THREADS + T // 2,), Load(X, (AT,))),), "written twice"),
    "alone": (
        (If(Load(X, (AT,)) < 5.0, Exchange(OWN, (ZERO,), Load(X, (AT,)), 8)),),
        "not every thread comes",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    stmts, words = FAULTS[fault]
    with pytest.raises(VerifyError, match=words):
        run(*stmts)


REFUSED: dict[str, tuple[Stmt, str]] = {
    "divergent sync": (If(T < 5, Sync()), "not every thread comes"),
    "divergent loop": (For("i", T + 1, LoopKind.SERIAL, Sync()), "not every thread comes"),
    "threads write one element": (Store(Y, (B,), as_expr(1.0)), "write the same element"),
    "blocks write one element": (Store(Y, (T,), as_expr(1.0)), "write the same element"),
    "grid inside": (For("c", as_expr(2), LoopKind.BLOCK, Sync()), "inside something else"),
    "other warps": (Exchange(OWN, (ZERO,), as_expr(1.0), 32), "not in the same warp"),
    "computed copy": (
        StartCopy(SHARED, (T,), call("exp", Load(X, (AT,)))),
        "which is no argument",
    ),
    "no fragment": (Mma(OWN, (), OWN, (), OWN, ()), "is no fragment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_programs_that_break_the_rules(case: str) -> None:
    stmt, words = REFUSED[case]
    with pytest.raises(VerifyError, match=words):
        verify_program(program(stmt))


def test_a_sync_outside_of_threads() -> None:
    body = For("b", as_expr(2), LoopKind.BLOCK, Sync())
    with pytest.raises(VerifyError, match="outside a thread loop"):
        verify_program(LoopProgram("k", (X, Y), (), body))


def test_text() -> None:
    text = print_program(program(FILL, Sync(), Exchange(OWN, (ZERO,), mirrored(), 4)))
    assert text == (
        "kernel k(x: f32[96], y: f32[96]):\n"
        "  block_shared tile: f32[32]\n"
        "  register own: f32[1]\n"
        "  block b in 3:\n"
        "    thread t in 32:\n"
        "      tile[t] = x[((b * 32) + t)]\n"
        "      sync\n"
        "      own[0] = tile[(31 - t)] of thread ^ 4"
    )


@pytest.mark.parametrize("dag", [matmul(40, 48, 24), softmax(4, 64)], ids=["matmul", "softmax"])
def test_stages_are_shown(dag, monkeypatch, caplog) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SEER_DEBUG", "loops,cuda")
    sketch = generate_sketches(dag, CUDA)[-1]
    with caplog.at_level("DEBUG", logger="seer.debug"):
        generate(sketch, default_row(sketch, CUDA), CUDA)
    assert "---- loops ----" in caplog.text and "  block " in caplog.text
    assert "---- cuda ----" in caplog.text and "__launch_bounds__" in caplog.text
