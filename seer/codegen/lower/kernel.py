"""`lower`: the table of contents from (sketch, row) to a LoopProgram."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from seer.codegen.artifact import ArgSpec, PackSpec
from seer.codegen.lower.context import Context, PackedPlace, Place
from seer.codegen.lower.nest import lower_nest
from seer.codegen.lower.pack import lower_pack, pack_shape
from seer.ir.loops import Buffer, LoopProgram, Scope, Stmt, seq
from seer.ir.sketch import INLINE, ROOT, Nest, Pack, Sketch
from seer.ir.tensor import Placeholder
from seer.runtime.target import Target


@dataclass(frozen=True)
class LoweredKernel:
    """A loop program and what its arguments are, in order (inputs, then the output)."""

    program: LoopProgram
    args: tuple[ArgSpec, ...]


def lower(sketch: Sketch, row: np.ndarray, target: Target, name: str = "kernel") -> LoweredKernel:
    """Lower one candidate.

    Args:
        sketch: the loop structure.
        row: (n_params,) int64; made canonical first.
        target: the machine; its vector width decides the lanes.
        name: the kernel's symbol, a C identifier.

    Raises:
        ScheduleError: if the row asks for something that cannot be lowered.
    """
    ctx = Context(sketch, sketch.values(sketch.canonical(row[None])[0]), target)
    args = declare_arguments(ctx)
    choose_inlined(ctx)
    body: list[Stmt] = []
    if math.prod(sketch.dag.output.shape) > 0:
        for nest in sketch.nests:
            body += lower_root(ctx, nest)
    return LoweredKernel(LoopProgram(name, tuple(ctx.params), tuple(ctx.buffers), seq(*body)), tuple(args))


def declare_arguments(ctx: Context) -> list[ArgSpec]:
    """Make the ARG buffers; constants that are packed or derived ahead get the shape they then have."""
    dag = ctx.sketch.dag
    ahead = {p.tensor: (n, p) for n in ctx.sketch.all_nests() for p in n.packs if packs_ahead(ctx, n, p)}
    args = []
    for t in (*dag.inputs, dag.output):
        constant = isinstance(t.op, Placeholder) and t.op.constant
        derived = t.op.derived if isinstance(t.op, Placeholder) else None
        logical = t.shape if derived is None else derived.source
        spec, shape = None, t.shape
        if derived is not None:
            spec = PackSpec(tuple((n,) for n in t.shape), tuple(range(len(t.shape))), derived)
        packed = t is not dag.output and t.name in ahead
        if packed:
            nest, pack = ahead[t.name]
            spec = replace(pack_spec(ctx, nest, pack), derivation=derived)
            shape = pack_shape(ctx, nest, pack)
        buffer = Buffer(t.name, shape, t.dtype, Scope.ARG)
        ctx.params.append(buffer)
        if packed:
            ctx.packed[ahead[t.name][1]] = PackedPlace(buffer)
        else:
            ctx.places[t.name] = Place(buffer)
        args.append(ArgSpec(t.name, logical, t.dtype, constant, spec))
    return args


def packs_ahead(ctx: Context, nest: Nest, pack: Pack) -> bool:
    """Whether a chosen pack is done before the kernel runs: a weight with a single reader."""
    chosen = bool(ctx.values[pack.param]) and ctx.sketch.dag.is_own_constant(pack.tensor)
    return chosen and ctx.count_reads(nest, pack.tensor) == 1


def pack_spec(ctx: Context, nest: Nest, pack: Pack) -> PackSpec:
    """The NumPy form of a pack: pad, split into trip counts, transpose."""
    splits = tuple(() if axis is None else ctx.trips(nest, axis) for axis in pack.dims)
    flat = [(axis, level) for axis, s in zip(pack.dims, splits, strict=True) for level in range(len(s))]
    return PackSpec(splits, tuple(flat.index((x.axis, x.level)) for x in pack.loops))


def choose_inlined(ctx: Context) -> None:
    """Note the stages that are computed where they are read."""
    ctx.inlined.update(ctx.sketch.inlined)
    for nest in ctx.sketch.all_nests():
        ctx.inlined.update(a.nest.output for a in nest.attached if ctx.location(a) == INLINE)


def lower_root(ctx: Context, nest: Nest) -> list[Stmt]:
    """A root nest, after the producers and packs that it wants done before it."""
    body: list[Stmt] = []
    for a in nest.attached:
        if ctx.location(a) == ROOT:
            body += lower_root(ctx, a.nest)
    for pack in nest.packs:
        if ctx.values[pack.param] and pack not in ctx.packed:
            body.append(lower_pack(ctx, nest, pack))
    t = ctx.sketch.dag.tensor(nest.stored)
    if t is not ctx.sketch.dag.output:
        ctx.places[t.name] = Place(ctx.new_buffer(t.name, t.shape, t.dtype, Scope.SHARED))
    body.append(lower_nest(ctx, nest))
    return body
