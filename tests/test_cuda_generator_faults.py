"""Faults planted in the generator of CUDA C: running its kernels on the emulation finds each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_batch import Candidate, modules_of, run, source_of
from cuda_helpers import CUDA, expected_of, random_rows
from programs import column_max, conv, layer_norm, matmul, random_inputs, shifted

from seer.codegen.cuda.exprs import Writer
from seer.codegen.gpu import combine, flat, mma, pipeline, rows, staged, tiled
from seer.codegen.lower.context import Context
from seer.errors import EmulationError
from seer.ir.dag import ComputeDAG
from seer.ir.expr import Binary, Compare, Expr, as_expr, minimum
from seer.ir.loops import Buffer, Scope, Stmt, Sync, WaitForCopies, seq
from seer.search.rules import generate_sketches

DAGS = {
    "matmul": matmul(37, 45, 29),
    "conv": conv(7, 5, 8, 19, 3),
    "layer_norm": layer_norm(5, 70),
    "columns": column_max(70, 5),
    "shifted": shifted(6, 64),
}
Change = Callable[[pytest.MonkeyPatch], None]


def _candidates(dag: str, key: str, *, stages: int = 1, count: int = 3, **least: int) -> list[Candidate]:
    """Random candidates of a DAG's first sketch of this kind, with parameters of a size."""
    sketch = next(s for s in generate_sketches(DAGS[dag], CUDA) if s.key.startswith(key))

    def fits(row: np.ndarray) -> bool:
        values = sketch.values(row)
        staged_all = all(v for name, v in values.items() if ".shared." in name)
        has_stages = all((v > 1) == (stages > 1) for n, v in values.items() if n.endswith(".stages"))
        large = all(v >= least.get(n.rpartition(".")[2], 0) for n, v in values.items())
        return staged_all and has_stages and large

    found = [(sketch, r) for r in random_rows(sketch, 400, 5) if fits(r)][:count]
    assert len(found) == count, (dag, key, len(found))
    return found


# The DAG, the start of the sketch's key, and what its candidates must be like.
GROUPS: dict[str, tuple[str, str, dict[str, int]]] = {
    "tiled": ("matmul", "SSSRRSRS", {}),
    "tiled ahead": ("matmul", "SSSRRSRS", {"stages": 2}),
    "tiled conv": ("conv", "SSSRRSRS", {"count": 6}),
    "mma": ("matmul", "mma", {}),
    "mma ahead": ("matmul", "mma", {"stages": 2}),
    "rows": ("layer_norm", "rows", {"threads": 64}),
    "columns": ("columns", "cross-thread", {"threads": 8}),
    "flat": ("columns", "flat", {}),
    "choice": ("shifted", "simple", {"items": 4}),
}


@functools.cache
def candidates(group: str) -> list[Candidate]:
    dag, key, needs = GROUPS[group]
    return _candidates(dag, key, **needs)


# -- what is planted ---------------------------------------------------------------------------


def no_barrier(module: Any, which: int | None = None, of: int = 1) -> Change:
    """A generator leaves out its barriers, or one of those it makes in turn."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        made = 0

        def make() -> Stmt:
            nonlocal made
            made += 1
            return seq() if which is None or (made - 1) % of == which else Sync()

        patch.setattr(module, "Sync", make)

    return plant


def loose_guards(module: Any) -> Change:
    """`i < n` becomes `i < n + 1` in all guards that a generator makes."""

    def loosened(e: Expr) -> Expr:
        if isinstance(e, Binary) and e.op == "and":
            return Binary("and", loosened(e.a), loosened(e.b))
        return Compare("<", e.a, e.b + 1) if isinstance(e, Compare) and e.op == "<" else e

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = module.guarded
        patch.setattr(module, "guarded", lambda cond, body: right(loosened(cond), body))

    return plant


def loose_limits(module: Any) -> Change:
    """What is cut to the last element is cut to the one after it."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, "minimum", lambda a, b: minimum(a, as_expr(b) + 1))

    return plant


def loose_copies(patch: pytest.MonkeyPatch) -> None:
    """Copies to shared memory take one element after the last for one that is there."""
    right = staged.all_of
    patch.setattr(
        staged,
        "all_of",
        lambda *conds: right(
            *(Compare("<", c.a, c.b + 1) if isinstance(c, Compare) and c.op == "<" else c for c in conds)
        ),
    )


