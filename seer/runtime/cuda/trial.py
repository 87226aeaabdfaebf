"""One CUDA candidate run: its result checked, the memory round its arrays checked, its time taken."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seer.codegen.artifact import ArgSpec
from seer.codegen.cuda.module import CudaModule
from seer.errors import EmulationError
from seer.runtime.cuda.device import Device, Memory
from seer.runtime.cuda.loaded import LoadedKernel
from seer.runtime.trial import (
    CANARY,
    GUARD_BYTES,
    MAX_REPEATS,
    MIN_REPEATS,
    MIN_TOTAL_S,
    SLOW_FACTOR,
    CheckError,
    check_result,
    random_array,
)

_FAULT_REASONS = {"timeout": "timeout", "crash": "crash", "race": "wrong", "unwritten read": "wrong"}


class GuardedMemory:
    """Device memory with canaries before and after it."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        room = -(-size_bytes // GUARD_BYTES) * GUARD_BYTES  # what comes after is aligned too
        self._whole = device.alloc(room + 2 * GUARD_BYTES)
        self.memory: Memory = self._whole.part(GUARD_BYTES, size_bytes)
        self._tail = self._whole.part(GUARD_BYTES + size_bytes, room + GUARD_BYTES - size_bytes)
        device.fill(self._whole, CANARY)

    def is_intact(self) -> bool:
        """Whether nothing was written outside."""
        guards = (self._whole.part(0, GUARD_BYTES), self._tail)
        return all((self._device.read(g, (g.size_bytes,), "uint8") == CANARY).all() for g in guards)


class CudaBench:
    """Random inputs for one task, and the result that every candidate must give.

    Args:
        device: where candidates run.
        reference: a kernel that is right: the naive schedule.
        seed: of the inputs.

    Raises:
        CheckError: if the reference itself writes where it must not.
        BuildError: if it cannot be compiled.
        MeasureError: if the device cannot run it.
    """

    def __init__(self, device: Device, reference: CudaModule, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._device = device
        self.inputs = [random_array(a, rng) for a in reference.args[:-1]]
        self.expected = self._run_guarded(reference)[1]

    @property
    def size_bytes(self) -> int:
        """Memory that it holds."""
        return sum(a.nbytes for a in (*self.inputs, self.expected))

    def measure(
        self, kernel: CudaModule, best_s: float, flush_cache: bool = False, cubin: bytes | None = None
    ) -> tuple[float, ...]:
        """Seconds of several runs, after one that was checked.

        Args:
            kernel: takes the same inputs as the reference.
            best_s: the best time known; a kernel much slower is timed once.
            flush_cache: time each run with a cold second-level cache.
            cubin: the kernel compiled, if it is.

        Raises:
            CheckError: if it computes something wrong, or writes where it must not.
            BuildError: if it cannot be compiled.
            MeasureError: if the device fails; it is of no use afterwards.
        """
        return self.time(self.ready(kernel, cubin), flush_cache, best_s)

    def ready(self, kernel: CudaModule, cubin: bytes | None = None) -> Run:
        """A kernel loaded, run once and checked, to be timed; it fails as `measure` does."""
        run, out = self._run_guarded(kernel, cubin)
        check_result(out, self.expected, kernel.args[-1].dtype)
        return run

    def time(self, run: Run, flush_cache: bool = False, best_s: float = math.inf) -> tuple[float, ...]:
        """Seconds of several runs of what is ready; see `measure`."""
        first = self._device.time(run, 1, flush_cache)[0]
        if first > SLOW_FACTOR * best_s:
            return (first,)
        wanted = math.ceil(MIN_TOTAL_S / max(first, 1e-7))
        return self._device.time(run, min(MAX_REPEATS, max(MIN_REPEATS, wanted)), flush_cache)

    def _run_guarded(self, kernel: CudaModule, cubin: bytes | None = None) -> tuple[Run, np.ndarray]:
        """Run once between guards; returns how to run it again, and the output."""
        loaded = LoadedKernel(self._device, kernel, cubin)
        packed = [
            value if spec.pack is None else spec.pack.apply(value)
            for spec, value in zip(kernel.args[:-1], self.inputs, strict=True)
        ]
        out = kernel.args[-1]
        sizes = [*(p.nbytes for p in packed), out.size_bytes, kernel.scratch_size()]
        guarded = [GuardedMemory(self._device, n) for n in sizes]
        for g, p in zip(guarded, packed, strict=False):
            self._device.write(g.memory, p)
        self._device.fill(guarded[-2].memory, 0xFF)  # NaN, if it stays
        run = Run(loaded, guarded)
        try:
            run()
            self._device.synchronize()
        except EmulationError as e:
            raise CheckError(_FAULT_REASONS.get(e.fault, "guard"), str(e)) from e
        self._check_memory(kernel.args, packed, guarded)
        return run, self._device.read(guarded[-2].memory, out.shape, out.dtype)

    def _check_memory(
        self, args: Sequence[ArgSpec], packed: Sequence[np.ndarray], guarded: Sequence[GuardedMemory]
    ) -> None:
        for name, g in zip([*(a.name for a in args), "scratch memory"], guarded, strict=True):
            if not g.is_intact():
                raise CheckError("guard", f"memory next to {name} was overwritten")
        for spec, before, g in zip(args[:-1], packed, guarded, strict=False):
            after = self._device.read(g.memory, before.shape, before.dtype.name)
            if after.tobytes() != before.tobytes():
                raise CheckError("guard", f"input {spec.name} was overwritten")


class Run:
    """A loaded kernel and the memory that it runs on."""

    def __init__(self, loaded: LoadedKernel, guarded: Sequence[GuardedMemory]) -> None:
        self._loaded = loaded
        self._guarded = guarded  # keeps the memory alive

    def __call__(self) -> None:
        *args, scratch = [g.memory for g in self._guarded]
        self._loaded.run(args, scratch)
