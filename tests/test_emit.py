"""The LLVM emitter on hand-written loop programs, compared with the interpreter, and its inner loops."""

from __future__ import annotations

import re
import threading

import llvmlite.binding as llvm
import numpy as np
import pytest
from programs import matmul

from seer.codegen.artifact import ArgSpec, Artifact
from seer.codegen.build import assembly, compile_module
from seer.codegen.llvm import emit, plain_loops, scratch_layout
from seer.codegen.llvm.emit import APART_BYTES
from seer.codegen.lower import lower
from seer.errors import BuildError
from seer.ir.expr import (
    Cast,
    Const,
    Expr,
    ExprLike,
    Load,
    Unary,
    Var,
    all_of,
    as_expr,
    call,
    cast,
    maximum,
    minimum,
    select,
)
from seer.ir.interp import run_program
from seer.ir.loops import Buffer, For, If, Let, LoopKind, LoopProgram, Scope, Stmt, Store, seq
from seer.ir.sketch import PREFETCHED
from seer.ir.verify import verify_program
from seer.runtime.kernel import run_artifact
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

TARGET = Target.parse("llvm -threads=2")


def buffer(name: str, *shape: int, dtype: str = "float32", scope: Scope = Scope.ARG) -> Buffer:
    return Buffer(name, shape, dtype, scope)


def var(name: str) -> Expr:
    return Var(name)


def at(b: Buffer, *indices: ExprLike) -> Load:
    return Load(b, tuple(as_expr(i) for i in indices))


def put(b: Buffer, indices: tuple[ExprLike, ...], value: ExprLike) -> Store:
    return Store(b, tuple(as_expr(i) for i in indices), as_expr(value, b.dtype))


