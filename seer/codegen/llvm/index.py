"""Index arithmetic: integer expressions as a constant, terms, and a step per lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from seer.codegen.llvm.builder import Builder
from seer.dtypes import dtype as dtype_of
from seer.errors import BuildError
from seer.ir.expr import Binary, Const, Expr, Select, Unary, Var, as_expr
from seer.ir.loops import Buffer
from seer.ir.simplify import UNKNOWN, Range, affine, bounds
from seer.runtime.target import Target

_SCALES = (1, 2, 4, 8)  # what an addressing mode multiplies by
_MAX_POINTERS = 6  # moving addresses of one loop: each takes a register


def is_product(e: Expr) -> bool:
    """Whether e multiplies two things that are no constants: it is a term, not a sum of terms."""
    return isinstance(e, Binary) and e.op == "*" and not isinstance(e.a, Const) and not isinstance(e.b, Const)


class LaneDependentError(Exception):
    """An index that is not affine in the lane variable: each lane must be computed alone."""


class Linear(NamedTuple):
    """constant + sum of coefficient * term + lane step * lane number."""

    constant: int
    terms: tuple[tuple[str, int], ...] = ()
    lane: int = 0

    def plus(self, other: Linear) -> Linear:
        """The sum of two forms."""
        terms = dict(self.terms)
        for term, coefficient in other.terms:
            terms[term] = terms.get(term, 0) + coefficient
        return Linear(self.constant + other.constant, tuple(terms.items()), self.lane + other.lane)


class _Form(NamedTuple):
    """An integer expression: constant + variables * coefficients + other terms * coefficients."""

    holds: object  # what the form was made of: its id must not be used again
    constant: int
    variables: tuple[tuple[str, int], ...]
    others: tuple[tuple[Expr, int], ...]


@dataclass
class Induction:
    """What an innermost loop adds up from one iteration to the next, besides its counter.

    Attributes:
        start: the counter's first value.
        steps: step -> the name of counter * step.
        pointers: (base, step in bytes) -> the name of the address base + counter * step.
    """

    start: int | str
    steps: dict[int, str] = field(default_factory=dict)
    pointers: dict[tuple[str, int], str] = field(default_factory=dict)


class IndexEmitter(Builder):
    """A Builder that knows loop variables.

    Attributes:
        env: each variable's value: an int, or the name of an i64.
        ranges: each variable's inclusive range.
        lane_var: the variable of the vectorised loop being written, or None.
        lanes: its extent (1 outside).
        bases: each buffer's address.
        inductions: the open innermost loop, by the name of its counter.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.env: dict[str, int | str] = {}
        self.ranges: dict[str, Range] = {}
        self.lane_var: str | None = None
        self.lanes = 1
        self.bases: dict[Buffer, str] = {}
        self.inductions: dict[str, Induction] = {}
        self._forms: dict[int, _Form] = {}

    # -- integers ------------------------------------------------------------------------------

    def linear(self, e: Expr) -> Linear:
        """The value of an integer expression for the variables' present values."""
        form = self._forms.get(id(e))
        if form is None:
            form = self._forms[id(e)] = _form(e, e)
        return self._evaluate(form)

    def _evaluate(self, form: _Form) -> Linear:
        _, constant, variables, others = form
        env, lane_var = self.env, self.lane_var
        found: dict[str, int] = {}
        lane = 0
        for name, coefficient in variables:
            if name == lane_var:
                lane += coefficient
                continue
            value = env[name]
            if isinstance(value, int):
                constant += value * coefficient
            else:
                found[value] = found.get(value, 0) + coefficient
        for term, coefficient in others:
            value = self.scalar(term)
            if isinstance(value, int):
                constant += value * coefficient
            else:
                found[value] = found.get(value, 0) + coefficient
        if not found:
            return Linear(constant, (), lane)
        return Linear(constant, tuple([t for t in found.items() if t[1]]), lane)

    def scalar(self, e: Expr) -> int | str:
        """An integer expression as a number or the name of an i64.

        Raises:
            LaneDependentError: if it depends on the lane.
        """
        match e:
            case Const(value, _):
                return int(value)
            case Var(name, _):
                if name == self.lane_var:
                    raise LaneDependentError
                return self.env[name]
            case Binary("//" | "%" | "min" | "max" as op, a, b) if e.dtype == "int64":
                return self._operation(e, op, a, b)
            case Binary("+" | "-" | "*", _, _) | Unary("neg", _) if e.dtype == "int64":
                if is_product(e):
                    return self._product(e)
                form = self.linear(e)
                if form.lane:
                    raise LaneDependentError
                return self.sum_of(form)
            case Select(_, _, _):
                return self.other(e)
        return self.other(e)

    def other(self, e: Expr) -> int | str:
        """An integer that is not index arithmetic (loaded, cast, chosen): see ValueEmitter."""
        raise BuildError(f"not an index: {e}")

    def _product(self, e: Expr) -> int | str:
        assert isinstance(e, Binary)
        x, y = self.scalar(e.a), self.scalar(e.b)
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        return self.hoisted(f"mul i64 {x}, {y}", str(x), str(y))

    def _operation(self, e: Expr, op: str, a: Expr, b: Expr) -> int | str:
        x, y = self.scalar(a), self.scalar(b)
        if isinstance(x, int) and isinstance(y, int):
            if op in ("//", "%"):
                return 0 if y == 0 else x // y if op == "//" else x % y
            return min(x, y) if op == "min" else max(x, y)
        names = (str(x), str(y))
        if op in ("min", "max"):
            test = self.hoisted(f"icmp {'slt' if op == 'min' else 'sgt'} i64 {x}, {y}", *names)
            return self.hoisted(f"select i1 {test}, i64 {x}, i64 {y}", test, *names)
        if not isinstance(y, int) or y <= 0:
            return self.other(e)
        low, _ = bounds(a, self.ranges)
        if y & (y - 1) == 0:
            if op == "%":
                return self.hoisted(f"and i64 {x}, {y - 1}", *names)
            return self.hoisted(f"ashr i64 {x}, {y.bit_length() - 1}", *names)
        if low >= 0:
            return self.hoisted(f"{'udiv' if op == '//' else 'urem'} i64 {x}, {y}", *names)
        return self._floor(op, str(x), y)

    def _floor(self, op: str, x: str, y: int) -> str:
        """`x // y` or `x % y` for an x that may be negative."""
        r = self.hoisted(f"srem i64 {x}, {y}", x)
        negative = self.hoisted(f"icmp slt i64 {r}, 0", r)
        if op == "%":
            shifted = self.hoisted(f"add i64 {r}, {y}", r)
            return self.hoisted(f"select i1 {negative}, i64 {shifted}, i64 {r}", negative, shifted, r)
        q = self.hoisted(f"sdiv i64 {x}, {y}", x)
        less = self.hoisted(f"sub i64 {q}, 1", q)
        return self.hoisted(f"select i1 {negative}, i64 {less}, i64 {q}", negative, less, q)

    def sum_of(self, form: Linear) -> int | str:
        """A linear form without a lane step as a number or the name of an i64."""
        if not form.terms:
            return form.constant
        total = ""
        for name, coefficient in sorted(form.terms, key=lambda t: self.depth_of(t[0])):
            part = self.multiple(name, coefficient)
            total = part if not total else self.hoisted(f"add i64 {total}, {part}", total, part)
        if form.constant:
            total = self.hoisted(f"add i64 {total}, {form.constant}", total)
        return total

    # -- addresses -----------------------------------------------------------------------------

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Linear:
        """The element number that indices stand for (of the first lane, and the step per lane)."""
        form = self._forms.get(id(indices))
        if form is None:
            stride = 1
            total: Expr = as_expr(0)
            for index, extent in zip(reversed(indices), reversed(buffer.shape), strict=True):
                total = total + index * stride
                stride *= extent
            form = self._forms[id(indices)] = _form(indices, total)
        return self._evaluate(form)

    def address(self, buffer: Buffer, at: Linear) -> str:
        """The address of an element; terms of outer loops are added first, the constant last."""
        key = (buffer, at.constant, at.terms)
        known = self._memo.get(key)
        if known is not None:
            return known
        size = dtype_of(buffer.dtype).size_bytes
        pointer = self.bases[buffer]
        # Of the terms that belong to one loop, its counter comes first: see `_moving`.
        for name, coefficient in sorted(
            at.terms, key=lambda t: (self.depth_of(t[0]), t[0] not in self.inductions)
        ):
            moving = self._moving(pointer, name, coefficient * size)
            if moving is not None:
                pointer = moving
                continue
            offset = self.multiple(name, coefficient * size)
            pointer = self.hoisted(f"getelementptr i8, ptr {pointer}, i64 {offset}", pointer, offset)
        if at.constant:
            pointer = self.hoisted(f"getelementptr i8, ptr {pointer}, i64 {at.constant * size}", pointer)
        self.keep(key, pointer)
        return pointer

    def _moving(self, pointer: str, name: str, step: int) -> str | None:
        """`pointer + name * step` as an address that an innermost loop moves on, or None.

        An offset would do too, but a multiply-add that reads its operand at base + offset is two
        operations to the processor, and at a single register it is one.
        """
        loop = self.inductions.get(name)
        if loop is None or step in _SCALES or self.depth_of(pointer) >= self.depths[name]:
            return None
        known = loop.pointers.get((pointer, step))
        if known is None and len(loop.pointers) < _MAX_POINTERS:
            known = loop.pointers[pointer, step] = self.fresh("p")
            self.depths[known] = self.depths[name]
        return known

    def multiple(self, name: str, coefficient: int) -> str:
        """`name * coefficient`: an induction variable of its own if name counts an innermost loop."""
        if coefficient == 1:
            return name
        loop = self.inductions.get(name)
        if loop is None or coefficient in _SCALES:
            return self.hoisted(f"mul i64 {name}, {coefficient}", name)
        if coefficient not in loop.steps:
            loop.steps[coefficient] = step = self.fresh("s")
            self.depths[step] = self.depths[name]
        return loop.steps[coefficient]

    def is_inside(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether the ranges of the variables prove that every index is within the buffer."""
        for index, extent in zip(indices, buffer.shape, strict=True):
            low, high = bounds(index, self.ranges)
            if low < 0 or high >= extent:
                return False
        return True

    def range_of(self, e: Expr) -> Range:
        """The inclusive range of an integer expression."""
        return bounds(e, self.ranges) if e.dtype == "int64" else UNKNOWN


def _form(made_of: object, e: Expr) -> _Form:
    terms, constant = affine(e)
    variables = tuple((t.name, c) for t, c in terms.items() if isinstance(t, Var))
    return _Form(
        made_of, constant, variables, tuple((t, c) for t, c in terms.items() if not isinstance(t, Var))
    )
