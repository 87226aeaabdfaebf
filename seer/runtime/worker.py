"""A worker process: builds and runs candidates for its parent.

It answers requests on an inherited socket until the other end closes, and dies with it. A request
is a tuple that begins with its kind; an answer is ("ok", value) or ("error", reason, message).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.codegen.artifact import Artifact
from seer.codegen.build import build
from seer.errors import BuildError, ScheduleError, VerifyError
from seer.ir.sketch import Sketch
from seer.runtime.contest import Answer, contest
from seer.runtime.kept import Kept
from seer.runtime.serve import serve
from seer.runtime.sweep import Sweep
from seer.runtime.target import Target
from seer.runtime.trial import BENCH_BYTES, Bench, CheckError, Ready, time_round


class Worker:
    """What a worker remembers between requests: sketches by number, and the task being measured."""

    is_lost = False  # a process can always go on

    def __init__(self) -> None:
        self.sketches: dict[int, Sketch] = {}
        self.bench: Bench | None = None
        self.benches: Kept[Artifact, Bench] = Kept(BENCH_BYTES, lambda b: b.size_bytes)
        self.sweep: tuple[Target, Sweep] | None = None

    def answer(self, request: tuple[Any, ...]) -> Answer:
        """Answer one request; failures of a candidate are answers, not exceptions."""
        kind, *args = request
        try:
            return ("ok", getattr(self, f"on_{kind}")(*args))
        except ScheduleError as e:
            return ("error", "lower", str(e))
        except (BuildError, VerifyError) as e:
            return ("error", "build", str(e))
        except CheckError as e:
            return ("error", e.reason, str(e))

    def on_sketch(self, number: int, sketch: Sketch) -> None:
        self.sketches[number] = sketch

    def on_build(self, number: int, row: np.ndarray, target: Target) -> tuple[Artifact, float]:
        start = time.perf_counter()
        artifact = build(self.sketches[number], row, target)
        return artifact, time.perf_counter() - start

    def on_open(self, naive: Artifact, seed: int) -> None:
        self.bench = self.benches.get_or_make(naive, lambda: Bench(naive, seed))

    def on_run(self, artifact: Artifact, target: Target, best_s: float) -> tuple[float, ...]:
        assert self.bench is not None
        return self.bench.measure(artifact, target.num_threads, best_s, self._sweep_of(target))

    def on_ready(self, artifact: Artifact, target: Target) -> Ready:
        assert self.bench is not None
        return self.bench.ready(artifact, target.num_threads)

    def on_finals(self, artifacts: Sequence[Artifact], target: Target) -> list[Answer]:
        sweep = self._sweep_of(target)
        checked = [self.answer(("ready", a, target)) for a in artifacts]
        return contest(checked, lambda ready: time_round(ready, sweep))

    def _sweep_of(self, target: Target) -> Sweep | None:
        if target.sweep_bytes and (self.sweep is None or self.sweep[0] != target):
            self.sweep = (target, Sweep(target.sweep_bytes, target))
        return self.sweep[1] if target.sweep_bytes and self.sweep is not None else None

    def on_ping(self) -> int:
        return os.getpid()


def main() -> None:
    """Serve the parent until it goes away."""
    serve(Worker())
