"""GNU OpenMP, on which parallel loops run: found once, offered to LLVM's linker by name."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import logging
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from seer import flags
from seer.errors import TargetError

_PAUSE_HARD = 2  # omp_pause_hard
_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

_TEAM = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_INTEGER = ctypes.CFUNCTYPE(ctypes.c_int)


@lru_cache(maxsize=1)
def install() -> str | None:
    """Make the OpenMP functions known to LLVM.

    Returns:
        The library's path, or None if there is none and parallel loops run on one thread.

    Raises:
        TargetError: if SEER_OPENMP names a library that cannot be used.
    """
    wanted = flags.openmp_path()
    for path in [wanted] if wanted else _candidates():
        library = _library(path)
        if library is not None:
            for name in _SYMBOLS:
                llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
            _survive_forks(library)
            return path
        if wanted:
            raise TargetError(f"{wanted} (SEER_OPENMP) is no OpenMP library with {', '.join(_SYMBOLS)}")
    logging.getLogger("seer.runtime").warning(
        "no OpenMP library (libgomp) found: parallel loops run on one thread; "
        "install libgomp1, or set SEER_OPENMP to its path"
    )
    for name, function in zip(_SYMBOLS, _serial_functions(), strict=True):
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return None


def _candidates() -> Iterator[str]:
    """Places to look, best first: what the process would get anyway comes before bundled copies."""
    found = ctypes.util.find_library("gomp")
    if found:
        yield found
    yield "libgomp.so.1"
    for package in ("xgboost", "scikit_learn", "sklearn"):
        spec = importlib.util.find_spec(package) if package != "scikit_learn" else None
        if spec is not None and spec.origin is not None:
            site = Path(spec.origin).parent.parent
            for folder in (f"{package}.libs", "scikit_learn.libs"):
                yield from sorted(str(p) for p in (site / folder).glob("libgomp*.so*"))


def _library(path: str) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    return library if all(hasattr(library, s) for s in _SYMBOLS) else None


def _survive_forks(library: ctypes.CDLL) -> None:
    """Let the forking thread's team go before every fork.

    The child has a copy of that thread and none of its team, for which its next parallel loop would wait
    forever. Without one, parent and child each start a new team when they need it.
    """
    if hasattr(os, "register_at_fork") and hasattr(library, "omp_pause_resource_all"):
        os.register_at_fork(before=lambda: library.omp_pause_resource_all(_PAUSE_HARD))


@lru_cache(maxsize=1)
def _serial_functions() -> tuple[Any, ...]:
    """A team of one thread; kept alive by the cache."""

    def parallel(function: int, data: int, _threads: int, _flags: int) -> None:
        _TEAM(function)(data)

    return _PARALLEL(parallel), _INTEGER(lambda: 0), _INTEGER(lambda: 1)
