"""Small functions that generated CUDA C calls: on the device, and on the CPU that emulates it.

Each has one signature and two bodies, so that generated code is the same text for both. The prelude
for the device goes into the source between `#ifndef SEER_EMULATE` and `#endif`; the emulator puts
its own in front. Half-precision values are stored as `unsigned short`; fragments of tensor-core
operations are laid out as the PTX manual says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seer.errors import UserError


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One function.

    Attributes:
        signature: its declaration in C++, without a semicolon.
        device: the body in CUDA C.
        emulated: the body in C++; `seer_line` is the line of the caller.
        template: "" or the template's head.
    """

    signature: str
    device: str
    emulated: str
    template: str = ""

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0].split()[-1]

    @property
    def device_text(self) -> str:
        return f"{self._head}static __device__ __forceinline__ {self.signature} {{\n{self.device}\n}}\n"

    @property
    def emulated_text(self) -> str:
        head, _, parameters = self.signature.rpartition(")")[0].partition("(")
        parameters = f"{parameters}, CALLER_LINE" if parameters else "CALLER_LINE"
        return f"{self._head}inline {head}({parameters}) {{ (void)seer_line; {self.emulated} }}\n"

    @property
    def _head(self) -> str:
        return f"{self.template}\n" if self.template else ""


def _shuffle(name: str, cuda: str, parameter: str) -> Intrinsic:
    return Intrinsic(
        f"T {name}(T value, int {parameter})",
        f"  return {cuda}(0xffffffffu, value, {parameter});",
        f"return {cuda}(0xffffffffu, value, {parameter}, 32, seer_line);",
        template="template <typename T>",
    )


def _same(signature: str, body: str) -> Intrinsic:
    """A function that is the same text for both."""
    return Intrinsic(signature, f"  {body}", body)


def _vectors_of_16_bits(count: int) -> Iterator[Intrinsic]:
    """Loads, stores and makes some neighbours at once."""
    kind, cuda = f"seer_ushort{count}", f"ushort{count}"
    lanes = "xyzw"[:count]
    parameters = ", ".join(f"unsigned short {x}" for x in lanes)
    yield _same(
        f"{kind} seer_load{count}_16(const unsigned short* from)",
        f"return *reinterpret_cast<const {cuda}*>(from);",
    )
    yield _same(
        f"void seer_store{count}_16(unsigned short* to, {kind} value)",
        f"*reinterpret_cast<{cuda}*>(to) = value;",
    )
    yield _same(f"{kind} seer_make{count}_16({parameters})", f"return make_{cuda}({', '.join(lanes)});")


def _mma(name: str, ptx: str, emulated: str) -> Intrinsic:
    return Intrinsic(
        f"void {name}(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])",
        f"""  asm volatile(
      "mma.sync.aligned.{ptx} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));""",
        f"seer_emu::{emulated}(d, a, b, seer_line);",
    )


def _ldmatrix(count: int) -> Intrinsic:
    outputs = ", ".join(f'"=r"(to[{k}])' for k in range(count))
    registers = ", ".join(f"%{k}" for k in range(count))
    return Intrinsic(
        f"void seer_ldmatrix_x{count}(unsigned (&to)[{count}], const void* row)",
        f"""  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{registers}}}, [%{count}];"
               : {outputs} : "r"(address) : "memory");""",
        f"seer_emu::load_matrices<{count}>(to, row, seer_line);",
    )


def _cp_async(size: int, cache: str) -> Intrinsic:
    return Intrinsic(
        f"void seer_cp_async_{size}(void* to, const void* from)",
        f"""  unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size};"
               : : "r"(address), "l"(from) : "memory");""",
        f"seer_emu::copy_async(to, from, {size}, {size}, seer_line);",
    )


def _cp_async_or_zero(size: int, cache: str) -> Intrinsic:
    return Intrinsic(
        f"void seer_cp_async_{size}_or_zero(void* to, const void* from, bool is_valid)",
        f"""  unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"
               : : "r"(address), "l"(from), "r"(is_valid ? {size} : 0) : "memory");""",
        f"seer_emu::copy_async(to, from, {size}, is_valid ? {size} : 0, seer_line);",
    )


