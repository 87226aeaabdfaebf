"""`compile` and `tune`: the tables of contents of seer."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from seer import flags, memory
from seer.backends import Backend, Model, backend_of
from seer.codegen.model_plan import KernelLike, plan_model
from seer.errors import BuildError, ScheduleError, UserError
from seer.graph.graph import Graph
from seer.graph.narrow import narrow, storage_type
from seer.graph.ops.common import is_whole
from seer.graph.partition import Partition, partition, weight_bytes
from seer.graph.passes import optimize
from seer.graph.regions import sliced
from seer.ir.dag import ComputeDAG
from seer.ir.sketch import Sketch
from seer.progress import Display
from seer.runtime.measure import Measurer
from seer.runtime.records import Records
from seer.runtime.target import Target
from seer.search.defaults import default_number, default_row
from seer.search.events import Callback, TaskStatus, ignore
from seer.search.rules import generate_sketches
from seer.search.strategies import DEFAULT, strategy_of
from seer.search.task import tasks_of
from seer.search.tuner import TuneSummary, tune_tasks
from seer.search.warm import WarmStart, shipped

RecordsLike = Records | str | Path | None
Built = TypeVar("Built", covariant=True)


class Builder(Protocol[Built]):
    """What turns a candidate into code for a target."""

    def __call__(self, sketch: Sketch, row: np.ndarray, target: Target, name: str) -> Built: ...


_log = logging.getLogger("seer")

MAX_SECONDS = 1e9  # of a budget of time: some thirty years
LARGE_BYTES = 8 << 20  # of constants, so that freeing them at once is worth some milliseconds


def compile(
    model: Graph,
    target: str | Target | None = "llvm",
    records: RecordsLike = None,
    exact: bool = False,
    dtype: str = "float32",
) -> Model:
    """Compile a model to machine code.

    Args:
        model: the graph; its inputs and outputs become those of the compiled model.
        target: what to compile for: "llvm" (this CPU), "llvm -threads=1", "cuda" (this GPU), or
            "cuda -arch=sm_80 -device=emulated" (the CPU in the place of a GPU).
        records: a database from `tune`. Each kernel takes its fastest recorded schedule, or the default
            one where none is known to be faster.
        exact: leave out algorithms such as Winograd's, which are equal up to rounding only.
        dtype: what weights, and large arrays between kernels, are stored as: "float16" and "bfloat16"
            take half the memory. Arithmetic, inputs and outputs stay float32.

    Returns:
        A model to call with NumPy arrays: a CompiledModel, or a CudaModel on a GPU.

    Raises:
        UserError: if the model has no output, this machine cannot run the target, or the dtype is unknown.
        RecordError: if the records cannot be read.
    """
    _check(model)
    backend, chosen = resolved(target)
    graph = prepare(model, dtype)
    parts, chosen = kernels_of(graph, chosen)
    with _opened(records) as database:
        dags = {s.dag.workload_key: s.dag for s in parts.subgraphs}
        candidates = {key: best_candidate(dag, chosen, database, exact) for key, dag in dags.items()}
        if (
            database is not None
            and not any(database.best(key, chosen.key) for key in dags)
            and database.count()
        ):
            _log.warning("records %s know no kernel of %s on %s", database.path, model.name, chosen.key)
    kernels = build_kernels(candidates, chosen)
    plan = plan_model(graph, parts, [kernels[s.dag.workload_key] for s in parts.subgraphs])
    # From here on only the plan holds the constants, if the caller has let the graph go: they are freed
    # one by one while the model takes them.
    del model, graph, parts, dags, candidates, kernels
    is_large = plan.constant_bytes >= LARGE_BYTES
    if is_large:
        memory.give_back()
    loaded = backend.load(plan, chosen)
    if is_large:
        memory.give_back()
    return loaded


def tune(
    model: Graph,
    target: str | Target | None = "llvm",
    trials: int | None = None,
    seconds: float | None = None,
    records: RecordsLike = None,
    seed: int | None = None,
    strategy: str = DEFAULT,
    progress: bool | Callback = True,
    measurer: Measurer | None = None,
    store: RecordsLike = None,
    exact: bool = False,
    dtype: str = "float32",
    cold: bool = False,
) -> TuneResult:
    """Search for fast schedules of every kernel of a model.

    Args:
        model: the graph.
        target: what to tune for.
        trials: measurements in all; 64 per task if neither trials nor seconds are given.
        seconds: wall time of the search; comparing what it found with the default schedules may take
            longer on a machine that is busy with other things.
        records: a database (made if there is none) to which every trial is appended; a run that was
            stopped goes on where it was when it is started again with the same arguments. None keeps
            the records in memory, in the result.
        seed: decides every random choice (default: SEER_SEED, or 0).
        strategy: how to search: "ansor", "familyseer", "seer" or "random", with options.
        progress: show a display; or a function that is called with every TuneEvent.
        measurer: what times candidates, instead of the target's own.
        store: records of other models to start warm from: cost models and best parameters of
            families that they share with this one. None starts from the store that comes with seer.
        exact: leave out algorithms such as Winograd's, which are equal up to rounding only.
        dtype: as it will be given to `compile`.
        cold: start from nothing instead of seer's store.

    Returns:
        What was found; pass its `records` to `compile`. Ctrl-C ends the search, not the program.

    Raises:
        UserError: if an argument cannot work.
    """
    _check(model)
    _, chosen = resolved(target)
    _check_budget(trials, seconds)
    seed = flags.seed() if seed is None else _checked_seed(seed)
    how = strategy_of(strategy)
    graph = prepare(model, dtype)
    parts, chosen = kernels_of(graph, chosen)
    tasks = tasks_of(parts, chosen, exact)
    if trials is None and seconds is None:
        trials = 64 * len(tasks)
    database = records if isinstance(records, Records) else Records(records)
    database.append([])  # where nothing can be kept, nothing is measured
    with (
        _display(progress) as callback,
        _measuring(measurer, chosen) as timer,
        _opened(store) as known,
    ):
        own = {t.key for t in tasks}  # of these a database knows what a run of this model knew
        prior = WarmStart.of(known, chosen.clock).without(own) if known is not None else shipped(chosen.clock)
        summary = tune_tasks(
            tasks,
            timer,
            database,
            how,
            trials=trials,
            seconds=seconds,
            seed=seed,
            callback=callback,
            store=None if cold and known is None else prior,
        )
    return TuneResult(model.name, str(chosen), strategy, summary, database)


@dataclass(frozen=True)
class TuneResult:
    """What `tune` found.

    Attributes:
        model: the model's name.
        target: what it was tuned for.
        strategy: how.
        summary: tasks, trials, failures, times.
        records: the open database, for `compile`.
    """

    model: str
    target: str
    strategy: str
    summary: TuneSummary
    records: Records

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        """Every task at the end."""
        return self.summary.statuses

    @property
    def trials(self) -> int:
        """Measurements in all."""
        return self.summary.trials

    @property
    def latency_s(self) -> float:
        """Estimated latency of the tuned model: the sum of weight * best over its tasks."""
        return self.summary.latency_s

    @property
    def errors(self) -> dict[str, int]:
        """Failed trials by reason."""
        return self.summary.errors

    def __str__(self) -> str:
        s = self.summary
        failed = ", ".join(f"{n} {reason}" for reason, n in sorted(s.errors.items())) or "none"
        per_trial = s.seconds / s.new_trials if s.new_trials else 0.0
        stopped = "\nstopped by Ctrl-C; given the same records it goes on" if s.is_interrupted else ""
        return (
            f"{self.model}: {len(s.statuses)} tasks, {s.trials} trials ({s.new_trials} new) in "
            f"{s.seconds:.1f} s ({per_trial:.3f} s a trial, {s.search_s:.1f} s searching), failed: {failed}\n"
            f"kernels{_measured_ms(s.statuses)}{stopped}"
        )


def _measured_ms(tasks: Sequence[TaskStatus]) -> str:
    """What the kernels that have a time take together, tuned and with default schedules."""
    known = [t for t in tasks if math.isfinite(t.best_s)]
    if tasks and not known:
        return f": none of {len(tasks)} measured"
    some = "" if len(known) == len(tasks) else f" ({len(known)} of {len(tasks)} measured)"
    tuned = sum(t.weight * t.best_s for t in known)
    default = sum(t.weight * t.default_s for t in known)
    beside = f"{1e3 * default:.3f} ms" if math.isfinite(default) else "unknown"
    return f"{some}: {1e3 * tuned:.3f} ms, with default schedules {beside}"


def prepare(model: Graph, dtype: str = "float32") -> Graph:
    """The graph as it is partitioned into kernels.

    Raises:
        UserError: if the dtype is none that a model can be stored in.
    """
    stored = storage_type(dtype)
    graph = optimize(model)
    return graph if stored is None else narrow(graph, stored)


def kernels_of(graph: Graph, target: Target) -> tuple[Partition, Target]:
    """A prepared graph cut into kernels, and the target as they will find it."""
    parts = partition(graph)
    chosen = target.within(weight_bytes(parts))
    return sliced(parts, chosen), chosen


# -- kernels -------------------------------------------------------------------------------------


def best_candidate(
    dag: ComputeDAG, target: Target, records: Records | None, exact: bool = False
) -> tuple[Sketch, np.ndarray]:
    """The recorded candidate of a ComputeDAG that is known to be the fastest, or the default one."""
    sketches = generate_sketches(dag, target, exact)
    first = sketches[default_number(sketches, target)]
    row = default_row(first, target)
    only = [s.key for s in sketches] if exact else None
    record = None
    if records is not None:
        record = records.best(dag.workload_key, target.key, (first.key, first.values(row)), only)
    if record is not None:
        for sketch in sketches:
            if sketch.key == record.sketch_key and {p.name for p in sketch.params} == set(record.params):
                return sketch, sketch.row(record.params)
        _log.warning("the best record of %s names a sketch that is no more: %s", dag.tag, record.sketch_key)
    return first, row


def build_kernels(candidates: dict[str, tuple[Sketch, np.ndarray]], target: Target) -> dict[str, KernelLike]:
    """Machine code for each candidate, by workload; a candidate that fails is replaced by the naive one."""
    build = backend_of(target).build

    def one(key: str) -> KernelLike:
        sketch, row = candidates[key]
        name = f"kernel_{key}"
        try:
            return build(sketch, row, target, name)
        except (ScheduleError, BuildError) as e:
            _log.warning("%s: %s; the naive schedule is used instead", sketch.key, e)
            naive = generate_sketches(sketch.dag, target)[0]
            return build(naive, np.zeros(len(naive.params), dtype=np.int64), target, name)

    with ThreadPoolExecutor(flags.workers()) as pool:
        return dict(zip(candidates, pool.map(one, candidates), strict=True))


# -- arguments -----------------------------------------------------------------------------------


def resolved(target: str | Target | None) -> tuple[Backend, Target]:
    """A target as this machine has it, and what builds and runs its code.

    Raises:
        UserError: if the target is unknown, or this machine cannot run it.
    """
    parsed = Target.parse(target)
    backend = backend_of(parsed)
    return backend, backend.resolve(parsed)


def _check(model: Graph) -> None:
    if not isinstance(model, Graph):
        raise UserError(f"a model is a seer.Graph, given {type(model).__name__}")
    if not model.outputs:
        raise UserError(f"graph {model.name} has no output; declare one with g.output(value)")


def _check_budget(trials: int | None, seconds: float | None) -> None:
    if trials is not None and (not isinstance(trials, int) or trials < 0):
        raise UserError(f"trials must be a whole number >= 0, given {trials!r}")
    if seconds is None:
        return
    is_number = isinstance(seconds, int | float) and math.isfinite(seconds)
    if not is_number or not 0 <= seconds <= MAX_SECONDS:
        raise UserError(f"seconds must be a number from 0 to {MAX_SECONDS:.0e}, given {seconds!r}")


def _checked_seed(seed: int) -> int:
    """A seed that generators and records take."""
    if not is_whole(seed) or not 0 <= seed <= flags.MAX_SEED:
        raise UserError(f"seed must be a whole number from 0 to {flags.MAX_SEED}, given {seed!r}")
    return int(seed)


@contextlib.contextmanager
def _opened(records: RecordsLike) -> Iterator[Records | None]:
    if records is None or isinstance(records, Records):
        yield records
        return
    if not Path(records).exists():
        raise UserError(f"there are no records at {records}; make them with seer.tune(..., records=...)")
    with Records(records, create=False) as database:
        yield database


@contextlib.contextmanager
def _measuring(measurer: Measurer | None, target: Target) -> Iterator[Measurer]:
    """The given measurer, or worker processes for the time of the run."""
    if measurer is not None:
        yield measurer
        return
    own = backend_of(target).measurer(target)
    try:
        yield own
    finally:
        own.close()


@contextlib.contextmanager
def _display(progress: bool | Callback) -> Iterator[Callback]:
    if callable(progress):
        yield progress
    elif progress:
        with Display() as display:
            yield display
    else:
        yield ignore
