"""Statements of a loop program as the body of one LLVM function."""

from __future__ import annotations

from collections.abc import Callable

from seer.codegen.llvm.builder import Val, memory_type
from seer.codegen.llvm.index import Induction, LaneDependentError
from seer.codegen.llvm.values import Slots, ValueEmitter, buffer_align
from seer.errors import BuildError
from seer.ir.expr import Const, Expr, substitute, variables
from seer.ir.loops import (
    Buffer,
    For,
    If,
    Let,
    LoopKind,
    Prefetch,
    Scope,
    Seq,
    Stmt,
    Store,
    map_exprs,
    walk_stmts,
)
from seer.runtime.target import Target

OnParallel = Callable[[For], None]


class StatementEmitter(ValueEmitter):
    """Writes statements.

    Args:
        target: the processor.
        on_parallel: called for each parallel loop; it writes the call of the loop's own function.
    """

    def __init__(self, target: Target, on_parallel: OnParallel | None = None) -> None:
        super().__init__(target)
        self._on_parallel = on_parallel
        self._stored: dict[int, tuple[Stmt, frozenset[Buffer]]] = {}

    def emit(self, s: Stmt) -> None:
        """Write a statement."""
        match s:
            case Seq(stmts):
                for k in stmts:
                    self.emit(k)
            case Store():
                self._store(s)
            case Prefetch():
                self._prefetch(s)
            case For():
                self._for(s)
            case Let(var, value, body):
                self._let(var, value, body)
            case If():
                self._if(s)

    # -- variables -----------------------------------------------------------------------------

    def _let(self, var: str, value: Expr, body: Stmt) -> None:
        if self.lane_var is not None and self.lane_var in variables(value):
            self.emit(map_exprs(body, lambda e: substitute(e, {var: value})))
            return
        self.ranges[var] = self.range_of(value)
        self.env[var] = self.scalar(value)
        self.emit(body)
        del self.env[var]

    # -- loops ---------------------------------------------------------------------------------

    def _for(self, s: For) -> None:
        extent: int | str
        if isinstance(s.extent, Const):
            low = high = extent = int(s.extent.value)
        else:
            low, high = self.range_of(s.extent)
            extent = self.scalar(s.extent)
        self.ranges[s.var] = (0, max(high - 1, 0))
        if s.kind is LoopKind.PARALLEL and self._on_parallel is not None:
            self._on_parallel(s)
            return
        if isinstance(extent, int):
            if extent <= 0:
                return
            if s.kind is LoopKind.VECTORIZED and extent > 1:
                self._vectorized(s, extent)
                return
            if s.kind is LoopKind.UNROLLED or extent == 1:
                self._unrolled(s, extent)
                return
        elif s.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED):
            raise BuildError(f"loop {s.var}: a {s.kind.value} loop needs a constant extent, found {s.extent}")
        self.serial(s.var, 0, extent, s.body, needs_guard=low < 1 and not isinstance(extent, int))

    def _unrolled(self, s: For, extent: int) -> None:
        for k in range(extent):
            self.env[s.var] = k
            self.emit(s.body)
        del self.env[s.var]

    def _vectorized(self, s: For, extent: int) -> None:
        self.lane_var, self.lanes = s.var, extent
        self.emit(s.body)
        self.lane_var, self.lanes = None, 1

    def serial(self, var: str, start: int | str, end: int | str, body: Stmt, needs_guard: bool) -> None:
        """A loop of `var` from start to before end; register slots that it changes become phis."""
        number = self.fresh("L")[1:]
        header, leave = f"{number}.body", f"{number}.end"
        stored = self.stored(body)
        before = {b: dict(slots) for b, slots in self.registers.items() if b in stored}
        outside, after_guard = self.block, f"{number}.after"
        if needs_guard:  # blocks of its own before and after the loop: see passes.py
            self.line(f"%{number}.any = icmp sgt i64 {end}, {start}")
            self.line(f"br i1 %{number}.any, label %{number}.before, label %{after_guard}")
            self.start_block(f"{number}.before")
        before_block = self.block
        self.line(f"br label %{header}")
        self.start_block(header)
        phis: list[str] = []
        self.lines.append(phis)
        self.open_loop_scope()
        counter = f"%{number}.{_clean(var)}"
        self.depths[counter] = self.depth
        self.env[var] = counter
        induction = Induction(start)
        if is_innermost(body):
            self.inductions[counter] = induction
        carried = self._begin_carried(before)
        self.forget_loads(stored)
        self.emit(body)
        self.forget_loads(stored)
        del self.env[var]
        last_block = self.block
        after = {b: dict(self.registers[b]) for b in before}
        following = self.fresh("n")
        phis.append(f"  {counter} = phi i64 [ {start}, %{before_block} ], [ {following}, %{last_block} ]")
        for (buffer, key), name in carried.items():
            first, last = before[buffer][key], after[buffer][key]
            entry, back = f"[ {first.text}, %{before_block} ]", f"[ {last.text}, %{last_block} ]"
            phis.append(f"  {name} = phi {first.type} {entry}, {back}")
        phis += self._induction_phis(induction, before_block, last_block)
        self.inductions.pop(counter, None)
        self.line(f"{following} = add nuw nsw i64 {counter}, 1")
        test = self.fresh("c")
        self.line(f"{test} = icmp slt i64 {following}, {end}")
        self.line(f"br i1 {test}, label %{header}, label %{leave}")
        self.close_scope()
        self.start_block(leave)
        if needs_guard:
            self.line(f"br label %{after_guard}")
            self.start_block(after_guard)
            self._merge(before, outside, after, leave)

    def _induction_phis(self, induction: Induction, before: str, last: str) -> list[str]:
        """The phis of an innermost loop, after their increments are written at the end of its body."""
        phis, start = [], induction.start

        def first(step: int) -> str:
            # A loop starts at a number, or at the first iteration of a parallel loop's chunk.
            if isinstance(start, int):
                return str(start * step)
            return self.hoisted(f"mul i64 {start}, {step}", start)

        for step, name in induction.steps.items():
            following = self.fresh("n")
            self.line(f"{following} = add i64 {name}, {step}")
            phis.append(f"  {name} = phi i64 [ {first(step)}, %{before} ], [ {following}, %{last} ]")
        for (base, step), name in induction.pointers.items():
            following, begin = self.fresh("n"), base
            self.line(f"{following} = getelementptr i8, ptr {name}, i64 {step}")
            if start != 0:
                skip = first(step)
                begin = self.hoisted(f"getelementptr i8, ptr {base}, i64 {skip}", base, skip)
            phis.append(f"  {name} = phi ptr [ {begin}, %{before} ], [ {following}, %{last} ]")
        return phis

    def _begin_carried(self, before: dict[Buffer, Slots]) -> dict[tuple[Buffer, int], str]:
        """Give each slot that a loop may change a phi's name inside it."""
        carried = {}
        for buffer, slots in before.items():
            for key, v in slots.items():
                name = self.fresh("r")
                carried[buffer, key] = name
                self.registers[buffer][key] = Val(name, v.dtype, v.lanes)
        return carried

    def _merge(
        self, one: dict[Buffer, Slots], one_block: str, two: dict[Buffer, Slots], two_block: str
    ) -> None:
        """Slots after two ways have met: a phi where they differ."""
        for buffer, slots in one.items():
            for key, a in slots.items():
                b = two[buffer].get(key, a)
                if a.text != b.text:
                    name = self.fresh("r")
                    self.line(f"{name} = phi {a.type} [ {a.text}, %{one_block} ], [ {b.text}, %{two_block} ]")
                    a = Val(name, a.dtype, a.lanes)
                self.registers[buffer][key] = a

    def stored(self, s: Stmt) -> frozenset[Buffer]:
        """The buffers that a statement stores into."""
        known = self._stored.get(id(s))
        if known is None:
            found = frozenset(k.buffer for k in walk_stmts(s) if isinstance(k, Store))
            known = self._stored[id(s)] = (s, found)
        return known[1]

    def forget_loads(self, buffers: frozenset[Buffer]) -> None:
        """What was loaded from these buffers may have changed since."""
        for b in buffers:
            if b.scope is not Scope.REGISTER:
                self.versions[b] = self._next_version()

    def _next_version(self) -> int:
        self._counter += 1
        return self._counter

    # -- branches ------------------------------------------------------------------------------

    def _if(self, s: If) -> None:
        cond = self.value(s.cond)
        if cond.text in ("true", "false"):
            chosen = s.then if cond.text == "true" else s.orelse
            if chosen is not None:
                self.emit(chosen)
            return
        number = self.fresh("B")[1:]
        other = f"{number}.else" if s.orelse is not None else f"{number}.end"
        self.line(f"br i1 {cond.text}, label %{number}.then, label %{other}")
        before = {b: dict(slots) for b, slots in self.registers.items()}
        before_block = self.block
        after, after_block = self._branch(f"{number}.then", f"{number}.end", s.then)
        self.registers = {b: dict(slots) for b, slots in before.items()}
        if s.orelse is not None:
            before, before_block = self._branch(f"{number}.else", f"{number}.end", s.orelse)
        self.start_block(f"{number}.end")
        shared = {b: slots for b, slots in before.items() if b in after}
        self._merge(shared, before_block, after, after_block)

    def _branch(self, label: str, end: str, body: Stmt) -> tuple[dict[Buffer, Slots], str]:
        self.start_block(label)
        self.open_branch_scope()
        self.emit(body)
        self.close_scope()
        self.line(f"br label %{end}")
        return {b: dict(slots) for b, slots in self.registers.items()}, self.block

    # -- stores --------------------------------------------------------------------------------

    def _store(self, s: Store) -> None:
        buffer = s.buffer
        v = self.shared_value(s.value)
        if buffer.scope is Scope.REGISTER:
            self._store_register(s, v)
            return
        try:
            at = self.flat(buffer, s.indices)
        except LaneDependentError:
            self._store_by_lane(s)
            return
        if at.lane == 1 and self.lanes > 1:
            self._write(buffer, self.address(buffer, at), self.splat(v, self.lanes))
        elif at.lane == 0:
            self._write(buffer, self.address(buffer, at), self.extract(v, v.lanes - 1))
        else:
            for k in range(self.lanes):
                element = at._replace(constant=at.constant + k * at.lane, lane=0)
                self._write(buffer, self.address(buffer, element), self.extract(v, k))
        self.versions[buffer] = self._next_version()

    def _prefetch(self, s: Prefetch) -> None:
        # Into the first level (3): what is asked for the second (2) comes later, if at all.
        at = self.flat(s.buffer, s.indices)
        address = self.address(s.buffer, at.plus(self.linear(s.ahead)))
        self.declare("llvm.prefetch.p0", "void %s(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")

    def _store_by_lane(self, s: Store) -> None:
        v = self.value(s.value)
        for k in self.each_lane():
            self._write(s.buffer, self.address(s.buffer, self.flat(s.buffer, s.indices)), self.extract(v, k))
        self.versions[s.buffer] = self._next_version()

    def _write(self, buffer: Buffer, address: str, v: Val) -> None:
        kind, text = memory_type(v.dtype, v.lanes), v.text
        if v.dtype == "bool":
            text = self.inst(f"zext {v.operand} to {kind}")
        self.line(f"store {kind} {text}, ptr {address}, align {buffer_align(buffer)}")

    def _store_register(self, s: Store, v: Val) -> None:
        buffer = s.buffer
        key, position, step = self.slot(buffer, s.indices)
        width = buffer.shape[-1]
        slots = self.registers.setdefault(buffer, {})
        if step == 1 and position == 0 and self.lanes == width:
            slots[key] = self.splat(v, width)
        elif width == 1:
            slots[key] = self.extract(v, v.lanes - 1)
        elif step == 0:
            old = slots.get(key, Val("poison", v.dtype, width))
            name = self.inst(f"insertelement {old.operand}, {v.operand}, i64 {position}")
            slots[key] = Val(name, v.dtype, width)
        else:
            raise BuildError(f"{buffer.name}: only whole slots or single lanes can be stored, at {s.indices}")


def is_innermost(body: Stmt) -> bool:
    """Whether no loop is left inside once the unrolled ones are written out."""
    for s in walk_stmts(body):
        if isinstance(s, For) and s.kind is LoopKind.SERIAL and s.extent != Const(1, "int64"):
            return False
    return True


def _clean(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in name)
