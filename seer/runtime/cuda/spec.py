"""Devices named as plain data, so that a worker process can open its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seer import flags
from seer.runtime.cuda.device import Device
from seer.runtime.cuda.driver import PycudaDevice
from seer.runtime.cuda.emulated import EmulatedDevice
from seer.runtime.emulate import Order


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device.

    Attributes:
        kind: a GPU, or the CPU in its place.
        index: number of the GPU.
        arch: what an emulated device pretends to be; a GPU has its own.
        checked: watch every memory access of emulated kernels.
        order: in which order emulated threads run.
        seed: of that order and of the noise of simulated times.
    """

    kind: Literal["cuda", "emulated"] = "cuda"
    index: int = 0
    arch: str = "sm_80"
    checked: bool = True
    order: Order = "forward"
    seed: int = 0

    def open(self) -> Device:
        """The device itself.

        Raises:
            TargetError: if this machine does not have it.
        """
        if self.kind == "cuda":
            return PycudaDevice(self.index)
        return EmulatedDevice(self.arch, checked=self.checked, order=self.order, seed=self.seed)


def default_device() -> DeviceSpec:
    """The device that SEER_CUDA names; by default the first GPU."""
    index = flags.cuda_device()
    return DeviceSpec("emulated") if index is None else DeviceSpec("cuda", index)
