"""The tasks of the zoo's models, each once, at sizes that can be emulated and at full size."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from cuda_helpers import CUDA

import seer
from seer.graph.narrow import narrow
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.runtime.target import Target
from seer.search.task import SearchTask, tasks_of

# Odd and prime extents, where a model lets them be chosen: images of 37 have rows of 19, 10, 5, 3 and 2.
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 3, "features": 29, "hidden": (31, 7)},
    "digits": {"batch": 2},
    "bert_base": {"layers": 1, "seq_len": 13, "hidden": 24, "heads": 2, "vocabulary": 37},
    "gpt2": {"layers": 1, "sequence": 11, "hidden": 24, "heads": 2, "vocabulary": 37},
    "vit_base": {"layers": 1, "image": 32, "hidden": 24, "heads": 2, "classes": 11},
    "mobilenet": {"image": 37, "width": 0.25, "classes": 19},
    "mobilenet_v2": {"image": 32, "width": 0.25, "classes": 19},
    "resnet18": {"image": 32, "width": 0.25, "classes": 19},
    "resnet34": {"image": 37, "width": 0.25, "classes": 19},
    "resnet50": {"image": 32, "width": 0.25, "classes": 19},
}
# Stored in 16 bits, weights and (if they have so many bytes) arrays between kernels.
NARROW = {"bert_base": "float16", "mobilenet_v2": "bfloat16"}
BETWEEN_BYTES = 512
MODELS = [*((n, n, None) for n in SMALL), *((f"{n} in {stored}", n, stored) for n, stored in NARROW.items())]
NAMES = [name for name, _, _ in MODELS]


def tasks(
    name: str, target: Target, options: dict[str, Any] | None = None, stored: str | None = None
) -> list[SearchTask]:
    """The tasks of a model; full size without options, 16-bit weights with a type that they are stored in."""
    graph = optimize(seer.zoo.get(name, **(options or {})))
    if stored is not None:
        graph = narrow(graph, stored, BETWEEN_BYTES)
    return tasks_of(partition(graph), target)


def distinct_tasks(name: str, target: Target, is_small: bool) -> list[SearchTask]:
    """The tasks of one of NAMES that none before it has."""
    return [replace(t, target=target) for t in _distinct(is_small)[name]]


@functools.lru_cache(maxsize=2)
def _distinct(is_small: bool) -> dict[str, list[SearchTask]]:
    seen: set[str] = set()
    out: dict[str, list[SearchTask]] = {}
    for name, model, stored in MODELS:
        options = SMALL[model] if is_small else None
        out[name] = [t for t in tasks(model, CUDA, options, stored) if t.key not in seen]
        seen |= {t.key for t in out[name]}
    return out
