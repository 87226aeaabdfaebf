"""CUDA C of the zoo at full size, compiled: it fits the machine and keeps its tiles in registers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cuda_zoo import SMALL, tasks

from seer.codegen.cuda import generate
from seer.runtime.cuda.build import check_registers
from seer.runtime.nvrtc import compile_cubin, compiler_name
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.task import SearchTask

# A few kernels spill two to four registers (which, is not known); a whole tile in memory would be more.
INDEX_BYTES = 16

if not compiler_name():
    pytest.skip("neither NVRTC nor nvcc is installed", allow_module_level=True)


def check(task: SearchTask, numbers: Sequence[int]) -> None:
    """The default rows of some sketches compile, spill nothing, and stay within the limits."""
    target = task.target
    assert target.gpu is not None
    for number in numbers:
        sketch = task.sketches[number]
        row = default_row(sketch, target)
        module = generate(sketch, row, target)
        cubin = compile_cubin(module.source, target.cpu)
        check_registers(module, cubin)
        for launch in module.launches:
            usage, where = cubin.usage(launch.name), f"{task!r} {sketch.key} {sketch.values(row)}"
            assert usage.local_bytes <= INDEX_BYTES, (where, usage)
            assert usage.registers <= target.gpu.registers_per_thread, (where, usage)
            assert usage.shared_bytes <= target.gpu.shared_bytes_per_block, (where, usage)
            assert launch.threads <= target.gpu.max_threads_per_block, where


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_handful(arch: str) -> None:
    target = Target.parse(f"cuda -arch={arch}")
    convolutions = tasks("resnet18", target)[:1]
    products = [t for t in tasks("bert_base", target, {"layers": 1}) if t.dag.flop_count > 1e8]
    for task in [*convolutions, *products[:2]]:
        check(task, [1])


def test_barriers_of_copies_that_do_not_start_ahead() -> None:
    """A first layer of one channel waits for copies though its own are ordinary ones."""
    for task in tasks("digits", Target.parse("cuda -arch=sm_80"))[:1]:
        check(task, [1])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", SMALL)
def test_every_task(name: str, arch: str) -> None:
    for task in tasks(name, Target.parse(f"cuda -arch={arch}")):
        check(task, range(1, len(task.sketches)))
