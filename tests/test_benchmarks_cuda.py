"""The benchmarks on an emulated GPU: names, numbers and files."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import gpu_check, search
from seer.errors import TargetError
from seer.runtime.cuda.driver import why_unavailable
from seer.runtime.emulate import compiler

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)


def test_strategies_by_simulated_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.json"
    args = ["--target", "cuda -device=emulated", "--trials", "16", "--strategies", "ansor", "random"]
    assert search.main([*args, "--json", str(file)]) == 0
    assert "results are not compared" in capsys.readouterr().out
    rows = json.loads(file.read_text())
    ends = [r for r in rows if r.get("is_final")]
    assert {(r["model"], r["strategy"]) for r in ends} == {("mlp", "ansor"), ("mlp", "random")}
    assert all(r["measurements"] == 16 and 0 < r["simulated_s"] < 60 for r in ends)
    assert all(r["simulated_s"] > 0 for r in rows if r.get("kind") == "summary")


@pytest.mark.skipif(not why_unavailable(), reason="there is a CUDA device")
def test_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search.main(["--target", "cuda"]) == 2
    assert "running on CUDA needs" in capsys.readouterr().err
    file = tmp_path / "g.json"
    assert gpu_check.main(["--json", str(file)]) == 1
    parts = json.loads(file.read_text())
    assert parts["found"]["ok"] and "running on CUDA needs" in parts["target"]["error"]
    assert "Traceback" in parts["target"]["traceback"] and set(parts) == {"found", "target"}


def checked(tmp_path: Path, *args: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "g.json"
    status = gpu_check.main(["--emulated", "--json", str(file), *args])
    parts: dict[str, Any] = json.loads(file.read_text())
    return status, parts


def test_check_of_a_gpu(tmp_path: Path) -> None:
    status, parts = checked(tmp_path, "--only", "softmax")
    assert status == 0 and set(parts) == {"found", "target", "limits", "softmax"}
    assert parts["limits"]["flop_s"] == pytest.approx(19.5e12, rel=0.2)  # what the simulated clock is told
    assert set(parts["limits"]["matrix_flop_s"]) == {"tf32", "float16"}
    assert parts["softmax"]["tuned"]["error"] < 1e-5 and parts["softmax"]["trials"] == 4


def test_a_part_that_fails_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: bool) -> Any:
        raise OSError("no such model")

    bad = replace(gpu_check.JOBS[0], model=fails)
    monkeypatch.setattr(gpu_check, "JOBS", (bad, gpu_check.JOBS[2]))
    status, parts = checked(tmp_path, "--only", "matmul", "--only", "softmax")
    assert status == 1 and parts["softmax"]["ok"]
    assert parts["matmul"]["error"] == "OSError: no such model"
    assert "in fails" in parts["matmul"]["traceback"]


@pytest.mark.slow
def test_the_whole_check(tmp_path: Path) -> None:
    status, parts = checked(tmp_path)
    assert status == 0
    assert set(parts) == {"found", "target", "limits", *(j.name for j in gpu_check.JOBS)}
    assert parts["resnet50"]["tuned"]["kernels"] > 50
