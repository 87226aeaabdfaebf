"""Code for processors other than this one: every sketch is made, and run where this machine can."""

from __future__ import annotations

import platform
import re

import llvmlite.binding as llvm
import numpy as np
import pytest
import test_mathlib as mathlib
from programs import PROGRAMS, conv, depthwise, layer_norm, matmul, random_inputs, softmax

from seer.codegen.build import assembly, build, compile_module
from seer.codegen.llvm import emit
from seer.codegen.lower import lower
from seer.ir.dag import ComputeDAG
from seer.ir.expr import call
from seer.ir.interp import eval_dag
from seer.ir.sketch import Sketch
from seer.ir.tensor import compute, placeholder
from seer.runtime.kernel import run_artifact
from seer.runtime.target import Target
from seer.search.defaults import default_candidate, default_row
from seer.search.rules import generate_sketches
from seer.search.space import space_of

# What a vector of float32 is multiplied and added with, and what must not be there.
CPUS = {
    "x86-64": (r"\bmulps\s.*xmm", r"\b[yz]mm\d|\bv[a-z]+ps\b"),
    "haswell": (r"\bvfn?madd\d+ps\s.*ymm", r"\bzmm\d"),
    "skylake-avx512": (r"\bvfn?madd\d+ps\s.*zmm", r"no such text"),
    "neoverse-n1": (r"\bfmla\s+v\d+\.4s", r"\bz\d+\.s\b"),
    "neoverse-v1": (r"\bfmla\s+v\d+\.4s", r"no such text"),
}
NEEDS = {"x86-64": {"sse2"}, "haswell": {"avx2", "fma", "bmi2", "f16c", "lzcnt", "movbe"}}
TASKS: dict[str, ComputeDAG] = {
    "matmul": matmul(29, 67, 33),
    "conv": conv(9, 8, 5, 19, 3),
    "conv_stride": conv(9, 9, 4, 24, 3, stride=2),
    "depthwise": depthwise(7, 9, 37),
    "softmax": softmax(5, 77),
    "layer_norm": layer_norm(3, 85),
}
OURS = {"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"}


def runs_here(cpu: str) -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    here = {name for name, has in llvm.get_host_cpu_features().items() if has}
    return cpu in NEEDS and NEEDS[cpu] <= here


def target_of(cpu: str) -> Target:
    return Target.parse(f"llvm -cpu={cpu} -threads=2")


def assembly_of(sketch: Sketch, row: np.ndarray, target: Target) -> str:
    return assembly(emit(lower(sketch, row, target).program, target), target)


def called(text: str) -> set[str]:
    """The functions that assembly calls."""
    names = re.findall(r"^\s+(?:callq?|jmp|bl|b)\s+([A-Za-z_][\w.]*)(?:@PLT)?\s*$", text, re.MULTILINE)
    return {n for n in names if not n.startswith(("kernel", "L"))}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", TASKS)
