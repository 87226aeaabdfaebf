"""The small functions that generated CUDA C calls, beside the intrinsics that an emulator replaces."""

from __future__ import annotations

from collections.abc import Collection

from seer.codegen.cuda.intrinsics import device_prelude
from seer.dtypes import is_narrow

_ALWAYS = (
    *("seer_load4", "seer_store4", "seer_make4", "seer_fma", "seer_shuffle_xor"),
    "seer_dynamic_shared",
)
_NARROW = (
    *("seer_half_to_float", "seer_float_to_half", "seer_bf16_to_float", "seer_float_to_bf16"),
    *(f"seer_{what}{n}_16" for what in ("load", "store", "make") for n in (2, 4)),
)
_COPIES = (
    *(f"seer_cp_async_{n}{zero}" for n in (4, 8, 16) for zero in ("", "_or_zero")),
    *("seer_cp_async_commit", "seer_cp_async_wait"),
)
_MATRICES = {
    "float32": ("seer_float_to_tf32", "seer_mma_m16n8k8_tf32"),
    "bfloat16": ("seer_bf162", "seer_mma_m16n8k16_bf16", "seer_load2"),
}
_MATRICES["float16"] = ("seer_mma_m16n8k16_f16", *_MATRICES["bfloat16"])

_MATH = r"""
// The larger and the smaller of two; of floats NaN if one is, which the second test lets through.
template <typename T>
__device__ __forceinline__ T seer_max(T a, T b) { return (a > b || a != a) ? a : b; }
template <typename T>
__device__ __forceinline__ T seer_min(T a, T b) { return (a < b || a != a) ? a : b; }
__device__ __forceinline__ float seer_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ double seer_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
// Quotient and remainder of numbers that may be negative, rounded down.
template <typename T>
__device__ __forceinline__ T seer_floordiv(T a, T b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
template <typename T>
__device__ __forceinline__ T seer_floormod(T a, T b) {
  T r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}
""".lstrip()

# What a tensor core of 16 bits takes: pairs of neighbouring terms in a register. A float32 is the sum of
# two of bfloat16, with 16 bits and its own range (float16 has neither), and a float16 is such a sum too.
_PAIRS = r"""
template <int n>
__device__ __forceinline__ void seer_pairs(const unsigned short (&x)[2 * n], unsigned (&to)[n]) {
  #pragma unroll
  for (int i = 0; i < n; ++i) to[i] = x[2 * i] | (unsigned)x[2 * i + 1] << 16;
}
template <int n>
__device__ __forceinline__ void seer_split(
    const float (&x)[2 * n], unsigned (&big)[n], unsigned (&small)[n]) {
  #pragma unroll
  for (int i = 0; i < n; ++i) {
    big[i] = seer_bf162(x[2 * i], x[2 * i + 1]);
    small[i] = seer_bf162(x[2 * i] - __uint_as_float(big[i] << 16),
                          x[2 * i + 1] - __uint_as_float(big[i] & 0xffff0000u));
  }
}
""".lstrip()


def _of_one_type(name: str, ptx: str) -> str:
    """Both factors as they are: one product of tensor cores."""
    return f"""__device__ __forceinline__ void seer_mma_{name}(
    float (&d)[4], const unsigned short (&a)[8], const unsigned short (&b)[4]) {{
  unsigned left[4], right[2];
  seer_pairs<4>(a, left);
  seer_pairs<2>(b, right);
  seer_mma_m16n8k16_{ptx}(d, left, right);
}}
"""


