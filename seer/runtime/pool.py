"""Worker processes: started when needed, watched, and replaced when they die or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from seer import flags
from seer.codegen.artifact import Artifact
from seer.errors import MeasureError
from seer.ir.sketch import Sketch
from seer.runtime.contest import Answer, ask
from seer.runtime.target import Target

START_LIMIT_S = 60.0

# A worker imports what its parent does, also where that has changed sys.path; what lies in the current
# folder is no module of a worker's because of its name.
_START = "import sys; sys.path[:] = sys.argv[2:]; from {module} import main; main()"
# NumPy's own threads have nothing to do in a worker; spinning, they would disturb what is timed.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerGoneError(Exception):
    """A worker died or did not answer in time: the reason is "crash" or "timeout"."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WorkerProcess:
    """One process; it is started at the first request and again after it died.

    Args:
        module: what it runs.
    """

    def __init__(self, module: str = "seer.runtime.worker") -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self.connection: Connection[Any, Any] | None = None
        self.sketches: dict[int, int] = {}  # id of a Sketch -> its number in the worker
        self.generation = 0
        self._has_answered = False
        self._kept: list[Sketch] = []  # so that ids stay unique

    def start(self) -> None:
        """Start the process unless it runs; spawned, since forking after OpenMP started hangs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        ours, theirs = socket.socketpair()
        code = _START.format(module=self._module)
        command = [sys.executable, "-c", code, str(theirs.fileno()), *map(str, sys.path)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the workers
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.sketches = {}
        self._kept = []
        self._has_answered = False
        self.generation += 1

    def send(self, *request: Any) -> None:
        """Send a request to be answered later."""
        self.start()
        assert self.connection is not None
        try:
            self.connection.send(request)
        except OSError as e:
            raise self._gone() from e

    def receive(self, limit_s: float) -> tuple[Any, ...]:
        """The answer to the oldest request.

        Raises:
            WorkerGoneError: if the process died, or gave no answer in time (it is ended then).
        """
        assert self.connection is not None
        try:
            if not self.connection.poll(limit_s):
                self.stop()
                raise WorkerGoneError("timeout", f"no result within {limit_s:.1f} s")
            answer: tuple[Any, ...] = self.connection.recv()
        except (EOFError, OSError) as e:
            raise self._gone() from e
        self._has_answered = True
        return answer

    def request(self, *request: Any, limit_s: float = START_LIMIT_S) -> tuple[Any, ...]:
        """Send a request and wait for its answer."""
        try:
            self.send(*request)
            return self.receive(limit_s)
        except BaseException:  # Ctrl-C, for one
            self.stop()  # the answer would be taken for that of the next request
            raise

    def number_of(self, sketch: Sketch) -> int:
        """The worker's number of a sketch, which is sent to it once."""
        self.start()
        if id(sketch) not in self.sketches:
            number = len(self.sketches)
            self.request("sketch", number, sketch)
            self.sketches[id(sketch)] = number
            self._kept.append(sketch)
        return self.sketches[id(sketch)]

    def stop(self) -> None:
        """End the process."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
            self._process = None

    def _gone(self) -> WorkerGoneError:
        """How the process ended.

        Raises:
            MeasureError: if it could not even start, as all others could not.
        """
        message = "the worker process ended"
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(5)
                message = f"the worker process ended with exit code {code}"
                if code is not None and code < 0:
                    message = f"the worker process was ended by {signal.Signals(-code).name}"
        cannot_start = not self._has_answered and code is not None and code > 0
        self.stop()
        if cannot_start:
            raise MeasureError(f"worker processes cannot be started: {message}; its own words are above")
        return WorkerGoneError("crash", message)


Built = tuple[Artifact | None, str, str, float]  # artifact, or error and message; build seconds


class BuildPool:
    """Processes that lower and compile candidates side by side."""

    def __init__(self, target: Target, limit_s: float = 20.0, size: int | None = None) -> None:
        self._target, self._limit_s = target, limit_s
        self._workers = [WorkerProcess() for _ in range(size or flags.workers())]

    def build(self, candidates: Sequence[tuple[Sketch, np.ndarray]]) -> list[Built]:
        """Build every candidate; a failure is a result.

        Raises:
            MeasureError: if processes cannot be started.
        """
        try:
            return self._build(candidates)
        except BaseException:  # Ctrl-C, for one
            self.close()  # answers that are due would be taken for those of later requests
            raise

    def _build(self, candidates: Sequence[tuple[Sketch, np.ndarray]]) -> list[Built]:
        results: list[Built | None] = [None] * len(candidates)
        waiting = list(range(len(candidates)))[::-1]
        busy: dict[WorkerProcess, tuple[int, float]] = {}
        while waiting or busy:
            for w in self._workers:
                if waiting and w not in busy:
                    k = waiting.pop()
                    sketch, row = candidates[k]
                    try:
                        w.send("build", w.number_of(sketch), row, self._target)
                        busy[w] = (k, time.monotonic())
                    except WorkerGoneError as e:
                        results[k] = (None, "build", str(e), 0.0)
            self._collect(busy, results)
        return [r for r in results if r is not None]

    def _collect(self, busy: dict[WorkerProcess, tuple[int, float]], results: list[Built | None]) -> None:
        """Wait for some worker and take what is ready."""
        if not busy:
            return
        connections = {w.connection: w for w in busy if w.connection is not None}
        oldest = min(start for _, start in busy.values())
        wait(list(connections), max(0.0, oldest + self._limit_s - time.monotonic()))
        now = time.monotonic()
        for c, w in connections.items():
            k, start = busy[w]
            is_late = now - start > self._limit_s
            assert c is not None
            if not is_late and not c.poll():
                continue
            del busy[w]
            try:
                status, *rest = w.receive(0.0)
            except WorkerGoneError as e:
                reason = "build" if e.reason == "timeout" else "crash"
                results[k] = (None, reason, f"while building: {e}", now - start)
                continue
            if status == "ok":
                artifact, build_s = rest[0]
                results[k] = (artifact, "", "", build_s)
            else:
                results[k] = (None, rest[0], rest[1], now - start)

    def close(self) -> None:
        """End the processes."""
        for w in self._workers:
            w.stop()


class Runner:
    """The one process in which candidates run, one at a time."""

    def __init__(self) -> None:
        self._worker = WorkerProcess()
        self._open: tuple[int, Artifact] | None = None

    def run(
        self, naive: Artifact, seed: int, artifact: Artifact, target: Target, best_s: float, limit_s: float
    ) -> tuple[tuple[float, ...], str, str]:
        """Times in seconds of one candidate, or ((), reason, message).

        Raises:
            MeasureError: if the naive schedule itself cannot be run.
        """
        self._open_bench(naive, seed)
        try:
            status, *rest = self._worker.request("run", artifact, target, best_s, limit_s=limit_s)
        except WorkerGoneError as e:
            return (), e.reason, str(e)
        return (rest[0], "", "") if status == "ok" else ((), rest[0], rest[1])

    def finals(
        self, naive: Artifact, seed: int, artifacts: Sequence[Artifact], target: Target, limit_s: float
    ) -> list[Answer]:
        """Times of several candidates, one for each round in which all took turns.

        Raises:
            MeasureError: if the naive schedule itself cannot be run.
        """

        def send(finalists: Sequence[Artifact]) -> Answer:
            self._open_bench(naive, seed)
            try:
                limit = limit_s * len(finalists)
                return self._worker.request("finals", finalists, target, limit_s=limit)
            except WorkerGoneError as e:
                return ("error", e.reason, str(e))

        return ask(send, artifacts)

    def _open_bench(self, naive: Artifact, seed: int) -> None:
        self._worker.start()
        if self._open == (self._worker.generation, naive):
            return
        for is_last in (False, True):  # that a process was ended from outside must not end the run
            try:
                status, *rest = self._worker.request("open", naive, seed, limit_s=600.0)
                break
            except WorkerGoneError as e:
                if is_last or e.reason != "crash":
                    raise MeasureError(f"the naive schedule cannot be run: {e}") from e
        if status != "ok":
            raise MeasureError(f"the naive schedule cannot be run: {rest[1]}")
        self._open = (self._worker.generation, naive)

    def close(self) -> None:
        """End the process."""
        self._worker.stop()
