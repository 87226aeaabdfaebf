"""seer: a tensor compiler that tunes neural networks for the machine at hand.

    model = seer.zoo.resnet18(batch=1)                  # or a seer.Graph, or seer.from_onnx("model.onnx")
    seer.tune(model, trials=400, records="tuned.db")    # search for fast code; optional
    run = seer.compile(model, records="tuned.db")       # machine code for this CPU
    y = run(x)                                          # NumPy in, NumPy out

The way through, in order of the folders:

    seer.graph     what to compute: operators, passes, partition into subgraphs
    seer.ir        how it is written down: tensor expressions, sketches, loop programs
    seer.codegen   sketch + parameters -> loop program -> LLVM -> machine code
    seer.runtime   build and run in worker processes, records, the compiled model
    seer.search    which parameters are fast: cost models, evolution, schedulers
    seer.driver    `tune` and `compile`, the tables of contents of all this
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seer.version import __version__

if TYPE_CHECKING:
    from seer import errors, ops, zoo
    from seer.driver import TuneResult, compile, tune
    from seer.frontend.onnx import from_onnx
    from seer.graph.graph import Graph, Value
    from seer.runtime.cuda.model import CudaModel
    from seer.runtime.model import CompiledModel
    from seer.runtime.target import Target

__all__ = [
    "CompiledModel",
    "CudaModel",
    "Graph",
    "Target",
    "TuneResult",
    "Value",
    "__version__",
    "compile",
    "errors",
    "from_onnx",
    "ops",
    "tune",
    "zoo",
]

# Loaded at first use: worker processes import `seer` too and must start fast, without XGBoost.
_HOME = {
    "CompiledModel": "seer.runtime.model",
    "CudaModel": "seer.runtime.cuda.model",
    "Graph": "seer.graph.graph",
    "Target": "seer.runtime.target",
    "TuneResult": "seer.driver",
    "Value": "seer.graph.graph",
    "compile": "seer.driver",
    "from_onnx": "seer.frontend.onnx",
    "tune": "seer.driver",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "ops", "zoo"):
        return importlib.import_module(f"seer.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'seer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
