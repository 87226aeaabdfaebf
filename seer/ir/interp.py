"""What the IRs mean, evaluated plainly: NumPy for tensor expressions, one step at a time for loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from seer.errors import UserError, VerifyError
from seer.ir.dag import ComputeDAG, compute_op
from seer.ir.expr import Binary, Call, Cast, Compare, Const, Expr, Load, Read, Select, Unary, Var
from seer.ir.loops import Buffer, For, If, Let, LoopKind, LoopProgram, Seq, Stmt, Store
from seer.ir.tensor import ComputeOp, Tensor, identity_of

MAX_POINTS = 1 << 21  # iteration points evaluated at once

Env = dict[str, Any]
ReadElement = Callable[[Read, tuple[Any, ...], bool], Any]


def eval_dag(dag: ComputeDAG, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output of a ComputeDAG, stage by stage.

    Sums of floats are accumulated in float64 and rounded once.

    Args:
        dag: what to compute.
        inputs: an array for each input's name, of its shape and dtype.

    Raises:
        UserError: if an input is missing or does not fit.
        VerifyError: if a stage reads outside a tensor, other than in a side of a select not taken.
    """
    arrays: dict[str, np.ndarray] = {}
    for t in dag.inputs:
        a = inputs.get(t.name)
        if a is None or a.shape != t.shape or a.dtype.name != t.dtype:
            raise UserError(f"{t.name} must be {t.dtype}{list(t.shape)}, given {a if a is None else a.shape}")
        arrays[t.name] = a
    for t in dag.ops:
        arrays[t.name] = _eval_stage(t, arrays)
    return arrays[dag.output.name]


