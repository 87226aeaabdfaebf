"""Tune one kernel with TVM's MetaSchedule until stopped; run by benchmarks.search_peers.

TVM_PYTHON benchmarks/peer_metaschedule.py CASE THREADS SEED
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ["PYTHONPATH"] = sys.path[0]  # for its worker processes, too
os.environ["TVM_NUM_THREADS"] = sys.argv[2]

import peer_kernels
import tvm
from tvm import te
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

try:
    from tvm import tirx as tir
except ImportError:
    from tvm import tir

TRIALS = 100_000  # more than there is time for


@derived_object
class Note(ms.measure_callback.PyMeasureCallback):
    """Writes the curve."""

    def __init__(self) -> None:
        super().__init__()
        self.curve = peer_kernels.Curve()

    def apply(
        self, task_scheduler: Any, task_id: int, candidates: Any, builder_results: Any, runner_results: Any
    ) -> None:
        """See MeasureCallback."""
        found = [] if runner_results is None else runner_results
        times = [[float(s) for s in r.run_secs] if r.run_secs else [] for r in found]
        self.curve.add([sum(t) / len(t) if t else float("inf") for t in times])


def main() -> None:
    """Tune until killed."""
    case, threads, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    func = te.create_prim_func(peer_kernels.expressions(te, tir, case))
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    callbacks = ms.measure_callback
    ms.tune_tir(
        func,
        target,
        tempfile.mkdtemp(),
        TRIALS,
        num_trials_per_iter=32,  # half of the default, so that the first minutes have results
        builder=ms.builder.LocalBuilder(max_workers=threads),
        measure_callbacks=[
            callbacks.AddToDatabase(),
            callbacks.RemoveBuildArtifact(),
            callbacks.UpdateCostModel(),
            Note(),
        ],
        num_tuning_cores=threads,
        seed=seed,
    )


if __name__ == "__main__":
    main()
