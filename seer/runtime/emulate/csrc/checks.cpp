// Memory of the emulated device, and who may touch what of it.
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "runtime.h"

namespace seer_emu {

namespace {

constexpr size_t page = 4096;
constexpr size_t chunk = 64 << 10;  // regions begin in chunks of their own

char* arena;
size_t arena_bytes, arena_used;
std::vector<Region*> owners;  // one for each chunk of the arena; null for guards
std::vector<Region*> regions;
size_t static_shared_bytes;
constexpr size_t max_static_shared_bytes = 48 << 10;
constexpr char slack_mark = (char)0xA5;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Who touched a cell, as one number: kind (2 bits), thread (10), warp's epoch (14), epoch (16), block (22).
enum Kind : uint64_t { nobody, plain, atomic, atomic_by_many };
constexpr uint64_t in_flight = (uint64_t)1 << 63;  // with nobody: an asynchronous copy will write it
uint64_t now_without_kind;
bool is_plain_now(uint64_t who) { return who == (now_without_kind | plain); }
Kind kind_of(uint64_t who) { return (Kind)(who & 3); }
unsigned thread_of(uint64_t who) { return who >> 2 & 1023; }
unsigned warp_epoch_of(uint64_t who) { return who >> 12 & 0x3fff; }
unsigned epoch_of(uint64_t who) { return who >> 26 & 0xffff; }
unsigned block_of(uint64_t who) { return (unsigned)(who >> 42); }

// Whether what was done earlier is finished and seen before the running thread goes on.
bool is_ordered(uint64_t who, bool is_shared) {
  if (kind_of(who) == nobody) return true;
  if (block_of(who) != block_of(now_without_kind)) return is_shared;  // another block's shared memory
  if (epoch_of(who) != epoch_of(now_without_kind)) return true;
  if (kind_of(who) == atomic_by_many) return false;
  unsigned other = thread_of(who), self = thread_of(now_without_kind);
  if (other == self) return true;
  return other / warp_lanes == self / warp_lanes && warp_epoch_of(who) != warp_epoch_of(now_without_kind);
}

std::string element_name(const Region& r, size_t index) {
  return format("element %zu of %s (%zu elements)", index, r.name.c_str(), r.bytes / r.element_bytes);
}

std::string other_name(uint64_t who) {
  std::string name = "thread " + thread_name(thread_of(who));
  if (block_of(who) == block_of(now_without_kind)) return name;
  uint3 g = gridDim;
  unsigned b = block_of(who);
  return name + format(" of block (%u, %u, %u)", b % g.x, b / g.x % g.y, b / (g.x * g.y));
}

// A barrier that only some threads reach shows as a race of the others: say who waits.
std::string who_waits() {
  for (unsigned t = 0; t < block.size; t++)
    if (block.threads[t].state == State::at_barrier)
      return format("; meanwhile thread %s waits at the barrier on line %d", thread_name(t).c_str(),
                    block.threads[t].line);
  return "";
}

[[noreturn]] void fault_race(const Region& r, size_t index, const char* verb, const char* other_verb,
                             uint64_t who, uintptr_t pc, uintptr_t other_pc, int line) {
  Place place;
  place.pc = pc;
  place.line = line;
  place.other_pc = other_pc;
  place.array = r.name;
  bool same_block = block_of(who) == block_of(now_without_kind);
  fault("race", place,
        std::string(verb) + " " + element_name(r, index) + ", which " + other_name(who) + " " + other_verb +
            (same_block ? " with no barrier between" + who_waits() : "; blocks are not ordered"));
}

void check_written(const Region& r, size_t index, const char* verb, uintptr_t pc, int line) {
  const Cell& c = r.cells[index];
  bool is_known = kind_of(c.write) != nobody && (!r.is_shared || block_of(c.write) == block.index);
  if (is_known || r.is_initialised) return;
  Place place;
  place.pc = pc;
  place.line = line;
  place.array = r.name;
  std::string message = std::string(verb) + " " + element_name(r, index);
  if (c.write & in_flight)
    fault("unwritten read", place, message + ", whose asynchronous copy has not been waited for");
  fault("unwritten read", place,
        message + ", which nothing has written yet" + (r.is_shared ? " in this block" : "") + who_waits());
}

void check_read(Region& r, size_t index, uintptr_t pc, int line) {
  Cell& c = r.cells[index];
  check_written(r, index, "reads", pc, line);
  if (!r.is_writable || is_plain_now(c.read)) return;
  if (!is_ordered(c.write, r.is_shared))
    fault_race(r, index, "reads", "has written", c.write, pc, c.write_pc, line);
  uint64_t self = now_without_kind | plain;
  if (is_ordered(c.read, r.is_shared) || (r.is_shared && block_of(c.read) != block.index)) {
    c.read = self;
    c.read_pc = (uint32_t)pc;
  } else if (is_ordered(c.other_read, r.is_shared)) {
    c.other_read = self;
  } else {
    // Of three readers keep two that no single thread is ordered after: of two blocks, or two warps.
    bool same_block = block_of(c.read) == block_of(c.other_read);
    bool same_warp = same_block && thread_of(c.read) / warp_lanes == thread_of(c.other_read) / warp_lanes;
    bool new_block = block_of(c.read) != block_of(self);
    bool new_warp = thread_of(c.read) / warp_lanes != thread_of(self) / warp_lanes;
    if ((same_block && new_block) || (same_warp && new_warp)) c.other_read = self;
  }
}

void check_write(Region& r, size_t index, bool is_atomic, uintptr_t pc, int line) {
  Cell& c = r.cells[index];
  bool both_atomic = is_atomic && kind_of(c.write) >= atomic;
  const char* verb = is_atomic ? "atomically updates" : "writes";
  if (is_atomic) check_written(r, index, verb, pc, line);
  if (!both_atomic && !is_ordered(c.write, r.is_shared))
    fault_race(r, index, verb, "has written too", c.write, pc, c.write_pc, line);
  if (!is_ordered(c.read, r.is_shared))
    fault_race(r, index, verb, "has read", c.read, pc, c.read_pc, line);
  if (!is_ordered(c.other_read, r.is_shared))
    fault_race(r, index, verb, "has read", c.other_read, pc, 0, line);
  bool by_many = both_atomic && !is_ordered(c.write, r.is_shared);
  c.write = now_without_kind | (by_many ? atomic_by_many : is_atomic ? atomic : plain);
  c.write_pc = (uint32_t)pc;
}

const char* verb_of(Access access) {
  return access == Access::read ? "reads" : access == Access::write ? "writes" : "atomically updates";
}

}  // namespace

void thread_changed() {
  if (!options.checked) return;
  unsigned t = block.current;
  now_without_kind = (uint64_t)(t & 1023) << 2 | (uint64_t)(block.warps[t / warp_lanes].epoch & 0x3fff) << 12 |
                     (uint64_t)(block.epoch & 0xffff) << 26 | (uint64_t)block.index << 42;
}

void reserve_memory(size_t bytes) {
  arena_bytes = round_up(bytes, chunk);
  arena = (char*)mmap(nullptr, arena_bytes + chunk, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) fault("no memory", Place(), "no memory for the arrays");
  arena += -(uintptr_t)arena % chunk;
  owners.assign(arena_bytes / chunk, nullptr);
}

Region* add_region(const std::string& name, size_t bytes, size_t element_bytes, bool is_shared,
                   bool is_writable, bool is_initialised) {
  // The array ends where its pages end, so that running past it is a fault of the processor too.
  size_t guard = round_up(std::max<size_t>(1 << 20, bytes), chunk);
  size_t held = round_up(std::max<size_t>(bytes, 1), page), slot = round_up(held, chunk);
  if (arena_used + 2 * guard + slot > arena_bytes) fault("no memory", Place(), "no memory for " + name);
  char* first = arena + arena_used + guard;
  first += slot - held;
  mprotect(first, held, PROT_READ | PROT_WRITE);
  memset(first, slack_mark, held);
  Region* r = new Region();
  r->name = name;
  r->start = first + held - round_up(bytes, 16);
  r->bytes = bytes;
  r->element_bytes = element_bytes;
  r->is_shared = is_shared;
  r->is_writable = is_writable;
  r->is_initialised = is_initialised;
  if (options.checked) {
    size_t cells = bytes / element_bytes + 1;
    r->cells = (Cell*)mmap(nullptr, cells * sizeof(Cell), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->cells == MAP_FAILED) fault("no memory", Place(), "no memory to check " + name);
  }
  for (size_t k = (arena_used + guard) / chunk; k < (arena_used + guard + slot) / chunk; k++) owners[k] = r;
  arena_used += 2 * guard + slot;
  regions.push_back(r);
  return r;
}

const Region* nearest_region(uintptr_t address) {
  if (address - (uintptr_t)arena >= arena_bytes) return nullptr;
  const Region* best = nullptr;
  size_t best_distance = SIZE_MAX;
  for (const Region* r : regions) {
    uintptr_t low = (uintptr_t)r->start, high = low + r->bytes;
    size_t distance = address < low ? low - address : address >= high ? address - high : 0;
    if (distance < best_distance) best = r, best_distance = distance;
  }
  return best;
}

void check_slack() {
  for (const Region* r : regions) {
    char* end = r->start + round_up(r->bytes, 16);
    char* first = end - round_up(std::max<size_t>(r->bytes, 1), page);
    for (char* p = first; p < end; p++)
      if ((p < r->start || p >= r->start + r->bytes) && *p != slack_mark) {
        Place place;
        place.array = r->name;
        fault("out of bounds", place,
              format("memory %s %s was overwritten", p < r->start ? "before" : "after", r->name.c_str()));
      }
  }
}

void forget_shared() {  // what another block wrote counts as unwritten; make it look so
  for (Region* r : regions)
    if (r->is_shared) memset(r->start, 0xff, r->bytes);
}

void describe_outside(uintptr_t address, size_t bytes, const char* verb, uintptr_t pc) {
  Place place;
  place.pc = pc;
  const Region* r = nearest_region(address);
  if (r == nullptr)
    fault("out of bounds", place, format("%s %zu bytes at %p, which is in no array", verb, bytes, (void*)address));
  place.array = r->name;
  ptrdiff_t offset = (intptr_t)address - (intptr_t)r->start;
  ptrdiff_t size = (ptrdiff_t)r->element_bytes;
  ptrdiff_t index = offset >= 0 ? offset / size : -((-offset + size - 1) / size);
  fault("out of bounds", place,
        format("%s element %td of %s array %s, which has %zu elements", verb, index,
               r->is_shared ? "shared" : "global", r->name.c_str(), r->bytes / r->element_bytes));
}

void mark_in_flight(void* to, size_t bytes) {
  size_t k = (uintptr_t)to - (uintptr_t)arena;
  Region& r = *owners[k / chunk];
  size_t first = (size_t)((char*)to - r.start) / r.element_bytes;
  size_t last = (size_t)((char*)to - r.start + bytes - 1) / r.element_bytes;
  for (size_t i = first; i <= last; i++) r.cells[i].write = now_without_kind | in_flight | nobody;
}

void check_access(uintptr_t address, size_t bytes, Access access, uintptr_t pc, int line) {
  if (!options.checked) return;
  size_t k = address - (uintptr_t)arena;
  if (__builtin_expect(k >= arena_bytes, 0)) {
    if (on_own_stack(address)) return;
    bool in_code = address >= code_start && address + bytes <= code_end;
    if (in_code && access == Access::read) return;  // a table of constants
    describe_outside(address, bytes, verb_of(access), pc);
  }
  Region* r = owners[k / chunk];
  size_t offset = r == nullptr ? 0 : address - (uintptr_t)r->start;
  if (r == nullptr || offset >= r->bytes || offset + bytes > r->bytes)
    describe_outside(r != nullptr && offset < r->bytes ? address + bytes - 1 : address, bytes, verb_of(access),
                     pc);
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && address % bytes != 0) {
    Place place;
    place.pc = pc;
    place.line = line;
    place.array = r->name;
    fault("misaligned access", place,
          format("%s %zu bytes at byte %zu of %s; the address must be a multiple of %zu", verb_of(access), bytes,
                 offset, r->name.c_str(), bytes));
  }
  if (access != Access::read && !r->is_writable) {
    Place place;
    place.pc = pc;
    place.line = line;
    place.array = r->name;
    fault("constant written", place, "writes " + r->name + ", a pointer to constant memory");
  }
  size_t first = offset / r->element_bytes, last = (offset + bytes - 1) / r->element_bytes;
  for (size_t i = first; i <= last; i++) {
    if (access == Access::read)
      check_read(*r, i, pc, line);
    else
      check_write(*r, i, access == Access::atomic, pc, line);
  }
}

