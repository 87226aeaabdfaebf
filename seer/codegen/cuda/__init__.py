"""CUDA C: the generator and what it hands to the runtime."""

from seer.codegen.cuda.generate import generate
from seer.codegen.cuda.module import CudaModule, Launch, Scratch

__all__ = ["CudaModule", "Launch", "Scratch", "generate"]
