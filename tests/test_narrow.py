"""float16 and bfloat16 as storage: conversions bit by bit, and models whose weights are narrow."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from test_kernels import run_lowered
from test_processors import CPUS, OURS, assembly_of, called, runs_here

import seer
from seer import driver
from seer.cli import random_inputs
from seer.codegen.build import build
from seer.dtypes import NARROW, convert, numpy_dtype
from seer.errors import GraphError, UserError
from seer.graph.graph import Graph
from seer.graph.narrow import narrow
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.graph.reference import run
from seer.ir.dag import ComputeDAG
from seer.ir.expr import cast
from seer.ir.interp import eval_dag
from seer.ir.tensor import SUM, compute, converted, placeholder, reduce_axis
from seer.runtime.kernel import run_artifact
from seer.runtime.target import Target
from seer.search.defaults import default_candidate, default_row
from seer.search.rules import generate_sketches
from seer.search.space import space_of

RUNNABLE = ["host", *(c for c in ("x86-64", "haswell") if runs_here(c))]


def conversion(source: str, to: str, x: np.ndarray, cpu: str) -> np.ndarray:
    target = Target.parse(f"llvm -cpu={cpu} -threads=1")
    t = placeholder(x.shape, source, "x")
    dag = ComputeDAG(compute(x.shape, lambda i: cast(t[i], to), "y"), [t])
    return run_artifact(build(*default_candidate(dag, target), target), [x])


def every(dtype: str) -> np.ndarray:
    return np.arange(65536, dtype=np.uint16).view(numpy_dtype(dtype))


# -- exact results, by other means than the code under test ----------------------------------------


def exact_wide(bits: np.ndarray, exponent_bits: int) -> np.ndarray:
    """Sign, exponent and fraction put together in float64; NaN where the number is none."""
    fraction_bits = 15 - exponent_bits
    sign = np.where(bits >> 15, -1.0, 1.0)
    exponent = (bits >> fraction_bits).astype(np.int64) & ((1 << exponent_bits) - 1)
    fraction = (bits & ((1 << fraction_bits) - 1)) / 2.0**fraction_bits
    bias = (1 << (exponent_bits - 1)) - 1
    normal = (1 + fraction) * np.exp2((exponent - bias).astype(float))
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    top = exponent == (1 << exponent_bits) - 1
    return sign * np.where(top, np.where(fraction == 0, np.inf, np.nan), value)


def exact_narrow(x: np.ndarray, exponent_bits: int) -> np.ndarray:
    """The nearest of all finite numbers, the even one of two; infinity from half a step past the last."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        size = np.abs(x.astype(np.float64))
    known = exact_wide(np.arange(32768), exponent_bits)
    finite = known[: int(np.isfinite(known).sum())]
    past = 2 * finite[-1] - finite[-2]  # what infinity stands for
    grid = np.append(finite, past)
    with np.errstate(invalid="ignore"):
        upper = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
        below, above = size - grid[upper - 1], grid[upper] - size
    take_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    out = np.where(take_upper, upper, upper - 1)
    out = np.where(size >= past, len(grid) - 1, out)
    return np.where(np.signbit(x), out + 32768, out).astype(np.uint16)


BITS = {"float16": 5, "bfloat16": 8}


def inputs_of(dtype: str) -> np.ndarray:
    """Every number of the type, the midpoints, their neighbours, and float32 numbers of all sizes."""
    with np.errstate(all="ignore"):
        wide = exact_wide(np.arange(32768), BITS[dtype])
        wide = wide[np.isfinite(wide)].astype(np.float32)
        middle = ((wide[1:].astype(np.float64) + wide[:-1]) / 2).astype(np.float32)
    some = np.arange(0, 1 << 31, 65537, dtype=np.uint32).view(np.float32)
    edges = np.float32([65519.996, 65520, 65535, 3.3895314e38, 3.3961775e38, 3.4e38, 1e-45, np.inf, np.nan])
    beside = [np.nextafter(middle, np.float32(to)) for to in (0, np.inf)]
    x = np.concatenate([wide, middle, *beside, some, edges])
    return np.concatenate([x, -x])


@pytest.mark.parametrize("cpu", RUNNABLE)
@pytest.mark.parametrize("dtype", NARROW)
def test_widening_is_exact(dtype: str, cpu: str) -> None:
    exact = exact_wide(np.arange(65536), BITS[dtype]).astype(np.float32)
    for out in (conversion(dtype, "float32", every(dtype), cpu), convert(every(dtype), dtype, "float32")):
        np.testing.assert_array_equal(out, exact)
        np.testing.assert_array_equal(np.signbit(out), np.arange(65536) >= 32768)


