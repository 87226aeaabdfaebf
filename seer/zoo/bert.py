"""BERT's encoder (Devlin et al., arXiv 1810.04805)."""

from __future__ import annotations

from seer.graph.graph import Graph
from seer.zoo.attention import attention, require_heads
from seer.zoo.layers import Layers


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
    require_heads("bert_base", hidden, heads)
    g = Graph("bert_base")
    make = Layers(g, seed)
    tokens = g.input((batch, seq_len), "int64", name="tokens")
    table = g.constant(make.normal(vocabulary, hidden, scale=0.5), name="token_table")
    positions = g.constant(make.normal(seq_len, hidden, scale=0.5), name="positions")
    x = make.layer_norm(table.embedding(tokens) + positions).reshape((batch * seq_len, hidden))
    for _ in range(layers):
        x = make.layer_norm(x + attention(make, x, batch, seq_len, heads))
        y = make.dense(make.dense(x, 4 * hidden).gelu(), hidden)
        x = make.layer_norm(x + y)
    g.output(x.reshape((batch, seq_len, hidden), name="hidden"))
    return g
