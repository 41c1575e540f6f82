// dlopen and fill; no policy.
#include "table.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

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

bool fill(Table &t) {
  if (!mapped_library("libamdhip64", library_path, sizeof library_path)) return false;
  void *handle = dlopen(library_path, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return false;
#define GFX_GRAPH(name, need, params, args) \
  t.name = reinterpret_cast<decltype(t.name)>(plain_dlsym(handle, #name));
#include "api.inc"
  t.hipKernelNameRefByPtr =
      reinterpret_cast<decltype(t.hipKernelNameRefByPtr)>(plain_dlsym(handle, "hipKernelNameRefByPtr"));
  t.hipGetErrorName = reinterpret_cast<decltype(t.hipGetErrorName)>(plain_dlsym(handle, "hipGetErrorName"));
  t.hipPeekAtLastError =
      reinterpret_cast<decltype(t.hipPeekAtLastError)>(plain_dlsym(handle, "hipPeekAtLastError"));
  for (const Need &need : kNeeds)
    if (need.required && !plain_dlsym(handle, need.name)) return false;
  t.library = library_path;
  t.hipRuntimeGetVersion(&t.version);
  return true;
}

using Filled = FilledOnce<fill>;

}  // namespace

bool mapped_library(const char *begin, char *path, size_t room) {
  Wanted wanted{begin, path, room};
  return dl_iterate_phdr(look_at, &wanted) != 0;
}

void lock_table() { Filled::lock(); }
void unlock_table() { Filled::unlock(); }
const char *name_of(Fn fn) { return kNames[static_cast<int>(fn)]; }

const Table *table() { return Filled::get(); }

}  // namespace gfx
