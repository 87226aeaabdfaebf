"""The arrays of one call of a model, bound to its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seer.codegen.artifact import ArgSpec
from seer.dtypes import numpy_dtype
from seer.errors import UserError


def bind_inputs(
    model: str, inputs: Sequence[ArgSpec], arrays: Sequence[Any], named: Mapping[str, Any]
) -> list[np.ndarray]:
    """Each input, checked, as a C-contiguous array.

    Args:
        model: its name, for messages.
        inputs: what the model takes.
        arrays: the first inputs, by position; any strides.
        named: the other inputs, by name.

    Raises:
        UserError: if an input is missing, unknown, or of another shape or dtype.
    """
    names = [s.name for s in inputs]
    wanted = ", ".join(map(describe, inputs)) or "none"
    if len(arrays) > len(names):
        raise UserError(f"model {model}: {len(arrays)} inputs given; it takes {wanted}")
    given = dict(zip(names, arrays, strict=False))
    for name, array in named.items():
        if name not in names:
            raise UserError(f"model {model} has no input {name!r}; it takes {wanted}")
        if name in given:
            raise UserError(f"model {model}: input {name!r} is given by position and by name")
        given[name] = array
    missing = [n for n in names if n not in given]
    if missing:
        raise UserError(f"model {model}: input {missing[0]!r} is missing; it takes {wanted}")
    return [_check(model, s, given[s.name]) for s in inputs]


def describe(spec: ArgSpec) -> str:
    """Name, dtype and shape, as a signature has them."""
    return f"{spec.name}: {spec.dtype}{list(spec.shape)}"


def _check(model: str, spec: ArgSpec, value: Any) -> np.ndarray:
    wanted = numpy_dtype(spec.dtype)
    try:
        array = np.asarray(value)
        # Python numbers and lists take the input's dtype if that loses nothing; an array must have it.
        if not hasattr(value, "__array__") and (
            array.size == 0 or np.can_cast(array.dtype, wanted, "same_kind")
        ):
            array = np.asarray(value, wanted)
    except (TypeError, ValueError, OverflowError) as e:
        raise UserError(f"model {model}: input {describe(spec)} is not an array: {e}") from e
    if array.dtype != wanted or array.shape != spec.shape:
        raise UserError(
            f"model {model}: input {spec.name!r} must be {spec.dtype}{list(spec.shape)}, "
            f"found {array.dtype}{list(array.shape)}"
        )
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise UserError(f"model {model}: input {spec.name!r} has masked elements; fill them first")
    return np.require(array, requirements=["C", "A"])
