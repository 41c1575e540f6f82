// What HIP does under other arguments, and what has to be made up for. Each function answers with
// HIP's status, or kRefused where nothing of HIP's can stand in.
#include <map>
#include <mutex>
#include <vector>

#include "compat.h"
#include "cuda_convert.h"

#define CALL(name, ...) (hip()->name ? hip()->name(__VA_ARGS__) : kAbsent)

namespace gfx::compat {
namespace {

// CUDA's form of a node's arguments, in HIP's order and with HIP's end.
bool convert_extra(hipKernelNodeParams &params, Extra &room) {
  if (!params.extra) return true;
  void *buffer, *size;
  if (!read_extra(params.extra, kCudaEnd, &buffer, &size)) return false;
  room = make_extra(buffer, size, kHipEnd);
  params.extra = room.entries;
  return true;
}

template <class F>
int with_kernel(const cudaKernelNodeParams *given, const F &call) {
  if (!given) return kInvalidValue;
  hipKernelNodeParams params = to_hip(*given);
  Extra room;
  return convert_extra(params, room) ? call(&params) : kInvalidValue;
}

template <class F>
int with_memset(const cudaMemsetParams *given, const F &call) {
  if (!given) return kInvalidValue;
  const hipMemsetParams params = to_hip(*given);
  return call(&params);
}

// HIP's edges have no data: what is all zero says nothing that HIP would not do anyway.
bool says_nothing(const cudaGraphEdgeData *data, size_t n) {
  for (size_t i = 0; data && i < n; i++)
    if (data[i].from_port || data[i].to_port || data[i].type) return false;
  return true;
}
constexpr char kEdgeData[] = "edges with ports or a type (programmatic launches) do not exist in HIP";
void fill_edges(cudaGraphEdgeData *data, size_t n) {
  for (size_t i = 0; data && i < n; i++) data[i] = {};
}

enum : unsigned long long { kAutoFree = 1, kUpload = 2, kDeviceLaunch = 4, kPriority = 8 };
constexpr char kNoDeviceLaunch[] = "no AMD GPU launches graphs from the device";

// HIP takes 0, 1 or 8. A priority is a wish, so of both it is the one that is dropped.
unsigned long long hip_flags(unsigned long long flags) {
  return flags & kAutoFree ? kAutoFree : flags & kPriority;
}
int instantiate(Cuda which, hipGraphExec_t *exec, hipGraph_t graph, unsigned long long flags) {
  if (exec) *exec = nullptr;
  if (flags & kDeviceLaunch) return refuse(which, kNoDeviceLaunch);
  if (!exec || flags & ~(kAutoFree | kPriority)) return kInvalidValue;
  hipGraphExec_t made = nullptr;
  const int status = CALL(hipGraphInstantiateWithFlags, &made, graph, hip_flags(flags));
  if (!status) *exec = made;  // what HIP leaves there on failure is not a handle
  return status;
}

constexpr char kConditional[] = "HIP has no conditional nodes; gfxg_conditional of gfxgraph.h chooses on the host";
constexpr char kMoved[] = "HIP always clones child graphs, ownership cannot move";
constexpr char kNoSetter[] = "HIP cannot change nodes of this kind";

}  // namespace

// Kernel and memset nodes -------------------------------------------------------------------------

int do_cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t n,
                              const cudaKernelNodeParams *params) {
  return with_kernel(params, [&](auto *p) { return CALL(hipGraphAddKernelNode, node, graph, after, n, p); });
}
int do_cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams *params) {
  if (!params) return kInvalidValue;
  hipKernelNodeParams theirs{};
  if (const int status = CALL(hipGraphKernelNodeGetParams, node, &theirs)) return status;
  *params = to_cuda(theirs);
  void *buffer, *size;
  if (params->extra && read_extra(params->extra, kHipEnd, &buffer, &size)) {
    // HIP's array is the node's and must stay as it is; this one holds until the thread asks again.
    thread_local Extra room;
    room = make_extra(buffer, size, kCudaEnd);
    params->extra = room.entries;
  }
  return 0;
}
int do_cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams *params) {
  return with_kernel(params, [&](auto *p) { return CALL(hipGraphKernelNodeSetParams, node, p); });
}
int do_cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaKernelNodeParams *params) {
  return with_kernel(params, [&](auto *p) { return CALL(hipGraphExecKernelNodeSetParams, exec, node, p); });
}
int do_cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t to, cudaGraphNode_t from) {
  return CALL(hipGraphKernelNodeCopyAttributes, from, to);
}
// Access policy, cooperative and priority have the same numbers in both; HIP knows no others.
bool is_attribute(int attribute) { return attribute == 1 || attribute == 2 || attribute == 8; }
constexpr char kAttribute[] = "HIP has no such kernel-node attribute";
int do_cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node, int attribute, cudaKernelNodeAttrValue *value) {
  if (!is_attribute(attribute)) return refuse(Cuda::cudaGraphKernelNodeGetAttribute, kAttribute);
  return CALL(hipGraphKernelNodeGetAttribute, node, attribute, value);
}
int do_cudaGraphKernelNodeSetAttribute(cudaGraphNode_t node, int attribute, const cudaKernelNodeAttrValue *value) {
  if (!is_attribute(attribute)) return refuse(Cuda::cudaGraphKernelNodeSetAttribute, kAttribute);
  return CALL(hipGraphKernelNodeSetAttribute, node, attribute, value);
}
int do_cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t n,
                              const cudaMemsetParams *params) {
  return with_memset(params, [&](auto *p) { return CALL(hipGraphAddMemsetNode, node, graph, after, n, p); });
}
int do_cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams *params) {
  if (!params) return kInvalidValue;
  hipMemsetParams theirs{};
  const int status = CALL(hipGraphMemsetNodeGetParams, node, &theirs);
  if (!status) *params = to_cuda(theirs);
  return status;
}
int do_cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams *params) {
  return with_memset(params, [&](auto *p) { return CALL(hipGraphMemsetNodeSetParams, node, p); });
}
int do_cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaMemsetParams *params) {
  return with_memset(params, [&](auto *p) { return CALL(hipGraphExecMemsetNodeSetParams, exec, node, p); });
}
int do_cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaMemcpy3DParms *params) {
  return CALL(hipGraphExecMemcpyNodeSetParams, exec, node, const_cast<cudaMemcpy3DParms *>(params));
}
int do_cudaGraphNodeGetType(cudaGraphNode_t node, int *type) {
  if (!type) return kInvalidValue;
  return backend().node_type(node, type).status;
}

