"""CUDA C read as far as emulation needs it: the kernels, their parameters, their shared arrays."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from seer.codegen.cuda.intrinsics import emulated_prelude
from seer.errors import UserError

# The element types of parameters, and the NumPy dtypes whose memory they can be.
_DTYPES = {
    "float": ("float32",),
    "double": ("float64",),
    "int": ("int32",),
    "unsigned": ("uint32",),
    "unsigned int": ("uint32",),
    "long": ("int64",),
    "long long": ("int64",),
    "unsigned long long": ("uint64",),
    "short": ("int16",),
    "unsigned short": ("uint16", "float16"),
    "char": ("int8", "bool"),
    "signed char": ("int8",),
    "unsigned char": ("uint8", "bool"),
    "bool": ("bool",),
    "__half": ("float16", "uint16"),
    "__nv_bfloat16": ("uint16",),
    "int8_t": ("int8",),
    "uint8_t": ("uint8", "bool"),
    "int16_t": ("int16",),
    "uint16_t": ("uint16", "float16"),
    "int32_t": ("int32",),
    "uint32_t": ("uint32",),
    "int64_t": ("int64",),
    "uint64_t": ("uint64",),
    "float2": ("float32",),
    "float4": ("float32",),
    "int2": ("int32",),
    "int4": ("int32",),
    "uint4": ("uint32",),
}
_REAL = {"float", "double"}
_BLOCKING = re.compile(r"__sync|_sync\b|\bseer_(?:shuffle|mma|ldmatrix|cp_async)")
_KERNEL = re.compile(
    r"__global__\s+(?P<head>[^;{()]*(?:\([^()]*\)[^;{()]*)?)\b(?P<name>\w+)\s*\((?P<params>[^{;]*?)\)\s*\{"
)
_SHARED = re.compile(r"(?P<extern>extern\s+)?__shared__\s+(?P<body>[^;]*);")
_ALIGN = re.compile(r"(?:__align__|alignas)\s*\(\s*(\w+)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        type_name: of the value, or of the elements that it points to, without qualifiers.
        is_constant: a pointer through which nothing may be written.
        dtypes: NumPy dtypes that an array for it may have; empty if any may.
    """

    name: str
    type_name: str
    is_pointer: bool
    is_constant: bool

    @property
    def dtypes(self) -> tuple[str, ...]:
        return _DTYPES.get(self.type_name, ())

    @property
    def is_real(self) -> bool:
        return self.type_name in _REAL


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A `__global__` function: `max_threads` is 0 without __launch_bounds__."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int


@dataclass(frozen=True, slots=True)
class Translation:
    """A source made ready for a C++ compiler; lines have the numbers that they have in the source.

    Attributes:
        is_blocking: threads may wait for each other, so each needs a stack of its own.
    """

    text: str
    kernels: dict[str, KernelSource]
    is_blocking: bool


@functools.lru_cache(maxsize=256)
def translate(source: str, checked: bool) -> Translation:
    """The C++ of a CUDA source.

    Raises:
        UserError: if it has no kernel, or a declaration that is not understood.
    """
    code = _without_comments(source)
    kernels = {m["name"]: _kernel(m) for m in _KERNEL.finditer(code)}
    if not kernels:
        raise UserError("the CUDA source has no __global__ function")
    numbers = iter(range(len(code)))
    body = _SHARED.sub(lambda m: _shared(m, next(numbers), checked), code)
    table = "".join(
        f'{{"{k}", [](const seer_emu::Argument* a) {{ seer_emu::call(::{k}, a); }}}}, ' for k in kernels
    )
    text = (
        f'#include "seer_emulate.h"\n{emulated_prelude()}'
        f'#line 1 "kernel.cu"\n{body}\n'
        f'extern "C" const seer_emu::Kernel seer_emu::seer_kernels[] = {{{table}{{nullptr, nullptr}}}};\n'
    )
    return Translation(text, kernels, _BLOCKING.search(_without_device_prelude(code)) is not None)


def _without_comments(source: str) -> str:
    """Comments become blanks; lines stay lines, and strings stay."""

    def blank(m: re.Match[str]) -> str:
        text = m.group()
        return text if text[0] in "\"'" else re.sub(r"[^\n]", " ", text)

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, source, flags=re.S)


def _without_device_prelude(code: str) -> str:
    return re.sub(r"#ifndef SEER_EMULATE\b.*?\n#endif\n", "", code, flags=re.S)


def _kernel(m: re.Match[str]) -> KernelSource:
    bounds = re.search(r"__launch_bounds__\s*\(\s*(\d+)", m["head"])
    parameters = tuple(_parameter(p, m["name"]) for p in _split(m["params"]) if p.strip() not in ("", "void"))
    return KernelSource(m["name"], parameters, int(bounds[1]) if bounds else 0)


def _parameter(text: str, kernel: str) -> Parameter:
    m = re.fullmatch(r"(?P<type>.*?[\s*])(?P<name>\w+)", text.strip(), flags=re.S)
    if m is None:
        raise UserError(f"kernel {kernel}: cannot read the parameter {text.strip()!r}")
    words = re.sub(r"\b(__restrict__|__restrict|volatile)\b", " ", m["type"])
    pointee, star, _ = words.partition("*")
    is_constant = bool(star) and re.search(r"\bconst\b", pointee) is not None
    type_name = " ".join(re.sub(r"\bconst\b", " ", pointee).split())
    return Parameter(m["name"], type_name, bool(star), is_constant)


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    out, depth = [""], 0
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return out


def _shared(m: re.Match[str], number: int, checked: bool) -> str:
    """A shared array lies where the emulator puts it, between guards; in fast mode it is static."""
    line_ends = "\n" * m.group().count("\n")
    align = _ALIGN.search(m["body"])
    body = " ".join(_ALIGN.sub("", m["body"]).split())
    first, *others = _split(body)
    head = re.fullmatch(r"(?P<type>.+?[\s>])(?P<name>\w+)\s*(?P<dims>(?:\[[^]]*\]\s*)*)", first)
    if head is None:
        raise UserError(f"cannot read the declaration {m.group().strip()!r}")
    kind = head["type"].strip()
    if m["extern"]:
        return f"{kind}* {head['name']} = ({kind}*)seer_emu::dynamic_shared();{line_ends}"
    if not checked:
        alignment = f"alignas({align[1]}) " if align else "alignas(16) "
        return f"{alignment}static {body};{line_ends}"
    out = []
    for k, declarator in enumerate([f"{head['name']}{head['dims']}", *others]):
        d = re.fullmatch(r"\s*(\w+)\s*((?:\[[^]]*\]\s*)*)", declarator)
        if d is None:
            raise UserError(f"cannot read the declaration {m.group().strip()!r}")
        array = f"seer_type_{number}_{k}"
        place = f'seer_emu::shared_array({number * 16 + k}, "{d[1]}", sizeof({array}), sizeof({kind}))'
        out.append(f"using {array} = {kind}{d[2]}; {array}& {d[1]} = *({array}*){place};")
    return " ".join(out) + line_ends