@pytest.mark.parametrize("cpu", ["numpy", *RUNNABLE])
@pytest.mark.parametrize("dtype", NARROW)
def test_narrowing_takes_the_nearest(dtype: str, cpu: str) -> None:
    x = inputs_of(dtype)
    expected = exact_narrow(x, BITS[dtype])
    if cpu == "numpy":
        out = convert(x, "float32", dtype)
    else:
        out = conversion("float32", dtype, x, cpu)
        if dtype == "bfloat16" and Target.parse(f"llvm -cpu={cpu}").has_bfloat16:
            # The instruction of x86 takes denormal numbers for zeros.
            is_tiny = np.abs(x) < 2.0**-126
            expected = np.where(is_tiny, expected & 0x8000, expected).astype(np.uint16)
    is_nan = np.isnan(x)
    np.testing.assert_array_equal(out.view(np.uint16)[~is_nan], expected[~is_nan])
    assert np.isnan(convert(out, dtype, "float32")[is_nan]).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_all_numbers_survive_a_round_trip(dtype: str) -> None:
    given = every(dtype)
    there = conversion(dtype, "float32", given, "haswell" if "haswell" in RUNNABLE else "host")
    back = conversion("float32", dtype, there, "haswell" if "haswell" in RUNNABLE else "host")
    finite = ~np.isnan(there)
    np.testing.assert_array_equal(back.view(np.uint16)[finite], given.view(np.uint16)[finite])
    assert np.isnan(convert(back, dtype, "float32")[~finite]).all()


# -- kernels ---------------------------------------------------------------------------------------


def narrow_matmul(dtype: str, m: int = 13, n: int = 37, k: int = 9) -> ComputeDAG:
    """Both operands and the result are narrow."""
    a, b = placeholder((m, k), dtype, "a"), placeholder((k, n), dtype, "b", constant=True)
    x, w = converted(a, "float32"), converted(b, "float32")
    r = reduce_axis(k, "k")
    c = compute((m, n), lambda i, j: x[i, r.var] * w[r.var, j], "c", reduce=[r], reducer=SUM, tag="matmul")
    return ComputeDAG(compute((m, n), lambda i, j: cast(c[i, j], dtype), "y"), [a, b])


def narrow_inputs(dag: ComputeDAG) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: convert(rng.standard_normal(t.shape), "float64", t.dtype) for t in dag.inputs}


@pytest.mark.parametrize("cpu", ["host", *CPUS])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_sketch(dtype: str, cpu: str) -> None:
    target = Target.parse(f"llvm -cpu={cpu} -threads=2")
    dag = narrow_matmul(dtype)
    inputs = narrow_inputs(dag)
    expected = convert(eval_dag(dag, inputs), dtype, "float32")
    sketches = generate_sketches(dag, target)
    assert any("c.pack.b" in {p.name for p in s.params} for s in sketches)  # weights are packed ahead
    for sketch in sketches:
        assert called(assembly_of(sketch, default_row(sketch, target), target)) <= OURS
        rows = space_of(sketch, target).sample(2, np.random.default_rng(5))
        for row in [default_row(sketch, target), *rows]:
            artifact = build(sketch, row, target)
            if cpu in RUNNABLE:
                out = run_artifact(artifact, [inputs[t.name] for t in dag.inputs], 2)
                wide = convert(out, dtype, "float32")
                np.testing.assert_allclose(wide, expected, rtol=2.0**-7, atol=1e-5)


@pytest.mark.parametrize("dtype", NARROW)
def test_loop_programs(dtype: str) -> None:
    dag = narrow_matmul(dtype, 3, 5, 4)
    inputs = narrow_inputs(dag)
    target = Target.parse("llvm -cpu=haswell -threads=1")
    for sketch in generate_sketches(dag, target):
        out = run_lowered(dag, sketch, default_row(sketch, target), inputs)
        wide = convert(out, dtype, "float32")
        np.testing.assert_allclose(wide, convert(eval_dag(dag, inputs), dtype, "float32"), rtol=2.0**-7)


# -- models ----------------------------------------------------------------------------------------

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {}),
    ("mobilenet", {"image": 32, "width": 0.5}),
    ("bert_base", {"layers": 2, "seq_len": 21, "hidden": 96, "heads": 4, "vocabulary": 500}),
    ("gpt2", {"layers": 2, "sequence": 16, "hidden": 64, "heads": 2, "vocabulary": 99}),
    ("vit_base", {"layers": 1, "image": 48, "hidden": 96, "heads": 4}),
]


