"""Each rule of the IRs: a program that breaks it is refused with its reason, one that keeps it passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import PROGRAMS, matmul

from seer.codegen.lower import lower
from seer.errors import VerifyError
from seer.ir.dag import ComputeDAG
from seer.ir.expr import (
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    Load,
    Read,
    Select,
    Unary,
    Var,
    as_expr,
    cast,
    rewrite,
)
from seer.ir.loops import (
    Buffer,
    For,
    If,
    Let,
    LoopKind,
    LoopProgram,
    Prefetch,
    Scope,
    Stmt,
    Store,
    map_exprs,
    seq,
)
from seer.ir.sketch import Sketch
from seer.ir.tensor import ComputeOp, Tensor, placeholder
from seer.ir.verify import verify_dag, verify_program, verify_sketch
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

N = 8
TARGET = Target.parse("llvm -threads=2")
X, Y = (Buffer(n, (N,), "float32", Scope.ARG) for n in "xy")
AT_I, AT_J, ZERO = Var("i"), Var("j"), as_expr(0)
SERIAL, PARALLEL, UNROLLED, VECTORIZED = list(LoopKind)[:4]


def check(body: Stmt, *buffers: Buffer) -> None:
    verify_program(LoopProgram("k", (X, Y), buffers, body))


def loop(kind: LoopKind, body: Stmt, var: str = "i", extent: int | Expr = N) -> For:
    return For(var, as_expr(extent), kind, body)


def copy(to: Expr, source: Expr) -> Store:
    return Store(Y, (to,), Load(X, (source,)))


def less(a: Expr, b: int) -> Expr:
    return Compare("<", a, as_expr(b))


def test_the_kinds_of_loops_have_the_names_used_here() -> None:
    assert [k.value for k in (SERIAL, PARALLEL, UNROLLED, VECTORIZED)] == [
        "for", "parallel", "unrolled", "vectorized",
    ]  # fmt: skip


# -- what is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_lowered_is_right(name: str) -> None:
    for sketch in generate_sketches(PROGRAMS[name], TARGET):
        verify_sketch(sketch)
        verify_program(lower(sketch, default_row(sketch, TARGET), TARGET).program)


REGISTERS = Buffer("r", (2, 4), "float32", Scope.REGISTER)
ZERO_F = Const(0.0, "float32")
TILED = AT_I * 4 + AT_J


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(loop(PARALLEL, copy(AT_I, AT_I)), id="parallel"),
        pytest.param(Let("k", as_expr(3), loop(PARALLEL, copy(AT_I, Var("k")))), id="parallel in let"),
        pytest.param(
            loop(PARALLEL, Let("k", AT_I // 2, Let("m", AT_I % 2, copy(Var("k") * 2 + Var("m"), ZERO)))),
            id="parallel through lets",
        ),
        pytest.param(loop(PARALLEL, If(less(AT_I, 1), copy(ZERO, ZERO))), id="one iteration writes"),
        pytest.param(loop(PARALLEL, copy(ZERO, ZERO), extent=1), id="parallel of one"),
        pytest.param(loop(VECTORIZED, Let("k", AT_I + 0, copy(Var("k"), ZERO))), id="let of lanes"),
        pytest.param(
            loop(SERIAL, loop(SERIAL, If(less(TILED, N), copy(TILED, ZERO)), "j", 4), extent=3),
            id="guarded tail",
        ),
        pytest.param(loop(SERIAL, loop(SERIAL, copy(AT_J, AT_I), "j", 99), extent=0), id="never runs"),
        pytest.param(
            loop(SERIAL, Store(Y, (AT_I,), Select(less(AT_I, N - 1), Load(X, (AT_I + 1,)), ZERO_F))),
            id="guarded read",
        ),
        pytest.param(
            loop(
                UNROLLED,
                loop(VECTORIZED, Store(REGISTERS, (AT_I, AT_J), Load(X, (AT_I * 4 + AT_J,))), "j", 4),
                extent=2,
            ),
            id="registers",
        ),
        pytest.param(
            loop(VECTORIZED, Store(Y, (AT_I,), Load(REGISTERS, (ZERO, AT_I + 2))), extent=2), id="upper lanes"
        ),
        pytest.param(loop(SERIAL, Prefetch(X, (AT_I,), as_expr(1000))), id="prefetch beyond the end"),
    ],
)  # fmt: skip
def test_right_programs_pass(body: Stmt) -> None:
    check(body, REGISTERS)


# -- what is wrong ---------------------------------------------------------------------------------

ONE_DOUBLE = Const(1.0, "float64")
OTHER = Buffer("other", (N,), "float32", Scope.THREAD)
TENSOR = placeholder((N,), name="t")

WRONG: dict[str, tuple[Stmt, str]] = {
    "unbound": (copy(AT_I, ZERO), r"variable i is not bound"),
    "bound once it is over": (seq(loop(SERIAL, copy(AT_I, ZERO)), copy(AT_I, ZERO)), "i is not bound"),
    "bound twice": (loop(SERIAL, loop(SERIAL, copy(AT_I, ZERO))), "variable i is bound twice"),
    "let bound twice": (loop(SERIAL, Let("i", ZERO, copy(AT_I, ZERO))), "variable i is bound twice"),
    "let of a float": (Let("k", ZERO_F, copy(ZERO, ZERO)), "let k: it is float32"),
    "input written": (Store(X, (ZERO,), ZERO_F), "an input is written"),
    "store undeclared": (Store(OTHER, (ZERO,), ZERO_F), "the buffer is not declared"),
    "load undeclared": (Store(Y, (ZERO,), Load(OTHER, (ZERO,))), "other is not declared"),
    "rank": (Store(Y, (ZERO, ZERO), ZERO_F), "is used with 2 indices"),
    "stored type": (Store(Y, (ZERO,), ONE_DOUBLE), "a float64 into a float32 buffer"),
    "mixed types": (Store(Y, (ZERO,), Binary("+", ZERO_F, ONE_DOUBLE)), "float32 and float64 meet"),
    "select of a number": (Store(Y, (ZERO,), Select(ZERO, ZERO_F, ZERO_F)), "condition of .* is int64"),
    "not of a number": (Store(Y, (ZERO,), cast(Unary("not", ZERO), "float32")), "not of int64"),
    "branch on a number": (If(ZERO, copy(ZERO, ZERO)), "the branch on 0: it is int64"),
    "float index": (Store(Y, (ZERO_F,), ZERO_F), "an index is not int64"),
    "int32 index": (Store(Y, (ZERO,), Load(X, (Const(0, "int32"),))), "an index is not int64"),
    "unknown call": (Store(Y, (ZERO,), Call("sin", (ZERO_F,), "float32")), "unknown function sin"),
    "call of a double": (Store(Y, (ZERO,), Call("exp", (ONE_DOUBLE,), "float32")), "types differ"),
    "tensor read": (Store(Y, (ZERO,), Read(TENSOR, (ZERO,))), r"a tensor read is left: t\[0\]"),
    "wholly outside": (copy(ZERO, as_expr(N)), r"is in 8\.\.8, outside"),
    "below zero": (If(less(ZERO, 1), copy(ZERO, as_expr(-1))), r"is in -1\.\.-1, outside"),
    "one too many": (loop(SERIAL, copy(AT_I, AT_I), extent=N + 1), r"is in 0\.\.8, outside"),
    "one too many in a sum": (
        loop(SERIAL, loop(SERIAL, copy(AT_I * 2 + AT_J, ZERO), "j", 3), extent=4), r"is in 0\.\.8, outside",
    ),
    "parallel in a loop": (loop(SERIAL, loop(PARALLEL, copy(AT_J, ZERO), "j")), "j inside another loop"),
    "parallel in a branch": (If(less(ZERO, 1), loop(PARALLEL, copy(AT_I, ZERO))), "inside a branch"),
    "parallel to any extent": (
        loop(PARALLEL, copy(ZERO, ZERO), extent=cast(Load(X, (ZERO,)), "int64")), "is no constant",
    ),
    "unrolled to any extent": (
        loop(SERIAL, loop(UNROLLED, copy(AT_J, ZERO), "j", AT_I)), "extent i is no constant",
    ),
    "float extent": (loop(SERIAL, copy(ZERO, ZERO), extent=ZERO_F), "its extent is float32"),
    "iterations collide": (loop(PARALLEL, copy(ZERO, AT_I)), "parallel iterations write the same element"),
    "iterations collide inside": (
        loop(PARALLEL, loop(SERIAL, copy(AT_J, AT_I), "j")), "parallel iterations write the same element",
    ),
    "lanes collide": (loop(VECTORIZED, copy(ZERO, AT_I)), "all lanes write the same element"),
    "branch of lanes": (loop(VECTORIZED, If(less(AT_I, 2), copy(AT_I, ZERO))), "a branch inside vector"),
    "loop of lanes": (loop(VECTORIZED, loop(SERIAL, copy(AT_I, ZERO), "j")), "inside vectorised loop i"),
    "prefetch of scratch": (Prefetch(REGISTERS, (ZERO, ZERO), as_expr(8)), "prefetch of Buffer"),
    "prefetch of the past": (Prefetch(X, (ZERO,), as_expr(-8)), "prefetch of Buffer.* -8"),
    "prefetch from outside": (Prefetch(X, (as_expr(N),), as_expr(8)), r"is in 8\.\.8, outside"),
    "prefetch by lanes": (loop(VECTORIZED, Prefetch(X, (AT_I,), as_expr(8))), "a prefetch by a lane"),
    "register in a serial loop": (
        loop(SERIAL, Store(REGISTERS, (AT_I, ZERO), ZERO_F), extent=2), "no register after unrolling",
    ),
    "register lanes in front": (
        loop(VECTORIZED, Store(REGISTERS, (AT_I, ZERO), ZERO_F), extent=2), "no register after unrolling",
    ),
    "register lanes with a stride": (
        loop(VECTORIZED, Store(REGISTERS, (ZERO, AT_I * 2), ZERO_F), extent=2), "no register after unrolling",
    ),
    "register through a let": (
        loop(SERIAL, Let("k", AT_I + 0, Store(Y, (AT_I,), Load(REGISTERS, (ZERO, Var("k"))))), extent=4),
        "no register after unrolling",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_are_refused(name: str) -> None:
    body, reason = WRONG[name]
    with pytest.raises(VerifyError, match=reason):
        check(body, REGISTERS)


def test_buffers_are_declared_once_and_where_they_belong() -> None:
    body = copy(ZERO, ZERO)
    with pytest.raises(VerifyError, match="buffer names repeat"):
        check(body, Buffer("x", (1,), "float32", Scope.THREAD))
    with pytest.raises(VerifyError, match="an argument is no param"):
        check(body, Buffer("z", (1,), "float32", Scope.ARG))
    with pytest.raises(VerifyError, match="a param is no argument"):
        verify_program(LoopProgram("k", (X, OTHER), (), Store(OTHER, (ZERO,), ZERO_F)))


def lowered(name: str) -> LoopProgram:
    sketch = generate_sketches(PROGRAMS[name], TARGET)[1]
    return lower(sketch, default_row(sketch, TARGET), TARGET).program


@pytest.mark.parametrize("name", ["matmul_even", "conv", "softmax"])
def test_a_spoiled_program_is_refused(name: str) -> None:
    """Every index moved by the size of the largest buffer leaves every buffer."""
    program = lowered(name)
    far = max(b.num_elements for b in (*program.params, *program.buffers))

    def move(e: Expr) -> Expr | None:
        return Load(e.buffer, tuple(i + far for i in e.indices)) if isinstance(e, Load) else None

    spoiled = replace(program, body=map_exprs(program.body, lambda e: rewrite(e, move)))
    with pytest.raises(VerifyError, match="outside"):
        verify_program(spoiled)


# -- DAGs and sketches -----------------------------------------------------------------------------


def dag_with(body: Expr) -> ComputeDAG:
    """x and one stage y with the given body over one axis i."""
    axes = matmul(N, 1, 1).op("c").axes[:1]
    return ComputeDAG(Tensor("y", (N,), body.dtype, ComputeOp(axes, body)), [TENSOR])


def test_wrong_dags_are_refused() -> None:
    axis = matmul(N, 1, 1).op("c").axes[0].var
    verify_dag(dag_with(TENSOR[axis]))
    with pytest.raises(VerifyError, match="stage y uses nowhere, which are not its axes"):
        verify_dag(dag_with(TENSOR[Var("nowhere")]))
    with pytest.raises(VerifyError, match="with 2 indices"):
        verify_dag(dag_with(Read(TENSOR, (axis, axis))))
    with pytest.raises(VerifyError, match="float32 and int64 meet"):
        verify_dag(dag_with(Binary("+", TENSOR[axis], axis)))


def spoil_sketch(change: str) -> Sketch:
    sketch = generate_sketches(matmul(13, 37, 7), TARGET)[1]
    nest = sketch.nests[0]
    match change:
        case "param twice":
            return replace(sketch, params=(*sketch.params, sketch.params[0]))
        case "param missing":
            return replace(sketch, params=sketch.params[1:])
        case "stage twice":
            return replace(sketch, inlined=(*sketch.inlined, nest.stage))
        case "stage missing":
            return replace(sketch, nests=(replace(nest, epilogue=None),))
    raise AssertionError(change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("param twice", "params repeat"),
        ("param missing", "are loose"),
        ("stage twice", "computes"),
        ("stage missing", "needed"),
    ],
)
def test_wrong_sketches_are_refused(change: str, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify_sketch(spoil_sketch(change))


def test_random_rows_pass() -> None:
    """Tiles of any size, also those that the search would not draw."""
    rng = np.random.default_rng(0)
    for name in ("matmul", "conv", "softmax", "row_sum"):
        for sketch in generate_sketches(PROGRAMS[name], TARGET):
            high = [p.extent + 3 if p.kind == "tile" else 1 for p in sketch.params]
            rows = rng.integers(1, np.maximum(high, 2), (5, len(high)))
            for c, p in enumerate(sketch.params):
                if p.kind != "tile":
                    rows[:, c] = rng.choice(p.choices, 5)
            for row in sketch.canonical(rows):
                verify_program(lower(sketch, row, TARGET).program)
