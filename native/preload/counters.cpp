#include "counters.h"

namespace gfx {

Counters counters;
thread_local uint32_t launches_here = 0;

bool any_call() {
  for (const FnCounter &each : counters.fn)
    if (each.calls.load(std::memory_order_relaxed)) return true;
  return false;
}

bool count_call(Fn fn, hipError_t status, uint64_t begun_ns) {
  FnCounter &mine = counters.fn[static_cast<int>(fn)];
  add(mine.calls);
  if (begun_ns) {
    const uint64_t ns = now_ns() - begun_ns;
    add(mine.timed);
    add(mine.ns, ns);
    uint64_t most = mine.max_ns.load(std::memory_order_relaxed);
    while (ns > most && !mine.max_ns.compare_exchange_weak(most, ns, std::memory_order_relaxed)) {
    }
  }
  if (!status) return false;
  add(mine.failures);
  for (Failure &slot : counters.failures) {
    int owner = slot.fn.load(std::memory_order_acquire);
    if (owner == -1) {
      // -2 while the status is being written, so that no reader takes a half-made slot for its own.
      int free_slot = -1;
      if (slot.fn.compare_exchange_strong(free_slot, -2)) {
        slot.status.store(status);
        add(slot.times);
        slot.fn.store(static_cast<int>(fn), std::memory_order_release);
        return true;
      }
      owner = slot.fn.load(std::memory_order_acquire);
    }
    if (owner == static_cast<int>(fn) && slot.status.load() == status) {
      add(slot.times);
      return false;
    }
  }
  return false;
}

}  // namespace gfx
