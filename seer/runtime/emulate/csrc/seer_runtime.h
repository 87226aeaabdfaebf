// What emulated kernels and the parts of the runtime know of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Constants as far as one emulated thread can tell: the scheduler sets them when it changes threads.
extern "C" {
extern const uint3 threadIdx, blockIdx, blockDim, gridDim;
}

namespace seer_emu {

constexpr unsigned warp_lanes = 32;
constexpr unsigned deposit_bytes = 64;

// A kernel's parameter list, and the one value of it that an argument holds.
union Argument {
  void* pointer;
  int64_t integer;
  double real;
};
using Entry = void (*)(const Argument*);
struct Kernel {
  const char* name;
  Entry entry;
};
extern "C" const Kernel seer_kernels[];  // in the emulated source; ends with a null name

// What the lanes of a warp brought to one operation, each up to deposit_bytes.
struct Exchange {
  unsigned lanes;  // those that took part
  int readers;
  alignas(16) char values[warp_lanes][deposit_bytes];
  bool is_multiplied;       // whether the product of the matrices that they are is known
  double products[16][8];
};

// Called by emulated code.
void barrier(int line);
void warp_barrier(unsigned mask, int line);
Exchange* warp_exchange(const void* value, unsigned bytes, unsigned mask, const char* what, int line);
unsigned lane_of_thread();
void* shared_array(unsigned key, const char* name, size_t bytes, size_t element_bytes);
void* dynamic_shared();
void* dynamic_array(size_t offset, size_t bytes, size_t element_bytes);  // a part of it, guarded if checked
// Of `bytes` bytes the first `filled` come from memory, the others are zero.
void copy_async(void* to, const void* from, unsigned bytes, unsigned filled, int line);
void copy_async_commit();
void copy_async_wait(unsigned pending_groups, int line);
void access_atomic(const void* p, size_t bytes, int line);
uint32_t load_word(const void* p, int line);  // 4 bytes, checked
[[noreturn]] void fault_at(const char* kind, int line, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace seer_emu
