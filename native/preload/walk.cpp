#include "walk.h"

#include <vector>

namespace gfx {
namespace {

hipError_t nodes_of(const Table &t, hipGraph_t graph, std::vector<hipGraphNode_t> *out) {
  if (t.ordered_nodes) return t.ordered_nodes(graph, out);
  size_t n = 0;
  if (hipError_t status = t.hipGraphGetNodes(graph, nullptr, &n)) return status;
  out->resize(n);
  // Topological order, which is what makes a walk on one stream right.
  return n ? t.hipGraphGetNodes(graph, out->data(), &n) : kSuccess;
}

hipError_t kernel(const Table &t, hipGraphNode_t node, hipStream_t stream, bool run) {
  if (t.kernel_node) return t.kernel_node(node, stream, run);
  hipKernelNodeParams p{};
  if (hipError_t status = t.hipGraphKernelNodeGetParams(node, &p)) return status;
  // Launched by hipLaunchKernel it holds a host stub, by hipModuleLaunchKernel a function. Only the
  // map of stubs may be asked: a stub followed as a function would crash.
  const bool is_stub = t.hipKernelNameRefByPtr && t.hipKernelNameRefByPtr(p.func, nullptr);
  if (is_stub ? !t.hipLaunchKernel || p.extra : !t.hipModuleLaunchKernel) return kNotSupported;
  if (!run) return kSuccess;
  const dim3 g = p.gridDim, b = p.blockDim;
  if (is_stub) return t.hipLaunchKernel(p.func, g, b, p.kernelParams, p.sharedMemBytes, stream);
  return t.hipModuleLaunchKernel(static_cast<hipFunction_t>(p.func), g.x, g.y, g.z, b.x, b.y, b.z,
                                 p.sharedMemBytes, stream, p.kernelParams, p.kernelParams ? nullptr : p.extra);
}

hipError_t memset_node(const Table &t, hipGraphNode_t node, hipStream_t stream, bool run) {
  hipMemsetParams p{};
  if (hipError_t status = t.hipGraphMemsetNodeGetParams(node, &p)) return status;
  if (p.elementSize == 1 ? !t.hipMemsetAsync : p.elementSize == 2 ? !t.hipMemsetD16Async : !t.hipMemsetD32Async)
    return kNotSupported;
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return kNotSupported;
  if (!run) return kSuccess;
  const size_t rows = p.height > 1 ? p.height : 1;
  for (size_t row = 0; row < rows; row++) {
    void *at = static_cast<char *>(p.dst) + row * p.pitch;
    hipError_t status = kSuccess;
    if (p.elementSize == 1) status = t.hipMemsetAsync(at, static_cast<int>(p.value & 0xff), p.width, stream);
    if (p.elementSize == 2) status = t.hipMemsetD16Async(at, static_cast<unsigned short>(p.value), p.width, stream);
    if (p.elementSize == 4) status = t.hipMemsetD32Async(at, static_cast<int>(p.value), p.width, stream);
    if (status) return status;
  }
  return kSuccess;
}

hipError_t memcpy_node(const Table &t, hipGraphNode_t node, const Copies &copies, hipStream_t stream, bool run) {
  if (t.memcpy_node) return t.memcpy_node(node, stream, run);
  auto known = copies.find(node);
  if (known != copies.end()) {
    const Copy1D &c = known->second;
    if (!t.hipMemcpyAsync) return kNotSupported;
    return run ? t.hipMemcpyAsync(c.dst, c.src, c.nbytes, c.kind, stream) : kSuccess;
  }
  hipMemcpy3DParms p{};
  if (hipError_t status = t.hipGraphMemcpyNodeGetParams(node, &p)) return status;
  // All empty: a one-dimensional copy whose call we did not see.
  if (!p.extent.width || !t.hipMemcpy3DAsync) return kNotSupported;
  return run ? t.hipMemcpy3DAsync(&p, stream) : kSuccess;
}

hipError_t host(const Table &t, hipGraphNode_t node, hipStream_t stream, bool run) {
  hipHostNodeParams p{};
  if (hipError_t status = t.hipGraphHostNodeGetParams(node, &p)) return status;
  if (!t.hipLaunchHostFunc) return kNotSupported;
  return run ? t.hipLaunchHostFunc(stream, p.fn, p.userData) : kSuccess;
}

hipError_t go(const Table &t, hipGraph_t graph, const Copies &copies, hipStream_t stream, bool run, size_t *n);

hipError_t one(const Table &t, hipGraphNode_t node, const Copies &copies, hipStream_t stream, bool run, size_t *n) {
  hipGraphNodeType type = -1;
  if (hipError_t status = t.hipGraphNodeGetType(node, &type)) return status;
  switch (type) {
    case kKernel: return kernel(t, node, stream, run);
    case kMemset: return memset_node(t, node, stream, run);
    case kMemcpy: return memcpy_node(t, node, copies, stream, run);
    case kHost: return host(t, node, stream, run);
    case kEmpty: return kSuccess;
    case kChild: {
      hipGraph_t inner = nullptr;
      if (hipError_t status = t.hipGraphChildGraphNodeGetGraph(node, &inner)) return status;
      return go(t, inner, copies, stream, run, n);
    }
    default: return kNotSupported;  // events, semaphores, memory: they have no form outside a graph
  }
}

hipError_t go(const Table &t, hipGraph_t graph, const Copies &copies, hipStream_t stream, bool run, size_t *n) {
  std::vector<hipGraphNode_t> nodes;
  if (hipError_t status = nodes_of(t, graph, &nodes)) return status;
  if (n) *n += nodes.size();
  for (hipGraphNode_t node : nodes)
    if (hipError_t status = one(t, node, copies, stream, run, n)) return status;
  return kSuccess;
}

}  // namespace

hipError_t can_walk(const Table &t, hipGraph_t graph, const Copies &copies, size_t *n) {
  *n = 0;
  return go(t, graph, copies, nullptr, false, n);
}

hipError_t walk(const Table &t, hipGraph_t graph, const Copies &copies, hipStream_t stream) {
  return go(t, graph, copies, stream, true, nullptr);
}

}  // namespace gfx
