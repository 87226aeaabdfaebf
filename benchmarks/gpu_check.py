"""Does seer work on this machine's GPU, and how well? One command, some minutes, one JSON file.

python -m benchmarks.gpu_check                # needs pip install 'seer[cuda]' and a driver
python -m benchmarks.gpu_check --emulated     # the same way through, at small sizes, without a GPU

Each part stands on its own: one that fails is written down with its traceback, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import seer
from benchmarks import gpu_limits
from benchmarks.cases import parse
from benchmarks.gpu_torch import torch_seconds
from benchmarks.work import bytes_of, flop_of
from seer.backends.cuda import specs_of
from seer.cli import random_inputs
from seer.driver import resolved
from seer.graph import reference
from seer.runtime import nvrtc
from seer.runtime.cuda.driver import visible_devices
from seer.runtime.cuda.model import CudaModel
from seer.runtime.target import Target

TOLERANCE = 1e-4  # ||out - expected|| / ||expected||
REPEATS = 20
Part = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A model to tune and check: its size and budget on a GPU, and emulated."""

    name: str
    model: Callable[[bool], seer.Graph]
    seconds: float
    trials: int
    small_trials: int


def _case(large: str, small: str) -> Callable[[bool], seer.Graph]:
    return lambda is_small: parse(small if is_small else large).graph


def _conv(is_small: bool) -> seer.Graph:
    channels, size = (8, 9) if is_small else (64, 56)
    w = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype(np.float32)
    g = seer.Graph("conv2d")
    g.output(g.input((1, channels, size, size), name="x").conv2d(w, padding=1).relu())
    return g


JOBS = (
    Job("matmul", _case("matmul_1024x1024x1024", "matmul_40x48x36"), 30, 96, 5),
    Job("conv2d", _conv, 30, 96, 5),
    Job("softmax", _case("softmax_12x512x512", "softmax_3x40"), 15, 48, 4),
    Job("resnet50", lambda is_small: seer.zoo.resnet50(image=32 if is_small else 224), 75, 400, 3),
)


@dataclass
class Report:
    """What is written to the file, after every part."""

    path: Path
    parts: dict[str, Part] = field(default_factory=dict)

    def run(self, name: str, part: Callable[[], Part]) -> Part:
        """Run one part and keep what it says, or how it failed."""
        start = time.perf_counter()
        try:
            out = {"ok": True, **part()}
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # a driver's library may well raise something odd
            out = {"ok": False, "error": f"{type(e).__name__}: {e}", "traceback": traceback.format_exc()}
        out["wall_s"] = time.perf_counter() - start
        self.parts[name] = out
        self.path.write_text(json.dumps(self.parts, indent=1, default=str) + "\n")
        print(f"{name}: {_summary(out)}  [{out['wall_s']:.1f} s]", flush=True)
        return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run every part; the exit status is 0 if all went well."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__.split("\n")[0])
    p.add_argument("--emulated", action="store_true", help="the CPU in the place of a GPU, small sizes")
    p.add_argument("--arch", default="sm_80", help="what an emulated device pretends to be (default sm_80)")
    p.add_argument("--only", action="append", choices=[j.name for j in JOBS], help="(may be repeated)")
    p.add_argument("--json", type=Path, default=Path("gpu_check.json"), metavar="FILE")
    args = p.parse_args(argv)
    text = f"cuda -arch={args.arch} -device=emulated" if args.emulated else "cuda"
    report = Report(args.json)
    report.run("found", lambda: found(args.emulated))
    opened = report.run("target", lambda: {"target": str(resolved(text)[1]), "key": resolved(text)[1].key})
    if opened["ok"]:
        target = resolved(text)[1]
        limits = report.run("limits", lambda: limits_of(target))
        for job in JOBS:
            if args.only is None or job.name in args.only:
                report.run(job.name, lambda job=job: check(job, target, limits))  # type: ignore[misc]
    failed = [n for n, part in report.parts.items() if not part["ok"]]
    print(f"{args.json}: " + (f"{', '.join(failed)} failed" if failed else "everything went well"))
    if args.emulated:
        print("all times of emulated kernels are simulated: they say nothing about a GPU")
    return 1 if failed else 0


