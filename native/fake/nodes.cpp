// The rest of the graph functions: parameters of every kind of node, edges, user objects, memory.
#include <algorithm>
#include <cstdio>

#include "device.h"

using namespace fake;
using gfx::kInvalidValue;

namespace {

Node *make(hipGraph_t graph, gfx::NodeType type, const hipGraphNode_t *after, size_t n, hipGraphNode_t *out) {
  Graph *found = live(graph);
  if (!found || !out) return nullptr;
  Node *made = found->add(type, list(after, n));
  *out = reinterpret_cast<hipGraphNode_t>(made);
  return made;
}
Node *of_type(hipGraphNode_t each, int type) {
  return each && node(each)->type == type ? node(each) : nullptr;
}
Node *in_exec(hipGraphExec_t handle, hipGraphNode_t each, int type) {
  Exec *exec = unused(handle);
  Node *found = exec ? exec->find(node(each)) : nullptr;
  return found && found->type == type ? found : nullptr;
}
hipError_t set_1d(Node *to, void *dst, const void *src, size_t nbytes) {
  if (!to) return done(kInvalidValue);
  to->one_dimensional = true;
  to->dst = dst, to->src = src, to->nbytes = nbytes;
  return 0;
}
void *shifted(const void *symbol, size_t offset) { return static_cast<char *>(const_cast<void *>(symbol)) + offset; }

template <class T>
hipError_t put(Node *to, const T *params, size_t nbytes) {
  if (!to || !params) return done(kInvalidValue);
  memcpy(to->params, params, nbytes);
  return 0;
}
template <class T>
hipError_t get(Node *from, T *out, size_t nbytes) {
  if (!from || !out) return done(kInvalidValue);
  memcpy(out, from->params, nbytes);
  return 0;
}
hipError_t give(const std::vector<Node *> &all, hipGraphNode_t *nodes, size_t *n) {
  if (!n) return done(kInvalidValue);
  if (nodes)
    for (size_t i = 0; i < std::min(*n, all.size()); i++) nodes[i] = reinterpret_cast<hipGraphNode_t>(all[i]);
  *n = all.size();
  return 0;
}
constexpr size_t kSemaphore = 24, kAlloc = 120, kBatch = 32, kDptr = 112;
constexpr int kBatchType = 14;

}  // namespace

// Copies ------------------------------------------------------------------------------------------

FAKE_API hipError_t hipGraphAddMemcpyNodeFromSymbol(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                                    size_t n, void *dst, const void *symbol, size_t count,
                                                    size_t offset, hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(make(graph, gfx::kMemcpy, after, n, out), dst, shifted(symbol, offset), count);
}
FAKE_API hipError_t hipGraphAddMemcpyNodeToSymbol(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                                  size_t n, const void *symbol, const void *src, size_t count,
                                                  size_t offset, hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(make(graph, gfx::kMemcpy, after, n, out), shifted(symbol, offset), src, count);
}
FAKE_API hipError_t hipGraphMemcpyNodeSetParams(hipGraphNode_t each, const hipMemcpy3DParms *params) {
  FAKE_ENTER();
  Node *found = of_type(each, gfx::kMemcpy);
  if (!found || !params) return done(kInvalidValue);
  found->copy = *params, found->one_dimensional = false;
  return 0;
}
FAKE_API hipError_t hipGraphMemcpyNodeSetParams1D(hipGraphNode_t each, void *dst, const void *src, size_t count,
                                                  hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(of_type(each, gfx::kMemcpy), dst, src, count);
}
FAKE_API hipError_t hipGraphMemcpyNodeSetParamsFromSymbol(hipGraphNode_t each, void *dst, const void *symbol,
                                                          size_t count, size_t offset, hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(of_type(each, gfx::kMemcpy), dst, shifted(symbol, offset), count);
}
FAKE_API hipError_t hipGraphMemcpyNodeSetParamsToSymbol(hipGraphNode_t each, const void *symbol, const void *src,
                                                        size_t count, size_t offset, hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(of_type(each, gfx::kMemcpy), shifted(symbol, offset), src, count);
}
FAKE_API hipError_t hipGraphExecMemcpyNodeSetParams(hipGraphExec_t exec, hipGraphNode_t each, hipMemcpy3DParms *params) {
  FAKE_ENTER();
  Node *found = in_exec(exec, each, gfx::kMemcpy);
  if (!found || !params) return done(kInvalidValue);
  found->copy = *params, found->one_dimensional = false;
  return 0;
}
FAKE_API hipError_t hipGraphExecMemcpyNodeSetParams1D(hipGraphExec_t exec, hipGraphNode_t each, void *dst,
                                                      const void *src, size_t count, hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(in_exec(exec, each, gfx::kMemcpy), dst, src, count);
}
FAKE_API hipError_t hipGraphExecMemcpyNodeSetParamsFromSymbol(hipGraphExec_t exec, hipGraphNode_t each, void *dst,
                                                              const void *symbol, size_t count, size_t offset,
                                                              hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(in_exec(exec, each, gfx::kMemcpy), dst, shifted(symbol, offset), count);
}
FAKE_API hipError_t hipGraphExecMemcpyNodeSetParamsToSymbol(hipGraphExec_t exec, hipGraphNode_t each,
                                                            const void *symbol, const void *src, size_t count,
                                                            size_t offset, hipMemcpyKind) {
  FAKE_ENTER();
  return set_1d(in_exec(exec, each, gfx::kMemcpy), shifted(symbol, offset), src, count);
}

