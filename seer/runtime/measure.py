"""Measuring candidates: on this machine, or from recorded times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from seer.codegen.artifact import Artifact
from seer.codegen.build import build
from seer.ir.sketch import Sketch
from seer.runtime.contest import Answer
from seer.runtime.kept import Kept
from seer.runtime.pool import BuildPool, Built, Runner
from seer.runtime.records import MeasureRecord
from seer.runtime.target import Target

Candidate = tuple[Sketch, np.ndarray]
CandidateKey = tuple[str, str, bytes]  # workload, sketch, row
T = TypeVar("T")

RUN_LIMIT_S = 10.0  # for a candidate when no time is known yet
MIN_RUN_LIMIT_S = 2.0
RUN_LIMIT_FACTOR = 50.0  # times the best known
BUILT_BYTES = 64 << 20  # of machine code that is kept for the comparison of finalists


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
        self._built: Kept[CandidateKey, Built] = Kept(BUILT_BYTES, _size_bytes)

    def measure(
        self, naive: Sketch, candidates: Sequence[Candidate], best_s: float
    ) -> Iterator[MeasureResult]:
        """See Measurer.measure.

        Raises:
            MeasureError: if the naive schedule itself cannot be run.
        """
        reference = self._reference(naive)
        for artifact, error, message, build_s in built_once(self._built, candidates, self._builders.build):
            if artifact is None:
                yield _failed(error, message, build_s)
                continue
            r = self._run(reference, artifact, best_s, build_s)
            best_s = min(best_s, r.seconds)
            yield r

    def remeasure(self, naive: Sketch, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """See Measurer.remeasure."""
        reference = self._reference(naive)

        def finals(artifacts: Sequence[Artifact]) -> list[Answer]:
            return self._runner.finals(reference, self._seed, artifacts, self.target, RUN_LIMIT_S)

        built = built_once(self._built, candidates, self._builders.build)
        return final_results([(a, s) if a is not None else _failed(e, m, s) for a, e, m, s in built], finals)

    def _run(self, reference: Artifact, artifact: Artifact, best_s: float, build_s: float) -> MeasureResult:
        limit = min(RUN_LIMIT_S, max(MIN_RUN_LIMIT_S, RUN_LIMIT_FACTOR * best_s))
        start = time.perf_counter()
        times, error, message = self._runner.run(reference, self._seed, artifact, self.target, best_s, limit)
        run_s = time.perf_counter() - start
        if error:
            return _failed(error, message, build_s, run_s)
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


def built_once(
    kept: Kept[CandidateKey, T],
    candidates: Sequence[Candidate],
    build: Callable[[list[Candidate]], Iterable[T]],
) -> list[T]:
    """What `build` makes of candidates; it gets only those that are not kept from before."""
    keys = [candidate_key(c) for c in candidates]
    known = [kept.get(k) for k in keys]
    new = iter(build([c for c, b in zip(candidates, known, strict=True) if b is None]))
    built = [next(new) if b is None else b for b in known]
    for key, b in zip(keys, built, strict=True):
        kept.put(key, b)
    return built


def candidate_key(candidate: Candidate) -> CandidateKey:
    """What tells candidates apart."""
    sketch, row = candidate
    return sketch.dag.workload_key, sketch.key, row.tobytes()


def final_results(
    built: Sequence[tuple[T, float] | MeasureResult], finals: Callable[[list[T]], Sequence[Answer]]
) -> list[MeasureResult]:
    """The lower quartile over rounds of each finalist's times.

    A disturbance only ever adds time, and may last for half of the rounds.

    Args:
        built: the finalists with the seconds that it took to build each, or why there is none.
        finals: one time of each for each round, or why there is none.
    """
    start = time.perf_counter()
    answers = iter(finals([b[0] for b in built if isinstance(b, tuple)]))
    run_s = (time.perf_counter() - start) / max(1, len(built))
    return [b if isinstance(b, MeasureResult) else _final_result(next(answers), b[1], run_s) for b in built]


def _final_result(answer: Answer, build_s: float, run_s: float) -> MeasureResult:
    if answer[0] != "ok":
        return _failed(answer[1], answer[2], build_s, run_s)
    times = answer[1]
    quartile = sorted(times)[(len(times) - 1) // 4]
    return MeasureResult(quartile, times=times, build_s=build_s, run_s=run_s)


def _failed(error: str, message: str, build_s: float, run_s: float = 0.0) -> MeasureResult:
    return MeasureResult(float("inf"), error, message, build_s=build_s, run_s=run_s)


def _size_bytes(built: Built) -> int:
    return len(built[0].code) if built[0] is not None else 0


def _key(params: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(params.items()))
