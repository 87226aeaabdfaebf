"""Candidates compiled ahead of their turn on the device."""

from __future__ import annotations

import re

from seer.codegen.cuda.module import CudaModule
from seer.errors import BuildError, UserError
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.emulate.compiler import library
from seer.runtime.emulate.source import translate
from seer.runtime.gpu import DEFAULT_ARCH, GPUS
from seer.runtime.nvrtc import Cubin, compile_cubin


def compile_kernel(kernel: CudaModule, spec: DeviceSpec, arch: str, is_trial: bool = False) -> bytes | None:
    """The cubin of a kernel for a device; None for an emulated one, which keeps its code itself.

    Raises:
        BuildError: if the source is refused, or a block needs more registers than there are; if it is a
            trial, for which others can stand in, also if a thread does.
        TargetError: if there is no compiler.
    """
    if spec.kind == "emulated":
        try:
            library(translate(kernel.source, spec.checked).text, spec.checked)
        except UserError as e:
            raise BuildError(f"cannot emulate the source: {e}") from e
        return None
    cubin = machine_code(kernel.source, arch)
    check_registers(kernel, cubin)
    if is_trial:
        check_tile(kernel, cubin)
    return cubin.data


def machine_code(source: str, arch: str) -> Cubin:
    """The cubin of a source; kernels keep in registers what there are registers for.

    Near an occupancy step an assembler rather spills some. It spills none if told that one block on a
    multiprocessor is enough.

    Raises:
        BuildError: if the source is refused.
        TargetError: if there is no compiler.
    """
    cubin = compile_cubin(source, arch)
    spilling = [re.escape(name) for name, usage in cubin.kernels.items() if usage.spill_bytes]
    if not spilling:
        return cubin
    bounds = rf"__launch_bounds__\((\d+)\)(?=\s+(?:{'|'.join(spilling)})\b)"
    return compile_cubin(re.sub(bounds, r"__launch_bounds__(\1, 1)", source), arch)


def check_tile(kernel: CudaModule, cubin: Cubin) -> None:
    """Refuse a kernel for whose tile all registers that a thread can name were not enough.

    Raises:
        BuildError: naming the launch.
    """
    for launch in kernel.launches:
        usage = cubin.usage(launch.name)
        if usage.spill_bytes and usage.registers >= GPUS[DEFAULT_ARCH].registers_per_thread:
            raise BuildError(f"{launch.name}: {usage.registers} registers are not enough for its tile")


def check_registers(kernel: CudaModule, cubin: Cubin) -> None:
    """Refuse what a device would refuse to launch.

    Raises:
        BuildError: naming the launch.
    """
    gpu = GPUS[DEFAULT_ARCH]  # registers are the same on every architecture since sm_70
    for launch in kernel.launches:
        registers = cubin.usage(launch.name).registers
        needed = gpu.block_registers(registers, launch.threads)
        if needed > gpu.registers_per_sm:
            raise BuildError(
                f"{launch.name}: {launch.threads} threads of {registers} registers need {needed}, "
                f"a multiprocessor has {gpu.registers_per_sm}"
            )
