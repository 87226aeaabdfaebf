"""Blocks with more shared memory than a kernel may declare: it is given at their launch."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_batch import Candidate, faults, modules_of, run, source_of
from cuda_helpers import CUDA, expected_of, random_rows
from programs import conv, matmul, random_inputs
from test_cuda_codegen import row_of
from test_cuda_narrow import product

from seer.codegen.cuda import CudaModule
from seer.codegen.cuda.module import STATIC_SHARED_BYTES, Launch
from seer.errors import EmulationError
from seer.ir.dag import ComputeDAG
from seer.runtime.cuda.emulated import EmulatedDevice
from seer.runtime.cuda.loaded import LoadedKernel
from seer.runtime.nvrtc import compile_cubin, compiler_name
from seer.runtime.target import Target
from seer.search.gpu_view import gpu_nests
from seer.search.legal import legal
from seer.search.rules import generate_sketches
from seer.search.task import SearchTask

DAGS = {
    "matmul": matmul(67, 71, 301),
    "conv": conv(13, 11, 37, 29, 3),
    "float16": product("float16", "float16", 67, 72, 304),
}
KINDS = [("matmul", "SSSRRSRS"), ("matmul", "mma"), ("conv", "SSSRRSRS"), ("conv", "mma"), ("float16", "mma")]


@functools.cache
def large(name: str, kind: str, count: int = 6) -> list[Candidate]:
    """Random candidates that need more than can be declared."""
    sketch = next(s for s in generate_sketches(DAGS[name], CUDA) if s.key.startswith(kind))
    rows = random_rows(sketch, 1000, 7)
    assert CUDA.gpu is not None
    (nest,) = gpu_nests(sketch, rows, CUDA.gpu)
    found = [(sketch, r) for r in rows[nest.shared_bytes > STATIC_SHARED_BYTES][:count]]
    assert len(found) == count
    return found


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_results(name: str, kind: str) -> None:
    candidates = large(name, kind)
    for module in modules_of(candidates, CUDA):
        assert module.launches[0].dynamic_bytes == module.launches[0].shared_bytes > STATIC_SHARED_BYTES
        assert "__shared__" not in module.source[module.source.index("__launch_bounds__") :]
    assert not faults(SearchTask(DAGS[name], CUDA), candidates)


def test_devices_give_it_without_the_checks_too() -> None:
    (module, *_) = modules_of(large("matmul", "mma"), CUDA)
    inputs = random_inputs(DAGS["matmul"])
    device = EmulatedDevice(checked=False)
    memories = [device.alloc(a.size_bytes) for a in module.args]
    for a, memory in zip(module.args, memories, strict=True):
        if a.name in inputs:
            device.write(memory, inputs[a.name])
    LoadedKernel(device, module).run(memories, device.alloc(1))
    found = device.read(memories[-1], module.args[-1].shape, "float32")
    np.testing.assert_allclose(found, expected_of(DAGS["matmul"], inputs), rtol=1e-5, atol=1e-5)


def test_arrays_lie_one_after_another() -> None:
    for module in modules_of(large("matmul", "SSSRRSRS") + large("float16", "mma"), CUDA):
        end = 0
        for dtype, size, offset in re.findall(
            r"seer_dynamic_shared<([\w ]+)\[(\d+)\]>\((\d+)\);", module.source
        ):
            assert int(offset) == end
            end += -(-int(size) * {"float": 4, "unsigned short": 2}[dtype] // 16) * 16
        assert end == module.launches[0].shared_bytes


def test_what_can_be_declared_is() -> None:
    assert Launch("k", 1, 32, (), STATIC_SHARED_BYTES).dynamic_bytes == 0
    assert Launch("k", 1, 32, (), STATIC_SHARED_BYTES + 16).dynamic_bytes == STATIC_SHARED_BYTES + 16


@pytest.mark.skipif(not compiler_name(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiled_kernels_declare_none(arch: str) -> None:
    modules = modules_of([c for k in KINDS for c in large(*k)[:2]], CUDA)
    cubin = compile_cubin(source_of(modules), arch)
    for module in modules:
        assert cubin.usage(module.launches[0].name).shared_bytes == 0


def test_limits_of_architectures() -> None:
    sketch = generate_sketches(matmul(1024, 1024, 1024, relu=False), CUDA)[1]
    tile = {"c_i0_2": 16, "c_i0_4": 4, "c_i1_2": 16, "c_i1_4": 4}  # 64 + 64 positions, 512 bytes a term
    rows = np.stack([row_of(sketch, **tile, c_k_1=kib * 2) for kib in (48, 64, 80, 96, 99, 160, 192)])
    expected = {"sm_70": 4, "sm_75": 2, "sm_80": 6, "sm_86": 5, "sm_89": 5, "sm_90": 7}
    for arch, count in expected.items():
        target = Target.parse(f"cuda -arch={arch}")
        assert list(legal(sketch, rows, target)) == [k < count for k in range(len(rows))], arch
    assert CUDA.gpu is not None
    (nest,) = gpu_nests(sketch, rows, CUDA.gpu)
    assert list(nest.shared_bytes // 1024) == [48, 64, 80, 96, 99, 160, 192]
    # 164 KiB of a multiprocessor, of which each block takes one more than it asks for.
    assert list(nest.blocks_per_sm[1:]) == [2, 2, 1, 1, 1, 0]


def _planted(module: CudaModule, pattern: str, text: str, shared_bytes: int = 0) -> CudaModule:
    source, count = re.subn(pattern, text, module.source, count=1)
    launch = module.launches[0]
    launch = replace(launch, shared_bytes=launch.shared_bytes - shared_bytes)
    assert count == 1
    return replace(module, source=source, launches=(launch,))


# What is replaced, by what, the bytes that the launch does not give, and who notices.
FAULTS = {
    "a shorter array": (r"<float\[\d+\]>\(0\)", "<float[64]>(0)", 0, "out of bounds"),
    "arrays over each other": (r"\]>\([1-9]\d*\)", "]>(16)", 0, "overlap"),
    "an array before its place": (r"\]>\(0\)", "]>(32)", 0, "overlap|too much shared memory"),
    "a launch that gives too little": (r"\]>\(0\)", "]>(0)", 16, "too much shared memory"),
    "no barrier": (r"(?<=  )__syncthreads\(\);", "", 0, "race|unwritten read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    pattern, text, missing, expected = FAULTS[fault]
    dag: ComputeDAG = DAGS["matmul"]
    both = "= seer_dynamic_shared<"  # in shared memory
    module = next(m for m in modules_of(large("matmul", "SSSRRSRS"), CUDA) if m.source.count(both) == 2)
    assert np.allclose(run(module, random_inputs(dag)), expected_of(dag, random_inputs(dag)), 1e-5, 1e-5)
    with pytest.raises(EmulationError) as e:
        run(_planted(module, pattern, text, missing), random_inputs(dag))
    assert re.match(expected, e.value.fault), e.value
