"""Other systems: used where they are installed, named where they are not."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np


def optional(name: str) -> Any:
    """The module called `name`, or None with a notice."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed: skipped", file=sys.stderr)
        return None


def limit_threads(threads: int, torch: Any = None) -> None:
    """Let NumPy (and torch) use so many threads from now on.

    Raises:
        SystemExit: if threadpoolctl is missing, without which NumPy's threads cannot be set.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise SystemExit("the benchmarks need threadpoolctl: pip install 'seer[bench]'") from None
    threadpool_limits(threads, "blas")
    if torch is not None:
        torch.set_num_threads(threads)


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-4) -> bool:
    """Whether two results agree by norm."""
    scale = float(np.linalg.norm(b)) or 1.0
    return float(np.linalg.norm(np.asarray(a, np.float64) - b)) <= tolerance * scale
