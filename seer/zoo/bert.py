"""BERT's encoder (Devlin et al., arXiv 1810.04805)."""

from __future__ import annotations

import math

from seer.errors import UserError
from seer.graph.graph import Graph, Value
from seer.zoo.layers import Layers


def _heads(x: Value, batch: int, seq_len: int, heads: int, order: tuple[int, ...]) -> Value:
    """(batch * seq_len, hidden) -> (batch, heads, ...)."""
    return x.reshape((batch, seq_len, heads, x.shape[-1] // heads)).transpose(order)


def _attention(layers: Layers, x: Value, batch: int, seq_len: int, heads: int) -> Value:
    hidden = x.shape[-1]
    q = _heads(layers.dense(x, hidden), batch, seq_len, heads, (0, 2, 1, 3))
    k = _heads(layers.dense(x, hidden), batch, seq_len, heads, (0, 2, 3, 1))
    v = _heads(layers.dense(x, hidden), batch, seq_len, heads, (0, 2, 1, 3))
    scores = (q @ k) * (1 / math.sqrt(hidden // heads))
    y = (scores.softmax() @ v).transpose((0, 2, 1, 3)).reshape((batch * seq_len, hidden))
    return layers.dense(y, hidden)


def bert_base(
    batch: int = 1,
    seq_len: int = 128,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    seed: int = 0,
) -> Graph:
    """BERT-base: token numbers (batch, seq_len) int64 -> hidden states (batch, seq_len, hidden)."""
    if hidden % heads:
        raise UserError(f"bert_base: {hidden} hidden units do not divide into {heads} heads")
    g = Graph("bert_base")
    make = Layers(g, seed)
    tokens = g.input((batch, seq_len), "int64", name="tokens")
    table = g.constant(make.normal(vocabulary, hidden, scale=0.5), name="token_table")
    positions = g.constant(make.normal(seq_len, hidden, scale=0.5), name="positions")
    x = make.layer_norm(table.embedding(tokens) + positions).reshape((batch * seq_len, hidden))
    for _ in range(layers):
        x = make.layer_norm(x + _attention(make, x, batch, seq_len, heads))
        y = make.dense(make.dense(x, 4 * hidden).gelu(), hidden)
        x = make.layer_norm(x + y)
    g.output(x.reshape((batch, seq_len, hidden), name="hidden"))
    return g
