"""The C++ compiler of this machine, and what it has compiled already."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from seer import flags
from seer.errors import BuildError, TargetError

HEADERS = Path(__file__).parent / "csrc"
_PARTS = ("scheduler.cpp", "checks.cpp", "main.cpp")
_COMMON = (
    "-std=c++17",
    "-g1",
    "-w",
    "-march=native",
    "-fno-pie",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=off",
    "-fno-strict-aliasing",  # kernels read float arrays through float4 pointers
)
_FAST = ("-O2", "-fno-semantic-interposition")
_CHECKED = (
    "-O1",
    "-fsanitize=thread",
    "-fsanitize=bounds,alignment,signed-integer-overflow,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
)
_LIMIT_S = 120.0


def program(text: str, checked: bool) -> Path:
    """The emulation program of a translated source; it is compiled unless it is in the cache.

    Raises:
        TargetError: if there is no C++ compiler.
        BuildError: if it refuses the source; the message is the compiler's.
    """
    flags_ = (*_COMMON, *(_CHECKED if checked else _FAST))
    folder = _cache_folder()
    out = folder / f"k{_hash(text, *flags_)}"
    if not out.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source, code = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.o"
            source.write_text(text)
            _run([compiler(), *flags_, f"-I{HEADERS}", "-c", str(source), "-o", str(code)])
            linked = Path(scratch) / "kernel"
            _run([compiler(), "-no-pie", str(code), *map(str, _runtime()), "-o", str(linked)])
            linked.replace(out)
    return out


@functools.lru_cache(maxsize=1)
def compiler() -> str:
    """The path of a C++ compiler: $CXX, g++ or clang++.

    Raises:
        TargetError: if there is none.
    """
    for name in (flags.cxx(), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise TargetError(
        "emulating CUDA needs a C++ compiler, and none of $CXX, g++ and clang++ was found; install g++"
    )


def source_line(binary: Path, address: int) -> int:
    """The line of the kernel's source that an address of the code belongs to; 0 if it is not known."""
    tool = shutil.which("addr2line") or shutil.which("llvm-symbolizer")
    if tool is None or not address:
        return 0
    found = subprocess.run(
        [tool, "-e", str(binary), "-i", hex(address)], capture_output=True, text=True, timeout=30, check=False
    )
    for place in found.stdout.splitlines():  # innermost first; wrappers are in other files
        file, _, line = place.partition(" ")[0].rpartition(":")
        if file.endswith("kernel.cu") and line.isdigit():
            return int(line)
    return 0


@functools.lru_cache(maxsize=1)
def _runtime() -> tuple[Path, ...]:
    """The emulator's own object files."""
    flags_ = (*_COMMON, "-O2")
    texts = [p.read_text() for p in sorted(HEADERS.iterdir()) if p.suffix in (".cpp", ".h")]
    folder = _cache_folder()
    out = []
    for part in _PARTS:
        code = folder / f"r{_hash(part, *texts, *flags_)}.o"
        if not code.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / "part.o"
                _run([compiler(), *flags_, "-c", str(HEADERS / part), "-o", str(made)])
                made.replace(code)
        out.append(code)
    return tuple(out)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BuildError(f"the C++ compiler cannot be run: {e}") from e
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} refuses the emulated source:\n{done.stderr.strip()}")


@functools.lru_cache(maxsize=1)
def _cache_folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(flags.cache_dir() or Path(tempfile.gettempdir()) / f"seer-{user}") / "emulate"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != user:
        return Path(tempfile.mkdtemp(prefix="seer-"))
    return folder


@functools.lru_cache(maxsize=1)
def _identity() -> str:
    """What compiled code depends on beside its source: compiler, processor, headers."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    cpu = platform.machine() + platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu += next((line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    headers = "".join(p.read_text() for p in sorted(HEADERS.glob("*.h")))
    return version + cpu + headers


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join((_identity(), *texts)).encode()).hexdigest()[:24]