// Fills, host functions, children, attributes -----------------------------------------------------

FAKE_API hipError_t hipGraphMemsetNodeSetParams(hipGraphNode_t each, const hipMemsetParams *params) {
  FAKE_ENTER();
  Node *found = of_type(each, gfx::kMemset);
  if (!found || !params) return done(kInvalidValue);
  found->set = *params;
  return 0;
}
FAKE_API hipError_t hipGraphExecMemsetNodeSetParams(hipGraphExec_t exec, hipGraphNode_t each,
                                                    const hipMemsetParams *params) {
  FAKE_ENTER();
  Node *found = in_exec(exec, each, gfx::kMemset);
  if (!found || !params) return done(kInvalidValue);
  found->set = *params;
  return 0;
}
FAKE_API hipError_t hipGraphHostNodeSetParams(hipGraphNode_t each, const hipHostNodeParams *params) {
  FAKE_ENTER();
  Node *found = of_type(each, gfx::kHost);
  if (!found || !params) return done(kInvalidValue);
  found->host = *params;
  return 0;
}
FAKE_API hipError_t hipGraphExecHostNodeSetParams(hipGraphExec_t exec, hipGraphNode_t each,
                                                  const hipHostNodeParams *params) {
  FAKE_ENTER();
  Node *found = in_exec(exec, each, gfx::kHost);
  if (!found || !params) return done(kInvalidValue);
  found->host = *params;
  return 0;
}
FAKE_API hipError_t hipGraphExecChildGraphNodeSetParams(hipGraphExec_t exec, hipGraphNode_t each, hipGraph_t child) {
  FAKE_ENTER();
  Node *found = in_exec(exec, each, gfx::kChild);
  Graph *inner = live(child);
  if (!found || !inner) return done(kInvalidValue);
  if (inner->nodes.size() != found->child->nodes.size()) return done(gfx::kUpdateFailure);
  found->child = inner->clone();
  return 0;
}
FAKE_API hipError_t hipGraphKernelNodeSetAttribute(hipGraphNode_t each, hipLaunchAttributeID attribute,
                                                   const hipLaunchAttributeValue *value) {
  FAKE_ENTER();
  Node *found = of_type(each, gfx::kKernel);
  if (!found || attribute < 0 || attribute > 15 || !value) return done(kInvalidValue);
  memcpy(found->attributes[attribute], value, 64);
  return 0;
}
FAKE_API hipError_t hipGraphKernelNodeGetAttribute(hipGraphNode_t each, hipLaunchAttributeID attribute,
                                                   hipLaunchAttributeValue *value) {
  FAKE_ENTER();
  Node *found = of_type(each, gfx::kKernel);
  if (!found || attribute < 0 || attribute > 15 || !value) return done(kInvalidValue);
  memcpy(static_cast<void *>(value), found->attributes[attribute], 64);
  return 0;
}
FAKE_API hipError_t hipGraphKernelNodeCopyAttributes(hipGraphNode_t from, hipGraphNode_t to) {
  FAKE_ENTER();
  if (!of_type(from, gfx::kKernel) || !of_type(to, gfx::kKernel)) return done(kInvalidValue);
  memcpy(node(to)->attributes, node(from)->attributes, sizeof node(to)->attributes);
  return 0;
}

// Events, semaphores, memory, batches -------------------------------------------------------------

