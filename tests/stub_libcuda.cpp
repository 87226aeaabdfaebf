// A libcuda that runs kernels on the CPU, so that pycuda itself can be tested without a GPU.
//
// A module is the path of a library that the emulator has compiled (fast mode). Device memory is
// host memory. What pycuda links to but seer does not use is generated and answers "not supported".
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <map>

#include "runtime.h"

extern "C" {
extern uint3 seer_block_dim asm("blockDim"), seer_grid_dim asm("gridDim");
}

namespace {
jmp_buf launching;
std::map<void*, unsigned> most_shared;  // of each kernel, where more than usual was asked for
int lost = 0;  // the error that every later call gives, as a real context would
thread_local int current = 0;  // contexts that this thread has pushed
std::string last_message = "stub";

enum { ok = 0, invalid_value = 1, out_of_memory = 2, not_found = 500, illegal_address = 700, launch_failed = 719 };
enum { no_context = 201 };
int state() { return current > 0 ? lost : no_context; }
}  // namespace

namespace seer_emu {
uintptr_t code_start, code_end;
std::string format(const char* text, ...) {
  char buffer[512];
  va_list args;
  va_start(args, text);
  vsnprintf(buffer, sizeof buffer, text, args);
  va_end(args);
  return buffer;
}
std::string thread_name(unsigned t) { return format("%u", t); }
void fault(const char* kind, const Place&, const std::string& message) {
  last_message = std::string(kind) + ": " + message;
  lost = launch_failed;
  longjmp(launching, 1);
}
void fault_at(const char* kind, int, const char* text, ...) { fault(kind, Place(), text); }
}  // namespace seer_emu

using seer_emu::Argument;
using seer_emu::Kernel;
typedef unsigned long long Pointer;

extern "C" {
int cuInit(unsigned) {
  dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);  // kernels call the emulator in here
  seer_emu::reserve_memory(256 << 20);  // for shared memory
  return getenv("STUB_NO_DEVICE") ? 100 : ok;
}
int cuDriverGetVersion(int* v) { return *v = 13000, ok; }
int cuDeviceGetCount(int* n) { return *n = 1, ok; }
int cuDeviceGet(int* d, int k) { return *d = k, k == 0 ? ok : invalid_value; }
int cuDeviceGetName(char* name, int n, int) { return snprintf(name, (size_t)n, "stub GPU"), ok; }
int cuDeviceComputeCapability(int* major, int* minor, int) { return *major = 8, *minor = 0, ok; }
int cuDeviceGetAttribute(int* v, int attribute, int) {
  *v = attribute == 75 ? 8 : attribute == 76 ? 0 : attribute == 38 ? 1 << 20 : 1;
  return ok;
}
int cuDeviceTotalMem_v2(size_t* n, int) { return *n = 1ull << 30, ok; }
int cuDevicePrimaryCtxRetain(void** c, int) { return *c = (void*)16, ok; }
int cuDevicePrimaryCtxRelease_v2(int) { return ok; }
int cuCtxPushCurrent_v2(void*) { return current++, ok; }
int cuCtxPopCurrent_v2(void** c) { return current--, c ? (*c = (void*)16, ok) : ok; }
int cuCtxGetDevice(int* d) { return *d = 0, ok; }
int cuCtxGetApiVersion(void*, unsigned* v) { return *v = 13000, ok; }
int cuCtxDetach(void*) { return ok; }
int cuCtxSynchronize() { return lost; }
int cuGetErrorString(int code, const char** text) {
  static std::string kept;
  kept = code == launch_failed ? last_message : "stub error " + std::to_string(code);
  return *text = kept.c_str(), ok;
}

