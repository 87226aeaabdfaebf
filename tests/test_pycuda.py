"""The real pycuda, on a libcuda that emulates: everything of the GPU path but the GPU.

Needs pycuda (which builds from source and needs no GPU) and a C++ compiler.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seer.errors import TargetError
from seer.runtime.emulate import compiler

TESTS = Path(__file__).parent

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)
if importlib.util.find_spec("pycuda") is None:
    pytest.skip("pycuda is not installed", allow_module_level=True)


def missing_symbols(library: Path, defined: str) -> list[str]:
    """What pycuda's extension module wants of libcuda and the stub does not write out."""
    spec = importlib.util.find_spec("pycuda")
    assert spec is not None and spec.submodule_search_locations
    extension = next(Path(spec.submodule_search_locations[0]).glob("_driver*.so"))
    out = subprocess.run(
        ["nm", "-D", "-u", str(extension)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in out.splitlines()}
    return sorted(n for n in names if n.startswith("cu") and f"int {n}(" not in defined)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stub libcuda.so.1."""
    folder = tmp_path_factory.mktemp("libcuda")
    text = (TESTS / "stub_libcuda.cpp").read_text()
    rest = "".join(f'extern "C" int {n}() {{ return 801; }}\n' for n in missing_symbols(folder, text))
    (folder / "rest.cpp").write_text(rest)
    parts = [compiler.HEADERS / "scheduler.cpp", compiler.HEADERS / "checks.cpp", TESTS / "stub_libcuda.cpp"]
    command = [compiler.compiler(), "-std=c++17", "-O1", "-fPIC", "-w", "-shared", "-Wl,-soname,libcuda.so.1"]
    command += [f"-I{compiler.HEADERS}", *map(str, parts), str(folder / "rest.cpp"), "-ldl"]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


def run_with(stub: Path, code: str, **environment: str) -> str:
    """Run Python with the stub in the place of the driver's library."""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "LD_LIBRARY_PATH": str(stub), "PYTHONPATH": paths, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAD = """
import numpy as np
from cuda_cases import dense, split_dense
from seer.errors import MeasureError
from seer.runtime import nvrtc
from seer.runtime.emulate.compiler import library
from seer.runtime.emulate.source import translate

def compile_cubin(source, arch):  # the stub loads what the emulator has compiled
    assert arch == "sm_80"
    path = str(library(translate(source, False).text, False))
    return nvrtc.Cubin(path.encode() + bytes(1), arch, {}, "")

nvrtc.compile_cubin = compile_cubin
nvrtc.compiler_name = lambda: "stub"
from seer.runtime.cuda.driver import PycudaDevice
device = PycudaDevice()
"""


def test_a_candidate_is_checked_and_timed(stub: Path) -> None:
    code = (
        HEAD
        + """
from seer.runtime.cuda.trial import CudaBench
bench = CudaBench(device, dense("naive", 9, 7, 12), 0)
print(device.name, device.arch)
for kernel in (dense("c", 9, 7, 12), split_dense("s", 9, 7, 12)):
    for flush in (False, True):
        times = bench.measure(kernel, float("inf"), flush)
        assert len(times) >= 5 and all(0 < t < 1 for t in times), times
print("timed")
device.close()
"""
    )
    assert run_with(stub, code).split("\n")[:2] == ["stub GPU sm_80", "timed"]


def test_a_launch_gives_more_shared_memory_than_can_be_declared(stub: Path) -> None:
    """The driver refuses it unless the kernel has said so, and beyond what a block can have."""
    code = (
        HEAD
        + """
from dataclasses import replace
from seer.codegen.cuda.intrinsics import device_prelude
from seer.codegen.cuda.module import Launch
source = device_prelude(["seer_dynamic_shared"]) + '''
extern "C" __global__ void reversed(const float* x, float* y) {
  auto& a = seer_dynamic_shared<float[20000]>(0);
  auto& b = seer_dynamic_shared<float[64]>(80000);
  for (int i = threadIdx.x; i < 20000; i += 64) a[i] = x[i];
  b[threadIdx.x] = threadIdx.x;
  __syncthreads();
  for (int i = threadIdx.x; i < 20000; i += 64) y[i] = a[19999 - i] + b[63 - threadIdx.x];
}
'''
x = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
to, back = device.alloc(x.nbytes), device.alloc(x.nbytes)
device.write(to, x)
module = device.load(source)
launch = Launch("reversed", 1, 64, ("x", "y"), 80256)
for _ in range(2):
    device.launch(module, launch, (to, back))
added = (63 - np.arange(20000) % 64).astype(np.float32)
np.testing.assert_array_equal(device.read(back, x.shape, "float32"), x[::-1] + added)
try:
    device.launch(module, replace(launch, shared_bytes=200 << 10), (to, back))
except MeasureError as e:
    print(e)
device.close()
"""
    )
    assert run_with(stub, code).startswith("stub GPU cannot launch reversed: ")


def test_a_model_runs(stub: Path) -> None:
    code = (
        HEAD
        + """
from concurrent.futures import ThreadPoolExecutor
from seer.codegen.model_plan import plan_model
from seer.graph.graph import Graph
from seer.graph.partition import partition
from seer.graph.passes import optimize
from seer.runtime.cuda.model import CudaModel
from seer.runtime.target import Target
rng = np.random.default_rng(0)
w = [rng.standard_normal(s).astype(np.float32) for s in ((6, 8), (8, 4))]
g = Graph("net")
x = g.input((5, 6), name="x")
y = x.dense(w[0]).dense(w[1])
g.output(y, x.reshape((30,)))
graph = optimize(g)
kernels = [dense("a", 5, 8, 6), split_dense("b", 5, 4, 8)]
model = CudaModel(plan_model(graph, partition(graph), kernels), Target.parse("cuda"), device)
for _ in range(2):
    value = rng.standard_normal((5, 6)).astype(np.float32)
    out, same = model(value)
    np.testing.assert_allclose(out, value @ w[0] @ w[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(same, value.reshape(30))
with ThreadPoolExecutor(2) as pool:  # threads that did not open the device
    values = [rng.standard_normal((5, 6)).astype(np.float32) for _ in range(6)]
    for value, (out, _) in zip(values, pool.map(model, values)):
        np.testing.assert_allclose(out, value @ w[0] @ w[1], rtol=1e-4, atol=1e-4)
print(len(model.time(4, flush_cache=True)))
"""
    )
    assert run_with(stub, code).strip() == "4"


def test_faults_are_errors(stub: Path) -> None:
    code = (
        HEAD
        + """
from seer.runtime.cuda.loaded import LoadedKernel
try:
    device.alloc(1 << 40)
except MeasureError as e:
    print(e)
bad = dense("bad", 9, 7, 12, plant=("if (i", "if (i < 5) __syncthreads(); if (i"))
memories = [device.alloc(a.size_bytes) for a in bad.args]
try:
    LoadedKernel(device, bad).run(memories, device.alloc(1))
    device.synchronize()
except MeasureError as e:
    print(e)
try:
    device.alloc(1)
except MeasureError:
    print("lost")
device.close()
"""
    )
    first, second, third = run_with(stub, code).strip().split("\n")
    assert first.startswith("stub GPU cannot allocate memory: ")
    assert "cannot run what was launched" in second and "barrier divergence" in second
    assert third == "lost"


def test_no_device_is_said_in_one_sentence(stub: Path) -> None:
    code = "from seer.runtime.cuda.driver import why_unavailable; print(why_unavailable())"
    out = run_with(stub, code, STUB_NO_DEVICE="1").strip()
    assert out.startswith("running on CUDA needs a device, and the driver finds none (")
    assert "\n" not in out


def test_no_driver_is_said_in_one_sentence(tmp_path: Path) -> None:
    code = "from seer.runtime.cuda.driver import why_unavailable; print(why_unavailable())"
    (tmp_path / "libcuda.so.1").write_text("no library")
    out = run_with(tmp_path, code).strip()
    assert out.startswith("running on CUDA needs NVIDIA's driver, whose library does not load (")
    assert "\n" not in out
