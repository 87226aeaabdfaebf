"""Machine code read as text: what a kernel keeps in local memory."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)\s*(?P<rest>[^;]*);(?P<note>.*)$"
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
    """What is put into local memory and may be the result of floating-point arithmetic.

    An accumulator that lived there would be, from its second update on; an index or a guard never is.
    """
    blocks, successors = _blocks(lines)
    # The registers that may hold a result at the start of each block.
    entering: list[set[int]] = [set() for _ in blocks]
    todo = list(range(len(blocks)))
    while todo:
        k = todo.pop()
        leaving = set(entering[k])
        for i in blocks[k]:
            _execute(i, leaving)
        for n in successors[k]:
            if not leaving <= entering[n]:
                entering[n] |= leaving
                todo.append(n)
    out = []
    for block, held in zip(blocks, entering, strict=True):
        for i in block:
            if i.op.startswith("STL") and held.intersection(i.stored()):
                out.append(i.line)
            _execute(i, held)
    return out


@dataclass(frozen=True)
class _Instruction:
    op: str
    operands: str
    is_conditional: bool
    line: str

    def written(self) -> range:
        """Registers."""
        target = re.match(r"\s*R(\d+)\b", self.operands)
        if target is None or self.op.startswith(("ST", "RED", "BRA", "BAR")):
            return range(0)
        return range(int(target[1]), int(target[1]) + self._width())

    def stored(self) -> range:
        """Registers; none of one that is always zero."""
        value = re.search(r"\bR(\d+)\s*$", self.operands)
        return range(int(value[1]), int(value[1]) + self._width()) if value else range(0)

    def _width(self) -> int:
        if self.op.startswith(("HMMA", "IMMA")) or ".128" in self.op:
            return 4
        return 2 if ".64" in self.op or "WIDE" in self.op or self.op.startswith(("D", "CS2R")) else 1


def _execute(i: _Instruction, held: set[int]) -> None:
    """Follow which registers may hold a result."""
    written = set(i.written())
    moved = re.search(r"\bR(\d+)\s*$", i.operands) if "MOV" in i.op else None
    if i.op.startswith(_ARITHMETIC) or (moved and int(moved[1]) in held):
        held |= written
    elif not i.is_conditional:
        held -= written


def _blocks(lines: list[str]) -> tuple[list[list[_Instruction]], list[list[int]]]:
    """Instructions that run one after another, and which blocks may run after each."""
    blocks: list[list[_Instruction]] = [[]]
    labels: dict[str, int] = {}
    for line in lines:
        label = re.match(r"\s*(\.L\w+):", line)
        found = _INSTRUCTION.match(line)
        if label:
            blocks.append([])
            labels[label[1]] = len(blocks) - 1
        elif found:
            operands = re.sub(r"\(\*.*?\*\)", "", found["rest"])  # without remarks
            i = _Instruction(found["op"], operands, found["guard"] is not None, line.strip())
            blocks[-1].append(i)
            if i.op.startswith(("BRA", "EXIT", "RET")):
                blocks.append([])
    successors: list[list[int]] = []
    for k, block in enumerate(blocks):
        last = block[-1] if block else None
        ends = last is not None and last.op.startswith(("BRA", "EXIT", "RET"))
        falls = not ends or (last is not None and last.is_conditional)
        named = re.findall(r"\.L\w+", last.operands) if ends and last is not None else []
        successors.append([*([k + 1] if falls and k + 1 < len(blocks) else []), *(labels[n] for n in named)])
    return blocks, successors
