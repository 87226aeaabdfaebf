"""The constants of a model on their way to the kernels: each is laid out when its turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seer.codegen.artifact import ArgSpec
from seer.dtypes import numpy_dtype
from seer.graph.pending import Constant


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant of the graph and how a kernel reads it."""

    value: Constant
    spec: ArgSpec

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to compute and nothing to pack."""
        return self.spec.pack is None and isinstance(self.value, np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as the kernel reads it."""
        return self.spec.shape if self.spec.pack is None else self.spec.pack.shape

    def array(self) -> np.ndarray:
        """The C-contiguous array, packed; the constant itself if it is that already."""
        if self.spec.pack is None:
            return np.ascontiguousarray(self._plain())
        return self.spec.pack.apply(self._plain())

    def write(self, out: np.ndarray) -> None:
        """The same into `out`, of `shape`."""
        if self.spec.pack is None:
            out[...] = self._plain()
        else:
            self.spec.pack.write(self._plain(), out)

    def _plain(self) -> np.ndarray:
        return np.asarray(self.value, numpy_dtype(self.spec.dtype)).reshape(self.spec.shape)


class Weights:
    """A model's table of constants, which is taken once, in order.

    An entry is let go when the next is taken: if nothing else holds the graph, its constants are freed
    while they are packed, and the model needs its memory once, not twice.
    """

    def __init__(self, weights: list[Weight]) -> None:
        self._left = weights[::-1]
        self.sizes = tuple(w.spec.size_bytes for w in weights)

    def take(self) -> Iterator[Weight]:
        """The entries that are left; afterwards there are none."""
        while self._left:
            yield self._left.pop()
