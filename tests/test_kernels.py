"""Every sketch of every program: the interpreted loop program and the machine code are both right."""

from __future__ import annotations

import numpy as np
import pytest
from programs import PROGRAMS, random_inputs

from seer.codegen.build import build
from seer.codegen.lower import lower
from seer.dtypes import numpy_dtype
from seer.ir.dag import ComputeDAG
from seer.ir.interp import eval_dag, run_program
from seer.ir.sketch import Sketch
from seer.ir.verify import verify_dag, verify_program, verify_sketch
from seer.runtime.kernel import run_artifact
from seer.runtime.target import Target
from seer.search.defaults import default_row
from seer.search.rules import generate_sketches
from seer.search.space import space_of

TARGET = Target.parse("llvm -threads=2")
RANDOM_ROWS = 4


def rows_of(sketch: Sketch, count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [default_row(sketch, TARGET), *space_of(sketch, TARGET).sample(count, rng)]


def assert_close(out: np.ndarray, expected: np.ndarray, what: str) -> None:
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5, err_msg=what)


@pytest.mark.parametrize("name", PROGRAMS)
def test_machine_code_is_right(name: str) -> None:
    dag = PROGRAMS[name]
    verify_dag(dag)
    inputs = random_inputs(dag)
    expected = eval_dag(dag, inputs)
    for sketch in generate_sketches(dag, TARGET):
        verify_sketch(sketch)
        for row in rows_of(sketch, 1 if sketch.algorithm else RANDOM_ROWS, seed=1):
            out = run_artifact(build(sketch, row, TARGET), [inputs[t.name] for t in dag.inputs], 2)
            assert_close(out, expected, f"{sketch.key} {sketch.values(row)}")


def run_lowered(
    dag: ComputeDAG, sketch: Sketch, row: np.ndarray, inputs: dict[str, np.ndarray]
) -> np.ndarray:
    lowered = lower(sketch, row, TARGET)
    verify_program(lowered.program)
    arrays = {
        a.name: inputs[a.name] if a.pack is None else a.pack.apply(inputs[a.name]) for a in lowered.args[:-1]
    }
    out = np.empty(dag.output.shape, numpy_dtype(dag.output.dtype))
    arrays[lowered.args[-1].name] = out
    run_program(lowered.program, arrays)
    return out


SMALL = [n for n, dag in PROGRAMS.items() if dag.flop_count < 8000]


@pytest.mark.parametrize("name", SMALL)
def test_loop_programs_are_right(name: str) -> None:
    dag = PROGRAMS[name]
    inputs = random_inputs(dag, seed=3)
    expected = eval_dag(dag, inputs)
    for sketch in generate_sketches(dag, TARGET):
        for row in rows_of(sketch, 2, seed=2):
            out = run_lowered(dag, sketch, row, inputs)
            assert_close(out, expected, f"{sketch.key} {sketch.values(row)}")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    dag = PROGRAMS["conv"]
    inputs = random_inputs(dag, seed=4)
    sketch = generate_sketches(dag, TARGET)[1]
    artifact = build(sketch, default_row(sketch, TARGET), TARGET)
    out = run_artifact(artifact, [inputs[t.name] for t in dag.inputs], threads)
    assert_close(out, eval_dag(dag, inputs), f"{threads} threads")


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512", "neoverse-n1"])
def test_other_processors_get_code(cpu: str) -> None:
    target = Target.parse(f"llvm -cpu={cpu} -threads=2")
    for name in ("conv", "softmax", "gather"):
        sketch = generate_sketches(PROGRAMS[name], target)[-1]
        artifact = build(sketch, default_row(sketch, target), target)
        assert artifact.code[:4] == b"\x7fELF"
