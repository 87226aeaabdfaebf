"""The tasks of the zoo's models, at sizes that can be emulated and at full size."""

from __future__ import annotations

from typing import Any

import seer
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.runtime.target import Target
from seer.search.task import SearchTask, tasks_of

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 3, "features": 29, "hidden": (31, 7)},
    "digits": {"batch": 2},
    "bert_base": {"layers": 1, "seq_len": 13, "hidden": 24, "heads": 2, "vocabulary": 37},
    "gpt2": {"layers": 1, "sequence": 11, "hidden": 24, "heads": 2, "vocabulary": 37},
    "vit_base": {"layers": 1, "image": 32, "hidden": 24, "heads": 2, "classes": 11},
    "mobilenet": {"image": 32, "width": 0.25, "classes": 19},
    "mobilenet_v2": {"image": 32, "width": 0.25, "classes": 19},
    "resnet18": {"image": 32, "classes": 19},
    "resnet34": {"image": 32, "classes": 19},
    "resnet50": {"image": 32, "classes": 19},
}


def tasks(name: str, target: Target, options: dict[str, Any] | None = None) -> list[SearchTask]:
    """The tasks of a model; full size without options."""
    return tasks_of(partition(optimize(seer.zoo.get(name, **(options or {})))), target)
