"""Tune one kernel with TVM's Ansor (auto_scheduler) until stopped; run by benchmarks.search_peers.

ANSOR_PYTHON benchmarks/peer_ansor.py CASE THREADS SEED
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ["PYTHONPATH"] = sys.path[0]  # for its worker processes, too
os.environ["TVM_NUM_THREADS"] = sys.argv[2]

import peer_kernels
import tvm
from tvm import auto_scheduler, te, tir

TRIALS = 100_000  # more than there is time for


@auto_scheduler.register_workload
def workload(case: str) -> Any:
    """The tensors of a case."""
    return peer_kernels.expressions(te, tir, case)


class Note(auto_scheduler.measure.PythonBasedMeasureCallback):
    """Writes the curve."""

    def __init__(self) -> None:
        super().__init__()
        self.curve = peer_kernels.Curve()

    def callback(self, policy: Any, inputs: Any, results: Any) -> None:
        """See PythonBasedMeasureCallback."""
        times = [[float(c) for c in r.costs] for r in results]
        failed = [int(r.error_no) for r in results]
        self.curve.add(
            [float("inf") if e or not t else sum(t) / len(t) for e, t in zip(failed, times)]  # noqa: B905
        )


def main() -> None:
    """Tune until killed."""
    case, threads, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cpu = tvm.target.codegen.llvm_get_system_cpu() if hasattr(tvm.target, "codegen") else "skylake-avx512"
    # This package compiles for RISC-V unless told otherwise.
    target = f"llvm -mtriple={platform.machine()}-linux-gnu -mcpu={cpu}"
    task = auto_scheduler.SearchTask(func=workload, args=(case,), target=target)
    policy = auto_scheduler.SketchPolicy(task, program_cost_model=auto_scheduler.XGBModel(), seed=seed)
    options = auto_scheduler.TuningOptions(
        num_measure_trials=TRIALS,
        builder=auto_scheduler.LocalBuilder(n_parallel=threads),
        runner=auto_scheduler.LocalRunner(timeout=10),
        measure_callbacks=[Note()],
        verbose=0,
    )
    task.tune(options, search_policy=policy)


if __name__ == "__main__":
    main()