def loop(name: str, extent: ExprLike, body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(name, as_expr(extent), kind, body)


def vectorized(name: str, lanes: int, body: Stmt) -> For:
    return loop(name, lanes, body, LoopKind.VECTORIZED)


def parallel(name: str, extent: int, body: Stmt) -> For:
    return loop(name, extent, body, LoopKind.PARALLEL)


def compiled(program: LoopProgram) -> Artifact:
    layout = scratch_layout(program)
    args = tuple(ArgSpec(b.name, b.shape, b.dtype) for b in program.params)
    code = compile_module(emit(program, TARGET), TARGET)
    return Artifact(program.name, str(TARGET), args, code, layout.scratch_bytes, layout.thread_scratch_bytes)


def check(
    params: list[Buffer], buffers: list[Buffer], body: Stmt, *inputs: np.ndarray, threads: int = 1
) -> np.ndarray:
    """Run a program as machine code and in the interpreter, which must agree on every bit."""
    program = LoopProgram("kernel", tuple(params), tuple(buffers), body)
    verify_program(program)
    *specs, last = params
    expected = np.zeros(last.shape, "bool" if last.dtype == "bool" else last.dtype)
    arrays = dict(zip((b.name for b in specs), inputs, strict=True))
    run_program(program, {**arrays, last.name: expected})
    found = run_artifact(compiled(program), list(inputs), threads)
    np.testing.assert_array_equal(found, expected)
    return found


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, Y = buffer("x", 24), buffer("y", 24)
N = buffer("n", 24, dtype="int64")
R = buffer("r", 2, 4, scope=Scope.REGISTER)


# -- register slots ----------------------------------------------------------------------------


def test_register_slots_are_carried_round_loops_and_branches() -> None:
    slot = (var("u"), var("v"))

    def tile(body: Expr) -> Stmt:
        return loop("u", 2, vectorized("v", 4, Store(R, slot, body)), LoopKind.UNROLLED)

    acc = Load(R, slot)
    x = at(X, var("i") * 8 + var("u") * 4 + var("v"))
    step = If(var("j") < var("i"), tile(acc + x), tile(acc * 0.5))
    nest = loop("i", 3, loop("j", var("i") + 1, step))
    out = loop(
        "u", 2, vectorized("v", 4, put(Y, (var("u") * 4 + var("v"),), Load(R, slot))), LoopKind.UNROLLED
    )
    rest = loop("k", 16, put(Y, (var("k") + 8,), 0.0))
    check([X, Y], [R], seq(tile(as_expr(1.0)), nest, out, rest), normal(24))


def test_a_loop_that_may_run_no_times_keeps_register_slots() -> None:
    one = buffer("one", 1, scope=Scope.REGISTER)
    add = put(one, (0,), at(one, 0) + at(X, var("j")))
    body = seq(put(one, (0,), at(X, var("i"))), loop("j", var("i") % 3, add), put(Y, (var("i"),), at(one, 0)))
    check([X, Y], [one], loop("i", 24, body), normal(24))


def test_parts_of_register_slots_are_read() -> None:
    whole, half = buffer("w", 1, 4, scope=Scope.REGISTER), buffer("h", 2, scope=Scope.REGISTER)
    v = var("v")
    body = seq(
        vectorized("v", 4, put(whole, (0, v), at(X, v))),
        vectorized("a", 2, put(half, (var("a"),), at(whole, 0, var("a")) * at(whole, 0, var("a") + 2))),
        loop("k", 24, put(Y, (var("k"),), at(half, 0) + at(half, 1) + at(whole, 0, 3))),
    )
    check([X, Y], [whole, half], body, normal(24))


def test_a_slot_that_is_not_known_is_an_error() -> None:
    body = loop("i", 2, put(R, (var("i"), 0), 1.0))
    with pytest.raises(BuildError, match="not known when the code is made"):
        emit(LoopProgram("kernel", (Y,), (R,), body), TARGET)


# -- loads and stores --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        var("v") + 3,
        var("v") * 2 + 1,
        Const(15, "int64") - var("v"),
        var("v") // 3 + var("v") % 5,
        minimum(var("v") * 3, 20),
        Const(7, "int64"),
        at(N, var("v")) % 24,
    ],
    ids=["contiguous", "strided", "reversed", "divided", "clamped", "broadcast", "gathered"],
)
def test_lanes_are_loaded_and_stored_in_any_order(index: Expr) -> None:
    numbers = np.random.default_rng(1).integers(-99, 99, 24)
    v, w = var("v"), var("w")
    load = seq(
        vectorized("v", 8, put(Y, (v,), at(X, index) * 2.0)), loop("k", 16, put(Y, (var("k") + 8,), 0.0))
    )
    check([X, N, Y], [], load, normal(24), numbers)
    first = loop("k", 24, put(Y, (var("k"),), 0.0))
    if index != Const(7, "int64"):  # all lanes in one place is not a program
        store = vectorized("v", 8, Store(Y, (index,), at(X, v)))
        check([X, N, Y], [], seq(first, store), normal(24), numbers)
    # The lanes of one statement happen before the next statement.
    both = seq(put(Y, (w,), at(X, w)), put(Y, (w + 8,), at(Y, Const(7, "int64") - w)))
    check([X, N, Y], [], seq(first, vectorized("w", 8, both)), normal(24), numbers)


def test_loads_behind_a_condition_happen_only_where_it_holds() -> None:
    small = buffer("s", 5)
    i = var("i") * 8 + var("v") - 9
    inside = all_of(Const(0, "int64") <= i, i < 5)
    body = loop(
        "i", 3, vectorized("v", 8, put(Y, (var("i") * 8 + var("v"),), select(inside, at(small, i), -1.0)))
    )
    out = check([small, Y], [], body, normal(5))
    np.testing.assert_array_equal(out[9:14], normal(5))
    text = emit(LoopProgram("kernel", (small, Y), (), body), TARGET)
    assert "llvm.masked.load.v8f32" in text
    assert not re.search(r"load <8 x float>, ptr .*arg0", text)


def test_a_scalar_condition_reads_a_place_that_exists() -> None:
    small = buffer("s", 5)
    i = var("i")
    body = loop("i", 24, put(Y, (i,), select(i < 5, at(small, i), select(i < 20, at(small, i % 5), 3.0))))
    check([small, Y], [], body, normal(5))


