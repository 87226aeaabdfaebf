// CUDA C for a C++ compiler: included before a kernel's source.
#pragma once
#define SEER_EMULATE 1
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "seer_runtime.h"

#define __global__
#define __device__ static
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __ldg(p) (*(p))

constexpr int warpSize = 32;

// For code that reads memory of the emulator, which is none of the device's.
#define SEER_UNWATCHED __attribute__((no_sanitize("thread")))

#define CALLER_LINE int seer_line = __builtin_LINE()

// Barriers. The line tells one from another.
#define __syncthreads() ::seer_emu::barrier(__LINE__)
inline void __syncwarp(unsigned mask = 0xffffffffu, CALLER_LINE) { seer_emu::warp_barrier(mask, seer_line); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Warp shuffles.
namespace seer_emu {
template <class T>
SEER_UNWATCHED T shuffle(unsigned mask, T value, unsigned source, const char* what, int line) {
  static_assert(sizeof(T) <= deposit_bytes);
  const Exchange* e = warp_exchange(&value, sizeof value, mask, what, line);
  if (!(e->lanes >> source & 1))
    fault_at("warp divergence", line, "%s reads lane %u, which does not take part", what, source);
  T out;
  memcpy(&out, e->values[source], sizeof out);
  return out;
}
}  // namespace seer_emu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CALLER_LINE) {
  unsigned lane = seer_emu::lane_of_thread(), first = lane & ~(unsigned)(width - 1);
  return seer_emu::shuffle(mask, value, first + ((unsigned)source & (unsigned)(width - 1)), "__shfl_sync", seer_line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, CALLER_LINE) {
  unsigned lane = seer_emu::lane_of_thread(), source = lane ^ (unsigned)lane_mask;
  if (source / (unsigned)width > lane / (unsigned)width) source = lane;
  return seer_emu::shuffle(mask, value, source, "__shfl_xor_sync", seer_line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CALLER_LINE) {
  unsigned lane = seer_emu::lane_of_thread();
  bool is_inside = lane % (unsigned)width + delta < (unsigned)width;
  return seer_emu::shuffle(mask, value, is_inside ? lane + delta : lane, "__shfl_down_sync", seer_line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CALLER_LINE) {
  unsigned lane = seer_emu::lane_of_thread();
  bool is_inside = lane % (unsigned)width >= delta;
  return seer_emu::shuffle(mask, value, is_inside ? lane - delta : lane, "__shfl_up_sync", seer_line);
}
SEER_UNWATCHED inline unsigned __ballot_sync(unsigned mask, int predicate, CALLER_LINE) {
  const seer_emu::Exchange* e = seer_emu::warp_exchange(&predicate, sizeof predicate, mask, "__ballot_sync", seer_line);
  unsigned out = 0;
  for (unsigned lane = 0; lane < 32; lane++) {
    int value;
    memcpy(&value, e->values[lane], sizeof value);
    if ((e->lanes >> lane & 1) && value) out |= 1u << lane;
  }
  return out;
}

// Atomic updates. Threads run one at a time, so only the checks must know of them.
namespace seer_emu {
template <class T>
struct Same {
  using type = T;
};
template <class T, class F>
SEER_UNWATCHED T exchange(T* p, F combine) {
  T old = *p;
  *p = combine(old);
  return old;
}
}  // namespace seer_emu
#define SEER_ATOMIC(name, combined)                                       \
  template <class T>                                                      \
  T name(T* p, typename seer_emu::Same<T>::type value, CALLER_LINE) {       \
    seer_emu::access_atomic(p, sizeof(T), seer_line);                     \
    return seer_emu::exchange(p, [&](T old) -> T { return combined; });   \
  }
SEER_ATOMIC(atomicAdd, old + value)
SEER_ATOMIC(atomicMax, old > value ? old : value)
SEER_ATOMIC(atomicMin, old < value ? old : value)
SEER_ATOMIC(atomicExch, ((void)old, value))
template <class T>
T atomicCAS(T* p, typename seer_emu::Same<T>::type compare, typename seer_emu::Same<T>::type value, CALLER_LINE) {
  seer_emu::access_atomic(p, sizeof(T), seer_line);
  return seer_emu::exchange(p, [&](T old) -> T { return old == compare ? value : old; });
}

// Vectors: as large as CUDA's, and as strictly aligned.
#define SEER_VECTORS(T, name)                                                    \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                             \
  struct name##3 { T x, y, z; };                                                 \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                     \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SEER_VECTORS(float, float)
SEER_VECTORS(double, double)
SEER_VECTORS(int, int)
SEER_VECTORS(short, short)
SEER_VECTORS(unsigned short, ushort)
SEER_VECTORS(signed char, char)
SEER_VECTORS(unsigned char, uchar)
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Arithmetic that CUDA names and C++ does not.
namespace seer_emu {
template <class To, class From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}
}  // namespace seer_emu
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
// glibc declares functions of these names, so the device's are macros.
inline float seer_fast_exp(float a) { return expf(a); }
inline float seer_fast_log(float a) { return logf(a); }
inline float seer_fast_pow(float a, float b) { return powf(a, b); }
inline float seer_fast_exp10(float a) { return powf(10.0f, a); }
#define __expf seer_fast_exp
#define __logf seer_fast_log
#define __powf seer_fast_pow
#define __exp10f seer_fast_exp10
#define __sinf sinf
#define __cosf cosf
#define __log2f log2f
inline int __float_as_int(float a) { return seer_emu::bits<int>(a); }
inline unsigned __float_as_uint(float a) { return seer_emu::bits<unsigned>(a); }
inline float __int_as_float(int a) { return seer_emu::bits<float>(a); }
inline float __uint_as_float(unsigned a) { return seer_emu::bits<float>(a); }
inline double __longlong_as_double(long long a) { return seer_emu::bits<double>(a); }
inline long long __double_as_longlong(double a) { return seer_emu::bits<long long>(a); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz((unsigned)a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
#define SEER_MIN_MAX(T)                                 \
  inline T min(T a, T b) { return b < a ? b : a; }      \
  inline T max(T a, T b) { return a < b ? b : a; }
SEER_MIN_MAX(int)
SEER_MIN_MAX(unsigned)
SEER_MIN_MAX(long)
SEER_MIN_MAX(unsigned long)
SEER_MIN_MAX(long long)
SEER_MIN_MAX(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

#include "seer_tensor.h"

// One call of a kernel whose parameters are known only to the compiler.
namespace seer_emu {
template <class T>
SEER_UNWATCHED T value_of(const Argument& a) {
  if constexpr (std::is_pointer_v<T>)
    return (T)a.pointer;
  else if constexpr (std::is_floating_point_v<T>)
    return (T)a.real;
  else
    return (T)a.integer;
}
template <class... P, size_t... I>
SEER_UNWATCHED void call_with(void (*kernel)(P...), const Argument* a, std::index_sequence<I...>) {
  kernel(value_of<P>(a[I])...);
}
template <class... P>
void call(void (*kernel)(P...), const Argument* a) {
  call_with(kernel, a, std::index_sequence_for<P...>());
}
}  // namespace seer_emu
