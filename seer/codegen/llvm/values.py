"""Scalar expressions as LLVM values, of one lane or of all lanes of a vectorised loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seer.codegen.llvm.builder import Val, literal, memory_type, value_type
from seer.codegen.llvm.index import IndexEmitter, LaneDependentError, Linear, is_product
from seer.codegen.llvm.mathlib import MATH
from seer.codegen.llvm.narrow import narrow, widen
from seer.dtypes import is_narrow
from seer.errors import BuildError
from seer.ir.expr import Binary, Call, Cast, Compare, Const, Expr, Load, Select, Unary, Var
from seer.ir.loops import Buffer, Scope
from seer.runtime.target import Target

Slots = dict[int, Val]
Guard = tuple[Expr, bool]  # a condition and whether it holds

_FLOAT_OPS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_INT_OPS = {"+": "add", "-": "sub", "*": "mul"}
_FLOAT_TESTS = {"<": "olt", "<=": "ole", "==": "oeq", "!=": "une"}
_INT_TESTS = {"<": "slt", "<=": "sle", "==": "eq", "!=": "ne"}


class ValueEmitter(IndexEmitter):
    """An IndexEmitter that evaluates whole expressions.

    Attributes:
        registers: the present value of each slot of each REGISTER buffer.
        versions: a number per buffer that changes with each store, so that loads are shared only
            between stores.
        guards: conditions under which what is being evaluated is used.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.registers: dict[Buffer, Slots] = {}
        self.versions: dict[Buffer, int] = {}
        self.guards: list[Guard] = []
        self._inside: dict[int, tuple[Load, bool]] = {}
        self._evaluated: dict[int, tuple[Expr, Val]] | None = None

    def shared_value(self, e: Expr) -> Val:
        """The value of an expression whose nodes may be reached by several ways, each evaluated once."""
        self._evaluated = {}
        v = self.value(e)
        self._evaluated = None
        return v

    def value(self, e: Expr) -> Val:
        """The value of an expression; one that does not depend on the lane is a scalar."""
        known = self._evaluated
        if known is None or self.guards:
            return self._value_of(e)
        found = known.get(id(e))
        if found is None:  # holds e: an id must not be used again
            found = known[id(e)] = (e, self._value_of(e))
        return found[1]

    def _value_of(self, e: Expr) -> Val:
        match e:
            case Const(value, dtype):
                return Val(literal(value, dtype), dtype)
            case Load():
                return self.load(e)
            case Call(name, args, _):
                return self.call(name, [self.value(a) for a in args])
            case Binary(op, a, b):
                if e.dtype == "int64" and op in ("+", "-", "*", "min", "max"):
                    return self.integer(e)
                if e.dtype == "int64" and op in ("//", "%") and isinstance(b, Const) and b.value > 0:
                    return self.integer(e)
                return self.binary(op, self.value(a), self.value(b))
            case Select(cond, a, b):
                return self.choose(cond, a, b)
            case Compare(op, a, b):
                tests = _FLOAT_TESTS if a.dtype.startswith("float") else _INT_TESTS
                return self.compare(tests[op], self.value(a), self.value(b))
            case Cast(a, dtype):
                return self.cast(self.value(a), dtype)
            case Unary("neg", a):
                if e.dtype.startswith("float"):
                    v = self.value(a)
                    return Val(self.inst(f"fneg {v.operand}"), v.dtype, v.lanes)
                return self.op("sub", Val("0", e.dtype), self.value(a))
            case Unary("not", a):
                return self.op("xor", self.value(a), Val("true", "bool"))
            case Var():
                return self.integer(e)
        raise BuildError(f"an expression that belongs to tensors, not loops: {e}")

    # -- integers ------------------------------------------------------------------------------

    def integer(self, e: Expr) -> Val:
        """An int64 expression that may depend on the lane."""
        try:
            form = Linear(0, self._term(e)) if _is_term(e) else self.linear(e)
        except LaneDependentError:
            return self._integer_by_lane(e)
        if not form.terms:
            first = Val(str(form.constant), "int64")
        else:
            first = Val(str(self.sum_of(form._replace(lane=0))), "int64")
        if not form.lane:
            return first
        steps = ", ".join(f"i64 {k * form.lane}" for k in range(self.lanes))
        return self.op("add", Val(f"<{steps}>", "int64", self.lanes), first)

    def _term(self, e: Expr) -> tuple[tuple[str, int], ...]:
        return ((str(self.scalar(e)), 1),)

    def _integer_by_lane(self, e: Expr) -> Val:
        return self.gather([v for _ in self.each_lane() for v in [self.integer(e)]])

    def other(self, e: Expr) -> int | str:
        v = self.value(e)
        if v.lanes > 1:
            raise LaneDependentError
        if v.dtype != "int64":
            v = self.cast(v, "int64")
        return v.text if v.text.startswith("%") else int(v.text)

    def each_lane(self) -> Iterator[int]:
        """Evaluate with each lane's number in turn instead of all lanes at once."""
        assert self.lane_var is not None
        name, lanes = self.lane_var, self.lanes
        self.lane_var, self.lanes = None, 1
        known, self._evaluated = self._evaluated, None
        before = self.env.get(name)
        for k in range(lanes):
            self.env[name] = k
            yield k
        if before is None:
            del self.env[name]
        self.lane_var, self.lanes = name, lanes
        self._evaluated = known

    # -- operators -----------------------------------------------------------------------------

    def binary(self, op: str, a: Val, b: Val) -> Val:
        """An operator on values of one dtype."""
        if op in ("and", "or"):
            for x, y in ((a, b), (b, a)):
                if x.text in ("true", "false") and x.lanes == 1:
                    return y if (x.text == "true") == (op == "and") else x
            return self.op(op, a, b)
        if op in ("min", "max"):
            return self.extremum(op, a, b)
        if a.dtype.startswith("float"):
            return self.op(_FLOAT_OPS[op], a, b)
        if op in _INT_OPS:
            return self.op(_INT_OPS[op], a, b)
        return self._floor_division(op, a, b)

    def extremum(self, op: str, a: Val, b: Val) -> Val:
        """Minimum or maximum; of floats it is NaN if either operand is."""
        if not a.dtype.startswith("float"):
            return self.intrinsic("smin" if op == "min" else "smax", a, b)
        test = "olt" if op == "min" else "ogt"
        for x, y in ((a, b), (b, a)):
            if _is_number(x):
                # x wins only where it really is smaller (larger), so a NaN in y stays: one instruction.
                return self.select(self.compare(test, x, y), x, y)
        best = self.select(self.compare(test, a, b), a, b)  # b where either is NaN
        return self.select(self.compare("uno", a, a), a, best)

    def _floor_division(self, op: str, a: Val, b: Val) -> Val:
        zero, one, minus_one = (Val(text, a.dtype) for text in ("0", "1", "-1"))
        # The machine stops a program that divides by zero, or the lowest number by -1.
        by_zero, by_minus_one = self.compare("eq", b, zero), self.compare("eq", b, minus_one)
        divisor = self.select(self.op("or", by_zero, by_minus_one), one, b)
        r = self.op("srem", a, divisor)
        opposite = self.compare("slt", self.op("xor", r, divisor), zero)
        wrong = self.op("and", self.compare("ne", r, zero), opposite)
        if op == "%":
            return self.select(wrong, self.op("add", r, divisor), r)
        q = self.op("sdiv", a, divisor)
        q = self.select(wrong, self.op("sub", q, one), q)
        q = self.select(by_minus_one, self.op("sub", zero, a), q)
        return self.select(by_zero, zero, q)

    def cast(self, v: Val, dtype: str) -> Val:
        """C conversion; a float out of an integer's range becomes the nearest one, NaN becomes 0."""
        if v.dtype == dtype:
            return v
        if is_narrow(v.dtype):
            return self.cast(widen(self, v), dtype)
        if is_narrow(dtype):
            return narrow(self, self.cast(v, "float32"), dtype)
        to = value_type(dtype, v.lanes)
        from_float, to_float = v.dtype.startswith("float"), dtype.startswith("float")
        if dtype == "bool":
            zero = Val(literal(0, v.dtype), v.dtype)
            return self.compare("une" if from_float else "ne", v, zero)
        if from_float and to_float:
            name = "fpext" if dtype == "float64" else "fptrunc"
        elif to_float:
            name = "uitofp" if v.dtype == "bool" else "sitofp"
        elif from_float:
            return self._saturating(v, dtype)
        elif v.dtype == "bool":
            name = "zext"
        else:
            name = "sext" if dtype == "int64" else "trunc"
        return Val(self.inst(f"{name} {v.operand} to {to}"), dtype, v.lanes)

    def _saturating(self, v: Val, dtype: str) -> Val:
        to = value_type(dtype, v.lanes)
        lanes = "" if v.lanes == 1 else f"v{v.lanes}"
        source = "f32" if v.dtype == "float32" else "f64"
        name = f"llvm.fptosi.sat.{lanes}{dtype.replace('int', 'i')}.{lanes}{source}"
        self.declare(name, f"{to} %s({v.type})")
        return Val(self.inst(f"call {to} @{name}({v.operand})"), dtype, v.lanes)

    def call(self, name: str, args: list[Val]) -> Val:
        """A math function."""
        if name == "fma":
            return self.fma(*args)
        if name == "floor":
            return self.floor(*args)
        if name == "sqrt":
            return self.intrinsic(name, *args)
        if name == "abs":
            if args[0].dtype.startswith("float"):
                return self.intrinsic("fabs", *args)
            negative = self.compare("slt", args[0], Val("0", args[0].dtype))
            return self.select(negative, self.op("sub", Val("0", args[0].dtype), args[0]), args[0])
        return MATH[name](self, *self.match(*args))

    def choose(self, cond: Expr, a: Expr, b: Expr) -> Val:
        """Select: loads inside a side are guarded by the condition."""
        c = self.value(cond)
        if c.text in ("true", "false"):
            return self.value(a if c.text == "true" else b)
        with self.guarded(cond, True):
            x = self.value(a)
        with self.guarded(cond, False):
            y = self.value(b)
        return self.select(c, x, y)

    @contextmanager
    def guarded(self, cond: Expr, holds: bool) -> Iterator[None]:
        """What is evaluated inside is used only where `cond` is `holds`."""
        self.guards.append((cond, holds))
        yield
        self.guards.pop()

    def guard(self) -> Val | None:
        """The conjunction of the guards, or None if there are none."""
        guards, self.guards = self.guards, []  # conditions themselves are always safe to evaluate
        out: Val | None = None
        for cond, holds in guards:
            c = self.value(cond)
            if not holds:
                c = self.op("xor", c, Val("true", "bool"))
            out = c if out is None else self.op("and", out, c)
        self.guards = guards
        return None if out is None or out.text == "true" else out

    # -- loads ---------------------------------------------------------------------------------

    def load(self, e: Load) -> Val:
        """One element, or one per lane."""
        buffer = e.buffer
        if buffer.scope is Scope.REGISTER:
            return self._register(buffer, e.indices)
        if buffer.num_elements == 0:
            return Val(literal(0, e.dtype), e.dtype)  # nothing can be read, so nothing is
        try:
            at = self.flat(buffer, e.indices)
        except LaneDependentError:
            return self._load_by_lane(e)
        if at.lane not in (0, 1):
            return self._load_by_lane(e)
        lanes = self.lanes if at.lane else 1
        guard = self._needed_guard(e)
        if guard is None:
            return self._load_at(buffer, at, lanes)
        if guard.lanes == 1 and buffer.num_elements >= lanes:
            # Where it is not used, read the first elements instead: always there.
            address = self.address(buffer, at)
            safe = self.inst(f"select {guard.operand}, ptr {address}, ptr {self.bases[buffer]}")
            return self._plain_load(buffer, safe, lanes)
        if lanes == 1:
            return self._load_by_lane(e)
        return self._masked_load(buffer, self.address(buffer, at), self.splat(guard, lanes))

    def _needed_guard(self, e: Load) -> Val | None:
        if not self.guards:
            return None
        known = self._inside.get(id(e))
        if known is None:  # holds e: an id must not be used again
            known = self._inside[id(e)] = (e, self.is_inside(e.buffer, e.indices))
        return None if known[1] else self.guard()

    def _load_by_lane(self, e: Load) -> Val:
        return self.gather([v for _ in self.each_lane() for v in [self.load(e)]])

    def _load_at(self, buffer: Buffer, at: Linear, lanes: int) -> Val:
        """The same as `_plain_load`, without making the address again for a value that is known."""
        key = (buffer, at, lanes, self.versions.get(buffer, 0))
        text = self.remember(key, lambda: self._plain_load(buffer, self.address(buffer, at), lanes).text)
        return Val(text, buffer.dtype, lanes)

    def _plain_load(self, buffer: Buffer, address: str, lanes: int) -> Val:
        kind = memory_type(buffer.dtype, lanes)
        align = buffer_align(buffer)

        def make() -> str:
            name = self.fresh("l")
            self.line(f"{name} = load {kind}, ptr {address}, align {align}")
            return name

        name = self.remember((buffer, address, lanes, self.versions.get(buffer, 0)), make)
        return self._from_memory(name, buffer.dtype, lanes)

    def _masked_load(self, buffer: Buffer, address: str, mask: Val) -> Val:
        kind = memory_type(buffer.dtype, mask.lanes)
        suffix = {"float": "f32", "double": "f64"}.get(kind.split()[-1][:-1], kind.split()[-1][:-1])
        name = f"llvm.masked.load.v{mask.lanes}{suffix}.p0"
        self.declare(name, f"{kind} %s(ptr, i32, <{mask.lanes} x i1>, {kind})")
        align = buffer_align(buffer)

        def make() -> str:
            out = self.fresh("l")
            zero = f"{kind} zeroinitializer"
            self.line(f"{out} = call {kind} @{name}(ptr {address}, i32 {align}, {mask.operand}, {zero})")
            return out

        key = (buffer, address, mask.text, self.versions.get(buffer, 0))
        return self._from_memory(self.remember(key, make), buffer.dtype, mask.lanes)

    def _from_memory(self, name: str, dtype: str, lanes: int) -> Val:
        if dtype != "bool":
            return Val(name, dtype, lanes)
        kind = memory_type(dtype, lanes)
        return Val(self.inst(f"icmp ne {kind} {name}, zeroinitializer"), "bool", lanes)

    # -- register slots ------------------------------------------------------------------------

    def slot(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[int, int, int]:
        """The slot of a REGISTER access, the first position within it, and the step per lane."""
        at = self.flat(buffer, indices)
        if at.terms:
            raise BuildError(f"{buffer.name}: the slot {indices} is not known when the code is made")
        key, position = divmod(at.constant, buffer.shape[-1])
        return key, position, at.lane

    def _register(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Val:
        key, position, step = self.slot(buffer, indices)
        v = self.registers[buffer][key]
        if step == 0:
            return self.extract(v, position)
        if position == 0 and step == 1 and self.lanes == v.lanes:
            return v
        picked = ", ".join(f"i32 {position + k * step}" for k in range(self.lanes))
        mask = f"<{self.lanes} x i32> <{picked}>"
        return Val(self.inst(f"shufflevector {v.operand}, {v.type} poison, {mask}"), v.dtype, self.lanes)


def buffer_align(buffer: Buffer) -> int:
    """Bytes to which every element is aligned."""
    return {"float": 4, "double": 8, "i32": 4, "i64": 8, "i16": 2, "i8": 1}[memory_type(buffer.dtype)]


def _is_term(e: Expr) -> bool:
    return is_product(e) or (isinstance(e, Binary) and e.op in ("//", "%", "min", "max"))


def _is_number(v: Val) -> bool:
    """Whether a float is a literal other than NaN."""
    if v.text.startswith("%"):
        return False
    bits = int(v.text.split()[-1].rstrip(")"), 16)
    return bits & 0x7FFFFFFFFFFFFFFF <= 0x7FF0000000000000
