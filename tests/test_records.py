"""The records database: append-only, typed errors, several writers."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from multiprocessing import get_context
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


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE users (name TEXT)",
        "CREATE TABLE records (title TEXT)",
        "CREATE TABLE records (title TEXT); CREATE TABLE meta (k TEXT, v TEXT)",
        "CREATE TABLE records (title TEXT); CREATE TABLE meta (key TEXT, value TEXT)",
    ],
)
def test_databases_of_other_programs_stay_as_they_are(tables: str, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.executescript(tables)
    db.close()
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(RecordError, match="another program's"):
            Records(path, create=create)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_is_filled_but_not_read(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.touch()
    with pytest.raises(RecordError, match="the file is empty"):
        Records(path, create=False)
    assert path.stat().st_size == 0
    with Records(path) as r:
        r.append([record(1)])
    with Records(path, create=False) as r:
        assert r.count() == 1


def test_damaged_files_are_record_errors(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with Records(path) as r:
        r.append([record(k) for k in range(500)])
    whole = path.read_bytes()
    for damaged in (whole[:50], whole[: len(whole) // 2], whole[:4096] + bytes(8192) + whole[12288:]):
        other = tmp_path / "damaged.db"
        other.write_bytes(damaged)
        with pytest.raises(RecordError), Records(other) as r:
            r.all()


@pytest.mark.parametrize(
    ("column", "value"),
    [("params", "{"), ("params", "[1]"), ("params", '{"a": null}'), ("params", "3"), ("seconds", "soon")],
)
def test_damaged_rows_are_record_errors(column: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with Records(path) as r:
        r.append([record(1), record(2)])
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE records SET {column} = ? WHERE id = 2", (value,))
    db.close()
    with Records(path) as r, pytest.raises(RecordError, match="cannot read"):
        r.all()


def test_a_file_that_goes_away_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with Records(path) as r:
        r.append([record(1)])
        path.rename(tmp_path / "moved.db")
        for _ in range(2):
            with pytest.raises(RecordError, match="deleted or replaced"):
                r.append([record(2)])
            Records(path).close()  # another one in its place


def test_what_cannot_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.db"
    with Records(path) as r:
        r.append([record(1)])
    # Root may write anything, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda file, mode: False)
    before = path.read_bytes()
    with Records(path, create=False) as r:
        assert r.count() == 1
        assert r.best("w", "t") is not None
        for rows in ([], [record(2)]):
            with pytest.raises(RecordError, match="read-only"):
                r.append(rows)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_what_there_was(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as r:
        r.append([record(1)])
        pages = r._db.execute("PRAGMA page_count").fetchone()[0]
        r._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(RecordError, match="full"):
            r.append([record(k) for k in range(1000)])
        assert r.count() == 1
        r._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
        r.append([record(2)])
        assert r.count() == 2


def test_threads_share_one_object(tmp_path: Path) -> None:
    wrong: list[Exception] = []

    def write(r: Records) -> None:
        try:
            for k in range(20):
                r.append([record(k)])
                r.best("w", "t")
        except RecordError as e:
            wrong.append(e)

    with Records(tmp_path / "r.db") as r:
        threads = [threading.Thread(target=write, args=(r,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong
        assert r.count() == 80


def append_three(path: Path) -> None:
    with Records(path) as r:
        for k in range(3):
            r.append([record(k)])


def test_processes_make_one_file_together(tmp_path: Path) -> None:
    for turn in range(4):
        path = tmp_path / f"{turn}.db"
        processes = [get_context("fork").Process(target=append_three, args=(path,)) for _ in range(6)]
        for p in processes:
            p.start()
        for p in processes:
            p.join()
        assert [p.exitcode for p in processes] == [0] * 6
        with Records(path) as r:
            assert r.count() == 18
