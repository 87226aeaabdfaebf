"""`generate`: the table of contents from a candidate to CUDA C."""

from __future__ import annotations

import numpy as np

from seer import flags
from seer.codegen.cuda.emit import emit_module
from seer.codegen.cuda.module import CudaModule
from seer.codegen.gpu import lower_gpu
from seer.ir.printer import print_program
from seer.ir.sketch import Sketch
from seer.ir.verify import verify_program
from seer.runtime.target import Target


def generate(sketch: Sketch, row: np.ndarray, target: Target, name: str = "kernel") -> CudaModule:
    """CUDA C for one candidate.

    Args:
        sketch: the loop structure, derived for a GPU.
        row: (n_params,) int64, the sketch's parameters.
        target: the GPU to make code for.
        name: the first kernel's symbol, a C identifier.

    Raises:
        ScheduleError: if the candidate cannot be lowered.
        VerifyError: if lowering made a loop program that breaks the rules (a fault of seer).
    """
    lowered = lower_gpu(sketch, row, target, name)
    flags.debug("loops", lambda: "\n".join(map(print_program, lowered.programs)))
    if flags.check_level() > 0:
        for program in lowered.programs:
            verify_program(program)
    module = emit_module(lowered, target, name)
    flags.debug("cuda", lambda: module.source)
    return module
