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
char library_path[4096];

// A backend may be opened with RTLD_LOCAL, where RTLD_NEXT answers null: so the file is looked for
// among everything that is mapped.
int look_at(dl_phdr_info *info, size_t, void *) {
  const char *slash = strrchr(info->dlpi_name, '/');
  const char *base = slash ? slash + 1 : info->dlpi_name;
  if (strncmp(base, "libamdhip64", 11) != 0 || !strstr(base, ".so")) return 0;
  strncpy(library_path, info->dlpi_name, sizeof library_path - 1);
  return 1;
}

bool fill() {
  if (!dl_iterate_phdr(look_at, nullptr)) return false;
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

const char *name_of(Fn fn) { return kNames[static_cast<int>(fn)]; }

const Table *table() {
  const Table *found = ready.load(std::memory_order_acquire);
  if (found) return found;
  // hipRuntimeGetVersion may start the runtime, which may call back into us on this thread.
  static thread_local bool inside = false;
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
