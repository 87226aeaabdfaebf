"""The CUDA runtime, on an emulated device: candidates checked and timed, models replayed."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from cuda_cases import dense, split_dense
from programs import matmul

from seer.codegen.cuda.module import CudaModule, Launch
from seer.codegen.model_plan import plan_model
from seer.errors import BuildError, MeasureError, ScheduleError, TargetError, UserError
from seer.graph.graph import Graph
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.graph.reference import run
from seer.ir.sketch import Sketch
from seer.runtime.contest import FINAL_ROUNDS
from seer.runtime.cuda import build, driver
from seer.runtime.cuda.build import check_registers
from seer.runtime.cuda.device import Device
from seer.runtime.cuda.driver import PycudaDevice, why_unavailable
from seer.runtime.cuda.emulated import EmulatedDevice, SimulatedClock
from seer.runtime.cuda.loaded import LoadedKernel
from seer.runtime.cuda.measure import CudaMeasurer
from seer.runtime.cuda.model import CudaModel
from seer.runtime.cuda.runner import CudaRunner
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.cuda.trial import CudaBench
from seer.runtime.emulate import compiler
from seer.runtime.nvrtc import Cubin, KernelUsage
from seer.runtime.target import Target
from seer.runtime.trial import CheckError
from seer.search.builders import naive_sketch

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)

M, N, K = 9, 7, 12


@pytest.fixture
def device() -> Device:
    return EmulatedDevice()


def test_memory_of_a_device(device: Device) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory, other = device.alloc(x.nbytes + 16), device.alloc(x.nbytes)
    part = memory.part(16, x.nbytes)
    device.fill(memory, 0)
    device.write(part, x)
    device.copy(part, other)
    np.testing.assert_array_equal(device.read(other, (3, 4), "float32"), x)
    np.testing.assert_array_equal(device.read(memory.part(0, 16), (4,), "int32"), np.zeros(4))


@pytest.mark.parametrize("candidate", [dense("c", M, N, K), split_dense("c", M, N, K)], ids=["one", "three"])
def test_a_right_candidate_is_timed(device: Device, candidate: CudaModule) -> None:
    bench = CudaBench(device, dense("naive", M, N, K), seed=0)
    times = bench.measure(candidate, math.inf)
    assert len(times) >= 5 and all(0 < t < 1e-3 for t in times)
    assert bench.measure(candidate, 1e-9)[0] > 0
    assert len(bench.measure(candidate, 1e-9)) == 1  # much slower than the best: once


BAD = {
    "wrong": ("sum = fmaf(", "sum = 1.001f * fmaf("),
    "guard": (f"if (i < {M * N})", f"if (i <= {M * N})"),
    "build": ("float sum", "flaot sum"),
    "crash": ("y[i] =", "y[(long long)i << 40] ="),
}


@pytest.mark.parametrize("reason", ["wrong", "guard"])
def test_a_wrong_candidate_is_refused(device: Device, reason: str) -> None:
    bench = CudaBench(device, dense("naive", M, N, K), seed=0)
    with pytest.raises(CheckError) as e:
        bench.measure(dense("bad", M, N, K, plant=BAD[reason]), math.inf)
    assert e.value.reason == reason


def test_a_race_of_two_blocks_is_refused(device: Device) -> None:
    bench = CudaBench(device, dense("naive", 20, N, K), seed=0)
    racing = dense("bad", 20, N, K, plant=("blockIdx.x * 64 +", "0 * blockIdx.x +"))
    with pytest.raises(CheckError, match="race: kernel bad_0, block") as e:
        bench.measure(racing, math.inf)
    assert e.value.reason == "wrong"


def test_what_emulation_does_not_watch_the_guards_find() -> None:
    device = EmulatedDevice(checked=False)
    bench = CudaBench(device, dense("naive", M, N, K), seed=0)
    plant = ("y[i] =", f"if (i == 0) y[{M * N}] = 1.0f; y[i] =")
    with pytest.raises(CheckError) as e:
        bench.measure(dense("bad", M, N, K, plant=plant), math.inf)
    assert e.value.reason == "guard"


def test_scratch_buffers_share_memory_by_lifetime() -> None:
    kernel = split_dense("c", 100, 10, 4)
    assert kernel.scratch_plan().offsets[:2] in ((0, 4096), (4096, 0))
    assert kernel.scratch_size() == 3 * 4096  # `both` is written while the halves are read
    steps = (("x", "low"), ("low", "high"), ("high", "both"), ("both", "y"))
    chain = replace(kernel, launches=tuple(Launch("f", 1, 1, args) for args in steps))
    assert chain.scratch_size() == 2 * 4096


def test_an_unknown_argument_is_a_build_error(device: Device) -> None:
    kernel = split_dense("c", M, N, K)
    with pytest.raises(BuildError, match="no argument 'low' for c_part"):
        LoadedKernel(device, replace(kernel, scratch=()))


def test_the_simulated_clock_repeats() -> None:
    launch = dense("c", M, N, K).launches[0]
    a, b, c = SimulatedClock(1), SimulatedClock(1), SimulatedClock(2)
    first = [a(launch, 1000) for _ in range(5)]
    assert first == [b(launch, 1000) for _ in range(5)]
    assert first != [c(launch, 1000) for _ in range(5)]
    quiet = SimulatedClock(noise=0.0)
    assert quiet(launch, 1 << 30) > quiet(launch, 1 << 20)


@pytest.fixture(scope="module")
def runner() -> Iterator[CudaRunner]:
    with CudaRunner(DeviceSpec("emulated", seed=5)) as r:
        yield r


@pytest.mark.parametrize("reason", [*BAD, "timeout", ""])
def test_failures_in_the_worker_are_results(runner: CudaRunner, reason: str) -> None:
    naive = dense("naive", M, N, K)
    plant = ("float sum", "while (threadIdx.x < 64) {} float sum") if reason == "timeout" else BAD.get(reason)
    kernel = dense("c", M, N, K, plant=plant or ("", ""))
    r = runner.measure(naive, kernel, math.inf, limit_s=0.7 if reason == "timeout" else 30.0)
    assert r.error == ("guard" if reason == "crash" else reason), (
        r.message
    )  # emulated: found before it crashes
    assert (r.seconds < 1) == (reason == "")


def test_a_naive_schedule_that_fails_ends_the_measuring(runner: CudaRunner) -> None:
    with pytest.raises(MeasureError, match="the naive schedule cannot be run"):
        runner.measure(dense("bad", M, N, K, plant=BAD["guard"]), dense("c", M, N, K), math.inf, 30.0)
    assert not runner.measure(dense("naive", M, N, K), dense("c", M, N, K), math.inf, 30.0).error


@pytest.mark.parametrize("devices", [1, 2])
def test_a_measurer_gives_results_in_order(devices: int) -> None:
    naive = naive_sketch(matmul(M, N, K))
    cases = ["", "wrong", "guard", "build", "lower", "crash", ""]

    def generate(_: Sketch, row: np.ndarray) -> CudaModule:
        case = cases[row[0]] if row.size else ""
        if case == "lower":
            raise ScheduleError("there is no such schedule")
        return dense(f"c{'_'.join(map(str, row))}", M, N, K, plant=BAD.get(case, ("", "")))

    candidates = [(naive, np.array([i])) for i in range(len(cases))]
    with CudaMeasurer([DeviceSpec("emulated", seed=k) for k in range(devices)], generate) as m:
        results = list(m.measure(naive, candidates, math.inf))
        expected = ["", "wrong", "guard", "build", "lower", "guard", ""]  # emulated: a crash is found before
        assert [r.error for r in results] == expected, results
        assert all(r.build_s > 0 for r in results)
        assert all((r.seconds < 1e-3) == r.ok for r in results)
        good, bad = m.remeasure(naive, candidates[:2])
        assert len(good.times) == FINAL_ROUNDS and min(good.times) <= good.seconds <= np.median(good.times)
        assert bad.error == "wrong"
        assert list(m.measure(naive, [], math.inf)) == []


def test_more_registers_than_there_are_is_a_build_error() -> None:
    kernel = dense("c", M, N, K)
    usage = {"c_0": KernelUsage(registers=255, shared_bytes=0, local_bytes=0, spill_bytes=0)}
    check_registers(kernel, Cubin(b"", "sm_80", usage, ""))
    wide = replace(kernel, launches=(replace(kernel.launches[0], threads=512),))
    with pytest.raises(BuildError, match="c_0: 512 threads of 255 registers need 131072"):
        check_registers(wide, Cubin(b"", "sm_80", usage, ""))
    # 9 warps are three in one of four partitions, so that they take what 12 would.
    odd = replace(kernel, launches=(replace(kernel.launches[0], threads=264),))
    for registers, fits in ((168, True), (176, False)):
        usage = {"c_0": replace(usage["c_0"], registers=registers)}
        with contextlib.nullcontext() if fits else pytest.raises(BuildError, match="need 67584"):
            check_registers(odd, Cubin(b"", "sm_80", usage, ""))


def test_a_trial_whose_tile_needs_more_registers_than_a_thread_has_is_refused() -> None:
    kernel = dense("c", M, N, K)

    def cubin(registers: int, spill_bytes: int) -> Cubin:
        return Cubin(b"", "sm_80", {"c_0": KernelUsage(registers, 0, spill_bytes // 2, spill_bytes)}, "")

    build.check_tile(kernel, cubin(255, 0))
    build.check_tile(kernel, cubin(128, 8))  # some indices, near an occupancy step
    with pytest.raises(BuildError, match="c_0: 255 registers are not enough for its tile"):
        build.check_tile(kernel, cubin(255, 8))


def test_a_kernel_that_spills_is_given_all_registers_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other kernels of the source stay as they are."""
    given: list[str] = []

    def compiled(source: str, arch: str) -> Cubin:
        given.append(source)
        spilled = 40 * (len(given) == 1)
        usage = {n: KernelUsage(80, 0, s, 2 * s) for n, s in (("first", 0), ("second", spilled), ("sec", 0))}
        return Cubin(source.encode(), arch, usage, "")

    monkeypatch.setattr(build, "compile_cubin", compiled)
    source = "".join(
        f"void __launch_bounds__({n}) {k}(float* a)\n"
        for n, k in ((32, "first"), (64, "second"), (96, "sec"))
    )
    assert build.machine_code(source, "sm_90").kernels["second"].spill_bytes == 0
    assert given == [source, source.replace("(64)", "(64, 1)")]
    given.append("")  # nothing spills now
    build.machine_code(source, "sm_90")
    assert given[3:] == [source]


