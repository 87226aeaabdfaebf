"""The rules of the IRs, checked: a program that breaks one is a fault of seer, not of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seer.errors import VerifyError
from seer.ir.dag import ComputeDAG, compute_op, expr_text
from seer.ir.expr import (
    CALLS,
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    Load,
    Read,
    Select,
    Unary,
    Var,
    children,
    reads,
    variables,
)
from seer.ir.loops import Buffer, For, If, Let, LoopKind, LoopProgram, Scope, Seq, Stmt, Store
from seer.ir.simplify import Range, bounds
from seer.ir.sketch import Nest, Sketch


def verify_dag(dag: ComputeDAG) -> None:
    """Check that stages use only their own axes and read tensors of the DAG with the right rank.

    Raises:
        VerifyError: naming the stage.
    """
    known = set(dag.tensors)
    for t in dag.ops:
        op = compute_op(t)
        loose = variables(op.body) - {a.name for a in (*op.axes, *op.reduce_axes)}
        if loose:
            raise VerifyError(f"stage {t.name} uses {', '.join(sorted(loose))}, which are not its axes")
        for r in reads(op.body):
            if r.tensor not in known:
                raise VerifyError(f"stage {t.name} reads {r.tensor!r}, which is not in the DAG")
            if len(r.indices) != len(r.tensor.shape):
                raise VerifyError(f"stage {t.name} reads {r.tensor!r} with {len(r.indices)} indices")
        _check_types(op.body, f"stage {t.name}")


def verify_sketch(sketch: Sketch) -> None:
    """Check that every stage is computed exactly once and every param is declared once and used.

    Raises:
        VerifyError: naming the sketch and the stage or param.
    """
    names = [p.name for p in sketch.params]
    if len(set(names)) < len(names):
        raise VerifyError(f"sketch {sketch.key}: params repeat: {names}")
    used: set[str] = set()
    computed = list(sketch.inlined)
    for nest in sketch.all_nests():
        computed += [nest.stage] if nest.epilogue is None else [nest.stage, nest.epilogue]
        used |= _params_of(nest)
    if used != set(names):
        raise VerifyError(f"sketch {sketch.key}: params {sorted(used ^ set(names))} are loose")
    needed = {t.name for t in sketch.dag.ops}
    if set(computed) != needed or len(set(computed)) < len(computed):
        raise VerifyError(f"sketch {sketch.key}: computes {sorted(computed)}, needed {sorted(needed)}")


def _params_of(nest: Nest) -> set[str]:
    out = {p for s in nest.splits for p in s.params} | {p.param for p in nest.packs}
    out |= {a.param for a in nest.attached if a.param is not None}
    return out | {p for p in (nest.parallel, nest.unroll) if p is not None}


def verify_program(program: LoopProgram) -> None:
    """Check a loop program against the rules in seer/ir/loops.py.

    Raises:
        VerifyError: with the statement and what is wrong in it.
    """
    known = {*program.params, *program.buffers}
    writable = known - set(program.params[:-1])
    _Checker(known, writable).stmt(program.body, _Place())


@dataclass(frozen=True)
class _Place:
    """Where a statement stands."""

    in_loop: bool = False
    in_parallel: bool = False
    vector: str | None = None


@dataclass(frozen=True, slots=True)
class _Where:
    """A store, named only when a check fails."""

    store: Store

    def __str__(self) -> str:
        return f"{self.store.buffer.name}[{', '.join(map(expr_text, self.store.indices))}] = ..."


class _Checker:
    def __init__(self, known: set[Buffer], writable: set[Buffer]) -> None:
        self.known, self.writable = known, writable
        self.ranges: dict[str, Range] = {}

    def stmt(self, s: Stmt, place: _Place) -> None:
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.stmt(k, place)
            case For():
                self._for(s, place)
            case Let(var, value, body):
                self.expr(value, f"let {var}")
                self._bind(var, bounds(value, self.ranges), lambda: self.stmt(body, place))
            case If(cond, then, orelse):
                _require(place.vector is None, lambda: f"a branch inside vectorised loop {place.vector}")
                self.expr(cond, "a branch")
                self.stmt(then, place)
                if orelse is not None:
                    self.stmt(orelse, place)
            case Store():
                self._store(s, place)

    def _for(self, s: For, place: _Place) -> None:
        where = f"{s.kind.value} loop {s.var}"
        self.expr(s.extent, where)
        _require(place.vector is None, lambda: f"{where} inside vectorised loop {place.vector}")
        if s.kind is not LoopKind.SERIAL:
            _require(
                isinstance(s.extent, Const),
                lambda: f"{where}: its extent {expr_text(s.extent)} is no constant",
            )
        if s.kind is LoopKind.PARALLEL:
            _require(not place.in_loop, lambda: f"{where} inside another loop")
        inner = _Place(
            True,
            place.in_parallel or s.kind is LoopKind.PARALLEL,
            s.var if s.kind is LoopKind.VECTORIZED else place.vector,
        )
        high = bounds(s.extent, self.ranges)[1]
        self._bind(s.var, (0, max(high - 1, 0)), lambda: self.stmt(s.body, inner))

    def _bind(self, var: str, values: Range, inside: Callable[[], None]) -> None:
        _require(var not in self.ranges, lambda: f"variable {var} is bound twice")
        self.ranges[var] = values
        inside()
        del self.ranges[var]

    def _store(self, s: Store, place: _Place) -> None:
        where = _Where(s)
        _require(s.buffer in self.known, lambda: f"{where}: the buffer is not declared")
        _require(s.buffer in self.writable, lambda: f"{where}: an input is written")
        _require(
            s.value.dtype == s.buffer.dtype,
            lambda: f"{where}: a {s.value.dtype} into a {s.buffer.dtype} buffer",
        )
        if s.buffer.scope is Scope.SHARED and place.in_parallel and not s.indices:
            raise VerifyError(f"{where}: parallel iterations write the same element")
        self._access(s.buffer, s.indices, where, guarded=False)
        for i in s.indices:
            self.expr(i, where)
        self.expr(s.value, where)

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...], where: object, guarded: bool) -> None:
        _require(buffer in self.known, lambda: f"{where}: {buffer.name} is not declared")
        _require(
            len(indices) == len(buffer.shape),
            lambda: f"{where}: {buffer!r} is used with {len(indices)} indices",
        )
        for index, extent in zip(indices, buffer.shape, strict=True):
            low, high = bounds(index, self.ranges)
            # Ranges ignore how variables depend on each other, so only what is wholly outside is wrong.
            if not guarded and (high < 0 or low >= extent) and extent > 0:
                raise VerifyError(f"{where}: {expr_text(index)} of {buffer!r} is in {low}..{high}, outside")

    def expr(self, e: Expr, where: object, guarded: bool = False) -> None:
        if isinstance(e, Var):
            _require(e.name in self.ranges, lambda: f"{where}: variable {e.name} is not bound")
        elif isinstance(e, Load):
            self._access(e.buffer, e.indices, where, guarded)
        elif isinstance(e, Read):
            raise VerifyError(f"{where}: a tensor read is left: {expr_text(e)}")
        _check_node(e, where)
        if isinstance(e, Select):
            self.expr(e.cond, where, guarded)
            self.expr(e.a, where, True)
            self.expr(e.b, where, True)
            return
        for k in children(e):
            self.expr(k, where, guarded)


def _check_types(e: Expr, where: object) -> None:
    _check_node(e, where)
    for k in children(e):
        _check_types(k, where)


def _check_node(e: Expr, where: object) -> None:
    """The types of one node's operands."""
    match e:
        case Binary(_, a, b) | Compare(_, a, b):
            _require(a.dtype == b.dtype, lambda: f"{where}: {a.dtype} and {b.dtype} meet in {expr_text(e)}")
        case Select(cond, a, b):
            _require(
                cond.dtype == "bool", lambda: f"{where}: the condition of {expr_text(e)} is {cond.dtype}"
            )
            _require(a.dtype == b.dtype, lambda: f"{where}: {a.dtype} and {b.dtype} meet in {expr_text(e)}")
        case Unary("not", a):
            _require(a.dtype == "bool", lambda: f"{where}: not of {a.dtype}")
        case Call(name, args, dtype):
            _require(name in CALLS, lambda: f"{where}: unknown function {name}")
            _require(all(a.dtype == dtype for a in args), lambda: f"{where}: types differ in {expr_text(e)}")
        case Load(_, indices) | Read(_, indices):
            _require(all(i.dtype == "int64" for i in indices), lambda: f"{where}: an index is not int64")


def _require(holds: bool, message: Callable[[], str]) -> None:
    """Raise with a message that is made only where it is needed: most checks pass."""
    if not holds:
        raise VerifyError(message())
