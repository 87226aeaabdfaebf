"""CUDA C of the zoo at full size, compiled: it fits the machine and keeps its tiles in registers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_batch import Candidate, batches, candidates_of, modules_of, source_of
from cuda_sass import disassemble, local_arrays, nvdisasm, spilled_results
from cuda_zoo import NAMES, distinct_tasks, tasks
from programs import batch_matmul

from seer.codegen.cuda import CudaModule, Launch
from seer.errors import BuildError, SeerError
from seer.runtime.cuda.build import check_registers, check_tile, machine_code
from seer.runtime.nvrtc import Cubin, compile_cubin, compiler_name
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches
from seer.search.task import SearchTask

ROWS = 20  # random candidates of each sketch
# An assembler short of registers spills some indices and guards, which it computes before the loops.
INDEX_BYTES = 32

if not compiler_name():
    pytest.skip("neither NVRTC nor nvcc is installed", allow_module_level=True)


def faults(task: SearchTask, candidates: Sequence[Candidate]) -> list[str]:
    """What is wrong with candidates: refused, past a limit, or with a register tile in memory.

    A search refuses some itself when it has built them, but never a default one.
    """

    def of_batch(batch: Sequence[Candidate]) -> list[str]:
        modules = modules_of(batch, task.target)
        cubin = machine_code(source_of(modules), task.target.cpu)
        out = []
        for module, (sketch, row) in zip(modules, batch, strict=True):
            try:
                check_registers(module, cubin)
                if is_refused(module, cubin) and not np.array_equal(row, default_row(sketch, task.target)):
                    continue
                wrong = [w for x in module.launches for w in _wrong(x, cubin, task.target)]
            except SeerError as e:
                wrong = [str(e)]
            out += [f"{task!r} {sketch.key} {sketch.values(row)}: {w}" for w in wrong]
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC holds no lock of Python's
        return [f for found in pool.map(of_batch, batches(candidates)) for f in found]


def is_refused(module: CudaModule, cubin: Cubin) -> bool:
    try:
        check_tile(module, cubin)
    except BuildError:
        return True
    return False


def _wrong(launch: Launch, cubin: Cubin, target: Target) -> list[str]:
    gpu, usage = target.gpu, cubin.usage(launch.name)
    assert gpu is not None
    out = []
    if usage.registers > gpu.registers_per_thread or launch.threads > gpu.max_threads_per_block:
        out.append(f"{launch.threads} threads of {usage.registers} registers")
    declared = launch.shared_bytes - launch.dynamic_bytes
    if usage.shared_bytes > declared or launch.shared_bytes > gpu.shared_bytes_per_block:
        out.append(f"{usage.shared_bytes} bytes of shared memory, {launch.shared_bytes} were expected")
    if usage.local_bytes > usage.spill_bytes:  # an array lies there that is no spilled register
        out.append(f"{usage} has an array in local memory")
    if usage.local_bytes and nvdisasm() is not None:
        lines = disassemble(cubin.data)[launch.name]
        out += [f"its tile is in local memory: {x}" for x in (*local_arrays(lines), *spilled_results(lines))]
    elif usage.local_bytes > INDEX_BYTES:
        out.append(f"{usage} spills more than some indices")
    return out


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_handful(arch: str) -> None:
    target = Target.parse(f"cuda -arch={arch}")
    convolutions = tasks("resnet18", target)[:1]
    products = [t for t in tasks("bert_base", target, {"layers": 1}) if t.dag.flop_count > 1e8]
    for task in [*convolutions, *products[:2]]:
        assert not faults(task, [(task.sketches[1], default_row(task.sketches[1], target))])


def test_compilers_unroll_no_more_than_was_asked_for() -> None:
    """One thread copies 144 vectors for 12 terms of 128 accumulators, and has registers for those alone."""
    target = Target.parse("cuda -arch=sm_80")
    dag = batch_matmul(12, 128, 64, 128)
    sketch = generate_sketches(dag, target)[1]
    values = {p.name: p.choices[0] if p.choices else 1 for p in sketch.params} | {"z.k.1": 12}
    values |= dict.fromkeys(("z.i0.3", "z.i0.4", "z.i1.1", "z.i1.3", "z.i1.4", "z.i2.1", "z.i2.3"), 2)
    rows = [sketch.row({**values, "z.shared.x": x, "z.shared.y": y}) for x, y in ((1, 1), (2, 1), (2, 2))]
    modules = modules_of([(sketch, r) for r in rows], target)
    usage = compile_cubin(source_of(modules), target.cpu).kernels.values()
    assert [u.local_bytes for u in usage] == [0, 0, 0]
    assert all(u.registers < 200 for u in usage)


def test_barriers_of_copies_that_do_not_start_ahead() -> None:
    """A first layer of one channel waits for copies though its own are ordinary ones."""
    target = Target.parse("cuda -arch=sm_80")
    for task in tasks("digits", target)[:1]:
        row = default_row(task.sketches[1], target)
        assert compile_cubin(modules_of([(task.sketches[1], row)], target)[0].source, target.cpu).kernels


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="tiles are told from indices by nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_every_task(name: str, arch: str) -> None:
    for task in distinct_tasks(name, Target.parse(f"cuda -arch={arch}"), is_small=False):
        assert not faults(task, candidates_of(task, ROWS))
