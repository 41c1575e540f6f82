// CUDA's driver over the same CPU device: a libcuda.so.1 with the driver's names and struct layouts.
//
// Only the functions that programs under test use; absent_driver.cpp has the rest of cuda.inc. HIP's functions are in this library too, hidden, and do the work.
#include <cstring>
#include <utility>

#include "device.h"

#define GFX_GRAPH(name, need, params, args) extern "C" hipError_t name params;
#include "../api.inc"
extern "C" hipError_t hipStreamCreateWithFlags(hipStream_t *, unsigned);
extern "C" hipError_t hipStreamDestroy(hipStream_t);

namespace {

hipKernelNodeParams to_hip(const cuKernelNodeParams &p) {
  return {p.block, p.extra, p.func ? p.func : p.kern, p.grid, p.kernelParams, p.sharedMemBytes};
}

}  // namespace

// By shape ---------------------------------------------------------------------------------------

#define SAME(cu, hip, params, args) \
  FAKE_API hipError_t cu params {   \
    FAKE_ENTER();                   \
    return hip args;                \
  }
SAME(cuGraphCreate, hipGraphCreate, (hipGraph_t * g, unsigned f), (g, f))
SAME(cuGraphDestroy, hipGraphDestroy, (hipGraph_t g), (g))
SAME(cuGraphClone, hipGraphClone, (hipGraph_t * out, hipGraph_t g), (out, g))
SAME(cuGraphGetEdges, hipGraphGetEdges, (hipGraph_t g, hipGraphNode_t *from, hipGraphNode_t *to, size_t *n),
     (g, from, to, n))
SAME(cuGraphNodeGetType, hipGraphNodeGetType, (hipGraphNode_t node, int *type), (node, type))
SAME(cuGraphNodeFindInClone, hipGraphNodeFindInClone, (hipGraphNode_t * out, hipGraphNode_t node, hipGraph_t g),
     (out, node, g))
SAME(cuGraphAddEmptyNode, hipGraphAddEmptyNode,
     (hipGraphNode_t * out, hipGraph_t g, const hipGraphNode_t *after, size_t n), (out, g, after, n))
SAME(cuGraphAddHostNode, hipGraphAddHostNode,
     (hipGraphNode_t * out, hipGraph_t g, const hipGraphNode_t *after, size_t n, const hipHostNodeParams *p),
     (out, g, after, n, p))
SAME(cuGraphHostNodeGetParams, hipGraphHostNodeGetParams, (hipGraphNode_t node, hipHostNodeParams *p), (node, p))
SAME(cuGraphAddChildGraphNode, hipGraphAddChildGraphNode,
     (hipGraphNode_t * out, hipGraph_t g, const hipGraphNode_t *after, size_t n, hipGraph_t child),
     (out, g, after, n, child))
SAME(cuGraphChildGraphNodeGetGraph, hipGraphChildGraphNodeGetGraph, (hipGraphNode_t node, hipGraph_t *out), (node, out))
SAME(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags,
     (hipGraphExec_t * out, hipGraph_t g, unsigned long long flags), (out, g, flags))
SAME(cuGraphInstantiate_v2, hipGraphInstantiate,
     (hipGraphExec_t * out, hipGraph_t g, hipGraphNode_t *node, char *text, size_t n), (out, g, node, text, n))
SAME(cuGraphLaunch, hipGraphLaunch, (hipGraphExec_t exec, hipStream_t on), (exec, on))
SAME(cuGraphUpload, hipGraphUpload, (hipGraphExec_t exec, hipStream_t on), (exec, on))
SAME(cuGraphExecDestroy, hipGraphExecDestroy, (hipGraphExec_t exec), (exec))
SAME(cuGraphExecUpdate, hipGraphExecUpdate,
     (hipGraphExec_t exec, hipGraph_t g, hipGraphNode_t *bad, int *result), (exec, g, bad, result))
