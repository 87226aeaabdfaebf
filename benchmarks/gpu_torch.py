"""A graph on a GPU by torch (cuBLAS and cuDNN): what seer's times are compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import seer
from benchmarks.torch_models import program_of, torch_runner


def torch_seconds(
    graph: seer.Graph, feed: Mapping[str, np.ndarray], expected: np.ndarray, repeats: int
) -> dict[str, float]:
    """Median seconds of a run, in float32 and where tf32 is allowed; as CUDA graphs too, if they can be.

    Raises:
        RuntimeError: if torch is missing, finds no GPU, or computes something else.
    """
    torch = __import__("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    out = {}
    program = program_of(torch, graph)
    torch.backends.cudnn.benchmark = True
    for name, allowed in (("float32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        run = torch_runner(torch, program, feed, "cuda")
        found = run()[0].float().cpu().numpy()
        off = float(np.linalg.norm(found - expected)) / (float(np.linalg.norm(expected)) or 1.0)
        if off > (1e-2 if allowed else 1e-3):
            raise RuntimeError(f"torch's {name} result is off by {off:.1e}")
        out[name] = _seconds(torch, run, repeats)
        replay = _captured(torch, run)
        if replay is not None:
            out[f"{name} graph"] = _seconds(torch, replay, repeats)
    return out


def _captured(torch: Any, run: Callable[[], Any]) -> Callable[[], Any] | None:
    """The run as a CUDA graph, without what launching from Python costs."""
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        return None
    replay: Callable[[], Any] = graph.replay
    return replay


def _seconds(torch: Any, run: Callable[[], Any], repeats: int) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return statistics.median(times)
