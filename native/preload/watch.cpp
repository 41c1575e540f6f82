// The shims over watch.inc: while no capture is active they are a jump.
#include <dlfcn.h>

#include "shim.h"

namespace gfx {
namespace {

void *find(const char *name) {
  const Table *t = table();
  void *handle = t ? dlopen(t->library, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL) : nullptr;
  void *found = handle ? plain_dlsym(handle, name) : nullptr;
  if (handle) dlclose(handle);
  return found;
}

template <Fn F, class... A>
hipError_t watch(std::atomic<void *> *slot, A... args) {
  const Table *t = table();
  void *found = slot->load(std::memory_order_acquire);
  if (!found) slot->store(found = find(name_of(F)), std::memory_order_release);
  if (!found) return kLibraryInitFailed;
  if (!inside_shim) owed_error = kSuccess;
  auto real = reinterpret_cast<hipError_t (*)(A...)>(found);
  if (inside_shim || !t || !any_capture()) return real(args...);
  InsideShim guard;
  const uint64_t begin = now_ns();
  // HIP before 7.14 takes it inside a capture, records a copy to or from memory that is gone by the first launch, and
  // has copied nothing. From 7.14 on it is refused, and so it is here, whatever the version; the capture lives.
  bool is_lost = false;
  if constexpr (F == Fn::watch_hipMemcpyWithStream) is_lost = is_capturing(*t, stream_of(args...));
  const hipError_t status = is_lost ? kCaptureUnsupported : real(args...);
  if (is_lost) owed_error = status;
  if (status && status != 600 && count_call(F, status, begin)) explain(F, status);
  return status;
}

}  // namespace
}  // namespace gfx

#define GFX_UNWRAP(...) __VA_OPT__(, ) __VA_ARGS__
#define GFX_WATCH(name, params, args)                                                \
  extern "C" __attribute__((visibility("default"))) hipError_t name params {         \
    static std::atomic<void *> slot{nullptr};                                        \
    return gfx::watch<gfx::Fn::watch_##name>(&slot GFX_UNWRAP args);                 \
  }
#include "../watch.inc"
