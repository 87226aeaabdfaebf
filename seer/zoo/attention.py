"""Multi-head attention, as BERT, ViT and GPT-2 share it."""

from __future__ import annotations

import math

import numpy as np

from seer.errors import UserError
from seer.graph.graph import Value
from seer.zoo.layers import Layers


def require_heads(model: str, hidden: int, heads: int) -> None:
    """Raise UserError unless the hidden units divide into the heads."""
    if heads < 1 or hidden % heads:
        raise UserError(f"{model}: {hidden} hidden units do not divide into {heads} heads")


def attention(
    layers: Layers, x: Value, batch: int, sequence: int, heads: int, mask: Value | None = None
) -> Value:
    """softmax(q k^T / sqrt(d) + mask) v between (batch * sequence, hidden) and the same.

    `mask` broadcasts to (batch, heads, sequence, sequence): 0 where a position may look, -inf where not.
    """
    hidden = x.shape[-1]
    q = _heads(layers.dense(x, hidden), batch, sequence, heads, (0, 2, 1, 3))
    k = _heads(layers.dense(x, hidden), batch, sequence, heads, (0, 2, 3, 1))
    v = _heads(layers.dense(x, hidden), batch, sequence, heads, (0, 2, 1, 3))
    scores = (q @ k) * (1 / math.sqrt(hidden // heads))
    if mask is not None:
        scores = scores + mask
    y = (scores.softmax() @ v).transpose((0, 2, 1, 3)).reshape((batch * sequence, hidden))
    return layers.dense(y, hidden)


def causal_mask(sequence: int) -> np.ndarray:
    """(sequence, sequence): -inf above the diagonal, so that no position sees a later one."""
    return np.triu(np.full((sequence, sequence), -np.inf, np.float32), 1)


def _heads(x: Value, batch: int, sequence: int, heads: int, order: tuple[int, ...]) -> Value:
    """(batch * sequence, hidden) -> (batch, heads, ...)."""
    return x.reshape((batch, sequence, heads, x.shape[-1] // heads)).transpose(order)
