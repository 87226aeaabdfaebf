"""GPUs as the search and the code generators see them: limits of the programming model, and speeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

Count = TypeVar("Count", int, np.ndarray)

PARTITIONS = 4  # of a multiprocessor; each has its share of the registers and runs its share of the warps
REGISTER_UNIT = 256  # registers are given to warps in units of this many


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        arch: the name of its instruction set ("sm_80").
        capability: the same as a number (80).
        warp_size: threads that run in step.
        max_threads_per_block: threads of one block, at most.
        max_threads_per_sm: threads that one multiprocessor holds at once.
        max_blocks_per_sm: blocks that one multiprocessor holds at once.
        registers_per_thread: 32-bit registers that one thread can name.
        registers_per_sm: 32-bit registers of one multiprocessor.
        shared_bytes_per_sm: shared memory of one multiprocessor.
        shared_bytes_per_block: shared memory of one block, at most.
        max_vthreads: pieces, far apart, that one thread may compute along all axes together.
        num_sms: multiprocessors.
        clock_hz: cycles per second.
        bandwidth: bytes per second to and from the device's memory.
        flops: float32 operations per second (a fused multiply-add counts two).
        tf32_flops: operations per second of mma.sync on tf32; 0 if there is none.
        l2_bytes: the cache that all multiprocessors share.
        launch_s: seconds that starting a kernel costs.
        name: what its maker calls it, if it is one that is there.
    """

    arch: str
    capability: int
    num_sms: int
    clock_hz: float
    bandwidth: float
    flops: float
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    tf32_flops: float = 0.0
    warp_size: int = 32
    max_threads_per_block: int = 1024
    registers_per_thread: int = 255
    registers_per_sm: int = 65536
    max_vthreads: int = 8
    launch_s: float = 3e-6
    name: str = ""

    @property
    def half_flops(self) -> float:
        """Operations per second of mma.sync on 16 bits, added up in float32."""
        return 2 * self.tf32_flops  # of each of them

    @property
    def reserved_shared_bytes(self) -> int:
        """Shared memory that each block takes for the system, beside its own."""
        return 1024 if self.capability >= 80 else 0

    def warp_registers(self, registers: Count) -> Count:
        """What a warp takes whose threads need so many registers."""
        out: Count = -(-registers * self.warp_size // REGISTER_UNIT) * REGISTER_UNIT
        return out

    def block_registers(self, registers: Count, threads: Count) -> Count:
        """What a launch asks for: as if every partition had as many warps as the one with the most."""
        most = -(-threads // (self.warp_size * PARTITIONS))
        out: Count = self.warp_registers(registers) * most * PARTITIONS
        return out


_MIB, _KIB = 1024 * 1024, 1024

# A GPU of each architecture that people have: V100, T4, A100, RTX 3090, RTX 4090, H100.
GPUS = {
    g.arch: g
    for g in (
        Gpu("sm_70", 70, 80, 1.53e9, 900e9, 15.7e12, 6 * _MIB, 96 * _KIB, 96 * _KIB, 2048, 32),
        Gpu("sm_75", 75, 40, 1.59e9, 320e9, 8.1e12, 4 * _MIB, 64 * _KIB, 64 * _KIB, 1024, 16),
        Gpu("sm_80", 80, 108, 1.41e9, 1555e9, 19.5e12, 40 * _MIB, 164 * _KIB, 163 * _KIB, 2048, 32, 156e12),
        Gpu("sm_86", 86, 82, 1.70e9, 936e9, 35.6e12, 6 * _MIB, 100 * _KIB, 99 * _KIB, 1536, 16, 35.6e12),
        Gpu("sm_89", 89, 128, 2.52e9, 1008e9, 82.6e12, 72 * _MIB, 100 * _KIB, 99 * _KIB, 1536, 24, 82.6e12),
        Gpu("sm_90", 90, 132, 1.83e9, 3350e9, 66.9e12, 50 * _MIB, 228 * _KIB, 227 * _KIB, 2048, 32, 300e12),
    )
}
DEFAULT_ARCH = "sm_80"


@dataclass(frozen=True)
class GpuDevices:
    """Which devices run what is made for a GPU.

    Attributes:
        is_emulated: the CPU in the place of a GPU; times come from a formula.
        check: of emulated trials: "results" compares what they compute, "all" watches every access
            too, "none" runs nothing and takes the formula's time.
        numbers: of the devices that are used; () is every one that is visible (one, if emulated).
        any_arch: the device says what architecture it has, none was asked for.
    """

    is_emulated: bool = False
    check: str = "results"
    numbers: tuple[int, ...] = ()
    any_arch: bool = field(default=False, compare=False)

    def options(self) -> str:
        """As a target's text has them."""
        out = " -device=emulated" if self.is_emulated else ""
        out += f" -check={self.check}" if self.check != "results" else ""
        return out + (f" -devices={','.join(map(str, self.numbers))}" if self.numbers else "")


CHECKS = ("results", "all", "none")