@pytest.mark.skipif(not why_unavailable(), reason="there is a CUDA device")
def test_a_missing_device_ends_the_measuring() -> None:
    with (
        CudaRunner(DeviceSpec("cuda")) as r,
        pytest.raises(MeasureError, match="the device cannot be used: running on CUDA needs"),
    ):
        r.measure(dense("naive", M, N, K), dense("c", M, N, K), math.inf, 30.0)


def net() -> tuple[Graph, list[tuple[int, int, int]]]:
    rng = np.random.default_rng(0)
    g = Graph("net")
    x = g.input((5, 6), name="x")
    y = x
    for k, n in ((6, 8), (8, 7), (7, 8), (8, 4)):
        y = y.dense(rng.standard_normal((k, n)).astype(np.float32))
    g.output(y, y, x.reshape((30,)))
    return g, [(5, 8, 6), (5, 7, 8), (5, 8, 7), (5, 4, 8)]


def test_a_model_replays_its_kernels(device: Device) -> None:
    g, shapes = net()
    graph = optimize(g)
    parts = partition(graph)
    kernels = [(split_dense if i % 2 else dense)(f"k{i}", m, n, k) for i, (m, n, k) in enumerate(shapes)]
    model = CudaModel(plan_model(graph, parts, kernels), Target.parse("cuda"), device)
    assert model.num_kernels == 6  # four kernels, two copies
    assert model.constant_bytes == sum(4 * n * k for _, n, k in shapes)
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal((5, 6)).astype(np.float32)
        for out, expected in zip(model(x), run(g, {"x": x}), strict=True):
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert all(t > 0 for t in model.time(3)) and len(model.time(3)) == 3
    assert "CudaModel(net: x: float32[5, 6] ->" in repr(model) and "emulated sm_80" in repr(model)
    with pytest.raises(UserError, match="input 'x' must be float32"):
        model(np.zeros((5, 6)))


