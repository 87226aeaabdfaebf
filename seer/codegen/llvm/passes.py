"""The few LLVM passes that pay on what the emitter writes."""

from __future__ import annotations

import llvmlite.binding as llvm


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Clean up a module in place.

    The emitter already shares and hoists what it can, and tiles, unrolls and vectorises as the
    schedule says, so LLVM's own loop passes would only undo choices and cost time.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_function_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
