"""Candidates compiled ahead of their turn on the device."""

from __future__ import annotations

from seer.codegen.cuda.module import CudaModule
from seer.errors import BuildError, UserError
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.emulate.compiler import library
from seer.runtime.emulate.source import translate
from seer.runtime.gpu import DEFAULT_ARCH, GPUS
from seer.runtime.nvrtc import Cubin, compile_cubin


def compile_kernel(kernel: CudaModule, spec: DeviceSpec, arch: str) -> bytes | None:
    """The cubin of a kernel for a device; None for an emulated one, which keeps its code itself.

    Raises:
        BuildError: if the source is refused, or a block needs more registers than there are.
        TargetError: if there is no compiler.
    """
    if spec.kind == "emulated":
        try:
            library(translate(kernel.source, spec.checked).text, spec.checked)
        except UserError as e:
            raise BuildError(f"cannot emulate the source: {e}") from e
        return None
    cubin = compile_cubin(kernel.source, arch)
    check_registers(kernel, cubin)
    return cubin.data


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
