"""What is written by hand or by a script about the code says what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from seer.graph.registry import function_names, op_def

ROOT = Path(__file__).resolve().parent.parent
HINT = "python scripts/list_operators.py"


def test_the_list_of_operators_is_the_registry_s() -> None:
    written = (ROOT / "docs" / "operators.md").read_text()
    assert written == runpy.run_path(str(ROOT / "scripts" / "list_operators.py"))["text"](), HINT
    own = [n for n in function_names() if op_def(n).infer.__module__.startswith("seer.")]
    listed = re.findall(r"^- `(\w+)\(.*\)`: .+\.$", written, re.MULTILINE)
    assert sorted(listed) == own  # each has one line that says what it does
    assert "(docs/operators.md)" in (ROOT / "README.md").read_text()


def test_links_between_documents_lead_somewhere() -> None:
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
            assert "://" in target or (file.parent / target).exists(), f"{file.name}: {target}"
