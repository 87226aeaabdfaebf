"""A GPU, through pycuda. pycuda is imported when the first device is opened, never before."""

from __future__ import annotations

import contextlib
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seer.codegen.cuda.module import Launch
from seer.dtypes import numpy_dtype
from seer.errors import BuildError, MeasureError, TargetError
from seer.runtime import nvrtc
from seer.runtime.cuda.device import Memory
from seer.runtime.gpu import GPUS, Gpu


def driver() -> Any:
    """The module pycuda.driver, initialised.

    Raises:
        TargetError: in one sentence: what is missing of pycuda, driver, device, compiler; what to do.
    """
    try:
        importlib.import_module("pycuda")
    except (ImportError, OSError) as e:
        raise TargetError(f"running on CUDA needs pycuda, which cannot be imported ({e}); {_HOW}") from e
    try:
        module = importlib.import_module("pycuda.driver")
    except (ImportError, OSError) as e:
        raise TargetError(
            f"running on CUDA needs NVIDIA's driver, whose library does not load ({e}); "
            "install the driver, or build pycuda for the one that is installed"
        ) from e
    try:
        module.init()
        count = int(module.Device.count())
    except module.Error as e:
        raise TargetError(f"running on CUDA needs a device, and the driver finds none ({e})") from e
    if count == 0:
        raise TargetError("running on CUDA needs a device, and the driver finds none")
    if not nvrtc.compiler_name():
        raise TargetError(f"running on CUDA needs a compiler, and there is none; {nvrtc.INSTALL}")
    return module


_HOW = "pip install 'seer[cuda]'"


def why_unavailable() -> str:
    """One sentence on what CUDA lacks here; "" if a device can be opened."""
    try:
        driver()
    except TargetError as e:
        return str(e)
    return ""


_FILLER_BYTES = 128 << 20


def visible_devices() -> dict[int, Gpu]:
    """Every device by its number, with what it says of itself; none is opened.

    Raises:
        TargetError: as `driver`.
    """
    drv = driver()
    try:
        return {n: _describe(drv, drv.Device(n)) for n in range(drv.Device.count())}
    except drv.Error as e:
        raise TargetError(f"the CUDA devices cannot be asked what they are: {e}") from e


def _describe(drv: Any, device: Any) -> Gpu:
    """What is known of the nearest older architecture, with the device's own numbers."""
    major, minor = device.compute_capability()
    capability = 10 * major + minor
    known = [g for g in GPUS.values() if g.capability <= capability]
    if not known:
        raise TargetError(f"{device.name()} has sm_{capability}; seer needs {next(iter(GPUS))} or later")
    base = max(known, key=lambda g: g.capability)

    def ask(name: str, default: int) -> int:
        key = getattr(drv.device_attribute, name, None)
        return default if key is None else int(device.get_attribute(key)) or default

    num_sms = ask("MULTIPROCESSOR_COUNT", base.num_sms)
    clock_hz = 1e3 * ask("CLOCK_RATE", int(base.clock_hz / 1e3))
    speed = num_sms * clock_hz / (base.num_sms * base.clock_hz)
    lines = 2e3 * ask("MEMORY_CLOCK_RATE", 0) * ask("GLOBAL_MEMORY_BUS_WIDTH", 0) / 8
    return replace(
        base,
        arch=f"sm_{capability}",
        capability=capability,
        name=str(device.name()),
        num_sms=num_sms,
        clock_hz=clock_hz,
        bandwidth=lines or base.bandwidth,
        flops=base.flops * speed,
        tf32_flops=base.tf32_flops * speed,
        l2_bytes=ask("L2_CACHE_SIZE", base.l2_bytes),
        shared_bytes_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", base.shared_bytes_per_sm),
        shared_bytes_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", base.shared_bytes_per_block),
        max_threads_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR", base.max_threads_per_sm),
    )


