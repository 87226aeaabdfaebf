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
