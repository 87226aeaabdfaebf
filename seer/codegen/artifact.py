"""What the code generator hands to the runtime: machine code and how to call it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seer.dtypes import dtype as dtype_of
from seer.ir.tensor import Derivation


@dataclass(frozen=True, slots=True)
class PackSpec:
    """How a constant input is laid out ahead of time for a tuned loop nest.

    Each dimension d of the (n_dims,) array is zero-padded to the product of `splits[d]`, split
    into those factors (outer to inner; no factors drop a dimension of one position), and all
    factors are then transposed by `order`, which indexes the flattened list of factors.
    `derivation` is applied before, if there is one.
    """

    splits: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    derivation: Derivation | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        flat = [f for s in self.splits for f in s]
        return tuple(flat[k] for k in self.order)

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy, C-contiguous, of shape `self.shape`."""
        out = np.empty(self.shape, array.dtype)
        self.write(array, out)
        return out

    def write(self, array: np.ndarray, out: np.ndarray) -> None:
        """Pack an array into `out`, of shape `self.shape`."""
        if self.derivation is not None:
            array = self.derivation.apply(array)
        pad = [(0, math.prod(s) - n) for s, n in zip(self.splits, array.shape, strict=True)]
        if any(n for _, n in pad):  # else it would only be a copy
            array = np.pad(array, pad)
        flat = [f for s in self.splits for f in s]
        out[...] = array.reshape(flat).transpose(self.order)


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One argument of a kernel.

    Attributes:
        shape: logical shape, as the ComputeDAG has it (elements).
        pack: how the array must be packed before the call, or None for plain row-major.
        constant: a weight, known when the model is compiled.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: bool = False
    pack: PackSpec | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that the kernel may touch."""
        shape = self.shape if self.pack is None else self.pack.shape
        return math.prod(shape) * dtype_of(self.dtype).size_bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel.

    The symbol has the C signature
        void name(void *arg0, ..., void *argN, char *scratch, int32_t num_threads)
    with the arguments in the order of `args` (inputs, then the output), none aliasing another.
    `scratch` is 64-byte aligned and holds scratch_bytes + num_threads * thread_scratch_bytes.

    Attributes:
        code: a relocatable object file (ELF, Mach-O or COFF).
        target: the str() of the Target it was built for.
    """

    name: str
    target: str
    args: tuple[ArgSpec, ...]
    code: bytes
    scratch_bytes: int
    thread_scratch_bytes: int

    def scratch_size(self, num_threads: int) -> int:
        """Bytes of scratch one call with `num_threads` needs."""
        return self.scratch_bytes + num_threads * self.thread_scratch_bytes
