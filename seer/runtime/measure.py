"""Measuring candidates: on this machine, or from recorded times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from seer.codegen.artifact import Artifact
from seer.codegen.build import build
from seer.ir.sketch import Sketch
from seer.runtime.pool import BuildPool, Runner
from seer.runtime.records import MeasureRecord
from seer.runtime.target import Target

Candidate = tuple[Sketch, np.ndarray]

RUN_LIMIT_S = 10.0  # for a candidate when no time is known yet
MIN_RUN_LIMIT_S = 2.0
RUN_LIMIT_FACTOR = 50.0  # times the best known
FINAL_ROUNDS = 5


@dataclass(frozen=True)
class MeasureResult:
    """What a trial gave.

    Attributes:
        seconds: median run time; infinity if it failed.
        error: "" or the reason: lower, build, timeout, crash, wrong, guard.
        message: details of the failure.
        times: the single measurements.
        build_s: time to lower and compile.
        run_s: time spent running it.
    """

    seconds: float
    error: str = ""
    message: str = ""
    times: tuple[float, ...] = ()
    build_s: float = 0.0
    run_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.error


class Measurer(Protocol):
    """Anything that can time candidates."""

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterable[MeasureResult]:
        """Time candidates of one task; the results come one by one, in order.

        Args:
            naive: the task's naive sketch, whose result is the right one.
            candidates: sketches and canonical rows.
            best_s: the best time known so far (infinity if none): much slower ones are cut short.
        """
        ...

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """Time a few candidates again, in turn, so that a disturbance falls on all alike."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class LocalMeasurer:
    """Builds in one process per CPU, then runs one candidate at a time in another process.

    Building and running alternate by batch: on a machine with few cores a build beside a run would
    be in the measured time.
    """

    def __init__(self, target: Target, seed: int = 0) -> None:
        self.target = target
        self._seed = seed
        self._builders = BuildPool(target)
        self._runner = Runner()
        self._naive: dict[int, tuple[Sketch, Artifact]] = {}

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        """See Measurer.measure.

        Raises:
            MeasureError: if the naive schedule itself cannot be run.
        """
        reference = self._reference(naive)
        for artifact, error, message, build_s in self._builders.build(candidates):
            if artifact is None:
                yield MeasureResult(float("inf"), error, message, build_s=build_s)
                continue
            r = self._run(reference, artifact, best_s, build_s)
            best_s = min(best_s, r.seconds)
            yield r

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """See Measurer.remeasure: the lower quartile over rounds of each round's median.

        A disturbance only ever adds time, and may last for half of the rounds.
        """
        reference = self._reference(naive)
        built = self._builders.build(candidates)
        rounds: list[list[MeasureResult]] = [[] for _ in built]
        for _ in range(FINAL_ROUNDS):
            for k, (artifact, error, message, build_s) in enumerate(built):
                if artifact is None:
                    rounds[k].append(MeasureResult(float("inf"), error, message, build_s=build_s))
                else:
                    rounds[k].append(self._run(reference, artifact, float("inf"), build_s))
        return [lower_quartile(r) for r in rounds]

    def _run(self, reference: Artifact, artifact: Artifact, best_s: float, build_s: float) -> MeasureResult:
        limit = min(RUN_LIMIT_S, max(MIN_RUN_LIMIT_S, RUN_LIMIT_FACTOR * best_s))
        start = time.perf_counter()
        times, error, message = self._runner.run(reference, self._seed, artifact, self.target, best_s, limit)
        run_s = time.perf_counter() - start
        if error:
            return MeasureResult(float("inf"), error, message, build_s=build_s, run_s=run_s)
        return MeasureResult(statistics.median(times), times=times, build_s=build_s, run_s=run_s)

    def _reference(self, naive: Sketch) -> Artifact:
        known = self._naive.get(id(naive))
        if known is None:
            row = np.zeros(len(naive.params), dtype=np.int64)
            known = self._naive[id(naive)] = (naive, build(naive, row, self.target))
        return known[1]

    def close(self) -> None:
        """End all processes."""
        self._builders.close()
        self._runner.close()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReplayMeasurer:
    """Answers from records: the same run again, bit for bit, on any machine.

    A candidate that was not recorded fails with the error "missing".
    """

    def __init__(self, records: Iterable[MeasureRecord]) -> None:
        self._known = {(r.stage, r.workload_key, r.sketch_key, _key(r.params)): r for r in records}

    def measure(self, naive: Sketch, candidates: Sequence[Candidate], best_s: float) -> list[MeasureResult]:
        """See Measurer.measure."""
        return self._answer("trial", naive, candidates)

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """See Measurer.remeasure."""
        return self._answer("final", naive, candidates)

    def _answer(self, stage: str, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        out = []
        for sketch, row in candidates:
            r = self._known.get((stage, naive.dag.workload_key, sketch.key, _key(sketch.values(row))))
            if r is None:
                out.append(MeasureResult(float("inf"), "missing", "not in the replayed records"))
            else:
                out.append(MeasureResult(r.seconds, r.error, r.message, (), r.build_s, r.run_s))
        return out

    def close(self) -> None:
        """Nothing to free."""


def lower_quartile(results: Sequence[MeasureResult]) -> MeasureResult:
    """One result of several rounds; a failure in any is a failure."""
    failed = next((r for r in results if not r.ok), None)
    if failed is not None:
        return failed
    times = tuple(r.seconds for r in results)
    run_s = sum(r.run_s for r in results)
    quartile = sorted(times)[(len(times) - 1) // 4]
    return MeasureResult(quartile, times=times, build_s=results[0].build_s, run_s=run_s)


def _key(params: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(params.items()))
