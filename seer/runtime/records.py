"""Measured candidates in an append-only SQLite database.

A record says which candidate of which workload ran how fast on which target, or why it did not.
Records are data: reading a database never runs code from it. Killing the process at any moment loses
at most what was not yet appended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seer.errors import RecordError
from seer.runtime.choice import Timed, choose
from seer.version import __version__

Parameters = tuple[str, Mapping[str, int]]  # sketch key and named values

SCHEMA = 1
# Raised when generated code changes so much that old times mean nothing.
CODE_VERSION = 2
WAIT_S = 30.0  # for another process that writes

_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    workload_key TEXT NOT NULL,
    target_key TEXT NOT NULL,
    code_version INTEGER NOT NULL,
    sketch_key TEXT NOT NULL,
    params TEXT NOT NULL,
    seconds REAL,
    error TEXT NOT NULL,
    message TEXT NOT NULL,
    seed INTEGER NOT NULL,
    strategy TEXT NOT NULL,
    build_s REAL NOT NULL,
    run_s REAL NOT NULL,
    created_at REAL NOT NULL,
    stage TEXT NOT NULL,
    family TEXT NOT NULL,
    features BLOB NOT NULL,
    feature_version INTEGER NOT NULL,
    seer_version TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS records_by_workload ON records (workload_key, target_key, code_version);
INSERT OR IGNORE INTO meta VALUES ('schema', '{schema}');
COMMIT;
"""

_COLUMNS = (
    "workload_key, target_key, sketch_key, params, seconds, error, message, seed, strategy, "
    "build_s, run_s, created_at, stage, family, features, feature_version"
)


