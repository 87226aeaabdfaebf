"""Backend: one kind of target as the driver sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from seer.codegen.artifact import ArgSpec
from seer.codegen.model_plan import KernelLike, ModelPlan
from seer.ir.sketch import Sketch
from seer.runtime.measure import Measurer
from seer.runtime.target import Target


class Model(Protocol):
    """A compiled model, whatever it runs on: called with arrays, by position or by name."""

    name: str
    inputs: tuple[ArgSpec, ...]
    outputs: tuple[ArgSpec, ...]

    @property
    def arena_bytes(self) -> int:
        """Bytes of intermediate arrays and scratch."""
        ...

    @property
    def constant_bytes(self) -> int:
        """Bytes of the weights, as packed."""
        ...

    @property
    def num_kernels(self) -> int:
        """Kernel calls of one run."""
        ...

    def __call__(self, *arrays: Any, **named: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the model once."""
        ...


@dataclass(frozen=True)
class Backend:
    """What a kind of target brings.

    Attributes:
        resolve: the target as this machine has it; a UserError says what is missing to run its code.
        build: compiles a candidate under a name; a ScheduleError or BuildError if that cannot be.
        measurer: times candidates; the caller closes it.
        load: makes a plan of built kernels ready to be called.
        seconds: of some runs of a loaded model, by the device's own clock; None where that is the wall's.
    """

    resolve: Callable[[Target], Target]
    build: Callable[[Sketch, np.ndarray, Target, str], KernelLike]
    measurer: Callable[[Target], Measurer]
    load: Callable[[ModelPlan[Any], Target], Model]
    seconds: Callable[[Any, int], tuple[float, ...]] | None = None


BACKENDS: dict[str, Backend] = {}


def register_backend(kind: str, backend: Backend) -> None:
    """Add what the targets of a kind need."""
    BACKENDS[kind] = backend


def backend_of(target: Target) -> Backend:
    """The backend of a target's kind."""
    return BACKENDS[target.kind]
