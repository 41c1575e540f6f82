// The runtime's functions, by name, from the library that the process already has.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "abi.h"

namespace gfx {

enum class Fn : int {
#define GFX_GRAPH(name, need, params, args) name,
#include "api.inc"
#define GFX_WATCH(name, params, args) watch_##name,
#include "watch.inc"
  kFirstCuda,
  kBeforeCuda = kFirstCuda - 1,
#define GFX_CU(symbol, name, since, stream, arguments) symbol,
#include "cuda.inc"
  kCount,
};
constexpr int kFnCount = static_cast<int>(Fn::kCount), kHipCount = static_cast<int>(Fn::kFirstCuda);
constexpr bool is_cuda(Fn fn) { return static_cast<int>(fn) >= kHipCount; }

struct Table {
#define GFX_GRAPH(name, need, params, args) hipError_t(*name) params;
#include "api.inc"
  const char *(*hipKernelNameRefByPtr)(const void *, hipStream_t);  // the two that return text
  const char *(*hipGetErrorName)(hipError_t);
  hipError_t (*hipPeekAtLastError)();  // null on CUDA, whose driver keeps none
  const char *library;  // path it came from
  int version;          // hipRuntimeGetVersion, cuDriverGetVersion
  // Where CUDA's driver stands behind the table (cuda.cpp): what has no counterpart of HIP's shape. Null on HIP.
  bool cuda;
  hipError_t (*kernel_node)(hipGraphNode_t, hipStream_t, bool run);
  hipError_t (*memcpy_node)(hipGraphNode_t, hipStream_t, bool run);
  hipError_t (*ordered_nodes)(hipGraph_t, std::vector<hipGraphNode_t> *);
};

// A table that is filled once, by the first thread that needs it, and asked for again while `Fill` says false.
template <bool (*Fill)(Table &)>
struct FilledOnce {
  static const Table *get() {
    const Table *found = ready.load(std::memory_order_acquire);
    if (found) return found;
    // Filling may start the runtime, which may call back into us on this thread.
    if (inside) return nullptr;
    inside = true;
    {
      std::lock_guard<std::mutex> hold(filling);
      found = ready.load(std::memory_order_acquire);
      if (!found && Fill(filled)) ready.store(found = &filled, std::memory_order_release);
    }
    inside = false;
    return found;
  }
  static void lock() {
    if (!inside) filling.lock();
  }
  static void unlock() {
    if (!inside) filling.unlock();
  }

 private:
  static inline Table filled;
  static inline std::atomic<const Table *> ready{nullptr};
  static inline std::mutex filling;
  static inline thread_local bool inside = false;  // it must neither wait for itself nor fork into a wait
};

// The name of a function, as the runtime spells it.
const char *name_of(Fn fn);

// The filled table, or null while the process has no libamdhip64 (asked again at the next call).
// Safe from any thread; loads nothing.
const Table *table();

// The path of a mapped library whose file name begins with `begin`; false where there is none. The path is
// looked for among everything that is mapped: a backend may be opened with RTLD_LOCAL, where RTLD_NEXT
// answers null.
bool mapped_library(const char *begin, char *path, size_t room);

// The same over CUDA's driver, libcuda.so.1: what is spelled hipX here calls cuX.
const Table *cuda_table();
// The driver's own function of a row of cuda.inc; null where it has none. Asked only after cuda_table().
void *cuda_function(Fn fn);

// Around fork(): no lock of ours may be held by a thread that the child does not have.
void lock_table();
void unlock_table();
void lock_tables();  // both
void unlock_tables();

// The one of them that the process uses; HIP's where it has both.
const Table *any_table();

// dlsym of the C library itself, whatever interposes on the name.
void *plain_dlsym(void *handle, const char *name);

}  // namespace gfx
