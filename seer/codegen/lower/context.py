"""What lowering knows as it goes: where tensors live, what is inlined, ranges of loop variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seer.errors import ScheduleError
from seer.ir.dag import compute_op, expand
from seer.ir.expr import Done, Expr, Load, Read, Var, children, reads, rebuild, substitute
from seer.ir.loops import Buffer, Scope
from seer.ir.simplify import Range, simplify
from seer.ir.sketch import Attached, Nest, Pack, Sketch, trip_counts
from seer.ir.tensor import ComputeOp
from seer.runtime.target import Target

Override = Callable[[Read], Expr | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Element t[i] is at buffer[i - base]; an empty base is zero."""

    buffer: Buffer
    base: tuple[Expr, ...] = ()

    def load(self, indices: tuple[Expr, ...]) -> Load:
        return Load(self.buffer, self.at(indices))

    def at(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The buffer indices of a tensor element."""
        if not self.base:
            return indices
        return tuple(i - b for i, b in zip(indices, self.base, strict=True))


@dataclass(frozen=True, slots=True)
class PackedPlace:
    """A buffer whose dimensions are the loops of a Pack."""

    buffer: Buffer


class Context:
    """Mutable state of one `lower`."""

    def __init__(self, sketch: Sketch, values: dict[str, int], target: Target) -> None:
        self.sketch = sketch
        self.values = values
        self.target = target
        self.params: list[Buffer] = []
        self.buffers: list[Buffer] = []
        self.places: dict[str, Place] = {}
        self.packed: dict[Pack, PackedPlace] = {}
        self.inlined: set[str] = set()
        self.ranges: dict[str, Range] = {}
        self._counter = 0

    def fresh(self, hint: str, extent: int) -> Var:
        """A new variable over range(extent)."""
        self._counter += 1
        var = Var(f"{hint}_{self._counter}")
        self.ranges[var.name] = (0, max(extent - 1, 0))
        return var

    def new_buffer(self, hint: str, shape: tuple[int, ...], dtype: str, scope: Scope) -> Buffer:
        """A new buffer of this kernel."""
        self._counter += 1
        buffer = Buffer(f"{hint}_{scope.value}{self._counter}", shape, dtype, scope)
        self.buffers.append(buffer)
        return buffer

    def trips(self, nest: Nest, axis: str) -> tuple[int, ...]:
        """Trip counts of each level of an axis of a nest over its whole extent."""
        split = nest.split(axis)
        return trip_counts(split.extent, tuple(self.values[p] for p in split.params))

    def location(self, a: Attached) -> int:
        """Where an attached nest is computed for these values."""
        return a.depth if a.param is None else self.values[a.param]

    def op(self, name: str) -> ComputeOp:
        return self.sketch.dag.op(name)

    def expand(self, e: Expr) -> Expr:
        """`e` with the reads of inlined stages replaced by what they compute."""
        return expand(e, self.inlined)

    def count_reads(self, nest: Nest, tensor: str) -> int:
        """How often a nest's main body reads a tensor, inlined stages between expanded."""
        return sum(r.tensor.name == tensor for r in reads(self.expand(self.op(nest.stage).body)))

    def resolve(self, e: Expr, override: Override | None = None) -> Expr:
        """`e` at loop level: inlined stages expanded, reads turned into loads, indices simplified.

        `override` may answer a read itself (an accumulator, a packed copy); it is asked first.
        A node that is reached by several ways is resolved once and stays shared.
        """
        return self._resolve(e, override, {}, {})

    def _resolve(self, e: Expr, override: Override | None, done: Done, simple: Done) -> Expr:
        known = done.get(id(e))
        if known is None:  # holds e: an id must not be used again
            known = done[id(e)] = (e, self._resolve_node(e, override, done, simple))
        return known[1]

    def _resolve_node(self, e: Expr, override: Override | None, done: Done, simple: Done) -> Expr:
        if isinstance(e, Read):
            answer = override(e) if override is not None else None
            if answer is not None:
                return answer
            if e.tensor.name in self.inlined:
                op = compute_op(e.tensor)
                body = substitute(op.body, {a.name: i for a, i in zip(op.axes, e.indices, strict=True)})
                return self._resolve(body, override, done, simple)
            indices = tuple(self._resolve(i, override, done, simple) for i in e.indices)
            place = self.places.get(e.tensor.name)
            if place is None:
                raise ScheduleError(
                    f"sketch {self.sketch.key}: {e.tensor.name} is read before it is computed"
                )
            return Load(place.buffer, tuple(simplify(i, self.ranges, simple) for i in place.at(indices)))
        kids = children(e)
        new = tuple(self._resolve(k, override, done, simple) for k in kids)
        if any(n is not k for n, k in zip(new, kids, strict=True)):
            e = rebuild(e, new)
        if e.dtype in ("bool", "int64") and kids:
            return simplify(e, self.ranges, simple)
        return e
