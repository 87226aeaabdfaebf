"""The one native entry point of a compiled model: LLVM IR that calls every kernel in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Union


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an array lies while the model runs.

    Attributes:
        kind: a table of pointers that the caller passes, or the arena.
        index: the position in the table; for the arena, the offset in bytes.
        stride: bytes to the next slice, in a loop; 0 if all its turns have the same address.
    """

    kind: Literal["inputs", "outputs", "constants", "arena"]
    index: int
    stride: int = 0


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


@dataclass(frozen=True, slots=True)
class Loop:
    """Call some kernels `count` times, each time on the next slice of the slots that have a stride."""

    count: int
    calls: tuple[KernelCall, ...]


Step = Union[KernelCall, Copy, Loop]


_PARAMS = "ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, i32 %num_threads"


def model_entry(name: str, steps: Sequence[Step], scratch_offset: int) -> str:
    """The LLVM IR text of

        void name(void **inputs, void **outputs, void **constants, char *arena, int32_t num_threads)

    The kernels' shared scratch begins `scratch_offset` bytes into the arena.
    """
    entry = _Entry()
    for number, step in enumerate(steps):
        match step:
            case KernelCall():
                entry.call(step)
            case Copy(source, destination, size_bytes):
                to, frm = entry.pointer(destination), entry.pointer(source)
                entry.body.append(
                    f"  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {frm}, i64 {size_bytes}, i1 false)"
                )
            case Loop():
                entry.loop(step, number)
    return "\n".join(
        (
            f"define void @{name}({_PARAMS}) {{",
            "entry:",
            f"  %scratch = getelementptr i8, ptr %arena, i64 {scratch_offset}",
            *entry.setup,
            *entry.body,
            "  ret void",
            "}",
            *_declarations(steps),
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
            "",
        )
    )


@dataclass
class _Entry:
    """The function's instructions; those in `setup` come first."""

    setup: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    block: str = "entry"  # the one that `body` ends in
    _pointers: dict[Slot, str] = field(default_factory=dict)

    def pointer(self, slot: Slot) -> str:
        """The address of a slot, of its first slice if it has a stride."""
        first = replace(slot, stride=0)
        if first not in self._pointers:
            self._pointers[first] = f"%{slot.kind}_{slot.index}"
            self.setup += _address(first, self._pointers[first])
        return self._pointers[first]

    def call(self, call: KernelCall, moved: Mapping[Slot, str] | None = None) -> None:
        """A call of a kernel; `moved` has the addresses of slots with a stride."""
        passed = ", ".join(f"ptr {moved[a] if moved and a in moved else self.pointer(a)}" for a in call.args)
        self.body.append(f"  call void @{call.symbol}({passed}, ptr %scratch, i32 %num_threads)")

    def loop(self, loop: Loop, number: int) -> None:
        """A block that runs `count` times."""
        head, after, turn = f"loop{number}", f"after{number}", f"%turn{number}"
        self.body += [
            f"  br label %{head}",
            f"{head}:",
            f"  {turn} = phi i64 [ 0, %{self.block} ], [ {turn}.next, %{head} ]",
        ]
        moved: dict[Slot, str] = {}
        for slot in dict.fromkeys(a for c in loop.calls for a in c.args if a.stride):
            moved[slot] = f"{self.pointer(slot)}.{number}.{slot.stride}"
            self.body += [
                f"  {moved[slot]}.by = mul i64 {turn}, {slot.stride}",
                f"  {moved[slot]} = getelementptr i8, ptr {self.pointer(slot)}, i64 {moved[slot]}.by",
            ]
        for call in loop.calls:
            self.call(call, moved)
        self.body += [
            f"  {turn}.next = add i64 {turn}, 1",
            f"  {turn}.more = icmp ult i64 {turn}.next, {loop.count}",
            f"  br i1 {turn}.more, label %{head}, label %{after}",
            f"{after}:",
        ]
        self.block = after


def num_calls(steps: Sequence[Step]) -> int:
    """Kernel calls and copies of one run."""
    return sum(s.count * len(s.calls) if isinstance(s, Loop) else 1 for s in steps)


def _address(slot: Slot, result: str) -> list[str]:
    """Instructions that put the slot's address into `result`."""
    if slot.kind == "arena":
        return [f"  {result} = getelementptr i8, ptr %arena, i64 {slot.index}"]
    return [
        f"  {result}.at = getelementptr ptr, ptr %{slot.kind}, i64 {slot.index}",
        f"  {result} = load ptr, ptr {result}.at",
    ]


def _declarations(steps: Sequence[Step]) -> list[str]:
    calls = [
        c for s in steps for c in (s.calls if isinstance(s, Loop) else (s,)) if isinstance(c, KernelCall)
    ]
    counts = {c.symbol: len(c.args) for c in calls}
    return [f"declare void @{symbol}({'ptr, ' * n}ptr, i32)" for symbol, n in counts.items()]