def _eval_stage(t: Tensor, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    op = compute_op(t)
    out = np.empty(t.shape, t.dtype)
    if out.size == 0:
        return out
    terms = math.prod(a.extent for a in op.reduce_axes)
    if op.reducer is not None and terms == 0:
        out[...] = identity_of(op).value
        return out

    def read(r: Read, indices: tuple[Any, ...], guarded: bool) -> Any:
        return _read(t.name, r.tensor, arrays[r.tensor.name], indices, guarded)

    with np.errstate(all="ignore"):
        for block in _blocks(t.shape, max(1, MAX_POINTS // max(terms, 1))):
            out[block] = _eval_block(op, block, read)
    return out


def _blocks(shape: tuple[int, ...], points: int) -> Iterator[tuple[slice, ...]]:
    """Boxes that cover a shape, each of at most about `points` elements."""
    steps: list[int] = []
    for n in reversed(shape):
        step = max(1, min(n, points))
        points = max(1, points // step)
        steps.append(step)
    ranges = [range(0, n, s) for n, s in zip(shape, reversed(steps), strict=True)]
    for starts in itertools.product(*ranges):
        yield tuple(slice(a, min(a + r.step, r.stop)) for a, r in zip(starts, ranges, strict=True))


def _eval_block(op: ComputeOp, block: tuple[slice, ...], read: ReadElement) -> np.ndarray:
    n, m = len(op.axes), len(op.reduce_axes)
    env: Env = {}
    for k, (a, s) in enumerate(zip(op.axes, block, strict=True)):
        env[a.name] = np.arange(s.start, s.stop).reshape([-1 if i == k else 1 for i in range(n + m)])
    for k, a in enumerate(op.reduce_axes):
        env[a.name] = np.arange(a.extent).reshape([-1 if i == n + k else 1 for i in range(n + m)])
    shape = (*(s.stop - s.start for s in block), *(a.extent for a in op.reduce_axes))
    value = np.broadcast_to(evaluate(op.body, env, read), shape)
    if op.reducer is None:
        return value
    reduce = _REDUCERS.get(op.reducer.name)
    if reduce is None:
        return _reduce_in_order(op, value.reshape(*shape[:n], -1))
    # Sums and products keep an integer's own type, and round a float once.
    wide = np.dtype(np.float64) if value.dtype == np.float32 else value.dtype
    out = reduce(value, axis=tuple(range(n, n + m)), dtype=wide)
    return np.asarray(out).astype(value.dtype)


def _reduce_in_order(op: ComputeOp, terms: np.ndarray) -> np.ndarray:
    """A user's own reducer, from the first term to the last."""
    assert op.reducer is not None
    acc: Any = np.full(terms.shape[:-1], identity_of(op).value, terms.dtype)
    dtype = op.body.dtype
    both = op.reducer.combine(Var("acc", dtype), Var("term", dtype))
    for k in range(terms.shape[-1]):
        acc = evaluate(both, {"acc": acc, "term": terms[..., k]}, _no_reads)
    return np.asarray(acc)


def _no_reads(_r: Read, _i: tuple[Any, ...], _g: bool) -> Any:
    raise VerifyError("a reducer reads a tensor")


def _read(stage: str, t: Tensor, array: np.ndarray, indices: tuple[Any, ...], guarded: bool) -> Any:
    if array.size == 0 and guarded:
        return array.dtype.type(0)
    inside = []
    for d, (i, n) in enumerate(zip(indices, t.shape, strict=True)):
        if guarded:
            inside.append(np.clip(i, 0, n - 1))
            continue
        if np.any(np.asarray(i) < 0) or np.any(np.asarray(i) >= n):
            raise VerifyError(f"{stage} reads {t.name}{list(t.shape)} outside its dimension {d}")
        inside.append(i)
    return array[tuple(inside)] if inside else array[()]


_REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}


# -- expressions ---------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])

_CALLS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "abs": np.abs,
    "floor": np.floor,
    "pow": np.power,
    "fma": lambda a, b, c: a * b + c,
}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def evaluate(e: Expr, env: Env, read: ReadElement, guarded: bool = False) -> Any:
    """The value of an expression for arrays (or numbers) of its variables.

    Math functions of float32 are evaluated in float64 and rounded once.
    """

    def go(x: Expr) -> Any:
        return evaluate(x, env, read, guarded)

    match e:
        case Const(value, dtype):
            return np.dtype(dtype).type(value)
        case Var(name, dtype):
            return np.asarray(env[name], dtype)
        case Unary("neg", a):
            return np.negative(go(a))
        case Unary(_, a):
            return np.logical_not(go(a))
        case Binary(op, a, b):
            return _BINARY[op](go(a), go(b))
        case Compare(op, a, b):
            return _COMPARE[op](go(a), go(b))
        case Select(cond, a, b):
            sides = [evaluate(x, env, read, True) for x in (a, b)]
            return np.where(go(cond), *sides)
        case Cast(a, dtype):
            return np.asarray(go(a)).astype(dtype)
        case Call(name, args, dtype):
            wide = [np.asarray(go(a), np.float64 if dtype == "float32" else dtype) for a in args]
            return np.asarray(_CALLS[name](*wide)).astype(dtype)
        case Read(_, indices):
            return read(e, tuple(go(i) for i in indices), guarded)
    raise VerifyError(f"not a tensor expression: {e}")


# -- loop programs -------------------------------------------------------------------------------


def run_program(program: LoopProgram, arrays: Mapping[str, np.ndarray], seed: int = 0) -> None:
    """Run a loop program step by step; the output's array is filled in place.

    Slow, for tests. Parallel iterations run in a random order; a read or write outside a buffer, or a
    read of an element that was never written, is an error.

    Args:
        program: what to run.
        arrays: for each param's name, a C-contiguous array of its shape.
        seed: decides the order of parallel iterations.

    Raises:
        VerifyError: if the program reads or writes where it must not.
    """
    _Machine(program, arrays, seed).run(program.body, {})


class _Machine:
    def __init__(self, program: LoopProgram, arrays: Mapping[str, np.ndarray], seed: int) -> None:
        self.memory: dict[Buffer, np.ndarray] = {b: np.empty(b.shape, b.dtype) for b in program.buffers}
        self.written = {b: np.zeros(b.shape, bool) for b in program.buffers}
        for b in program.params:
            self.memory[b] = arrays[b.name].reshape(b.shape)
            self.written[b] = np.ones(b.shape, bool)
        self.written[program.params[-1]][...] = False
        self.rng = np.random.default_rng(seed)
        self.private = [b for b in program.buffers if b.scope.value in ("thread", "register")]

    def run(self, s: Stmt, env: Env) -> None:
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.run(k, env)
            case For(var, extent, kind, body):
                self._loop(var, int(self.value(extent, env)), kind, body, env)
            case Let(var, value, body):
                self.run(body, {**env, var: self.value(value, env)})
            case If(cond, then, orelse):
                chosen = then if self.value(cond, env) else orelse
                if chosen is not None:
                    self.run(chosen, env)
            case Store(buffer, indices, value):
                at = self._at(buffer, indices, env)
                self.memory[buffer][at] = self.value(value, env)
                self.written[buffer][at] = True

    def _loop(self, var: str, extent: int, kind: LoopKind, body: Stmt, env: Env) -> None:
        if kind is LoopKind.VECTORIZED:
            self._vector(var, extent, body, env)
            return
        order = range(extent)
        if kind is LoopKind.PARALLEL:
            order = self.rng.permutation(extent)  # type: ignore[assignment]
        for k in order:
            if kind is LoopKind.PARALLEL:
                for b in self.private:
                    self.written[b][...] = False
            self.run(body, {**env, var: np.int64(k)})

    def _vector(self, var: str, extent: int, body: Stmt, env: Env) -> None:
        """Every lane of one statement before the next statement."""
        match body:
            case Seq(stmts):
                for k in stmts:
                    self._vector(var, extent, k, env)
            case Store(buffer, indices, value):
                lanes = [{**env, var: np.int64(k)} for k in range(extent)]
                values = [self.value(value, e) for e in lanes]
                for e, v in zip(lanes, values, strict=True):
                    at = self._at(buffer, indices, e)
                    self.memory[buffer][at] = v
                    self.written[buffer][at] = True
            case _:
                raise VerifyError(f"vectorised loop {var} holds {type(body).__name__}")

    def _at(self, buffer: Buffer, indices: tuple[Expr, ...], env: Env) -> tuple[int, ...]:
        at = tuple(int(self.value(i, env)) for i in indices)
        if any(not 0 <= i < n for i, n in zip(at, buffer.shape, strict=True)):
            raise VerifyError(f"{buffer!r}: index {at} is outside")
        return at

    def value(self, e: Expr, env: Env) -> Any:
        """The value of a loop-level expression; only the chosen side of a Select is evaluated."""
        match e:
            case Load(buffer, indices):
                at = self._at(buffer, indices, env)
                if not self.written[buffer][at]:
                    raise VerifyError(f"{buffer!r}: {at} is read before it is written")
                return self.memory[buffer][at]
            case Select(cond, a, b):
                return self.value(a if self.value(cond, env) else b, env)
            case Const(value, dtype):
                return np.dtype(dtype).type(value)
            case Var(name, _):
                return env[name]
            case Unary(op, a):
                return -self.value(a, env) if op == "neg" else not self.value(a, env)
            case Binary(op, a, b):
                with np.errstate(all="ignore"):
                    return _BINARY[op](self.value(a, env), self.value(b, env))
            case Compare(op, a, b):
                return _COMPARE[op](self.value(a, env), self.value(b, env))
            case Cast(a, dtype):
                return np.asarray(self.value(a, env)).astype(dtype)[()]
            case Call(name, args, dtype):
                wide = [np.float64(self.value(a, env)) for a in args]
                with np.errstate(all="ignore"):
                    return np.dtype(dtype).type(_CALLS[name](*wide))
        raise VerifyError(f"not a loop-level expression: {e}")