// Nodes of any kind -------------------------------------------------------------------------------

int do_cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                        const cudaGraphEdgeData *edges, size_t n, cudaGraphNodeParams *p) {
  constexpr Cuda self = Cuda::cudaGraphAddNode;
  if (!p || !node) return kInvalidValue;
  if (!says_nothing(edges, n)) return refuse(self, kEdgeData);
  auto *bytes = reinterpret_cast<void *>(&p->kernel);
  switch (p->type) {
    case kKernel: return do_cudaGraphAddKernelNode(node, graph, after, n, &p->kernel);
    case kMemcpy: return CALL(hipGraphAddMemcpyNode, node, graph, after, n, &p->memcpy.copyParams);
    case kMemset: return do_cudaGraphAddMemsetNode(node, graph, after, n, &p->memset);
    case kHost: return CALL(hipGraphAddHostNode, node, graph, after, n, &p->host);
    case kChild:
      if (p->graph.ownership) return refuse(self, kMoved);
      return CALL(hipGraphAddChildGraphNode, node, graph, after, n, p->graph.graph);
    case kEmpty: return CALL(hipGraphAddEmptyNode, node, graph, after, n);
    case kWaitEvent: return CALL(hipGraphAddEventWaitNode, node, graph, after, n, p->event);
    case kEventRecord: return CALL(hipGraphAddEventRecordNode, node, graph, after, n, p->event);
    case kSemaphoreSignal:
      return CALL(hipGraphAddExternalSemaphoresSignalNode, node, graph, after, n,
                  static_cast<hipExternalSemaphoreSignalNodeParams *>(bytes));
    case kSemaphoreWait:
      return CALL(hipGraphAddExternalSemaphoresWaitNode, node, graph, after, n,
                  static_cast<hipExternalSemaphoreWaitNodeParams *>(bytes));
    case kMemAlloc:
      return CALL(hipGraphAddMemAllocNode, node, graph, after, n, static_cast<hipMemAllocNodeParams *>(bytes));
    case kMemFree: return CALL(hipGraphAddMemFreeNode, node, graph, after, n, p->free);
    default: return refuse(self, kConditional);
  }
}
int do_cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams *p) {
  if (!p) return kInvalidValue;
  auto *bytes = reinterpret_cast<void *>(&p->kernel);
  switch (p->type) {
    case kKernel: return do_cudaGraphKernelNodeSetParams(node, &p->kernel);
    case kMemcpy: return CALL(hipGraphMemcpyNodeSetParams, node, &p->memcpy.copyParams);
    case kMemset: return do_cudaGraphMemsetNodeSetParams(node, &p->memset);
    case kHost: return CALL(hipGraphHostNodeSetParams, node, &p->host);
    case kWaitEvent: return CALL(hipGraphEventWaitNodeSetEvent, node, p->event);
    case kEventRecord: return CALL(hipGraphEventRecordNodeSetEvent, node, p->event);
    case kSemaphoreSignal:
      return CALL(hipGraphExternalSemaphoresSignalNodeSetParams, node,
                  static_cast<hipExternalSemaphoreSignalNodeParams *>(bytes));
    case kSemaphoreWait:
      return CALL(hipGraphExternalSemaphoresWaitNodeSetParams, node,
                  static_cast<hipExternalSemaphoreWaitNodeParams *>(bytes));
    default: return refuse(Cuda::cudaGraphNodeSetParams, kNoSetter);
  }
}
int do_cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeParams *p) {
  if (!p) return kInvalidValue;
  auto *bytes = reinterpret_cast<void *>(&p->kernel);
  switch (p->type) {
    case kKernel: return do_cudaGraphExecKernelNodeSetParams(exec, node, &p->kernel);
    case kMemcpy: return do_cudaGraphExecMemcpyNodeSetParams(exec, node, &p->memcpy.copyParams);
    case kMemset: return do_cudaGraphExecMemsetNodeSetParams(exec, node, &p->memset);
    case kHost: return CALL(hipGraphExecHostNodeSetParams, exec, node, &p->host);
    case kChild: return CALL(hipGraphExecChildGraphNodeSetParams, exec, node, p->graph.graph);
    case kWaitEvent: return CALL(hipGraphExecEventWaitNodeSetEvent, exec, node, p->event);
    case kEventRecord: return CALL(hipGraphExecEventRecordNodeSetEvent, exec, node, p->event);
    case kSemaphoreSignal:
      return CALL(hipGraphExecExternalSemaphoresSignalNodeSetParams, exec, node,
                  static_cast<hipExternalSemaphoreSignalNodeParams *>(bytes));
    case kSemaphoreWait:
      return CALL(hipGraphExecExternalSemaphoresWaitNodeSetParams, exec, node,
                  static_cast<hipExternalSemaphoreWaitNodeParams *>(bytes));
    default: return refuse(Cuda::cudaGraphExecNodeSetParams, kNoSetter);
  }
}

