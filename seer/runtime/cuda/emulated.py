"""The CPU in the place of a GPU: kernels are emulated, and their time comes from a formula."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from seer.codegen.cuda.module import ALIGNMENT, Launch
from seer.dtypes import numpy_dtype
from seer.errors import BuildError, UserError
from seer.runtime.cuda.device import Memory
from seer.runtime.emulate import Order, emulate
from seer.runtime.emulate.compiler import library
from seer.runtime.emulate.source import Translation, translate

# Seconds that a launch takes, given the bytes of its arguments.
Clock = Callable[[Launch, int], float]


class SimulatedClock:
    """What the launch is expected to take, with some noise, which the n-th run of a launch always has.

    Where nothing is expected: launch overhead, bytes over bandwidth, and a time for each wave of
    blocks. It says nothing about a real GPU. It is there so that code that ranks by time has times.
    """

    def __init__(self, seed: int = 0, noise: float = 0.02) -> None:
        self._seed, self._noise = seed, noise
        self._runs: Counter[int] = Counter()

    def __call__(self, launch: Launch, size_bytes: int) -> float:
        seconds = launch.expected_s
        if not seconds:
            resident = 100 * max(1, 2048 // max(32, launch.threads))  # of 100 multiprocessors
            waves = -(-launch.blocks // resident)
            seconds = 3e-6 + size_bytes / 1.5e12 + waves * 1e-6
        identity = zlib.crc32(repr(launch).encode())
        self._runs[identity] += 1
        rng = np.random.default_rng((self._seed, identity, self._runs[identity]))
        return float(seconds * rng.lognormal(0.0, self._noise))


class EmulatedDevice:
    """A Device made of NumPy arrays and `emulate`.

    Args:
        arch: the architecture that it pretends to be; nothing depends on it.
        checked: watch every access of every launch.
        order: in which order threads run.
        seed: of that order, and of the default clock's noise.
        clock: how long a launch takes.
        limit_s: seconds of this CPU after which a launch is ended.
    """

    def __init__(
        self,
        arch: str = "sm_80",
        *,
        checked: bool = True,
        order: Order = "forward",
        seed: int = 0,
        clock: Clock | None = None,
        limit_s: float = 60.0,
    ) -> None:
        self.name = f"emulated {arch}"
        self.arch = arch
        self._checked, self._order, self._seed, self._limit_s = checked, order, seed, limit_s
        self._clock = clock or SimulatedClock(seed)
        self._now_s = 0.0
        self._is_timing = False
        self._modules: dict[str, tuple[str, Translation]] = {}

    def alloc(self, size_bytes: int) -> Memory:
        raw = np.full(size_bytes + ALIGNMENT, 0xCD, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return Memory(raw[start : start + size_bytes], 0, size_bytes)

    def write(self, memory: Memory, array: np.ndarray) -> None:
        _bytes(memory)[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def read(self, memory: Memory, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.array(_bytes(memory).view(numpy_dtype(dtype)).reshape(shape))

    def fill(self, memory: Memory, value: int) -> None:
        _bytes(memory)[...] = value

    def copy(self, source: Memory, destination: Memory) -> None:
        _bytes(destination)[...] = _bytes(source)

    def load(self, source: str, cubin: bytes | None = None) -> tuple[str, Translation]:
        if source not in self._modules:
            try:
                translation = translate(source, self._checked)
            except UserError as e:
                raise BuildError(f"cannot emulate the source: {e}") from e
            library(translation.text, self._checked)
            self._modules[source] = (source, translation)
        return self._modules[source]

    def launch(self, module: tuple[str, Translation], launch: Launch, args: Sequence[Memory]) -> None:
        source, translation = module
        kernel = translation.kernels.get(launch.name)
        if kernel is None:
            raise BuildError(f"the CUDA source has no kernel {launch.name!r}")
        arrays = [
            _bytes(m).view(p.dtypes[0] if p.dtypes else "uint8")
            for m, p in zip(args, kernel.parameters, strict=True)
        ]
        self._now_s += self._clock(launch, sum(m.size_bytes for m in args))
        if self._is_timing:
            return
        emulate(
            source,
            launch.name,
            (launch.blocks,),
            (launch.threads,),
            arrays,
            shared_bytes=launch.dynamic_bytes,
            checked=self._checked,
            order=self._order,
            seed=self._seed,
            limit_s=self._limit_s,
        )

    def synchronize(self) -> None:
        """Launches are finished when `launch` returns."""

    def time(self, run: Callable[[], None], repeats: int, flush_cache: bool = False) -> tuple[float, ...]:
        """See Device.time. Only the clock runs: a kernel that is timed has been run before."""
        times = []
        self._is_timing = True
        try:
            for _ in range(repeats):
                start = self._now_s
                run()
                times.append(self._now_s - start)
        finally:
            self._is_timing = False
        return tuple(times)

    def close(self) -> None:
        self._modules.clear()


def _bytes(memory: Memory) -> np.ndarray:
    out: np.ndarray = memory.owner[memory.offset : memory.offset + memory.size_bytes]
    return out
