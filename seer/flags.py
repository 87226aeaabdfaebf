"""Every environment variable that seer reads.

    SEER_DEBUG=graph,dag,...   show these stages as text on stderr ("all" for every one)
    SEER_CHECK=0|1|2           verify the loop IR: never | after lowering | after every pass (default 1)
    SEER_SEED=n                the seed where none is given (default 0)
    SEER_WORKERS=n             build processes (default: the number of CPUs this process may use)
    SEER_OPENMP=path           the OpenMP library with GOMP_parallel, where seer finds none itself
    SEER_CACHE=path            where compiled programs are kept (default: the folder for temporary files)
    CXX=path                   the C++ compiler that emulates CUDA (default: g++ or clang++)

They are read at each use, so a test or a notebook may change them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from seer.errors import UserError

MAX_SEED = 2**63 - 1  # of what records keep

STAGES = ("graph", "partition", "dag", "sketch", "loops", "llvm", "asm", "cuda", "search", "model")


def debug_stages() -> frozenset[str]:
    """The stages named by SEER_DEBUG.

    Raises:
        UserError: if it names a stage that does not exist.
    """
    names = {n.strip() for n in os.environ.get("SEER_DEBUG", "").split(",")} - {""}
    unknown = sorted(names - {*STAGES, "all"})
    if unknown:
        raise UserError(f"SEER_DEBUG names {', '.join(unknown)}; stages are {', '.join(STAGES)}, all")
    return frozenset(STAGES) if "all" in names else frozenset(names)


def debug(stage: str, text: Callable[[], str]) -> None:
    """Log `text()` as a stage of compilation if SEER_DEBUG asks for that stage.

    It goes to the logger "seer.debug": to stderr, unless the program has configured logging.
    """
    if not os.environ.get("SEER_DEBUG") or stage not in debug_stages():
        return
    logger = logging.getLogger("seer.debug")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.DEBUG)
    logger.debug("---- %s ----\n%s", stage, text())


def check_level() -> int:
    """How often the loop IR is verified: 0 never, 1 after lowering, 2 after every pass."""
    return _integer("SEER_CHECK", 1, 0, 2)


def seed() -> int:
    """The seed to use where the caller gives none."""
    return _integer("SEER_SEED", 0, 0, MAX_SEED)


def workers() -> int:
    """How many build processes to start."""
    return _integer("SEER_WORKERS", _cpu_count(), 1, 1024)


def openmp_path() -> str | None:
    """The OpenMP library to load, or None to search for one."""
    return os.environ.get("SEER_OPENMP") or None


def cache_dir() -> str | None:
    """Where to keep compiled programs, or None for the default."""
    return os.environ.get("SEER_CACHE") or None


def cxx() -> str | None:
    """The C++ compiler to use, or None to search for one."""
    return os.environ.get("CXX") or None


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _integer(name: str, default: int, low: int, high: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise UserError(f"{name} is {text!r}; it must be an integer from {low} to {high}")
    return value
