"""Lowering: a sketch and one row of parameters become a loop program."""

from seer.codegen.lower.kernel import LoweredKernel, lower

__all__ = ["LoweredKernel", "lower"]
