"""Families: tasks similar enough that one task's measurements say something of another's.

The paper's static analysis (FamilySeer, section 4) gives three: by the anchor operator (`op`), by the
sequence of operations without shapes (`hash`), and each task alone (`ind`). `auto` is finer than `op`
where the paper's puts almost every task of a network into one family: it also looks at the window of
the reduction, how much reuse there is, and how long the rows are.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence

from seer.dtypes import dtype as dtype_of
from seer.errors import UserError
from seer.ir.dag import ComputeDAG, canonical_text, compute_op
from seer.search.task import SearchTask

FamilyRule = Callable[[ComputeDAG], str]


def by_operator(dag: ComputeDAG) -> str:
    """The anchor operator."""
    return dag.tag


def by_structure(dag: ComputeDAG) -> str:
    """The sequence of operations with every number left out."""
    text = re.sub(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b", "", canonical_text(dag))
    return f"{dag.tag} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def alone(dag: ComputeDAG) -> str:
    """Every workload by itself."""
    return f"{dag.tag} {dag.workload_key[:8]}"


def by_similarity(dag: ComputeDAG) -> str:
    """Anchor, window of the reduction, arithmetic intensity and rows: what makes the same tiles good."""
    anchor = dag.anchor
    if anchor is None:
        return f"elementwise {len(dag.output.shape)}d"
    op = compute_op(anchor)
    extents = sorted(a.extent for a in op.reduce_axes if a.extent > 1)
    window = "x".join(str(n) for n in extents[:-1]) or "1"
    rows = math.prod(anchor.shape[:-1])
    size = "few" if rows < 8 else "some" if rows < 64 else "many"
    return f"{dag.tag} window {window}, intensity {_intensity(dag)}, {size} rows"


def _intensity(dag: ComputeDAG) -> str:
    """Operations for each byte of inputs and output."""
    moved = sum(math.prod(t.shape) * dtype_of(t.dtype).size_bytes for t in (*dag.inputs, dag.output))
    ratio = dag.flop_count / max(moved, 1)
    return "low" if ratio < 4 else "medium" if ratio < 32 else "high"


RULES: dict[str, FamilyRule] = {
    "op": by_operator,
    "hash": by_structure,
    "ind": alone,
    "auto": by_similarity,
    "none": lambda _: "all",
}


def families_of(tasks: Sequence[SearchTask], rule: str) -> list[str]:
    """The family of each task.

    Raises:
        UserError: if there is no such rule.
    """
    if rule not in RULES:
        raise UserError(f"unknown families {rule!r}; seer has {', '.join(RULES)}")
    return [RULES[rule](t.dag) for t in tasks]