class PycudaDevice:
    """One GPU with its primary context and one stream.

    Args:
        index: its number.

    Raises:
        TargetError: if it cannot be opened.
    """

    def __init__(self, index: int = 0) -> None:
        self._driver = drv = driver()
        if not 0 <= index < drv.Device.count():
            raise TargetError(f"CUDA device {index} does not exist; there are {drv.Device.count()}")
        try:
            device = drv.Device(index)
            major, minor = device.compute_capability()
            self.name = str(device.name())
            self.arch = f"sm_{major}{minor}"
            self._l2_bytes = int(device.get_attribute(drv.device_attribute.L2_CACHE_SIZE))
            self._context = device.retain_primary_context()
            self._context.push()
            self._thread = threading.get_ident()
            # pycuda aborts the process if a context is current at its end.
            self._leave = weakref.finalize(self, _leave, self._context, drv.Error)
            self._stream = drv.Stream()
        except drv.Error as e:
            raise TargetError(f"CUDA device {index} cannot be opened: {e}") from e
        self._filler: Memory | None = None
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[int, Launch], Any] = {}

    def alloc(self, size_bytes: int) -> Memory:
        with self._errors("allocate memory"):
            return Memory(self._driver.mem_alloc(max(size_bytes, 1)), 0, size_bytes)

    def write(self, memory: Memory, array: np.ndarray) -> None:
        if array.nbytes:
            with self._errors("copy to the device"):
                self.synchronize()
                self._driver.memcpy_htod(_address(memory), np.ascontiguousarray(array))

    def read(self, memory: Memory, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        out = np.empty(shape, numpy_dtype(dtype))
        if out.nbytes:
            with self._errors("copy from the device"):
                self.synchronize()
                self._driver.memcpy_dtoh(out, _address(memory))
        return out

    def fill(self, memory: Memory, value: int) -> None:
        if memory.size_bytes:
            with self._errors("fill memory"):
                self._driver.memset_d8_async(_address(memory), value, memory.size_bytes, self._stream)

    def copy(self, source: Memory, destination: Memory) -> None:
        if source.size_bytes:
            with self._errors("copy on the device"):
                self._driver.memcpy_dtod_async(
                    _address(destination), _address(source), source.size_bytes, self._stream
                )

    def load(self, source: str, cubin: bytes | None = None) -> Any:
        if source not in self._modules:
            code = cubin or nvrtc.compile_cubin(source, self.arch).data
            try:
                with self._current():
                    self._modules[source] = self._driver.module_from_buffer(code)
            except self._driver.Error as e:
                raise BuildError(f"the driver refuses the cubin for {self.arch}: {e}") from e
        return self._modules[source]

    def launch(self, module: Any, launch: Launch, args: Sequence[Memory]) -> None:
        with self._errors(f"launch {launch.name}"):
            key = (id(module), launch)
            if key not in self._functions:
                self._functions[key] = self._function(module, launch)
            self._functions[key].prepared_async_call(
                (launch.blocks, 1, 1),
                (launch.threads, 1, 1),
                self._stream,
                *map(_address, args),
                shared_size=launch.dynamic_bytes,
            )

    def synchronize(self) -> None:
        with self._errors("run what was launched"):
            self._stream.synchronize()

    def time(self, run: Callable[[], None], repeats: int, flush_cache: bool = False) -> tuple[float, ...]:
        """See Device.time.

        While the device fills a large buffer, which takes it about 0.1 ms, the host queues what is
        timed: otherwise the time between two events would be that of launching, of short kernels.
        That buffer is also what takes the place of everything else in the cache; for a time with a
        warm cache there is one more run before the first event.
        """
        with self._errors("time a run"):
            if self._filler is None:
                self._filler = self.alloc(max(4 * self._l2_bytes, _FILLER_BYTES))
            events = []
            for _ in range(repeats):
                self.fill(self._filler, 0)
                if not flush_cache:
                    run()
                start, end = self._driver.Event(), self._driver.Event()
                start.record(self._stream)
                run()
                end.record(self._stream)
                events.append((start, end))
            self._stream.synchronize()
            return tuple(start.time_till(end) * 1e-3 for start, end in events)

    def close(self) -> None:
        self._functions.clear()
        self._modules.clear()
        self._filler = None
        self._leave()

    def _function(self, module: Any, launch: Launch) -> Any:
        function = module.get_function(launch.name)
        if launch.dynamic_bytes:  # more than a launch may ask for without saying so ahead
            limit = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.set_attribute(limit, launch.dynamic_bytes)
        function.prepare("P" * len(launch.args))
        return function

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            with self._current():
                yield
        except self._driver.Error as e:
            raise MeasureError(f"{self.name} cannot {what}: {e}") from e

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """The context is current in the thread that opened the device; lend it to any other."""
        if threading.get_ident() == self._thread:
            yield
            return
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()


def _leave(context: Any, error: type[Exception]) -> None:
    with contextlib.suppress(error):  # after a fault of a kernel the context is lost
        context.pop()
        context.detach()


def _address(memory: Memory) -> int:
    return int(memory.owner) + memory.offset
