"""A compiled model on a GPU: weights stay there, and its kernels are replayed on one stream."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from seer.codegen.artifact import ArgSpec
from seer.codegen.cuda.module import ALIGNMENT, CudaModule
from seer.codegen.model_entry import Copy, KernelCall, Loop, Slot
from seer.codegen.model_plan import ModelPlan
from seer.runtime.binding import bind_inputs, describe
from seer.runtime.cuda.device import Device, Memory
from seer.runtime.cuda.loaded import LoadedKernel
from seer.runtime.target import Target


class CudaModel:
    """A model on a device. Call it with arrays in the order of `inputs`, or by name.

    Calls from several threads run one after another. Intermediate arrays that never live together
    share memory, and so do the kernels' scratch buffers.

    Attributes:
        name: the model's name.
        inputs: name, shape (elements) and dtype of each input.
        outputs: the same of each output.
        target: what it was compiled for.
        device: where it runs.
    """

    def __init__(self, plan: ModelPlan[CudaModule], target: Target, device: Device) -> None:
        """Compile and load the plan's kernels and copy its weights.

        Raises:
            BuildError: if a kernel cannot be compiled or loaded.
            MeasureError: if the device has too little memory.
        """
        self.name = plan.name
        self.inputs = plan.inputs
        self.outputs = plan.outputs
        self.target = target
        self.device = device
        self._plan = plan
        self._lock = threading.Lock()
        scratch_bytes = max((k.scratch_size() for k in plan.artifacts), default=0)
        scratch_start = -(-plan.arena_bytes // ALIGNMENT) * ALIGNMENT
        self._arena = device.alloc(scratch_start + scratch_bytes)
        self._scratch = self._arena.part(scratch_start, scratch_bytes)
        self._tables = {
            "inputs": [device.alloc(s.size_bytes) for s in plan.inputs],
            "outputs": [device.alloc(s.size_bytes) for s in plan.outputs],
            "constants": [device.alloc(n) for n in plan.constants.sizes],
        }
        for memory, weight in zip(self._tables["constants"], plan.constants.take(), strict=True):
            device.write(memory, weight.array())
        kernels = {k.name: LoadedKernel(device, k) for k in plan.artifacts}
        self._steps: list[_Call | _CopyCall] = []
        for step in plan.steps:
            assert not isinstance(step, Loop), "slices are for the caches of CPUs"
            if isinstance(step, Copy):
                self._steps.append(self._bind_copy(step))
            else:
                self._steps.append(self._bind_call(step, kernels[step.symbol]))

    def __call__(self, *arrays: Any, **named: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the model once.

        Args:
            arrays: the first inputs, by position; any strides.
            named: the other inputs, by name.

        Returns:
            A new array, or a tuple of new arrays if the model has several outputs.

        Raises:
            UserError: if an input is missing, unknown, or of another shape or dtype.
            MeasureError: if the device fails.
        """
        inputs = bind_inputs(self.name, self.inputs, arrays, named)
        with self._lock:
            for memory, array in zip(self._tables["inputs"], inputs, strict=True):
                self.device.write(memory, array)
            self._replay()
            outputs = [self._read(k, s) for k, s in enumerate(self.outputs)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def time(self, repeats: int = 10, flush_cache: bool = False) -> tuple[float, ...]:
        """Seconds on the device of each of `repeats` runs, on the inputs of the last call."""
        with self._lock:
            return self.device.time(self._replay, repeats, flush_cache)

    @property
    def arena_bytes(self) -> int:
        """Bytes of intermediate arrays and scratch on the device."""
        return self._arena.size_bytes

    @property
    def constant_bytes(self) -> int:
        """Bytes of the weights, as packed."""
        return self._plan.constant_bytes

    @property
    def num_kernels(self) -> int:
        """Kernel calls and copies of one run."""
        return len(self._steps)

    def __repr__(self) -> str:
        inputs = ", ".join(map(describe, self.inputs))
        outputs = ", ".join(map(describe, self.outputs))
        return (
            f"CudaModel({self.name}: {inputs} -> {outputs}; {self.num_kernels} kernels, "
            f"weights {self.constant_bytes / 2**20:.1f} MiB, arena {self.arena_bytes / 2**20:.1f} MiB, "
            f"on {self.device.name})"
        )

    def _replay(self) -> None:
        for step in self._steps:
            step()

    def _read(self, k: int, spec: ArgSpec) -> np.ndarray:
        return self.device.read(self._tables["outputs"][k], spec.shape, spec.dtype)

    def _bind_call(self, call: KernelCall, kernel: LoadedKernel) -> _Call:
        specs = kernel.kernel.args
        args = tuple(self._memory(s, a.size_bytes) for s, a in zip(call.args, specs, strict=True))
        return _Call(kernel, args, self._scratch)

    def _bind_copy(self, copy: Copy) -> _CopyCall:
        source, destination = (self._memory(s, copy.size_bytes) for s in (copy.source, copy.destination))
        return _CopyCall(self.device, source, destination)

    def _memory(self, slot: Slot, size_bytes: int) -> Memory:
        if slot.kind == "arena":
            return self._arena.part(slot.index, size_bytes)
        return self._tables[slot.kind][slot.index].part(0, size_bytes)


class _Call:
    def __init__(self, kernel: LoadedKernel, args: tuple[Memory, ...], scratch: Memory) -> None:
        self._kernel, self._args, self._scratch = kernel, args, scratch

    def __call__(self) -> None:
        self._kernel.run(self._args, self._scratch)


class _CopyCall:
    def __init__(self, device: Device, source: Memory, destination: Memory) -> None:
        self._device, self._source, self._destination = device, source, destination

    def __call__(self) -> None:
        self._device.copy(self._source, self._destination)