int cuMemAlloc_v2(Pointer* p, size_t n) {
  if (state()) return state();
  if (n > 1ull << 30) return out_of_memory;
  return *p = (Pointer)aligned_alloc(256, (n + 255) / 256 * 256), ok;
}
int cuMemFree_v2(Pointer p) { return free((void*)p), ok; }
int cuMemcpyHtoD_v2(Pointer to, const void* from, size_t n) { return state() ? state() : (memcpy((void*)to, from, n), ok); }
int cuMemcpyDtoH_v2(void* to, Pointer from, size_t n) { return state() ? state() : (memcpy(to, (void*)from, n), ok); }
int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t n, void*) { return memcpy((void*)to, (void*)from, n), state(); }
int cuMemsetD8Async(Pointer to, unsigned char value, size_t n, void*) {
  if (n >= 64 << 20) return state();  // it only keeps a GPU busy
  return memset((void*)to, value, n), state();
}

int cuStreamCreate(void** s, unsigned) { return *s = (void*)32, ok; }
int cuStreamDestroy_v2(void*) { return ok; }
int cuStreamSynchronize(void*) { return state(); }
int cuEventCreate(void** e, unsigned) { return *e = new timespec(), ok; }
int cuEventDestroy_v2(void* e) { return delete (timespec*)e, ok; }
int cuEventRecord(void* e, void*) { return clock_gettime(CLOCK_MONOTONIC, (timespec*)e), state(); }
int cuEventSynchronize(void*) { return lost; }
int cuEventElapsedTime_v2(float* ms, void* a, void* b) {
  const timespec &s = *(timespec*)a, &t = *(timespec*)b;
  *ms = (float)((double)(t.tv_sec - s.tv_sec) * 1e3 + (double)(t.tv_nsec - s.tv_nsec) * 1e-6) + 1e-6f;
  return ok;
}

int cuModuleLoadDataEx(void** m, const void* data, unsigned, void*, void*) {
  *m = dlopen((const char*)data, RTLD_NOW | RTLD_LOCAL);
  if (*m == nullptr) last_message = dlerror();
  return *m ? ok : 200;  // invalid image
}
int cuModuleLoadData(void** m, const void* data) { return cuModuleLoadDataEx(m, data, 0, nullptr, nullptr); }
int cuModuleUnload(void*) { return ok; }
int cuModuleGetFunction(void** f, void* module, const char* name) {
  const Kernel* k = (const Kernel*)dlsym(module, "seer_kernels");
  while (k->name != nullptr && strcmp(k->name, name) != 0) k++;
  return *f = (void*)k, k->name ? ok : not_found;
}
int cuFuncSetBlockShape(void*, int, int, int) { return ok; }
int cuFuncSetAttribute(void* f, int attribute, int value) {
  if (attribute != 8 || value > 163 << 10) return invalid_value;  // MAX_DYNAMIC_SHARED_SIZE_BYTES
  return most_shared[f] = (unsigned)value, ok;
}
int cuFuncGetAttribute(int* v, int, void*) { return *v = 0, ok; }
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void*, void** params, void** extra) {
  if (state()) return state();
  if (bx * by * bz > 1024 || gx * gy * gz == 0) return invalid_value;
  if (shared > std::max(48u << 10, most_shared[f])) return invalid_value;
  const char* buffer = extra ? (const char*)extra[1] : nullptr;  // after CU_LAUNCH_PARAM_BUFFER_POINTER
  size_t bytes = extra ? *(const size_t*)extra[3] : 0;
  if (params != nullptr || bytes % 8 != 0) return invalid_value;
  std::vector<Argument> arguments(bytes / 8 + 1);
  memcpy(arguments.data(), buffer, bytes);
  seer_emu::options = {};
  seer_emu::options.checked = false;
  seer_emu::options.shared_bytes = shared;
  seer_grid_dim = {gx, gy, gz};
  seer_block_dim = {bx, by, bz};
  if (setjmp(launching) == 0) seer_emu::run_grid(((const Kernel*)f)->entry, arguments.data());
  return ok;  // as on a GPU, a fault shows when the stream is waited for
}
}