def error_of(model: Graph, compiled: Any) -> float:
    feed = random_inputs(model)
    out, expected = compiled(**feed), run(model, feed)[0]
    assert (out.dtype, out.shape) == (expected.dtype, expected.shape)
    return float(np.linalg.norm(out - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("name", "options"), MODELS, ids=lambda v: str(v)[:12])
def test_models_are_near_and_half_as_large(name: str, options: dict[str, Any], dtype: str) -> None:
    model = seer.zoo.get(name, **options)
    compiled = seer.compile(model, dtype=dtype)
    assert 1e-5 < error_of(model, compiled) <= (1e-2 if dtype == "bfloat16" else 2e-3)
    plain = seer.compile(model)
    assert compiled.constant_bytes < 0.56 * plain.constant_bytes
    assert compiled.num_kernels == plain.num_kernels


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("name", "options"), [MODELS[1], MODELS[2]], ids=lambda v: str(v)[:12])
def test_values_between_kernels(
    name: str, options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversions are parts of the kernels: there are no more of them than without."""
    model = seer.zoo.get(name, **options)
    plain = optimize(model)
    stored = narrow(plain, dtype, min_between_bytes=0)
    assert len(partition(stored).subgraphs) == len(partition(plain).subgraphs)
    narrow_outputs = [s.output.dtype for s in partition(stored).subgraphs].count(dtype)
    assert narrow_outputs >= len(partition(stored).subgraphs) - 2
    monkeypatch.setattr(driver, "narrow", functools.partial(narrow, min_between_bytes=0))
    assert error_of(model, seer.compile(model, dtype=dtype)) <= (2e-2 if dtype == "bfloat16" else 3e-3)


def test_large_values_between_kernels_are_narrow() -> None:
    graph = narrow(optimize(seer.zoo.resnet18()), "bfloat16")
    sizes = [int(np.prod(s.output.shape)) for s in partition(graph).subgraphs if s.output.dtype == "bfloat16"]
    assert sizes
    assert min(sizes) >= 1 << 18


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "bert_base", "vit_base", "gpt2"])
def test_full_size_models(name: str, dtype: str) -> None:
    model = seer.zoo.get(name)
    assert error_of(model, seer.compile(model, dtype=dtype)) <= (1e-2 if dtype == "bfloat16" else 2e-3)


@pytest.mark.parametrize("dtype", NARROW)
def test_views_and_outputs_stay_float32(dtype: str) -> None:
    g = Graph()
    table = g.constant(np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32))
    rows = g.input((3,), "int64", name="rows")
    picked = table.embedding(rows)
    g.output(picked.reshape((1, 96)), picked + 1.0, table.transpose())
    feed = {"rows": np.array([0, 7, 63])}
    for out, expected in zip(seer.compile(g, dtype=dtype)(**feed), run(g, feed), strict=True):
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, expected, rtol=2.0**-8, atol=2.0**-7)


@pytest.mark.parametrize("dtype", NARROW)
def test_tuning_and_records(dtype: str) -> None:
    model = seer.zoo.mlp(hidden=(64,), features=100)
    result = seer.tune(model, trials=24, seed=0, progress=False, dtype=dtype)
    assert not result.errors
    keys = {s.dag.workload_key for s in partition(driver.prepare(model, dtype)).subgraphs}
    assert all(result.records.best(k, Target.parse(None).key) is not None for k in keys)
    assert error_of(model, seer.compile(model, records=result.records, dtype=dtype)) < 1e-2


def test_errors() -> None:
    with pytest.raises(UserError, match="float32 or, for storage, float16 or bfloat16; given 'int8'"):
        seer.compile(seer.zoo.mlp(), dtype="int8")
    with pytest.raises(UserError, match="given 'half'"):
        seer.tune(seer.zoo.mlp(), trials=1, dtype="half", progress=False)
    g = Graph()
    x = g.input((4,), "float16", name="x")
    with pytest.raises(GraphError, match="x is float16, which is for storage; widen it first"):
        x.relu()
    with pytest.raises(GraphError, match="bfloat16 is not kept in an array of float32"):
        g.constant(np.ones(3, np.float32), dtype="bfloat16")


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_inputs_and_outputs(dtype: str) -> None:
    g = Graph()
    x = g.input((40,), dtype, name="x")
    g.output(x.widen().relu().cast(dtype, name="y"))
    given = convert(np.linspace(-2, 2, 40), "float64", dtype)
    out = seer.compile(g)(given)
    np.testing.assert_array_equal(out, run(g, {"x": given})[0])
    assert out.dtype == numpy_dtype(dtype)
