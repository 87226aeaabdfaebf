// Half precision, tensor cores and asynchronous copies, emulated.
#pragma once
#include "seer_runtime.h"

namespace seer_emu {

// Conversions of bit patterns, rounding to nearest even.
inline float float_of_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {
    float value = (float)fraction * 0x1p-24f;
    return sign ? -value : value;
  }
  return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
inline uint16_t half_of_float(float f) {
  uint32_t u = bits<uint32_t>(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000u) {                                   // below the smallest normal number
    float scaled = bits<float>(magnitude) * 0x1p24f;
    return (uint16_t)(sign | (uint32_t)rintf(scaled));
  }
  uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}
inline float float_of_bf16(uint16_t h) { return bits<float>((uint32_t)h << 16); }
inline uint16_t bf16_of_float(float f) {
  uint32_t u = bits<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline uint32_t tf32_of_float(float f) {  // cvt.rna: ties away from zero
  uint32_t u = bits<uint32_t>(f);
  if ((u & 0x7f800000u) == 0x7f800000u) return u;
  return (u + 0x1000u) & 0xffffe000u;
}

// D = A * B + D of a warp. Each lane holds the fragments that the PTX manual gives it: with
// g = lane / 4 and t = lane % 4, D is (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
struct Fragments {
  uint32_t a[4], b[2];
};
// Value: (register, position in it) -> float; `per` values are in a register.
template <unsigned per, class Value>
SEER_UNWATCHED void multiply_all(Exchange& e, Value value) {
  constexpr unsigned depth = 8 * per;
  float left[16][depth], right[depth][8];
  for (unsigned lane = 0; lane < warp_lanes; lane++) {
    Fragments f;
    memcpy(&f, e.values[lane], sizeof f);
    const unsigned g = lane / 4, t = lane % 4;
    // K is two halves; in each the lanes t = 0..3 hold `per` values one after another.
    for (unsigned half = 0; half < 2; half++)
      for (unsigned p = 0; p < per; p++) {
        const unsigned k = half * 4 * per + t * per + p;
        left[g][k] = value(f.a[2 * half], p);
        left[g + 8][k] = value(f.a[2 * half + 1], p);
        right[k][g] = value(f.b[half], p);
      }
  }
  for (unsigned m = 0; m < 16; m++) {
    double sums[8] = {};
    for (unsigned k = 0; k < depth; k++)
      for (unsigned n = 0; n < 8; n++) sums[n] += (double)left[m][k] * (double)right[k][n];
    memcpy(e.products[m], sums, sizeof sums);
  }
  e.is_multiplied = true;
}

template <unsigned per, class Value>
SEER_UNWATCHED void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char* what,
                             int line, Value value) {
  Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  Exchange* e = warp_exchange(&mine, sizeof mine, 0xffffffffu, what, line);
  if (e->lanes != 0xffffffffu) fault_at("warp divergence", line, "%s needs all 32 lanes of a warp", what);
  if (!e->is_multiplied) multiply_all<per>(*e, value);  // once for the warp
  const unsigned lane = lane_of_thread(), g = lane / 4, column = lane % 4 * 2;
  for (unsigned i = 0; i < 4; i++) d[i] = (float)((double)d[i] + e->products[g + i / 2 * 8][column + i % 2]);
}

inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  multiply<1>(d, a, b, "mma.m16n8k8.tf32", line,
              [](uint32_t r, unsigned) { return bits<float>(r & 0xffffe000u); });
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  multiply<2>(d, a, b, "mma.m16n8k16.f16", line,
              [](uint32_t r, unsigned p) { return float_of_half((uint16_t)(r >> 16 * p)); });
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  multiply<2>(d, a, b, "mma.m16n8k16.bf16", line,
              [](uint32_t r, unsigned p) { return float_of_bf16((uint16_t)(r >> 16 * p)); });
}

// ldmatrix: lane 8 * m + r gives the address of row r (16 bytes) of matrix m; each lane receives
// 4 bytes of each matrix, of row lane / 4.
template <unsigned matrices>
SEER_UNWATCHED void load_matrices(uint32_t (&to)[matrices], const void* row, int line) {
  const Exchange* e = warp_exchange(&row, sizeof row, 0xffffffffu, "ldmatrix", line);
  if (e->lanes != 0xffffffffu) fault_at("warp divergence", line, "ldmatrix needs all 32 lanes of a warp");
  const unsigned lane = lane_of_thread();
  for (unsigned m = 0; m < matrices; m++) {
    const char* from;
    memcpy(&from, e->values[8 * m + lane / 4], sizeof from);
    to[m] = load_word(from + 4 * (lane % 4), line);
  }
}

}  // namespace seer_emu

// The types and conversions of cuda_fp16.h and cuda_bf16.h that kernels may use.
struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
inline __half __float2half(float a) { return {seer_emu::half_of_float(a)}; }
inline __half __float2half_rn(float a) { return {seer_emu::half_of_float(a)}; }
inline float __half2float(__half a) { return seer_emu::float_of_half(a.bits); }
inline __nv_bfloat16 __float2bfloat16(float a) { return {seer_emu::bf16_of_float(a)}; }
inline __nv_bfloat16 __float2bfloat16_rn(float a) { return {seer_emu::bf16_of_float(a)}; }
inline float __bfloat162float(__nv_bfloat16 a) { return seer_emu::float_of_bf16(a.bits); }
inline uint16_t __half_as_ushort(__half a) { return a.bits; }
inline __half __ushort_as_half(uint16_t a) { return {a}; }
