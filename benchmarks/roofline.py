"""What the machine itself can do: fused multiply-adds from registers, and reading from memory.

python -m benchmarks.roofline --threads 1 --threads 2

A row's `roofline` is the time that its arithmetic takes at the peak, or its bytes at the bandwidth
(whichever is more), divided by the measured time. It is above 1 where an algorithm needs fewer
operations than the definition (Winograd), or where data stayed in a cache from one call to the next.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import seer
from benchmarks.report import Row, table, write_json
from seer import memory
from seer.codegen.build import compile_module
from seer.runtime.loader import Engine, load_objects
from seer.runtime.target import Target

ROUNDS = 15
CHAINS = 12  # independent sums: more than latency times the number of units, fewer than registers
FMA_STEPS = 4_000_000
MIN_STREAM_BYTES = 256 << 20
COLUMNS = ("threads", "peak_gflops", "bandwidth_gb_s")


@dataclass(frozen=True)
class Machine:
    """A machine's limits with some number of threads.

    Attributes:
        threads: how many.
        peak_flop_s: floating-point operations of float32 each second.
        bandwidth_bytes_s: bytes read from memory each second.
    """

    threads: int
    peak_flop_s: float
    bandwidth_bytes_s: float

    def fraction(self, flop: float, size_bytes: float, seconds: float) -> float:
        """The least time that so much work can take, divided by what it took."""
        return max(flop / self.peak_flop_s, size_bytes / self.bandwidth_bytes_s) / seconds


@functools.cache
def measure(threads: int) -> Machine:
    """Measure this machine, once a process: the best of several rounds, since others only slow it down."""
    target = Target.parse(f"llvm -threads={threads}")
    code = _Code(target)
    flop = 2.0 * FMA_STEPS * CHAINS * target.lanes("float32") * threads
    outs = [np.full(64, 0.5, np.float32) for _ in range(threads)]
    peak = flop / _best([functools.partial(code.fma, o.ctypes.data, FMA_STEPS) for o in outs])
    step = CHAINS * target.vector_bytes
    size = max(4 * target.l3_bytes, MIN_STREAM_BYTES) // (threads * step) * step  # of each thread
    parts = [memory.empty((size // 4,), "float32") for _ in range(threads)]
    for p in parts:
        p[:] = 1.0
    reads = [
        functools.partial(code.read, o.ctypes.data, p.ctypes.data, size // step)
        for o, p in zip(outs, parts, strict=True)
    ]
    return Machine(threads, peak, threads * size / _best(reads))


def _best(calls: Sequence[Callable[[], object]]) -> float:
    """Fewest seconds, over rounds, in which threads make these calls at the same time."""
    seconds = []
    for _ in range(ROUNDS):
        gate = threading.Barrier(len(calls))
        spans: list[tuple[float, float]] = []

        def run(call: Callable[[], object], gate: threading.Barrier = gate, spans: Any = spans) -> None:
            gate.wait()
            start = time.perf_counter()
            call()  # machine code: the interpreter's lock is free meanwhile
            spans.append((start, time.perf_counter()))

        threads = [threading.Thread(target=run, args=(c,)) for c in calls]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seconds.append(max(end for _, end in spans) - min(start for start, _ in spans))
    return min(seconds)


class _Code:
    """The two loops as machine code: `fma(out, steps)` and `read(out, array, steps)`;
    the sums go behind the first vector of `out`.
    """

    def __init__(self, target: Target) -> None:
        lanes = target.lanes("float32")
        self._engine: Engine = load_objects([compile_module(_module(lanes, target.has_fma), target)])
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self.fma = ctypes.CFUNCTYPE(None, pointer, count)(self._engine.address("fma"))
        self.read = ctypes.CFUNCTYPE(None, pointer, pointer, count)(self._engine.address("read"))


def _module(lanes: int, has_fma: bool) -> str:
    """LLVM IR of the loops; CHAINS vectors are summed on their own, so that no step waits for the last."""
    vector = f"<{lanes} x float>"
    fma, read = [], []
    for k in range(CHAINS):
        if has_fma:
            fma.append(f"%t{k} = call {vector} @llvm.fma({vector} %s{k}, {vector} %a, {vector} %a)")
        else:
            fma += [f"%m{k} = fmul {vector} %s{k}, %a", f"%t{k} = fadd {vector} %m{k}, %a"]
        read += [
            f"%p{k} = getelementptr {vector}, ptr %array, i64 {k}",
            f"%q{k} = getelementptr {vector}, ptr %p{k}, i64 %at",
            f"%x{k} = load {vector}, ptr %q{k}, align 4",
            f"%t{k} = fadd {vector} %s{k}, %x{k}",
        ]
    at = f"%at = mul i64 %i, {CHAINS}"
    name = f"llvm.fma.v{lanes}f32"
    declare = f"declare {vector} @{name}({vector}, {vector}, {vector})" if has_fma else ""
    fma = [line.replace("@llvm.fma(", f"@{name}(") for line in fma]
    return "\n".join(
        [
            _loop("fma", "ptr %out, i64 %n", vector, fma),
            _loop("read", "ptr %out, ptr %array, i64 %n", vector, [at, *read]),
            declare,
        ]
    )


def _loop(name: str, params: str, vector: str, body: Sequence[str]) -> str:
    phis = [f"%s{k} = phi {vector} [ zeroinitializer, %start ], [ %t{k}, %loop ]" for k in range(CHAINS)]
    sums = [f"%u1 = fadd {vector} %t0, %t1"]
    sums += [f"%u{k} = fadd {vector} %u{k - 1}, %t{k}" for k in range(2, CHAINS)]
    lines = [
        f"define void @{name}({params}) {{",
        "start:",
        f"%a = load {vector}, ptr %out, align 4",
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %start ], [ %next, %loop ]",
        *phis,
        *body,
        "%next = add i64 %i, 1",
        "%more = icmp slt i64 %next, %n",
        "br i1 %more, label %loop, label %end",
        "end:",
        *sums,
        f"%to = getelementptr {vector}, ptr %out, i64 1",
        f"store {vector} %u{CHAINS - 1}, ptr %to, align 4",
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def row(machine: Machine) -> Row:
    """The limits as a row."""
    return {
        "threads": machine.threads,
        "peak_gflops": machine.peak_flop_s / 1e9,
        "bandwidth_gb_s": machine.bandwidth_bytes_s / 1e9,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__.split("\n")[0])
    p.add_argument("--threads", type=int, action="append", help="threads (default: 1, then 2)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    args = p.parse_args(argv)
    try:
        rows = [row(measure(threads)) for threads in args.threads or [1, 2]]
    except seer.errors.UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    table("this machine", rows, COLUMNS)
    write_json(args.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
