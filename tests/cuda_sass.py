"""Machine code read as text: what a kernel keeps in local memory."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)\s*(?P<rest>[^;]*);(?P<note>.*)$"
)
_ARITHMETIC = ("FFMA", "FADD", "FMUL", "FMNMX", "HMMA", "IMMA", "DFMA", "DADD", "DMUL")


def nvdisasm() -> str | None:
    """The disassembler of a CUDA toolkit, or of the package nvidia-cuda-nvdisasm."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in Path(folder).glob("*/bin/nvdisasm"):
            if os.access(path, os.X_OK):
                return str(path)
    return shutil.which("nvdisasm")


def disassemble(cubin: bytes) -> dict[str, list[str]]:
    """The lines of each kernel."""
    tool = nvdisasm()
    assert tool is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True)
    out: dict[str, list[str]] = {}
    name = ""
    for line in done.stdout.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        name = section[1] if section else name
        out.setdefault(name, []).append(line)
    return out


def local_arrays(lines: list[str]) -> list[str]:
    """Accesses to local memory that are not the compiler's own, for registers that it ran out of."""
    return [line for line in lines if re.search(r"\b(STL|LDL)\b", line) and "SpillRefill" not in line]


def spilled_results(lines: list[str]) -> list[str]:
    """The instructions of floating-point arithmetic whose result is put into local memory.

    An accumulator that lived there would be one after each of its updates; an index never is.
    """
    written: dict[int, str] = {}  # the last instruction that wrote each register
    out = []
    for op, operands, line in _instructions(lines):
        if op.startswith("STL"):
            first = int(re.findall(r"\bR(\d+)\b", operands)[-1])
            stored = [written.get(r, "") for r in range(first, first + _width(op))]
            out += [line.strip()] if any(o.startswith(_ARITHMETIC) for o in stored) else []
        elif not op.startswith(("ST", "RED", "BRA", "BAR")):
            target = re.match(r"\s*R(\d+)\b", operands)
            if target:
                first = int(target[1])
                written |= dict.fromkeys(range(first, first + _width(op)), op)
    return out


def _instructions(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for line in lines:
        found = _INSTRUCTION.match(line)
        if found:
            yield found["op"], found["rest"], line


def _width(op: str) -> int:
    """Registers that an instruction writes, or stores."""
    if op.startswith(("HMMA", "IMMA")) or ".128" in op:
        return 4
    return 2 if ".64" in op or "WIDE" in op or op.startswith(("D", "CS2R")) else 1
