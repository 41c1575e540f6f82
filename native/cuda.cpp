// CUDA's driver behind the table: most of HIP's graph calls have a twin of the same shape there.
//
// The driver, not libcudart: every version of that, linked statically too, ends here, and the driver's
// functions are versioned by name, where libcudart's changed their arguments from 12 to 13.
#include <dlfcn.h>

#include <unordered_map>

#include "table.h"

namespace gfx {
namespace {

char library_path[4096];
void *functions[kFnCount - kHipCount];

const char *const kSymbols[] = {
#define GFX_CU(symbol, name, since, stream, arguments) #symbol,
#include "cuda.inc"
};

// What a walk needs and nobody interposes on.
struct Driver {
  int (*cuGraphKernelNodeGetParams_v2)(hipGraphNode_t, cuKernelNodeParams *);
  int (*cuGraphKernelNodeGetParams)(hipGraphNode_t, cuKernelNodeParams *);
  int (*cuGraphKernelNodeGetAttribute)(hipGraphNode_t, int, uint64_t *);
  int (*cuGraphMemcpyNodeGetParams)(hipGraphNode_t, cuMemcpy3D *);
  int (*cuGraphMemsetNodeGetParams)(hipGraphNode_t, cuMemsetParams *);
  int (*cuGraphGetNodes)(hipGraph_t, hipGraphNode_t *, size_t *);
  int (*cuGraphGetEdges)(hipGraph_t, hipGraphNode_t *, hipGraphNode_t *, size_t *);
  int (*cuGraphGetEdges_v2)(hipGraph_t, hipGraphNode_t *, hipGraphNode_t *, void *, size_t *);
  int (*cuGraphAddEmptyNode)(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t);
  int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t,
                        void **, void **);
  int (*cuLaunchKernelEx)(const cuLaunchConfig *, void *, void **, void **);
  int (*cuMemcpy3DAsync_v2)(const cuMemcpy3D *, hipStream_t);
  int (*cuDriverGetVersion)(int *);
} driver;

enum LaunchAttribute { kCooperative = 2, kClusterDimension = 4, kClusterScheduling = 5 };

// A launch alone can be given what its node has been given; without these it would run wrongly or not at all.
unsigned attributes_of(hipGraphNode_t node, cuLaunchAttribute *out) {
  unsigned n = 0;
  if (!driver.cuGraphKernelNodeGetAttribute) return 0;
  for (int id : {kCooperative, kClusterDimension, kClusterScheduling}) {
    cuLaunchAttribute one{};
    one.id = id;
    if (driver.cuGraphKernelNodeGetAttribute(node, id, one.value)) continue;
    // 12 bytes of a cluster's dimension, 4 of the others; all zero: not set.
    const bool is_set = id == kClusterDimension ? one.value[0] || (one.value[1] & 0xffffffff)
                                                : (one.value[0] & 0xffffffff) != 0;
    if (is_set) out[n++] = one;
  }
  return n;
}

hipError_t kernel_node(hipGraphNode_t node, hipStream_t stream, bool run) {
  cuKernelNodeParams p{};
  auto get = driver.cuGraphKernelNodeGetParams_v2 ? driver.cuGraphKernelNodeGetParams_v2
                                                  : driver.cuGraphKernelNodeGetParams;
  if (!get || !driver.cuLaunchKernel) return kNotSupported;
  if (hipError_t status = get(node, &p)) return status;
  void *what = p.func ? p.func : p.kern;  // a CUkernel may stand for a CUfunction in launches
  if (!what) return kNotSupported;
  cuLaunchAttribute attributes[3];
  const unsigned n = attributes_of(node, attributes);
  if (n && !driver.cuLaunchKernelEx) return kNotSupported;
  if (!run) return kSuccess;
  void **extra = p.kernelParams ? nullptr : p.extra;
  if (!n)
    return driver.cuLaunchKernel(what, p.grid.x, p.grid.y, p.grid.z, p.block.x, p.block.y, p.block.z,
                                 p.sharedMemBytes, stream, p.kernelParams, extra);
  const cuLaunchConfig config{{p.grid.x, p.grid.y, p.grid.z}, {p.block.x, p.block.y, p.block.z},
                              p.sharedMemBytes, stream, attributes, n};
  return driver.cuLaunchKernelEx(&config, what, p.kernelParams, extra);
}

hipError_t memcpy_node(hipGraphNode_t node, hipStream_t stream, bool run) {
  cuMemcpy3D p{};
  if (!driver.cuGraphMemcpyNodeGetParams || !driver.cuMemcpy3DAsync_v2) return kNotSupported;
  if (hipError_t status = driver.cuGraphMemcpyNodeGetParams(node, &p)) return status;
  return run ? driver.cuMemcpy3DAsync_v2(&p, stream) : kSuccess;
}

hipError_t memset_params(hipGraphNode_t node, hipMemsetParams *out) {
  cuMemsetParams p{};
  if (!driver.cuGraphMemsetNodeGetParams) return kNotSupported;
  if (hipError_t status = driver.cuGraphMemsetNodeGetParams(node, &p)) return status;
  *out = {p.dst, p.elementSize, p.height, p.pitch, p.value, p.width};
  return kSuccess;
}

// In an order in which they may run: unlike HIP's, the driver's list promises none.
hipError_t ordered_nodes(hipGraph_t graph, std::vector<hipGraphNode_t> *out) {
  size_t n = 0, n_edges = 0;
  if (hipError_t status = driver.cuGraphGetNodes(graph, nullptr, &n)) return status;
  std::vector<hipGraphNode_t> nodes(n);
  if (n)
    if (hipError_t status = driver.cuGraphGetNodes(graph, nodes.data(), &n)) return status;
  auto edges = [&](hipGraphNode_t *from, hipGraphNode_t *to, void *data) {
    // The older form refuses a graph whose edges carry data, as programmatic launches make them.
    if (driver.cuGraphGetEdges_v2) return driver.cuGraphGetEdges_v2(graph, from, to, data, &n_edges);
    return driver.cuGraphGetEdges ? driver.cuGraphGetEdges(graph, from, to, &n_edges) : kNotSupported;
  };
  if (hipError_t status = edges(nullptr, nullptr, nullptr)) return status;
  std::vector<hipGraphNode_t> from(n_edges), to(n_edges);
  std::vector<uint64_t> data(n_edges);
  if (n_edges)
    if (hipError_t status = edges(from.data(), to.data(), data.data())) return status;
  std::unordered_map<hipGraphNode_t, size_t> waits;
  std::unordered_map<hipGraphNode_t, std::vector<hipGraphNode_t>> followers;
  for (size_t i = 0; i < n_edges; i++) {
    waits[to[i]]++;
    followers[from[i]].push_back(to[i]);
  }
  out->clear();
  for (hipGraphNode_t node : nodes)
    if (!waits.count(node)) out->push_back(node);
  for (size_t next = 0; next < out->size(); next++)
    for (hipGraphNode_t follower : followers[(*out)[next]])
      if (--waits[follower] == 0) out->push_back(follower);
  return out->size() == n ? kSuccess : kIllegalState;
}

hipError_t no_last_error() { return kSuccess; }  // the driver keeps none

template <class F>
void set(F *&slot, void *handle, const char *symbol) {
  slot = reinterpret_cast<F *>(plain_dlsym(handle, symbol));
}

bool fill(Table &t) {
  if (!mapped_library("libcuda.so", library_path, sizeof library_path)) return false;
  void *handle = dlopen(library_path, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return false;
  for (size_t i = 0; i < sizeof kSymbols / sizeof *kSymbols; i++) functions[i] = plain_dlsym(handle, kSymbols[i]);
#define DRIVER(symbol) set(driver.symbol, handle, #symbol)
  DRIVER(cuGraphKernelNodeGetParams_v2), DRIVER(cuGraphKernelNodeGetParams), DRIVER(cuGraphKernelNodeGetAttribute);
  DRIVER(cuGraphMemcpyNodeGetParams), DRIVER(cuGraphMemsetNodeGetParams), DRIVER(cuGraphGetNodes);
  DRIVER(cuGraphGetEdges), DRIVER(cuGraphGetEdges_v2), DRIVER(cuGraphAddEmptyNode), DRIVER(cuLaunchKernel);
  DRIVER(cuLaunchKernelEx), DRIVER(cuMemcpy3DAsync_v2), DRIVER(cuDriverGetVersion);
#define SAME(hip, cu) set(t.hip, handle, #cu)
  SAME(hipGraphClone, cuGraphClone), SAME(hipGraphCreate, cuGraphCreate), SAME(hipGraphDestroy, cuGraphDestroy);
  SAME(hipGraphGetNodes, cuGraphGetNodes), SAME(hipGraphGetEdges, cuGraphGetEdges);
  SAME(hipGraphNodeGetType, cuGraphNodeGetType), SAME(hipGraphNodeFindInClone, cuGraphNodeFindInClone);
  SAME(hipGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph);
  SAME(hipGraphHostNodeGetParams, cuGraphHostNodeGetParams);
  SAME(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags);
  SAME(hipGraphExecDestroy, cuGraphExecDestroy), SAME(hipGraphExecUpdate, cuGraphExecUpdate);
  SAME(hipGraphLaunch, cuGraphLaunch);
  SAME(hipStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2);
  SAME(hipStreamSynchronize, cuStreamSynchronize);
  // Their shapes differ only in what the caller hands through unread.
  SAME(hipGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2);
  SAME(hipGraphKernelNodeSetParams, cuGraphKernelNodeSetParams_v2);
  SAME(hipLaunchHostFunc, cuLaunchHostFunc);
  SAME(hipMemsetAsync, cuMemsetD8Async), SAME(hipMemsetD16Async, cuMemsetD16Async);
  SAME(hipMemsetD32Async, cuMemsetD32Async);
  t.hipGraphMemsetNodeGetParams = memset_params;
  t.hipGetLastError = no_last_error;
  t.kernel_node = kernel_node;
  t.memcpy_node = memcpy_node;
  t.ordered_nodes = ordered_nodes;
  t.cuda = true;
  t.library = library_path;
  if (!t.hipGraphGetNodes || !t.hipGraphClone || !t.hipGraphLaunch || !t.hipGraphExecDestroy ||
      !t.hipStreamGetCaptureInfo_v2 || !t.hipGraphNodeFindInClone)
    return false;
  if (driver.cuDriverGetVersion) driver.cuDriverGetVersion(&t.version);
  return true;
}

using Filled = FilledOnce<fill>;

}  // namespace

void lock_tables() {
  lock_table();
  Filled::lock();
}
void unlock_tables() {
  Filled::unlock();
  unlock_table();
}

const Table *any_table() {
  const Table *hip = table();
  return hip ? hip : cuda_table();
}

void *cuda_function(Fn fn) { return functions[static_cast<int>(fn) - kHipCount]; }

const Table *cuda_table() { return Filled::get(); }

}  // namespace gfx
