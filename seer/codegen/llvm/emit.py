"""A loop program as the text of an LLVM module.

The module defines `void name(ptr arg0, ..., ptr scratch, i32 num_threads)` and, for each parallel
loop, three functions: `.body` runs a range of iterations, `.team` is what each OpenMP thread runs
(it takes chunks of the range), and the kernel calls either the team or, with one thread, the
body itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from seer.codegen.llvm.statements import StatementEmitter
from seer.codegen.memory_plan import align
from seer.ir.loops import Buffer, For, LoopProgram, Scope
from seer.runtime.target import Target

CHUNKS_PER_THREAD = 16
MAX_SHARES = 64  # of the iterations of a parallel loop; further threads help
# Before each thread's own memory. A core that walks through an array asks for what follows it ahead of
# time; were that written by another core, each would take lines away from the other again and again.
APART_BYTES = 32 << 10


@dataclass(frozen=True)
class ScratchLayout:
    """Where the buffers of a kernel lie in its scratch memory.

    Attributes:
        shared: byte offset of each SHARED buffer.
        private: byte offset of each THREAD buffer within its thread's part.
        scratch_bytes: size of the shared part.
        thread_scratch_bytes: size of each thread's part, which begins with APART_BYTES that nothing
            uses; the parts follow the shared one. 0 where threads have nothing of their own.
    """

    shared: dict[Buffer, int]
    private: dict[Buffer, int]
    scratch_bytes: int
    thread_scratch_bytes: int


def scratch_layout(program: LoopProgram) -> ScratchLayout:
    """Place the SHARED and THREAD buffers of a program one after another."""
    places: dict[Scope, dict[Buffer, int]] = {Scope.SHARED: {}, Scope.THREAD: {}}
    has_private = any(b.scope is Scope.THREAD for b in program.buffers)
    sizes = {Scope.SHARED: 0, Scope.THREAD: APART_BYTES if has_private else 0}
    for b in program.buffers:
        if b.scope in places:
            places[b.scope][b] = sizes[b.scope]
            sizes[b.scope] += align(b.size_bytes)
    return ScratchLayout(places[Scope.SHARED], places[Scope.THREAD], sizes[Scope.SHARED], sizes[Scope.THREAD])


def emit(program: LoopProgram, target: Target) -> str:
    """The LLVM module of a verified program, as text."""
    return _Module(program, target).text()


class _Module:
    def __init__(self, program: LoopProgram, target: Target) -> None:
        self.program = program
        self.target = target
        self.layout = scratch_layout(program)
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.n_parallel = 0
        self.args = [f"%arg{k}" for k in range(len(program.params))]

    def text(self) -> str:
        main = self._emitter(num_threads="%num_threads")
        main.emit(self.program.body)
        self.declarations |= main.declarations
        params = ", ".join(
            [*(f"ptr noalias {a}" for a in self.args), "ptr noalias %scratch", "i32 %num_threads"]
        )
        kernel = f"define void @{self.program.name}({params}) #0 {{\nentry:\n{main.text()}\n  ret void\n}}"
        if self.n_parallel:
            self.declarations["GOMP_parallel"] = "declare void @GOMP_parallel(ptr, ptr, i32, i32)"
            self.declarations["llvm.umax.i64"] = "declare i64 @llvm.umax.i64(i64, i64)"
            self.declarations["llvm.smin.i64"] = "declare i64 @llvm.smin.i64(i64, i64)"
            self.declarations["llvm.umin.i64"] = "declare i64 @llvm.umin.i64(i64, i64)"
            self.declarations["omp_get_thread_num"] = "declare i32 @omp_get_thread_num()"
            self.declarations["omp_get_num_threads"] = "declare i32 @omp_get_num_threads()"
        parts = [
            f'target triple = "{self.target.triple}"',
            *self.functions,
            kernel,
            *self.declarations.values(),
            f"attributes #0 = {{ nounwind {self._attributes()} }}",
        ]
        return "\n\n".join(parts) + "\n"

    def _attributes(self) -> str:
        out = [f'"target-cpu"="{self.target.cpu}"', f'"prefer-vector-width"="{self.target.vector_bytes * 8}"']
        if self.target.features:
            out.append(f'"target-features"="{self.target.features}"')
        return " ".join(out)

    def _emitter(self, num_threads: str) -> StatementEmitter:
        """An emitter with every buffer's address, at the start of a function that has the arguments."""
        e = StatementEmitter(self.target, lambda loop: self._parallel(e, loop, num_threads))
        self._set_bases(e, thread="0")
        return e

    def _set_bases(self, e: StatementEmitter, thread: str) -> None:
        for name, b in zip(self.args, self.program.params, strict=True):
            e.bases[b] = name
            e.depths[name] = 0
        e.depths["%scratch"] = 0
        for b, offset in self.layout.shared.items():
            e.bases[b] = e.hoisted(f"getelementptr i8, ptr %scratch, i64 {offset}", "%scratch")
        if not self.layout.private:
            return
        size, start = self.layout.thread_scratch_bytes, self.layout.scratch_bytes
        mine = e.hoisted(f"getelementptr i8, ptr %scratch, i64 {start}", "%scratch")
        if thread != "0":
            e.depths[thread] = 0
            skip = e.hoisted(f"mul i64 {thread}, {size}", thread)
            mine = e.hoisted(f"getelementptr i8, ptr {mine}, i64 {skip}", mine, skip)
        for b, offset in self.layout.private.items():
            e.bases[b] = e.hoisted(f"getelementptr i8, ptr {mine}, i64 {offset}", mine)

    def _parallel(self, outer: StatementEmitter, loop: For, num_threads: str) -> None:
        """Write a parallel loop's functions, and the call into `outer`."""
        extent = outer.scalar(loop.extent)
        name = f"{self.program.name}.p{self.n_parallel}"
        self.n_parallel += 1
        # The values of Lets round the loop; there are no loops round it.
        captured = {var: v for var, v in outer.env.items() if isinstance(v, str)}
        passed_types = [*("ptr" for _ in self.args), "ptr", *("i64" for _ in captured)]
        self._body_function(name, loop, outer, list(captured))
        self._team_function(name, passed_types)
        number = outer.fresh("P")[1:]
        values = [
            f"{t} {v}"
            for t, v in zip(passed_types, [*self.args, "%scratch", *captured.values()], strict=True)
        ]
        table = f"[{len(values) + 2} x i64]"
        data = f"%{number}.data"
        counters = f"%{number}.counters"
        outer.scopes[0].prelude.append(f"  {data} = alloca {table}, align 8")
        outer.scopes[0].prelude.append(f"  {counters} = alloca [{64 * MAX_SHARES} x i8], align 64")
        passed = ", ".join(values)
        for line in (
            f"%{number}.serial = icmp sle i32 {num_threads}, 1",
            f"br i1 %{number}.serial, label %{number}.one, label %{number}.many",
        ):
            outer.line(line)
        outer.start_block(f"{number}.one")
        outer.line(f"call void @{name}.body({passed}, i64 0, i64 {extent}, i64 0)")
        outer.line(f"br label %{number}.end")
        outer.start_block(f"{number}.many")
        for k, v in enumerate(values):
            outer.line(f"%{number}.s{k} = getelementptr i64, ptr {data}, i64 {k}")
            outer.line(f"store {v}, ptr %{number}.s{k}")
        outer.line(f"%{number}.sn = getelementptr i64, ptr {data}, i64 {len(values)}")
        outer.line(f"store i64 {extent}, ptr %{number}.sn")
        outer.line(f"%{number}.next = getelementptr i64, ptr {data}, i64 {len(values) + 1}")
        outer.line(f"store ptr {counters}, ptr %{number}.next")
        outer.line(f"br label %{number}.zero")
        outer.start_block(f"{number}.zero")
        for line in (  # volatile: a loop that LLVM recognised would become a call of memset
            f"%{number}.z = phi i64 [ 0, %{number}.many ], [ %{number}.z1, %{number}.zero ]",
            f"%{number}.za = getelementptr i8, ptr {counters}, i64 %{number}.z",
            f"store volatile i64 0, ptr %{number}.za",
            f"%{number}.z1 = add i64 %{number}.z, 64",
            f"%{number}.more = icmp ult i64 %{number}.z1, {64 * MAX_SHARES}",
            f"br i1 %{number}.more, label %{number}.zero, label %{number}.team",
        ):
            outer.line(line)
        outer.start_block(f"{number}.team")
        outer.line(f"call void @GOMP_parallel(ptr @{name}.team, ptr {data}, i32 {num_threads}, i32 0)")
        outer.line(f"br label %{number}.end")
        outer.start_block(f"{number}.end")
        outer.forget_loads(outer.stored(loop.body))

    def _body_function(self, name: str, loop: For, outer: StatementEmitter, captured: list[str]) -> None:
        e = StatementEmitter(self.target)
        self._set_bases(e, thread="%thread")
        e.ranges.update(outer.ranges)
        e.env.update(outer.env)
        for k, var in enumerate(captured):
            e.env[var] = f"%let{k}"
        for name_of_argument in ("%begin", "%finish", *(f"%let{k}" for k in range(len(captured)))):
            e.depths[name_of_argument] = 0
        e.serial(loop.var, "%begin", "%finish", loop.body, needs_guard=True)
        lets = (f"i64 %let{k}" for k in range(len(captured)))
        params = ", ".join([*(f"ptr noalias {a}" for a in self.args), "ptr noalias %scratch", *lets])
        self.functions.append(
            f"define internal void @{name}.body({params}, i64 %begin, i64 %finish, i64 %thread) "
            f"noinline #0 {{\nentry:\n{e.text()}\n  ret void\n}}"
        )
        self.declarations |= e.declarations

    def _team_function(self, name: str, types: list[str]) -> None:
        """One thread's work: its own share of the iterations chunk by chunk, then what others have left.

        Shares are contiguous and the same for every loop of a model, so that what a thread has written
        is in its own cache when the next loop reads it. On a machine whose cores are not equally fast
        (shared with others) the quicker ones take over chunks of the slower ones' shares. A chunk is a
        small part of a share, or a single iteration.
        """
        n = len(types)
        lines = [f"define internal void @{name}.team(ptr %data) #0 {{", "entry:"]
        for k, t in enumerate(types):
            lines += [
                f"  %s{k} = getelementptr i64, ptr %data, i64 {k}",
                f"  %p{k} = load {t}, ptr %s{k}",
            ]
        passed = ", ".join(f"{t} %p{k}" for k, t in enumerate(types))
        lines += [
            f"  %sn = getelementptr i64, ptr %data, i64 {n}",
            "  %extent = load i64, ptr %sn",
            f"  %table = getelementptr i64, ptr %data, i64 {n + 1}",
            "  %counters = load ptr, ptr %table",
            "  %t32 = call i32 @omp_get_thread_num()",
            "  %n32 = call i32 @omp_get_num_threads()",
            "  %t = sext i32 %t32 to i64",
            "  %n = sext i32 %n32 to i64",
            f"  %shares = call i64 @llvm.umin.i64(i64 %n, i64 {MAX_SHARES})",
            f"  %parts = mul i64 %shares, {CHUNKS_PER_THREAD}",
            "  %part = udiv i64 %extent, %parts",
            "  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)",
            "  br label %share",
            "share:",
            "  %k = phi i64 [ 0, %entry ], [ %k1, %empty ]",
            "  %tk = add i64 %t, %k",
            "  %owner = urem i64 %tk, %shares",
            "  %low = mul i64 %extent, %owner",
            "  %first = udiv i64 %low, %shares",
            "  %high = add i64 %low, %extent",
            "  %last = udiv i64 %high, %shares",
            "  %at = mul i64 %owner, 64",
            "  %next = getelementptr i8, ptr %counters, i64 %at",
            "  br label %take",
            "take:",
            "  %taken = atomicrmw add ptr %next, i64 %chunk monotonic",
            "  %begin = add i64 %first, %taken",
            "  %any = icmp slt i64 %begin, %last",
            "  br i1 %any, label %work, label %empty",
            "work:",
            "  %end = add i64 %begin, %chunk",
            "  %finish = call i64 @llvm.smin.i64(i64 %end, i64 %last)",
            f"  call void @{name}.body({passed}, i64 %begin, i64 %finish, i64 %t)",
            "  br label %take",
            "empty:",
            "  %k1 = add i64 %k, 1",
            "  %more = icmp ult i64 %k1, %shares",
            "  br i1 %more, label %share, label %done",
            "done:",
            "  ret void",
            "}",
        ]
        self.functions.append("\n".join(lines))