# bfloat16 times bfloat16 is one product of tensor cores, times float32 it is two.
_PRODUCT_OF_BF16 = (
    _of_one_type("bf16", "bf16")
    + r"""
__device__ __forceinline__ void seer_mma_bf16(
    float (&d)[4], const float (&a)[8], const unsigned short (&b)[4]) {
  unsigned big[4], small[4], right[2];
  seer_split<4>(a, big, small);
  seer_pairs<2>(b, right);
  seer_mma_m16n8k16_bf16(d, small, right);
  seer_mma_m16n8k16_bf16(d, big, right);
}
__device__ __forceinline__ void seer_mma_bf16(
    float (&d)[4], const unsigned short (&a)[8], const float (&b)[4]) {
  unsigned left[4], big[2], small[2];
  seer_pairs<4>(a, left);
  seer_split<2>(b, big, small);
  seer_mma_m16n8k16_bf16(d, left, small);
  seer_mma_m16n8k16_bf16(d, left, big);
}
""".lstrip()
)

# float16 times float16 is one product; times float32 it is three of bfloat16, since what is beyond
# 65504 is no float16. The product of the small parts is left out.
_PRODUCT_OF_HALF = (
    _of_one_type("half", "f16")
    + r"""
__device__ __forceinline__ void seer_mma_split(float (&d)[4], const float (&a)[8], const float (&b)[4]) {
  unsigned big_a[4], small_a[4], big_b[2], small_b[2];
  seer_split<4>(a, big_a, small_a);
  seer_split<2>(b, big_b, small_b);
  seer_mma_m16n8k16_bf16(d, small_a, big_b);
  seer_mma_m16n8k16_bf16(d, big_a, small_b);
  seer_mma_m16n8k16_bf16(d, big_a, big_b);
}
template <int n>
__device__ __forceinline__ void seer_widen(const unsigned short (&x)[n], float (&to)[n]) {
  #pragma unroll
  for (int i = 0; i < n; ++i) to[i] = seer_half_to_float(x[i]);
}
__device__ __forceinline__ void seer_mma_half(
    float (&d)[4], const float (&a)[8], const unsigned short (&b)[4]) {
  float wide[4];
  seer_widen<4>(b, wide);
  seer_mma_split(d, a, wide);
}
__device__ __forceinline__ void seer_mma_half(
    float (&d)[4], const unsigned short (&a)[8], const float (&b)[4]) {
  float wide[8];
  seer_widen<8>(a, wide);
  seer_mma_split(d, wide, b);
}
""".lstrip()
)

# Matrices of a warp. Each float32 is a sum of two numbers that tensor cores take, tf32 with 11 bits;
# of the four products the smallest is left out, and the result is as good as one of float32.
_MATRIX_PRODUCT = r"""
__device__ __forceinline__ void seer_mma_3xtf32(
    float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  unsigned big_a[4], small_a[4], big_b[2], small_b[2];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    big_a[i] = seer_float_to_tf32(a[i]);
    small_a[i] = seer_float_to_tf32(a[i] - __uint_as_float(big_a[i]));
  }
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    big_b[i] = seer_float_to_tf32(b[i]);
    small_b[i] = seer_float_to_tf32(b[i] - __uint_as_float(big_b[i]));
  }
  seer_mma_m16n8k8_tf32(d, small_a, big_b);
  seer_mma_m16n8k8_tf32(d, big_a, small_b);
  seer_mma_m16n8k8_tf32(d, big_a, big_b);
}
""".lstrip()

_PRODUCTS = {"float32": _MATRIX_PRODUCT, "bfloat16": _PRODUCT_OF_BF16, "float16": _PRODUCT_OF_HALF}


def prelude(has_narrow: bool = False, matrices: Collection[str] = (), has_copies: bool = False) -> str:
    """The start of a source: what its kernels may call.

    Args:
        has_narrow: whether there are 16-bit floats.
        matrices: the types of the matrices that warps multiply: float32 (both factors) or of 16 bits (one).
        has_copies: whether copies to shared memory are started ahead.
    """
    names = [*_ALWAYS, *(_NARROW if has_narrow else ()), *(_COPIES if has_copies else ())]
    parts = [_PAIRS] if any(map(is_narrow, matrices)) else []
    for dtype, text in _PRODUCTS.items():
        if dtype in matrices:
            names += _MATRICES[dtype]
            parts.append(text)
    return "".join([device_prelude(names), _MATH, *parts])