def found(is_emulated: bool) -> Part:
    """Devices and versions; what cannot be had is said in its place."""
    return {
        "seer": seer.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "compiler": _attempt(lambda: nvrtc.compiler_name() or "none"),
        "pycuda": _attempt(lambda: __import__("pycuda").VERSION_TEXT),
        "driver": _attempt(_driver_version),
        "devices": "emulated" if is_emulated else _attempt(_devices),
        "torch": _attempt(lambda: (lambda t: f"{t.__version__}, CUDA {t.version.cuda}")(__import__("torch"))),
    }


def _driver_version() -> int:
    drv = __import__("pycuda.driver").driver
    drv.init()
    return int(drv.get_driver_version())


def _devices() -> dict[int, dict[str, Any]]:
    return {n: asdict(g) for n, g in visible_devices().items()}


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as e:
        return f"not found ({type(e).__name__}: {e})"


def limits_of(target: Target) -> Part:
    """The device's limits, by kernels that do nothing else."""
    assert target.gpu is not None
    device = specs_of(target)[0].open()
    try:
        limits = gpu_limits.measure(device, target.gpu, target.devices.is_emulated)
    finally:
        device.close()
    return {**asdict(limits), "bytes_s": limits.bytes_s}


def check(job: Job, target: Target, limits: Part) -> Part:
    """Tune, compare with NumPy, time, and relate the times to the device's limits and to torch."""
    is_small = target.devices.is_emulated
    model = job.model(is_small)
    feed = random_inputs(model)
    expected = reference.run(model, feed)
    budget = {"trials": job.small_trials} if is_small else {"trials": job.trials, "seconds": job.seconds}
    result = seer.tune(model, target, progress=False, seed=0, **budget)
    failures = [f"{r.error}: {r.message}" for r in result.records.all() if not r.ok]
    flop, moved = flop_of(model), bytes_of(model)
    out: Part = {"trials": result.trials, "errors": result.errors, "failures": failures[:8]}
    out |= {"tuning_s": result.summary.seconds, "flop": flop, "bytes": moved}
    for name, records in (("tuned", result.records), ("untuned", None)):
        out[name] = _run(model, target, records, feed, expected)
        if limits["ok"]:
            seconds = out[name]["seconds"]
            out[name]["of_peak"] = flop / seconds / limits["flop_s"]
            out[name]["of_bandwidth"] = moved / seconds / limits["bytes_s"]
    if not is_small:
        out["torch"] = _attempt(lambda: torch_seconds(model, feed, expected[0], REPEATS))
        if isinstance(out["torch"], dict):
            best = min(v for k, v in out["torch"].items() if k.startswith("float32"))
            out["times_torch"] = best / out["tuned"]["seconds"]
    worst = max(out[n]["error"] for n in ("tuned", "untuned"))
    if worst > TOLERANCE:
        raise ArithmeticError(f"{job.name} is off by {worst:.1e}: {json.dumps(out, default=str)}")
    return out


def _run(
    model: seer.Graph,
    target: Target,
    records: Any,
    feed: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
) -> Part:
    run = seer.compile(model, target, records)
    assert isinstance(run, CudaModel)
    try:
        outputs = run(**feed)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        error = max(_error(a, b) for a, b in zip(outputs, expected, strict=True))
        warm = statistics.median(run.time(REPEATS))
        cold = statistics.median(run.time(REPEATS, flush_cache=True))
        return {"error": error, "seconds": warm, "cold_seconds": cold, "kernels": run.num_kernels}
    finally:
        run.device.close()


def _error(a: np.ndarray, b: np.ndarray) -> float:
    difference = float(np.linalg.norm(a.astype(np.float64) - b))
    return difference / (float(np.linalg.norm(b.astype(np.float64))) or 1.0)


def _summary(part: Part) -> str:
    if not part["ok"]:
        return f"FAILED: {part['error'].splitlines()[0]}"
    if "tuned" not in part:
        return ", ".join(f"{k} {_short(v)}" for k, v in part.items() if k not in ("ok", "wall_s"))
    tuned, untuned = part["tuned"], part["untuned"]
    text = f"tuned {1e3 * tuned['seconds']:.4f} ms, untuned {1e3 * untuned['seconds']:.4f} ms"
    if "of_peak" in tuned:
        text += f", {tuned['of_peak']:.0%} of peak, {tuned['of_bandwidth']:.0%} of bandwidth"
    if "times_torch" in part:
        text += f", {part['times_torch']:.2f} x torch"
    return f"{text}, error {tuned['error']:.0e}, {part['trials']} trials, failed {part['errors'] or 'none'}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
