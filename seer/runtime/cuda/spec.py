"""Devices named as plain data, so that a worker process can open its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seer.runtime.cuda.device import Device
from seer.runtime.cuda.driver import PycudaDevice
from seer.runtime.cuda.emulated import EmulatedDevice
from seer.runtime.emulate import Order

EMULATION_LIMIT_S = 300.0


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

    @property
    def run_limit_s(self) -> float | None:
        """Seconds of a trial after which it is given up, where the kernel's own time does not tell."""
        return EMULATION_LIMIT_S if self.kind == "emulated" else None

    def open(self) -> Device:
        """The device itself.

        Raises:
            TargetError: if this machine does not have it.
        """
        if self.kind == "cuda":
            return PycudaDevice(self.index)
        return EmulatedDevice(
            self.arch, checked=self.checked, order=self.order, seed=self.seed, limit_s=EMULATION_LIMIT_S
        )
