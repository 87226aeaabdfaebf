"""Loop programs as readable text."""

from __future__ import annotations

from collections.abc import Iterator

from seer.ir.dag import expr_text
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

_SHORT = {
    "float32": "f32",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
    "float16": "f16",
    "bfloat16": "bf16",
}


def print_program(program: LoopProgram) -> str:
    """The whole program, one statement a line."""
    params = ", ".join(_declare(b) for b in program.params)
    lines = [f"kernel {program.name}({params}):"]
    lines += [f"  {b.scope.value} {_declare(b)}" for b in program.buffers if b.scope is not Scope.ARG]
    lines += ["  " + line for line in print_stmt(program.body)]
    return "\n".join(lines)


def _declare(b: Buffer) -> str:
    return f"{b.name}: {_SHORT[b.dtype]}[{', '.join(map(str, b.shape))}]"


def print_stmt(s: Stmt) -> Iterator[str]:
    """The lines of a statement."""
    match s:
        case Seq(()):
            yield "pass"
        case Seq(stmts):
            for k in stmts:
                yield from print_stmt(k)
        case For(var, extent, kind, body):
            word = "for" if kind is LoopKind.SERIAL else kind.value
            yield f"{word} {var} in {expr_text(extent)}:"
            yield from _indented(body)
        case Let(var, value, body):
            yield f"{var} = {expr_text(value)}"
            yield from print_stmt(body)
        case If(cond, then, orelse):
            yield f"if {expr_text(cond)}:"
            yield from _indented(then)
            if orelse is not None:
                yield "else:"
                yield from _indented(orelse)
        case Store(buffer, indices, value):
            yield f"{buffer.name}[{', '.join(map(expr_text, indices))}] = {expr_text(value)}"
        case Prefetch(buffer, indices, ahead):
            yield f"prefetch {buffer.name}[{', '.join(map(expr_text, indices))}] + {expr_text(ahead)}"
        case Exchange(buffer, indices, value, mask):
            at = ", ".join(map(expr_text, indices))
            yield f"{buffer.name}[{at}] = {expr_text(value)} of thread ^ {mask}"
        case Mma():
            a, b, acc = (f"{x.name}[{', '.join(map(expr_text, at))}]" for x, at, _ in s.parts)
            yield f"{acc} += {a} x {b}"
        case StartCopy(buffer, indices, value):
            yield f"{buffer.name}[{', '.join(map(expr_text, indices))}] = later {expr_text(value)}"
        case CommitCopies():
            yield "commit copies"
        case WaitForCopies(pending):
            yield f"wait for copies but {pending}"
        case Sync():
            yield "sync"


def _indented(s: Stmt) -> Iterator[str]:
    for line in print_stmt(s):
        yield "  " + line
