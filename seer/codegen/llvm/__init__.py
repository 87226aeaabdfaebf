"""Loop programs as LLVM modules, and LLVM modules as machine code."""

from seer.codegen.llvm.emit import ScratchLayout, emit, scratch_layout
from seer.codegen.llvm.passes import optimize, plain_loops

__all__ = ["ScratchLayout", "emit", "optimize", "plain_loops", "scratch_layout"]
