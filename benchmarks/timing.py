"""A fair start for NumPy."""

from __future__ import annotations

import os
import sys

# Set where some OpenBLAS builds need them; they slow down NumPy, so a comparison must not have them.
_HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def with_fast_numpy() -> None:
    """Start this process again without variables that slow down NumPy (read when it is imported)."""
    if any(v in os.environ for v in _HANDICAPS):
        env = {k: v for k, v in os.environ.items() if k not in _HANDICAPS}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)