_INSERT = (
    "INSERT INTO records (workload_key, target_key, code_version, sketch_key, params, "
    "seconds, error, message, seed, strategy, build_s, run_s, created_at, stage, family, "
    "features, feature_version, seer_version) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class MeasureRecord:
    """One trial.

    Attributes:
        workload_key: what was computed (ComputeDAG.workload_key).
        target_key: on what (Target.key).
        sketch_key: the loop structure.
        params: its named parameters.
        seconds: run time; infinity if it failed.
        error: "" or why it failed: lower, build, timeout, crash, wrong, guard.
        message: details of the failure.
        seed: the run's seed.
        strategy: the run's strategy.
        build_s: time to lower and compile.
        run_s: time spent running it, checks included.
        created_at: seconds since 1970.
        family: the workload's family (seer/search/families.py, "auto").
        features: what the cost model saw of the candidate, float32; empty if nothing.
        feature_version: the meaning of the features.
        stage: "trial", or "final" for the fastest of a run timed again, in turn with each other.
    """

    workload_key: str
    target_key: str
    sketch_key: str
    params: dict[str, int]
    seconds: float
    error: str = ""
    message: str = ""
    seed: int = 0
    strategy: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    created_at: float = field(default_factory=time.time)
    stage: str = "trial"
    family: str = ""
    features: bytes = b""
    feature_version: int = 0

    @property
    def ok(self) -> bool:
        return not self.error


class Records:
    """A records database; `path` None keeps it in memory.

    Several processes may append to one file, and several threads use one object. Use it as a context
    manager, or close it.
    """

    def __init__(self, path: str | Path | None = None, create: bool = True) -> None:
        """Open a database, or create it where there is none or the file is empty.

        Without `create`, for reading, it must be there; it may lie where nothing can be written.

        Raises:
            RecordError: if the file cannot be opened, is no database of seer's, or has another schema. It
                is left as it was.
        """
        self.path = None if path is None else Path(path)
        self._lock = threading.Lock()
        if self.path is not None and not self.path.parent.is_dir():
            raise RecordError(f"records {self.path}: there is no folder {self.path.parent}")
        uri = _uri(self.path)
        self._is_read_only = "mode=ro" in uri
        try:
            self._db = sqlite3.connect(
                uri, timeout=WAIT_S, uri=True, check_same_thread=False, isolation_level=None
            )
            found = self._schema()
            if found is None and create:
                self._create()
                found = self._schema()
        except sqlite3.Error as e:
            raise RecordError(f"records {self.path}: not a usable database: {e}") from e
        if found is None:
            raise RecordError(f"records {self.path}: the file is empty")
        if found != str(SCHEMA):
            raise RecordError(f"records {self.path}: made with schema {found}, this seer reads {SCHEMA}")
        self._file = self._identity()

    def _schema(self) -> str | None:
        """The schema of the tables that are there; None if there are none.

        Raises:
            RecordError: if they are not seer's.
        """
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return None
        row = None
        if {"meta", "records"} <= tables:
            with contextlib.suppress(sqlite3.OperationalError):  # a table of that name with other columns
                row = self._db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if row is None:
            raise RecordError(f"records {self.path}: not a usable database: it is another program's")
        return str(row[0])

    def _create(self) -> None:
        # Changing the journal does not wait for another process that makes the same file.
        limit = time.monotonic() + WAIT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > limit:
                    raise
                time.sleep(0.01)
        self._db.executescript(_TABLES.format(schema=SCHEMA))

    def _identity(self) -> tuple[int, int] | None:
        """What tells the file from another one of the same name; None if there is none."""
        try:
            found = os.stat(self.path) if self.path is not None else None
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found is not None else None

    def append(self, records: Iterable[MeasureRecord]) -> None:
        """Store records for good, in one transaction. That of no records says whether others could be.

        Raises:
            RecordError: if the file cannot be written, or is no longer where it was.
        """
        rows = [
            (
                r.workload_key,
                r.target_key,
                CODE_VERSION,
                r.sketch_key,
                _text(r.params),
                None if r.error else r.seconds,
                r.error,
                r.message,
                r.seed,
                r.strategy,
                r.build_s,
                r.run_s,
                r.created_at,
                r.stage,
                r.family,
                r.features,
                r.feature_version,
                __version__,
            )
            for r in records
        ]
        if self._is_read_only:
            raise RecordError(f"records {self.path}: cannot append: the file or its folder is read-only")
        with self._lock:
            if self._identity() != self._file:
                raise RecordError(f"records {self.path}: the file was deleted or replaced while it was open")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._db.executemany(_INSERT, rows)
                    self._db.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as e:
                raise RecordError(f"records {self.path}: cannot append: {e}") from e

    def for_workload(self, workload_key: str, target_key: str) -> list[MeasureRecord]:
        """Everything recorded of a workload on a target, oldest first."""
        return self._select(
            "workload_key = ? AND target_key = ? AND code_version = ? ORDER BY id",
            (workload_key, target_key, CODE_VERSION),
        )

    def best(
        self,
        workload_key: str,
        target_key: str,
        default: Parameters | None = None,
        sketch_keys: Sequence[str] | None = None,
    ) -> MeasureRecord | None:
        """The candidate of a workload to compile on a target; None for the default one.

        Args:
            workload_key: of what.
            target_key: on what.
            default: the sketch and parameters that are compiled without records: what was not compared with
                them may not be faster (seer/runtime/choice.py). None takes the fastest whatever it is.
            sketch_keys: the sketches to choose from; None for any.
        """
        query = (
            "SELECT id, stage, sketch_key, params, seconds FROM records "
            "WHERE workload_key = ? AND target_key = ? AND code_version = ? ORDER BY id"
        )
        rows = self._rows(query, (workload_key, target_key, CODE_VERSION))
        timings = []
        for _, stage, key, params, seconds in rows:
            counts = isinstance(seconds, float) and (sketch_keys is None or key in sketch_keys)
            timings.append(Timed((key, params), seconds if counts else math.inf, stage == "final"))
        number = choose(timings, None if default is None else (default[0], _text(default[1]))).number
        return None if number is None else self._select("id = ?", (rows[number][0],))[0]

    def count(self) -> int:
        """Records of all workloads."""
        (row,) = self._rows("SELECT COUNT(*) FROM records", ())
        return int(row[0])

    def all(self) -> list[MeasureRecord]:
        """Every record, oldest first."""
        return self._select("1 ORDER BY id", ())

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _select(self, where: str, values: tuple[object, ...]) -> list[MeasureRecord]:
        rows = self._rows(f"SELECT {_COLUMNS} FROM records WHERE {where}", values)
        try:
            return [_from_row(r) for r in rows]
        except (ValueError, TypeError, AttributeError) as e:
            raise RecordError(f"records {self.path}: cannot read: {e}") from e

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as e:
            raise RecordError(f"records {self.path}: cannot read: {e}") from e


def _text(params: Mapping[str, int]) -> str:
    return json.dumps(params, sort_keys=True)


def _uri(path: Path | None) -> str:
    """How SQLite is to open a file: one that cannot be written as it is, without a journal beside it."""
    if path is None:
        return "file::memory:"
    plain = path.absolute().as_uri()
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return plain
    return f"{plain}?mode=ro" if Path(f"{path}-wal").exists() else f"{plain}?mode=ro&immutable=1"


def _from_row(row: tuple[Any, ...]) -> MeasureRecord:
    values = list(row)
    values[3] = {str(k): int(v) for k, v in json.loads(str(row[3])).items()}
    values[4] = float("inf") if row[4] is None else float(row[4])
    return MeasureRecord(*values)
