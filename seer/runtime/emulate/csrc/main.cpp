// The program that runs one launch: loads the compiled kernel, reads a request on stdin, works on
// the arrays in a file that it shares with its parent, and answers with a line of JSON on stdout.
//
//   main kernel.so FD < request
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "runtime.h"

extern "C" {
extern uint3 seer_thread_idx asm("threadIdx"), seer_block_idx asm("blockIdx");
extern uint3 seer_block_dim asm("blockDim"), seer_grid_dim asm("gridDim");
}

namespace seer_emu {

std::string format(const char* text, ...) {
  char buffer[512];
  va_list args;
  va_start(args, text);
  vsnprintf(buffer, sizeof buffer, text, args);
  va_end(args);
  return buffer;
}

uintptr_t code_start, code_end;

std::string thread_name(unsigned t) {
  uint3 d = blockDim;
  return format("(%u, %u, %u)", t % d.x, t / d.x % d.y, t / (d.x * d.y));
}

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += (unsigned char)c < ' ' ? ' ' : c;
  }
  return out + "\"";
}

void answer(const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    ssize_t n = write(1, line.data() + done, line.size() - done);
    if (n <= 0) break;
    done += (size_t)n;
  }
}

}  // namespace

void fault(const char* kind, const Place& place, const std::string& message) {
  std::string out = "{\"fault\": " + quoted(kind) + ", \"message\": " + quoted(message);
  if (in_kernel) {
    const uint3 &b = blockIdx, &t = threadIdx;
    out += format(", \"block\": [%u, %u, %u], \"thread\": [%u, %u, %u]", b.x, b.y, b.z, t.x, t.y, t.z);
  }
  if (!place.array.empty()) out += ", \"array\": " + quoted(place.array);
  if (place.line) out += format(", \"line\": %d", place.line);
  if (place.pc) out += format(", \"pc\": %zu", (size_t)place.pc);
  if (place.other_pc) out += format(", \"other_pc\": %zu", (size_t)place.other_pc);
  answer(out + "}\n");
  _exit(3);
}

void fault_at(const char* kind, int line, const char* text, ...) {
  char buffer[512];
  va_list args;
  va_start(args, text);
  vsnprintf(buffer, sizeof buffer, text, args);
  va_end(args);
  Place place;
  place.line = line;
  fault(kind, place, buffer);
}

namespace {

void on_signal(int number, siginfo_t* info, void* context) {
  const ucontext_t* c = (const ucontext_t*)context;
#if defined(__x86_64__)
  uintptr_t pc = (uintptr_t)c->uc_mcontext.gregs[REG_RIP] - code_start;
#else
  uintptr_t pc = (uintptr_t)c->uc_mcontext.pc - code_start;
#endif
  Place place;
  place.pc = pc;
  if (number == SIGSEGV || number == SIGBUS) {
    uintptr_t address = (uintptr_t)info->si_addr;
    if (on_own_stack(address)) fault("stack overflow", place, "the thread's local arrays need too much memory");
    if (nearest_region(address) != nullptr) describe_outside(address, 1, "touches", pc);
    fault("crash", place, format("touches address %p, which is in no array", (void*)address));
  }
  fault("crash", place, strsignal(number));
}

void catch_signals() {
  static char stack[64 << 10];
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
}

struct Array {
  Region* region;
  char* data;
};

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int find_code(dl_phdr_info* info, size_t, void* base) {
  if (info->dlpi_addr != (uintptr_t)base) return 0;
  code_start = code_end = info->dlpi_addr;
  for (int k = 0; k < info->dlpi_phnum; k++) {
    const auto& header = info->dlpi_phdr[k];
    if (header.p_type == PT_LOAD)
      code_end = std::max<uintptr_t>(code_end, info->dlpi_addr + header.p_vaddr + header.p_memsz);
  }
  return 1;
}

const Kernel* load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fault("not loaded", Place(), dlerror());
  const Kernel* kernel = (const Kernel*)dlsym(library, "seer_kernels");
  link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  dl_iterate_phdr(find_code, (void*)map->l_addr);
  while (kernel->name != nullptr && options.kernel != kernel->name) kernel++;
  if (kernel->name == nullptr) fault("not loaded", Place(), "there is no kernel " + options.kernel);
  return kernel;
}

