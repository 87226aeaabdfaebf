"""GPUs, by CUDA C; or the CPU in the place of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seer.backends.base import Backend
from seer.backends.simulated import SimulatedMeasurer
from seer.codegen.cuda import generate
from seer.codegen.cuda.module import CudaModule
from seer.codegen.model_plan import ModelPlan
from seer.errors import TargetError
from seer.ir.sketch import Sketch
from seer.runtime.cuda.build import compile_kernel
from seer.runtime.cuda.driver import visible_devices
from seer.runtime.cuda.measure import CudaMeasurer
from seer.runtime.cuda.model import CudaModel
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.emulate import compiler
from seer.runtime.gpu import Gpu
from seer.runtime.measure import Measurer
from seer.runtime.target import Target, gpu_target
from seer.search.gpu_simulated import simulated_seconds


def generate_for(sketch: Sketch, row: np.ndarray, target: Target, name: str = "kernel") -> CudaModule:
    """CUDA C of a candidate; for an emulated device its launches say how long they take."""
    module = generate(sketch, row, target, name)
    if not target.devices.is_emulated:
        return module
    seconds = simulated_seconds(sketch, row, target)
    share = [float(s) for s in seconds]
    if len(share) != len(module.launches):  # kernels without work are not launched
        share = [sum(share) / max(1, len(module.launches))] * len(module.launches)
    launches = (replace(e, expected_s=s) for e, s in zip(module.launches, share, strict=True))
    return replace(module, launches=tuple(launches))


def specs_of(target: Target) -> list[DeviceSpec]:
    """The devices of a resolved target; the first runs models and final times."""
    numbers = target.devices.numbers or (0,)
    if target.devices.is_emulated:
        is_checked = target.devices.check == "all"
        return [DeviceSpec("emulated", n, target.cpu, is_checked, seed=n) for n in numbers]
    return [DeviceSpec("cuda", n, target.cpu) for n in numbers]


def _resolve(target: Target) -> Target:
    """The target with what the devices themselves say, and their numbers.

    Raises:
        TargetError: in one sentence: what of pycuda, driver, device and compiler is missing, or
            which device is not what the target asks for.
    """
    if target.devices.is_emulated:
        compiler.compiler()
        return target
    found = visible_devices()
    numbers = target.devices.numbers or tuple(found)
    missing = [n for n in numbers if n not in found]
    if missing:
        raise TargetError(f"target {target}: there is no CUDA device {missing[0]}; there are {len(found)}")
    first = found[numbers[0]]
    if not target.devices.any_arch and first.arch != target.cpu:
        raise TargetError(f"target {target} is not this machine's device ({first.name}, {first.arch})")
    alike = tuple(n for n in numbers if _same(found[n], first))
    if target.devices.numbers and alike != numbers:
        raise TargetError(f"target {target}: the devices differ, and so would their times")
    return gpu_target(first, replace(target.devices, numbers=alike, any_arch=False))


def _same(a: Gpu, b: Gpu) -> bool:
    return (a.name, a.arch, a.num_sms) == (b.name, b.arch, b.num_sms)


def _build(sketch: Sketch, row: np.ndarray, target: Target, name: str) -> CudaModule:
    module = generate_for(sketch, row, target, name)
    return replace(module, cubin=compile_kernel(module, specs_of(target)[0], target.cpu))


def _measurer(target: Target) -> Measurer:
    def make(sketch: Sketch, row: np.ndarray) -> CudaModule:
        return generate_for(sketch, row, target)

    if target.devices.is_emulated and target.devices.check == "none":
        return SimulatedMeasurer(make)
    return CudaMeasurer(specs_of(target), make)


def _load(plan: ModelPlan[CudaModule], target: Target) -> CudaModel:
    return CudaModel(plan, target, specs_of(target)[0].open())


CUDA = Backend(_resolve, _build, _measurer, _load, CudaModel.time)