// Edges -------------------------------------------------------------------------------------------

int do_cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                const cudaGraphEdgeData *edges, size_t n) {
  if (!says_nothing(edges, n)) return refuse(Cuda::cudaGraphAddDependencies, kEdgeData);
  return CALL(hipGraphAddDependencies, graph, from, to, n);
}
int do_cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                   const cudaGraphEdgeData *edges, size_t n) {
  if (!says_nothing(edges, n)) return refuse(Cuda::cudaGraphRemoveDependencies, kEdgeData);
  return CALL(hipGraphRemoveDependencies, graph, from, to, n);
}
int do_cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *edges,
                         size_t *n) {
  const size_t room = n ? *n : 0;
  const int status = CALL(hipGraphGetEdges, graph, from, to, n);
  if (!status && from) fill_edges(edges, room < *n ? room : *n);
  return status;
}
int do_cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *found, cudaGraphEdgeData *edges, size_t *n) {
  const size_t room = n ? *n : 0;
  const int status = CALL(hipGraphNodeGetDependencies, node, found, n);
  if (!status && found) fill_edges(edges, room < *n ? room : *n);
  return status;
}
int do_cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *found, cudaGraphEdgeData *edges,
                                      size_t *n) {
  const size_t room = n ? *n : 0;
  const int status = CALL(hipGraphNodeGetDependentNodes, node, found, n);
  if (!status && found) fill_edges(edges, room < *n ? room : *n);
  return status;
}

