"""GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019)."""

from __future__ import annotations

from seer.graph.graph import Graph
from seer.zoo.attention import attention, causal_mask, require_heads
from seer.zoo.layers import Layers

_EPS = 1e-5


def gpt2(
    batch: int = 1,
    sequence: int = 64,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    seed: int = 0,
) -> Graph:
    """GPT-2 small: token numbers (batch, sequence) int64 -> logits (batch, sequence, vocabulary)."""
    require_heads("gpt2", hidden, heads)
    g = Graph("gpt2")
    make = Layers(g, seed)
    tokens = g.input((batch, sequence), "int64", name="tokens")
    table = g.constant(make.normal(vocabulary, hidden, scale=hidden**-0.5), name="token_table")
    positions = g.constant(make.normal(sequence, hidden, scale=hidden**-0.5), name="positions")
    mask = g.constant(causal_mask(sequence), name="causal_mask")
    x = (table.embedding(tokens) + positions).reshape((batch * sequence, hidden))
    for _ in range(layers):
        x = x + attention(make, make.layer_norm(x, _EPS), batch, sequence, heads, mask)
        y = make.dense(make.layer_norm(x, _EPS), 4 * hidden).gelu(approximate="tanh")
        x = x + make.dense(y, hidden)
    logits = make.layer_norm(x, _EPS).matmul(table, transpose_b=True)
    g.output(logits.reshape((batch, sequence, vocabulary), name="logits"))
    return g
