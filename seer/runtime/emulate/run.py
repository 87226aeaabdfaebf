"""`emulate`: one launch of a CUDA kernel on NumPy arrays."""

from __future__ import annotations

import json
import mmap
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from seer.errors import EmulationError, UserError
from seer.runtime.emulate.compiler import library, runner, source_line
from seer.runtime.emulate.source import KernelSource, Parameter, translate

Order = Literal["forward", "reverse", "random"]

MAX_THREADS = 1024
_ORDERS = {"forward": "f", "reverse": "r", "random": "x"}
_PAGE = 4096
_GUARD_BYTES = 1 << 20
_SHARED_RESERVE = 512 << 20  # address space for shared arrays and their guards
_LIMIT_S = 60.0


def emulate(
    source: str,
    name: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arrays: Sequence[Any],
    *,
    shared_bytes: int = 0,
    checked: bool = True,
    order: Order = "forward",
    seed: int = 0,
    uninitialized: Collection[str] = (),
    limit_s: float = _LIMIT_S,
) -> float:
    """Run `name<<<grid, block, shared_bytes>>>(*arrays)`; arrays are changed in place.

    Args:
        source: CUDA C.
        name: a `__global__` function of the source, with C linkage.
        grid: blocks, 1 to 3 numbers (x first).
        block: threads of a block, likewise.
        arrays: a C-contiguous array for each pointer parameter, a number for each other.
        shared_bytes: dynamic shared memory of a block.
        checked: watch every access to memory; about ten times slower.
        order: in which order threads and blocks run.
        seed: of the random order.
        uninitialized: parameters whose elements must not be read before they are written.
        limit_s: seconds after which the launch is ended.

    Returns:
        Seconds that the launch took on this CPU.

    Raises:
        EmulationError: if the kernel does what it must not.
        UserError: if the arguments do not fit the kernel.
        BuildError: if the source does not compile.
        TargetError: if this machine has no C++ compiler.
    """
    translation = translate(source, checked)
    kernel = translation.kernels.get(name)
    if kernel is None:
        raise UserError(f"the CUDA source has no kernel {name!r}; it has {', '.join(translation.kernels)}")
    shape = (*_dim3(grid, "grid"), *_dim3(block, "block"))
    _check_block(kernel, shape[3:])
    if order not in _ORDERS:
        raise UserError(f"order is {order!r}; it must be one of {', '.join(_ORDERS)}")
    launch = _Launch(kernel, arrays, uninitialized)
    if 0 in shape[:3]:
        return 0.0
    binary = library(translation.text, checked)
    fibers = checked or translation.is_blocking
    head = [name, *shape, shared_bytes, int(checked), int(fibers), _ORDERS[order], seed % 2**64]
    return launch.run(binary, head, limit_s, source)


