"""The benchmarks' names, numbers and files, on tiny kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import seer
from benchmarks import cases, kernels, models, offline, search, search_peers, throughput
from benchmarks.cases import CaseError, parse

TINY = [
    "matmul_7x13x5",
    "batch_matmul_3x5x7x4",
    "dense_4x9x6",
    "conv2d_3x9x8_5_3x3",
    "conv2d_3x9x9_5_7x7_s2",
    "conv2d_4x6x6_8_1x1",
    "depthwise_5x7x6_3x3",
    "depthwise_5x8x8_3x3_s2",
    "softmax_2x3x9",
    "layernorm_4x13",
]


@pytest.mark.parametrize("name", TINY)
def test_numpy_form_and_seer_agree(name: str) -> None:
    case = parse(name)
    out = seer.compile(case.graph)(**case.feed)
    np.testing.assert_allclose(out, case.numpy(), rtol=1e-4, atol=1e-4)
    assert case.name == name


def test_the_standard_list_can_be_read() -> None:
    sizes = {n: parse(n).flop for n in cases.DEFAULTS}
    assert sizes["matmul_1024x1024x1024"] == 2 * 1024**3
    assert sizes["conv2d_3x224x224_64_7x7_s2"] == 2 * 112 * 112 * 64 * 7 * 7 * 3
    assert sizes["depthwise_144x56x56_3x3"] == 2 * 56 * 56 * 144 * 9


@pytest.mark.parametrize("name", ["matmul_3x3", "conv2d_3x3x3_4", "fft_8", "softmax_", "matmul_axbxc"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(CaseError, match="known forms"):
        parse(name)
    assert kernels.main(["--only", name]) == 2


def test_kernels(tmp_path: Path) -> None:
    file = tmp_path / "k.json"
    args = ["--only", "matmul_7x13x5", "--trials", "4", "--threads", "1", "--json", str(file)]
    assert kernels.main(args) == 0
    rows = json.loads(file.read_text())
    assert [r["system"] for r in rows] == ["seer", "seer-untuned", "numpy"]
    for r in rows:
        assert (r["case"], r["threads"]) == ("matmul_7x13x5", 1)
        assert r["median_ms"] > 0
        assert r["gflops"] > 0
    assert rows[0]["trials"] == 4
    assert rows[0]["seconds"] > 0


def test_models(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    assert models.main(["--only", "digits", "--trials", "6", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert {r["system"] for r in rows} == {"seer", "seer-untuned", "numpy"}
    assert models.main(["--only", "vgg"]) == 2


@pytest.mark.parametrize("names", [["mlp"], pytest.param(["mlp", "digits"], marks=pytest.mark.slow)])
def test_search(names: list[str], tmp_path: Path) -> None:
    file, picture, out = tmp_path / "s.json", tmp_path / "s.png", tmp_path / "runs"
    args = ["--trials", "16", "--seeds", "1", "--json", str(file), "--plot", str(picture), "--out", str(out)]
    args += [a for n in names for a in ("--only", n)] + ["--strategies", "random", "warm,foresee=0"]
    assert search.main(args) == 0
    rows = json.loads(file.read_text())
    curves = [r for r in rows if "seed" in r]
    assert {"model", "strategy", "seed", "seconds", "measurements", "latency_ms"} <= set(curves[0])
    assert {(r["model"], r["strategy"]) for r in curves} == {
        (m, s) for m in names for s in ("random", "warm,foresee=0")
    }
    assert max(r["measurements"] for r in curves) == 16
    summary = {(r["model"], r["strategy"]): r for r in rows if r.get("kind") == "summary"}
    assert summary["mlp", "random"]["times_faster"] == summary["mlp", "random"]["times_fewer"] == 1.0
    assert len(list(out.glob("*.json"))) == 2 * len(names)
    assert search.main(args) == 0  # finished runs are read, not made again
    assert json.loads(file.read_text()) == rows


def test_peers_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not search_peers._works("metaschedule", None)
    assert not search_peers._works("ansor-tvm", tmp_path / "python")
    said = capsys.readouterr().err
    assert "metaschedule: no interpreter given: skipped" in said
    assert "cannot import tvm: skipped" in said


def test_throughput(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    assert throughput.main(["--only", "matmul_64x64x64", "--repeat", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert all(r["candidates_per_s"] > 0 for r in rows)


def test_offline(tmp_path: Path) -> None:
    pool, file = tmp_path / "pool.db", tmp_path / "o.json"
    args = ["--only", "mlp", "--seeds", "1", "--population", "64", "--json", str(file)]
    assert offline.main(["--pool", str(pool), *args]) == 2
    assert offline.main(["--make-pool", str(pool), "--candidates", "16", *args]) == 0
    rows = json.loads(file.read_text())
    rankings = [r for r in rows if r["kind"] == "ranking"]
    assert {(r["split"], r["families"]) for r in rankings} >= {("candidates", "none"), ("subgraphs", "op")}
    assert all(0 < r["top1"] <= r["top5"] <= 1 and 0 <= r["rank_accuracy"] <= 1 for r in rankings)
    ablations = [r for r in rows if r["kind"] == "ablation"]
    assert {r["part"] for r in ablations} == set(offline.PARTS)
    assert all(0 <= r["mean_score"] <= r["final_score"] <= 1 for r in ablations)
    again = tmp_path / "again.json"
    assert offline.main(["--pool", str(pool), *args[:-1], str(again)]) == 0
    assert json.loads(again.read_text()) == rows  # nothing is measured, nothing is left to chance