// Captures ----------------------------------------------------------------------------------------

namespace {

// Of captures that have not ended. Never destroyed: calls may come while the process ends.
struct Captures {
  std::mutex lock;
  std::map<cudaStream_t, Begun> begun;
};
Captures &captures() {
  static auto *made = new Captures;
  return *made;
}
void note_begin(cudaStream_t stream, std::vector<cudaGraphNode_t> before) {
  std::lock_guard<std::mutex> hold(captures().lock);
  captures().begun[stream] = {false, std::move(before), false};
}

// Its capture was refused with a fork not joined: the graph is gone, and asking for it would crash.
bool is_stuck(cudaStream_t stream) {
  std::lock_guard<std::mutex> hold(captures().lock);
  const auto found = captures().begun.find(stream);
  return found != captures().begun.end() && found->second.is_stuck;
}

}  // namespace

int do_cudaStreamBeginCapture(cudaStream_t stream, int mode) {
  const int status = CALL(hipStreamBeginCapture, adapt(stream), mode);
  if (!status) note_begin(adapt(stream), {});
  return status;
}
int do_cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *after,
                                     const cudaGraphEdgeData *edges, size_t n, int mode) {
  if (!says_nothing(edges, n)) return refuse(Cuda::cudaStreamBeginCaptureToGraph, kEdgeData);
  size_t n_nodes = 0;
  if (const int status = CALL(hipGraphGetNodes, graph, nullptr, &n_nodes)) return status;
  std::vector<cudaGraphNode_t> before(n_nodes);
  if (n_nodes)
    if (const int status = CALL(hipGraphGetNodes, graph, before.data(), &n_nodes)) return status;
  const int status = CALL(hipStreamBeginCaptureToGraph, adapt(stream), graph, after, nullptr, n, mode);
  if (!status) note_begin(adapt(stream), std::move(before));
  return status;
}
int do_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  if (!graph) return kInvalidValue;
  stream = adapt(stream);
  Begun begun;
  {
    std::lock_guard<std::mutex> hold(captures().lock);
    const auto found = captures().begun.find(stream);
    if (found != captures().begun.end()) begun = found->second;
  }
  if (begun.is_stuck) {
    *graph = nullptr;
    return kCaptureUnjoined;  // HIP would crash
  }
  const int status = safe_end(backend(), stream, graph, begun).status;
  std::lock_guard<std::mutex> hold(captures().lock);
  if (begun.is_stuck) captures().begun[stream] = begun;
  else if (status != kCaptureUnmatched && status != kCaptureWrongThread) captures().begun.erase(stream);
  return status;
}
int do_cudaStreamGetCaptureInfo(cudaStream_t stream, int *status, unsigned long long *id, cudaGraph_t *graph,
                                const cudaGraphNode_t **last, const cudaGraphEdgeData **edges, size_t *n) {
  if (is_stuck(adapt(stream))) {
    if (!status) return kInvalidValue;
    *status = kInvalidated;
    return 0;
  }
  size_t n_last = 0;
  const int answer = CALL(hipStreamGetCaptureInfo_v2, adapt(stream), status, id, graph, last, &n_last);
  if (answer) return answer;
  if (n) *n = n_last;
  if (edges) {
    thread_local std::vector<cudaGraphEdgeData> none;
    none.assign(n_last, {});
    *edges = none.data();
  }
  return 0;
}
int do_cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                           size_t n, unsigned flags) {
  if (!says_nothing(edges, n)) return refuse(Cuda::cudaStreamUpdateCaptureDependencies, kEdgeData);
  const int status = CALL(hipStreamUpdateCaptureDependencies, adapt(stream), nodes, n, flags);
  if (!status) {
    std::lock_guard<std::mutex> hold(captures().lock);
    captures().begun[adapt(stream)].edited = true;
  }
  return status;
}

