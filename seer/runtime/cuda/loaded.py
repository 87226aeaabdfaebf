"""One CudaModule on a device: its launches, and its scratch memory."""

from __future__ import annotations

from collections.abc import Sequence

from seer.codegen.cuda.module import CudaModule
from seer.codegen.memory_plan import MemoryPlan
from seer.errors import BuildError
from seer.runtime.cuda.device import Device, Memory


class LoadedKernel:
    """A CudaModule loaded, and compiled unless its cubin is given.

    Attributes:
        kernel: what was loaded.

    Raises:
        BuildError: if its source does not compile, or a launch names an argument that there is not.
    """

    def __init__(self, device: Device, kernel: CudaModule, cubin: bytes | None = None) -> None:
        self.kernel = kernel
        self._device = device
        self._scratch_plan: MemoryPlan = kernel.scratch_plan()
        names = {*(a.name for a in kernel.args), *(b.name for b in kernel.scratch)}
        for launch in kernel.launches:
            unknown = [a for a in launch.args if a not in names]
            if unknown:
                raise BuildError(f"kernel {kernel.name}: no argument {unknown[0]!r} for {launch.name}")
        self._module = device.load(kernel.source, cubin or kernel.cubin)

    def run(self, args: Sequence[Memory], scratch: Memory) -> None:
        """Queue all launches.

        Args:
            args: as the kernel's args say.
            scratch: at least kernel.scratch_size() bytes.
        """
        named = {spec.name: memory for spec, memory in zip(self.kernel.args, args, strict=True)}
        offsets = self._scratch_plan.offsets
        for buffer, offset in zip(self.kernel.scratch, offsets, strict=True):
            named[buffer.name] = scratch.part(offset, buffer.size_bytes)
        for launch in self.kernel.launches:
            if launch.blocks > 0:
                self._device.launch(self._module, launch, [named[a] for a in launch.args])
