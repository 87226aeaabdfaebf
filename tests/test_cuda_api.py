"""compile and tune for a GPU, emulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import seer
from seer.cli import main, random_inputs
from seer.errors import TargetError
from seer.graph.graph import Graph
from seer.graph.reference import run
from seer.runtime.cuda.driver import why_unavailable
from seer.runtime.emulate import compiler

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)


EMULATED = "cuda -device=emulated"


def net() -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("net")
    x = g.input((5, 13), name="x")
    y = x.dense(rng.standard_normal((13, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32))
    g.output(y.relu(), y.softmax(), x.transpose())
    return g


def check(g: Graph, compiled: seer.CompiledModel | seer.CudaModel, tolerance: float = 1e-5) -> None:
    feed = random_inputs(g, 5)
    out = compiled(**feed)
    outputs = out if isinstance(out, tuple) else (out,)
    for a, b in zip(outputs, run(g, feed), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_compile_for_a_gpu() -> None:
    g = net()
    model = seer.compile(g, EMULATED)
    assert isinstance(model, seer.CudaModel)
    check(g, model)
    assert "on emulated" in repr(model)


def test_tune_then_compile_for_a_gpu(tmp_path: Path) -> None:
    g, path = net(), tmp_path / "r.db"
    result = seer.tune(g, EMULATED, trials=6, records=path, seed=0, progress=False)
    assert result.trials == 6
    assert not result.errors, [r.message for r in result.records.all() if r.error]
    assert 0 < result.latency_s < 1e-3
    check(g, seer.compile(g, EMULATED, records=path))


@pytest.mark.slow
def test_tune_longer(tmp_path: Path) -> None:
    g, path = net(), tmp_path / "r.db"
    target = "cuda -arch=sm_90 -device=emulated"
    result = seer.tune(g, target, trials=48, records=path, seed=1, progress=False)
    assert result.trials == 48
    assert not result.errors, [r.message for r in result.records.all() if r.error]
    check(g, seer.compile(g, target, records=path))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_storage(dtype: str) -> None:
    g = net()
    check(g, seer.compile(g, EMULATED, dtype=dtype), 5e-2)


def test_bench_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "mlp", "--target", EMULATED, "--repeat", "1"]) == 0
    assert "relative error" in capsys.readouterr().out


@pytest.mark.skipif(not why_unavailable(), reason="there is a CUDA device")
def test_without_a_gpu_one_sentence_says_what_is_missing() -> None:
    with pytest.raises(TargetError, match="running on CUDA needs"):
        seer.compile(net(), "cuda")
