"""The small functions that generated CUDA C calls, beside the intrinsics that an emulator replaces."""

from __future__ import annotations

from seer.codegen.cuda.intrinsics import device_prelude

_ALWAYS = ("seer_load4", "seer_store4", "seer_make4", "seer_fma", "seer_shuffle_xor")
_NARROW = ("seer_half_to_float", "seer_float_to_half", "seer_bf16_to_float", "seer_float_to_bf16")
_COPIES = (*(f"seer_cp_async_{n}" for n in ("4", "16", "4_or_zero", "16_or_zero", "commit", "wait")),)
_MATRICES = ("seer_float_to_tf32", "seer_mma_m16n8k8_tf32")

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


def prelude(has_narrow: bool = False, has_matrices: bool = False, has_copies: bool = False) -> str:
    """The start of a source: what its kernels may call.

    Args:
        has_narrow: whether 16-bit floats are converted.
        has_matrices: whether warps multiply matrices.
        has_copies: whether copies to shared memory are started ahead.
    """
    names = [*_ALWAYS, *(_NARROW if has_narrow else ()), *(_MATRICES if has_matrices else ())]
    names += _COPIES if has_copies else ()
    return device_prelude(names) + _MATH + (_MATRIX_PRODUCT if has_matrices else "")
