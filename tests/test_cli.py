"""The command line."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seer import cli
from seer.cli import main
from seer.progress import Display
from seer.runtime.records import MeasureRecord, Records
from seer.search.events import TaskStatus, TuneEvent


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert "resnet18" in out
    assert "(batch: int = 1" in out
    assert "'" not in out.split("resnet18")[1].split("\n")[1]


def test_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "resnet18", "--set", "image=64"]) == 0
    out = capsys.readouterr().out
    assert "conv2d window 3x3, intensity high, many rows" in out
    assert "1 x dense 1x1000" in out


def test_tune_and_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = str(tmp_path / "r.db")
    args = ["mlp", "--batch", "2", "--set", "features=20", "--records", records]
    assert main(["tune", *args, "--trials", "12", "--seed", "0", "--compare"]) == 0
    shown = capsys.readouterr()
    assert "12 trials" in shown.out
    assert "seer: 12 of 12 trials" in shown.err
    for word in ("tuned", "untuned", "numpy"):
        assert word in shown.out
    assert main(["bench", *args, "--repeat", "2"]) == 0
    assert "relative error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tune", "vgg"], "unknown model 'vgg'"),
        (["tune", "mlp", "--set", "features"], "NAME=NUMBER"),
        (["tune", "mlp", "--set", "depth=3"], "unexpected keyword argument 'depth'"),
        (["bench", "mlp", "--records", "/nowhere/r.db"], "no records at"),
        (["bench", "mlp", "--target", "cuda9"], "unknown target kind"),
        (["bench", "mlp", "--threads", "0"], "at least 1 thread"),
        (["bench", "mlp", "--repeat", "0"], "--repeat 0"),
        (["bench", "mlp", "--set", "batch=1.5"], "batch must be a whole number, given 1.5"),
        (["bench", "mlp", "--set", "features=-3"], "features=-3"),
        (["bench", "mlp", "--set", "features=1.e999"], "NAME=NUMBER"),
        (["tune", "mlp", "--seed", "-1"], "seed must be"),
        (["tune", "mlp", "--seconds", "nan"], "seconds must be"),
    ],
)
def test_errors_are_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    err = capsys.readouterr().err
    assert err.startswith("seer: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_display_in_a_terminal() -> None:
    console = Console(force_terminal=True, width=120, record=True, file=None)
    status = TaskStatus("conv2d 1x7x7x8 <- 1x7x7x8", 2, 5, 1e-3, 9e-3, 2e-3, 1, 0.5)
    event = TuneEvent("round", "ansor", 0, (status,), 5, 10, 2e-3, 1.5, {"wrong": 1})
    with Display(console) as display:
        display(event)
    text = console.export_text()
    for word in ("conv2d 1x7x7x8", "1.000", "2.00", "500.0", "5 of 10 trials", "1 failed (1 wrong)"):
        assert word in text, text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_display_before_every_task_is_measured(is_terminal: bool) -> None:
    console = Console(force_terminal=is_terminal, width=120, record=True, file=None)
    done = TaskStatus("done", 2, 5, 1e-3, 9e-3, 2e-3, 1, 0.5)
    none = TaskStatus("none", 1, 0, math.inf, math.inf, math.inf, 0, 0.5)
    with Display(console) as display:
        display(TuneEvent("start", "ansor", None, (done, none, done), 5, 10, math.inf, 1.5, {}))
        first = console.export_text(clear=False)
        display(TuneEvent("end", "ansor", None, (done, done, done), 5, 10, 6e-3, 1.5, {}))
    if not is_terminal:
        assert "model - (2 of 3 tasks measured)" in first
    text = console.export_text()
    assert "model 6.000 ms" in text
    assert "model - ms" not in text


# -- pipes that nobody reads -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "closes_errors"),
    [
        (["models"], False),
        (["--help"], False),
        (["tune", "vgg"], True),
        (["tune", "mlp", "--set", "features=4", "--trials", "0"], True),
    ],
)
@pytest.mark.parametrize("is_unbuffered", [False, True])
def test_a_closed_pipe_ends_the_command_without_a_word(
    args: list[str], closes_errors: bool, is_unbuffered: bool
) -> None:
    read, write = os.pipe()
    os.close(read)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    try:
        done = subprocess.run(
            [sys.executable, *(["-u"] if is_unbuffered else []), "-m", "seer", *args],
            stdout=write,
            stderr=write if closes_errors else subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
        )
    finally:
        os.close(write)
    is_unnoticed = is_unbuffered and "--help" in args  # by argparse
    assert done.returncode == (0 if is_unnoticed else cli.PIPE_CLOSED)
    assert not done.stderr


def test_a_broken_pipe_inside_is_no_closed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise BrokenPipeError("a worker")

    monkeypatch.setattr(cli, "_models", broken)
    with pytest.raises(BrokenPipeError, match="a worker"):
        main(["models"])


def test_an_interrupted_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "r.db"
    args = ["tune", "mlp", "--set", "features=20", "--trials", "9", "--records", str(path)]
    append = Records.append

    def third(records: Records, new: Iterable[MeasureRecord]) -> None:
        append(records, new)
        if records.count() == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Records, "append", third)
    assert main(args) == 130
    out = capsys.readouterr().out
    assert "stopped by Ctrl-C" in out
    assert "tuned" in out
    monkeypatch.undo()
    assert main(args) == 0
    assert "9 trials (6 new)" in capsys.readouterr().out
    monkeypatch.setattr("seer.driver.tasks_of", interrupted)
    assert main(args) == 130
    assert capsys.readouterr().err == "seer: interrupted\n"


@pytest.mark.parametrize(
    "options", [{"force_terminal": False}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}]
)
def test_display_without_a_terminal(options: dict[str, Any]) -> None:
    console = Console(width=30, file=io.StringIO(), **options)
    status = TaskStatus("dense 8x8 <- 8x[/8]", 1, 5, 1e-3, 1e-3, 2e-3, 0, 0.5)
    event = TuneEvent("round", "ansor", 0, (status,), 5, 10, 2e-3, 1.5, {"wrong": 1})
    with Display(console) as display:
        for k in range(3):
            display(replace(event, trials=k))
        display(replace(event, kind="end"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "ansor: 0 of 10 trials, 2 s, model 2.000 ms, 1 failed (1 wrong), dense 8x8 <- 8x[/8]",
        "ansor: 5 of 10 trials, 2 s, model 2.000 ms, 1 failed (1 wrong)",
    ]
