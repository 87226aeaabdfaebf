"""The LLVM passes that pay on what the emitter writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import llvmlite.binding as llvm

_lock = Lock()
_n_inside = 0  # threads in `plain_loops`


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Clean up a module in place.

    The emitter already shares and hoists what it can, and tiles, unrolls and vectorises as the
    schedule says, so LLVM's own loop passes would only undo choices and cost time.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_function_pass_manager()
    # No pass that merges blocks: without a block of its own before a loop, the register allocator
    # spills accumulators inside it.
    passes.add_instruction_combine_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


@contextmanager
def plain_loops() -> Iterator[None]:
    """While machine code is made inside, LLVM leaves the induction variables of loops as they are.

    Its loop strength reduction finds nothing in what the emitter writes, and takes a third to two
    thirds of the time. The option belongs to the whole process, so it is on only here.
    """
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def _enter(change: int) -> None:
    global _n_inside
    with _lock:
        _n_inside += change
        llvm.set_option("seer", f"-disable-lsr={'true' if _n_inside else 'false'}")
