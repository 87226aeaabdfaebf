"""The small functions that generated CUDA C calls; an emulator replaces them (SEER_EMULATE)."""

from __future__ import annotations

# With these every kernel compiles; what an emulator does not bring itself stands outside the guard.
PRELUDE = r"""
#ifndef SEER_EMULATE
typedef float4 seer_float4;
__device__ __forceinline__ seer_float4 seer_load4(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ void seer_store4(float* p, seer_float4 v) { *(float4*)p = v; }
__device__ __forceinline__ seer_float4 seer_make4(float x, float y, float z, float w) {
  return make_float4(x, y, z, w);
}
__device__ __forceinline__ float seer_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double seer_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
template <typename T>
__device__ __forceinline__ T seer_shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
#endif
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
MMA_PRELUDE = r"""
#ifndef SEER_EMULATE
__device__ __forceinline__ unsigned seer_float_to_tf32(float value) {
  unsigned out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));
  return out;
}
__device__ __forceinline__ void seer_mma_m16n8k8_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
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
