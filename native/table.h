// The runtime's functions, by name, from the library that the process already has.
#pragma once

#include "abi.h"

namespace gfx {

enum class Fn : int {
#define GFX_GRAPH(name, need, params, args) name,
#include "api.inc"
  kCount,
};
constexpr int kFnCount = static_cast<int>(Fn::kCount);

struct Table {
#define GFX_GRAPH(name, need, params, args) hipError_t(*name) params;
#include "api.inc"
  const char *(*hipKernelNameRefByPtr)(const void *, hipStream_t);  // the two that return text
  const char *(*hipGetErrorName)(hipError_t);
  const char *library;  // path it came from
  int version;          // hipRuntimeGetVersion
};

// The name of a function, as the runtime spells it.
const char *name_of(Fn fn);

// The filled table, or null while the process has no libamdhip64 (asked again at the next call).
// Safe from any thread; loads nothing.
const Table *table();

// dlsym of the C library itself, whatever interposes on the name.
void *plain_dlsym(void *handle, const char *name);

}  // namespace gfx
