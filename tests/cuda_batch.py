"""Many candidates in one translation unit, so that compilers are started once for all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cuda_helpers import expected_of, random_rows
from programs import random_inputs

from seer.codegen.cuda import CudaModule, generate
from seer.codegen.cuda.prelude import prelude
from seer.dtypes import convert, is_narrow, numpy_dtype
from seer.errors import SeerError
from seer.ir.sketch import Sketch
from seer.runtime.emulate import emulate
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.task import SearchTask

Candidate = tuple[Sketch, np.ndarray]
BATCH = 24
TOLERANCE, NARROW_TOLERANCE = 1e-5, 1e-2  # of the largest element; where anything has 16 bits
MATRICES = ("float32", "float16", "bfloat16")  # all that warps multiply
_KERNEL = 'extern "C" __global__'


def candidates_of(task: SearchTask, rows: int) -> list[Candidate]:
    """The default row and so many random ones (or all that are drawn) of every sketch but the naive one."""
    out = []
    for sketch in task.sketches[1:]:
        drawn = {r.tobytes(): r for r in random_rows(sketch, 8 * rows, 3, task.target)}
        out += [(sketch, default_row(sketch, task.target))]
        out += [(sketch, r) for r in list(drawn.values())[:rows]]
    return out


def batches(candidates: Sequence[Candidate]) -> list[Sequence[Candidate]]:
    """Pieces of a size that a compiler takes at once."""
    return [candidates[k : k + BATCH] for k in range(0, len(candidates), BATCH)]


def modules_of(candidates: Sequence[Candidate], target: Target) -> list[CudaModule]:
    """The CUDA C of each candidate; no two kernels have the same name."""
    return [generate(sketch, row, target, f"k{n}") for n, (sketch, row) in enumerate(candidates)]


def source_of(modules: Sequence[CudaModule]) -> str:
    """One source for the kernels of all modules: the whole prelude once, then the kernels."""
    kernels = [m.source[m.source.index(_KERNEL) :] for m in modules]
    return "\n".join([prelude(True, MATRICES, True), *kernels])


def run(module: CudaModule, inputs: dict[str, np.ndarray], source: str | None = None) -> np.ndarray:
    """The output of a module on the emulator, every access watched, threads in a random order.

    Args:
        module: what to run.
        inputs: the arrays it reads.
        source: where its kernels are, if that is not its own source.
    """
    arrays: dict[str, Any] = dict(inputs)
    for s in module.scratch:
        arrays[s.name] = np.full(s.size_bytes // 4, np.nan, np.float32)
    out = module.args[-1]
    arrays[out.name] = np.zeros(out.shape, numpy_dtype(out.dtype))
    for x in module.launches:
        values = [arrays[a] for a in x.args]
        emulate(
            source or module.source,
            x.name,
            (x.blocks,),
            (x.threads,),
            values,
            shared_bytes=x.dynamic_bytes,
            order="random",
            limit_s=600.0,  # the machine may be busy
        )
    found: np.ndarray = arrays[out.name]
    return found


def faults(task: SearchTask, candidates: Sequence[Candidate]) -> list[str]:
    """What is wrong with candidates: accesses that the emulation reports, and results that are off."""
    dag = task.dag
    inputs = random_inputs(dag)
    narrow = any(is_narrow(t.dtype) for t in (*dag.inputs, dag.output))
    expected = convert(expected_of(dag, inputs), dag.output.dtype, "float64")
    limit = NARROW_TOLERANCE if narrow else TOLERANCE
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1e-3))

    def of_batch(batch: Sequence[Candidate]) -> list[str]:
        modules = modules_of(batch, task.target)
        source, out = source_of(modules), []
        for module, (sketch, row) in zip(modules, batch, strict=True):
            try:
                found = convert(run(module, inputs, source), dag.output.dtype, "float64")
                np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * scale)
            except (SeerError, AssertionError) as e:
                out.append(f"{task!r} {sketch.key} {sketch.values(row)}: {e}")
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers and kernels are processes of their own
        return [f for found in pool.map(of_batch, batches(candidates)) for f in found]
