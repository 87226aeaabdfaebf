"""What the CUDA C generator hands to the runtime: source, and how to launch its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from seer.codegen.artifact import ArgSpec
from seer.codegen.memory_plan import Lifetime, MemoryPlan, plan_memory

# Shared memory of a block that a kernel may declare; of more than this all is given at its launch.
STATIC_SHARED_BYTES = 48 << 10
ALIGNMENT = 256  # of device memory: what CUDA allocates, and what vector loads need


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a module.

    Attributes:
        name: the symbol, extern "C".
        blocks: blocks of the grid (x).
        threads: threads of a block (x).
        args: the names of its pointers, each an ArgSpec's or a Scratch's; the last is written.
        shared_bytes: shared memory of a block.
        expected_s: seconds that a formula expects, for simulated clocks; 0 if it was not asked.
    """

    name: str
    blocks: int
    threads: int
    args: tuple[str, ...]
    shared_bytes: int = 0
    expected_s: float = 0.0

    @property
    def dynamic_bytes(self) -> int:
        """The shared memory that the launch gives a block: all of it or none."""
        return self.shared_bytes if self.shared_bytes > STATIC_SHARED_BYTES else 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Device memory between the kernels of a module, aligned to 256 bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CudaModule:
    """CUDA C of one candidate.

    Attributes:
        name: of the first kernel.
        target: the str() of the Target it was made for.
        source: CUDA C that needs no header.
        launches: kernels to run in order, on one stream.
        args: the arguments of the whole, inputs in ComputeDAG order, then the output.
        scratch: what to allocate besides.
        cubin: machine code of the source, where it was compiled ahead.
    """

    name: str
    target: str
    source: str
    launches: tuple[Launch, ...]
    args: tuple[ArgSpec, ...]
    scratch: tuple[Scratch, ...] = ()
    cubin: bytes | None = None

    def scratch_plan(self) -> MemoryPlan:
        """Where each scratch buffer lies; buffers that no launch needs together share memory."""
        return plan_memory([self._lifetime(b) for b in self.scratch])

    def scratch_size(self, num_threads: int = 1) -> int:
        """Bytes of scratch that a run needs, however many threads the host has."""
        return self.scratch_plan().size_bytes

    def _lifetime(self, buffer: Scratch) -> Lifetime:
        uses = [k for k, launch in enumerate(self.launches) if buffer.name in launch.args]
        size_bytes = -(-buffer.size_bytes // ALIGNMENT) * ALIGNMENT
        return Lifetime(size_bytes, min(uses, default=0), max(uses, default=0))
