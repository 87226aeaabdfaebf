"""Other systems: used where they are installed, named where they are not.

Each is made ready outside the timed region: the model compiled or its weights laid out, the inputs in
the layout that it takes, its outputs in memory of its own. What is timed is one call that computes all
outputs in float32.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import seer
from benchmarks.engines import Run, onnxruntime_run, openvino_run
from benchmarks.onnx_models import OnnxModel, to_onnx
from benchmarks.torch_models import program_of, torch_runner

PEERS = ("torch", "onnxruntime", "openvino")


@dataclass
class Modules:
    """The peers that are asked for and installed, by name; tells once of each that is not."""

    names: Sequence[str] = PEERS
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = {n: m for n in self.names if (m := optional(n)) is not None}
        readers = {"onnxruntime", "openvino"} & self.found.keys()
        if readers and optional("onnx") is None:  # nothing to write their models with
            for name in readers:
                del self.found[name]

    def limit_threads(self, threads: int) -> None:
        """Let NumPy and torch use so many threads from now on; the others are told when they compile."""
        limit_threads(threads, self.found.get("torch"))

    def runs(
        self,
        graph: seer.Graph,
        feed: Mapping[str, np.ndarray],
        threads: int,
        torch_form: Callable[[Any], Any] | None = None,
    ) -> dict[str, Run]:
        """Each peer ready to run a graph; one that cannot is left out with a notice.

        Args:
            graph: what to run.
            feed: its inputs.
            threads: how many threads to use.
            torch_form: a better way to write the graph in torch than operator by operator.
        """
        out: dict[str, Run] = {}
        models: list[OnnxModel] = []
        for name, module in self.found.items():
            try:
                if name == "torch":
                    call = (
                        torch_form(module)
                        if torch_form
                        else torch_runner(module, program_of(module, graph), feed)
                    )
                    out[name] = Run(call, _torch_outputs)
                    continue
                models = models or onnx_forms(graph)
                make = onnxruntime_run if name == "onnxruntime" else openvino_run
                out[name] = fastest([make(module, m.data, m.feed(feed), threads, m.outputs) for m in models])
            except Exception as e:  # whatever a peer raises, the others can still be compared
                print(f"{graph.name}: {name} is skipped: {type(e).__name__}: {e}", file=sys.stderr)
        return out


def onnx_forms(graph: seer.Graph) -> list[OnnxModel]:
    """The ONNX model of a graph, and where it has channels-last images also with ONNX's own order."""
    turned = to_onnx(graph, is_nchw=True)
    same = not turned.nchw_inputs and not turned.nchw_outputs
    return [turned] if same else [turned, to_onnx(graph)]


def fastest(runs: Sequence[Run], calls: int = 5) -> Run:
    """The run that is the fastest by a few calls: which layout suits a system, it knows best itself."""

    def seconds(run: Run) -> float:
        run.call()
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            run.call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return runs[0] if len(runs) == 1 else min(runs, key=seconds)


def _torch_outputs(out: Any) -> list[np.ndarray]:
    return [t.numpy() for t in (out if isinstance(out, tuple | list) else [out])]


def optional(name: str) -> Any:
    """The module called `name`, or None with a notice."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed: skipped", file=sys.stderr)
        return None


def limit_threads(threads: int, torch: Any = None) -> None:
    """Let NumPy (and torch) use so many threads from now on.

    Raises:
        SystemExit: if threadpoolctl is missing, without which NumPy's threads cannot be set.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise SystemExit("the benchmarks need threadpoolctl: pip install 'seer[bench]'") from None
    threadpool_limits(threads, "blas")
    if torch is not None:
        torch.set_num_threads(threads)
