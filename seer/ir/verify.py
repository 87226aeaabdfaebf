"""The rules of the IRs, checked: a program that breaks one is a fault of seer, not of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from seer.ir.loops import (
    Buffer,
    CommitCopies,
    Exchange,
    For,
    If,
    Let,
    LoopKind,
    LoopProgram,
    Mma,
    Prefetch,
    Scope,
    Seq,
    StartCopy,
    Stmt,
    Store,
    Sync,
    WaitForCopies,
)
from seer.ir.simplify import Range, affine, bounds
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
    out |= set(nest.bind.params if nest.bind is not None else ())
    return out | {p for p in (nest.parallel, nest.unroll) if p is not None}


def verify_program(program: LoopProgram) -> None:
    """Check a loop program against the rules in seer/ir/loops.py.

    Indices are checked as far as the ranges of variables decide: what is outside for every value, or
    is reached for certain, is an error.

    Raises:
        VerifyError: with the statement and what is wrong in it.
    """
    known = {*program.params, *program.buffers}
    names = sorted(b.name for b in known)
    _require(len(set(names)) == len(names), lambda: f"buffer names repeat: {names}")
    for b in program.params:
        _require(b.scope is Scope.ARG, lambda: f"a param is no argument: {program.params}")
    for b in program.buffers:
        _require(b.scope is not Scope.ARG, lambda: f"an argument is no param: {program.buffers}")
    writable = known - set(program.params[:-1])
    _Checker(known, writable).stmt(program.body, _Place())


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement stands.

    Attributes:
        parallel: the variable of the parallel loop round it, likewise `vector`, `block`, `thread`.
        is_certain: nothing round it depends on data or may run no times.
        guards: the loop variables that branches round it depend on.
        trips: the loop variables that extents of loops round it depend on.
    """

    in_loop: bool = False
    in_branch: bool = False
    parallel: str | None = None
    vector: str | None = None
    is_certain: bool = True
    guards: frozenset[str] = frozenset()
    block: str | None = None
    thread: str | None = None
    trips: frozenset[str] = frozenset()


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
        self.kinds: dict[str, LoopKind] = {}  # of loop variables
        self.sources: dict[str, frozenset[str]] = {}  # the loop variables that a variable depends on
        self.is_certain = True
        self.checked: set[tuple[int, bool]] = set()

    def stmt(self, s: Stmt, place: _Place) -> None:
        self.is_certain = place.is_certain
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.stmt(k, place)
            case For():
                self._for(s, place)
            case Let(var, value, body):
                self.expr(value, f"let {var}")
                _require(value.dtype == "int64", lambda: f"let {var}: it is {value.dtype}, not int64")
                depends = self._depends(value)
                self._bind(var, bounds(value, self.ranges), depends, lambda: self.stmt(body, place))
            case If():
                self._if(s, place)
            case Store():
                self._store(s, place)
            case Prefetch(buffer, indices, ahead):
                _require(place.thread is None and place.vector is None, lambda: "a prefetch by a lane")
                self.expr(ahead, "prefetch")
                is_later = ahead.dtype == "int64" and bounds(ahead, self.ranges)[0] > 0
                _require(
                    buffer.scope is Scope.ARG and is_later,
                    lambda: f"prefetch of {buffer!r} + {expr_text(ahead)}",
                )
                self._access(buffer, indices, "prefetch", guarded=False)
            case StartCopy(buffer, indices, value):
                loaded = value.a if isinstance(value, Select) else value
                _require(
                    isinstance(loaded, Load) and loaded.buffer.scope is Scope.ARG,
                    lambda: f"a copy of {expr_text(value)}, which is no argument",
                )
                _require(buffer.scope is Scope.BLOCK_SHARED, lambda: f"a copy into {buffer!r}")
                self._store(Store(buffer, indices, value), place)
            case CommitCopies() | WaitForCopies():
                _require(place.thread is not None, lambda: "copies outside a thread loop")
            case Sync():
                self._meets("sync", place)
            case Exchange(buffer, indices, value, mask):
                self._meets("exchange", place)
                _require(0 < mask < 32, lambda: f"exchange with thread ^ {mask}: not in the same warp")
                self._store(Store(buffer, indices, value), place)
            case Mma():
                self._meets("mma", place)
                types = {b.dtype for b in (s.a, s.b)} - {"float32"}
                _require(types <= {s.narrow}, lambda: f"mma: no product of {s.a!r} and {s.b!r}")
                _require(s.acc.dtype == "float32", lambda: f"mma: a sum in {s.acc!r}")
                for buffer, at, last in s.parts:
                    _require(
                        buffer.scope is Scope.REGISTER and buffer.shape[-1:] == (last,),
                        lambda: f"mma: {buffer!r} is no fragment of {last}",  # noqa: B023
                    )
                    self._access(buffer, (*at, Const(0, "int64")), "mma", guarded=False)

    def _meets(self, what: str, place: _Place) -> None:
        """All threads of a block get here, or none."""
        thread = place.thread
        _require(thread is not None and place.vector is None, lambda: f"{what} outside a thread loop")
        _require(thread not in place.guards | place.trips, lambda: f"{what} where not every thread comes")

    def _if(self, s: If, place: _Place) -> None:
        _require(place.vector is None, lambda: f"a branch inside vectorised loop {place.vector}")
        self.expr(s.cond, "a branch")
        _require(s.cond.dtype == "bool", lambda: f"the branch on {expr_text(s.cond)}: it is {s.cond.dtype}")
        guards = place.guards | self._depends(s.cond)
        inner = replace(place, in_branch=True, is_certain=False, guards=guards)
        self.stmt(s.then, inner)
        if s.orelse is not None:
            self.stmt(s.orelse, inner)

    def _for(self, s: For, place: _Place) -> None:
        where = f"{s.kind.value} loop {s.var}"
        self.expr(s.extent, where)
        _require(s.extent.dtype == "int64", lambda: f"{where}: its extent is {s.extent.dtype}, not int64")
        _require(place.vector is None, lambda: f"{where} inside vectorised loop {place.vector}")
        if s.kind is not LoopKind.SERIAL:
            _require(
                isinstance(s.extent, Const),
                lambda: f"{where}: its extent {expr_text(s.extent)} is no constant",
            )
        is_parallel = s.kind is LoopKind.PARALLEL
        if is_parallel:
            _require(not place.in_loop, lambda: f"{where} inside another loop")
            _require(not place.in_branch, lambda: f"{where} inside a branch")
        if s.kind is LoopKind.BLOCK:
            _require(not place.in_loop and not place.in_branch, lambda: f"{where} inside something else")
        if s.kind is LoopKind.THREAD:
            _require(
                place.block is not None and place.thread is None, lambda: f"{where} outside a block loop"
            )
            _require(place.trips == {place.block}, lambda: f"{where} inside another loop")
        elif place.block is not None and s.kind is not LoopKind.BLOCK:
            _require(place.thread is not None, lambda: f"{where} between block and thread")
        high = bounds(s.extent, self.ranges)[1]
        inner = _Place(
            True,
            place.in_branch,
            s.var if is_parallel and high > 1 else place.parallel,
            s.var if s.kind is LoopKind.VECTORIZED else None,
            place.is_certain and isinstance(s.extent, Const) and high > 0,
            place.guards,
            s.var if s.kind is LoopKind.BLOCK else place.block,
            s.var if s.kind is LoopKind.THREAD else place.thread,
            place.trips | self._depends(s.extent) | ({s.var} if s.kind is LoopKind.BLOCK else set()),
        )
        self.kinds[s.var] = s.kind
        self._bind(s.var, (0, max(high - 1, 0)), frozenset((s.var,)), lambda: self.stmt(s.body, inner))
        self.kinds.pop(s.var, None)

    def _bind(self, var: str, values: Range, depends: frozenset[str], inside: Callable[[], None]) -> None:
        _require(var not in self.ranges, lambda: f"variable {var} is bound twice")
        self.ranges[var], self.sources[var] = values, depends
        inside()
        del self.ranges[var], self.sources[var]

    def _depends(self, *exprs: Expr) -> frozenset[str]:
        """The loop variables that expressions depend on, through Lets too."""
        out: set[str] = set()
        for e in exprs:
            if isinstance(e, Var):
                out |= self.sources[e.name]
            elif not isinstance(e, Const):
                out |= self._depends(*children(e))
        return frozenset(out)

    def _store(self, s: Store, place: _Place) -> None:
        where = _Where(s)
        for i in s.indices:
            self.expr(i, where)
        self.expr(s.value, where)
        _require(all(i.dtype == "int64" for i in s.indices), lambda: f"{where}: an index is not int64")
        _require(s.buffer in self.known, lambda: f"{where}: the buffer is not declared")
        _require(s.buffer in self.writable, lambda: f"{where}: an input is written")
        _require(
            s.value.dtype == s.buffer.dtype,
            lambda: f"{where}: a {s.value.dtype} into a {s.buffer.dtype} buffer",
        )
        self._access(s.buffer, s.indices, where, guarded=False)
        depends = self._depends(*s.indices)
        if s.buffer.scope in (Scope.ARG, Scope.SHARED) and place.parallel is not None:
            _require(
                place.parallel in depends | place.guards,
                lambda: f"{where}: parallel iterations write the same element",
            )
        at_once = (place.block, place.thread) if s.buffer.scope is Scope.ARG else ()
        for var in at_once:
            is_apart = var is None or self.ranges[var][1] == 0 or var in depends | place.guards
            _require(is_apart, lambda: f"{where}: blocks or threads write the same element")
        if s.buffer.scope is Scope.BLOCK_SHARED:
            _require(place.thread is not None, lambda: f"{where}: shared memory outside a block")
        if place.vector is not None and self.ranges[place.vector][1] > 0:
            _require(place.vector in depends, lambda: f"{where}: all lanes write the same element")

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...], where: object, guarded: bool) -> None:
        _require(buffer in self.known, lambda: f"{where}: {buffer.name} is not declared")
        _require(
            len(indices) == len(buffer.shape),
            lambda: f"{where}: {buffer!r} is used with {len(indices)} indices",
        )
        for index, extent in zip(indices, buffer.shape, strict=True):
            low, high = bounds(index, self.ranges)
            if guarded or extent == 0 or (low >= 0 and high < extent):
                continue
            # Ranges ignore how variables depend on each other, so a part outside may not be reached.
            if high < 0 or low >= extent or self._reaches_its_bounds(index):
                raise VerifyError(f"{where}: {expr_text(index)} of {buffer!r} is in {low}..{high}, outside")
        if buffer.scope is Scope.REGISTER:
            self._register(buffer, indices, where)

    def _reaches_its_bounds(self, index: Expr) -> bool:
        """Whether the index takes both ends of its range: loop variables each on their own."""
        return self.is_certain and all(isinstance(t, Var) and t.name in self.kinds for t in affine(index)[0])

    def _register(self, buffer: Buffer, indices: tuple[Expr, ...], where: object) -> None:
        """Every index is a constant after unrolling; only the last may also count lanes, one by one."""
        for k, index in enumerate(indices):
            if not self._is_register_index(index, may_be_lane=k == len(indices) - 1):
                text = ", ".join(map(expr_text, indices))
                raise VerifyError(f"{where}: {buffer!r}[{text}] is no register after unrolling")

    def _is_register_index(self, index: Expr, may_be_lane: bool) -> bool:
        if isinstance(index, Const):
            return True
        for term, scale in affine(index)[0].items():
            kinds = {self.kinds[v] for v in self._depends(term)}
            is_lane = isinstance(term, Var) and scale == 1 and kinds == {LoopKind.VECTORIZED}
            if not (kinds <= {LoopKind.UNROLLED} or (is_lane and may_be_lane)):
                return False
        return True

    def expr(self, e: Expr, where: object) -> None:
        """Check an expression; a node that is reached by several ways is checked once."""
        self.checked.clear()
        self._expr(e, where, guarded=False)

    def _expr(self, e: Expr, where: object, guarded: bool) -> None:
        if (id(e), guarded) in self.checked:
            return
        self.checked.add((id(e), guarded))
        if isinstance(e, Var):
            _require(e.name in self.ranges, lambda: f"{where}: variable {e.name} is not bound")
            return
        if isinstance(e, Const):
            return
        if isinstance(e, Read):
            raise VerifyError(f"{where}: a tensor read is left: {expr_text(e)}")
        _check_node(e, where)
        if isinstance(e, Select):
            self._expr(e.cond, where, guarded)
            self._expr(e.a, where, True)
            self._expr(e.b, where, True)
            return
        for k in children(e):
            self._expr(k, where, guarded)
        if isinstance(e, Load):
            self._access(e.buffer, e.indices, where, guarded)


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
