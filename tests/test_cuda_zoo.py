"""Every kernel of small models, lowered for a GPU by rule of thumb, computes what it should."""

from __future__ import annotations

import pytest
from cuda_helpers import CUDA, check, expected_of, random_rows
from cuda_zoo import SMALL, distinct_tasks, tasks
from programs import random_inputs

from seer.search.defaults import default_candidate, default_row


@pytest.mark.parametrize("name", ["bert_base", "mobilenet_v2"])
def test_small_models(name: str) -> None:
    for task in tasks(name, CUDA, SMALL[name]):
        inputs = random_inputs(task.dag)
        expected = expected_of(task.dag, inputs)
        check(*default_candidate(task.dag, CUDA), inputs, expected)
        small = task.dag.flop_count < 10_000
        for sketch in task.sketches[1:] if small else ():
            for row in random_rows(sketch, 1, 0):
                check(sketch, row, inputs, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_sketch(name: str) -> None:
    for task in distinct_tasks(name, CUDA, is_small=True):
        inputs = random_inputs(task.dag)
        expected = expected_of(task.dag, inputs)
        for sketch in task.sketches[1:]:
            check(sketch, default_row(sketch, CUDA), inputs, expected)