SAME(cuGraphNodeSetEnabled, hipGraphNodeSetEnabled, (hipGraphExec_t exec, hipGraphNode_t node, unsigned on),
     (exec, node, on))
SAME(cuGraphNodeGetEnabled, hipGraphNodeGetEnabled, (hipGraphExec_t exec, hipGraphNode_t node, unsigned *on),
     (exec, node, on))
SAME(cuStreamBeginCapture_v2, hipStreamBeginCapture, (hipStream_t on, int mode), (on, mode))
SAME(cuStreamGetCaptureInfo_v2, hipStreamGetCaptureInfo_v2,
     (hipStream_t on, int *status, unsigned long long *id, hipGraph_t *g, const hipGraphNode_t **last, size_t *n),
     (on, status, id, g, last, n))
SAME(cuStreamIsCapturing, hipStreamIsCapturing, (hipStream_t on, int *status), (on, status))
SAME(cuStreamSynchronize, hipStreamSynchronize, (hipStream_t on), (on))
SAME(cuLaunchHostFunc, hipLaunchHostFunc, (hipStream_t on, hipHostFn_t fn, void *data), (on, fn, data))
SAME(cuMemsetD8Async, hipMemsetAsync, (void *dst, unsigned char value, size_t n, hipStream_t on), (dst, value, n, on))
SAME(cuMemsetD32Async, hipMemsetD32Async, (void *dst, unsigned value, size_t n, hipStream_t on),
     (dst, static_cast<int>(value), n, on))
SAME(cuMemcpyDtoDAsync_v2, hipMemcpyAsync, (void *dst, void *src, size_t n, hipStream_t on), (dst, src, n, 3, on))

FAKE_API hipError_t cuStreamCreate(hipStream_t *out, unsigned flags) { return hipStreamCreateWithFlags(out, flags); }
FAKE_API hipError_t cuStreamDestroy_v2(hipStream_t on) { return hipStreamDestroy(on); }
FAKE_API hipError_t cuDriverGetVersion(int *version) { return *version = 13000, 0; }

// Not HIP's: the nodes come in no particular order, so that who needs one must look at the edges.
FAKE_API hipError_t cuGraphGetNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *n) {
  FAKE_ENTER();
  if (hipError_t status = hipGraphGetNodes(graph, nodes, n)) return status;
  if (nodes)
    for (size_t i = 0; i < *n / 2; i++) std::swap(nodes[i], nodes[*n - 1 - i]);
  return 0;
}
FAKE_API hipError_t cuGraphGetEdges_v2(hipGraph_t graph, hipGraphNode_t *from, hipGraphNode_t *to, void *data,
                                       size_t *n) {
  FAKE_ENTER();
  const hipError_t status = hipGraphGetEdges(graph, from, to, n);
  if (!status && data) memset(data, 0, 8 * *n);  // no edge is of a special kind
  return status;
}
// A failed end resets the stream and gives no handle.
FAKE_API hipError_t cuStreamEndCapture(hipStream_t on, hipGraph_t *out) {
  FAKE_ENTER();
  const hipError_t status = hipStreamEndCapture(on, out);
  if (!status) return 0;
  *out = nullptr;
  fake::Stream *stream = fake::stream(on);
  if (status == gfx::kCaptureInvalidated || status == gfx::kCaptureUnjoined)
    for (fake::Stream *each : fake::world().streams)
      if (stream && each->origin == stream->origin) {
        each->status = gfx::kNone;
        each->capture_gone = false;
        each->last.clear();
      }
  return status;
}
FAKE_API hipError_t cuGraphExecUpdate_v2(hipGraphExec_t exec, hipGraph_t graph, cuGraphExecUpdateResultInfo *info) {
  FAKE_ENTER();
  *info = {};
  return hipGraphExecUpdate(exec, graph, &info->errorNode, &info->result);
}
FAKE_API hipError_t cuGraphInstantiateWithParams(hipGraphExec_t *out, hipGraph_t graph, cuGraphInstantiateParams *p) {
  FAKE_ENTER();
  p->result_out = 0;
  return hipGraphInstantiateWithFlags(out, graph, p->flags);
}

