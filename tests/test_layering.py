"""Imports go one way, and files stay small enough to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "seer").rglob("*.py"))
MAX_LINES = 600

# Low to high; a module imports from its own layer and from lower ones. The longest prefix counts.
LAYERS = {
    "seer.errors": 0,
    "seer.dtypes": 0,
    "seer.flags": 0,
    "seer.memory": 0.5,
    "seer.version": 0,
    "seer.ir": 1,
    "seer.runtime.gpu": 2,
    "seer.runtime.target": 2,
    "seer.graph": 3,
    "seer.zoo": 3.5,
    "seer.frontend": 3.5,
    "seer.ops": 3.5,
    "seer.codegen": 4,
    "seer.runtime": 5,
    "seer.search": 6,
    "seer.backends": 6.5,
    "seer": 7,
}


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> float:
    name = module
    while name not in LAYERS:
        name = name.rpartition(".")[0]
    return LAYERS[name]


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported_modules(node: ast.AST) -> Iterator[str]:
    """The modules of seer that one import statement names."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] == "seer")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "seer":
        assert node.module is not None
        for a in node.names:
            inner = f"{node.module}.{a.name}"
            yield inner if is_module(inner) else node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    module = module_name(path)
    tree = ast.parse(path.read_text())
    wrong = [
        f"line {node.lineno}: {module} imports {target}, which is a layer above"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in imported_modules(node)
        if layer(target) > layer(module)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_import_of_seer_inside_a_function(path: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    wrong = [
        f"line {node.lineno}: {function.name} imports {target}"
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in imported_modules(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_small() -> None:
    sizes = {p: len(p.read_text().splitlines()) for p in (*FILES, *(ROOT / "tests").rglob("*.py"))}
    big = [f"{p.relative_to(ROOT)}: {n} lines" for p, n in sizes.items() if n > MAX_LINES]
    assert not big, f"more than {MAX_LINES} lines:\n" + "\n".join(big)


def test_environment_variables_live_in_flags() -> None:
    allowed = {ROOT / "seer" / "flags.py"}
    readers = [
        f"{p.relative_to(ROOT)}:{node.lineno}"
        for p in FILES
        if p not in allowed
        for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("SEER_")
        and " " not in node.value
    ]
    assert not readers, f"read through seer.flags instead: {readers}"
