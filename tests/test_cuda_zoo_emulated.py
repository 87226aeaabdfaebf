"""CUDA C of every kernel of the zoo, at small sizes: the emulation watches it and NumPy agrees."""

from __future__ import annotations

import pytest
from cuda_batch import candidates_of, faults
from cuda_helpers import CUDA
from cuda_zoo import NAMES, SMALL, distinct_tasks, tasks

import seer
from seer.search.defaults import default_candidate

ROWS = 20  # random candidates of each sketch


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
    for task in distinct_tasks(name, CUDA, is_small=True):
        assert not faults(task, candidates_of(task, ROWS))
