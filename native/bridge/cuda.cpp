// The CUDA half: libcudart's pointers by name, CUDA's struct layouts, the arguments of its release.
#include <dlfcn.h>

#include <initializer_list>
#include <link.h>

#include <cstring>
#include <mutex>

#include "../compat/cuda_abi.h"
#include "../compat/cuda_convert.h"
#include "backend.h"

namespace gfx {
namespace {

struct CudaTable {
#define CUDA_SAME(name, hip, params, args) cudaError_t(*name) params;
#define CUDA_CONVERTED(name, params, args) cudaError_t(*name) params;
#define CUDA_BRIDGED(name, params, args) cudaError_t(*name) params;
#define CUDA_CALL(name, params, args) cudaError_t(*name) params;
#include "../compat/cuda.inc"
  // What 12 has with other arguments, under names that 13 gives to the new ones.
#define CUDA_12(name, plain, params, args) cudaError_t(*name##_of_12) params;
#include "../compat/cuda.inc"
  const char *(*cudaGetErrorName)(cudaError_t);
  int version;
  char library[4096];
};

int look_at(dl_phdr_info *info, size_t, void *found) {
  const char *slash = strrchr(info->dlpi_name, '/');
  if (strncmp(slash ? slash + 1 : info->dlpi_name, "libcudart.so", 12) != 0) return 0;
  strncpy(static_cast<char *>(found), info->dlpi_name, 4095);
  return 1;
}

bool fill(CudaTable &t, bool load) {
  void *handle = nullptr;
  if (dl_iterate_phdr(look_at, t.library)) {
    handle = dlopen(t.library, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  } else if (load) {
    for (const char *name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"})
      if (!handle) handle = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
    if (handle) dl_iterate_phdr(look_at, t.library);
  }
  if (!handle) return false;
#define FETCH(slot, name) t.slot = reinterpret_cast<decltype(t.slot)>(dlsym(handle, name))
#define CUDA_SAME(name, hip, params, args) FETCH(name, #name);
#define CUDA_CONVERTED(name, params, args) FETCH(name, #name);
#define CUDA_BRIDGED(name, params, args) FETCH(name, #name);
#define CUDA_CALL(name, params, args) FETCH(name, #name);
#include "../compat/cuda.inc"
#define CUDA_12(name, plain, params, args) FETCH(name##_of_12, #name);
#include "../compat/cuda.inc"
  FETCH(cudaGetErrorName, "cudaGetErrorName");
  return t.cudaRuntimeGetVersion && !t.cudaRuntimeGetVersion(&t.version) && t.version >= 12000;
}

#define CALL(name, ...) \
  return Answer { #name, t_.name ? t_.name(__VA_ARGS__) : kAbsent }

class Cuda final : public Backend {
 public:
  explicit Cuda(const CudaTable &t) : t_(t), is_12_(t.version < 13000) {}
  const char *prefix() const override { return "cuda"; }
  const char *library() const override { return t_.library; }
  int version() const override { return t_.version; }
  const char *error_name(int status) const override {
    return t_.cudaGetErrorName ? t_.cudaGetErrorName(status) : "?";
  }
  void forget_error() const override {
    if (t_.cudaGetLastError) t_.cudaGetLastError();
  }

#define GFX_BOTH(method, name, params, args) \
  Answer method params const override { return {"cuda" #name, t_.cuda##name ? t_.cuda##name args : kAbsent}; }
#include "backend.inc"

  int plain_node_type(int raw) const override { return raw; }
  bool frees_unjoined_streams() const override { return true; }
  unsigned update_budget() const override { return 0; }
  Answer capture_info(hipStream_t stream, int *status, hipGraph_t *graph, const hipGraphNode_t **last,
                      size_t *n_last) const override {
    *graph = nullptr, *last = nullptr, *n_last = 0;
    unsigned long long id = 0;
    if (is_12_) CALL(cudaStreamGetCaptureInfo_v2_of_12, stream, status, &id, graph, last, n_last);
    const cudaGraphEdgeData *edges = nullptr;
    CALL(cudaStreamGetCaptureInfo, stream, status, &id, graph, last, &edges, n_last);
  }
  Answer capture_goes_on_after(hipStream_t stream, hipGraphNode_t *last, size_t n) const override {
    if (is_12_) CALL(cudaStreamUpdateCaptureDependencies_of_12, stream, last, n, 1);
    CALL(cudaStreamUpdateCaptureDependencies, stream, last, nullptr, n, 1);
  }
  Answer graph_edges(hipGraph_t graph, hipGraphNode_t *from, hipGraphNode_t *to, size_t *n) const override {
    if (is_12_) CALL(cudaGraphGetEdges_of_12, graph, from, to, n);
    CALL(cudaGraphGetEdges, graph, from, to, nullptr, n);
  }
  Answer exec_update(hipGraphExec_t exec, hipGraph_t graph) const override {
    cudaGraphExecUpdateResultInfo info{};
    CALL(cudaGraphExecUpdate, exec, graph, &info);
  }
  Answer get_kernel(hipGraphNode_t node, hipKernelNodeParams *params) const override {
    cudaKernelNodeParams theirs{};
    const Answer answer{"cudaGraphKernelNodeGetParams",
                        t_.cudaGraphKernelNodeGetParams ? t_.cudaGraphKernelNodeGetParams(node, &theirs) : kAbsent};
    if (!answer) *params = to_hip(theirs);
    return answer;
  }
  Answer set_kernel(hipGraphNode_t node, const hipKernelNodeParams *params) const override {
    const cudaKernelNodeParams theirs = to_cuda(*params);
    CALL(cudaGraphKernelNodeSetParams, node, &theirs);
  }
  Answer exec_set_kernel(hipGraphExec_t exec, hipGraphNode_t node, const hipKernelNodeParams *params) const override {
    const cudaKernelNodeParams theirs = to_cuda(*params);
    CALL(cudaGraphExecKernelNodeSetParams, exec, node, &theirs);
  }
  Answer get_memset(hipGraphNode_t node, hipMemsetParams *params) const override {
    cudaMemsetParams theirs{};
    const Answer answer{"cudaGraphMemsetNodeGetParams",
                        t_.cudaGraphMemsetNodeGetParams ? t_.cudaGraphMemsetNodeGetParams(node, &theirs) : kAbsent};
    if (!answer) *params = to_hip(theirs);
    return answer;
  }
  Answer set_memset(hipGraphNode_t node, const hipMemsetParams *params) const override {
    const cudaMemsetParams theirs = to_cuda(*params);
    CALL(cudaGraphMemsetNodeSetParams, node, &theirs);
  }
  Answer exec_set_memset(hipGraphExec_t exec, hipGraphNode_t node, const hipMemsetParams *params) const override {
    const cudaMemsetParams theirs = to_cuda(*params);
    CALL(cudaGraphExecMemsetNodeSetParams, exec, node, &theirs);
  }
  Answer host_alloc(void **memory, size_t nbytes) const override { CALL(cudaHostAlloc, memory, nbytes, 0); }
  Answer host_free(void *memory) const override { CALL(cudaFreeHost, memory); }

 private:
  const CudaTable &t_;
  const bool is_12_;
};

}  // namespace

const Backend *cuda_backend(bool load) {
  static std::mutex filling;
  static CudaTable table;
  static bool filled = false;
  std::lock_guard<std::mutex> hold(filling);
  if (!filled) filled = fill(table, load);
  if (!filled) return nullptr;
  static const Cuda cuda(table);
  return &cuda;
}

}  // namespace gfx
