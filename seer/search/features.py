"""What a cost model sees of a candidate: a fixed number of features for a whole population at once.

Features are functions of a sketch's parameters; nothing is lowered to compute them, and yet each is a
fact of the program that lowering would make (tests/test_features.py compares the two). The root nest
with the most arithmetic is described in full: its register tile, its loops, and for each boundary
between loop groups how much memory is touched inside and how much is moved across (what a cache of
that size would have to fetch); the other nests by their sums. Sizes are logarithms, so that one model
serves small and large kernels.
"""

from __future__ import annotations

import importlib

import numpy as np

from seer.ir.sketch import INLINE, Sketch
from seer.runtime.target import Target
from seer.search.feature_tables import BOUNDARIES, N_FEATURES, TAGS, expandable, tables_of
from seer.search.gpu_features import gpu_features

VERSION = 4

NAMES = (
    # the workload
    "log flop",
    "log outputs",
    "threads",
    "stages",
    *(f"is {tag}" for tag in TAGS),
    # the sketch
    "has vector",
    "vector is reduced",
    "groups",
    "finish",
    "has epilogue",
    "packs offered",
    "attached",
    "nests",
    "calls",
    # the register tile
    "vectors",
    "vectors along",
    "rows",
    "filled lanes",
    "is full",
    "loads a vector",
    "share of registers",
    "waste",
    "log unrolled",
    "log statements",
    # loops, from the innermost group out
    *(f"log {what} trips {k}" for k in range(BOUNDARIES) for what in ("spatial", "reduce", "vector")),
    # memory: where the lanes of loads lie, bytes inside and across boundaries, traffic of caches
    "loads of one element",
    "loads of neighbours",
    "loads of elements apart",
    *(f"log {what} {k}" for k in range(1, BOUNDARIES + 1) for what in ("bytes inside", "bytes moved a flop")),
    *(f"log {level} traffic{per}" for level in ("L1", "L2", "L3") for per in ("", " a flop")),
    # threads
    "is parallel",
    "log pieces",
    "even pieces",
    "log pieces a thread",
    # packed copies, attached producers, scratch
    "packs",
    "packs at run time",
    "inlined",
    "at root",
    "log runs of producers",
    "log tile bytes",
    "log shared bytes",
    # the other nests
    "log other elements",
    "log other serial elements",
    "log other narrow elements",
    # packed constants that are asked for ahead of their use
    "prefetches",
)
assert len(NAMES) == N_FEATURES


def features(sketch: Sketch, rows: np.ndarray, target: Target) -> np.ndarray:
    """The (P, N_FEATURES) float32 matrix of canonical rows (P, n_params), as NAMES lists them.

    A GPU's candidates are described by others (seer/search/gpu_features.py).
    """
    if target.gpu is not None:
        return gpu_features(sketch, rows, target)
    # It imports numba, which takes time and memory that compiling a model can do without.
    fill = importlib.import_module("seer.search.feature_kernel").fill
    out = np.empty((len(rows), N_FEATURES), dtype=np.float32)
    rows = np.ascontiguousarray(rows)
    stages = expandable(sketch)
    code = np.zeros(len(rows), dtype=np.int64)
    for k, (_, location, pack) in enumerate(stages):
        here = np.ones(len(rows), dtype=bool) if location < 0 else rows[:, location] == INLINE
        code += (here if pack < 0 else here & (rows[:, pack] == 0)) << k
    for value in np.unique(code):
        expanded = tuple(s for k, (s, _, _) in enumerate(stages) if value >> k & 1)
        tables = tables_of(sketch, target, expanded)
        mine = code == value
        if mine.all():
            fill(tables, rows, out)
        else:
            part = np.empty((int(mine.sum()), N_FEATURES), dtype=np.float32)
            fill(tables, rows[mine], part)
            out[mine] = part
    return out
