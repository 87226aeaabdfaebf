"""The search on a GPU: what predicates say is what is lowered, and rows of every sketch flow through."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_helpers import CUDA, check, expected_of, random_rows
from programs import (
    PROGRAMS,
    batch_matmul,
    column_max,
    conv,
    depthwise,
    gelu,
    layer_norm,
    matmul,
    max_pool,
    random_inputs,
    softmax,
)

from seer.codegen.cuda import generate
from seer.ir.verify import verify_sketch
from seer.runtime.measure import MeasureResult
from seer.runtime.records import Records
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.evolution import EvolutionOptions, Searcher
from seer.search.features import features
from seer.search.gpu_prior import predicted_seconds
from seer.search.gpu_view import gpu_nests
from seer.search.legal import legal
from seer.search.rules import generate_sketches
from seer.search.space import space_of
from seer.search.strategies import strategy_of
from seer.search.task import SearchTask
from seer.search.tuner import tune_tasks

DAGS = {
    "matmul": matmul(1024, 1024, 1024),
    "matmul_prime": matmul(197, 769, 367),
    "batch_matmul": batch_matmul(12, 128, 128, 64),
    "conv": conv(56, 56, 64, 64, 3),
    "conv_stride": conv(57, 57, 3, 64, 7, stride=2),
    "depthwise": depthwise(56, 56, 144),
    "softmax": softmax(1536, 128),
    "softmax_prime": softmax(197, 197),
    "layer_norm": layer_norm(128, 768),
    "max_pool": max_pool(112, 112, 64),
    "column_max": column_max(1024, 512),
    "gelu": gelu(128, 3072),
}
SKETCHES = [(n, s) for n, d in DAGS.items() for s in generate_sketches(d, CUDA)[1:]]
IDS = [f"{n}-{s.key}" for n, s in SKETCHES]


@pytest.mark.parametrize(("name", "sketch"), SKETCHES, ids=IDS)
def test_the_formulas_are_what_is_lowered(name: str, sketch) -> None:  # type: ignore[no-untyped-def]
    verify_sketch(sketch)
    gpu = CUDA.gpu
    assert gpu is not None
    for row in [default_row(sketch, CUDA), *random_rows(sketch, 4, 3)]:
        launches = generate(sketch, row, CUDA).launches
        nests = gpu_nests(sketch, row[None], gpu)
        assert [int(n.threads[0]) for n in nests] == [x.threads for x in launches]
        assert [int(n.blocks[0]) for n in nests] == [x.blocks for x in launches]
        assert [int(n.shared_bytes[0]) for n in nests] == [x.shared_bytes for x in launches]
        assert all(x.threads <= gpu.max_threads_per_block for x in launches)
        assert all(x.shared_bytes <= gpu.shared_bytes_per_block for x in launches)


@pytest.mark.parametrize(("name", "sketch"), SKETCHES, ids=IDS)
def test_populations(name: str, sketch) -> None:  # type: ignore[no-untyped-def]
    space = space_of(sketch, CUDA)
    rng = np.random.default_rng(1)
    rows = space.sample(500, rng)
    assert legal(sketch, rows, CUDA).mean() > 0.9
    for some in (rows, space.mutate(rows, rng), space.cross(rows, rows[::-1].copy(), rng)):
        assert np.array_equal(sketch.canonical(some), some)
        matrix = features(sketch, some, CUDA)
        assert matrix.shape == (500, matrix.shape[1]) and np.isfinite(matrix).all()
        seconds = predicted_seconds(sketch, some[legal(sketch, some, CUDA)], CUDA)
        assert (seconds > 0).all() and np.isfinite(seconds).all()
    chosen = default_row(sketch, CUDA)
    assert legal(sketch, chosen[None], CUDA).all()
    ranked = predicted_seconds(sketch, rows, CUDA)
    assert predicted_seconds(sketch, chosen[None], CUDA)[0] <= np.percentile(ranked, 5)


def test_features_of_all_sketches_have_one_width() -> None:
    widths = {features(s, default_row(s, CUDA)[None], CUDA).shape[1] for _, s in SKETCHES}
    assert len(widths) == 1


def test_limits_are_refused() -> None:
    sketch = generate_sketches(matmul(1024, 1024, 1024, relu=False), CUDA)[1]
    base = {p.name: p.choices[0] if p.choices else 1 for p in sketch.params}
    over = [
        {"c.i0.2": 64, "c.i1.2": 64},  # threads
        {"c.i0.1": 4, "c.i1.1": 4},  # virtual threads
        {"c.i0.4": 16, "c.i1.4": 16},  # registers
        {"c.i0.2": 32, "c.i0.4": 8, "c.k.1": 256},  # shared memory
    ]
    rows = np.stack([sketch.row({**base, **o}) for o in over])
    assert not legal(sketch, rows, CUDA).any()
    assert legal(sketch, sketch.row({**base, "c.i0.2": 16, "c.i1.2": 16})[None], CUDA).all()


def test_warps_take_registers_in_all_partitions_at_once() -> None:
    """264 threads are 9 warps, three of them in one partition: 16384 registers for three warps."""
    gpu = CUDA.gpu
    assert gpu is not None
    assert gpu.block_registers(168, 264) <= gpu.registers_per_sm < gpu.block_registers(176, 264)
    assert gpu.block_registers(161, 264) == gpu.block_registers(168, 264) == 12 * 32 * 168
    assert gpu.block_registers(255, 256) == gpu.registers_per_sm
    sketch = generate_sketches(matmul(4096, 4096, 64, relu=False), CUDA)[1]
    base = {p.name: p.choices[0] if p.choices else 1 for p in sketch.params}
    tile = {"c.i0.3": 4, "c.i0.4": 4, "c.i1.3": 4, "c.i1.4": 2, "c.i1.2": 8}
    rows = np.stack([sketch.row({**base, **tile, "c.i0.2": n}) for n in (32, 33)])
    (nest,) = gpu_nests(sketch, rows, gpu)
    assert list(nest.threads) == [256, 264]
    assert 168 < nest.registers[0] == nest.registers[1] <= 248
    assert list(legal(sketch, rows, CUDA)) == [True, False]
    assert list(nest.blocks_per_sm) == [1, 0]


class _AnyScore:
    is_trained = False

    def predict(self, features: np.ndarray) -> np.ndarray:
        return features.sum(axis=1) % 1.0


@pytest.mark.parametrize("name", ["matmul", "conv_1x1", "softmax", "row_sum"])
def test_a_search_proposes_right_candidates(name: str) -> None:
    dag = PROGRAMS[name]
    task = SearchTask(dag, CUDA)
    options = EvolutionOptions(population=64, generations=2)
    searcher = Searcher(task, options)
    rng = np.random.default_rng(0)
    first = searcher.first()
    assert 0 in [k for k, _ in first]
    proposed = searcher.propose(6, [c for c in first if c[0]], _AnyScore(), rng)
    assert len(proposed) == 6
    inputs = random_inputs(dag)
    expected = expected_of(dag, inputs)
    for k, row in [*first, *proposed]:
        check(task.sketches[k], row, inputs, expected)


def test_tiles_pay_in_the_prior() -> None:
    sketch = generate_sketches(matmul(2048, 2048, 2048, relu=False), CUDA)[1]
    base = {p.name: p.choices[0] if p.choices else 1 for p in sketch.params}
    tiled = {"c.i0.2": 16, "c.i0.4": 8, "c.i1.2": 16, "c.i1.4": 8, "c.k.1": 8, "c.unroll": 512}
    rows = np.stack([sketch.row({**base, "c.i0.2": 16, "c.i1.2": 16}), sketch.row({**base, **tiled})])
    untiled_s, tiled_s = predicted_seconds(sketch, rows, CUDA)
    peak_s = 2 * 2048**3 / CUDA.gpu.flops  # type: ignore[union-attr]
    assert peak_s < tiled_s < 3 * peak_s < untiled_s
    faster = Target.parse("cuda -arch=sm_90")
    assert predicted_seconds(sketch, rows[1:], faster)[0] < tiled_s


def test_exact_tasks_do_without_tensor_cores() -> None:
    dag = matmul(64, 64, 64)
    assert any("mma" in s.key for s in generate_sketches(dag, CUDA))
    assert not any("mma" in s.key for s in generate_sketches(dag, CUDA, exact=True))
    older = Target.parse("cuda -arch=sm_75")
    assert not any("mma" in s.key for s in generate_sketches(dag, older))


class _FormulaMeasurer:
    """Times by the prior, the naive schedule slowest."""

    def measure(self, naive, candidates, best_s):  # type: ignore[no-untyped-def]
        return [MeasureResult(self.seconds(s, r), run_s=0.01) for s, r in candidates]

    def remeasure(self, naive, candidates):  # type: ignore[no-untyped-def]
        return [MeasureResult(self.seconds(s, r)) for s, r in candidates]

    def seconds(self, sketch, row) -> float:  # type: ignore[no-untyped-def]
        return float(predicted_seconds(sketch, row[None], CUDA)[0]) * (10 if sketch.key == "naive" else 1)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("strategy", ["ansor", "seer"])
def test_tuning_for_a_gpu(strategy: str) -> None:
    tasks = [
        SearchTask(matmul(256, 256, 256), CUDA, 2, "matmul"),
        SearchTask(conv(14, 14, 16, 32, 3), CUDA, 1, "conv"),
        SearchTask(softmax(64, 128), CUDA, 3, "softmax"),
    ]
    records = Records()
    summary = tune_tasks(tasks, _FormulaMeasurer(), records, strategy_of(strategy), trials=60, seed=0)
    assert summary.trials == 60
    assert summary.latency_s <= summary.default_latency_s
    for t in tasks:
        best = records.best(t.key, CUDA.key)
        assert best is not None and best.sketch_key != "naive"