void access_atomic(const void* p, size_t bytes, int line) {
  check_access((uintptr_t)p, bytes, Access::atomic, 0, line);
}

uint32_t load_word(const void* p, int line) {
  check_access((uintptr_t)p, 4, Access::read, 0, line);
  return *(const uint32_t*)p;
}

void* shared_array(unsigned key, const char* name, size_t bytes, size_t element_bytes) {
  static std::map<std::pair<unsigned, size_t>, Region*> known;  // templates have a size for each instance
  Region*& r = known[{key, bytes}];
  if (r == nullptr) {
    static_shared_bytes += bytes;
    if (static_shared_bytes > max_static_shared_bytes)
      fault("too much shared memory", Place(),
            format("the kernel declares %zu bytes of shared memory; at most %zu can be static",
                   static_shared_bytes, max_static_shared_bytes));
    r = add_region(name, bytes, element_bytes, true, true, false);
    memset(r->start, 0xff, bytes);
  }
  return r->start;
}

void* dynamic_shared() {
  static std::map<size_t, Region*> known;  // a process may launch more than one kernel
  Region*& r = known[options.shared_bytes];
  if (r == nullptr) r = add_region("dynamic shared memory", options.shared_bytes, 4, true, true, false);
  return r->start;
}

void* dynamic_array(size_t offset, size_t bytes, size_t element_bytes) {
  if (offset + bytes > options.shared_bytes)
    fault("too much shared memory", Place(),
          format("an array ends at byte %zu of dynamic shared memory, and the launch gives %zu", offset + bytes,
                 options.shared_bytes));
  if (!options.checked) return (char*)dynamic_shared() + offset;
  static std::map<size_t, Region*> known;
  auto next = known.upper_bound(offset);
  if (next != known.end() && next->first < offset + bytes)
    fault("overlap", Place(), format("two arrays share byte %zu of dynamic shared memory", next->first));
  if (next != known.begin()) {
    auto [start, before] = *std::prev(next);
    if (start != offset && start + before->bytes > offset)
      fault("overlap", Place(), format("two arrays share byte %zu of dynamic shared memory", offset));
  }
  Region*& r = known[offset];
  if (r == nullptr) {
    r = add_region(format("at byte %zu", offset), bytes, element_bytes, true, true, false);
    memset(r->start, 0xff, bytes);
  }
  return r->start;
}

}  // namespace seer_emu

