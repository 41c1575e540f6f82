// dlopen and fill; no policy.
#include "table.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace gfx {
namespace {

const char *const kNames[] = {
#define GFX_GRAPH(name, need, params, args) #name,
#include "api.inc"
#define GFX_WATCH(name, params, args) #name,
#include "watch.inc"
#define GFX_CU(symbol, name, since, stream, arguments) #symbol,
#include "cuda.inc"
};

struct Need {
  const char *name;
  bool required;
};
constexpr bool OPTIONAL = false, REQUIRED = true;
const Need kNeeds[] = {
#define GFX_GRAPH(name, need, params, args) {#name, need},
#include "api.inc"
};

Table filled;
std::atomic<const Table *> ready{nullptr};
std::mutex filling;
thread_local bool inside = false;  // this thread fills: it must neither wait for itself nor fork into a wait
char library_path[4096];

struct Wanted {
  const char *begin;
  char *path;
  size_t room;
};

int look_at(dl_phdr_info *info, size_t, void *data) {
  auto *wanted = static_cast<Wanted *>(data);
  const char *slash = strrchr(info->dlpi_name, '/');
  const char *base = slash ? slash + 1 : info->dlpi_name;
  if (strncmp(base, wanted->begin, strlen(wanted->begin)) != 0 || !strstr(base, ".so")) return 0;
  strncpy(wanted->path, info->dlpi_name, wanted->room - 1);
  wanted->path[wanted->room - 1] = 0;
  return 1;
}

bool fill() {
  if (!mapped_library("libamdhip64", library_path, sizeof library_path)) return false;
  void *handle = dlopen(library_path, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return false;
#define GFX_GRAPH(name, need, params, args) \
  filled.name = reinterpret_cast<decltype(filled.name)>(plain_dlsym(handle, #name));
#include "api.inc"
  filled.hipKernelNameRefByPtr = reinterpret_cast<decltype(filled.hipKernelNameRefByPtr)>(
      plain_dlsym(handle, "hipKernelNameRefByPtr"));
  filled.hipGetErrorName =
      reinterpret_cast<decltype(filled.hipGetErrorName)>(plain_dlsym(handle, "hipGetErrorName"));
  for (const Need &need : kNeeds)
    if (need.required && !plain_dlsym(handle, need.name)) return false;
  filled.library = library_path;
  filled.hipRuntimeGetVersion(&filled.version);
  return true;
}

}  // namespace

bool mapped_library(const char *begin, char *path, size_t room) {
  Wanted wanted{begin, path, room};
  return dl_iterate_phdr(look_at, &wanted) != 0;
}

void lock_table() {
  if (!inside) filling.lock();
}
void unlock_table() {
  if (!inside) filling.unlock();
}

const char *name_of(Fn fn) { return kNames[static_cast<int>(fn)]; }

const Table *table() {
  const Table *found = ready.load(std::memory_order_acquire);
  if (found) return found;
  // hipRuntimeGetVersion may start the runtime, which may call back into us on this thread.
  if (inside) return nullptr;
  inside = true;
  {
    std::lock_guard<std::mutex> hold(filling);
    found = ready.load(std::memory_order_acquire);
    if (!found && fill()) {
      found = &filled;
      ready.store(found, std::memory_order_release);
    }
  }
  inside = false;
  return found;
}

}  // namespace gfx