def test_seer_does_not_import_pycuda() -> None:
    code = "import sys, seer.driver, seer.runtime.cuda.spec; print('pycuda' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


class FakeError(Exception):
    """pycuda has an Error of its own."""


def fake_driver(count: int | None) -> ModuleType:
    module = ModuleType("pycuda.driver")

    def init() -> None:
        if count is None:
            raise FakeError("cuInit failed: no CUDA-capable device is detected")

    module.init = init  # type: ignore[attr-defined]
    module.Error = FakeError  # type: ignore[attr-defined]
    module.Device = SimpleNamespace(count=lambda: count)  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("pycuda", r"needs pycuda, which cannot be imported .*; pip install 'seer\[cuda\]'"),
        ("driver", r"needs NVIDIA's driver, whose library does not load .*; install the driver"),
        ("init", "needs a device, and the driver finds none .*no CUDA-capable device"),
        ("device", "needs a device, and the driver finds none"),
        ("compiler", r"needs a compiler, and there is none; install NVRTC \(pip install nvidia-cuda-nvrtc\)"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, message: str) -> None:
    monkeypatch.setitem(sys.modules, "pycuda", None if missing == "pycuda" else ModuleType("pycuda"))
    count = {"init": None, "device": 0}.get(missing, 1)
    module = None if missing == "driver" else fake_driver(count)
    monkeypatch.setitem(sys.modules, "pycuda.driver", module)
    if missing == "compiler":
        monkeypatch.setattr(driver.nvrtc, "compiler_name", lambda: "")
    with pytest.raises(TargetError, match=message) as e:
        PycudaDevice()
    assert "\n" not in str(e.value)
    assert why_unavailable() == str(e.value)