#define FAKE_EVENT_NODE(kind, Kind)                                                                        \
  FAKE_API hipError_t hipGraphAddEvent##Kind##Node(hipGraphNode_t *out, hipGraph_t graph,                  \
                                                   const hipGraphNode_t *after, size_t n, hipEvent_t event) { \
    FAKE_ENTER();                                                                                          \
    Node *made = make(graph, kind, after, n, out);                                                         \
    if (!made) return done(kInvalidValue);                                                                 \
    made->event = event;                                                                                   \
    return 0;                                                                                              \
  }                                                                                                        \
  FAKE_API hipError_t hipGraphEvent##Kind##NodeGetEvent(hipGraphNode_t each, hipEvent_t *out) {            \
    FAKE_ENTER();                                                                                          \
    if (!of_type(each, kind)) return done(kInvalidValue);                                                  \
    *out = node(each)->event;                                                                              \
    return 0;                                                                                              \
  }                                                                                                        \
  FAKE_API hipError_t hipGraphEvent##Kind##NodeSetEvent(hipGraphNode_t each, hipEvent_t event) {           \
    FAKE_ENTER();                                                                                          \
    if (!of_type(each, kind)) return done(kInvalidValue);                                                  \
    node(each)->event = event;                                                                             \
    return 0;                                                                                              \
  }                                                                                                        \
  FAKE_API hipError_t hipGraphExecEvent##Kind##NodeSetEvent(hipGraphExec_t exec, hipGraphNode_t each,      \
                                                            hipEvent_t event) {                            \
    FAKE_ENTER();                                                                                          \
    Node *found = in_exec(exec, each, kind);                                                               \
    if (!found) return done(kInvalidValue);                                                                \
    found->event = event;                                                                                  \
    return 0;                                                                                              \
  }
FAKE_EVENT_NODE(gfx::kEventRecord, Record)
FAKE_EVENT_NODE(gfx::kWaitEvent, Wait)

#define FAKE_SEMAPHORE_NODE(kind, Kind)                                                                       \
  FAKE_API hipError_t hipGraphAddExternalSemaphores##Kind##Node(                                              \
      hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after, size_t n,                           \
      const hipExternalSemaphore##Kind##NodeParams *params) {                                                 \
    FAKE_ENTER();                                                                                             \
    return put(make(graph, kind, after, n, out), params, kSemaphore);                                         \
  }                                                                                                           \
  FAKE_API hipError_t hipGraphExternalSemaphores##Kind##NodeGetParams(                                        \
      hipGraphNode_t each, hipExternalSemaphore##Kind##NodeParams *out) {                                     \
    FAKE_ENTER();                                                                                             \
    return get(of_type(each, kind), static_cast<void *>(out), kSemaphore);                                    \
  }                                                                                                           \
  FAKE_API hipError_t hipGraphExternalSemaphores##Kind##NodeSetParams(                                        \
      hipGraphNode_t each, const hipExternalSemaphore##Kind##NodeParams *params) {                            \
    FAKE_ENTER();                                                                                             \
    return put(of_type(each, kind), params, kSemaphore);                                                      \
  }                                                                                                           \
  FAKE_API hipError_t hipGraphExecExternalSemaphores##Kind##NodeSetParams(                                    \
      hipGraphExec_t exec, hipGraphNode_t each, const hipExternalSemaphore##Kind##NodeParams *params) {       \
    FAKE_ENTER();                                                                                             \
    return put(in_exec(exec, each, kind), params, kSemaphore);                                                \
  }
FAKE_SEMAPHORE_NODE(gfx::kSemaphoreSignal, Signal)
FAKE_SEMAPHORE_NODE(gfx::kSemaphoreWait, Wait)

