"""Loop programs as text: every statement, and a whole kernel."""

from __future__ import annotations

import logging

import pytest
from programs import PROGRAMS, matmul

from seer.codegen.build import build
from seer.codegen.lower import lower
from seer.ir.expr import Binary, Call, Const, Load, Select, Var, as_expr, compare, maximum
from seer.ir.loops import Buffer, For, If, Let, LoopKind, LoopProgram, Scope, Seq, Stmt, Store
from seer.ir.printer import print_program, print_stmt
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

X, Y = Buffer("x", (8,), "float32", Scope.ARG), Buffer("y", (8,), "float32", Scope.ARG)
AT_I = Var("i")
COPY = Store(Y, (AT_I,), Load(X, (AT_I * 2 + 1,)))


def text(s: Stmt) -> str:
    return "\n".join(print_stmt(s))


@pytest.mark.parametrize(
    ("stmt", "expected"),
    [
        (COPY, "y[i] = x[((i * 2) + 1)]"),
        (Store(Y, (AT_I + 1,), Load(X, (AT_I,)) * 2.0), "y[(i + 1)] = (x[i] * 2.0)"),
        (Store(Y, (AT_I,), maximum(Load(X, (AT_I,)), 0.0)), "y[i] = max(x[i], 0.0)"),
        (Store(Y, (), Call("exp", (Const(1.0, "float64"),), "float64")), "y[] = exp(float64(1.0))"),
        (For("i", as_expr(8), LoopKind.SERIAL, COPY), "for i in 8:\n  y[i] = x[((i * 2) + 1)]"),
        (For("i", Var("n") - 1, LoopKind.PARALLEL, Seq(())), "parallel i in (n - 1):\n  pass"),
        (For("i", as_expr(8), LoopKind.UNROLLED, Seq(())), "unrolled i in 8:\n  pass"),
        (For("i", as_expr(8), LoopKind.VECTORIZED, Seq(())), "vectorized i in 8:\n  pass"),
        (Let("i", Var("p") % 4, COPY), "i = (p % 4)\ny[i] = x[((i * 2) + 1)]"),
        (If(compare("<", AT_I, 3), Seq(())), "if (i < 3):\n  pass"),
        (
            If(
                Binary("and", compare("<", AT_I, 3), compare("!=", AT_I, 1)),
                Seq((COPY, COPY)),
                Store(Y, (AT_I,), Select(compare("==", AT_I, 0), Const(1.0, "float32"), Load(X, (AT_I,)))),
            ),
            (
                "if ((i < 3) and (i != 1)):\n"
                "  y[i] = x[((i * 2) + 1)]\n"
                "  y[i] = x[((i * 2) + 1)]\n"
                "else:\n"
                "  y[i] = select((i == 0), 1.0, x[i])"
            ),
        ),
    ],
)
def test_statements(stmt: Stmt, expected: str) -> None:
    assert text(stmt) == expected


def test_program() -> None:
    t = Buffer("t", (2, 8), "int64", Scope.SHARED)
    program = LoopProgram("copy", (X, Y), (t,), For("i", as_expr(8), LoopKind.PARALLEL, COPY))
    assert print_program(program).split("\n") == [
        "kernel copy(x: f32[8], y: f32[8]):",
        "  shared t: i64[2, 8]",
        "  parallel i in 8:",
        "    y[i] = x[((i * 2) + 1)]",
    ]


def test_a_naive_matmul_reads_as_three_loops() -> None:
    target = Target.parse("llvm -threads=1")
    sketch = generate_sketches(matmul(2, 3, 4, relu=False), target)[0]
    lines = print_program(lower(sketch, default_row(sketch, target), target).program).split("\n")
    assert lines[0] == "kernel kernel(a: f32[2, 4], b: f32[4, 3], c: f32[2, 3]):"
    heads = [line.split()[0] + " " + line.split()[-1] for line in lines if line.endswith(":")][1:]
    assert [h for h in heads if h.startswith(("for", "parallel"))] == ["for 2:", "for 3:", "for 4:"]
    assert sum("fma(a[" in line for line in lines) == 1


def test_a_kernel_of_nothing() -> None:
    target = Target.parse("llvm -threads=1")
    sketch = generate_sketches(PROGRAMS["matmul_empty"], target)[0]
    program = lower(sketch, default_row(sketch, target), target).program
    assert print_program(program).split("\n")[-1] == "  pass"


def test_every_buffer_of_a_program_is_printed() -> None:
    target = Target.parse("llvm -threads=2")
    for name in ("conv", "softmax", "batch_matmul"):
        sketch = generate_sketches(PROGRAMS[name], target)[-1]
        program = lower(sketch, default_row(sketch, target), target).program
        printed = print_program(program)
        for b in program.buffers:
            assert f"  {b.scope.value} {b.name}: f32[{', '.join(map(str, b.shape))}]" in printed


def test_debug_shows_the_loops(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    target = Target.parse("llvm -threads=1")
    sketch = generate_sketches(PROGRAMS["row_sum"], target)[0]
    with caplog.at_level(logging.DEBUG, logger="seer.debug"):
        build(sketch, default_row(sketch, target), target)
        assert not caplog.records
        monkeypatch.setenv("SEER_DEBUG", "loops")
        build(sketch, default_row(sketch, target), target)
    (record,) = caplog.records
    assert "---- loops ----\nkernel kernel(x: f32[3, 197], y: f32[3]):" in record.getMessage()
