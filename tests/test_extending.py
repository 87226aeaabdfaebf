"""The examples of docs/extending.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_examples_of_the_guide() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert code.count("register_") >= 5
    check = """
assert np.allclose(out, 1 / (1 + np.exp(-2.0)), atol=1e-6)
assert 0 < result.trials <= 8 and not result.errors
rng = np.random.default_rng(0)
h = seer.Graph("rule")
h.output(h.input((5, 7), name="x").dense(rng.standard_normal((7, 9)).astype(np.float32)))
from seer.graph.partition import partition
from seer.search.task import tasks_of
(task,) = tasks_of(partition(h), seer.Target.parse(None))
assert any("two-level" in s.key for s in task.sketches)
x = rng.standard_normal((5, 7)).astype(np.float32)
tuned = seer.tune(h, trials=12, progress=False)
from seer.graph.reference import run
assert np.allclose(seer.compile(h, records=tuned.records)(x), run(h, {"x": x})[0], atol=1e-5)
"""
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "conv2d" in done.stdout
