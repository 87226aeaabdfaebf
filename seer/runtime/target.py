"""Targets: the machine that code is made for, as plain data.

A target is written `kind -option=value ...`, for instance "llvm", "llvm -threads=1" or
"llvm -cpu=skylake-avx512 -threads=4"; str() gives a text that parse() turns back into the same
target. Without -cpu it is this machine. A GPU is "cuda" (the one that is there) or "cuda -arch=sm_90",
with -devices=0,1 to use only these; "cuda -device=emulated" is the CPU in its place.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from seer import flags
from seer.dtypes import dtype as dtype_of
from seer.errors import TargetError
from seer.runtime.gpu import CHECKS, DEFAULT_ARCH, GPUS, Gpu, GpuDevices

MAX_THREADS = 1024  # OpenMP ends the process where it cannot start as many as it is asked for


@dataclass(frozen=True)
class Target:
    """A machine as the search and the code generators see it.

    The fields describe a CPU; a GPU has its own record in `gpu`, and of the others only the size of a
    vector (what one thread loads at once) and of the caches mean anything.

    Attributes:
        kind: the code generator, "llvm" or "cuda".
        triple: LLVM's name of architecture, vendor and system.
        cpu: LLVM's name of the processor.
        features: LLVM's feature string beyond the processor's own ("+avx2,-amx-tile").
        num_threads: threads that a parallel loop runs on.
        vector_bytes: size of a vector register.
        num_vector_registers: vector registers that code can name.
        has_fma: whether a fused multiply-add is one instruction.
        has_float16: whether it converts float16 from and to float32.
        has_bfloat16: whether it converts float32 to bfloat16.
        l1_bytes: first-level data cache of one core.
        l2_bytes: second-level cache of one core.
        l3_bytes: last-level cache.
        cache_line_bytes: size of a cache line.
        gpu: the GPU, or None on a CPU.
        devices: which devices of that kind.
        sweep_bytes: weights that a model reads between two runs of one of its kernels, if they drive
            the kernel's own out of the second-level caches; else 0. Kernels are timed accordingly.
    """

    kind: str
    triple: str
    cpu: str
    features: str
    num_threads: int
    vector_bytes: int
    num_vector_registers: int
    has_fma: bool
    has_float16: bool
    has_bfloat16: bool
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line_bytes: int = 64
    gpu: Gpu | None = None
    devices: GpuDevices = field(default_factory=GpuDevices)
    sweep_bytes: int = 0

    def lanes(self, dtype: str) -> int:
        """Elements of a dtype in one vector register."""
        return max(1, self.vector_bytes // dtype_of(dtype).size_bytes)

    @property
    def has_scale(self) -> bool:
        """Whether x * 2**n is one instruction for vectors of float32 (AVX-512)."""
        return self.vector_bytes == 64 and self.triple.startswith("x86_64")

    def with_threads(self, num_threads: int) -> Target:
        """The same machine with another number of threads."""
        return replace(self, num_threads=checked_threads(num_threads))

    def within(self, weights: Sequence[int]) -> Target:
        """The same machine as the kernels of a model find it, given the bytes of each one's weights."""
        others = sum(weights) - max(weights, default=0)
        if self.gpu is not None or others <= self.num_threads * self.l2_bytes:
            return self
        total = sum(weights)
        # What does not fit into the last level must be gone from it; it does not forget the oldest first.
        return replace(self, sweep_bytes=max(total, 2 * self.l3_bytes) if total > self.l3_bytes else total)

    @property
    def key(self) -> str:
        """What records are kept by: everything that decides which code is fast."""
        if self.gpu is not None:
            emulated = "-emulated" if self.devices.is_emulated else ""
            return f"{self.kind}{emulated} {self.gpu.arch} {self.gpu.name}".rstrip()
        arch = self.triple.split("-", 1)[0]
        return (
            f"{self.kind} {arch} {self.cpu} v{self.vector_bytes} "
            f"l2={self.l2_bytes // 1024}K t{self.num_threads}{' swept' if self.sweep_bytes else ''}"
        )

    @property
    def clock(self) -> str:
        """The first word of the key: times of different clocks are never compared."""
        return self.key.split()[0]

    @property
    def is_host(self) -> bool:
        """Whether code for this target runs on this machine."""
        same = replace(_host(), num_threads=self.num_threads, sweep_bytes=self.sweep_bytes)
        return self.gpu is None and same == self

    @staticmethod
    def parse(text: str | Target | None) -> Target:
        """The target that a text names; None is this machine.

        Raises:
            TargetError: if the kind, an option or a CPU is unknown.
        """
        if isinstance(text, Target):
            return text
        words = (text or "llvm").split()
        kind, options = words[0] if words else "llvm", words[1:]
        if kind not in _KINDS:
            raise TargetError(f"unknown target kind {kind!r}; seer has {', '.join(sorted(_KINDS))}")
        return _KINDS[kind](_options(text or "llvm", options))

    def __str__(self) -> str:
        if self.gpu is not None:
            return f"{self.kind} -arch={self.gpu.arch}{self.devices.options()}"
        if self.is_host:
            return f"{self.kind} -threads={self.num_threads}"
        return f"{self.kind} -cpu={self.cpu} -threads={self.num_threads}"


