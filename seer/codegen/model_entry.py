"""The one native entry point of a compiled model: LLVM IR that calls every kernel in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Union


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an array lies while the model runs.

    Attributes:
        kind: a table of pointers that the caller passes, or the arena.
        index: the position in the table; for the arena, the offset in bytes.
    """

    kind: Literal["inputs", "outputs", "constants", "arena"]
    index: int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Call the kernel `symbol` on arrays, the output last."""

    symbol: str
    args: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `size_bytes` bytes; the two arrays do not overlap."""

    source: Slot
    destination: Slot
    size_bytes: int


Step = Union[KernelCall, Copy]


_PARAMS = "ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, i32 %num_threads"


def model_entry(name: str, steps: Sequence[Step], scratch_offset: int) -> str:
    """The LLVM IR text of

        void name(void **inputs, void **outputs, void **constants, char *arena, int32_t num_threads)

    The kernels' shared scratch begins `scratch_offset` bytes into the arena.
    """
    pointers: dict[Slot, str] = {}
    setup: list[str] = []
    body: list[str] = []

    def pointer(slot: Slot) -> str:
        if slot not in pointers:
            pointers[slot] = f"%{slot.kind}_{slot.index}"
            setup.extend(_address(slot, pointers[slot]))
        return pointers[slot]

    for step in steps:
        match step:
            case KernelCall(symbol, args):
                passed = ", ".join(f"ptr {pointer(a)}" for a in args)
                body.append(f"  call void @{symbol}({passed}, ptr %scratch, i32 %num_threads)")
            case Copy(source, destination, size_bytes):
                to, frm = pointer(destination), pointer(source)
                body.append(
                    f"  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {frm}, i64 {size_bytes}, i1 false)"
                )
    return "\n".join(
        (
            f"define void @{name}({_PARAMS}) {{",
            f"  %scratch = getelementptr i8, ptr %arena, i64 {scratch_offset}",
            *setup,
            *body,
            "  ret void",
            "}",
            *_declarations(steps),
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
            "",
        )
    )


def _address(slot: Slot, result: str) -> list[str]:
    """Instructions that put the slot's address into `result`."""
    if slot.kind == "arena":
        return [f"  {result} = getelementptr i8, ptr %arena, i64 {slot.index}"]
    return [
        f"  {result}.at = getelementptr ptr, ptr %{slot.kind}, i64 {slot.index}",
        f"  {result} = load ptr, ptr {result}.at",
    ]


def _declarations(steps: Sequence[Step]) -> list[str]:
    counts = {s.symbol: len(s.args) for s in steps if isinstance(s, KernelCall)}
    return [f"declare void @{symbol}({'ptr, ' * n}ptr, i32)" for symbol, n in counts.items()]
