"""What the CUDA code generator hands to the runtime: source text and how to launch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from seer.codegen.artifact import ArgSpec
from seer.codegen.memory_plan import Lifetime, MemoryPlan, plan_memory

ALIGNMENT = 256  # of device memory: what CUDA allocates, and what vector loads need

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """Device memory that the launches of one kernel share, aligned to 256 bytes; it is not kept."""

    name: str
    size_bytes: int


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

    def scratch_plan(self) -> MemoryPlan:
        """Where each scratch buffer lies; buffers that no launch needs together share memory."""
        return plan_memory([self._lifetime(b) for b in self.scratch])

    def scratch_size(self, num_threads: int = 1) -> int:
        """Bytes of scratch that a run needs, however many threads the host has."""
        return self.scratch_plan().size_bytes

    def _lifetime(self, buffer: BufferSpec) -> Lifetime:
        uses = [k for k, launch in enumerate(self.launches) if buffer.name in launch.args]
        size_bytes = -(-buffer.size_bytes // ALIGNMENT) * ALIGNMENT
        return Lifetime(size_bytes, min(uses, default=0), max(uses, default=0))


class _LaunchLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def args(self) -> tuple[str, ...]: ...


class _ScratchLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


class ModuleLike(Protocol):
    """What the generator makes: one-dimensional launches, static shared memory."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> tuple[ArgSpec, ...]: ...
    @property
    def source(self) -> str: ...
    @property
    def launches(self) -> Sequence[_LaunchLike]: ...
    @property
    def scratch(self) -> Sequence[_ScratchLike]: ...


def cuda_kernel(module: ModuleLike) -> CudaKernel:
    """The generator's module as the runtime takes it."""
    launches = (Launch(e.name, (e.blocks, 1, 1), (e.threads, 1, 1), e.args) for e in module.launches)
    scratch = (BufferSpec(b.name, b.size_bytes) for b in module.scratch)
    return CudaKernel(module.name, module.args, module.source, tuple(launches), tuple(scratch))
