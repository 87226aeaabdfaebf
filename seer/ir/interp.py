"""What the IRs mean, evaluated plainly: NumPy for tensor expressions, one step at a time for loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from seer.dtypes import convert, is_narrow, numpy_dtype
from seer.errors import UserError, VerifyError
from seer.ir.dag import ComputeDAG, compute_op
from seer.ir.expr import Binary, Call, Cast, Compare, Const, Expr, Load, Read, Select, Unary, Var
from seer.ir.loops import Buffer, For, If, Let, LoopKind, LoopProgram, Prefetch, Scope, Seq, Stmt, Store
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
        if a is None or a.shape != t.shape or a.dtype != numpy_dtype(t.dtype):
            raise UserError(f"{t.name} must be {t.dtype}{list(t.shape)}, given {a if a is None else a.shape}")
        arrays[t.name] = a
    for t in dag.ops:
        arrays[t.name] = _eval_stage(t, arrays)
    return arrays[dag.output.name]


def _eval_stage(t: Tensor, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    op = compute_op(t)
    out = np.empty(t.shape, numpy_dtype(t.dtype))
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
        return _reduce_in_order(op, value.reshape(*shape[:n], math.prod(shape[n:])))
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
    "top": np.fmax.reduce,
}


# -- expressions ---------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])

CALLS: dict[str, Callable[..., Any]] = {
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

BINARY: dict[str, Callable[[Any, Any], Any]] = {
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

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def number(value: float | int | bool, dtype: str) -> Any:
    """A literal as NumPy has it."""
    if is_narrow(dtype):
        return convert(np.float32(value), "float32", dtype)[()]
    return np.dtype(dtype).type(value)


def evaluate(e: Expr, env: Env, read: ReadElement, guarded: bool = False) -> Any:
    """The value of an expression for arrays (or numbers) of its variables.

    Math functions of float32 are evaluated in float64 and rounded once.
    """

    def go(x: Expr) -> Any:
        return evaluate(x, env, read, guarded)

    match e:
        case Const(value, dtype):
            return number(value, dtype)
        case Var(name, dtype):
            return np.asarray(env[name], dtype)
        case Unary("neg", a):
            return np.negative(go(a))
        case Unary(_, a):
            return np.logical_not(go(a))
        case Binary(op, a, b):
            return BINARY[op](go(a), go(b))
        case Compare(op, a, b):
            return COMPARE[op](go(a), go(b))
        case Select(cond, a, b):
            sides = [evaluate(x, env, read, True) for x in (a, b)]
            return np.where(go(cond), *sides)
        case Cast(a, dtype):
            return convert(go(a), a.dtype, dtype)
        case Call(name, args, dtype):
            wide = [np.asarray(go(a), np.float64 if dtype == "float32" else dtype) for a in args]
            return np.asarray(CALLS[name](*wide)).astype(dtype)
        case Read(_, indices):
            return read(e, tuple(go(i) for i in indices), guarded)
    raise VerifyError(f"not a tensor expression: {e}")


# -- loop programs -------------------------------------------------------------------------------


def run_program(program: LoopProgram, arrays: Mapping[str, np.ndarray], seed: int = 0) -> None:
    """Run a loop program step by step; the output's array is filled in place.

    Slow, for tests. Parallel iterations run in a random order. It is an error to read or write outside
    a buffer, to read an element that was never written, and for one parallel iteration to read or write
    an element that another one writes.

    Args:
        program: what to run.
        arrays: for each param's name, a C-contiguous array of its shape (packed ones in any shape of
            that many elements) and dtype.
        seed: decides the order of parallel iterations.

    Raises:
        UserError: if an array is missing or does not fit.
        VerifyError: if the program reads or writes where it must not.
    """
    _Machine(program, arrays, seed).run(program.body, {})


def argument(b: Buffer, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The memory of a param: a view, so that what is stored is seen."""
    a = arrays.get(b.name)
    if a is None or a.size != b.num_elements or a.dtype != numpy_dtype(b.dtype) or not a.flags.c_contiguous:
        found = "nothing" if a is None else f"{a.dtype}{list(a.shape)}"
        raise UserError(f"{b.name} must be a C-contiguous {b.dtype}{list(b.shape)}, given {found}")
    return a.reshape(b.shape)


# Who touched an element in this parallel loop, where it was not one iteration.
_NOBODY, _MANY = -1, -2


