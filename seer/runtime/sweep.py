"""Emptying the caches between two timed runs, as the rest of a model does.

Within a model whose weights are larger than the second-level caches, a kernel finds its own weights
where the last inference left them: in the last-level cache or in memory. A candidate that is timed over
and over finds them next to the core, and another one wins. A sweep reads as much memory as the model's
other weights are, by the threads that the kernel itself uses (so they are awake, as in a model).
"""

from __future__ import annotations

from seer import memory
from seer.codegen.artifact import ArgSpec, Artifact
from seer.codegen.build import compile_module
from seer.codegen.llvm import emit, scratch_layout
from seer.ir.expr import Expr, Load, Var, as_expr, binary
from seer.ir.loops import Buffer, For, LoopKind, LoopProgram, Scope, Store, seq
from seer.runtime.kernel import Kernel
from seer.runtime.target import Target

MAX_BYTES = 64 * 1024 * 1024  # more than the last-level cache that a core of a server has to itself
_ROW = 4096  # elements that one iteration of the parallel loop reads


class Sweep:
    """Reads `size_bytes` of memory in all threads of a target; made once, called before each timed run."""

    def __init__(self, size_bytes: int, target: Target) -> None:
        rows = max(1, min(size_bytes, MAX_BYTES) // (4 * _ROW))
        artifact = _artifact(rows, target)
        self._kernel = Kernel(artifact)
        self._threads = target.num_threads
        self._data = memory.empty((rows, _ROW), "float32")
        self._data[...] = 1.0
        self._out = memory.empty((rows,), "float32")
        self._scratch = memory.empty((artifact.scratch_size(self._threads) + 64,), "uint8")

    def __call__(self) -> None:
        """Read it all once."""
        start = self._scratch.ctypes.data + -self._scratch.ctypes.data % 64
        self._kernel.call([self._data.ctypes.data, self._out.ctypes.data], start, self._threads)

    @property
    def total(self) -> float:
        """The sum of what the last call read: proof that it read it."""
        return float(self._out.sum())


def _artifact(rows: int, target: Target) -> Artifact:
    program = _program(rows, target.lanes("float32"))
    layout = scratch_layout(program)
    args = (ArgSpec("data", (rows, _ROW), "float32"), ArgSpec("out", (rows,), "float32"))
    code = compile_module(emit(program, target), target)
    return Artifact("sweep", str(target), args, code, layout.scratch_bytes, layout.thread_scratch_bytes)


def _program(rows: int, lanes: int) -> LoopProgram:
    """out[p] = the sum of data[p, :], in vectors."""
    data = Buffer("data", (rows, _ROW), "float32", Scope.ARG)
    out = Buffer("out", (rows,), "float32", Scope.ARG)
    sums = Buffer("sums", (1, lanes), "float32", Scope.REGISTER)
    total = Buffer("total", (1, 1), "float32", Scope.REGISTER)
    p, k, v, w = (Var(n) for n in "pkvw")
    zero = as_expr(0)

    def lanewise(value: Expr) -> For:
        return For("v", as_expr(lanes), LoopKind.VECTORIZED, Store(sums, (zero, v), value))

    add = binary("+", Load(sums, (zero, v)), Load(data, (p, k * lanes + v)))
    combine = binary("+", Load(total, (zero, zero)), Load(sums, (zero, w)))
    body = seq(
        lanewise(as_expr(0.0)),
        For("k", as_expr(_ROW // lanes), LoopKind.SERIAL, lanewise(add)),
        Store(total, (zero, zero), as_expr(0.0)),
        For("w", as_expr(lanes), LoopKind.UNROLLED, Store(total, (zero, zero), combine)),
        Store(out, (p,), Load(total, (zero, zero))),
    )
    parallel = For("p", as_expr(rows), LoopKind.PARALLEL, body)
    return LoopProgram("sweep", (data, out), (sums, total), parallel)
