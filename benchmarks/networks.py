"""The networks that searches are compared on: those of the zoo, and smaller ones of the same kinds."""

from __future__ import annotations

from typing import Any

import seer

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mobilenet_0.5": ("mobilenet", {"width": 0.5}),
    "mobilenet_v2_0.5": ("mobilenet_v2", {"width": 0.5}),
    "bert_small": ("bert_base", {"layers": 4, "hidden": 512, "heads": 8}),
}


def network(name: str) -> seer.Graph:
    """The network called `name`.

    Raises:
        UserError: if there is none.
    """
    base, options = VARIANTS.get(name, (name, {}))
    return seer.zoo.get(base, **options)
