"""One compiled kernel on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from seer.codegen.artifact import Artifact
from seer.codegen.memory_plan import ALIGNMENT
from seer.dtypes import numpy_dtype
from seer.errors import UserError
from seer.runtime.loader import load_objects


class Kernel:
    """A loaded Artifact.

    Attributes:
        artifact: what was loaded.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._engine = load_objects([artifact.code])
        pointers = [ctypes.c_void_p] * (len(artifact.args) + 1)
        kind = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int32)
        self._function = kind(self._engine.address(artifact.name))

    def call(self, addresses: Sequence[int], scratch: int, num_threads: int) -> None:
        """Run on raw addresses: inputs, then the output, all as the artifact's args say."""
        self._function(*addresses, scratch, num_threads)

    def __call__(self, *inputs: np.ndarray, num_threads: int = 1) -> np.ndarray:
        """Run on arrays in their logical shapes; returns a new array.

        Raises:
            UserError: if the number, a shape or a dtype of the inputs is wrong.
        """
        *specs, last = self.artifact.args
        if len(inputs) != len(specs):
            raise UserError(f"kernel {self.artifact.name} takes {len(specs)} inputs, given {len(inputs)}")
        arrays = []
        for spec, array in zip(specs, inputs, strict=True):
            if array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
                raise UserError(
                    f"kernel {self.artifact.name}: {spec.name} must be {spec.dtype}{list(spec.shape)}, "
                    f"found {array.dtype}{list(array.shape)}"
                )
            packed = array if spec.pack is None else spec.pack.apply(array)
            arrays.append(np.ascontiguousarray(packed))
        out = np.empty(last.shape, numpy_dtype(last.dtype))
        scratch = np.empty(self.artifact.scratch_size(num_threads) + ALIGNMENT, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % ALIGNMENT
        self.call([a.ctypes.data for a in (*arrays, out)], start, num_threads)
        return out


def run_artifact(artifact: Artifact, inputs: Sequence[np.ndarray], num_threads: int = 1) -> np.ndarray:
    """Load a kernel and run it once; see `Kernel.__call__`."""
    return Kernel(artifact)(*inputs, num_threads=num_threads)