class _Machine:
    def __init__(self, program: LoopProgram, arrays: Mapping[str, np.ndarray], seed: int) -> None:
        self.memory: dict[Buffer, np.ndarray] = {
            b: np.empty(b.shape, numpy_dtype(b.dtype)) for b in program.buffers
        }
        self.written = {b: np.zeros(b.shape, bool) for b in program.buffers}
        for b in program.params:
            self.memory[b] = argument(b, arrays)
            self.written[b] = np.ones(b.shape, bool)
        out = program.params[-1]
        self.written[out][...] = False
        self.rng = np.random.default_rng(seed)
        self.private = [b for b in program.buffers if b.scope in (Scope.THREAD, Scope.REGISTER)]
        self.common = [out, *(b for b in program.buffers if b.scope is Scope.SHARED)]
        self.iteration = _NOBODY
        self.writers: dict[Buffer, np.ndarray] = {}
        self.readers: dict[Buffer, np.ndarray] = {}

    def run(self, s: Stmt, env: Env) -> None:
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.run(k, env)
            case For(var, extent, LoopKind.PARALLEL, body):
                self._parallel(var, int(self.value(extent, env)), body, env)
            case For(var, extent, LoopKind.VECTORIZED, body):
                lanes = range(int(self.value(extent, env)))
                self._vector(var, body, [{**env, var: np.int64(k)} for k in lanes])
            case For(var, extent, _, body):
                for n in range(int(self.value(extent, env))):
                    self.run(body, {**env, var: np.int64(n)})
            case Let(var, value, body):
                self.run(body, {**env, var: self.value(value, env)})
            case If(cond, then, orelse):
                chosen = then if self.value(cond, env) else orelse
                if chosen is not None:
                    self.run(chosen, env)
            case Store(buffer, indices, value):
                self._write(buffer, self._at(buffer, indices, env), self.value(value, env))
            case Prefetch():
                pass

    def _parallel(self, var: str, extent: int, body: Stmt, env: Env) -> None:
        self.writers = {b: np.full(b.shape, _NOBODY) for b in self.common}
        self.readers = {b: np.full(b.shape, _NOBODY) for b in self.common}
        for n in self.rng.permutation(extent):
            self.iteration = int(n)
            self._forget()
            self.run(body, {**env, var: np.int64(n)})
        self._forget()
        self.iteration = _NOBODY

    def _forget(self) -> None:
        """What a thread holds for itself does not outlive a parallel iteration."""
        for b in self.private:
            self.written[b][...] = False

    def _vector(self, var: str, body: Stmt, lanes: list[Env]) -> None:
        """Every lane of one statement before the next statement."""
        match body:
            case Seq(stmts):
                for k in stmts:
                    self._vector(var, k, lanes)
            case Let(name, value, inner):
                self._vector(var, inner, [{**e, name: self.value(value, e)} for e in lanes])
            case Store(buffer, indices, value):
                values = [self.value(value, e) for e in lanes]
                for e, v in zip(lanes, values, strict=True):
                    self._write(buffer, self._at(buffer, indices, e), v)
            case _:
                raise VerifyError(f"vectorised loop {var} holds {type(body).__name__}")

    def _write(self, buffer: Buffer, at: tuple[int, ...], value: Any) -> None:
        if self.iteration != _NOBODY and buffer in self.writers:
            for others in (self.writers[buffer], self.readers[buffer]):
                self._alone(buffer, at, int(others[at]))
            self.writers[buffer][at] = self.iteration
        self.memory[buffer][at] = value
        self.written[buffer][at] = True

    def _load(self, buffer: Buffer, at: tuple[int, ...]) -> Any:
        if not self.written[buffer][at]:
            raise VerifyError(f"{buffer!r}: {at} is read before it is written")
        if self.iteration != _NOBODY and buffer in self.writers:
            self._alone(buffer, at, int(self.writers[buffer][at]))
            readers = self.readers[buffer]
            readers[at] = self.iteration if readers[at] in (_NOBODY, self.iteration) else _MANY
        return self.memory[buffer][at]

    def _alone(self, buffer: Buffer, at: tuple[int, ...], other: int) -> None:
        if other not in (_NOBODY, self.iteration):
            who = "others" if other == _MANY else f"iteration {other}"
            raise VerifyError(f"{buffer!r}: parallel iteration {self.iteration} and {who} meet at {at}")

    def _at(self, buffer: Buffer, indices: tuple[Expr, ...], env: Env) -> tuple[int, ...]:
        at = tuple(int(self.value(i, env)) for i in indices)
        if any(not 0 <= i < n for i, n in zip(at, buffer.shape, strict=True)):
            raise VerifyError(f"{buffer!r}: index {at} is outside")
        return at

    def value(self, e: Expr, env: Env) -> Any:
        """The value of a loop-level expression; only the chosen side of a Select is evaluated."""
        match e:
            case Load(buffer, indices):
                return self._load(buffer, self._at(buffer, indices, env))
            case Select(cond, a, b):
                return self.value(a if self.value(cond, env) else b, env)
            case Const(value, dtype):
                return number(value, dtype)
            case Var(name, _):
                return env[name]
            case Unary("neg", a):
                with np.errstate(all="ignore"):
                    return -self.value(a, env)
            case Unary(_, a):
                return not self.value(a, env)
            case Binary(op, a, b):
                with np.errstate(all="ignore"):
                    return BINARY[op](self.value(a, env), self.value(b, env))
            case Compare(op, a, b):
                return COMPARE[op](self.value(a, env), self.value(b, env))
            case Cast(a, dtype):
                return convert(self.value(a, env), a.dtype, dtype)[()]
            case Call(name, args, dtype):
                kind = np.dtype("float64" if dtype == "float32" else dtype).type
                wide = [kind(self.value(a, env)) for a in args]
                with np.errstate(all="ignore"):
                    return np.dtype(dtype).type(CALLS[name](*wide))
        raise VerifyError(f"not a loop-level expression: {e}")