_ALL = (
    _shuffle("seer_shuffle", "__shfl_sync", "lane"),
    _shuffle("seer_shuffle_xor", "__shfl_xor_sync", "mask"),
    _shuffle("seer_shuffle_up", "__shfl_up_sync", "delta"),
    _shuffle("seer_shuffle_down", "__shfl_down_sync", "delta"),
    _same("seer_float4 seer_load4(const float* from)", "return *reinterpret_cast<const float4*>(from);"),
    _same("void seer_store4(float* to, seer_float4 value)", "*reinterpret_cast<float4*>(to) = value;"),
    _same("seer_float4 seer_make4(float x, float y, float z, float w)", "return make_float4(x, y, z, w);"),
    _same("seer_float2 seer_load2(const float* from)", "return *reinterpret_cast<const float2*>(from);"),
    *_vectors_of_16_bits(2),
    *_vectors_of_16_bits(4),
    Intrinsic(
        "T& seer_dynamic_shared(int offset)",
        "  extern __shared__ __align__(16) char seer_dynamic[];\n"
        "  return *reinterpret_cast<T*>(seer_dynamic + offset);",
        "return *(T*)seer_emu::dynamic_array(offset, sizeof(T), sizeof(std::remove_extent_t<T>));",
        template="template <typename T>",
    ),
    _same("float seer_fma(float a, float b, float c)", "return __fmaf_rn(a, b, c);"),
    _same("double seer_fma(double a, double b, double c)", "return __fma_rn(a, b, c);"),
    Intrinsic(
        "float seer_half_to_float(unsigned short bits)",
        '  float out;\n  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));\n  return out;',
        "return seer_emu::float_of_half(bits);",
    ),
    Intrinsic(
        "unsigned short seer_float_to_half(float value)",
        '  unsigned short out;\n  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));\n  return out;',
        "return seer_emu::half_of_float(value);",
    ),
    Intrinsic(
        "float seer_bf16_to_float(unsigned short bits)",
        "  return __uint_as_float((unsigned)bits << 16);",
        "return seer_emu::float_of_bf16(bits);",
    ),
    Intrinsic(
        "unsigned short seer_float_to_bf16(float value)",
        """#if __CUDA_ARCH__ >= 800
  unsigned short out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
#else
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif""",
        "return seer_emu::bf16_of_float(value);",
    ),
    Intrinsic(
        "unsigned seer_float_to_tf32(float value)",
        '  unsigned out;\n  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));\n  return out;',
        "return seer_emu::tf32_of_float(value);",
    ),
    Intrinsic(
        "unsigned seer_half2(float low, float high)",
        '  unsigned out;\n  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));\n'
        "  return out;",
        "return seer_emu::half_of_float(low) | (unsigned)seer_emu::half_of_float(high) << 16;",
    ),
    Intrinsic(
        "unsigned seer_bf162(float low, float high)",
        '  unsigned out;\n  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));\n'
        "  return out;",
        "return seer_emu::bf16_of_float(low) | (unsigned)seer_emu::bf16_of_float(high) << 16;",
    ),
    _mma("seer_mma_m16n8k8_tf32", "m16n8k8.row.col.f32.tf32.tf32.f32", "mma_tf32"),
    _mma("seer_mma_m16n8k16_f16", "m16n8k16.row.col.f32.f16.f16.f32", "mma_f16"),
    _mma("seer_mma_m16n8k16_bf16", "m16n8k16.row.col.f32.bf16.bf16.f32", "mma_bf16"),
    _ldmatrix(2),
    _ldmatrix(4),
    _cp_async(4, "ca"),
    _cp_async(8, "ca"),
    _cp_async(16, "cg"),
    _cp_async_or_zero(4, "ca"),
    _cp_async_or_zero(8, "ca"),
    _cp_async_or_zero(16, "cg"),
    Intrinsic(
        "void seer_cp_async_commit()",
        '  asm volatile("cp.async.commit_group;" : : : "memory");',
        "seer_emu::copy_async_commit();",
    ),
    Intrinsic(
        "void seer_cp_async_wait()",
        '  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");',
        "seer_emu::copy_async_wait(pending, seer_line);",
        template="template <int pending>",
    ),
)
INTRINSICS = tuple(dict.fromkeys(i.name for i in _ALL))

_TYPES = """typedef float2 seer_float2;
typedef float4 seer_float4;
typedef ushort2 seer_ushort2;
typedef ushort4 seer_ushort4;
"""

# NVRTC has no headers, and so no such macros.
_MACROS = """#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
"""


def device_prelude(names: Iterable[str] | None = None) -> str:
    """The definitions for the device, for the start of a source.

    Args:
        names: the functions that the source calls; all of them by default.

    Raises:
        UserError: if a name is not in the table.
    """
    wanted = list(INTRINSICS) if names is None else list(names)
    for name in wanted:
        if name not in INTRINSICS:
            raise UserError(f"no intrinsic {name!r}; there are {', '.join(INTRINSICS)}")
    body = "".join(i.device_text for i in _ALL if i.name in wanted)
    return f"{_MACROS}#ifndef SEER_EMULATE\n{_TYPES}{body}#endif\n"


def emulated_prelude() -> str:
    """The definitions for the emulator's compiler."""
    return _TYPES + "".join(i.emulated_text for i in _ALL)