Parser = Callable[[dict[str, str]], Target]

_KINDS: dict[str, Parser] = {}


def register_target_kind(kind: str, parser: Parser) -> None:
    """Add a kind of target; `parser` makes a Target from the options of its text."""
    _KINDS[kind] = parser


def checked_threads(num_threads: Any) -> int:
    """A number of threads that code may run on.

    Raises:
        TargetError: if it is no whole number from 1 to MAX_THREADS.
    """
    is_whole = isinstance(num_threads, int | np.integer) and not isinstance(num_threads, bool)
    if not is_whole or not 1 <= num_threads <= MAX_THREADS:
        raise TargetError(f"at least 1 thread and at most {MAX_THREADS} are possible, given {num_threads!r}")
    return int(num_threads)


def _options(text: str, words: list[str]) -> dict[str, str]:
    out = {}
    for w in words:
        name, equals, value = w.removeprefix("-").partition("=")
        if not (w.startswith("-") and equals and value):
            raise TargetError(f"target {text!r}: options look like -threads=2, found {w!r}")
        out[name] = value
    return out


@dataclass(frozen=True, slots=True)
class _Cpu:
    """A processor to compile for without having it."""

    triple: str
    vector_bytes: int
    num_vector_registers: int
    has_fma: bool
    has_float16: bool = True
    has_bfloat16: bool = False
    l1_kib: int = 32
    l2_kib: int = 512
    l3_kib: int = 16384


_X86 = "x86_64-unknown-linux-gnu"
_CPUS = {
    "x86-64": _Cpu(_X86, 16, 16, False, has_float16=False, l2_kib=256),
    "haswell": _Cpu(_X86, 32, 16, True, l2_kib=256),
    "x86-64-v3": _Cpu(_X86, 32, 16, True),
    "znver3": _Cpu(_X86, 32, 16, True, l3_kib=32768),
    "skylake-avx512": _Cpu(_X86, 64, 32, True, l2_kib=1024),
    "sapphirerapids": _Cpu(_X86, 64, 32, True, has_bfloat16=True, l1_kib=48, l2_kib=2048),
    "x86-64-v4": _Cpu(_X86, 64, 32, True, l2_kib=1024),
    "cortex-a72": _Cpu("aarch64-unknown-linux-gnu", 16, 32, True),
    "neoverse-n1": _Cpu("aarch64-unknown-linux-gnu", 16, 32, True, l1_kib=64, l2_kib=1024),
    # Its 256-bit SVE registers are not used: NEON's four pipes are as wide together.
    "neoverse-v1": _Cpu("aarch64-unknown-linux-gnu", 16, 32, True, has_bfloat16=True, l1_kib=64, l2_kib=1024),
}


def _parse_llvm(options: dict[str, str]) -> Target:
    unknown = sorted(set(options) - {"cpu", "threads"})
    if unknown:
        raise TargetError(f"target llvm has no option -{unknown[0]}; it has -cpu=NAME and -threads=N")
    base = _host() if "cpu" not in options else _named(options["cpu"])
    if "threads" not in options:
        return base
    try:
        threads = int(options["threads"])
    except ValueError:
        raise TargetError(f"-threads={options['threads']}: a whole number is needed") from None
    return base.with_threads(threads)


