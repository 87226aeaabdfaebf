"""Peak memory of whole models: each system alone in a fresh process.

    python -m benchmarks.memory SYSTEM MODEL --feed FILE [--batch N] [--threads N] [--records FILE]

makes the model ready, runs it three times, and prints what that added to a process that has imported
NumPy. seer builds the model from the zoo and compiles it with its records, since that is how it is
loaded; onnxruntime and OpenVINO read an ONNX file, torch its own file of weights and operators. The
peak covers all of this; `resident_mb` is what is left of it after the runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RUNS = 3

Memory = dict[str, float]  # peak_mb and resident_mb, of 2**20 bytes


def peak_bytes() -> int:
    """The most memory that this process has had at one time.

    Linux keeps it for the program that runs (VmHWM). What getrusage tells (ru_maxrss) does not fall
    when a process starts another program, so that it would be the parent's where that is larger.
    """
    try:
        return _status("VmHWM")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """The memory that this process has now (0 where the system does not tell)."""
    try:
        return _status("VmRSS")
    except OSError:
        return 0


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


# -- the parent ----------------------------------------------------------------------------------


def memory_of(
    name: str, batch: int, threads: int, records: Path, systems: Sequence[str]
) -> dict[str, Memory]:
    """What each system needs for a zoo model; one that fails is left out with a notice."""
    out: dict[str, Memory] = {}
    with tempfile.TemporaryDirectory() as folder:
        for system in systems:
            try:
                model = _save(system, name, batch, Path(folder))
                options = [f"--batch={batch}", f"--threads={threads}", f"--records={records}"]
                command = [sys.executable, "-m", "benchmarks.memory", system, model, *options]
                command.append(f"--feed={Path(folder) / 'feed.npz'}")
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                out[system] = json.loads(done.stdout.splitlines()[-1])
            except (ImportError, NotImplementedError, subprocess.CalledProcessError) as e:
                detail = e.stderr.strip()[-500:] if isinstance(e, subprocess.CalledProcessError) else e
                print(f"{name}: no memory of {system}: {detail}", file=sys.stderr)
    return out


def _save(system: str, name: str, batch: int, folder: Path) -> str:
    """Write a zoo model in the form that a system reads, and its inputs; returns what to call it."""
    import seer
    from seer.cli import random_inputs

    graph = seer.zoo.get(name, batch=batch)
    feed: dict[str, Any] = random_inputs(graph)
    np.savez(folder / "feed.npz", **feed)
    if system == "seer":
        return name
    if system == "torch":
        import torch

        from benchmarks.torch_models import program_of

        path = folder / "model.pt"
        torch.save(program_of(torch, graph), path)
    else:
        from benchmarks.onnx_models import to_onnx

        path = folder / "model.onnx"
        path.write_bytes(to_onnx(graph).data)
    return str(path)


# -- the child -----------------------------------------------------------------------------------

Feed = Mapping[str, Any]


def _seer(name: str, feed: Feed, args: argparse.Namespace) -> Callable[[], Any]:
    import seer

    # The model's description is let go, as the others' are when they have read their files.
    model = seer.compile(seer.zoo.get(name, batch=args.batch), f"llvm -threads={args.threads}", args.records)
    return lambda: model(**feed)


def _torch(path: str, feed: Feed, args: argparse.Namespace) -> Callable[[], Any]:
    import torch

    from benchmarks.torch_models import torch_runner

    torch.set_num_threads(args.threads)
    return torch_runner(torch, torch.load(path), feed)


def _onnxruntime(path: str, feed: Feed, args: argparse.Namespace) -> Callable[[], Any]:
    import onnxruntime

    from benchmarks.engines import onnxruntime_run

    return onnxruntime_run(onnxruntime, path, feed, args.threads).call


def _openvino(path: str, feed: Feed, args: argparse.Namespace) -> Callable[[], Any]:
    import openvino

    from benchmarks.engines import openvino_run

    return openvino_run(openvino, path, feed, args.threads).call


SYSTEMS = {"seer": _seer, "torch": _torch, "onnxruntime": _onnxruntime, "openvino": _openvino}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure this process; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.split("\n")[0])
    p.add_argument("system", choices=list(SYSTEMS))
    p.add_argument("model", help="a zoo model for seer, a file for the others")
    p.add_argument("--feed", type=Path, required=True, help="the inputs, an .npz file")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--records", type=Path)
    args = p.parse_args(argv)
    before = peak_bytes(), resident_bytes()
    with np.load(args.feed) as file:
        feed = dict(file)
    call = SYSTEMS[args.system](args.model, feed, args)
    for _ in range(RUNS):
        call()
    gc.collect()
    after = peak_bytes(), resident_bytes()
    peak, resident = ((b - a) / 2**20 for a, b in zip(before, after, strict=True))
    print(json.dumps({"peak_mb": peak, "resident_mb": resident}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
