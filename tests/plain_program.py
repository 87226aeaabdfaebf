"""A lowered program as a list of its Stores, with the loops and conditions round each."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.ir.expr import Binary, Call, Cast, Compare, Const, Expr, Select, Unary, Var, children, variables
from seer.ir.loops import For, If, Let, LoopKind, LoopProgram, Seq, Stmt, Store

Env = dict[str, Any]


@dataclass(frozen=True)
class Level:
    """A loop as one iteration of those around it sees it."""

    var: str
    trips: int
    kind: LoopKind
    loop: For

    @property
    def hint(self) -> str:
        return self.var.rpartition("_")[0]


@dataclass(frozen=True)
class Site:
    """A Store and the loops around it; the parts of a fused parallel loop are loops of their own."""

    store: Store
    levels: tuple[Level, ...]
    lets: dict[str, Expr]
    conditions: tuple[tuple[Expr, bool], ...]

    @property
    def is_full(self) -> bool:
        """Whether it belongs to full tiles."""
        return all(branch for _, branch in self.conditions)

    @property
    def is_parallel(self) -> bool:
        return any(x.kind is LoopKind.PARALLEL for x in self.levels)


def value(e: Expr, env: Env, lets: dict[str, Expr]) -> Any:
    """An integer expression at a point, or at many (arrays); loop variables not in `env` are 0."""
    match e:
        case Const(v, _):
            return int(v)
        case Var(name, _):
            if name in env:
                return env[name]
            return value(lets[name], env, lets) if name in lets else 0
        case Unary("neg", a):
            return -value(a, env, lets)
        case Cast(a, _):
            return value(a, env, lets)
        case Binary(op, a, b) | Compare(op, a, b):
            return _OPERATIONS[op](value(a, env, lets), value(b, env, lets))
        case Select(c, a, b):
            return np.where(value(c, env, lets), value(a, env, lets), value(b, env, lets))
    raise TypeError(f"no index: {e!r}")


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": np.minimum,
    "max": np.maximum,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


def sites(program: LoopProgram) -> list[Site]:
    """Every Store, in order."""
    return list(_sites(program.body, (), {}, ()))


def _sites(
    s: Stmt, levels: tuple[Level, ...], lets: dict[str, Expr], conditions: tuple[tuple[Expr, bool], ...]
) -> Iterator[Site]:
    match s:
        case Seq(stmts):
            for k in stmts:
                yield from _sites(k, levels, lets, conditions)
        case For(var, extent, kind, body):
            trips = int(value(extent, {}, lets))
            parts = list(_fused(var, trips, body)) if kind is LoopKind.PARALLEL else []
            if parts:
                new = tuple(Level(name, n, kind, s) for name, n in parts)
                while isinstance(body, Let) and var in variables(body.value):
                    body = body.body
            else:
                new = (Level(var, trips, kind, s),)
            yield from _sites(body, levels + new, lets, conditions)
        case Let(var, e, body):
            yield from _sites(body, levels, {**lets, var: e}, conditions)
        case If(cond, then, orelse):
            yield from _sites(then, levels, lets, (*conditions, (cond, True)))
            if orelse is not None:
                yield from _sites(orelse, levels, lets, (*conditions, (cond, False)))
        case Store():
            yield Site(s, levels, lets, conditions)


def _fused(var: str, trips: int, body: Stmt) -> Iterator[tuple[str, int]]:
    """The variables that a fused loop is divided into, and how many values each takes."""
    while isinstance(body, Let) and var in variables(body.value):
        seen = {int(value(body.value, {var: i}, {})) for i in range(trips)}
        assert seen == set(range(len(seen)))
        yield body.var, len(seen)
        body = body.body


def flop_of(program: LoopProgram) -> int:
    """Floating-point operations that a program without short loops executes."""
    total = 0
    for s in sites(program):
        runs = math.prod(x.trips for x in s.levels)
        total += runs * _operations(s.store.value)
    return total


def _operations(e: Expr) -> int:
    """Of the sides of a choice only one is needed: the dearer one counts."""
    if isinstance(e, Select):
        return _operations(e.cond) + max(_operations(e.a), _operations(e.b))
    inside = sum(map(_operations, children(e)))
    if isinstance(e, Call) and e.name == "fma":
        return inside + 2
    return inside + (isinstance(e, Binary | Unary | Call) and e.dtype.startswith("float"))
