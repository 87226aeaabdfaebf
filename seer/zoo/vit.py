"""The vision transformer (Dosovitskiy et al., arXiv 2010.11929)."""

from __future__ import annotations

import numpy as np

from seer.errors import UserError
from seer.graph.graph import Graph
from seer.zoo.attention import attention, require_heads
from seer.zoo.layers import Layers

_EPS = 1e-6


def vit_base(
    batch: int = 1,
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    classes: int = 1000,
    seed: int = 0,
) -> Graph:
    """ViT-Base with patches of 16x16: (batch, 3, image, image) -> (batch, classes)."""
    require_heads("vit_base", hidden, heads)
    if image % patch:
        raise UserError(f"vit_base: an image of {image} does not divide into patches of {patch}")
    tokens = (image // patch) ** 2 + 1
    g = Graph("vit_base")
    make = Layers(g, seed)
    x = g.input((batch, 3, image, image), name="image")
    kernel = make.normal(hidden, 3, patch, patch, scale=(3 * patch**2) ** -0.5)
    patches = x.conv2d(g.constant(kernel), g.constant(make.normal(hidden, scale=0.1)), stride=patch)
    patches = patches.transpose((0, 2, 3, 1)).reshape((batch, tokens - 1, hidden))
    token = np.tile(make.normal(1, 1, hidden, scale=0.5), (batch, 1, 1))
    positions = g.constant(make.normal(tokens, hidden, scale=0.5), name="positions")
    y = g.concat([g.constant(token, name="class_token"), patches], axis=1) + positions
    y = y.reshape((batch * tokens, hidden))
    for _ in range(layers):
        y = y + attention(make, make.layer_norm(y, _EPS), batch, tokens, heads)
        z = make.dense(make.layer_norm(y, _EPS), 4 * hidden).gelu()
        y = y + make.dense(z, hidden)
    # The norm is of each token alone, so it is needed of the class token only.
    first = y.reshape((batch, tokens, hidden)).slice((0, 0, 0), (batch, 1, hidden)).reshape((batch, hidden))
    g.output(make.dense(make.layer_norm(first, _EPS), classes))
    return g