// The compiler's instrumentation (-fsanitize=thread) calls these at every access to memory.
using seer_emu::Access;
#define SEER_PC ((uintptr_t)__builtin_return_address(0) - 1 - seer_emu::code_start)
#define SEER_ACCESS(bytes)                                                                                     \
  extern "C" void __tsan_read##bytes(void* p) { seer_emu::check_access((uintptr_t)p, bytes, Access::read, SEER_PC, 0); } \
  extern "C" void __tsan_write##bytes(void* p) { seer_emu::check_access((uintptr_t)p, bytes, Access::write, SEER_PC, 0); } \
  extern "C" void __tsan_unaligned_read##bytes(void* p) { seer_emu::check_access((uintptr_t)p, bytes, Access::read, SEER_PC, 0); } \
  extern "C" void __tsan_unaligned_write##bytes(void* p) { seer_emu::check_access((uintptr_t)p, bytes, Access::write, SEER_PC, 0); }
SEER_ACCESS(1)
SEER_ACCESS(2)
SEER_ACCESS(4)
SEER_ACCESS(8)
SEER_ACCESS(16)

extern "C" {
void __tsan_read_range(void* p, size_t n) {
  if (n) seer_emu::check_access((uintptr_t)p, n, Access::read, SEER_PC, 0);
}
void __tsan_write_range(void* p, size_t n) {
  if (n) seer_emu::check_access((uintptr_t)p, n, Access::write, SEER_PC, 0);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  __tsan_read_range((void*)from, n);
  __tsan_write_range(to, n);
  return memcpy(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  __tsan_write_range(to, n);
  return memset(to, value, n);
}
}