FAKE_API hipError_t hipGraphAddMemAllocNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                            size_t n, hipMemAllocNodeParams *params) {
  FAKE_ENTER();
  Node *made = params ? make(graph, gfx::kMemAlloc, after, n, out) : nullptr;
  if (!made) return done(kInvalidValue);
  // An address that is told at once and means nothing until the graph runs.
  void *address = &made->params;
  memcpy(reinterpret_cast<char *>(params) + kDptr, &address, sizeof address);
  return put(made, params, kAlloc);
}
FAKE_API hipError_t hipGraphMemAllocNodeGetParams(hipGraphNode_t each, hipMemAllocNodeParams *out) {
  FAKE_ENTER();
  return get(of_type(each, gfx::kMemAlloc), static_cast<void *>(out), kAlloc);
}
FAKE_API hipError_t hipGraphAddMemFreeNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                           size_t n, void *memory) {
  FAKE_ENTER();
  Node *made = make(graph, gfx::kMemFree, after, n, out);
  if (!made) return done(kInvalidValue);
  made->freed = memory;
  return 0;
}
FAKE_API hipError_t hipGraphMemFreeNodeGetParams(hipGraphNode_t each, void *out) {
  FAKE_ENTER();
  if (!of_type(each, gfx::kMemFree)) return done(kInvalidValue);
  *static_cast<void **>(out) = node(each)->freed;
  return 0;
}
FAKE_API hipError_t hipGraphAddBatchMemOpNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                              size_t n, const hipBatchMemOpNodeParams *params) {
  FAKE_ENTER();
  return put(make(graph, static_cast<gfx::NodeType>(kBatchType), after, n, out), params, kBatch);
}
FAKE_API hipError_t hipDeviceGetGraphMemAttribute(int, hipGraphMemAttributeType attribute, void *value) {
  FAKE_ENTER();
  if (attribute < 0 || attribute > 3) return done(kInvalidValue);
  *static_cast<uint64_t *>(value) = 0;
  return 0;
}
FAKE_API hipError_t hipDeviceSetGraphMemAttribute(int, hipGraphMemAttributeType attribute, void *) {
  FAKE_ENTER();
  return attribute == 1 || attribute == 3 ? 0 : done(kInvalidValue);  // the two high-water marks
}
FAKE_API hipError_t hipDeviceGraphMemTrim(int) {
  FAKE_ENTER();
  return 0;
}
FAKE_API hipError_t hipHostMalloc(void **out, size_t nbytes, unsigned) {
  FAKE_ENTER_IF_STRICT();
  *out = malloc(nbytes);
  world().pinned.insert(*out);
  return 0;
}
FAKE_API hipError_t hipHostFree(void *memory) {
  FAKE_ENTER_IF_STRICT();
  if (!world().pinned.erase(memory)) return done(kInvalidValue);
  free(memory);
  return 0;
}

// Shape -------------------------------------------------------------------------------------------

FAKE_API hipError_t hipGraphGetRootNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *n) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found) return done(kInvalidValue);
  std::vector<Node *> roots;
  for (Node *each : found->ordered())
    if (each->after.empty()) roots.push_back(each);
  return give(roots, nodes, n);
}
FAKE_API hipError_t hipGraphNodeGetDependencies(hipGraphNode_t each, hipGraphNode_t *nodes, size_t *n) {
  FAKE_ENTER();
  return give(node(each)->after, nodes, n);
}
FAKE_API hipError_t hipGraphNodeGetDependentNodes(hipGraphNode_t each, hipGraphNode_t *nodes, size_t *n) {
  FAKE_ENTER();
  std::vector<Node *> found;
  for (auto &other : node(each)->owner->nodes)
    if (std::count(other->after.begin(), other->after.end(), node(each))) found.push_back(other.get());
  return give(found, nodes, n);
}
FAKE_API hipError_t hipGraphAddDependencies(hipGraph_t graph, const hipGraphNode_t *from, const hipGraphNode_t *to,
                                            size_t n) {
  FAKE_ENTER();
  if (!live(graph)) return done(kInvalidValue);
  for (size_t i = 0; i < n; i++) node(to[i])->after.push_back(node(from[i]));
  return 0;
}
FAKE_API hipError_t hipGraphRemoveDependencies(hipGraph_t graph, const hipGraphNode_t *from, const hipGraphNode_t *to,
                                               size_t n) {
  FAKE_ENTER();
  if (!live(graph)) return done(kInvalidValue);
  for (size_t i = 0; i < n; i++) {
    auto &after = node(to[i])->after;
    auto found = std::find(after.begin(), after.end(), node(from[i]));
    if (found == after.end()) return done(kInvalidValue);
    after.erase(found);
  }
  return 0;
}
FAKE_API hipError_t hipGraphDestroyNode(hipGraphNode_t each) {
  FAKE_ENTER();
  Node *gone = node(each);
  auto &nodes = gone->owner->nodes;
  for (auto &other : nodes) other->after.erase(std::remove(other->after.begin(), other->after.end(), gone), other->after.end());
  nodes.erase(std::find_if(nodes.begin(), nodes.end(), [&](auto &n) { return n.get() == gone; }));
  return 0;
}
FAKE_API hipError_t hipGraphDebugDotPrint(hipGraph_t graph, const char *path, unsigned flags) {
  FAKE_ENTER();
  Graph *found = live(graph);
  FILE *out = found ? fopen(path, "w") : nullptr;
  if (!out) return done(kInvalidValue);
  // Flags are compared for equality, as HIP does.
  fprintf(out, "digraph %s%zu {}\n", flags == 1 ? "verbose" : "plain", found->nodes.size());
  fclose(out);
  return 0;
}
FAKE_API hipError_t hipGraphExecGetFlags(hipGraphExec_t handle, unsigned long long *flags) {
  FAKE_ENTER();
  Exec *exec = live(handle);
  if (!exec || !flags) return done(kInvalidValue);
  *flags = exec->flags;
  return 0;
}

