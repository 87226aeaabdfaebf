"""CUDA candidates measured: compiled side by side, run one at a time on each device.

They run in the process that owns the device, so that a crash is a result and not the end.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from seer import flags
from seer.codegen.cuda.module import CudaModule
from seer.errors import BuildError, MeasureError, ScheduleError, VerifyError
from seer.ir.sketch import Sketch
from seer.runtime.contest import Answer
from seer.runtime.cuda.build import compile_kernel
from seer.runtime.cuda.runner import CudaRunner
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.kept import Kept
from seer.runtime.measure import (
    BUILT_BYTES,
    MIN_RUN_LIMIT_S,
    RUN_LIMIT_FACTOR,
    RUN_LIMIT_S,
    Candidate,
    CandidateKey,
    MeasureResult,
    built_once,
    candidate_key,
    final_results,
)

# A sketch and a row as CUDA C.
Generate = Callable[[Sketch, np.ndarray], CudaModule]


class CudaMeasurer:
    """A Measurer on one or more devices.

    Threads generate and compile candidates (the compiler runs without Python's lock) while each
    device checks and times one at a time.

    Args:
        specs: the devices; equal ones, since their times are compared.
        generate: makes CUDA C of a candidate.
        seed: of the inputs.
        flush_cache: time with a cold second-level cache.
    """

    def __init__(
        self, specs: Sequence[DeviceSpec], generate: Generate, seed: int = 0, flush_cache: bool = False
    ) -> None:
        self._specs, self._generate = specs, generate
        self._runners = [CudaRunner(s, seed, flush_cache) for s in specs]
        self._builders = ThreadPoolExecutor(flags.workers(), thread_name_prefix="seer-cuda-build")
        self._devices = ThreadPoolExecutor(len(specs), thread_name_prefix="seer-cuda-run")
        self._naive: dict[int, tuple[Sketch, CudaModule]] = {}
        self._built: Kept[CandidateKey, _Built | MeasureResult] = Kept(BUILT_BYTES, _size_bytes)

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        """See Measurer.measure.

        Raises:
            MeasureError: if a device cannot be opened, or the naive schedule cannot be run.
        """
        reference = self._reference(naive)
        arch = self._runners[0].arch
        built = [self._builders.submit(self._build, c, arch) for c in candidates]
        free: queue.SimpleQueue[CudaRunner] = queue.SimpleQueue()
        for r in self._runners:
            free.put(r)
        best = _Best(best_s)

        def run(k: int) -> MeasureResult:
            result = built[k].result()
            if isinstance(result, MeasureResult):
                return result
            runner = free.get()
            try:
                return best.note(self._run(runner, reference, result, best.seconds))
            finally:
                free.put(runner)

        running: list[Future[MeasureResult]] = [self._devices.submit(run, k) for k in range(len(candidates))]
        try:
            for candidate, build, future in zip(candidates, built, running, strict=True):
                result = future.result()
                self._built.put(candidate_key(candidate), build.result())
                yield result
        finally:
            for f in running:
                f.cancel()
            for b in built:
                b.cancel()

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """See Measurer.remeasure: all on the first device."""
        reference = self._reference(naive)
        arch = self._runners[0].arch
        limit_s = self._specs[0].run_limit_s or RUN_LIMIT_S

        def build(missing: list[Candidate]) -> Iterator[_Built | MeasureResult]:
            return self._builders.map(lambda c: self._build(c, arch), missing)

        def finals(loadable: list[_Loadable]) -> list[Answer]:
            return self._runners[0].finals(reference, loadable, limit_s)

        built = built_once(self._built, candidates, build)
        return final_results(
            [b if isinstance(b, MeasureResult) else ((b.kernel, b.cubin), b.build_s) for b in built], finals
        )

    def _build(self, candidate: Candidate, arch: str) -> _Built | MeasureResult:
        start = time.perf_counter()
        try:
            kernel = self._generate(*candidate)
            cubin = compile_kernel(kernel, self._specs[0], arch, is_trial=True)
        except (ScheduleError, BuildError, VerifyError) as e:
            reason = "lower" if isinstance(e, ScheduleError) else "build"
            return MeasureResult(float("inf"), reason, str(e), build_s=time.perf_counter() - start)
        return _Built(kernel, cubin, time.perf_counter() - start)

    def _run(self, runner: CudaRunner, reference: CudaModule, b: _Built, best_s: float) -> MeasureResult:
        limit_s = self._specs[0].run_limit_s or min(
            RUN_LIMIT_S, max(MIN_RUN_LIMIT_S, RUN_LIMIT_FACTOR * best_s)
        )
        result = runner.measure(reference, b.kernel, best_s, limit_s, b.cubin)
        return replace(result, build_s=b.build_s)

    def _reference(self, naive: Sketch) -> CudaModule:
        known = self._naive.get(id(naive))
        if known is None:
            row = np.zeros(len(naive.params), dtype=np.int64)
            known = self._naive[id(naive)] = (naive, self._generate(naive, row))
        return known[1]

    def close(self) -> None:
        """End all processes and threads."""
        for pool in (self._builders, self._devices):
            pool.shutdown(wait=False, cancel_futures=True)
        for r in self._runners:
            with contextlib.suppress(MeasureError):
                r.close()

    def __enter__(self) -> CudaMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Loadable = tuple[CudaModule, bytes | None]  # with its machine code, where it is compiled ahead


def _size_bytes(built: _Built | MeasureResult) -> int:
    return 0 if isinstance(built, MeasureResult) else len(built.kernel.source) + len(built.cubin or b"")


class _Built:
    def __init__(self, kernel: CudaModule, cubin: bytes | None, build_s: float) -> None:
        self.kernel, self.cubin, self.build_s = kernel, cubin, build_s


class _Best:
    """The best time so far; devices may set it at the same time, and the smaller one stays."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def note(self, result: MeasureResult) -> MeasureResult:
        self.seconds = min(self.seconds, result.seconds)
        return result
