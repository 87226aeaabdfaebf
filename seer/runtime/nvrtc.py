"""CUDA C to machine code of a GPU, by NVRTC or nvcc; no GPU and no driver is needed.

NVRTC is one shared library: from PyPI (nvidia-cuda-nvrtc) or from an installed CUDA toolkit.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer.errors import BuildError, TargetError

INSTALL = "install NVRTC (pip install nvidia-cuda-nvrtc) or a CUDA toolkit with nvcc"

# Sums of products are fused where the source says so, nothing else.
_OPTIONS = ("-std=c++17", "-lineinfo", "--fmad=false")
_NVCC_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """What one kernel needs of a multiprocessor, as the assembler reports it.

    Attributes:
        registers: 32-bit registers of a thread.
        shared_bytes: static shared memory of a block.
        local_bytes: memory of a thread for arrays and spilled registers.
        spill_bytes: what is stored and loaded because registers ran out.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one architecture.

    Attributes:
        data: an ELF image, as cuModuleLoadData takes it.
        arch: "sm_90" and the like.
        kernels: usage by name.
        log: the compiler's messages.
    """

    data: bytes
    arch: str
    kernels: Mapping[str, KernelUsage]
    log: str

    def usage(self, name: str) -> KernelUsage:
        """What the kernel `name` needs.

        Raises:
            BuildError: if there is no such kernel.
        """
        if name not in self.kernels:
            raise BuildError(f"the cubin has no kernel {name!r}; it has {', '.join(self.kernels)}")
        return self.kernels[name]


def compile_cubin(source: str, arch: str) -> Cubin:
    """Compile CUDA C.

    Args:
        source: a translation unit; NVRTC brings no headers, so it should include none.
        arch: the architecture, such as "sm_80".

    Raises:
        TargetError: if this machine has neither NVRTC nor nvcc, or `arch` is no architecture's name.
        BuildError: if the compiler refuses the source; the message quotes its log and the lines.
    """
    if not re.fullmatch(r"sm_\d+[a-z]?", arch):
        raise TargetError(f"a CUDA architecture is written like sm_90, found {arch!r}")
    library = nvrtc()
    if library is not None:
        return _by_nvrtc(library, source, arch)
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        return _by_nvcc(nvcc, source, arch)
    raise TargetError(f"compiling CUDA needs a compiler, and neither NVRTC nor nvcc was found; {INSTALL}")


def compiler_name() -> str:
    """What `compile_cubin` would use: "NVRTC 13.0", "nvcc", or "" for nothing."""
    library = nvrtc()
    if library is None:
        return "nvcc" if shutil.which("nvcc") else ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


@functools.lru_cache(maxsize=1)
def nvrtc() -> ctypes.CDLL | None:
    """The NVRTC library, or None if there is none that loads."""
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            _ = library.nvrtcGetCUBIN  # since CUDA 11.1
        except (OSError, AttributeError):
            continue
        return library
    return None


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*"), reverse=True):
            if "builtins" not in path.name and ".alt." not in path.name:
                yield str(path)
    found = ctypes.util.find_library("nvrtc")
    if found:
        yield found
    yield "libnvrtc.so"
    yield from map(str, sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so"), reverse=True))


def _by_nvrtc(library: ctypes.CDLL, source: str, arch: str) -> Cubin:
    options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", *_OPTIONS]
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status:
            raise BuildError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")

    def text(kind: str) -> bytes:
        size = ctypes.c_size_t()
        check(getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        check(getattr(library, f"nvrtcGet{kind}")(program, buffer))
        return buffer.raw

    check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cu", 0, ctypes.c_void_p(), ctypes.c_void_p()
        )
    )
    try:
        array: Any = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = library.nvrtcCompileProgram(program, len(options), array)
        log = text("ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if status:
            reason = library.nvrtcGetErrorString(status).decode()
            raise BuildError(_refused(f"NVRTC ({reason})", arch, log, source))
        return Cubin(text("CUBIN"), arch, parse_usage(log), log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _by_nvcc(nvcc: str, source: str, arch: str) -> Cubin:
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(source)
        command = [nvcc, "-cubin", f"-arch={arch}", "-Xptxas=-v", *_OPTIONS, "kernel.cu", "-o", str(out)]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_NVCC_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise BuildError(f"nvcc cannot be run: {e}") from e
        log = (done.stdout + done.stderr).strip()
        if done.returncode or not out.exists():
            raise BuildError(_refused("nvcc", arch, log, source))
        return Cubin(out.read_bytes(), arch, parse_usage(log), log)


def parse_usage(log: str) -> dict[str, KernelUsage]:
    """The resources of each kernel in what `ptxas -v` prints."""
    out: dict[str, KernelUsage] = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'([^']+)'", part)
        used = re.search(r"Used (\d+) registers", part)
        if name is None or used is None:
            continue
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        stack, stores, loads = map(int, frame.groups()) if frame else (0, 0, 0)
        shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", part)
        out[name[1]] = KernelUsage(int(used[1]), int(shared[1]) if shared else 0, stack, stores + loads)
    return out


def _refused(compiler: str, arch: str, log: str, source: str) -> str:
    """The compiler's log, and the lines of the source that it names."""
    lines = source.splitlines()
    numbers = sorted({int(n) for n in re.findall(r"kernel\.cu\((\d+)\)", log)})
    quoted = [f"  line {n}: {lines[n - 1].strip()}" for n in numbers if 0 < n <= len(lines)]
    return "\n".join([f"{compiler} refuses the CUDA source for {arch}:", log, *quoted])