def test_stores_are_seen_by_later_loads() -> None:
    shared = buffer("t", 8, scope=Scope.SHARED)
    fill = put(shared, (0,), 5.0)
    parts: list[Stmt] = [loop("k", 24, put(Y, (var("k"),), 0.0)), fill, put(Y, (0,), at(shared, 0))]
    for k in range(1, 5):
        # Parallel loops and serial loops in turn change what was loaded before them.
        step = put(shared, (var(f"p{k}"),), at(X, var(f"p{k}")) * float(k))
        parts += [(parallel if k % 2 else loop)(f"p{k}", 8, step), put(Y, (k,), at(shared, 0))]
    out = check([X, Y], [shared], seq(*parts), normal(24))
    np.testing.assert_array_equal(out[1:5], normal(24)[0] * np.arange(1, 5, dtype=np.float32))


def test_buffers_without_elements() -> None:
    nothing, out = buffer("x", 0), buffer("y", 3)
    body = loop("i", 3, put(out, (var("i"),), select(var("i") < 0, at(nothing, var("i")), 2.0)))
    check([nothing, out], [], body, normal(0))


# -- parallel loops ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("extent", [1, 2, 7, 100])
def test_every_iteration_of_a_parallel_loop_runs_once(threads: int, extent: int) -> None:
    x, y = buffer("x", extent, 3), buffer("y", extent, 3)
    mine = buffer("m", 3, scope=Scope.THREAD)
    p, j = var("p"), var("j")
    body = seq(
        loop("j", 3, put(mine, (j,), at(x, p, j) + 1.0)),
        loop("k", 3, put(y, (p, var("k")), at(mine, Const(2, "int64") - var("k")))),
    )
    check([x, y], [mine], parallel("p", extent, body), normal(extent, 3), threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_lets_above_a_parallel_loop_reach_it(threads: int) -> None:
    p, a, b = var("p"), var("a"), var("b")
    body = Let("a", as_expr(3), Let("b", at(N, 5), parallel("p", 20, put(Y, (p + a,), at(X, p + b)))))
    rest = seq(loop("k", 3, put(Y, (var("k"),), 0.0)), put(Y, (23,), 0.0))
    numbers = np.arange(24) - 3
    check([X, N, Y], [], seq(rest, body), normal(24), numbers, threads=threads)


def test_a_parallel_loop_may_be_the_innermost_one() -> None:
    x, y = buffer("x", 50, 3), buffer("y", 50, 3)
    p = var("p")
    body = seq(*(put(y, (p, k), at(x, p, 2 - k)) for k in range(3)))
    check([x, y], [], parallel("p", 50, body), normal(50, 3), threads=2)


def test_scratch_is_aligned_and_does_not_overlap() -> None:
    kinds = [("a", 3, Scope.SHARED), ("b", 5, Scope.THREAD), ("c", 17, Scope.SHARED), ("d", 1, Scope.THREAD)]
    buffers = [buffer(n, size, scope=s) for n, size, s in kinds]
    layout = scratch_layout(LoopProgram("kernel", (Y,), tuple(buffers), seq()))
    assert [layout.shared[buffers[0]], layout.shared[buffers[2]], layout.scratch_bytes] == [0, 64, 192]
    assert [layout.private[buffers[1]], layout.private[buffers[3]]] == [APART_BYTES, APART_BYTES + 64]
    assert layout.thread_scratch_bytes == APART_BYTES + 128
    assert scratch_layout(LoopProgram("kernel", (Y,), tuple(buffers[::2]), seq())).thread_scratch_bytes == 0


# -- numbers -----------------------------------------------------------------------------------

SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5] * 3, np.float32)


