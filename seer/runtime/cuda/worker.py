"""A worker process that owns one device and runs candidates on it for its parent.

Requests and answers are those of seer.runtime.worker. After a fault of the device, such as an
illegal address, its context is of no use: the worker answers and ends, and the next request starts
another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from seer.codegen.cuda.module import CudaModule
from seer.errors import BuildError, EmulationError, MeasureError, TargetError
from seer.runtime.contest import Answer, contest
from seer.runtime.cuda.device import Device
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.cuda.trial import CudaBench, Run
from seer.runtime.kept import Kept
from seer.runtime.serve import serve
from seer.runtime.trial import BENCH_BYTES, CheckError


class CudaWorker:
    """What the worker remembers between requests: its device, and the task being measured."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.bench: CudaBench | None = None
        self.benches: Kept[CudaModule, CudaBench] = Kept(BENCH_BYTES, lambda b: b.size_bytes)
        self.is_lost = False  # the device cannot be used any more

    def answer(self, request: tuple[Any, ...]) -> Answer:
        """Answer one request; failures of a candidate are answers, not exceptions."""
        kind, *args = request
        try:
            return ("ok", getattr(self, f"on_{kind}")(*args))
        except BuildError as e:
            return ("error", "build", str(e))
        except CheckError as e:
            return ("error", e.reason, str(e))
        except TargetError as e:
            return ("error", "device", str(e))
        except (MeasureError, EmulationError) as e:
            self.is_lost = True
            return ("error", "crash", str(e))

    def on_device(self, spec: DeviceSpec) -> str:
        self.device = spec.open()
        return self.device.arch

    def on_open(self, reference: CudaModule, seed: int) -> None:
        assert self.device is not None
        device = self.device
        self.bench = self.benches.get_or_make(reference, lambda: CudaBench(device, reference, seed))

    def on_run(
        self, kernel: CudaModule, cubin: bytes | None, best_s: float, flush_cache: bool
    ) -> tuple[float, ...]:
        assert self.bench is not None
        return self.bench.measure(kernel, best_s, flush_cache, cubin)

    def on_ready(self, kernel: CudaModule, cubin: bytes | None) -> Run:
        assert self.bench is not None
        return self.bench.ready(kernel, cubin)

    def on_finals(
        self, finalists: Sequence[tuple[CudaModule, bytes | None]], flush_cache: bool
    ) -> list[Answer]:
        assert self.bench is not None
        bench = self.bench
        checked = [self.answer(("ready", *f)) for f in finalists]
        if self.is_lost:
            return checked
        return contest(checked, lambda ready: [bench.time(r, flush_cache) for r in ready])

    def on_ping(self) -> int:
        return os.getpid()


def main() -> None:
    """Serve the parent until it goes away, or the device is lost."""
    serve(CudaWorker())
