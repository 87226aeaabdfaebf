"""Features as formulas of the parameters equal what is read off the lowered program."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from plain_features import plain_features
from programs import PROGRAMS

import seer
from seer.codegen.lower import lower
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.ir.dag import ComputeDAG
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.features import NAMES, features
from seer.search.legal import legal
from seer.search.rules import generate_sketches
from seer.search.space import space_of
from seer.search.task import tasks_of

TARGET = Target.parse("llvm -cpu=skylake-avx512 -threads=2")
SMALL = {
    "mlp": {},
    "digits": {},
    "resnet18": {"image": 40},
    "mobilenet_v2": {"image": 48},
    "bert_base": {"seq_len": 24},
}


def dags_of(model: str, **options: int) -> list[ComputeDAG]:
    return [t.dag for t in tasks_of(partition(optimize(seer.zoo.get(model, **options))), TARGET)]


# An index with a division counts as the whole dimension, but tiles can make the division vanish.
DIVIDES = {"reshape"}
EMPTY = {name for name, dag in PROGRAMS.items() if "empty" in name}


def compare(dag: ComputeDAG, target: Target, count: int, without: str = "no name") -> None:
    """Every sketch of a DAG, its default and some random candidates."""
    rng = np.random.default_rng(len(dag.ops))
    for sketch in generate_sketches(dag, target):
        rows = space_of(sketch, target).sample(4 * count, rng)
        rows = rows[legal(sketch, rows, target)][:count]
        rows = np.concatenate([default_row(sketch, target)[None], rows])
        for row, found in zip(rows, features(sketch, rows, target), strict=True):
            expected = plain_features(sketch, lower(sketch, row, target).program, target)
            wrong = {
                name: (float(a), float(b))
                for name, a, b in zip(NAMES, found, expected, strict=True)
                if not np.isclose(a, b, rtol=1e-5, atol=1e-5) and not re.search(without, name)
            }
            assert not wrong, f"{sketch.key} {sketch.values(row)}: (formula, program) {wrong}"


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in EMPTY])
def test_programs(name: str) -> None:
    compare(PROGRAMS[name], TARGET, 4, "bytes|traffic" if name in DIVIDES else "no name")


@pytest.mark.parametrize("name", ["matmul", "matmul_thin", "conv", "conv_1x1"])
def test_weights_that_stream(name: str) -> None:
    compare(PROGRAMS[name], replace(TARGET, l2_bytes=16), 8)


@pytest.mark.parametrize("shape", [(2, 5, 19, 13, 7), (1, 16, 64, 24, 22), (1, 3, 8, 9, 30)], ids=str)
def test_blocks_that_a_consumer_reads(shape: tuple[int, ...]) -> None:
    n, ci, co, h, w = shape
    g = seer.Graph("conv")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((co, ci, 3, 3)).astype(np.float32)
    y = g.input((n, ci, h, w), name="x").conv2d(weights, padding=1)
    g.output((y + g.input(y.shape, name="r")).relu())
    dag = max((t.dag for t in tasks_of(partition(optimize(g)), TARGET)), key=lambda d: d.flop_count)
    assert any(nest.consumer for s in generate_sketches(dag, TARGET) for nest in s.nests)
    compare(dag, TARGET, 6)


@pytest.mark.parametrize("model", SMALL)
def test_zoo(model: str) -> None:
    for dag in dags_of(model, **SMALL[model]):
        compare(dag, TARGET, 2)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell"])
@pytest.mark.parametrize("model", seer.zoo.names())
def test_whole_zoo(model: str, cpu: str) -> None:
    target = Target.parse(f"llvm -cpu={cpu} -threads=4")
    for dag in dags_of(model):
        compare(dag, target, 10)
