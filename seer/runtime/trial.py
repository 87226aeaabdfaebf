"""One candidate run: its result checked, the memory round its arrays checked, its time taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seer import memory
from seer.codegen.artifact import ArgSpec, Artifact, PackSpec
from seer.dtypes import convert, is_narrow, numpy_dtype
from seer.ir.tensor import Derivation
from seer.runtime.kernel import Kernel

GUARD_BYTES = 4096
CANARY = 0xA5

TOLERANCE = 1e-4  # ||out - expected|| / ||expected||, and of one element against the largest
TOLERANCES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # sums in another order may round to a neighbour
MIN_TOTAL_S = 0.010  # time to spend on a fast candidate
MIN_REPEATS = 5
MAX_REPEATS = 50
BENCH_BYTES = 512 << 20  # of inputs and results that are kept for a task's next round
COLD_REPEATS = 12  # of runs each of which follows a sweep of the caches
NAIVE_RERUN_S = 0.02  # a naive schedule slower than this is not run again for its time
SLOW_FACTOR = 3.0  # a candidate this much slower than the best is timed once


class CheckError(Exception):
    """A candidate computed something wrong or wrote where it must not."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class GuardedArray:
    """An array with canaries before and after it."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        size = math.prod(shape) * numpy_dtype(dtype).itemsize
        raw = memory.empty((size + 2 * GUARD_BYTES,), "uint8")
        raw[...] = CANARY
        self._start = GUARD_BYTES
        self._end = self._start + size
        self._raw = raw
        self.array = raw[self._start : self._end].view(numpy_dtype(dtype)).reshape(shape)

    @property
    def address(self) -> int:
        return int(self._raw.ctypes.data) + self._start

    def is_intact(self) -> bool:
        """Whether nothing was written outside."""
        before, after = self._raw[: self._start], self._raw[self._end :]
        return bool((before == CANARY).all() and (after == CANARY).all())


@dataclass(frozen=True)
class Ready:
    """A candidate whose result was checked: a loaded kernel and the arrays that it runs on, scratch last."""

    kernel: Kernel
    arrays: tuple[GuardedArray, ...]
    num_threads: int

    def seconds(self, number: int = 1) -> float:
        """Of one run, over `number` runs."""
        *addresses, scratch = [a.address for a in self.arrays]
        call, threads = self.kernel.call, self.num_threads
        start = time.perf_counter()
        for _ in range(number):
            call(addresses, scratch, threads)
        return (time.perf_counter() - start) / number

    def read_inputs(self) -> None:
        """Read the inputs that are no weights, which in a model the kernel before has just written."""
        for spec, a in zip(self.kernel.artifact.args[:-1], self.arrays, strict=False):
            if not spec.constant:
                np.add.reduce(a.array.reshape(-1).view(np.uint8)[::64])


class Bench:
    """Random inputs for one task, and what the naive schedule makes of them."""

    def __init__(self, naive: Artifact, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._derived: dict[tuple[str, Derivation], np.ndarray] = {}
        self.inputs = [random_array(s, rng) for s in naive.args[:-1]]
        start = time.perf_counter()
        self.expected = self._run_guarded(naive, 1)[1]
        self._naive, self._naive_s = naive, time.perf_counter() - start

    def measure(
        self, artifact: Artifact, num_threads: int, best_s: float, sweep: Callable[[], None] | None = None
    ) -> tuple[float, ...]:
        """Seconds of several runs, after one that was checked.

        Args:
            artifact: the candidate.
            num_threads: threads to run it on.
            best_s: the best time known so far: a much slower candidate is timed once.
            sweep: empties the caches; it is called before each run, and the inputs that are no weights
                are then read again, as the kernel before has just written them.

        Raises:
            CheckError: if the result is wrong or a guard was overwritten.
        """
        if artifact.code == self._naive.code and self._naive_s > NAIVE_RERUN_S:
            return (self._naive_s,)  # known well enough
        return time_round([self.ready(artifact, num_threads)], sweep, best_s)[0]

    def ready(self, artifact: Artifact, num_threads: int) -> Ready:
        """A candidate loaded, run once and checked, to be timed by `time_round`.

        Raises:
            CheckError: if the result is wrong or a guard was overwritten.
        """
        ready, out = self._run_guarded(artifact, num_threads)
        check_result(out, self.expected, artifact.args[-1].dtype)
        return ready

    @property
    def size_bytes(self) -> int:
        """Memory that it holds."""
        return sum(a.nbytes for a in (*self.inputs, self.expected, *self._derived.values()))

    def _packed(self, name: str, pack: PackSpec, value: np.ndarray) -> np.ndarray:
        """A packed weight; what is derived from it is computed once for all candidates."""
        if pack.derivation is None:
            return pack.apply(value)
        key = (name, pack.derivation)
        if key not in self._derived:
            self._derived[key] = pack.derivation.apply(value)
        return replace(pack, derivation=None).apply(self._derived[key])

    def _run_guarded(self, artifact: Artifact, num_threads: int) -> tuple[Ready, np.ndarray]:
        """Run once between guards; returns what to run again and the output."""
        kernel = Kernel(artifact)
        arrays = []
        for spec, value in zip(artifact.args[:-1], self.inputs, strict=True):
            packed = value if spec.pack is None else self._packed(spec.name, spec.pack, value)
            guarded = GuardedArray(packed.shape, spec.dtype)
            guarded.array[...] = packed
            arrays.append(guarded)
        last = artifact.args[-1]
        out = GuardedArray(last.shape, last.dtype)
        if last.dtype.startswith("float"):
            out.array[...] = np.nan
        scratch = GuardedArray((artifact.scratch_size(num_threads),), "uint8")
        arrays += [out, scratch]
        kernel.call([a.address for a in arrays[:-1]], scratch.address, num_threads)
        names = [*(s.name for s in artifact.args), "scratch memory"]
        for name, a in zip(names, arrays, strict=True):
            if not a.is_intact():
                raise CheckError("guard", f"memory next to {name} was overwritten")
        for spec, value, a in zip(artifact.args[:-1], self.inputs, arrays, strict=False):
            if spec.pack is None and not np.array_equal(a.array, value, equal_nan=value.dtype.kind == "f"):
                raise CheckError("guard", f"input {spec.name} was overwritten")
        return Ready(kernel, tuple(arrays), num_threads), out.array.copy()


def random_array(spec: ArgSpec, rng: np.random.Generator) -> np.ndarray:
    """Normal floats; small whole numbers for integers, so that sums stay exact."""
    if spec.dtype.startswith("float"):
        return np.asarray(rng.standard_normal(spec.shape), spec.dtype)
    if is_narrow(spec.dtype):
        return convert(rng.standard_normal(spec.shape), "float64", spec.dtype)
    if spec.dtype == "bool":
        return np.asarray(rng.integers(0, 2, spec.shape), bool)
    return np.asarray(rng.integers(0, 100, spec.shape), spec.dtype)


def check_result(out: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """Check a result of type `dtype`, as it is stored, against the naive schedule's.

    Raises:
        CheckError: naming the first element that is off.
    """
    compare(_readable(out, dtype), _readable(expected, dtype), TOLERANCES.get(dtype, TOLERANCE))


def _readable(array: np.ndarray, dtype: str) -> np.ndarray:
    """An output as numbers that NumPy can compare."""
    return convert(array, dtype, "float32") if is_narrow(dtype) else array


def compare(out: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Check a result against the naive schedule's.

    Raises:
        CheckError: naming the first element that is off.
    """
    if out.dtype.kind != "f":
        wrong = out != expected
    else:
        finite = np.isfinite(expected)
        a, b = np.where(finite, out, 0).astype(np.float64), np.where(finite, expected, 0).astype(np.float64)
        largest = float(np.abs(b).max(initial=0.0))
        wrong = ~(np.abs(a - b) <= tolerance * (largest + np.abs(b)))
        # Where it is not finite it must be the same infinity, or NaN both times.
        same = (out == expected) | (np.isnan(out) & np.isnan(expected))
        wrong = np.where(finite, wrong, ~same)
        norm = float(np.linalg.norm(b))
        if not wrong.any() and norm > 0 and float(np.linalg.norm(a - b)) > tolerance * norm:
            wrong = np.abs(a - b) >= np.abs(a - b).max()
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.shape else ()
        raise CheckError(
            "wrong",
            f"{int(wrong.sum())} of {wrong.size} elements are wrong, first {list(at)}: "
            f"{out[at]!s} instead of {expected[at]!s}",
        )


