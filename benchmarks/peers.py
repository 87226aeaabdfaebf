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
from benchmarks.onnx_models import OnnxModel, to_onnx
from benchmarks.torch_models import program_of, torch_runner

PEERS = ("torch", "onnxruntime", "openvino")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """A system ready to run one model on one set of inputs.

    Attributes:
        call: runs it once.
        outputs: what `call` returned as arrays in the graph's order; not timed.
    """

    call: Callable[[], Any]
    outputs: Callable[[Any], Sequence[np.ndarray]]

    def check(self, expected: Sequence[np.ndarray]) -> bool:
        """Whether it computes all the expected outputs."""
        found = self.outputs(self.call())
        return len(found) == len(expected) and all(map(close, found, expected))


@dataclass
class Modules:
    """The peers that are asked for and installed, by name; tells once of each that is not."""

    names: Sequence[str] = PEERS
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = {n: m for n in self.names if (m := optional(n)) is not None}
        if "onnx" not in self.found and optional("onnx") is None:
            for name in ("onnxruntime", "openvino"):
                self.found.pop(name, None)

    def limit_threads(self, threads: int) -> None:
        """Let NumPy and torch use so many threads from now on; the others are told when they compile."""
        limit_threads(threads, self.found.get("torch"))

    def runs(
        self, graph: seer.Graph, feed: Arrays, threads: int, torch_form: Callable[[Any], Any] | None = None
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
                out[name] = fastest([make(module, m, m.feed(feed), threads) for m in models])
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


def onnxruntime_run(ort: Any, model: OnnxModel | str, feed: Arrays, threads: int) -> Run:
    """A session of onnxruntime on CPUs, bound to its inputs and outputs.

    Its threads spin between the operators of a run, as they do by default: without, it would be slower
    than it can be. They stop within 20 ms of a run, and `medians` pauses longer before the next turn.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    source = model if isinstance(model, str) else model.data
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    kept = {k: ort.OrtValue.ortvalue_from_numpy(a) for k, a in feed.items()}
    for name, value in kept.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        shape = [int(n) for n in output.shape]
        dtype = _ORT_DTYPES[output.type]
        binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(np.empty(shape, dtype)))

    def call() -> None:
        session.run_with_iobinding(binding)

    def outputs(_: Any, _kept: Any = kept) -> list[np.ndarray]:
        return _in_order(model, [v.numpy() for v in binding.get_outputs()])

    return Run(call, outputs)


_ORT_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


def openvino_run(ov: Any, model: OnnxModel | str, feed: Arrays, threads: int) -> Run:
    """A request of OpenVINO, compiled for latency in float32 (else it may round to bfloat16 by itself).

    Its threads are not pinned: on a machine that others share, a pinned one waits for its core.
    """
    core = ov.Core()
    source = model if isinstance(model, str) else model.data
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    compiled = core.compile_model(core.read_model(source), "CPU", config)
    request = compiled.create_infer_request()
    kept = {k: ov.Tensor(a, shared_memory=True) for k, a in feed.items()}
    for name, tensor in kept.items():
        request.set_tensor(name, tensor)
    n = len(compiled.outputs)

    def call() -> None:
        request.infer({}, share_inputs=True, share_outputs=True)

    def outputs(_: Any, _kept: Any = kept) -> list[np.ndarray]:
        return _in_order(model, [np.array(request.get_output_tensor(k).data) for k in range(n)])

    return Run(call, outputs)


def _in_order(model: OnnxModel | str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return list(arrays) if isinstance(model, str) else model.outputs(arrays)


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


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-4) -> bool:
    """Whether two results agree by norm; bfloat16 or TF32 anywhere inside would not."""
    if a.shape != b.shape:
        return False
    scale = float(np.linalg.norm(b)) or 1.0
    return float(np.linalg.norm(np.asarray(a, np.float64) - b)) <= tolerance * scale
