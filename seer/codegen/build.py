"""`build`: the table of contents from a candidate to machine code."""

from __future__ import annotations

import re
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from seer import flags
from seer.codegen.artifact import Artifact
from seer.codegen.llvm import emit, optimize, plain_loops, scratch_layout
from seer.codegen.lower import lower
from seer.errors import BuildError
from seer.ir.printer import print_program
from seer.ir.sketch import Sketch
from seer.ir.verify import verify_program
from seer.runtime.target import Target


def build(sketch: Sketch, row: np.ndarray, target: Target, name: str = "kernel") -> Artifact:
    """Machine code for one candidate.

    Args:
        sketch: the loop structure.
        row: (n_params,) int64, the sketch's parameters.
        target: the machine to make code for.
        name: the kernel's symbol, a C identifier.

    Raises:
        ScheduleError: if the candidate cannot be lowered.
        VerifyError: if lowering made a loop program that breaks the rules (a fault of seer).
        BuildError: if LLVM refuses the code.
    """
    lowered = lower(sketch, row, target, name)
    program = lowered.program
    flags.debug("loops", lambda: print_program(program))
    if flags.check_level() > 0:
        verify_program(program)
    text = emit(program, target)
    flags.debug("llvm", lambda: text)
    code = compile_module(text, target)
    layout = scratch_layout(program)
    return Artifact(name, str(target), lowered.args, code, layout.scratch_bytes, layout.thread_scratch_bytes)


def compile_module(text: str, target: Target) -> bytes:
    """A relocatable object file of an LLVM module.

    Raises:
        BuildError: if the module is not valid; the message quotes the line that LLVM names.
    """
    machine = _machine(target.triple, target.cpu, target.features)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as e:
        raise BuildError(f"LLVM refuses the module: {e}\n{_named_lines(text, str(e))}") from e
    optimize(module, machine)
    with plain_loops():
        flags.debug("asm", lambda: machine.emit_assembly(module))
        code: bytes = machine.emit_object(module)
    return code


def assembly(text: str, target: Target) -> str:
    """The assembly of an LLVM module, for reading."""
    machine = _machine(target.triple, target.cpu, target.features)
    module = llvm.parse_assembly(text)
    optimize(module, machine)
    with plain_loops():
        out: str = machine.emit_assembly(module)
    return out


@lru_cache(maxsize=8)
def _machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    if triple == llvm.get_process_triple():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as e:
        raise BuildError(f"LLVM has no code generator for {triple}: {e}") from e
    return found.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


def _named_lines(text: str, message: str) -> str:
    lines = text.splitlines()
    numbers = [int(n) for n in re.findall(r"<string>:(\d+):", message)]
    return "\n".join(lines[n - 1] for n in numbers if 0 < n <= len(lines))
