"""Systems that run ONNX models, ready to be timed; this file needs nothing of seer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Arrange = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]  # outputs as the graph has them


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


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-4) -> bool:
    """Whether two results agree by norm; bfloat16 or TF32 anywhere inside would not."""
    if a.shape != b.shape:
        return False
    scale = float(np.linalg.norm(b)) or 1.0
    return float(np.linalg.norm(np.asarray(a, np.float64) - b)) <= tolerance * scale


def onnxruntime_run(ort: Any, model: bytes | str, feed: Arrays, threads: int, arrange: Arrange = list) -> Run:
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
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
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

    def outputs(_: Any, _kept: Any = kept) -> Sequence[np.ndarray]:
        return arrange([v.numpy() for v in binding.get_outputs()])

    return Run(call, outputs)


_ORT_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


def openvino_run(ov: Any, model: bytes | str, feed: Arrays, threads: int, arrange: Arrange = list) -> Run:
    """A request of OpenVINO, compiled for latency in float32 (else it may round to bfloat16 by itself).

    Its threads are not pinned: on a machine that others share, a pinned one waits for its core.
    """
    core = ov.Core()
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    request = compiled.create_infer_request()
    kept = {k: ov.Tensor(a, shared_memory=True) for k, a in feed.items()}
    for name, tensor in kept.items():
        request.set_tensor(name, tensor)
    n = len(compiled.outputs)

    def call() -> None:
        request.infer({}, share_inputs=True, share_outputs=True)

    def outputs(_: Any, _kept: Any = kept) -> Sequence[np.ndarray]:
        return arrange([np.array(request.get_output_tensor(k).data) for k in range(n)])

    return Run(call, outputs)