def _named(cpu: str) -> Target:
    if cpu not in _CPUS:
        if cpu in ("host", _host().cpu):
            return _host()
        raise TargetError(f"unknown CPU {cpu!r}; seer knows host, {', '.join(_CPUS)}")
    c = _CPUS[cpu]
    return Target(
        "llvm",
        c.triple,
        cpu,
        "",
        flags.workers(),
        c.vector_bytes,
        c.num_vector_registers,
        c.has_fma,
        c.has_float16,
        c.has_bfloat16,
        c.l1_kib * 1024,
        c.l2_kib * 1024,
        c.l3_kib * 1024,
    )


def _parse_cuda(options: dict[str, str]) -> Target:
    unknown = sorted(set(options) - {"arch", "device", "devices", "check"})
    if unknown:
        raise TargetError(
            f"target cuda has no option -{unknown[0]}; it has -arch=NAME, -devices=0,1, "
            f"-device=emulated and -check={'|'.join(CHECKS)}"
        )
    arch = options.get("arch", DEFAULT_ARCH)
    if arch not in GPUS:
        raise TargetError(f"unknown GPU architecture {arch!r}; seer knows {', '.join(GPUS)}")
    return gpu_target(GPUS[arch], _devices(options))


def _devices(options: dict[str, str]) -> GpuDevices:
    kind, check = options.get("device", "cuda"), options.get("check", "results")
    if kind not in ("cuda", "emulated"):
        raise TargetError(f"-device={kind}: it must be cuda or emulated")
    if check not in CHECKS:
        raise TargetError(f"-check={check}: it must be {', '.join(CHECKS)}")
    if kind == "cuda" and "check" in options:
        raise TargetError(
            f"-check={check} is for -device=emulated; on a GPU every trial's result is compared"
        )
    try:
        numbers = tuple(int(n) for n in options["devices"].split(",")) if "devices" in options else ()
    except ValueError:
        raise TargetError(f"-devices={options['devices']}: numbers are needed, such as 0,1") from None
    return GpuDevices(kind == "emulated", check, numbers, any_arch="arch" not in options)


def gpu_target(gpu: Gpu, devices: GpuDevices) -> Target:
    """The target of a GPU."""
    return Target(
        kind="cuda",
        triple="nvptx64-nvidia-cuda",
        cpu=gpu.arch,
        features="",
        num_threads=1,
        vector_bytes=16,
        num_vector_registers=gpu.registers_per_thread // 4,
        has_fma=True,
        has_float16=True,
        has_bfloat16=True,
        l1_bytes=gpu.shared_bytes_per_sm,
        l2_bytes=gpu.l2_bytes,
        l3_bytes=gpu.l2_bytes,
        cache_line_bytes=128,
        gpu=gpu,
        devices=devices,
    )


register_target_kind("llvm", _parse_llvm)
register_target_kind("cuda", _parse_cuda)


@lru_cache(maxsize=1)
def _host() -> Target:
    """This machine."""
    on = {f for f, has in llvm.get_host_cpu_features().items() if has}
    is_arm = platform.machine() in ("aarch64", "arm64")
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= on:
        vector_bytes, registers = 64, 32
    elif "avx2" in on:
        vector_bytes, registers = 32, 16
    else:
        vector_bytes, registers = 16, 32 if is_arm else 16
    caches = _cache_sizes()
    return Target(
        kind="llvm",
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        num_threads=flags.workers(),
        vector_bytes=vector_bytes,
        num_vector_registers=registers,
        has_fma="fma" in on or is_arm,
        has_float16="f16c" in on or is_arm,
        has_bfloat16={"avx512bf16", "avx512vl"} <= on or (is_arm and "bf16" in on),
        l1_bytes=caches.get(1, 32 * 1024),
        l2_bytes=caches.get(2, 512 * 1024),
        l3_bytes=caches.get(3, 8 * 1024 * 1024),
        cache_line_bytes=64,
    )


def _cache_sizes() -> dict[int, int]:
    """Bytes of the data cache at each level, as Linux tells them (empty elsewhere)."""
    out = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            size = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size.endswith("K"):
            out[level] = int(size[:-1]) * 1024
    return out