@pytest.mark.parametrize("lanes", [1, 8])
def test_extrema_propagate_nan(lanes: int) -> None:
    v = var("v") + var("i") * lanes
    other = at(X, (v * 5 + v // 8) % 24)
    for value, numpy_value in (
        (maximum(at(X, v), other), np.maximum),
        (minimum(other, at(X, v)), np.minimum),
        (maximum(at(X, v), 0.0), lambda x, _: np.maximum(x, 0)),
        (minimum(6.0, at(X, v)), lambda x, _: np.minimum(x, 6)),
    ):
        body = loop("i", 24 // lanes, vectorized("v", lanes, put(Y, (v,), value)))
        program = LoopProgram("kernel", (X, Y), (), body)
        k = np.arange(24)
        expected = numpy_value(SPECIAL, SPECIAL[(k * 5 + k // 8) % 24])
        np.testing.assert_array_equal(run_artifact(compiled(program), [SPECIAL]), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_integers_floor_and_wrap(dtype: str, lanes: int) -> None:
    a, b, out = (buffer(n, 24, dtype=dtype) for n in "abc")
    v = var("v") + var("i") * lanes
    low = np.iinfo(dtype).min
    left = np.array([7, -7, 7, -7, 0, low, low + 1, -low - 1, low, 5, low, 3] * 2, dtype)
    right = np.array([3, 3, -3, -3, 5, 2, 7, -4, -1, 0, 0, -1] * 2, dtype)
    x, y = at(a, v), at(b, v)
    with np.errstate(all="ignore"):
        cases = (
            (x // y, left // right),
            (x % y, left % right),
            (x // 3 + x % 4, left // 3 + left % 4),
            (x // -3 + x % -4, left // -3 + left % -4),
            (x * y + y, left * right + right),
            (maximum(x, y) - minimum(x, y), np.maximum(left, right) - np.minimum(left, right)),
            (call("abs", x), np.abs(left)),
            (Unary("neg", x), -left),
        )
    for value, expected in cases:
        body = loop("i", 24 // lanes, vectorized("v", lanes, Store(out, (v,), value)))
        np.testing.assert_array_equal(check([a, b, out], [], body, left, right), expected)


def test_conversions() -> None:
    out = buffer("out", 24, dtype="int32")
    v = var("v")
    numbers = np.array([0.9, -0.9, 2.5, -2.5, 1e20, -1e20, np.nan, 7.0] * 3, np.float32)
    body = vectorized("v", 24, Store(out, (v,), Cast(at(X, v), "int32")))
    found = run_artifact(compiled(LoopProgram("kernel", (X, out), (), body)), [numbers])
    np.testing.assert_array_equal(found[:8], [0, 0, 2, -2, 2**31 - 1, -(2**31), 0, 7])

    flags = buffer("flags", 24, dtype="bool")
    test = vectorized("v", 24, Store(flags, (v,), Unary("not", at(X, v) < 0.0)))
    signs = check([X, flags], [], test, normal(24))
    back = seq(vectorized("v", 24, put(Y, (v,), cast(at(flags, v), "float32") + 0.5)))
    np.testing.assert_array_equal(check([flags, Y], [], back, signs), signs + np.float32(0.5))


def test_floats_are_strict() -> None:
    x, y = at(X, var("i")), at(X, var("i") + 1)
    body = loop("i", 23, put(Y, (var("i"),), call("fma", x, y, Const(1.0, "float32")) + x * y - x * 0.0))
    text = emit(LoopProgram("kernel", (X, Y), (), body), TARGET)
    assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b", text)
    assert "llvm.fmuladd" not in text
    check([X, Y], [], seq(put(Y, (23,), 0.0), body), normal(24))


# -- the machine code --------------------------------------------------------------------------


def innermost_loops(text: str) -> list[list[str]]:
    """The instructions of each block that jumps back to its own start."""
    out: list[list[str]] = []
    label, block = "", []
    for line in text.splitlines():
        if found := re.match(r"(\.L\w+):", line):
            label, block = found[1], []
        elif re.match(r"\t[a-z]", line):
            block.append(line.strip())
            if label and re.match(rf"\tj\w+\s+{re.escape(label)}$", line):
                out.append(list(block))
    return out


def matmul_code(
    cpu: str, rows: int, columns: int, reduce_tile: int, *, packs_a: bool = False, pack_b: int = 1
) -> tuple[str, str]:
    """LLVM text and assembly of a matmul with the given register tile and a packed B."""
    target = Target.parse(f"llvm -cpu={cpu} -threads=1")
    sketch = generate_sketches(matmul(1024, 1024, 1024, relu=False), target)[1]
    values = sketch.values(default_row(sketch, target))
    values |= {
        "c.i0.3": rows,
        "c.i1.3": columns,
        "c.k.1": reduce_tile,
        "c.pack.a": int(packs_a),
        "c.pack.b": pack_b,
    }
    row = sketch.canonical(sketch.row(values)[None])[0]
    text = emit(lower(sketch, row, target).program, target)
    return text, assembly(text, target)


@pytest.mark.parametrize(
    ("cpu", "rows", "columns"),
    [
        ("skylake-avx512", 8, 48),
        ("skylake-avx512", 12, 32),
        ("skylake-avx512", 14, 32),
        ("skylake-avx512", 6, 64),
        ("haswell", 6, 16),
        ("haswell", 4, 24),
    ],
)
def test_micro_kernel_holds_its_tile_in_registers(cpu: str, rows: int, columns: int) -> None:
    text, asm = matmul_code(cpu, rows, columns, 1024)
    register, lanes = ("zmm", 16) if cpu == "skylake-avx512" else ("ymm", 8)
    loops = [b for b in innermost_loops(asm) if sum("vfmadd" in i for i in b) == rows * columns // lanes]
    assert loops, "no loop has one multiply-add for each vector of the tile"
    for block in loops:
        assert all(f"%{register}" in i for i in block if i.startswith("vfmadd"))
        assert not [i for i in block if "(%rsp)" in i], "an accumulator lives in memory"
        loads = [i for i in block if i.startswith(("vmovups", "vmovaps", "vbroadcastss"))]
        assert len(loads) <= rows + columns // lanes, "something is loaded or copied twice"
        # Nothing else but the counters and the jump: addresses are added up, not multiplied.
        assert len(block) <= rows * columns // lanes + len(loads) + 6
        assert not [i for i in block if i.startswith(("imul", "mul"))]
    assert 'prefer-vector-width"="512"' in text or register == "ymm"
    assert f'"target-cpu"="{cpu}"' in text


def test_a_hint_costs_one_moving_address() -> None:
    _, asm = matmul_code("skylake-avx512", 8, 32, 1024, pack_b=PREFETCHED)
    _, plain = matmul_code("skylake-avx512", 8, 32, 1024)
    (loop,) = [b for b in innermost_loops(asm) if sum("vfmadd" in i for i in b) == 8 * 32 // 16]
    (usual,) = [b for b in innermost_loops(plain) if sum("vfmadd" in i for i in b) == 8 * 32 // 16]
    hints = [i for i in loop if i.startswith("prefetcht0")]
    assert len(hints) == 1  # each of 128 tiles asks for less than a line in a step
    assert len(loop) <= len(usual) + 2, "besides the hint its address is added up"


def test_multiply_adds_read_memory_at_one_register() -> None:
    _, asm = matmul_code("skylake-avx512", 16, 16, 64, packs_a=True)
    folded = [i for b in innermost_loops(asm) for i in b if i.startswith("vfmadd") and "{1to16}" in i]
    assert folded
    # An operand at base + index would be two operations to the processor.
    assert not [i for i in folded if re.search(r"\(%\w+,%\w+", i)]


def test_the_same_program_gives_the_same_code() -> None:
    first, second = (matmul_code("haswell", 6, 16, 8) for _ in range(2))
    assert first == second


def test_llvm_options_are_restored_and_threads_agree() -> None:
    text, expected = matmul_code("haswell", 4, 16, 16)
    target = Target.parse("llvm -cpu=haswell -threads=1")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(assembly(text, target))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [expected] * 3
    with plain_loops(), plain_loops():
        pass
    assert llvm.parse_assembly(text).name == "<string>"


def test_invalid_modules_are_named() -> None:
    with pytest.raises(BuildError, match="no_such_value"):
        compile_module("define void @f() {\n  ret i32 %no_such_value\n}", TARGET)
