"""tune and compile for CUDA on an emulated device, and what is said where there is no device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programs import matmul

import seer
from seer import backends
from seer.backends.cuda import CUDA, generate_for, specs_of
from seer.backends.simulated import SimulatedMeasurer
from seer.cli import main, random_inputs
from seer.errors import TargetError, UserError
from seer.graph import reference
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.runtime.cuda.driver import why_unavailable
from seer.runtime.cuda.emulated import SimulatedClock
from seer.runtime.cuda.measure import CudaMeasurer
from seer.runtime.cuda.model import CudaModel
from seer.runtime.emulate import compiler
from seer.runtime.gpu import GPUS
from seer.runtime.records import MeasureRecord, Records
from seer.runtime.target import Target
from seer.search.defaults import default_candidate, default_row
from seer.search.gpu_simulated import simulated_seconds
from seer.search.rules import generate_sketches
from seer.search.warm import WarmStart

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)

EMULATED = "cuda -arch=sm_80 -device=emulated"


def net() -> seer.Graph:
    return seer.zoo.mlp(batch=3, features=20, hidden=(13,), classes=5)


def agrees(model: seer.Graph, run: backends.Model) -> None:
    feed = random_inputs(model)
    (expected,) = reference.run(model, feed)
    np.testing.assert_allclose(run(**feed), expected, rtol=1e-5, atol=1e-6)


def test_texts_of_targets() -> None:
    for text in (EMULATED, f"{EMULATED} -check=all -devices=0,2", "cuda -arch=sm_90 -devices=1"):
        assert str(Target.parse(text)) == text
        assert Target.parse(str(Target.parse(text))) == Target.parse(text)
    assert Target.parse("cuda").devices.any_arch and not Target.parse("cuda -arch=sm_80").devices.any_arch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-device=opencl", "must be cuda or emulated"),
        ("-device=emulated -check=some", "must be results, all, none"),
        ("-check=all", "is for -device=emulated"),
        ("-devices=first", "numbers are needed"),
        ("-threads=2", "no option -threads"),
    ],
)
def test_wrong_options(options: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        Target.parse(f"cuda {options}")


def test_every_kind_of_target_has_a_backend() -> None:
    assert set(backends.BACKENDS) == {"llvm", "cuda"}


def test_tune_then_compile(tmp_path: Path) -> None:
    model = net()
    with Records(tmp_path / "r.db") as records:
        result = seer.tune(model, EMULATED, trials=8, records=records, progress=False, seed=0)
        assert result.trials == 8 and not result.errors
        assert {r.target_key for r in records.all()} == {"cuda-emulated sm_80"}
        tuned = seer.compile(model, EMULATED, records)
    agrees(model, tuned)
    untuned = seer.compile(model, EMULATED)
    assert isinstance(untuned, CudaModel) and len(untuned.time(3)) == 3
    agrees(model, untuned)


def test_checked_trials_on_several_devices() -> None:
    target = Target.parse(f"{EMULATED} -check=all -devices=0,1,2")
    specs = specs_of(target)
    assert [s.index for s in specs] == [0, 1, 2] and all(s.checked for s in specs)
    sketches = generate_sketches(matmul(9, 7, 12), target)
    candidates = [(s, default_row(s, target)) for s in sketches[1:]] * 2
    with CUDA.measurer(target) as measurer:  # type: ignore[attr-defined]
        assert isinstance(measurer, CudaMeasurer)
        results = list(measurer.measure(sketches[0], candidates, np.inf))
    assert len(results) == len(candidates) and all(r.ok for r in results), results


def test_emulated_times_are_never_taken_for_measured_ones() -> None:
    dag = matmul(9, 7, 12)
    emulated, real = Target.parse(EMULATED), Target.parse("cuda -arch=sm_80")
    assert emulated.key != real.key and emulated.clock != real.clock
    sketch, row = default_candidate(dag, emulated)
    with Records() as records:
        values = sketch.values(row)
        records.append([MeasureRecord(dag.workload_key, emulated.key, sketch.key, values, 1e-9)])
        assert records.best(dag.workload_key, real.key) is None
        assert not WarmStart.of(records, real.clock).workloads


def test_simulated_times() -> None:
    target = Target.parse(f"{EMULATED} -check=none")
    dag = matmul(64, 64, 64)
    sketches = generate_sketches(dag, target)
    sketch, row = sketches[1], default_row(sketches[1], target)
    seconds = simulated_seconds(sketch, row, target)
    assert seconds.shape == (1,) and 1e-6 < seconds[0] < 1e-3
    module = generate_for(sketch, row, target)
    assert [e.expected_s for e in module.launches] == pytest.approx(list(seconds))
    assert not generate_for(sketch, row, Target.parse("cuda")).launches[0].expected_s
    measurer = CUDA.measurer(target)
    assert isinstance(measurer, SimulatedMeasurer)
    (result,) = measurer.measure(sketches[0], [(sketch, row)], np.inf)
    assert result.seconds == pytest.approx(seconds[0], rel=0.1)
    one, other = SimulatedClock(3), SimulatedClock(3)
    launch = module.launches[0]
    other(sketch_launch := generate_for(sketches[0], np.zeros(0, np.int64), target).launches[0], 0)
    assert [one(launch, 0) for _ in range(3)] == [other(launch, 0) for _ in range(3)]  # whatever ran before
    assert sketch_launch.expected_s > 0


def test_the_default_latency_is_that_of_an_untuned_model() -> None:
    g = seer.Graph("mm")
    g.output(g.input((64, 64), name="a") @ g.input((64, 64), name="b"))
    target = Target.parse(f"{EMULATED} -check=none")
    result = seer.tune(g, target, trials=2, progress=False)  # the default schedule and the naive one
    sketch_keys = [r.sketch_key for r in result.records.all()]
    (task,) = result.tasks
    dag = partition(optimize(g)).subgraphs[0].dag
    assert sketch_keys[0] == default_candidate(dag, target)[0].key
    assert task.default_s < task.naive_s


@pytest.mark.skipif(not why_unavailable(), reason="there is a CUDA device")
def test_what_is_missing_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for call in (seer.compile, seer.tune):
        with pytest.raises(UserError, match="running on CUDA needs") as e:
            call(net(), target="cuda")
        assert "\n" not in str(e.value)
    for command in ("tune", "bench"):
        assert main([command, "mlp", "--target", "cuda"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("seer: error: running on CUDA needs") and err.count("\n") == 1


def test_what_a_device_says_becomes_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = replace(GPUS["sm_90"], name="NVIDIA H200", num_sms=132)
    devices = {0: h200, 1: replace(h200, name="NVIDIA H100"), 2: h200}
    monkeypatch.setattr("seer.backends.cuda.visible_devices", lambda: devices)
    target = CUDA.resolve(Target.parse("cuda"))
    assert target.gpu == h200 and target.devices.numbers == (0, 2)  # times of others are not compared
    assert target.key == "cuda sm_90 NVIDIA H200" and target.clock == "cuda"
    assert [s.index for s in specs_of(target)] == [0, 2]
    assert CUDA.resolve(Target.parse("cuda -devices=1")).key == "cuda sm_90 NVIDIA H100"
    for text, words in (
        ("cuda -arch=sm_80", r"is not this machine's device \(NVIDIA H200, sm_90\)"),
        ("cuda -devices=3", "no CUDA device 3"),
        ("cuda -devices=0,1", "the devices differ"),
    ):
        with pytest.raises(TargetError, match=words):
            CUDA.resolve(Target.parse(text))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["mlp", "--set", "features=20", "--target", "cuda -device=emulated -check=none"]
    records = ["--records", str(tmp_path / "r.db")]
    assert main(["tune", *args, *records, "--trials", "6", "--seed", "0"]) == 0
    assert "6 trials" in capsys.readouterr().out
    assert main(["bench", *args, *records, "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert "times of tuned and untuned are simulated" in out and "numpy" in out
    assert main(["families", *args]) == 0
    assert "softmax" in capsys.readouterr().out