def test_every_sketch_has_code_and_is_right(name: str, cpu: str) -> None:
    target, dag = target_of(cpu), TASKS[name]
    inputs = random_inputs(dag)
    expected = eval_dag(dag, inputs)
    for sketch in generate_sketches(dag, target):
        count = 0 if "winograd" in sketch.key else 2  # much straight code, slow to compile
        rows = space_of(sketch, target).sample(count, np.random.default_rng(5))
        for row in [default_row(sketch, target), *rows]:
            artifact = build(sketch, row, target)
            assert artifact.code[:4] == b"\x7fELF"
            if runs_here(cpu):
                out = run_artifact(artifact, [inputs[t.name] for t in dag.inputs], 2)
                what = f"{sketch.key} {sketch.values(row)}"
                np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5, err_msg=what)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program(name: str, cpu: str) -> None:
    target, dag = target_of(cpu), PROGRAMS[name]
    inputs = random_inputs(dag)
    for sketch in generate_sketches(dag, target):
        for row in space_of(sketch, target).sample(12, np.random.default_rng(6)):
            artifact = build(sketch, row, target)
            if runs_here(cpu):
                out = run_artifact(artifact, [inputs[t.name] for t in dag.inputs], 2)
                np.testing.assert_allclose(out, eval_dag(dag, inputs), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("cpu", CPUS)
def test_a_matmul_uses_the_processors_vectors(cpu: str) -> None:
    target = target_of(cpu)
    wanted, unwanted = CPUS[cpu]
    text = assembly_of(*default_candidate(matmul(64, 192, 64), target), target)
    assert re.search(wanted, text), text
    assert not re.search(unwanted, text), re.findall(f".*(?:{unwanted}).*", text)


@pytest.mark.parametrize("cpu", CPUS)
def test_nothing_is_left_to_a_library(cpu: str) -> None:
    """No fmaf where there is no such instruction, no expf or memcpy: kernels call OpenMP alone."""
    target = target_of(cpu)
    for name in ("matmul", "conv", "softmax", "layer_norm"):
        for sketch in generate_sketches(TASKS[name], target):
            text = assembly_of(sketch, default_row(sketch, target), target)
            assert called(text) <= OURS, (sketch.key, called(text))


# -- math functions --------------------------------------------------------------------------------

# Units in the last place where products and sums are rounded apart; elsewhere as stated for all.
WITHOUT_FMA = {"exp": (0.97, 26.702001571655273), "erf": (1.32, 0.9057283997535706)}


def math_dag(name: str, dtype: str = "float32") -> ComputeDAG:
    inputs = [placeholder((67,), dtype, f"x{k}") for k in range(2 if name == "pow" else 1)]
    return ComputeDAG(compute((67,), lambda i: call(name, *(t[i] for t in inputs)), "y"), inputs)


@pytest.mark.parametrize("cpu", CPUS)
def test_math_functions_have_code_without_calls(cpu: str) -> None:
    target = target_of(cpu)
    for name in (*mathlib.STATED, "sqrt", "abs", "pow", "floor"):
        for sketch in generate_sketches(math_dag(name), target):
            row = default_row(sketch, target)
            text = emit(lower(sketch, row, target).program, target)
            assert compile_module(text, target)
            assert called(assembly(text, target)) <= OURS, name


@pytest.mark.parametrize("cpu", NEEDS)
@pytest.mark.parametrize("name", mathlib.STATED)
def test_math_functions_keep_their_bounds(name: str, cpu: str) -> None:
    if not runs_here(cpu):
        pytest.skip(f"this machine does not run code for {cpu}")
    target = Target.parse(f"llvm -cpu={cpu} -threads=1")
    stated, worst = mathlib.STATED[name], mathlib.WORST[name]
    if not target.has_fma:
        stated, worst = WITHOUT_FMA.get(name, (stated, worst))
    x = np.append(mathlib.inputs(), np.float32([worst, np.inf, -np.inf, np.nan, 0.0, -0.0]))
    mathlib.check(name, x, mathlib.evaluate(name, x, target=target), stated)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cpu", NEEDS)
def test_floor(cpu: str, dtype: str) -> None:
    if not runs_here(cpu):
        pytest.skip(f"this machine does not run code for {cpu}")
    edges = [0.0, 0.5, 1.0, 1.5, 1e-40, 8388607.5, 8388608.0, 2**52 - 0.5, 2**52 + 1.0, 3e38, np.inf]
    x = np.array([*edges, *(-v for v in edges), np.nan, *np.linspace(-9, 9, 1001)], dtype)
    out = mathlib.evaluate("floor", x, target=Target.parse(f"llvm -cpu={cpu} -threads=1"))
    np.testing.assert_array_equal(out, np.floor(x))
    np.testing.assert_array_equal(np.signbit(out[:-1]), np.signbit(np.floor(x))[:-1])
