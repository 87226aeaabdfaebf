// Inside the runtime: the block being run, memory regions, faults.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "seer_runtime.h"

namespace seer_emu {

enum class State : uint8_t { ready, at_barrier, in_warp, done };

struct Pending {  // an asynchronous copy
  void* to;
  const void* from;
  unsigned bytes, filled, group;
};

struct Thread {
  State state;
  int line;             // of the barrier or exchange that it waits at
  unsigned mask;        // lanes it waits for
  const char* what;     // name of the operation it waits in
  Exchange* received;   // what the lanes of its last exchange brought
  alignas(16) char deposit[deposit_bytes];
  void* stack_pointer;  // while it does not run
  std::vector<Pending> pending;
  unsigned group;
};

struct Group {  // lanes that wait in one operation
  int line;
  unsigned mask, arrived;
};
struct Warp {
  std::deque<Exchange> exchanges;
  std::vector<Group> groups;
  unsigned ended;  // lanes whose threads have ended
  unsigned epoch;  // __syncwarp calls so far

  Group& group(int line, unsigned mask) {
    for (Group& g : groups)
      if (g.line == line && g.mask == mask) return g;
    return groups.emplace_back(Group{line, mask, 0});
  }
};

struct Block {
  unsigned index;  // in the grid
  unsigned size;   // threads
  unsigned current;
  unsigned at_barrier, done;
  unsigned epoch;  // barriers passed
  std::vector<Thread> threads;
  std::vector<Warp> warps;
};

struct Options {
  bool checked = true, fibers = true;
  char order = 'f';  // forward, r(everse), x: random
  uint64_t seed = 0;
  size_t shared_bytes = 0;
  std::string kernel;
};

extern Block block;
extern Options options;

void run_grid(Entry entry, const Argument* arguments);
bool on_own_stack(uintptr_t address);
void thread_changed();  // recomputes what the checks know about the running thread

// A piece of emulated device memory, between guard zones.
struct Cell {  // one element: who touched it last
  uint64_t write, read, other_read;
  uint32_t write_pc, read_pc;
};
struct Region {
  std::string name;
  char* start;
  size_t bytes;
  size_t element_bytes;
  bool is_shared, is_writable, is_initialised;
  Cell* cells = nullptr;
};

void reserve_memory(size_t bytes);
Region* add_region(const std::string& name, size_t bytes, size_t element_bytes, bool is_shared,
                   bool is_writable, bool is_initialised);
const Region* nearest_region(uintptr_t address);
void check_slack();       // nothing was written beside an array
void forget_shared();     // a new block begins
void describe_outside(uintptr_t address, size_t bytes, const char* verb, uintptr_t pc);
enum class Access { read, write, atomic };
void check_access(uintptr_t address, size_t bytes, Access access, uintptr_t pc, int line);
void mark_in_flight(void* to, size_t bytes);

struct Place {
  int line = 0;
  uintptr_t pc = 0;
  uintptr_t other_pc = 0;
  std::string array;
};
[[noreturn]] void fault(const char* kind, const Place& place, const std::string& message);
std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string thread_name(unsigned thread);
extern bool in_kernel;

// Where the emulated code lies; its debug information counts from code_start.
extern uintptr_t code_start, code_end;

}  // namespace seer_emu
