"""A Measurer that runs nothing: candidates are lowered to CUDA C, and a formula gives their times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

from seer.errors import BuildError, ScheduleError, VerifyError
from seer.ir.sketch import Sketch
from seer.runtime.cuda.emulated import SimulatedClock
from seer.runtime.cuda.measure import Generate
from seer.runtime.measure import Candidate, MeasureResult

REPEATS = 5


class SimulatedMeasurer:
    """Times as an emulated device gives them, without emulating; results are not compared.

    Args:
        generate: makes CUDA C of a candidate.
        seed: of the noise.
    """

    def __init__(self, generate: Generate, seed: int = 0) -> None:
        self._generate = generate
        self._clock = SimulatedClock(seed)

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        """See Measurer.measure."""
        yield from map(self._measure, candidates)

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """See Measurer.remeasure."""
        return [self._measure(c) for c in candidates]

    def _measure(self, candidate: Candidate) -> MeasureResult:
        start = time.perf_counter()
        try:
            module = self._generate(*candidate)
        except (ScheduleError, BuildError, VerifyError) as e:
            reason = "lower" if isinstance(e, ScheduleError) else "build"
            return MeasureResult(float("inf"), reason, str(e), build_s=time.perf_counter() - start)
        times = tuple(sum(self._clock(e, 0) for e in module.launches) for _ in range(REPEATS))
        return MeasureResult(statistics.median(times), times=times, build_s=time.perf_counter() - start)

    def close(self) -> None:
        """Nothing to free."""