def swapped_strides(patch: pytest.MonkeyPatch) -> None:
    """Elements of arguments with two dimensions and more are found with rows and columns exchanged."""
    right = Writer.flat

    def flat_(self: Writer, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        if buffer.scope is not Scope.ARG or len(indices) < 2:
            return right(self, buffer, indices)
        turned = Buffer(buffer.name, (*buffer.shape[:-2], *buffer.shape[:-3:-1]), buffer.dtype, buffer.scope)
        return right(self, turned, indices)

    patch.setattr(Writer, "flat", flat_)


def swapped_shared_strides(patch: pytest.MonkeyPatch) -> None:
    """Copies put a piece's elements at the strides of its transpose, and only they do."""
    right = staged.StagedCopy._at

    def at(self: staged.StagedCopy, local: list[Expr]) -> tuple[Expr, ...]:
        *outer, a, b = right(self, local)
        return (*outer, b, a)

    patch.setattr(staged.StagedCopy, "_at", at)
    patch.setattr(
        staged.StagedCopy,
        "at",
        lambda self, i: right(self, [x - b for x, b in zip(i, self.base, strict=True)]),
    )


def small_shared(patch: pytest.MonkeyPatch) -> None:
    """Shared arrays have half of their first dimension that is more than one."""
    right = Context.new_buffer

    def new_buffer(self: Context, hint: str, shape: tuple[int, ...], dtype: str, scope: Scope) -> Buffer:
        if scope is Scope.BLOCK_SHARED:
            d = next((d for d, n in enumerate(shape) if n > 1), 0)
            shape = (*shape[:d], max(shape[d] // 2, 1), *shape[d + 1 :])
        return right(self, hint, shape, dtype, scope)

    patch.setattr(Context, "new_buffer", new_buffer)


def loads_on_both_sides(patch: pytest.MonkeyPatch) -> None:
    """Vectors of what one side of a choice computes from are loaded on the other, too."""
    right = Writer.lanes
    patch.setattr(
        Writer, "lanes", lambda self, e, v, width, hoist, guard=None: right(self, e, v, width, hoist)
    )


def late_wait(patch: pytest.MonkeyPatch) -> None:
    """A block of the reduction is used while its copies may be on their way."""
    patch.setattr(pipeline, "WaitForCopies", lambda pending: WaitForCopies(pending + 1))


FAULTS: dict[str, tuple[str, Change]] = {
    "no barriers round a tile": ("tiled", no_barrier(tiled)),
    "no barrier before the copies of a tile": ("tiled", no_barrier(tiled, 0, 2)),
    "no barrier after the copies of a tile": ("tiled", no_barrier(tiled, 1, 2)),
    "no barrier in a pipeline": ("tiled ahead", no_barrier(pipeline)),
    "no barrier in a pipeline of matrices": ("mma ahead", no_barrier(pipeline)),
    "what is not there is loaded": ("choice", loads_on_both_sides),
    "a pipeline that does not wait": ("tiled ahead", late_wait),
    "no barrier before the copies of matrices": ("mma", no_barrier(mma, 0, 2)),
    "no barrier after the copies of matrices": ("mma", no_barrier(mma, 1, 2)),
    "no barrier between warps of a row": ("rows", no_barrier(combine)),
    "no barriers in a tree": ("columns", no_barrier(combine)),
    "a tile stores one element too many": ("tiled", loose_guards(tiled)),
    "a tile of matrices stores one element too many": ("mma", loose_guards(mma)),
    "a row has one element too many": ("rows", loose_guards(rows)),
    "a flat kernel has one element too many": ("flat", loose_guards(flat)),
    "a copy has one element too many": ("tiled conv", loose_guards(staged)),
    "the copies of a padded tensor read past its end": ("tiled conv", loose_copies),
    "the copies of a matrix read past its end": ("tiled", loose_copies),
    "copies ahead read past their tensor's end": ("tiled ahead", loose_copies),
    "a line of matrices past the last one": ("mma", loose_limits(mma)),
    "a row past the last one": ("rows", loose_limits(rows)),
    **{f"swapped strides ({g})": (g, swapped_strides) for g in GROUPS},
    **{
        f"swapped strides in shared memory ({g})": (g, swapped_shared_strides)
        for g in GROUPS
        if "tiled" in g or "mma" in g
    },
    **{f"too little shared memory ({g})": (g, small_shared) for g in GROUPS if g not in ("flat", "choice")},
}


def verdicts(group: str) -> list[str]:
    """For each candidate "right", "wrong", or the fault that the emulation reports."""
    dag: ComputeDAG = DAGS[GROUPS[group][0]]
    inputs = random_inputs(dag)
    expected = expected_of(dag, inputs)
    modules = modules_of(candidates(group), CUDA)
    out = []
    for module in modules:
        try:
            found = run(module, inputs, source_of(modules))
        except EmulationError as e:
            out.append(e.fault)
        else:
            out.append("right" if np.allclose(found, expected, rtol=1e-5, atol=1e-5) else "wrong")
    return out


@pytest.mark.parametrize("group", GROUPS)
def test_without_a_fault(group: str) -> None:
    assert verdicts(group) == ["right"] * len(candidates(group))


@pytest.mark.parametrize("fault", FAULTS)
def test_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group, plant = FAULTS[fault]
    monkeypatch.setenv("SEER_CHECK", "0")  # the verifier of loop programs would be first
    plant(monkeypatch)
    assert set(verdicts(group)) != {"right"}
