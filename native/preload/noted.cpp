#include "noted.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace gfx {
namespace {

std::mutex lock;
struct List {
  char paths[kMaxNoted][512];
  std::atomic<int> n{0};
};
List lists[kNotedKinds];
const void *last_base = nullptr;

void add(List &list, const char *path) {
  const int n = list.n.load();
  for (int i = 0; i < n; i++)
    if (!strcmp(list.paths[i], path)) return;
  if (n == kMaxNoted) return;
  strncpy(list.paths[n], path, sizeof list.paths[n] - 1);
  list.n.store(n + 1, std::memory_order_release);  // the report reads without the lock
}

}  // namespace

void note(Noted kind, const char *path) {
  std::lock_guard<std::mutex> hold(lock);
  add(lists[static_cast<int>(kind)], path);
}

void note_asker(const void *address) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) return;
  std::lock_guard<std::mutex> hold(lock);
  if (info.dli_fbase == last_base) return;  // one module asks for hundreds
  last_base = info.dli_fbase;
  add(lists[static_cast<int>(Noted::kAsked)], info.dli_fname);
}

const char *noted(Noted kind, int index) {
  const List &list = lists[static_cast<int>(kind)];
  return index < list.n.load(std::memory_order_acquire) ? list.paths[index] : nullptr;
}

void lock_noted() { lock.lock(); }
void unlock_noted() { lock.unlock(); }

}  // namespace gfx
