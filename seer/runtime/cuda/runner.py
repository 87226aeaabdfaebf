"""The process that owns a device, seen from outside: failures of a candidate are results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from seer.codegen.cuda.module import CudaModule
from seer.errors import MeasureError
from seer.runtime.contest import Answer, ask
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.measure import MeasureResult
from seer.runtime.pool import WorkerGoneError, WorkerProcess

_OPEN_LIMIT_S = 600.0


class CudaRunner:
    """The one process that uses a device; it is replaced when it or the device dies.

    Args:
        spec: the device.
        seed: of the inputs.
        flush_cache: time with a cold second-level cache.
    """

    def __init__(self, spec: DeviceSpec, seed: int = 0, flush_cache: bool = False) -> None:
        self._spec, self._seed, self._flush_cache = spec, seed, flush_cache
        self._worker = WorkerProcess("seer.runtime.cuda.worker")
        self._arch: str | None = None
        self._device_of = -1  # the process that has the device open
        self._bench: tuple[int, CudaModule] | None = None  # the process, and what it compares with

    @property
    def arch(self) -> str:
        """What the device runs.

        Raises:
            MeasureError: if it cannot be opened.
        """
        if self._arch is None:
            self._worker.start()
            self._open_device()
        assert self._arch is not None
        return self._arch

    def measure(
        self,
        reference: CudaModule,
        kernel: CudaModule,
        best_s: float,
        limit_s: float,
        cubin: bytes | None = None,
    ) -> MeasureResult:
        """Check and time one candidate.

        Args:
            reference: the task's naive schedule, whose result is the right one.
            kernel: the candidate.
            best_s: the best time known so far (infinity if none).
            limit_s: seconds after which the process is ended.
            cubin: the candidate compiled; without it the worker compiles.

        Raises:
            MeasureError: if the device cannot be opened, or the reference cannot be run.
        """
        self._open_bench(reference)
        start = time.perf_counter()
        status, *rest = self._run("run", kernel, cubin, best_s, self._flush_cache, limit_s=limit_s)
        run_s = time.perf_counter() - start
        if status != "ok":
            return MeasureResult(float("inf"), rest[0], rest[1], run_s=run_s)
        return MeasureResult(statistics.median(rest[0]), times=tuple(rest[0]), run_s=run_s)

    def finals(
        self, reference: CudaModule, finalists: Sequence[tuple[CudaModule, bytes | None]], limit_s: float
    ) -> list[Answer]:
        """Times of several kernels with their cubins, one for each round in which all took turns.

        Raises:
            MeasureError: as `measure` does.
        """

        def send(some: Sequence[tuple[CudaModule, bytes | None]]) -> Answer:
            self._open_bench(reference)
            return self._run("finals", some, self._flush_cache, limit_s=limit_s * len(some))

        return ask(send, finalists)

    def _run(self, *request: object, limit_s: float) -> Answer:
        """The answer to a request that runs candidates; a process that is gone is an answer, too."""
        try:
            answer = self._worker.request(*request, limit_s=limit_s)
        except WorkerGoneError as e:
            answer = ("error", e.reason, str(e))
        failed = answer[1] if answer[0] == "ok" and request[0] == "finals" else [answer]
        if any(a[:2] == ("error", "crash") for a in failed):
            self._worker.stop()  # the next candidate gets a device in good order
        return answer

    def _open_bench(self, reference: CudaModule) -> None:
        self._worker.start()
        if self._bench == (self._worker.generation, reference):
            return
        if self._device_of != self._worker.generation:
            self._open_device()
        self._request("open", reference, self._seed, failure="the naive schedule cannot be run")
        self._bench = (self._worker.generation, reference)

    def _open_device(self) -> None:
        self._arch = self._request("device", self._spec, failure="the device cannot be used")
        self._device_of = self._worker.generation

    def _request(self, *request: object, failure: str) -> Any:
        try:
            status, *rest = self._worker.request(*request, limit_s=_OPEN_LIMIT_S)
        except WorkerGoneError as e:
            raise MeasureError(f"{failure}: {e}") from e
        if status != "ok":
            self._worker.stop()
            raise MeasureError(f"{failure}: {rest[1]}")
        return rest[0]

    def close(self) -> None:
        """End the process."""
        self._worker.stop()

    def __enter__(self) -> CudaRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
