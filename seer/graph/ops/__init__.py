"""Operators, one family a file; importing this package registers them all."""

from seer.graph.ops import conv, elementwise, matmul, normalize, pool, reduce, shape

__all__ = ["conv", "elementwise", "matmul", "normalize", "pool", "reduce", "shape"]
