"""CUDA C of every kernel of the zoo, at small sizes: the emulation watches it and NumPy agrees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_batch import Candidate, batches, candidates_of, modules_of, run, source_of
from cuda_helpers import CUDA, expected_of
from cuda_zoo import NAMES, SMALL, distinct_tasks, tasks
from programs import random_inputs

import seer
from seer.dtypes import convert, is_narrow
from seer.errors import SeerError
from seer.search.defaults import default_candidate
from seer.search.task import SearchTask

ROWS = 20  # random candidates of each sketch
TOLERANCE, NARROW_TOLERANCE = 1e-5, 1e-2  # of the largest element; where anything has 16 bits


def faults(task: SearchTask, candidates: Sequence[Candidate]) -> list[str]:
    """What is wrong with candidates: accesses that the emulation reports, and results that are off."""
    dag = task.dag
    inputs = random_inputs(dag)
    narrow = any(is_narrow(t.dtype) for t in (*dag.inputs, dag.output))
    expected = convert(expected_of(dag, inputs), dag.output.dtype, "float64")
    limit = NARROW_TOLERANCE if narrow else TOLERANCE
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1e-3))

    def of_batch(batch: Sequence[Candidate]) -> list[str]:
        modules = modules_of(batch, task.target)
        source, out = source_of(modules), []
        for module, (sketch, row) in zip(modules, batch, strict=True):
            try:
                found = convert(run(module, inputs, source), dag.output.dtype, "float64")
                np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * scale)
            except (SeerError, AssertionError) as e:
                out.append(f"{task!r} {sketch.key} {sketch.values(row)}: {e}")
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers and kernels are processes of their own
        return [f for found in pool.map(of_batch, batches(candidates)) for f in found]


def test_every_model_has_a_small_size() -> None:
    assert set(SMALL) == set(seer.zoo.names())


@pytest.mark.parametrize("name", ["mlp", "bert_base"])
def test_default_candidates(name: str) -> None:
    for task in tasks(name, CUDA, SMALL[name]):
        assert not faults(task, [default_candidate(task.dag, CUDA)])


def test_every_sketch_of_a_small_model() -> None:
    for task in tasks("mlp", CUDA, SMALL["mlp"])[1:]:
        assert not faults(task, candidates_of(task, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_sketch_and_random_rows(name: str) -> None:
    for task in distinct_tasks(name, CUDA, True):
        assert not faults(task, candidates_of(task, ROWS))
