"""Lowering for GPUs: a sketch and one row of parameters become one loop program per kernel."""

from seer.codegen.gpu.kernels import LoweredKernels, lower_gpu

__all__ = ["LoweredKernels", "lower_gpu"]