// User objects ------------------------------------------------------------------------------------

FAKE_API hipError_t hipUserObjectCreate(hipUserObject_t *out, void *data, hipHostFn_t destroy, unsigned n,
                                        unsigned flags) {
  FAKE_ENTER();
  if (!out || !destroy || !n || flags != 1) return done(kInvalidValue);
  auto *made = new UserObject{data, destroy, n};
  world().objects.insert(made);
  *out = reinterpret_cast<hipUserObject_t>(made);
  return 0;
}
FAKE_API hipError_t hipUserObjectRetain(hipUserObject_t object, unsigned n) {
  FAKE_ENTER();
  reinterpret_cast<UserObject *>(object)->n_references += n;
  return 0;
}
FAKE_API hipError_t hipUserObjectRelease(hipUserObject_t object, unsigned n) {
  FAKE_ENTER();
  reinterpret_cast<UserObject *>(object)->release(n);
  return 0;
}
FAKE_API hipError_t hipGraphRetainUserObject(hipGraph_t graph, hipUserObject_t handle, unsigned n, unsigned flags) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found) return done(kInvalidValue);
  auto *object = reinterpret_cast<UserObject *>(handle);
  constexpr unsigned kMove = 1;
  if (!(flags & kMove)) object->n_references += n;
  found->retained[object] += n;
  return 0;
}
FAKE_API hipError_t hipGraphReleaseUserObject(hipGraph_t graph, hipUserObject_t handle, unsigned n) {
  FAKE_ENTER();
  Graph *found = live(graph);
  auto *object = reinterpret_cast<UserObject *>(handle);
  if (!found || found->retained[object] < n) return done(kInvalidValue);
  if (!(found->retained[object] -= n)) found->retained.erase(object);
  object->release(n);
  return 0;
}

// Captures ----------------------------------------------------------------------------------------

FAKE_API hipError_t hipStreamBeginCaptureToGraph(hipStream_t handle, hipGraph_t graph, const hipGraphNode_t *after,
                                                 const hipGraphEdgeData *data, size_t n, hipStreamCaptureMode mode) {
  FAKE_ENTER();
  Stream *on = stream(handle);
  Graph *into = live(graph);
  if (!on || !into) return done(kInvalidValue);
  if (data) return done(gfx::kNotSupported);
  if (on->status == gfx::kActive) return done(gfx::kIllegalState);
  on->status = gfx::kActive, on->mode = mode, on->id = world().next_id++;
  on->capture = std::make_shared<Graph>();
  on->capture->nodes.swap(into->nodes);
  for (auto &each : on->capture->nodes) each->owner = on->capture.get(), each->recorded = false;
  world().graphs.insert(on->capture.get());
  on->into = into;
  on->capture_gone = on->edited = false;
  on->origin = on, on->owner = std::this_thread::get_id();
  on->last = list(after, n);
  return 0;
}
FAKE_API hipError_t hipStreamUpdateCaptureDependencies(hipStream_t handle, hipGraphNode_t *nodes, size_t n,
                                                       unsigned flags) {
  FAKE_ENTER();
  Stream *on = stream(handle);
  if (!on || on->status != gfx::kActive) return done(gfx::kIllegalState);
  const std::vector<Node *> was = on->last;
  if (flags == 1) on->last.clear();
  for (Node *each : list(nodes, n)) on->last.push_back(each);
  for (Node *each : was) {  // an end that was left behind on purpose
    auto leaves = on->capture->leaves();
    if (std::count(leaves.begin(), leaves.end(), each) && !std::count(on->last.begin(), on->last.end(), each))
      on->edited = true;
  }
  return 0;
}
FAKE_API hipError_t hipStreamGetCaptureInfo(hipStream_t handle, hipStreamCaptureStatus *status,
                                            unsigned long long *id) {
  FAKE_ENTER();
  if (!status) return done(kInvalidValue);
  *status = stream(handle) ? stream(handle)->status : gfx::kNone;
  if (id && *status == gfx::kActive) *id = stream(handle)->id;
  return 0;
}
FAKE_API hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode) {
  FAKE_ENTER();
  thread_local int now = gfx::kGlobal;
  std::swap(now, *mode);
  return 0;
}
