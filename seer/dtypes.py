"""The element types of seer and what each is called in NumPy, LLVM and C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from seer.errors import UserError

Kind = Literal["float", "int", "bool"]


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
    )
}


def dtype(name: object) -> DType:
    """Return the DType called `name` (a string, NumPy dtype or NumPy scalar type).

    Raises:
        UserError: if seer has no such element type.
    """
    key = name if isinstance(name, str) else np.dtype(name).name  # type: ignore[call-overload]
    try:
        return _TABLE[key]
    except KeyError:
        raise UserError(f"unknown dtype {key!r}; seer has {', '.join(_TABLE)}") from None


def promote(a: str, b: str) -> str:
    """Return the name of the type that holds values of both `a` and `b`, as NumPy decides it."""
    if a == b:
        return a
    return dtype(np.promote_types(a, b)).name
