"""Every kernel of small models, lowered for a GPU by rule of thumb, computes what it should."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_helpers import CUDA, check, expected_of, random_rows
from programs import random_inputs

import seer
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.search.defaults import default_candidate, default_row
from seer.search.task import tasks_of

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("bert_base", {"layers": 1, "seq_len": 13, "hidden": 24, "heads": 2, "vocabulary": 37}),
    ("mobilenet_v2", {"image": 32, "width": 0.25}),
]
LARGER: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {"batch": 3, "hidden": (31, 7)}),
    ("digits", {"batch": 3}),
    ("resnet18", {"image": 32}),
    ("resnet50", {"image": 32}),
    ("mobilenet", {"image": 32, "width": 0.25}),
]


def tasks(name: str, options: dict[str, Any]):  # type: ignore[no-untyped-def]
    return tasks_of(partition(optimize(seer.zoo.get(name, **options))), CUDA)


@pytest.mark.parametrize(("name", "options"), MODELS, ids=[n for n, _ in MODELS])
def test_small_models(name: str, options: dict[str, Any]) -> None:
    for task in tasks(name, options):
        inputs = random_inputs(task.dag)
        expected = expected_of(task.dag, inputs)
        check(*default_candidate(task.dag, CUDA), inputs, expected)
        small = task.dag.flop_count < 10_000
        for sketch in task.sketches[1:] if small else ():
            for row in random_rows(sketch, 1, 0):
                check(sketch, row, inputs, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*MODELS, *LARGER], ids=lambda v: str(v))
def test_larger_models(name: str, options: dict[str, Any]) -> None:
    for task in tasks(name, options):
        inputs = random_inputs(task.dag)
        expected = expected_of(task.dag, inputs)
        for sketch in task.sketches[1:]:
            check(sketch, default_row(sketch, CUDA), inputs, expected)
