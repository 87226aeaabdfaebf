"""The records database: append-only, typed errors, several writers."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest

from seer.errors import RecordError
from seer.runtime.records import MeasureRecord, Records


def record(k: int, seconds: float = 1.0, error: str = "", workload: str = "w") -> MeasureRecord:
    return MeasureRecord(workload, "t", "s", {"a": k, "b": 2}, math.inf if error else seconds, error, seed=3)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    given = [record(1, 2.0), record(2, error="wrong"), record(3, 1.5), record(4, workload="other")]
    with Records(path) as r:
        r.append(given[:2])
        r.append(given[2:])
    with Records(path) as r:
        assert r.for_workload("w", "t") == given[:3]
        assert r.best("w", "t") == given[2]
        assert r.best("w", "elsewhere") is None
        assert r.count() == 4
        assert r.all() == given


def test_failures_are_never_best() -> None:
    r = Records()
    r.append([record(1, error="crash")])
    assert r.best("w", "t") is None
    assert r.for_workload("w", "t")[0].seconds == math.inf


def test_two_writers(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as a, Records(tmp_path / "r.db") as b:
        for k in range(5):
            a.append([record(k)])
            b.append([record(10 + k)])
        assert a.count() == b.count() == 10


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no folder"):
        Records(tmp_path / "none" / "r.db")
    text = tmp_path / "text.db"
    text.write_text("this is no database, but it is long enough to be read as one" * 20)
    with pytest.raises(RecordError, match="not a usable database"):
        Records(text)
    old = tmp_path / "old.db"
    Records(old).close()
    with sqlite3.connect(old) as db:
        db.execute("UPDATE meta SET value = '0' WHERE key = 'schema'")
    db.close()
    with pytest.raises(RecordError, match="schema 0"):
        Records(old)
