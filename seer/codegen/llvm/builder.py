"""Writing LLVM instructions: blocks, loops as scopes, and values that are made only once.

A scope is the body of a loop (scope 0 is the function). Integers and addresses are written at the
start of the outermost scope in which their operands exist, so loop-invariant index arithmetic never
stands in a loop; everything else is written in place. Equal instructions in one scope are one value.
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from seer.dtypes import convert, is_narrow
from seer.dtypes import dtype as dtype_of
from seer.runtime.target import Target

LOCAL = 1 << 30  # the depth of a value that must stay where it was computed


_INTEGER_TESTS = {
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


class Val(NamedTuple):
    """An operand: its text, its element type, and its lanes (1 for a scalar)."""

    text: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """The LLVM type."""
        return value_type(self.dtype, self.lanes)

    @property
    def operand(self) -> str:
        """Type and text."""
        return f"{self.type} {self.text}"

    @property
    def is_number(self) -> bool:
        """Whether it is an integer written out."""
        return self.lanes == 1 and self.text.lstrip("-").isdigit()


@lru_cache(maxsize=256)
def value_type(dtype: str, lanes: int = 1) -> str:
    """The LLVM type of a value in a register (a bool is an i1)."""
    scalar = "i1" if dtype == "bool" else dtype_of(dtype).llvm
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@lru_cache(maxsize=256)
def memory_type(dtype: str, lanes: int = 1) -> str:
    """The LLVM type of a value in memory (a bool is a byte)."""
    scalar = dtype_of(dtype).llvm
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def literal(value: float | int | bool, dtype: str) -> str:
    """The text of a scalar constant."""
    if dtype == "bool":
        return "true" if value else "false"
    if is_narrow(dtype):
        return str(convert(np.float32(value), "float32", dtype).view(np.int16))
    if not dtype.startswith("float"):
        return str(int(value))
    exact = float(np.float32(value)) if dtype == "float32" else float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"


@dataclass
class Scope:
    """The body of a loop, or a branch of an If (which shares the depth of the loop round it)."""

    depth: int
    prelude: list[Any]
    keys: list[tuple[Any, ...] | str] = field(default_factory=list)


class Builder:
    """One function under construction; see the module's docstring.

    Args:
        target: decides what is written out because the processor has no instruction for it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines: list[Any] = []  # strings, and lists of strings that are still filled
        self.block = "entry"
        self.depths: dict[str, int] = {}
        self.declarations: dict[str, str] = {}
        prelude: list[Any] = []
        self.lines.append(prelude)
        self.scopes = [Scope(0, prelude)]
        self._memo: dict[Any, str] = {}
        self._intrinsics: dict[tuple[str, str, int], tuple[str, str]] = {}
        self._counter = 0

    # -- names and lines -----------------------------------------------------------------------

    def fresh(self, hint: str = "") -> str:
        """A new value name."""
        self._counter += 1
        return f"%{hint}{self._counter}"

    def line(self, text: str) -> None:
        """Write one instruction in place."""
        self.lines.append("  " + text)

    def start_block(self, label: str) -> None:
        """Begin a block; what came before must have ended in a branch."""
        self.lines.append(f"{label}:")
        self.block = label

    def text(self) -> str:
        """The body of the function."""
        out: list[str] = []

        def add(items: list[Any]) -> None:
            for item in items:
                if isinstance(item, list):
                    add(item)
                else:
                    out.append(item)

        add(self.lines)
        return "\n".join(out)

    def declare(self, name: str, signature: str) -> None:
        """Declare an external function; `signature` has a %s where the name goes."""
        self.declarations[name] = "declare " + signature % f"@{name}"

    # -- scopes --------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return self.scopes[-1].depth

    def open_loop_scope(self) -> None:
        """Enter a loop's body, at the end of its header's phis."""
        prelude: list[Any] = []
        self.lines.append(prelude)
        self.scopes.append(Scope(self.depth + 1, prelude))

    def open_branch_scope(self) -> None:
        """Enter a branch: what is computed in it is not known after it."""
        self.scopes.append(Scope(self.depth, self.scopes[-1].prelude))

    def close_scope(self) -> None:
        """Leave the innermost scope and forget its values."""
        for key in self.scopes.pop().keys:
            self._memo.pop(key, None)

    def depth_of(self, operand: str) -> int:
        """The scope in which an operand exists (constants: 0)."""
        return self.depths.get(operand, 0 if not operand.startswith("%") else LOCAL)

    # -- instructions --------------------------------------------------------------------------

    def inst(self, text: str) -> str:
        """The value of a pure instruction, in place; the same one again if it was written before."""
        known = self._memo.get(text)
        if known is not None:
            return known
        name = self.fresh("v")
        self.lines.append(f"  {name} = {text}")
        self._memo[text] = name
        self.scopes[-1].keys.append(text)
        return name

    def remember(self, key: tuple[Any, ...], make: Any) -> str:
        """A value known by `key`, made in place by `make()` if it is not known yet."""
        known = self._memo.get(key)
        if known is None:
            known = make()
            self._memo[key] = known
            self.scopes[-1].keys.append(key)
        return known

    def hoisted(self, text: str, *operands: str) -> str:
        """The value of a pure integer or address instruction, as far out as its operands allow."""
        known = self._memo.get(text)
        if known is not None:
            return known
        depth = max((self.depth_of(o) for o in operands), default=0)
        if depth >= LOCAL:
            return self.inst(text)
        name = self.fresh("i")
        self.scope_at(depth).prelude.append(f"  {name} = {text}")
        self.depths[name] = depth
        self.keep(text, name)
        return name

    def scope_at(self, depth: int) -> Scope:
        """The open scope whose prelude holds the values of a depth."""
        return next(s for s in self.scopes if s.depth == depth)

    def keep(self, key: Any, name: str) -> None:
        """Know a hoisted value by `key` for as long as it exists."""
        self._memo[key] = name
        depth = self.depth_of(name)
        scope = self.scopes[-1] if depth >= LOCAL else self.scope_at(depth)
        scope.keys.append(key)

    # -- vectors -------------------------------------------------------------------------------

    def splat(self, v: Val, lanes: int) -> Val:
        """A scalar in every lane."""
        if v.lanes == lanes:
            return v
        assert v.lanes == 1, v
        if not v.text.startswith("%"):
            return Val(f"splat ({v.type} {v.text})", v.dtype, lanes)
        wide = value_type(v.dtype, lanes)

        def make() -> str:
            first = self.inst(f"insertelement {wide} poison, {v.operand}, i64 0")
            zeros = f"<{lanes} x i32> zeroinitializer"
            return self.inst(f"shufflevector {wide} {first}, {wide} poison, {zeros}")

        return Val(self.remember((v.text, lanes), make), v.dtype, lanes)

    def match(self, *values: Val) -> tuple[Val, ...]:
        """The values brought to the most lanes among them."""
        lanes = max([v.lanes for v in values])
        return tuple(self.splat(v, lanes) for v in values)

    def extract(self, v: Val, lane: int) -> Val:
        """One lane of a vector (a scalar has every lane)."""
        if v.lanes == 1:
            return v
        return Val(self.inst(f"extractelement {v.operand}, i64 {lane}"), v.dtype)

    def gather(self, lanes: list[Val]) -> Val:
        """A vector of scalars."""
        wide = value_type(lanes[0].dtype, len(lanes))
        out = "poison"
        for k, v in enumerate(lanes):
            out = self.inst(f"insertelement {wide} {out}, {v.operand}, i64 {k}")
        return Val(out, lanes[0].dtype, len(lanes))

    # -- arithmetic ----------------------------------------------------------------------------

    def op(self, name: str, *operands: Val) -> Val:
        """An arithmetic instruction such as fadd, mul or xor; lanes are matched."""
        values = self.match(*operands)
        rest = ", ".join(v.text for v in values)
        first = values[0]
        return Val(self.inst(f"{name} {first.type} {rest}"), first.dtype, first.lanes)

    def compare(self, predicate: str, a: Val, b: Val) -> Val:
        """Fcmp or icmp (with signed predicates), by the dtype."""
        x, y = self.match(a, b)
        if x.dtype == "int64" and x.is_number and y.is_number:
            holds = _INTEGER_TESTS[predicate](int(x.text), int(y.text))
            return Val("true" if holds else "false", "bool")
        kind = "fcmp" if x.dtype.startswith("float") else "icmp"
        return Val(self.inst(f"{kind} {predicate} {x.type} {x.text}, {y.text}"), "bool", x.lanes)

    def select(self, cond: Val, a: Val, b: Val) -> Val:
        """`a` where cond, else `b`; a scalar condition may choose between vectors."""
        x, y = self.match(a, b)
        if cond.lanes > x.lanes:
            x, y = self.splat(x, cond.lanes), self.splat(y, cond.lanes)
        return Val(self.inst(f"select {cond.operand}, {x.operand}, {y.operand}"), x.dtype, x.lanes)

    def intrinsic(self, name: str, *operands: Val) -> Val:
        """An overloaded intrinsic of the operands' type, such as fma or sqrt."""
        values = self.match(*operands)
        v = values[0]
        known = self._intrinsics.get((name, v.dtype, v.lanes))
        if known is None:
            full = f"llvm.{name}.{_mangled(v.dtype, v.lanes)}"
            self.declare(full, f"{v.type} %s({', '.join(v.type for _ in values)})")
            known = self._intrinsics[name, v.dtype, v.lanes] = (f"call {v.type} @{full}(", v.type)
        start, kind = known
        args = ", ".join([f"{kind} {x.text}" for x in values])
        return Val(self.inst(f"{start}{args})"), v.dtype, v.lanes)

    def fma(self, x: Val, y: Val, z: Val) -> Val:
        """X * y + z, rounded once if the processor can; else LLVM would call the C library by lane."""
        if self.target.has_fma:
            return self.intrinsic("fma", x, y, z)
        return self.op("fadd", self.op("fmul", x, y), z)

    def floor(self, x: Val) -> Val:
        """The largest whole number that is not larger."""
        if self.target.has_fma:  # those without it have no instruction for floor either
            return self.intrinsic("floor", x)
        # Adding and taking off the first number without a fraction rounds to a whole number.
        whole = self.constant(2.0 ** (23 if x.dtype == "float32" else 52), x.dtype)
        signed = self.intrinsic("copysign", whole, x)
        rounded = self.op("fsub", self.op("fadd", x, signed), signed)
        one, zero = self.constant(1.0, x.dtype), self.constant(0.0, x.dtype)
        too_large = self.select(self.compare("ogt", rounded, x), one, zero)
        down = self.intrinsic("copysign", self.op("fsub", rounded, too_large), x)
        return self.select(self.compare("olt", self.intrinsic("fabs", x), whole), down, x)

    def bitcast(self, v: Val, dtype: str) -> Val:
        """The same bits as another type of the same size."""
        to = value_type(dtype, v.lanes)
        return Val(self.inst(f"bitcast {v.operand} to {to}"), dtype, v.lanes)

    def constant(self, value: float | int | bool, dtype: str) -> Val:
        """A scalar constant."""
        return Val(literal(value, dtype), dtype)


def _mangled(dtype: str, lanes: int) -> str:
    scalar = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "bool": "i1"}[dtype]
    return scalar if lanes == 1 else f"v{lanes}{scalar}"