// By layout --------------------------------------------------------------------------------------

FAKE_API hipError_t cuGraphAddKernelNode_v2(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                            size_t n, const cuKernelNodeParams *params) {
  FAKE_ENTER();
  const hipKernelNodeParams p = to_hip(*params);
  return hipGraphAddKernelNode(out, graph, after, n, &p);
}
FAKE_API hipError_t cuGraphKernelNodeGetParams_v2(hipGraphNode_t node, cuKernelNodeParams *out) {
  FAKE_ENTER();
  hipKernelNodeParams p{};
  if (hipError_t status = hipGraphKernelNodeGetParams(node, &p)) return status;
  // Kernels of libcudart's registration come back as a CUkernel.
  const bool is_kernel = !fake::world().functions.count(p.func);
  *out = {is_kernel ? nullptr : p.func, p.gridDim, p.blockDim,          p.sharedMemBytes,
          p.kernelParams,              p.extra,   is_kernel ? p.func : nullptr, nullptr};
  return 0;
}
FAKE_API hipError_t cuGraphKernelNodeSetParams_v2(hipGraphNode_t node, const cuKernelNodeParams *params) {
  FAKE_ENTER();
  const hipKernelNodeParams p = to_hip(*params);
  return hipGraphKernelNodeSetParams(node, &p);
}
FAKE_API hipError_t cuGraphExecKernelNodeSetParams_v2(hipGraphExec_t exec, hipGraphNode_t node,
                                                      const cuKernelNodeParams *params) {
  FAKE_ENTER();
  const hipKernelNodeParams p = to_hip(*params);
  return hipGraphExecKernelNodeSetParams(exec, node, &p);
}
FAKE_API hipError_t cuGraphKernelNodeGetAttribute(hipGraphNode_t, int, uint64_t *value) {
  memset(value, 0, 64);
  return 0;
}
FAKE_API hipError_t cuGraphAddMemsetNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after, size_t n,
                                         const cuMemsetParams *p, void *) {
  FAKE_ENTER();
  const hipMemsetParams params{p->dst, p->elementSize, p->height, p->pitch, p->value, p->width};
  return hipGraphAddMemsetNode(out, graph, after, n, &params);
}
FAKE_API hipError_t cuGraphMemsetNodeGetParams(hipGraphNode_t node, cuMemsetParams *out) {
  FAKE_ENTER();
  hipMemsetParams p{};
  if (hipError_t status = hipGraphMemsetNodeGetParams(node, &p)) return status;
  *out = {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
  return 0;
}
// CUDA tells all of a one-dimensional copy.
FAKE_API hipError_t cuGraphMemcpyNodeGetParams(hipGraphNode_t handle, cuMemcpy3D *out) {
  FAKE_ENTER();
  fake::Node *node = fake::node(handle);
  if (node->type != gfx::kMemcpy) return fake::done(gfx::kInvalidValue);
  *out = {};
  out->words[0] = reinterpret_cast<size_t>(node->dst);
  out->words[1] = reinterpret_cast<size_t>(node->src);
  out->words[2] = node->nbytes;
  return 0;
}
FAKE_API hipError_t cuMemcpy3DAsync_v2(const cuMemcpy3D *p, hipStream_t on) {
  FAKE_ENTER();
  return hipMemcpyAsync(reinterpret_cast<void *>(p->words[0]), reinterpret_cast<void *>(p->words[1]), p->words[2], 3, on);
}
FAKE_API hipError_t cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, hipStream_t on, void **args, void **extra) {
  FAKE_ENTER();
  if (fake::world().functions.count(function))
    return hipModuleLaunchKernel(static_cast<hipFunction_t>(function), gx, gy, gz, bx, by, bz, shared, on, args, extra);
  return hipLaunchKernel(function, {gx, gy, gz}, {bx, by, bz}, args, shared, on);
}