class _Launch:
    """The arguments of a launch, in a file that the child process shares."""

    def __init__(self, kernel: KernelSource, values: Sequence[Any], uninitialized: Collection[str]) -> None:
        if len(values) != len(kernel.parameters):
            raise UserError(
                f"kernel {kernel.name} has {len(kernel.parameters)} parameters, given {len(values)} arguments"
            )
        self._kernel = kernel
        self._arrays: list[tuple[np.ndarray, int, bool]] = []  # array, offset in the file, is it written
        self._words: list[object] = []
        self._size = 0
        self._reserve = _SHARED_RESERVE
        for p, value in zip(kernel.parameters, values, strict=True):
            if p.is_pointer:
                self._add_array(p, value, p.name not in uninitialized)
            elif p.is_real:
                self._words += ["f", float(value).hex()]
            else:
                self._words += ["i", int(value)]

    def _add_array(self, p: Parameter, array: Any, is_initialised: bool) -> None:
        where = f"kernel {self._kernel.name}: {p.name}"
        if not isinstance(array, np.ndarray):
            raise UserError(f"{where} is a pointer and needs an array, found {type(array).__name__}")
        if p.dtypes and array.dtype.name not in p.dtypes:
            raise UserError(f"{where} points to {p.type_name}, found an array of {array.dtype}")
        if not array.flags.c_contiguous:
            raise UserError(f"{where} needs a C-contiguous array")
        if not (p.is_constant or array.flags.writeable):
            raise UserError(f"{where} is written to, but the array is read-only")
        self._words += ["p", p.name, self._size, array.nbytes, array.itemsize]
        self._words += [int(not p.is_constant), int(is_initialised)]
        self._arrays.append((array, self._size, not p.is_constant))
        self._size += -(-array.nbytes // 64) * 64
        self._reserve += 4 * max(_GUARD_BYTES, array.nbytes) + (1 << 18)

    def run(self, binary: Path, head: list[Any], limit_s: float, source: str) -> float:
        sizes = (self._reserve, self._size, len(self._kernel.parameters))
        request = " ".join(map(str, (*head, *sizes, *self._words)))
        with tempfile.TemporaryFile() as file:
            file.truncate(self._size + _PAGE)
            with mmap.mmap(file.fileno(), self._size + _PAGE) as pages:
                for array, offset, _ in self._arrays:
                    pages[offset : offset + array.nbytes] = array.tobytes()
                answer = self._ask(binary, file.fileno(), request, limit_s, source)
                for array, offset, is_written in self._arrays:
                    if is_written and array.size:
                        new = np.frombuffer(pages, array.dtype, array.size, offset)
                        array[...] = new.reshape(array.shape)
                        del new
        return float(answer["seconds"])

    def _ask(self, binary: Path, fd: int, request: str, limit_s: float, source: str) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [str(runner()), str(binary), str(fd)],
                input=request,
                capture_output=True,
                text=True,
                timeout=limit_s,
                pass_fds=[fd],
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EmulationError(
                f"kernel {self._kernel.name}: no end within {limit_s:g} s",
                fault="timeout",
                kernel=self._kernel.name,
            ) from None
        lines = done.stdout.splitlines()
        answer: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        if "seconds" in answer:
            return answer
        if not answer:
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            answer = {"fault": "crash", "message": f"the emulation ended with {how}"}
        _raise(self._kernel.name, binary, answer, source)


def _raise(kernel: str, binary: Path, answer: dict[str, Any], source: str) -> NoReturn:
    """Turn the child's report into an error with the source line."""
    line = int(answer.get("line", 0)) or source_line(binary, int(answer.get("pc", 0)))
    other = source_line(binary, int(answer.get("other_pc", 0)))
    text = source.splitlines()
    block, thread = answer.get("block"), answer.get("thread")
    where = f"kernel {kernel}"
    if block is not None and thread is not None:
        where += f", block {tuple(block)}, thread {tuple(thread)}"
    message = f"{answer['fault']}: {where}: {answer['message']}"
    for number, role in ((line, "line"), (other, "the other access: line")):
        if 0 < number <= len(text):
            message += f"\n  {role} {number}: {text[number - 1].strip()}"
    raise EmulationError(
        message,
        fault=str(answer["fault"]),
        kernel=kernel,
        block=None if block is None else tuple(block),
        thread=None if thread is None else tuple(thread),
        array=answer.get("array"),
        line=line or None,
    )


def _dim3(sizes: Sequence[int], what: str) -> tuple[int, int, int]:
    if not 1 <= len(sizes) <= 3 or any(int(n) < 0 for n in sizes):
        raise UserError(f"{what} needs 1 to 3 sizes, found {tuple(sizes)}")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def _check_block(kernel: KernelSource, block: Sequence[int]) -> None:
    threads = block[0] * block[1] * block[2]
    if not 1 <= threads <= MAX_THREADS or block[2] > 64:
        raise UserError(
            f"kernel {kernel.name}: a block of {tuple(block)} has {threads} threads, not 1 to 1024"
        )
    if kernel.max_threads and threads > kernel.max_threads:
        raise UserError(
            f"kernel {kernel.name}: {threads} threads a block, __launch_bounds__ says {kernel.max_threads}"
        )