// Graph execs -------------------------------------------------------------------------------------

int do_cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return instantiate(Cuda::cudaGraphInstantiate, exec, graph, flags);
}
int do_cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return instantiate(Cuda::cudaGraphInstantiateWithFlags, exec, graph, flags);
}
int do_cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph, cudaGraphInstantiateParams *params) {
  if (!exec || !params) return kInvalidValue;
  *exec = nullptr;
  if (params->flags & kDeviceLaunch) return refuse(Cuda::cudaGraphInstantiateWithParams, kNoDeviceLaunch);
  if (params->flags & ~(kAutoFree | kUpload | kPriority)) return kInvalidValue;
  hipGraphInstantiateParams theirs = to_hip(*params);
  theirs.flags = hip_flags(params->flags);
  hipGraphExec_t made = nullptr;
  int status = CALL(hipGraphInstantiateWithParams, &made, graph, &theirs);
  if (status == kAbsent) {  // before 6.2
    status = CALL(hipGraphInstantiateWithFlags, &made, graph, theirs.flags);
    theirs.errNode_out = nullptr, theirs.result_out = status ? 1 : 0;
  }
  params->errNode_out = theirs.errNode_out;
  params->result_out = status && !theirs.result_out ? 1 : theirs.result_out;
  if (status) return status;
  if (params->flags & kUpload) {
    const int uploaded = CALL(hipGraphUpload, made, adapt(params->uploadStream));
    if (uploaded && uploaded != kAbsent) {
      CALL(hipGraphExecDestroy, made);
      params->result_out = 1;
      return uploaded;
    }
  }
  *exec = made;
  return 0;
}
int do_cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info) {
  if (!info) return kInvalidValue;
  hipGraphNode_t node = nullptr;
  hipGraphExecUpdateResult result = 1;
  const int status = CALL(hipGraphExecUpdate, exec, graph, &node, &result);
  *info = {status && !result ? 1 : result, node, nullptr};
  return status;
}
int do_cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long *flags) {
  return CALL(hipGraphExecGetFlags, exec, flags);
}
int do_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  stream = adapt(stream);
  if (reinterpret_cast<uintptr_t>(stream) > 2) {
    // CUDA refuses this; HIP runs the graph at once, records nothing, and returns success.
    int status = kNone;
    if (!CALL(hipStreamIsCapturing, stream, &status) && status != kNone) return kCaptureUnsupported;
  }
  return CALL(hipGraphLaunch, exec, stream);
}
int do_cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) {
  // HIP compares the flags for equality: several at once would give bare nodes.
  constexpr unsigned kVerbose = 1;
  return CALL(hipGraphDebugDotPrint, graph, path, flags & (flags - 1) ? kVerbose : flags);
}

}  // namespace gfx::compat
