// Every function of cuda.inc that the fake driver does not implement: there, and refusing. And the lookup by
// name and version, which gives addresses of this library whatever interposes on dlsym.
#include <cstring>

#include "device.h"

#define GFX_CU(symbol, name, since, stream, arguments)                                   \
  extern "C" __attribute__((weak, visibility("default"))) hipError_t symbol(...) {       \
    FAKE_ENTER();                                                                        \
    return fake::done(gfx::kNotSupported);                                               \
  }
#include "../cuda.inc"

extern "C" {
hipError_t cuDriverGetVersion(...);
hipError_t cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
hipError_t cuLaunchHostFunc(...);
hipError_t cuLaunchKernel(...);
hipError_t cuMemcpyDtoDAsync_v2(...);
hipError_t cuMemsetD32Async(...);
hipError_t cuMemsetD8Async(...);
hipError_t cuStreamCreate(...);
hipError_t cuStreamDestroy_v2(...);
hipError_t cuStreamSynchronize(...);
}

namespace {

constexpr int kNotFound = 500;
constexpr uint64_t kPerThreadStream = 2;

struct Row {
  const char *name;
  int since, stream;
  void *address;
};
template <class F>
void *at(F *function) {
  return reinterpret_cast<void *>(function);
}

}  // namespace

FAKE_API hipError_t cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found) {
  static const Row rows[] = {
#define GFX_CU(symbol, name, since, stream, arguments) {#name, since, stream, at(&::symbol)},
#include "../cuda.inc"
      {"cuGraphInstantiate", 12000, 0, at(&::cuGraphInstantiateWithFlags)},
      {"cuGetProcAddress", 12000, 0, at(&::cuGetProcAddress_v2)},
      {"cuDriverGetVersion", 2020, 0, at(&::cuDriverGetVersion)},
      {"cuLaunchHostFunc", 10000, 0, at(&::cuLaunchHostFunc)},
      {"cuLaunchKernel", 4000, 0, at(&::cuLaunchKernel)},
      {"cuMemcpyDtoDAsync", 3020, 0, at(&::cuMemcpyDtoDAsync_v2)},
      {"cuMemsetD32Async", 3020, 0, at(&::cuMemsetD32Async)},
      {"cuMemsetD8Async", 3020, 0, at(&::cuMemsetD8Async)},
      {"cuStreamCreate", 2000, 0, at(&::cuStreamCreate)},
      {"cuStreamDestroy", 4000, 0, at(&::cuStreamDestroy_v2)},
      {"cuStreamSynchronize", 2000, 0, at(&::cuStreamSynchronize)},
  };
  const Row *best = nullptr;
  for (const Row &row : rows) {
    if (strcmp(row.name, name) != 0 || row.since > version || (row.stream && !(flags & kPerThreadStream))) continue;
    if (!best || row.stream > best->stream || row.since >= best->since) best = &row;
  }
  *out = best ? best->address : nullptr;
  if (found) *found = best ? 0 : 1;
  return best ? 0 : kNotFound;
}
