"""Targets: text and back, tables, errors."""

from __future__ import annotations

import pytest

from seer.errors import TargetError
from seer.runtime.target import Target


@pytest.mark.parametrize(
    "text", ["llvm", "llvm -threads=1", "llvm -cpu=haswell", "llvm -cpu=x86-64 -threads=3"]
)
def test_text_round_trip(text: str) -> None:
    target = Target.parse(text)
    assert Target.parse(str(target)) == target
    assert Target.parse(target) is target


def test_lanes_follow_the_vector_width() -> None:
    wide, narrow = Target.parse("llvm -cpu=skylake-avx512"), Target.parse("llvm -cpu=x86-64")
    assert (wide.lanes("float32"), wide.lanes("float64"), narrow.lanes("float32")) == (16, 8, 4)


def test_key_tells_machines_and_threads_apart() -> None:
    texts = [
        "llvm -threads=1",
        "llvm -threads=2",
        "llvm -cpu=haswell -threads=2",
        "llvm -cpu=znver3 -threads=2",
    ]
    assert len({Target.parse(t).key for t in texts}) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metal", "unknown target kind 'metal'; seer has cuda, llvm"),
        ("llvm -cpu=pentium", "unknown CPU 'pentium'"),
        ("llvm -threads=many", "whole number"),
        ("llvm -threads=0", "at least 1 thread"),
        ("llvm -speed=9", "no option -speed"),
        ("llvm threads=2", "options look like"),
    ],
)
def test_errors(text: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        Target.parse(text)
