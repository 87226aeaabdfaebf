"""Winograd's algorithm: the same convolution with fewer multiplications, its error bounded."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from programs import PROGRAMS

import seer
from seer.codegen.build import build
from seer.codegen.lower import lower
from seer.errors import ScheduleError
from seer.graph.graph import Graph
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.graph.reference import run
from seer.ir.loops import For, LoopKind, Scope, walk_stmts
from seer.ir.sketch import Sketch
from seer.runtime.records import MeasureRecord, Records
from seer.runtime.target import Target
from seer.runtime.trial import Bench
from seer.search.defaults import default_row
from seer.search.legal import legal
from seer.search.rules import generate_sketches
from seer.search.space import space_of
from seer.search.task import SearchTask, tasks_of
from seer.search.winograd import STRIDES, TILES, scheme, winograd

TARGET = Target.parse("llvm -threads=2")


class Shape(NamedTuple):
    """A convolution, what is added to it, and the tiles that save multiplications."""

    n: int
    ci: int
    co: int
    h: int
    w: int
    padding: int | tuple[int, ...] = 1
    residual: bool = False
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    tiles: tuple[int, ...] = (2, 4)


SHAPES = [
    Shape(1, 16, 32, 14, 14),
    Shape(2, 5, 7, 13, 7, residual=True),
    Shape(1, 3, 33, 9, 11, padding=0),
    Shape(1, 1, 1, 6, 6, padding=(2, 0, 1, 3)),
    Shape(3, 8, 16, 4, 5, residual=True),
    Shape(1, 5, 16, 11, 11, kernel=(5, 5), padding=2, tiles=(2,)),
    Shape(1, 5, 7, 17, 15, kernel=(5, 5), padding=2, stride=2, tiles=(2,)),
    Shape(2, 3, 16, 12, 19, kernel=(5, 5), padding=0, stride=2, residual=True, tiles=(2,)),
    Shape(1, 5, 16, 12, 10, kernel=(1, 3), padding=0, tiles=(4,)),
    Shape(1, 4, 16, 12, 9, kernel=(3, 5), padding=1, tiles=(2,)),
]


def conv_graph(shape: Shape, seed: int = 0) -> Graph:
    n, ci, co, h, w, padding, residual, kernel, stride, _ = shape
    rng = np.random.default_rng(seed)
    g = Graph("conv")
    x = g.input((n, ci, h, w), name="x")
    weights = np.asarray(rng.standard_normal((co, ci, *kernel)) / np.sqrt(9 * ci), np.float32)
    y = x.conv2d(weights, np.asarray(rng.standard_normal(co), np.float32), padding=padding, stride=stride)
    if residual:
        y = y + g.input(y.shape, name="r")
    g.output(y.relu())
    return g


def conv_task(shape: Shape, exact: bool = False) -> SearchTask:
    tasks = tasks_of(partition(optimize(conv_graph(shape))), TARGET, exact)
    return max(tasks, key=lambda t: t.dag.flop_count)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("taps", [1, 2, 3, 5])
@pytest.mark.parametrize("m", TILES)
def test_matrices_compute_a_correlation(m: int, taps: int, stride: int) -> None:
    found = scheme(m, taps, stride)
    if found is None:
        assert (m, taps, stride) in {(4, 2, 1), (4, 3, 2), (4, 5, 1), (4, 5, 2)}
        return
    at, g, bt = (np.array(x, dtype=object) for x in found[:3])
    rng = np.random.default_rng(0)
    d = np.array([Fraction(int(v)) for v in rng.integers(-9, 10, (m - 1) * stride + taps)], dtype=object)
    w = np.array([Fraction(int(v)) for v in rng.integers(-9, 10, taps)], dtype=object)
    y = at.dot(g.dot(w) * bt.dot(d))
    assert list(y) == [sum(w[j] * d[i * stride + j] for j in range(taps)) for i in range(m)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_sketch_is_right(shape: Shape) -> None:
    task = conv_task(shape)
    sketches = [s for s in task.sketches if s.algorithm]
    most = max(m for m in shape.tiles if m < min(task.dag.output.shape[1:3]))
    names = {f"winograd{m}" for m in shape.tiles} | {f"winograd{most}-blocks"}
    assert {s.algorithm for s in sketches} == names
    bench = Bench(build(task.sketches[0], np.zeros(0, np.int64), TARGET), seed=1)
    rng = np.random.default_rng(2)
    for s in sketches:
        rows = space_of(s, TARGET).sample(40, rng)
        rows = rows[legal(s, rows, TARGET)][:1]
        assert len(rows)
        for row in (default_row(s, TARGET), *rows):
            bench.measure(build(s, row, TARGET), 2, 0.0)


def blocks_of(shape: Shape, target: Target = TARGET) -> Sketch | None:
    tasks = tasks_of(partition(optimize(conv_graph(shape))), target)
    dag = max(tasks, key=lambda t: t.dag.flop_count).dag
    return next((s for s in generate_sketches(dag, target) if any(n.consumer for n in s.nests)), None)


def test_what_lies_between_the_stages_of_a_block_is_a_threads_own() -> None:
    """One parallel loop, in which inputs are transformed, multiplied and the result is computed."""
    sketch = blocks_of(SHAPES[0])
    assert sketch is not None
    program = lower(sketch, default_row(sketch, TARGET), TARGET).program
    kept = {b.name.rpartition("_")[0] for b in program.buffers if b.scope is not Scope.REGISTER}
    assert {b.scope for b in program.buffers} == {Scope.THREAD, Scope.REGISTER}
    assert {"conv2d_nhwc_input", "conv2d_nhwc_product_tile"} <= kept
    loops = [s for s in walk_stmts(program.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]
    assert len(loops) == 1


def test_a_default_block_lies_in_the_cache_beside_the_weights() -> None:
    target = replace(TARGET, l2_bytes=1 << 20)
    sketch = blocks_of(Shape(1, 64, 64, 56, 56), target)
    assert sketch is not None
    program = lower(sketch, default_row(sketch, target), target).program
    own = sum(b.size_bytes for b in program.buffers if b.scope is Scope.THREAD)
    weights = next(b.size_bytes for b in program.params if b.name == "in1")
    assert weights == 36 * 64 * 64 * 4
    assert own + weights <= target.l2_bytes


def test_blocks_are_for_weights_that_fit_a_cores_cache() -> None:
    assert blocks_of(SHAPES[0]) is not None
    assert blocks_of(SHAPES[0], replace(TARGET, l2_bytes=36 * 16 * 32 * 4 - 1)) is None


def test_a_block_holds_whole_steps_of_its_consumer() -> None:
    sketch = blocks_of(SHAPES[0])
    assert sketch is not None
    row = default_row(sketch, TARGET)
    row[[sketch.column(f"conv2d_nhwc_product.c.{k}") for k in (1, 2)]] = 1, TARGET.lanes("float32") // 2
    assert not legal(sketch, row[None], TARGET).any()
    with pytest.raises(ScheduleError, match="cut inside"):
        lower(sketch, row, TARGET)


@pytest.mark.parametrize(("m", "kernel", "stride"), [(2, 3, 1), (4, 3, 1), (2, 5, 1), (2, 5, 2)], ids=str)
def test_error_against_float64(m: int, kernel: int, stride: int) -> None:
    """Relative error at most 1e-4, and no more than a few times that of the direct sum."""
    shape = Shape(1, 256, 16, 16, 16, kernel // 2, kernel=(kernel, kernel), stride=stride)
    g = conv_graph(shape)
    task = conv_task(shape)
    sketch = next(s for s in task.sketches if s.algorithm == f"winograd{m}")
    records = Records()
    values = sketch.values(default_row(sketch, TARGET))
    records.append(
        [MeasureRecord(task.key, TARGET.key, sketch.key, values, 1e-9, stage="final")],
    )
    x = np.random.default_rng(3).standard_normal((1, 256, 16, 16)).astype(np.float32)
    out = seer.compile(g, TARGET, records)(x)
    direct = seer.compile(g, TARGET, records, exact=True)(x)
    assert not np.array_equal(out, direct)
    exact = _float64(g, x, padding=kernel // 2, stride=stride)
    error, direct_error = (np.linalg.norm(a - exact) / np.linalg.norm(exact) for a in (out, direct))
    assert error <= 1e-5
    assert np.abs(out - exact).max() <= 1e-4 * np.abs(exact).max()
    assert direct_error <= 2e-6


def _float64(g: Graph, x: np.ndarray, **options: int) -> np.ndarray:
    wide = Graph("wide")
    conv = next(v.node for v in g.values() if v.node.op == "conv2d")
    constants = [np.asarray(v.node.attrs["value"], np.float64) for v in conv.inputs[1:]]
    v = wide.input(x.shape, "float64", name="x")
    wide.output(v.conv2d(*constants, **options).relu())
    return np.asarray(run(wide, {"x": x.astype(np.float64)})[0])


def test_exact_leaves_it_out() -> None:
    shape = SHAPES[0]
    assert all(not s.algorithm for s in conv_task(shape, exact=True).sketches)
    assert any(s.algorithm for s in conv_task(shape).sketches)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"kernel": 5, "stride": 3},
        {"stride": (1, 2)},
        {"dilation": 2},
        {"groups": 2},
        {"kernel": 7},
        {"kernel": 1},
        {"kernel": 1, "stride": 2},
        {"size": 3},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_it_is_only_for_what_it_pays_for(options: dict) -> None:
    kernel, size = options.pop("kernel", 3), options.pop("size", 12)
    dtype, groups = options.pop("dtype", "float32"), options.get("groups", 1)
    g = Graph("conv")
    x = g.input((1, 8, size, size), dtype, name="x")
    w = np.random.default_rng(0).standard_normal((8, 8 // groups, kernel, kernel)).astype(dtype)
    g.output(x.conv2d(w, **options))
    tasks = tasks_of(partition(optimize(g)), TARGET)
    assert all(not winograd(t.dag) for t in tasks)


def test_weights_that_are_an_input_are_computed_directly() -> None:
    g = Graph("conv")
    g.output(g.input((1, 8, 12, 12), name="x").conv2d(g.input((8, 8, 3, 3), name="w"), padding=1))
    for t in tasks_of(partition(optimize(g)), TARGET):
        assert all(not s.algorithm for s in t.sketches)


def test_trip_counts_with_choices_become_one_of_them() -> None:
    target = Target.parse("llvm -cpu=skylake-avx512 -threads=2")
    sketch = next(s for s in generate_sketches(PROGRAMS["conv"], target) if "blocks" in s.key)
    fixed = [c for c, p in enumerate(sketch.params) if p.kind == "tile" and p.choices]
    assert fixed
    rows = np.random.default_rng(0).integers(1, 40, (16, len(sketch.params)))
    for c, p in enumerate(sketch.params):
        if p.kind != "tile":
            rows[:, c] = p.choices[0]
    for c in fixed:
        assert set(sketch.canonical(rows)[:, c].tolist()) <= set(sketch.params[c].choices)
