// Runs the threads of a block, one at a time, each on a stack of its own.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "runtime.h"

extern "C" {
uint3 seer_thread_idx asm("threadIdx"), seer_block_idx asm("blockIdx");
uint3 seer_block_dim asm("blockDim"), seer_grid_dim asm("gridDim");
void seer_switch(void** save, void* load);
}

#if defined(__x86_64__)
asm(R"(
.text
.globl seer_switch
.type seer_switch,@function
seer_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size seer_switch,.-seer_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl seer_switch
.type seer_switch,%function
seer_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size seer_switch,.-seer_switch
)");
#else
#error "emulation switches stacks on x86-64 and aarch64 only"
#endif

namespace seer_emu {

Block block;
Options options;
bool in_kernel = false;

namespace {

constexpr size_t stack_bytes = 256 << 10;

char* stacks;
void* scheduler_stack_pointer;
std::vector<unsigned> order;
size_t cursor;
std::vector<uint3> indices;  // threadIdx of each thread of a block
Entry entry;
const Argument* arguments;
uint64_t random_state;

uint64_t random_number() {  // splitmix64
  uint64_t z = (random_state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void arrange(std::vector<unsigned>& numbers) {
  if (options.order == 'x')
    for (size_t n = numbers.size(); n > 1; n--) std::swap(numbers[n - 1], numbers[random_number() % n]);
}

std::vector<unsigned> numbers_to(unsigned n) {
  std::vector<unsigned> out(n);
  for (unsigned i = 0; i < n; i++) out[i] = options.order == 'r' ? n - 1 - i : i;
  return out;
}

void enter(unsigned t) {
  block.current = t;
  seer_thread_idx = indices[t];
  thread_changed();
}

// The next thread that can run in this round, or the number of threads.
unsigned next_ready() {
  while (cursor < order.size()) {
    unsigned t = order[cursor++];
    if (block.threads[t].state == State::ready) return t;
  }
  return block.size;
}

void leave() {  // the running thread waits or is done: run another
  unsigned from = block.current, to = next_ready();
  if (to < block.size) {
    enter(to);
    seer_switch(&block.threads[from].stack_pointer, block.threads[to].stack_pointer);
  } else {
    seer_switch(&block.threads[from].stack_pointer, scheduler_stack_pointer);
  }
}

void release_barrier() {
  int line = block.threads[block.current].line;
  for (unsigned t = 0; t < block.size; t++)
    if (options.checked && block.threads[t].line != line) {
      Place place;
      place.line = line;
      fault("barrier divergence", place,
            format("thread %s waits at the barrier on line %d, thread %s at the one on line %d",
                   thread_name(block.current).c_str(), line, thread_name(t).c_str(),
                   block.threads[t].line));
    }
  for (Thread& t : block.threads) t.state = State::ready;
  block.at_barrier = 0;
  block.epoch++;
}

std::string waits_where(unsigned t) {
  const Thread& thread = block.threads[t];
  std::string name = "thread " + thread_name(t);
  if (thread.state == State::done) return name + " has ended";
  if (thread.state == State::at_barrier) return name + format(" waits at the barrier on line %d", thread.line);
  return name + format(" waits in %s on line %d", thread.what, thread.line);
}

// No thread can go on: say which two disagree.
[[noreturn]] void fault_stuck() {
  unsigned first = block.size;
  for (unsigned t = 0; t < block.size; t++)
    if (block.threads[t].state == State::in_warp) first = std::min(first, t);
  Place place;
  if (first < block.size) {
    const Thread& waiting = block.threads[first];
    place.line = waiting.line;
    unsigned base = first / warp_lanes * warp_lanes;
    for (unsigned lane = 0; lane < warp_lanes && base + lane < block.size; lane++) {
      const Thread& other = block.threads[base + lane];
      bool is_there = other.state == State::in_warp && other.line == waiting.line && other.mask == waiting.mask;
      if ((waiting.mask >> lane & 1) && !is_there)
        fault("warp divergence", place,
              waits_where(first) + format(", and its mask 0x%08x names lane %u, but ", waiting.mask, lane) +
                  waits_where(base + lane));
    }
  }
  for (unsigned t = 0; t < block.size; t++)
    if (block.threads[t].state == State::at_barrier) first = std::min(first, t);
  place.line = block.threads[first].line;
  for (unsigned t = 0; t < block.size; t++)
    if (block.threads[t].state != State::at_barrier)
      fault("barrier divergence", place, waits_where(first) + ", but " + waits_where(t));
  fault("barrier divergence", place, "no thread can go on");
}

void thread_body() {
  entry(arguments);
  Thread& self = block.threads[block.current];
  if (options.checked && !self.pending.empty()) {
    Place place;
    fault("unfinished copy", place, "the thread ends before it waits for its asynchronous copies");
  }
  self.state = State::done;
  block.warps[block.current / warp_lanes].ended |= 1u << block.current % warp_lanes;
  block.done++;
  leave();
  abort();
}

void* fresh_stack(unsigned t) {
  char* top = stacks + (t + 1) * stack_bytes;
#if defined(__x86_64__)
  void** p = (void**)top;
  *--p = nullptr;  // the stack is aligned as at the entry of a function
  *--p = (void*)thread_body;
  for (int k = 0; k < 6; k++) *--p = nullptr;
  return p;
#else
  void** p = (void**)(top - 160);
  memset(p, 0, 160);
  p[11] = (void*)thread_body;  // x30
  return p;
#endif
}

void begin_block(unsigned index) {
  const uint3& g = seer_grid_dim;
  seer_block_idx = {index % g.x, index / g.x % g.y, index / (g.x * g.y)};
  block.index = index;
  block.at_barrier = block.done = block.epoch = 0;
  for (Warp& w : block.warps) {
    w.groups.clear();
    w.ended = w.epoch = 0;
  }
  forget_shared();
}

void run_with_fibers() {
  for (unsigned t = 0; t < block.size; t++) {
    Thread& thread = block.threads[t];
    thread.state = State::ready;
    thread.group = 0;
    thread.pending.clear();
    thread.stack_pointer = fresh_stack(t);
  }
  while (block.done < block.size) {
    arrange(order);
    cursor = 0;
    unsigned t = next_ready();
    if (t == block.size) fault_stuck();
    enter(t);
    seer_switch(&scheduler_stack_pointer, block.threads[t].stack_pointer);
  }
}

}  // namespace

void run_grid(Entry kernel_entry, const Argument* kernel_arguments) {
  entry = kernel_entry;
  arguments = kernel_arguments;
  random_state = options.seed;
  const uint3 &b = seer_block_dim, &g = seer_grid_dim;
  block.size = b.x * b.y * b.z;
  block.threads.resize(block.size);
  block.warps.resize((block.size + warp_lanes - 1) / warp_lanes);
  order = numbers_to(block.size);
  indices.resize(block.size);
  for (unsigned t = 0; t < block.size; t++) indices[t] = {t % b.x, t / b.x % b.y, t / (b.x * b.y)};
  if (options.fibers) {
    stacks = (char*)mmap(nullptr, block.size * stack_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fault("no memory", Place(), "no memory for the stacks of the threads");
    for (unsigned t = 0; t < block.size; t++) mprotect(stacks + t * stack_bytes, 4096, PROT_NONE);
  }
  std::vector<unsigned> blocks = numbers_to(g.x * g.y * g.z);
  arrange(blocks);
  in_kernel = true;
  for (unsigned index : blocks) {
    begin_block(index);
    if (options.fibers) {
      run_with_fibers();
    } else {
      arrange(order);
      for (unsigned t : order) {
        enter(t);
        entry(arguments);
      }
    }
  }
  in_kernel = false;
}

bool on_own_stack(uintptr_t address) {
  if (!options.fibers) return false;
  uintptr_t low = (uintptr_t)stacks + block.current * stack_bytes;
  return address >= low && address < low + stack_bytes;
}

unsigned lane_of_thread() { return block.current % warp_lanes; }

void barrier(int line) {
  Thread& self = block.threads[block.current];
  self.state = State::at_barrier;
  self.line = line;
  if (++block.at_barrier == block.size) {
    release_barrier();
    thread_changed();
  } else {
    leave();
  }
}

namespace {

// Every lane waits in the same operation: give all of them what each has brought.
void release_warp(Warp& warp, unsigned base, unsigned lanes, unsigned bytes) {
  Exchange* exchange = nullptr;
  for (Exchange& e : warp.exchanges)
    if (e.readers == 0) exchange = &e;
  if (exchange == nullptr) exchange = &warp.exchanges.emplace_back();
  exchange->lanes = lanes;
  exchange->is_multiplied = false;
  for (unsigned lane = 0; lane < warp_lanes; lane++) {
    if (!(lanes >> lane & 1)) continue;
    Thread& thread = block.threads[base + lane];
    memcpy(exchange->values[lane], thread.deposit, bytes);
    thread.received = exchange;
    thread.state = State::ready;
    exchange->readers++;
  }
}

Exchange* exchange_in_warp(const void* value, unsigned bytes, unsigned mask, const char* what,
                                 int line, bool is_barrier) {
  unsigned t = block.current, lane = t % warp_lanes, base = t - lane;
  Thread& self = block.threads[t];
  Warp& warp = block.warps[t / warp_lanes];
  if (!(mask >> lane & 1))
    fault_at("warp divergence", line, "%s with mask 0x%08x is called by lane %u, which it leaves out", what,
             mask, lane);
  memcpy(self.deposit, value, bytes);
  self.state = State::in_warp;
  self.line = line;
  self.mask = mask;
  self.what = what;
  Group& group = warp.group(line, mask);
  group.arrived |= 1u << lane;
  unsigned last = std::min(warp_lanes, block.size - base);
  unsigned wanted = mask & ~warp.ended & (last == warp_lanes ? ~0u : (1u << last) - 1);
  unsigned arrived = group.arrived;
  bool is_complete = (wanted & ~arrived) == 0;
  if (is_complete) {
    group = warp.groups.back();
    warp.groups.pop_back();
    release_warp(warp, base, arrived, bytes);
    if (is_barrier) warp.epoch++;
    thread_changed();
  } else {
    leave();
  }
  self.received->readers--;  // it is read before another thread runs
  return self.received;
}

}  // namespace

Exchange* warp_exchange(const void* value, unsigned bytes, unsigned mask, const char* what, int line) {
  return exchange_in_warp(value, bytes, mask, what, line, false);
}

void warp_barrier(unsigned mask, int line) { exchange_in_warp("", 0, mask, "__syncwarp", line, true); }

namespace {

void copy_now(void* to, const void* from, unsigned bytes, unsigned filled) {
  memcpy(to, from, filled);
  memset((char*)to + filled, 0, bytes - filled);
}

}  // namespace

void copy_async(void* to, const void* from, unsigned bytes, unsigned filled, int line) {
  Thread& self = block.threads[block.current];
  if (((uintptr_t)to | (filled ? (uintptr_t)from : 0)) % bytes)
    fault_at("misaligned access", line, "an asynchronous copy of %u bytes needs addresses that %u divides",
             bytes, bytes);
  if (!options.checked) {
    copy_now(to, from, bytes, filled);
    return;
  }
  if (filled) check_access((uintptr_t)from, filled, Access::read, 0, line);
  check_access((uintptr_t)to, bytes, Access::write, 0, line);
  mark_in_flight(to, bytes);
  self.pending.push_back({to, from, bytes, filled, self.group});
}

void copy_async_commit() { block.threads[block.current].group++; }

void copy_async_wait(unsigned pending_groups, int line) {
  Thread& self = block.threads[block.current];
  size_t kept = 0;
  for (const Pending& p : self.pending) {
    if (p.group + pending_groups >= self.group) {
      self.pending[kept++] = p;
      continue;
    }
    copy_now(p.to, p.from, p.bytes, p.filled);
    check_access((uintptr_t)p.to, p.bytes, Access::write, 0, line);
  }
  self.pending.resize(kept);
}

}  // namespace seer_emu
