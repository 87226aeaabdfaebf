"""Constants that are computed when they are needed, so that not all of them are in memory at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Pending:
    """What a pass makes of a constant: an array as far as its shape goes, and for NumPy.

    Attributes:
        shape: extents, in elements.
        dtype: of the array.
        compute: makes the array; called each time that it is asked for.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    compute: Callable[[], np.ndarray] = field(repr=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = self.compute()
        assert out.shape == self.shape and out.dtype == self.dtype, (self, out.shape, out.dtype)
        return out if dtype is None else out.astype(dtype, copy=False)


Constant = np.ndarray | Pending


def later(
    value: Constant, function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], dtype: Any = None
) -> Pending:
    """`function` of a constant, not yet computed; of `value`'s dtype if none is given."""
    return Pending(shape, np.dtype(dtype or value.dtype), lambda: function(np.asarray(value)))


def transposed(value: Constant, axes: tuple[int, ...]) -> Pending:
    """A constant's dimensions in another order."""
    return later(value, lambda a: a.transpose(axes), tuple(value.shape[a] for a in axes))
