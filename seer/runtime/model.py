"""A compiled model: NumPy arrays in, one native call, NumPy arrays out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer import memory
from seer.codegen.artifact import Artifact
from seer.codegen.build import compile_module
from seer.codegen.memory_plan import align
from seer.codegen.model_entry import model_entry, num_calls
from seer.codegen.model_plan import ModelPlan
from seer.codegen.weights import Weights
from seer.dtypes import numpy_dtype
from seer.errors import TargetError, UserError
from seer.flags import debug
from seer.runtime.binding import bind_inputs, describe
from seer.runtime.loader import load_objects
from seer.runtime.target import Target, checked_threads

_ENTRY = "seer_model_run"
_ENTRY_TYPE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
)


class CompiledModel:
    """A model as machine code. Call it with arrays in the order of `inputs`, or by name.

    It may be called from several threads at once; each running call has its own arena. Weights
    are kept in the layout that the kernels read.

    Attributes:
        name: the model's name.
        inputs: name, shape (elements) and dtype of each input.
        outputs: the same of each output.
        target: what it was compiled for.
        num_threads: threads of a call that does not say; may be changed at any time.
    """

    def __init__(self, plan: ModelPlan[Artifact], target: Target) -> None:
        """Link the plan's kernels and its entry point.

        Raises:
            BuildError: if the code cannot be compiled or loaded.
        """
        self.name = plan.name
        self.inputs = plan.inputs
        self.outputs = plan.outputs
        self.target = target
        self.num_threads = target.num_threads
        self._plan = plan
        self._constants = _laid_out(plan.constants)
        self._constant_table = _pointer_table(self._constants)
        self._arenas = _ArenaPool()
        text = model_entry(_ENTRY, plan.steps, scratch_offset=plan.arena_bytes)
        debug("model", lambda: text)
        objects = [*(a.code for a in plan.artifacts), compile_module(text, target)]
        self._engine = load_objects(objects)  # owns the code: must live as long as `_run`
        self._run = _ENTRY_TYPE(self._engine.address(_ENTRY))

    def __call__(
        self, *arrays: Any, num_threads: int | None = None, **named: Any
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the model once.

        Args:
            arrays: the first inputs, by position; any strides.
            num_threads: threads of this call, by default those of the model.
            named: the other inputs, by name.

        Returns:
            A new array, or a tuple of new arrays if the model has several outputs.

        Raises:
            UserError: if an input is missing, unknown, or of another shape or dtype, or there can be no
                such number of threads.
        """
        threads = self.num_threads if num_threads is None else num_threads
        try:
            threads = checked_threads(threads)
        except TargetError as e:
            raise UserError(f"model {self.name}: num_threads: {e}") from None
        inputs = bind_inputs(self.name, self.inputs, arrays, named)
        outputs = [np.empty(s.shape, numpy_dtype(s.dtype)) for s in self.outputs]
        arena = self._arenas.take(self._plan.arena_size(threads))
        try:
            self._run(
                _pointer_table(inputs),
                _pointer_table(outputs),
                self._constant_table,
                arena.ctypes.data,
                threads,
            )
        finally:
            self._arenas.give_back(arena)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @property
    def arena_bytes(self) -> int:
        """Bytes that each call running at the same time needs, besides its outputs."""
        return self._plan.arena_size(self.num_threads)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the weights, as packed."""
        return self._plan.constant_bytes

    @property
    def num_kernels(self) -> int:
        """Kernel calls and copies of one run."""
        return num_calls(self._plan.steps)

    def __repr__(self) -> str:
        inputs = ", ".join(map(describe, self.inputs))
        outputs = ", ".join(map(describe, self.outputs))
        return (
            f"CompiledModel({self.name}: {inputs} -> {outputs}; {self.num_kernels} kernels, "
            f"weights {self.constant_bytes / 2**20:.1f} MiB, arena {self.arena_bytes / 2**20:.1f} MiB, "
            f"{self.num_threads} threads)"
        )


def _laid_out(weights: Weights) -> list[np.ndarray]:
    """Every constant as the kernels read it, most of them in one block.

    What needs no packing stays where it is, shared with the graph while there is one.
    """
    block = memory.Block(sum(map(align, weights.sizes)))
    out = []
    for weight in weights.take():
        if weight.is_plain and memory.is_aligned(array := weight.array()):
            out.append(array)
            continue
        out.append(block.take(weight.shape, weight.spec.dtype))
        weight.write(out[-1])
    return out


class _ArenaPool:
    """Arenas that no running call uses; as many as there have been calls at one time."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # its methods are atomic; a lock could be held during a fork

    def take(self, size_bytes: int) -> np.ndarray:
        """An arena of at least that size; a smaller one that was free is let go."""
        try:
            arena = self._free.pop()
        except IndexError:
            arena = None
        if arena is not None and arena.nbytes >= size_bytes:
            return arena
        return memory.empty((size_bytes,), "uint8")

    def give_back(self, arena: np.ndarray) -> None:
        self._free.append(arena)


def _pointer_table(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
