"""The benchmarks' names, numbers and files, on tiny kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import seer
from benchmarks import cases, kernels, memory, models, offline, roofline, search, search_peers, throughput
from benchmarks.cases import CaseError, parse
from benchmarks.compare import checked, rows_of, summary
from benchmarks.engines import Run, close
from benchmarks.peers import PEERS, Modules, optional
from benchmarks.work import bytes_of, flop_of
from seer.cli import random_inputs
from seer.graph import reference

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
        assert r["roofline"] > 0
        assert "vs_best_peer" not in r
    assert rows[0]["trials"] == 4
    assert rows[0]["seconds"] > 0


def test_models(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    args = ["--only", "digits", "--trials", "6", "--batch", "1", "--batch", "3", "--json", str(file)]
    assert models.main(args) == 0
    rows = json.loads(file.read_text())
    assert [(r["system"], r["batch"]) for r in rows] == [
        (system, batch) for batch in (1, 3) for system in ("seer", "seer-untuned", "numpy")
    ]
    for r in rows:
        assert r["case"] == f"digits_b{r['batch']}"
        assert r["median_ms"] > 0
        assert r["gflops"] > 0
        assert r["roofline"] > 0
    assert models.main(["--only", "vgg"]) == 2


def test_models_that_the_zoo_lacks_are_skipped_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "DEFAULTS", ("vgg",))
    assert models.main([]) == 0
    assert "vgg is not in the zoo: skipped" in capsys.readouterr().err


needs_peers = pytest.mark.filterwarnings("ignore")  # what other packages warn of is theirs


def peer_modules() -> Modules:
    modules = Modules(PEERS)
    if not modules.found:
        pytest.skip("no peer is installed")
    return modules


@needs_peers
@pytest.mark.parametrize("name", TINY)
def test_peers_compute_every_case(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    modules, case = peer_modules(), parse(name)
    runs = modules.runs(case.graph, case.feed, 1, case.torch)
    assert "is skipped" not in capsys.readouterr().err
    assert checked(runs, [case.numpy()], name).keys() == modules.found.keys()


SMALL: dict[str, dict[str, int]] = {
    "mlp": {},
    "digits": {},
    "resnet18": {"image": 32},
    "mobilenet_v2": {"image": 32},
    "bert_base": {"layers": 1, "hidden": 32, "heads": 4, "seq_len": 9},
    "vit_base": {"layers": 1, "hidden": 32, "heads": 4, "image": 32},
    "gpt2": {"layers": 1, "hidden": 32, "heads": 4, "sequence": 9, "vocabulary": 100},
}


@needs_peers
@pytest.mark.parametrize("name", [n for n in SMALL if n in seer.zoo.names()])
def test_peers_compute_every_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    modules = peer_modules()
    graph = seer.zoo.get(name, batch=2, **SMALL[name])
    feed = random_inputs(graph)
    runs = checked(modules.runs(graph, feed, 1), reference.run(graph, feed), name)
    assert runs.keys() == modules.found.keys(), capsys.readouterr().err


@needs_peers
def test_kernels_with_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modules, file = peer_modules(), tmp_path / "k.json"
    args = ["--only", "dense_4x9x6", "--trials", "2", "--threads", "1", "--peers", "--json", str(file)]
    assert kernels.main(args) == 0
    rows = json.loads(file.read_text())
    assert [r["system"] for r in rows] == ["seer", "seer-untuned", "numpy", *modules.found]
    best = min(r["median_ms"] for r in rows if r["system"] in PEERS)
    assert [r["vs_best_peer"] for r in rows] == pytest.approx([best / r["median_ms"] for r in rows])
    assert "1 threads: best peer's time / seer's, geometric mean of 1" in capsys.readouterr().out


@needs_peers
def test_memory_of_models(tmp_path: Path) -> None:
    modules, file = peer_modules(), tmp_path / "m.json"
    args = ["--only", "mlp", "--trials", "4", "--batch", "1", "--threads", "1", "--memory", "--peers"]
    assert models.main([*args, "--json", str(file)]) == 0
    for r in json.loads(file.read_text()):
        assert ("peak_mb" in r) == (r["system"] in ("seer", *modules.found))
        assert r.get("peak_mb", 1.0) > 0


def test_peak_memory_is_of_this_process_alone() -> None:
    before = memory.peak_bytes()
    array = np.ones(64 << 20, np.uint8)
    assert memory.peak_bytes() >= max(before, memory.resident_bytes()) >= array.nbytes


def test_a_peer_that_is_wrong_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = (Run(lambda: None, lambda _, k=k: [np.full(3, k)]) for k in (1.0, 1.01))
    expected = [np.ones(3)]
    assert list(checked({"seer": right, "torch": wrong}, expected, "case")) == ["seer"]
    assert "case: torch computes something else than NumPy: skipped" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="seer computes something else"):
        checked({"seer": wrong}, expected, "case")
    assert not close(np.ones((1, 3)), np.ones(3))


def test_a_package_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert optional("no_such_package") is None
    assert capsys.readouterr().err == "no_such_package is not installed: skipped\n"
    assert Modules(()).found == {}
    assert Modules(("no_such_package",)).found == {}
    assert capsys.readouterr().err == "no_such_package is not installed: skipped\n"


def test_work_of_a_graph() -> None:
    g = seer.Graph("g")
    x = g.input((2, 3, 8, 8), name="x")
    w = np.ones((4, 3, 3, 3), np.float32)
    y = x.conv2d(w, np.ones(4, np.float32), padding=1).relu()
    g.output(y.global_avg_pool().flatten().dense(np.ones((4, 5), np.float32)))
    assert flop_of(g) == 2 * (2 * 4 * 64 * 27 + 2 * 5 * 4)
    elements = (2 * 3 * 64, 4 * 27, 4, 2 * 4 * 64, 2 * 4, 4 * 5, 2 * 5)
    assert bytes_of(g) == 4 * sum(elements)
    h = g.input((2, 6), "int64", name="tokens")
    g.outputs.clear()
    g.output(g.constant(np.ones((1000, 8), np.float32)).embedding(h))
    assert bytes_of(g) == 2 * 6 * 8 + 4 * (2 * 6 * 8 + 2 * 3 * 64)  # not the table


def test_rows_and_their_summary() -> None:
    machine = roofline.Machine(1, peak_flop_s=100.0, bandwidth_bytes_s=10.0)
    assert machine.fraction(50, 1, 2.0) == 0.25
    assert machine.fraction(50, 10, 2.0) == 0.5
    rows = []
    for case, times in {
        "a": {"seer": 1.0, "torch": 2.0, "openvino": 4.0},
        "b": {"seer": 1.0, "torch": 0.5},
    }.items():
        rows += rows_of(times, 1e9, 1.0, 1, {"case": case})
    assert [r["vs_best_peer"] for r in rows] == [2.0, 1.0, 0.5, 0.5, 1.0]
    assert summary(rows, "vs_best_peer", "peer / seer", 0.9) == (
        "1 threads: peer / seer, geometric mean of 2: 1.00\n  below 0.9: b 0.50"
    )
    assert summary(rows, "vs_numpy", "NumPy / seer", 0.9) == ""


def test_roofline(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert roofline.main(["--threads", "1", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())
    assert row["peak_gflops"] > 1
    assert row["bandwidth_gb_s"] > 0.1
    assert roofline.main(["--threads", "0"]) == 2


@pytest.mark.parametrize("names", [["mlp"], pytest.param(["mlp", "digits"], marks=pytest.mark.slow)])
def test_search(names: list[str], tmp_path: Path) -> None:
    file, picture, out = tmp_path / "s.json", tmp_path / "s.png", tmp_path / "runs"
    args = ["--trials", "16", "--seeds", "1", "--json", str(file), "--plot", str(picture), "--out", str(out)]
    args += [a for n in names for a in ("--only", n)] + ["--strategies", "random", "warm,foresee=0"]
    assert search.main(args) == 0
    rows = json.loads(file.read_text())
    settled = [r for r in rows if r.get("is_settled")]
    assert {(r["model"], r["strategy"]) for r in settled} == {
        (m, s) for m in names for s in ("random", "warm,foresee=0")
    }
    assert all(0 < r["seconds"] and 1 <= r["measurements"] <= 16 for r in settled)
    # All runs start as the untuned model, which is timed once.
    first = {(r["model"], r["strategy"]): r["latency_ms"] for r in reversed(settled)}
    assert len(set(first.values())) == len(names)
    curves = [r for r in rows if "seed" in r and not r.get("is_settled")]
    assert {"model", "strategy", "seed", "seconds", "measurements", "latency_ms"} <= set(curves[0])
    assert {(r["model"], r["strategy"]) for r in curves} == {
        (m, s) for m in names for s in ("random", "warm,foresee=0")
    }
    assert max(r["measurements"] for r in curves) == 16
    summary = {(r["model"], r["strategy"]): r for r in rows if r.get("kind") == "summary"}
    assert summary["mlp", "random"]["times_faster"] == summary["mlp", "random"]["times_fewer"] == 1.0
    assert len(list(out.glob("*.json"))) == (2 + 1) * len(names)  # the times taken again, too
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
