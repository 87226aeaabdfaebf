"""What is known from shapes alone: it becomes arrays, from which more is folded."""

from __future__ import annotations

import math

import numpy as np

from seer.frontend.onnx.registry import Call, Result, importer


@importer("Shape")
def _shape(c: Call) -> Result:
    shape = np.array(c.value(0).shape, np.int64)
    return shape[c.attrs.get("start", 0) : c.attrs.get("end")]


@importer("Size")
def _size(c: Call) -> Result:
    return np.array(math.prod(c.value(0).shape), np.int64)
