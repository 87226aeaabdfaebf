"""Candidates compiled ahead of their turn on the device."""

from __future__ import annotations

from seer.codegen.cuda.module import CudaModule
from seer.errors import BuildError, UserError
from seer.runtime.cuda.spec import DeviceSpec
from seer.runtime.emulate.compiler import library
from seer.runtime.emulate.source import translate
from seer.runtime.nvrtc import Cubin, compile_cubin

REGISTERS = 64 << 10  # of a multiprocessor, on every architecture since sm_50
_WARP_UNIT = 256  # registers are given to warps in units of this many


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
    for launch in kernel.launches:
        registers = cubin.usage(launch.name).registers
        needed = -(-launch.threads // 32) * (-(-registers * 32 // _WARP_UNIT) * _WARP_UNIT)
        if needed > REGISTERS:
            raise BuildError(
                f"{launch.name}: {launch.threads} threads of {registers} registers need {needed}, "
                f"a multiprocessor has {REGISTERS}"
            )
