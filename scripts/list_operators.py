"""Writes docs/operators.md, the operators of the graph API, from their registry.

python scripts/list_operators.py
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from seer.graph import ops  # noqa: F401  (registers the operators)
from seer.graph.registry import OpDef, function_names, op_def, signature

FILE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"
HOME = "seer.graph.ops."

INTRODUCTION = """\
# Operators

Written by `scripts/list_operators.py` from the registry; `tests/test_docs.py` compares.

Each is a method of graphs and values and a function: `g.relu(x)`, `x.relu()` and `seer.ops.relu(x)` are the
same. All take `name=`, too. Numbers and NumPy arrays among the inputs become constants. Python's
`+ - * / ** @` and unary `-` are add, sub, mul, div, pow, matmul and neg. Kernels, strides and dilations are a
whole number or a pair (rows, columns); padding is one of these, (top, left, bottom, right) or "same".
"""


def text() -> str:
    """The whole file."""
    by_module: dict[str, list[OpDef]] = {}
    for op in map(op_def, function_names()):
        if op.infer.__module__.startswith(HOME):
            by_module.setdefault(op.infer.__module__, []).append(op)
    out = [INTRODUCTION]
    for module in sorted(by_module):
        title = (sys.modules[module].__doc__ or "").split("\n")[0].rstrip(".")
        out.append(f"## {title[0].upper()}{title[1:]}\n")
        out += [f"- `{op.name}{_shown(op)}`: {op.doc}" for op in by_module[module]]
        out.append("")
    return "\n".join(out)


def _shown(op: OpDef) -> inspect.Signature:
    """The signature without what all have."""
    whole = signature(op)
    return whole.replace(parameters=[p for n, p in whole.parameters.items() if n != "name"])


if __name__ == "__main__":
    FILE.write_text(text())
