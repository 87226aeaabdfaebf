"""What searches found, timed again side by side, so that no run owes anything to the hour it ran in.

A machine is faster in one minute than in the next, by more than strategies differ. So whatever was at some
moment the fastest of a run is timed again after all runs, all candidates of a task in turn; a curve then
says how fast the model would have been at every moment of the search had it been stopped there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

import seer
from benchmarks.report import Row
from seer.driver import kernels_of, prepare, resolved
from seer.runtime.measure import LocalMeasurer
from seer.runtime.records import MeasureRecord, Records
from seer.search.defaults import default_candidate
from seer.search.task import SearchTask, tasks_of

Times = dict[str, float]  # seconds of candidates


def candidate_name(sketch_key: str, params: dict[str, int]) -> str:
    """A candidate as a key of a JSON object."""
    return json.dumps([sketch_key, sorted(params.items())])


class Settled:
    """Times of a model's candidates, taken in turn; kept in a file."""

    def __init__(self, model: seer.Graph, target: seer.Target, file: Path) -> None:
        parts, self._target = kernels_of(prepare(model), resolved(target)[1])
        self.tasks = {t.key: t for t in tasks_of(parts, self._target)}
        self._defaults = {k: _default(t) for k, t in self.tasks.items()}
        self._file = file
        self._times: dict[str, Times] = json.loads(file.read_text()) if file.exists() else {}

    def measure(self, runs: Sequence[Path], note: Callable[[str], None] = print) -> None:
        """Time whatever led a run at some moment; a task is timed whole again if a run brought more of it."""
        wanted = {key: {self.default(key): None} for key in self.tasks}
        for path in runs:
            with Records(path) as records:
                for key in self.tasks:
                    found = records.for_workload(key, self._target.key)
                    chosen = records.best(key, self._target.key, self._defaults[key])
                    led = [*leaders(found), *([] if chosen is None else [chosen])]
                    names = (candidate_name(r.sketch_key, r.params) for r in led)
                    wanted[key].update(dict.fromkeys(names))
        missing = [k for k, names in wanted.items() if not names.keys() <= self._times.get(k, {}).keys()]
        if not missing:
            return
        with LocalMeasurer(self._target) as measurer:
            for n, key in enumerate(missing):
                self._times[key] = self._timed(measurer, self.tasks[key], list(wanted[key]))
                partial = self._file.with_suffix(".partial")
                partial.write_text(json.dumps(self._times))
                partial.rename(self._file)
                done = f"{n + 1} of {len(missing)}"
                note(f"  {done}: {len(wanted[key])} candidates of {self.tasks[key].name}")

    def _timed(self, measurer: LocalMeasurer, task: SearchTask, names: Sequence[str]) -> Times:
        sketches = {s.key: s for s in task.sketches}
        candidates = []
        for name in names:
            key, params = json.loads(name)
            candidates.append((sketches[key], sketches[key].row(dict(params))))
        results = measurer.remeasure(task.sketches[0], candidates)
        return {n: r.seconds for n, r in zip(names, results, strict=True)}

    def default(self, key: str) -> str:
        """What an untuned model runs."""
        return candidate_name(*self._defaults[key])

    def curve(self, run: Path, events: Sequence[Row]) -> list[Row]:
        """The model's latency as the run went on, from its untuned state to what it would be compiled to.

        Args:
            run: its records.
            events: rows with the run's own clock: `seconds` and `measurements`.
        """
        first, *_ = events
        best = {k: self._times[k][self.default(k)] for k in self.tasks}
        with Records(run) as records:
            found = [r for k in self.tasks for r in records.for_workload(k, self._target.key)]
            final = {k: records.best(k, self._target.key, self._defaults[k]) for k in self.tasks}
        trials = sorted((r for r in found if r.stage == "trial"), key=lambda r: r.created_at)
        # An event is told after its trials were recorded, so none was recorded later than it says.
        start = max(
            trials[e["measurements"] - 1].created_at - e["seconds"]
            for e in events
            if 0 < e["measurements"] <= len(trials)
        )
        raw: Times = {}
        out: list[Row] = []

        def note(seconds: float, measurements: int, is_final: bool = False) -> None:
            latency = 1e3 * sum(t.weight * best[k] for k, t in self.tasks.items())
            if is_final or not out or out[-1]["latency_ms"] != latency:
                row = {"seconds": seconds, "measurements": measurements, "latency_ms": latency}
                out.append({**first, **row, "is_final": is_final, "is_settled": True})

        note(trials[0].created_at - start, 1)
        for n, r in enumerate(trials):
            if r.ok and r.seconds < raw.get(r.workload_key, np.inf):
                raw[r.workload_key] = r.seconds
                best[r.workload_key] = self._time(r)
                note(r.created_at - start, n + 1)
        for k, chosen in final.items():
            best[k] = self._times[k][self.default(k)] if chosen is None else self._time(chosen)
        note(max(e["seconds"] for e in events), len(trials), is_final=True)
        return out

    def _time(self, r: MeasureRecord) -> float:
        return self._times[r.workload_key][candidate_name(r.sketch_key, r.params)]


def _default(task: SearchTask) -> tuple[str, dict[str, int]]:
    sketch, row = default_candidate(task.dag, task.target)
    return sketch.key, sketch.values(row)


def leaders(found: Iterable[MeasureRecord]) -> list[MeasureRecord]:
    """The records of a workload that were the fastest when they were made, and those timed as finalists."""
    best, out = np.inf, []
    for r in found:
        if r.ok and (r.stage == "final" or r.seconds < best):
            out.append(r)
            best = min(best, r.seconds) if r.stage == "trial" else best
    return out
