// The HIP half: pointers from table.cpp, node types by release.
#include <dlfcn.h>

#include <initializer_list>

#include "../table.h"
#include "backend.h"

namespace gfx {

// The table's lookups, in a library that interposes on nothing.
void *plain_dlsym(void *handle, const char *name) { return dlsym(handle, name); }

namespace {

constexpr int version(int major, int minor) { return major * 10000000 + minor * 100000; }

// A missing pointer is an answer, not a crash.
#define CALL(name, ...) \
  return Answer { #name, t_.name ? t_.name(__VA_ARGS__) : kAbsent }

class Hip final : public Backend {
 public:
  explicit Hip(const Table &t) : t_(t) {}
  const char *prefix() const override { return "hip"; }
  const char *library() const override { return t_.library; }
  int version() const override { return t_.version; }
  const char *error_name(int status) const override {
    return t_.hipGetErrorName ? t_.hipGetErrorName(status) : "?";
  }
  void forget_error() const override { t_.hipGetLastError(); }

#define GFX_BOTH(method, name, params, args) \
  Answer method params const override { return {"hip" #name, t_.hip##name ? t_.hip##name args : kAbsent}; }
#include "backend.inc"

  int plain_node_type(int raw) const override {
    if (t_.version < gfx::version(5, 3)) {
      if (raw >= 1 && raw <= 8) return raw - 1;
      return raw >= 9 && raw <= 11 ? kMemcpy : -1;
    }
    if (t_.version < gfx::version(5, 5)) return raw < 10 ? raw : raw <= 11 ? kMemcpy : -1;
    if (raw == 12 || raw == 13) return kMemcpy;  // from and to symbols
    return raw == 14 ? kBatchMemOp : raw >= 0 && raw < 12 ? raw : -1;
  }
  bool frees_unjoined_streams() const override { return false; }
  // It keeps the argument memory of every update until the exec is destroyed.
  unsigned update_budget() const override { return 256; }
  Answer capture_info(hipStream_t stream, int *status, hipGraph_t *graph, const hipGraphNode_t **last,
                      size_t *n_last) const override {
    *graph = nullptr, *last = nullptr, *n_last = 0;
    unsigned long long id = 0;
    CALL(hipStreamGetCaptureInfo_v2, stream, status, &id, graph, last, n_last);
  }
  Answer capture_goes_on_after(hipStream_t stream, hipGraphNode_t *last, size_t n) const override {
    CALL(hipStreamUpdateCaptureDependencies, stream, last, n, 1);
  }
  Answer graph_edges(hipGraph_t graph, hipGraphNode_t *from, hipGraphNode_t *to, size_t *n) const override {
    CALL(hipGraphGetEdges, graph, from, to, n);
  }
  Answer exec_update(hipGraphExec_t exec, hipGraph_t graph) const override {
    hipGraphNode_t node;  // HIP insists on both
    hipGraphExecUpdateResult result;
    CALL(hipGraphExecUpdate, exec, graph, &node, &result);
  }
  Answer get_kernel(hipGraphNode_t node, hipKernelNodeParams *params) const override {
    CALL(hipGraphKernelNodeGetParams, node, params);
  }
  Answer set_kernel(hipGraphNode_t node, const hipKernelNodeParams *params) const override {
    CALL(hipGraphKernelNodeSetParams, node, params);
  }
  Answer exec_set_kernel(hipGraphExec_t exec, hipGraphNode_t node, const hipKernelNodeParams *params) const override {
    CALL(hipGraphExecKernelNodeSetParams, exec, node, params);
  }
  Answer get_memset(hipGraphNode_t node, hipMemsetParams *params) const override {
    CALL(hipGraphMemsetNodeGetParams, node, params);
  }
  Answer set_memset(hipGraphNode_t node, const hipMemsetParams *params) const override {
    CALL(hipGraphMemsetNodeSetParams, node, params);
  }
  Answer exec_set_memset(hipGraphExec_t exec, hipGraphNode_t node, const hipMemsetParams *params) const override {
    CALL(hipGraphExecMemsetNodeSetParams, exec, node, params);
  }
  Answer host_alloc(void **memory, size_t nbytes) const override { CALL(hipHostMalloc, memory, nbytes, 0); }
  Answer host_free(void *memory) const override { CALL(hipHostFree, memory); }

 private:
  const Table &t_;
};

}  // namespace

const Backend *hip_backend(bool load) {
  const Table *found = table();
  if (!found && load)
    for (const char *name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"})
      if (dlopen(name, RTLD_LAZY | RTLD_GLOBAL)) {
        found = table();
        break;
      }
  if (!found) return nullptr;
  static const Hip hip(*found);
  return &hip;
}

}  // namespace gfx