def time_round(
    ready: Sequence[Ready], sweep: Callable[[], None] | None = None, best_s: float = math.inf
) -> list[tuple[float, ...]]:
    """Seconds of several runs of each of some candidates.

    Args:
        ready: the candidates.
        sweep: empties the caches. What follows is one run of each of them, every time another one
            first: none finds its own arrays in the caches, as each has arrays of its own.
        best_s: the best time known so far: much slower candidates are cut short.
    """
    if sweep is None:
        return [_warm_times(r, best_s) for r in ready]
    times: list[list[float]] = [[] for _ in ready]
    for turn in range(COLD_REPEATS):
        sweep()
        for k in range(len(ready)):
            at = (turn + k) % len(ready)
            ready[at].read_inputs()
            times[at].append(ready[at].seconds())
        is_enough = turn + 1 >= MIN_REPEATS and max(map(sum, times)) >= MIN_TOTAL_S
        if is_enough or min(map(min, times)) > SLOW_FACTOR * best_s:
            break
    return [tuple(t) for t in times]


def _warm_times(ready: Ready, best_s: float) -> tuple[float, ...]:
    """Seconds of runs that find what they need where the run before left it."""
    first = ready.seconds()
    if first > SLOW_FACTOR * best_s:
        return (first,)
    number = max(1, math.ceil(MIN_TOTAL_S / MIN_REPEATS / max(first, 1e-7) / 2))
    times: list[float] = []
    spent = 0.0
    while len(times) < MIN_REPEATS or (spent < MIN_TOTAL_S and len(times) < MAX_REPEATS):
        times.append(ready.seconds(number))
        spent += times[-1] * number
        if len(times) == 2 and min(times) > SLOW_FACTOR / 2 * best_s:
            break
    return tuple(times)
