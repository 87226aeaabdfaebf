"""`lower_gpu`: the table of contents from (sketch, row) to the kernels of one subgraph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seer.codegen.artifact import ArgSpec
from seer.codegen.gpu.flat import lower_flat
from seer.codegen.gpu.mma import lower_mma
from seer.codegen.gpu.rows import lower_rows
from seer.codegen.gpu.tiled import lower_tiled
from seer.codegen.lower.context import Context, Place
from seer.ir.expr import Expr, Load, walk
from seer.ir.loops import (
    Buffer,
    Exchange,
    LoopProgram,
    Mma,
    Scope,
    StartCopy,
    Stmt,
    Store,
    map_exprs,
    walk_stmts,
)
from seer.ir.sketch import Nest, Sketch
from seer.ir.tensor import Placeholder
from seer.runtime.target import Target


@dataclass(frozen=True)
class LoweredKernels:
    """The kernels of one candidate.

    Attributes:
        programs: loop programs that run one after another; what each takes it names in `params`,
            what it writes last.
        args: the arguments of the whole, inputs in ComputeDAG order, then the output.
        scratch: buffers between the programs; no argument.
    """

    programs: tuple[LoopProgram, ...]
    args: tuple[ArgSpec, ...]
    scratch: tuple[Buffer, ...]


_LOWER = {"flat": lower_flat, "rows": lower_rows, "tiled": lower_tiled, "mma": lower_mma}


def lower_gpu(sketch: Sketch, row: np.ndarray, target: Target, name: str = "kernel") -> LoweredKernels:
    """Lower one candidate.

    Args:
        sketch: the loop structure.
        row: (n_params,) int64; made canonical first.
        target: the GPU.
        name: a C identifier; the kernels after the first are called name_1, name_2, ...

    Raises:
        ScheduleError: if the row asks for something that cannot be lowered.
    """
    ctx = Context(sketch, sketch.values(sketch.canonical(row[None])[0]), target)
    dag = sketch.dag
    args = []
    for t in (*dag.inputs, dag.output):
        constant = isinstance(t.op, Placeholder) and t.op.constant
        ctx.places[t.name] = Place(Buffer(t.name, t.shape, t.dtype, Scope.ARG))
        args.append(ArgSpec(t.name, t.shape, t.dtype, constant))
    ctx.inlined.update(sketch.inlined)
    programs: list[LoopProgram] = []
    scratch: list[Buffer] = []
    if math.prod(dag.output.shape) > 0:
        for nest in sketch.nests:
            t = dag.tensor(nest.output)
            if math.prod(t.shape) == 0:
                continue
            if t is not dag.output:
                buffer = Buffer(f"{t.name}_scratch", t.shape, t.dtype, Scope.ARG)
                ctx.places[t.name] = Place(buffer)
                scratch.append(buffer)
            programs.append(_program(ctx, nest, f"{name}_{len(programs)}" if programs else name))
    return LoweredKernels(tuple(programs), tuple(args), tuple(scratch))


def _program(ctx: Context, nest: Nest, name: str) -> LoopProgram:
    """One kernel: a root nest."""
    ctx.buffers = []
    pattern = "flat" if nest.bind is None else nest.bind.pattern
    body = _LOWER[pattern](ctx, nest)
    used = _buffers(body)
    out = ctx.places[nest.output].buffer
    params = [b for b in used if b.scope is Scope.ARG and b is not out]
    order = [ctx.places[t.name].buffer for t in ctx.sketch.dag.tensors if t.name in ctx.places]
    params.sort(key=order.index)
    buffers = tuple(b for b in ctx.buffers if b in used)
    return LoopProgram(name, (*params, out), buffers, body)


def _buffers(body: Stmt) -> dict[Buffer, None]:
    """Every buffer that a body touches, in order of appearance."""
    found: dict[Buffer, None] = {}

    def note(e: Expr) -> Expr:
        found.update((n.buffer, None) for n in walk(e) if isinstance(n, Load))
        return e

    for s in walk_stmts(body):
        if isinstance(s, Store | Exchange | StartCopy):
            found[s.buffer] = None
        if isinstance(s, Mma):
            found.update((b, None) for b, _, _ in s.parts)
    map_exprs(body, note)
    return found
