"""Memory for arrays that kernels use again and again: aligned, and on huge pages if they are large.

On huge pages fewer addresses need translating, and chance does not decide which pages compete for a
set of the cache, so that a kernel's time depends less on where its arrays happen to lie.
"""

from __future__ import annotations

import math
import mmap

import numpy as np

from seer.dtypes import numpy_dtype

ALIGNMENT = 64
HUGE_PAGE_BYTES = 2 << 20
MIN_HUGE_BYTES = 256 << 10


def empty(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An uninitialised C-contiguous array that begins at a multiple of ALIGNMENT bytes."""
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    huge = size >= MIN_HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE")
    raw = _huge(size + HUGE_PAGE_BYTES) if huge else np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % (HUGE_PAGE_BYTES if huge else ALIGNMENT)
    return raw[start : start + size].view(numpy_dtype(dtype)).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of an array in memory from `empty`."""
    out = empty(array.shape, array.dtype.name)
    out[...] = array
    return out


def _huge(size: int) -> np.ndarray:
    pages = mmap.mmap(-1, size)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)  # keeps `pages` alive
