"""CUDA C of every kernel of the zoo, at small sizes: the emulation watches it and NumPy agrees."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_helpers import CUDA, expected_of, random_rows
from cuda_zoo import SMALL, tasks
from programs import random_inputs
from test_cuda_emulated import run

import seer
from seer.codegen.cuda import generate
from seer.ir.sketch import Sketch
from seer.search.defaults import default_candidate, default_row
from seer.search.task import SearchTask

Candidate = tuple[Sketch, np.ndarray]
ROWS = 20  # random candidates of each sketch


def check(task: SearchTask, candidates: Iterable[Candidate]) -> None:
    """Every candidate runs without a fault and computes what is expected, to 1e-5 of the largest element."""
    inputs = random_inputs(task.dag)
    expected = expected_of(task.dag, inputs)
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1e-3))

    def one(candidate: Candidate) -> None:
        sketch, row = candidate
        found = run(generate(sketch, row, CUDA), inputs)
        worst = f"{task!r} {sketch.key} {sketch.values(row)}"
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=worst)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each runs in a process of its own
        list(pool.map(one, candidates))


def candidates_of(task: SearchTask, rows: int) -> Sequence[Candidate]:
    """The default row and random ones of every sketch but the naive one."""
    out = []
    for sketch in task.sketches[1:]:
        found = [default_row(sketch, CUDA), *random_rows(sketch, rows, 3)]
        out += [(sketch, r) for r in {r.tobytes(): r for r in found}.values()]
    return out


def test_every_model_has_a_small_size() -> None:
    assert set(SMALL) == set(seer.zoo.names())


@pytest.mark.parametrize("name", ["mlp", "bert_base"])
def test_default_candidates(name: str) -> None:
    for task in tasks(name, CUDA, SMALL[name]):
        check(task, [default_candidate(task.dag, CUDA)])


def test_every_sketch_of_a_small_model() -> None:
    for task in tasks("mlp", CUDA, SMALL["mlp"])[1:]:
        check(task, candidates_of(task, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_sketch_and_random_rows(name: str) -> None:
    for task in tasks(name, CUDA, SMALL[name]):
        check(task, candidates_of(task, ROWS))
