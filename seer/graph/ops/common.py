"""What shape rules and definitions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.errors import GraphError, shown
from seer.graph.registry import Typed
from seer.ir.expr import Expr, ExprLike, all_of, as_expr, select
from seer.ir.tensor import Tensor, compute

Shape = tuple[int, ...]


def require(holds: object, message: str) -> None:
    """Raise GraphError unless a condition holds."""
    if not holds:
        raise GraphError(message)


def require_rank(x: Typed, rank: int, what: str) -> None:
    """Raise GraphError unless a value has `rank` dimensions; `what` names them."""
    require(len(x.shape) == rank, f"needs {rank} dimensions {what}, found {list(x.shape)}")


def require_float(x: Typed, what: str = "input") -> None:
    """Raise GraphError unless a value holds floats."""
    require(x.dtype.startswith("float"), f"{what} must be float32 or float64, found {x.dtype}; cast it first")


def require_same_dtype(*values: Typed) -> None:
    """Raise GraphError unless all values have one dtype."""
    found = sorted({v.dtype for v in values})
    require(len(found) == 1, f"the inputs must have one dtype, found {' and '.join(found)}; cast first")


MAX_STEP = 2**31 - 1  # of strides, dilations, kernels and padding


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def items_of(value: Any) -> list[Any] | None:
    """The elements of a sequence or an array; None if it is neither."""
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim else None
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return list(value) if is_sequence else None


def wholes(value: Any, what: str) -> tuple[int, ...]:
    """A sequence of whole numbers as ints."""
    items = items_of(value)
    if items is None or not all(map(is_whole, items)):
        raise GraphError(f"{what} must be a sequence of whole numbers, such as (2, 1), given {shown(value)}")
    return tuple(map(int, items))


def flag(value: Any, what: str) -> bool:
    """True or False; 1 and 0 are, too."""
    good = isinstance(value, bool | np.bool_) or (is_whole(value) and value in (0, 1))
    require(good, f"{what} must be True or False, given {shown(value)}")
    return bool(value)


def number(value: Any, what: str, low: float = -math.inf) -> float | int:
    """A finite number >= low, as Python's own."""
    good = is_whole(value) or isinstance(value, float | np.floating)
    try:
        good = good and math.isfinite(value) and value >= low
    except OverflowError:  # it is no float
        good = False
    limit = "" if low == -math.inf else f" >= {low}"
    require(good, f"{what} must be a number{limit}, given {shown(value)}")
    return int(value) if is_whole(value) else float(value)


def pair(value: Any, what: str, low: int = 1) -> tuple[int, int]:
    """A number or a pair of them as a pair of ints >= low."""
    both = _several(value, 2)
    good = len(both) == 2 and all(low <= v <= MAX_STEP for v in both)
    require(
        good,
        f"{what} must be a whole number >= {low} (and < 2^31) or a pair of them, given {shown(value)}",
    )
    return both[0], both[1]


def _several(value: Any, count: int) -> tuple[int, ...]:
    """A whole number `count` times, or the elements of a sequence of them; nothing if it is neither."""
    if is_whole(value):
        return (int(value),) * count
    items = items_of(value) or []
    return tuple(map(int, items)) if all(map(is_whole, items)) else ()


def pads_of(
    padding: Any, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right).

    `padding` is a number, a pair (rows, columns), all four, or "same": the output has ceil(size /
    stride) positions, an odd element of padding goes to the end.
    """
    if isinstance(padding, str) and padding == "same":
        total = [
            max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        return total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2
    values = _several(padding, 4)
    values = values * 2 if len(values) == 2 else values
    require(
        len(values) == 4 and all(0 <= v <= MAX_STEP for v in values),
        "padding must be n, (rows, columns), (top, left, bottom, right) or 'same', of whole numbers >= 0 "
        f"(and < 2^31), given {shown(padding)}",
    )
    return values[0], values[1], values[2], values[3]


def axis_of(axis: Any, rank: int, what: str = "axis") -> int:
    """An axis counted from either end as one counted from the front."""
    good = is_whole(axis) and -rank <= axis < rank
    require(good, f"{what} must be a whole number in {-rank}..{rank - 1}, given {shown(axis)}")
    return int(axis) % rank


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes (None: all) as sorted, distinct numbers counted from the front."""
    if axes is None:
        return tuple(range(rank))
    given = _several(axes, 1)
    require(
        given or items_of(axes) == [],
        f"axes must be a whole number, several of them, or None for all, given {shown(axes)}",
    )
    out = sorted(axis_of(a, rank, "axes") for a in given)
    require(len(set(out)) == len(out), f"axes repeat: {shown(axes)}")
    return tuple(out)


def broadcast_shape(*shapes: Shape) -> Shape:
    """The common shape by NumPy's rule."""
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        shown = " and ".join(str(list(s)) for s in shapes)
        raise GraphError(
            f"shapes {shown} do not broadcast: from the last dimension on, extents must be equal or 1"
        ) from None


def broadcast_read(t: Tensor, indices: Sequence[ExprLike]) -> Expr:
    """The element of `t` that broadcasting shows at `indices` of the common shape."""
    own = list(indices)[len(indices) - len(t.shape) :]
    return t[tuple(as_expr(0) if n == 1 else i for i, n in zip(own, t.shape, strict=True))]


def padded(x: Tensor, before: Sequence[int], shape: Sequence[int], value: float | int, name: str) -> Tensor:
    """`x` in a larger tensor of `shape`, from `before` on, with `value` round it; x itself if it fills it."""
    if tuple(shape) == x.shape and not any(before):
        return x

    def body(*i: Expr) -> Expr:
        tests = []
        for k, (n, b) in enumerate(zip(x.shape, before, strict=True)):
            if b > 0:
                tests.append(i[k] >= b)
            if b + n < shape[k]:
                tests.append(i[k] < b + n)
        return select(all_of(*tests), x[tuple(a - b for a, b in zip(i, before, strict=True))], value)

    return compute(shape, body, name)
