"""Lowering: tiles of any size, for any width of vectors, compute what the tensor expressions say.

tests/test_kernels.py draws rows as the search does; here tile sizes are arbitrary, so most tiles are
ragged, and the interpreter finds reads of what was never written and races of parallel loops.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from programs import (
    batch_matmul,
    column_max,
    conv,
    decay,
    depthwise,
    gather,
    gelu,
    layer_norm,
    matmul,
    max_pool,
    random_inputs,
    reshape,
    row_sum,
    softmax,
    total,
    transpose,
)

from seer.codegen.lower import LoweredKernel, lower
from seer.codegen.lower.prefetch import AHEAD_BYTES
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Expr, all_of, call, select
from seer.ir.interp import eval_dag, evaluate, run_program
from seer.ir.loops import For, If, LoopKind, Prefetch, Scope, Seq, Stmt, walk_stmts
from seer.ir.printer import print_program
from seer.ir.sketch import PREFETCHED, Sketch
from seer.ir.tensor import SUM, compute, placeholder, reduce_axis
from seer.ir.verify import verify_program
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches

# 4, 8 and 16 lanes of float32.
TARGETS = [Target.parse(f"llvm -cpu={c} -threads=2") for c in ("x86-64", "haswell", "skylake-avx512")]
TARGETS.append(replace(TARGETS[2], l2_bytes=16))  # every weight streams


def dilated(h: int, c: int) -> ComputeDAG:
    """A padded 3-tap convolution over rows, dilated by 2, then squared: reads with gaps between them."""
    x, f = placeholder((h, c), name="x"), placeholder((3, c), name="f", constant=True)
    padded = compute((h + 4, c), lambda i, j: select(all_of(i >= 2, i < h + 2), x[i - 2, j], 0.0), "padded")
    r = reduce_axis(3, "r")
    y = compute((h, c), lambda i, j: padded[i + r.var * 2, j] * f[r.var, j], "y", reduce=[r], reducer=SUM)
    return ComputeDAG(compute((h, c), lambda i, j: y[i, j] * y[i, j], "out"), [x, f])


def differences(h: int, c: int) -> ComputeDAG:
    """A producer read at three places, the first of them last."""
    x = placeholder((h + 3, c), name="x")
    e = compute((h + 3, c), lambda i, j: call("exp", x[i, j]), "e")
    return ComputeDAG(compute((h, c), lambda i, j: e[i + 1, j] * e[i + 3, j] - e[i, j], "y"), [x])


def normalised_matmul(m: int, n: int, k: int) -> ComputeDAG:
    """Rows divided by their sum of squares, then a matmul: a reduction before a tiled reduction."""
    a, b = placeholder((m, k), name="a"), placeholder((k, n), name="b")
    r, s = reduce_axis(k, "r"), reduce_axis(k, "s")
    size = compute((m,), lambda i: a[i, r.var] * a[i, r.var], "size", reduce=[r], reducer=SUM)
    unit = compute((m, k), lambda i, j: a[i, j] / call("sqrt", size[i] + 1.0), "unit")
    y = compute((m, n), lambda i, j: unit[i, s.var] * b[s.var, j], "y", reduce=[s], reducer=SUM)
    return ComputeDAG(y, [a, b])


def attention(m: int, heads: int, k: int, *, transposed: bool) -> ComputeDAG:
    """Scores (q times k transposed) or a weighted sum, with the heads where projections leave them."""
    q, v = placeholder((1, m, heads, k), name="q"), placeholder((1, m, heads, k), name="v")
    s, r = placeholder((1, heads, m, m), name="s"), reduce_axis(k if transposed else m, "k")
    if transposed:
        a = compute((1, heads, m, k), lambda b, h, i, c: q[b, i, h, c], "a")
        t = compute((1, heads, k, m), lambda b, h, c, j: v[b, j, h, c], "t")
    else:
        a, t = s, compute((1, heads, m, k), lambda b, h, j, c: v[b, j, h, c], "t")
    y = compute(
        (1, heads, m, m if transposed else k),
        lambda b, h, i, j: a[0, h, i, r.var] * t[0, h, r.var, j],
        "y",
        reduce=[r],
        reducer=SUM,
        tag="batch_matmul",
    )
    return ComputeDAG(y, [q, v] if transposed else [s, v])


DAGS: dict[str, ComputeDAG] = {
    "matmul": matmul(7, 19, 5),
    "matmul_variable": matmul(5, 18, 3, constant=False),
    "matmul_column": matmul(11, 1, 3),
    "matmul_row": matmul(1, 23, 1),
    "matmul_empty_sum": matmul(3, 5, 0),
    "matmul_empty": matmul(0, 5, 4),
    "normalised_matmul": normalised_matmul(3, 17, 5),
    "batch_matmul": batch_matmul(2, 3, 5, 3),
    "attention_scores": attention(19, 2, 5, transposed=True),
    "attention_sum": attention(5, 3, 18, transposed=False),
    "conv": conv(3, 3, 2, 5, 3),
    "conv_stride": conv(5, 3, 1, 3, 3, stride=2),
    "depthwise": depthwise(3, 3, 7),
    "dilated": dilated(7, 5),
    "differences": differences(7, 5),
    "max_pool": max_pool(5, 4, 3),
    "softmax": softmax(3, 19),
    "softmax_one": softmax(1, 1),
    "layer_norm": layer_norm(2, 23),
    "row_sum": row_sum(3, 67),
    "column_max": column_max(5, 13),
    "total": total(3, 29),
    "decay": decay(5, 7),
    "gelu": gelu(3, 23),
    "gelu_scalar": gelu(),
    "gelu_empty": gelu(3, 0),
    "transpose": transpose(7, 5),
    "reshape": reshape(2, 3, 5),
    "gather": gather(5, 3, 7),
}


def any_rows(sketch: Sketch, count: int, rng: np.random.Generator) -> np.ndarray:
    """Canonical rows whose tiles have any size, whether or not the search would draw them."""
    rows = np.ones((count, len(sketch.params)), dtype=np.int64)
    for c, p in enumerate(sketch.params):
        if p.kind == "tile":
            tiled = rng.random(count) < 0.7
            rows[:, c] = np.where(tiled, rng.integers(1, min(p.extent, 24) + 3, count), 1)
        else:
            rows[:, c] = rng.choice(p.choices, count)
    return sketch.canonical(rows)


def run_lowered(lowered: LoweredKernel, inputs: dict[str, np.ndarray], seed: int) -> np.ndarray:
    *ins, last = lowered.args
    arrays = {a.name: inputs[a.name] if a.pack is None else a.pack.apply(inputs[a.name]) for a in ins}
    out = np.full(last.shape, np.nan, last.dtype)
    run_program(lowered.program, {**arrays, last.name: out}, seed)
    return out


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("name", DAGS)
def test_any_tile_computes_the_same(name: str, target: Target) -> None:
    dag = DAGS[name]
    inputs = random_inputs(dag, seed=5)
    expected = eval_dag(dag, inputs)
    rng = np.random.default_rng(zlib.crc32(f"{name} {target.cpu}".encode()))
    for sketch in generate_sketches(dag, target):
        for row in (default_row(sketch, target), *any_rows(sketch, 2, rng)):
            lowered = lower(sketch, row, target)
            what = f"{sketch.key} {sketch.values(row)}"
            verify_program(lowered.program)
            out = run_lowered(lowered, inputs, seed=int(row.sum()))
            np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5, err_msg=what)


# -- structure -------------------------------------------------------------------------------------

AVX2 = TARGETS[1]


def tiled(dag: ComputeDAG, target: Target = AVX2, **values: int) -> LoweredKernel:
    """The register-tiled sketch with every parameter at its smallest but those given."""
    sketch = generate_sketches(dag, target)[1]
    row = {p.name: 1 if p.kind == "tile" else p.choices[0] for p in sketch.params}
    changed = {k.replace("_", "."): v for k, v in values.items()}
    return lower(sketch, sketch.row({**row, **changed}), target)


def count(lowered: LoweredKernel, kind: type | LoopKind) -> int:
    stmts = walk_stmts(lowered.program.body)
    if isinstance(kind, LoopKind):
        return sum(isinstance(s, For) and s.kind is kind for s in stmts)
    return sum(isinstance(s, kind) for s in stmts)


def test_tiles_that_divide_an_extent_need_no_second_version() -> None:
    even = tiled(matmul(12, 32, 4), c_i0_3=4, c_i1_3=16)
    assert count(even, If) == 0
    registers = [b.shape for b in even.program.buffers if b.scope is Scope.REGISTER]
    assert registers == [(4, 2, 8)]


def test_a_ragged_tile_has_a_version_for_each_end() -> None:
    ragged = tiled(matmul(13, 37, 4), c_i0_3=4, c_i1_3=16)
    registers = sorted(b.shape for b in ragged.program.buffers if b.scope is Scope.REGISTER)
    # 4 or 1 rows; two vectors, or the 5 columns that are left.
    assert registers == sorted([(4, 2, 8), (4, 5), (1, 2, 8), (1, 5)])
    assert count(ragged, If) == 3


def test_parallel_loops_fuse_and_stand_at_the_top() -> None:
    lowered = tiled(matmul(12, 32, 4), c_i0_3=4, c_i1_3=8, c_parallel=1)
    assert count(lowered, LoopKind.PARALLEL) == 1
    serial = tiled(matmul(12, 32, 4), c_i0_3=4, c_i1_3=8, c_parallel=0)
    assert count(serial, LoopKind.PARALLEL) == 0


def test_packing_a_weight_changes_the_argument_alone() -> None:
    dag = matmul(12, 32, 4)
    plain, packed = tiled(dag, c_i1_3=8, c_pack_b=0), tiled(dag, c_i1_3=8, c_pack_b=1)
    assert [a.pack is None for a in plain.args] == [True] * 4
    assert [a.pack is None for a in packed.args] == [True, False, True, True]
    assert packed.args[1].size_bytes == plain.args[1].size_bytes == 4 * 32 * 4
    inputs = random_inputs(dag)
    np.testing.assert_array_equal(run_lowered(plain, inputs, 0), run_lowered(packed, inputs, 0))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 12])
def test_register_tiles_ask_for_the_next_panel_between_them(rows: int) -> None:
    """Every line of the next panel is asked for, by the tiles of this one, each for its share."""
    dag, streams = matmul(12, 64, 5), TARGETS[3]
    hinted = tiled(dag, streams, c_i0_3=rows, c_i0_2=12, c_i1_3=32, c_k_1=5, c_pack_b=PREFETCHED)
    plain = tiled(dag, streams, c_i0_3=rows, c_i0_2=12, c_i1_3=32, c_k_1=5, c_pack_b=1)
    assert count(plain, Prefetch) == 0
    inputs = random_inputs(dag)
    np.testing.assert_array_equal(run_lowered(plain, inputs, 0), run_lowered(hinted, inputs, 0))
    panel, elements = 5 * 32, hints_of(hinted)
    if rows == 12:  # one tile reads the panel: there is no later one to ask for the next
        assert elements == [AHEAD_BYTES // 4 + 16 * k for k in range(2 * panel // 16)]
        return
    share = -(-panel // (12 // rows))
    first, second = elements[: len(elements) // 2], elements[len(elements) // 2 :]
    assert {e // 16 for e in first} >= set(range(panel // 16, 2 * panel // 16))
    assert [e - panel for e in second] == first
    tiles = np.split(np.array(first), 12 // rows)
    assert all(
        panel + share * k <= t.min() and t.max() < panel + share * (k + 1) + 16 for k, t in enumerate(tiles)
    )


def test_a_narrow_tile_asks_for_as_much_as_it_reads() -> None:
    dag, streams = matmul(12, 37, 5), TARGETS[3]
    hinted = tiled(dag, streams, c_i0_3=12, c_i1_3=32, c_k_1=5, c_pack_b=PREFETCHED)
    # 32 floats are two lines; the 5 columns that are left are in one.
    assert len(hints_of(hinted)) == 5 * 2 + 5


def hints_of(lowered: LoweredKernel) -> list[int]:
    """The elements that hints are for, in the order of execution."""
    found: list[int] = []

    def value(e: Expr, env: dict[str, int]) -> int:
        return int(evaluate(e, env, lambda *_: 0))

    def run(s: Stmt, env: dict[str, int]) -> None:
        match s:
            case For(var, extent, _, body):
                for n in range(value(extent, env)):
                    run(body, {**env, var: n})
            case If(cond, then, orelse):
                run((then if value(cond, env) else orelse) or Seq(()), env)
            case Seq(stmts):
                for x in stmts:
                    run(x, env)
            case Prefetch(buffer, indices, ahead):
                at = np.ravel_multi_index([value(i, env) for i in indices], buffer.shape)
                found.append(int(at) + value(ahead, env))

    run(lowered.program.body, {})
    return found


def test_only_large_weights_may_be_asked_for_ahead() -> None:
    def choices(size: int, *, constant: bool = True) -> set[tuple[int, ...]]:
        dag = matmul(64, size, size, constant=constant)
        return {p.choices for s in generate_sketches(dag, AVX2) for p in s.params if ".pack.b" in p.name}

    assert choices(64) == choices(1024, constant=False) == {(0, 1)}
    assert choices(1024) == {(0, 1, PREFETCHED)}


def test_what_lies_across_the_vectors_is_copied_first() -> None:
    """And the copy runs along the source: its lanes come from the same few cache lines again and again."""
    for transposed in (True, False):
        dag = attention(48, 2, 8, transposed=transposed)
        sketch = generate_sketches(dag, AVX2)[1]
        row = default_row(sketch, AVX2)
        assert sketch.values(row)["y.pack.t"] == transposed
    dag = attention(48, 2, 8, transposed=True)
    sketch = generate_sketches(dag, AVX2)[1]
    text = print_program(lower(sketch, default_row(sketch, AVX2), AVX2).program).splitlines()
    copy = next(k for k, line in enumerate(text) if "t_packed" in line and "= v[" in line)
    assert "vectorized" in text[copy - 1]
    assert text[copy - 2].strip().startswith("for k")
    source = text[copy].split("= v[")[1]
    assert source.rstrip("]").split(", ")[-1] == text[copy - 2].split()[1]


def test_a_packed_weight_is_padded_to_whole_tiles() -> None:
    packed = tiled(matmul(12, 37, 5), c_i1_3=8, c_pack_b=1)
    pack = packed.args[1].pack
    assert pack is not None
    assert packed.args[1].size_bytes == 5 * 40 * 4
    assert sorted(n for n in pack.shape if n > 1) == [5, 5, 8]


def test_rows_that_mean_the_same_lower_to_the_same_text() -> None:
    """Trip counts beyond what an axis can use are cut."""
    for name in ("matmul", "conv", "softmax"):
        for sketch in generate_sketches(DAGS[name], AVX2):
            (row,) = any_rows(sketch, 1, np.random.default_rng(0))
            for columns in sketch.tile_axes.values():
                row[columns[-1]] = sketch.params[columns[0]].extent
            larger = row.copy()
            for columns in sketch.tile_axes.values():
                larger[list(columns)] += 5
            text = print_program(lower(sketch, row, AVX2).program)
            assert print_program(lower(sketch, larger, AVX2).program) == text
