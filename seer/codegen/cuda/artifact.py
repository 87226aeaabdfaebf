"""What the CUDA code generator hands to the runtime: source text and how to launch it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seer.codegen.artifact import ArgSpec
from seer.dtypes import dtype as dtype_of

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """Device memory that the launches of one kernel share; its contents are not kept."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * dtype_of(self.dtype).size_bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One `name<<<grid, block, shared_bytes>>>(args)`.

    Attributes:
        name: a `__global__` function of the source, with C linkage.
        args: names of the kernel's args and of scratch buffers, in the order of its parameters.
        shared_bytes: dynamic shared memory, beside what the function declares itself.
    """

    name: str
    grid: Dim3
    block: Dim3
    args: tuple[str, ...]
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One ComputeDAG as CUDA C: its launches run in order, on one stream.

    Attributes:
        name: a C identifier.
        args: inputs, then the output, as an Artifact has them; none aliases another.
        source: the text of a translation unit.
    """

    name: str
    args: tuple[ArgSpec, ...]
    source: str
    launches: tuple[Launch, ...]
    scratch: tuple[BufferSpec, ...] = ()
