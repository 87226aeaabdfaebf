"""ONNX models as seer graphs.

`read.py` turns the file into nodes with plain attributes, folds what is known ahead, and calls for every
other node the importer that `registry.py` knows; the other files hold the importers, by subject.
"""

from seer.frontend.onnx import elementwise, layers, moves, reductions, shapes  # noqa: F401  (they register)
from seer.frontend.onnx.read import from_onnx
from seer.frontend.onnx.registry import importer, supported

__all__ = ["from_onnx", "importer", "supported"]
