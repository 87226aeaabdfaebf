"""The element types of seer and what each is called in NumPy, LLVM and C.

float16 and bfloat16 are for storage only: values are moved as they are and widened to float32 before
anything is computed. NumPy has no bfloat16, so an array of it is one of uint16, the upper halves of
float32 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from seer.errors import UserError, shown

Kind = Literal["float", "int", "bool", "storage"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: its size in bytes and its names in each language."""

    name: str
    kind: Kind
    size_bytes: int
    llvm: str
    c: str


_TABLE = {
    d.name: d
    for d in (
        DType("float32", "float", 4, "float", "float"),
        DType("float64", "float", 8, "double", "double"),
        DType("int32", "int", 4, "i32", "int"),
        DType("int64", "int", 8, "i64", "long long"),
        # Stored as one byte (0 or 1), as NumPy does; an i1 only inside expressions.
        DType("bool", "bool", 1, "i8", "unsigned char"),
        # Bit patterns, until they are converted.
        DType("float16", "storage", 2, "i16", "unsigned short"),
        DType("bfloat16", "storage", 2, "i16", "unsigned short"),
    )
}

NARROW = tuple(d.name for d in _TABLE.values() if d.kind == "storage")


def dtype(name: object) -> DType:
    """Return the DType called `name` (a string, NumPy dtype or NumPy scalar type).

    Raises:
        UserError: if seer has no such element type.
    """
    try:
        if name is None:  # NumPy takes it for float64
            raise TypeError
        key = name if isinstance(name, str) else np.dtype(name).name  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise UserError(f"a dtype is one of {', '.join(_TABLE)}, given {shown(name)}") from None
    try:
        return _TABLE[key]
    except KeyError:
        raise UserError(f"unknown dtype {key!r}; seer has {', '.join(_TABLE)}") from None


def is_narrow(name: str) -> bool:
    """Whether it is a float of 16 bits, which is for storage only."""
    return name in NARROW


def is_float(name: str) -> bool:
    """Whether it is a float that can be computed with."""
    return name in ("float32", "float64")


def promote(a: str, b: str) -> str:
    """Return the name of the type that holds values of both `a` and `b`, as NumPy decides it."""
    if a == b:
        return a
    return dtype(np.promote_types(a, b)).name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """What NumPy keeps elements of a type in: uint16 for bfloat16."""
    return np.dtype("uint16" if name == "bfloat16" else name)


def convert(array: Any, source: str, to: str) -> np.ndarray:
    """An array of type `source` as one of type `to`, as machine code converts it.

    To 16 bits it rounds to the nearest, ties to even, from float32; what is too large becomes infinite
    and a NaN stays one.
    """
    given = np.asarray(array)
    if source == to:
        return given
    with np.errstate(all="ignore"):
        if source == "bfloat16":
            given = (given.astype(np.uint32) << 16).view(np.float32)
        if is_narrow(to):
            given = given.astype(np.float32)
        return _to_bfloat16(given) if to == "bfloat16" else given.astype(to)


def _to_bfloat16(array: np.ndarray) -> np.ndarray:
    bits = np.asarray(array, np.float32).view(np.uint32)
    is_odd = (bits >> 16) & 1
    rounded = (bits + np.uint32(0x7FFF) + is_odd) >> 16  # a NaN may wrap round: it is replaced
    quiet = (bits >> 16) | np.uint32(0x40)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, quiet, rounded).astype(np.uint16)
