"""The C++ compiler of this machine, and what it has compiled already."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from seer import flags
from seer.errors import BuildError, TargetError

HEADERS = Path(__file__).parent / "csrc"
_PARTS = ("scheduler.cpp", "checks.cpp", "main.cpp")
_COMMON = (
    "-std=c++17",
    "-g1",
    "-gdwarf-4",  # older symbolizers misread the file names of version 5
    "-w",
    "-march=native",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=off",
    "-fno-strict-aliasing",  # kernels read float arrays through float4 pointers
)
_FAST = ("-O2", "-fno-semantic-interposition")
_CHECKED = (
    "-O0",  # an optimiser moves accesses to where their values are used, and out of bounds is not seen
    "-fsanitize=thread",
    "-fsanitize=bounds,alignment,signed-integer-overflow,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
)
_LIMIT_S = 120.0


def library(text: str, checked: bool) -> Path:
    """The shared library of a translated source; it is compiled unless it is in the cache.

    Raises:
        TargetError: if there is no C++ compiler.
        BuildError: if it refuses the source; the message is the compiler's.
    """
    options = (*_COMMON, *((*_CHECKED, *_poison()) if checked else _FAST))

    def build(out: Path) -> None:
        source = out.with_suffix(".cpp")
        source.write_text(text)
        headers = [f"-I{_precompiled(options)}", f"-I{HEADERS}"]
        link = ["-shared", "-nostdlib", str(source), "-lm", "-o", str(out)]
        _run([compiler(), *options, *headers, *link])

    return _cached(f"k{_hash(text, *options)}.so", build)


def runner() -> Path:
    """The program that runs kernels."""

    def build(out: Path) -> None:
        parts = [str(HEADERS / p) for p in _PARTS]
        _run([compiler(), *_COMMON, "-O2", "-rdynamic", *parts, "-lm", "-ldl", "-o", str(out)])

    return _cached(f"r{_hash(*_PARTS)}", build)


def _precompiled(options: tuple[str, ...]) -> Path:
    """A folder with the header as gcc reads it fastest; the header is most of a compilation."""

    def build(out: Path) -> None:
        out.mkdir()
        if "clang" not in _version():
            header = str(HEADERS / "seer_emulate.h")
            made = str(out / "seer_emulate.h.gch")
            _run([compiler(), *options, f"-I{HEADERS}", "-x", "c++-header", header, "-o", made])

    return _cached(f"h{_hash(*options)}", build)


@functools.lru_cache(maxsize=1)
def _poison() -> tuple[str, ...]:
    """Local variables that nothing has set get large numbers, if the compiler can do that."""
    option = "-ftrivial-auto-var-init=pattern"
    command = [compiler(), option, "-x", "c++", "-fsyntax-only", os.devnull]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_LIMIT_S)
    return () if done.returncode else (option,)


def _cached(name: str, build: Callable[[Path], None]) -> Path:
    """The file or folder `name` of the cache; `build` makes it, unseen until it is whole."""
    out = _cache_folder() / name
    if not out.exists():
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            made = Path(scratch) / name
            build(made)
            try:
                made.rename(out)
            except OSError:  # another process was faster with a folder
                if not out.exists():
                    raise
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
    """What compiled code depends on beside its source: compiler, processor, and the emulator."""
    cpu = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        cpu += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return _version() + cpu + "".join(_own_files())


@functools.lru_cache(maxsize=1)
def _version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout


def _own_files() -> list[str]:
    return [p.read_text() for p in sorted(HEADERS.iterdir()) if p.suffix in (".cpp", ".h")]


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join((_identity(), *texts)).encode()).hexdigest()[:24]
