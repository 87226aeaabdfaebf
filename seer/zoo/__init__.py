"""Models to try: each is a function that builds a Graph.

    seer.zoo.resnet18(batch=1)
    seer.zoo.get("resnet18", batch=1)
    seer.zoo.names()

Weights are random (by `seed`), except those of `digits`, which are trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from seer.errors import UserError
from seer.graph.graph import Graph
from seer.zoo.bert import bert_base
from seer.zoo.digits import digits
from seer.zoo.gpt import gpt2
from seer.zoo.mlp import mlp
from seer.zoo.mobilenet import mobilenet, mobilenet_v2
from seer.zoo.resnet import resnet18, resnet34, resnet50
from seer.zoo.vit import vit_base

MODELS: dict[str, Callable[..., Graph]] = {
    f.__name__: f
    for f in (mlp, digits, resnet18, resnet34, resnet50, mobilenet, mobilenet_v2, bert_base, vit_base, gpt2)
}


def names() -> list[str]:
    """Every model's name."""
    return list(MODELS)


def get(name: str, **options: Any) -> Graph:
    """The model called `name`; options are its function's arguments.

    Raises:
        UserError: if there is no such model or option.
    """
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}; the zoo has {', '.join(MODELS)}")
    known = arguments(name)
    try:
        known.bind(**options)
    except TypeError as e:
        raise UserError(f"model {name}{known}: {e}") from None
    for key, value in options.items():
        if known.parameters[key].annotation is int and not isinstance(value, int | np.integer):
            raise UserError(f"model {name}: {key} must be a whole number, given {value!r}")
    try:
        return MODELS[name](**options)
    except (ValueError, ArithmeticError) as e:  # of what the options lead to, far from their names
        given = ", ".join(f"{k}={v}" for k, v in options.items())
        raise UserError(f"model {name} with {given}: {e}") from None


def arguments(name: str) -> inspect.Signature:
    """The arguments of a model of the zoo."""
    found = inspect.signature(MODELS[name], eval_str=True)
    return found.replace(return_annotation=inspect.Signature.empty)


__all__ = [
    "MODELS",
    "bert_base",
    "digits",
    "get",
    "gpt2",
    "mlp",
    "mobilenet",
    "mobilenet_v2",
    "names",
    "resnet18",
    "resnet34",
    "resnet50",
    "vit_base",
]