void serve(const char* path, int fd) {
  // kernel, grid, block, shared bytes, checked, fibers, order, seed, bytes to reserve, bytes of the file
  size_t reserve, file_bytes, count;
  uint3 &g = seer_grid_dim, &b = seer_block_dim;
  std::cin >> options.kernel >> g.x >> g.y >> g.z >> b.x >> b.y >> b.z >> options.shared_bytes >>
      options.checked >> options.fibers >> options.order >> options.seed >> reserve >> file_bytes >> count;
  reserve_memory(reserve);
  char* file = (char*)mmap(nullptr, file_bytes + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (file == MAP_FAILED) fault("no memory", Place(), "cannot map the arrays");
  std::vector<Argument> arguments(count + 1);
  std::vector<Array> arrays;
  for (size_t k = 0; k < count; k++) {
    char kind;  // p: name, offset, bytes, bytes of an element, writable, initialised; i, f: a value
    std::cin >> kind;
    if (kind == 'i') {
      std::cin >> arguments[k].integer;
    } else if (kind == 'f') {
      std::string text;
      std::cin >> text;  // hexadecimal, which streams cannot read
      arguments[k].real = strtod(text.c_str(), nullptr);
    } else {
      std::string name;
      size_t offset, bytes, element;
      bool is_writable, is_initialised;
      std::cin >> name >> offset >> bytes >> element >> is_writable >> is_initialised;
      Region* r = add_region(name, bytes, element, false, is_writable, is_initialised);
      memcpy(r->start, file + offset, bytes);
      arguments[k].pointer = r->start;
      arrays.push_back({r, file + offset});
    }
  }
  const Kernel* kernel = load(path);
  double start = seconds();
  run_grid(kernel->entry, arguments.data());
  double spent = seconds() - start;
  check_slack();
  for (const Array& a : arrays)
    if (a.region->is_writable) memcpy(a.data, a.region->start, a.region->bytes);
  answer(format("{\"seconds\": %.9f}\n", spent));
}

}  // namespace

}  // namespace seer_emu

int main(int, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // an endless kernel does not outlive who asked for it
  seer_emu::catch_signals();
  seer_emu::serve(argv[1], atoi(argv[2]));
  _exit(0);
}

// What -fsanitize=bounds,alignment,... calls. Each is given where in the source it is.
namespace {
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
struct TypeDescriptor {
  uint16_t kind, info;
  char name[1];
};
struct BoundsData {
  SourceLocation place;
  const TypeDescriptor *array, *index;
};
struct MismatchData {
  SourceLocation place;
  const TypeDescriptor* type;
  unsigned char log_alignment, check_kind;
};

long long value_of(uintptr_t value, const TypeDescriptor* type) {
  unsigned bits = 1u << (type->info >> 1);
  if (bits > 64) return (long long)*(const __int128*)value;
  if (!(type->info & 1) || bits == 64) return (long long)value;
  return (long long)(value << (64 - bits)) >> (64 - bits);
}
}  // namespace

using seer_emu::fault_at;

extern "C" {
void __ubsan_handle_out_of_bounds_abort(BoundsData* d, uintptr_t index) {
  fault_at("out of bounds", (int)d->place.line, "index %lld is outside of an array of type %s",
           value_of(index, d->index), d->array->name);
}
void __ubsan_handle_type_mismatch_v1_abort(MismatchData* d, uintptr_t pointer) {
  if (pointer == 0) fault_at("out of bounds", (int)d->place.line, "a null pointer is used");
  fault_at("misaligned access", (int)d->place.line, "%s needs an address that %u divides", d->type->name,
           1u << d->log_alignment);
}
#define SEER_OVERFLOW(name, what)                                                                   \
  void __ubsan_handle_##name##_abort(const SourceLocation* place) {                                 \
    fault_at("overflow", (int)place->line, "a signed " what " overflows");                          \
  }
SEER_OVERFLOW(add_overflow, "addition")
SEER_OVERFLOW(sub_overflow, "subtraction")
SEER_OVERFLOW(mul_overflow, "multiplication")
SEER_OVERFLOW(negate_overflow, "negation")
void __ubsan_handle_divrem_overflow_abort(const SourceLocation* place) {
  fault_at("overflow", (int)place->line, "a division by zero, or one that overflows");
}
}
