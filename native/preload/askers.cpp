#include "askers.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace gfx {
namespace {

std::mutex lock;
char paths[kMaxAskers][512];
std::atomic<int> n_askers{0};
const void *last_base = nullptr;

}  // namespace

void note_asker(const void *address) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) return;
  std::lock_guard<std::mutex> hold(lock);
  if (info.dli_fbase == last_base) return;  // one module asks for hundreds
  last_base = info.dli_fbase;
  const int n = n_askers.load();
  for (int i = 0; i < n; i++)
    if (!strcmp(paths[i], info.dli_fname)) return;
  if (n == kMaxAskers) return;
  strncpy(paths[n], info.dli_fname, sizeof paths[n] - 1);
  n_askers.store(n + 1, std::memory_order_release);  // the report reads without the lock
}

void lock_askers() { lock.lock(); }
void unlock_askers() { lock.unlock(); }

const char *asker(int index) { return index < n_askers.load(std::memory_order_acquire) ? paths[index] : nullptr; }

}  // namespace gfx
