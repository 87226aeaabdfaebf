"""What the runtime needs of a GPU. Everything above this is the same on a real and an emulated one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from seer.codegen.cuda.module import Launch


@dataclass(frozen=True, slots=True)
class Memory:
    """A part of a device allocation.

    Attributes:
        owner: the allocation, which lives as long as something refers to it.
        offset: where it begins (bytes).
    """

    owner: Any
    offset: int
    size_bytes: int

    def part(self, offset: int, size_bytes: int) -> Memory:
        """The bytes offset..offset + size_bytes of this memory."""
        assert 0 <= offset and offset + size_bytes <= self.size_bytes
        return Memory(self.owner, self.offset + offset, size_bytes)


class Device(Protocol):
    """A GPU, or what stands in its place. Calls are queued on one stream, in order.

    Attributes:
        name: for people.
        arch: what code is compiled for, such as "sm_90".
    """

    name: str
    arch: str

    def alloc(self, size_bytes: int) -> Memory:
        """New memory, aligned to 256 bytes, with unknown contents; the last reference to it frees it."""
        ...

    def write(self, memory: Memory, array: np.ndarray) -> None:
        """Copy an array to the device; it has the memory's size."""
        ...

    def read(self, memory: Memory, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """A new array with the contents of the memory, after everything queued before."""
        ...

    def fill(self, memory: Memory, value: int) -> None:
        """Set every byte."""
        ...

    def copy(self, source: Memory, destination: Memory) -> None:
        """Copy between device memories of the same size."""
        ...

    def load(self, source: str, cubin: bytes | None = None) -> Any:
        """Load CUDA C, compiled here unless its cubin is given; the same source is loaded once.

        Raises:
            BuildError: if it cannot be compiled or loaded.
        """
        ...

    def launch(self, module: Any, launch: Launch, args: Sequence[Memory]) -> None:
        """Queue a launch of a loaded module's kernel.

        Raises:
            MeasureError: if the device refuses it.
            EmulationError: if the emulated kernel does what it must not.
        """
        ...

    def synchronize(self) -> None:
        """Wait for everything queued.

        Raises:
            MeasureError: if something of it failed; a GPU's context is of no use afterwards.
        """
        ...

    def time(self, run: Callable[[], None], repeats: int, flush_cache: bool = False) -> tuple[float, ...]:
        """Seconds of the device for each of `repeats` calls of `run`, which queues launches.

        Args:
            run: queues work.
            repeats: how many times to run and time it.
            flush_cache: fill the second-level cache with something else before each.
        """
        ...

    def close(self) -> None:
        """Free everything; the device must not be used afterwards."""
        ...
