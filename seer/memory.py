"""Memory for large arrays: aligned, freed at once, and on huge pages where that pays.

On huge pages fewer addresses need translating, and chance does not decide which pages compete for a
set of the cache, so that a kernel's time depends less on where its arrays happen to lie. A huge page
is used up by whatever touches it, so many small arrays take one block together.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap

import numpy as np

from seer.dtypes import numpy_dtype

ALIGNMENT = 64
HUGE_PAGE_BYTES = 2 << 20
MIN_HUGE_BYTES = MIN_PAGES_BYTES = 256 << 10


def empty(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An uninitialised C-contiguous array that begins at a multiple of ALIGNMENT bytes."""
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    huge = size >= MIN_HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE")
    raw = _huge(size + HUGE_PAGE_BYTES) if huge else np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % (HUGE_PAGE_BYTES if huge else ALIGNMENT)
    return raw[start : start + size].view(numpy_dtype(dtype)).reshape(shape)


def kept(array: np.ndarray) -> np.ndarray:
    """A C-contiguous copy for a long life; if it is large, in pages of its own.

    What the C library frees of many arrays it may keep for later; pages go back to the system at once.
    """
    if array.nbytes < MIN_PAGES_BYTES or array.dtype.hasobject:
        return np.array(array, order="C")
    out = np.frombuffer(_pages(array.nbytes), array.dtype).reshape(array.shape)
    out[...] = array
    return out


class Block:
    """One piece of memory that arrays lie in, side by side."""

    def __init__(self, size_bytes: int) -> None:
        self._left = empty((size_bytes,), "uint8")

    def take(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """An uninitialised array, which takes its bytes rounded up to a multiple of ALIGNMENT."""
        size = math.prod(shape) * numpy_dtype(dtype).itemsize
        here, self._left = np.split(self._left, [-(-size // ALIGNMENT) * ALIGNMENT])
        return here[:size].view(numpy_dtype(dtype)).reshape(shape)


def is_aligned(array: np.ndarray) -> bool:
    """Whether kernels can read an array as it is."""
    return array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0


def give_back() -> None:
    """Free what only cycles of references hold, and return free memory to the system."""
    gc.collect()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _pages(size: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):  # what is shared with other processes gets no huge pages
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _huge(size: int) -> np.ndarray:
    pages = _pages(size)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)  # keeps `pages` alive
