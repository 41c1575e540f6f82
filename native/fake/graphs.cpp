// Graphs, nodes and graph execs of the fake runtime.
#include <dlfcn.h>

#include <algorithm>

#include "device.h"

using namespace fake;
using gfx::kInvalidValue;

namespace fake {

Kernel *kernel_of(const void *function) {
  auto found = world().stubs.find(function);
  return found == world().stubs.end() ? nullptr : found->second;
}

Graph *live(hipGraph_t handle) {
  auto *graph = reinterpret_cast<Graph *>(handle);
  if (world().dangling.count(graph)) abort();  // a real runtime would crash here, or worse
  return world().graphs.count(graph) ? graph : nullptr;
}
Exec *live(hipGraphExec_t handle) {
  auto *exec = reinterpret_cast<Exec *>(handle);
  return world().execs.count(exec) ? exec : nullptr;
}
Node *node(hipGraphNode_t handle) { return reinterpret_cast<Node *>(handle); }

void Node::keep_arguments(const hipKernelNodeParams &given) {
  const Kernel *what = kernel_of(given.func);
  std::vector<std::vector<char>> fresh;
  for (size_t i = 0, at = 0; i < what->sizes.size(); i++) {
    const size_t nbytes = what->sizes[i];
    at = (at + nbytes - 1) / nbytes * nbytes;
    const char *from = given.kernelParams ? static_cast<const char *>(given.kernelParams[i])
                                          : static_cast<const char *>(given.extra[1]) + at;
    fresh.emplace_back(from, from + nbytes);
    at += nbytes;
  }
  arguments = std::move(fresh);
  slots.clear();
  for (auto &argument : arguments) slots.push_back(argument.data());
  kernel = given;
  kernel.kernelParams = slots.data();
  kernel.extra = nullptr;
}

void Node::run() {
  switch (type) {
    case gfx::kKernel:
      kernel_of(kernel.func)->body(kernel.gridDim, kernel.blockDim, slots.data());
      break;
    case gfx::kMemcpy:
      if (one_dimensional) memcpy(dst, src, nbytes);
      else memcpy(copy.dstPtr.ptr, copy.srcPtr.ptr, copy.extent.width);
      break;
    case gfx::kMemset:
      for (size_t i = 0; i < set.width; i++)
        memcpy(static_cast<char *>(set.dst) + i * set.elementSize, &set.value, set.elementSize);
      break;
    case gfx::kHost:
      host.fn(host.userData);
      break;
    case gfx::kChild:
      for (Node *inner : child->ordered()) inner->run();
      break;
    default:
      if (other) other();
  }
}

void UserObject::release(unsigned n) {
  if (n_references > n) {
    n_references -= n;
    return;
  }
  world().objects.erase(this);
  destroy(data);
  delete this;
}

Graph::~Graph() {
  world().graphs.erase(this);
  for (auto &[object, n] : retained) object->release(n);
}

Node *Graph::add(gfx::NodeType type, const std::vector<Node *> &after) {
  nodes.push_back(std::make_unique<Node>());
  Node *made = nodes.back().get();
  made->type = type;
  made->owner = this;
  made->after = after;
  return made;
}

std::vector<Node *> Graph::leaves() const {
  std::set<Node *> followed;
  for (auto &each : nodes) followed.insert(each->after.begin(), each->after.end());
  std::vector<Node *> found;
  for (auto &each : nodes)
    if (!followed.count(each.get())) found.push_back(each.get());
  return found;
}

std::vector<Node *> Graph::ordered() const {
  std::vector<Node *> order;
  std::set<Node *> placed;
  while (order.size() < nodes.size()) {
    const size_t before = order.size();
    for (auto &each : nodes) {
      if (placed.count(each.get())) continue;
      if (!std::all_of(each->after.begin(), each->after.end(), [&](Node *n) { return placed.count(n); }))
        continue;
      order.push_back(each.get());
      placed.insert(each.get());
    }
    if (order.size() == before) break;  // a cycle: the caller sees fewer nodes than there are
  }
  return order;
}

std::unique_ptr<Graph> Graph::clone() const {
  auto made = std::make_unique<Graph>();
  made->retained = retained;
  for (auto &[object, n] : retained) object->n_references += n;
  std::map<Node *, Node *> twin;
  for (auto &each : nodes) {
    Node *copy = made->add(each->type, {});
    twin[each.get()] = copy;
    copy->copied_from = each.get();
    if (each->type == gfx::kKernel) copy->keep_arguments(each->kernel);
    copy->copy = each->copy;
    copy->one_dimensional = each->one_dimensional;
    copy->dst = each->dst, copy->src = each->src, copy->nbytes = each->nbytes;
    copy->set = each->set;
    copy->host = each->host;
    copy->other = each->other;
    copy->event = each->event, copy->freed = each->freed;
    memcpy(copy->params, each->params, sizeof copy->params);
    memcpy(copy->attributes, each->attributes, sizeof copy->attributes);
    if (each->child) copy->child = each->child->clone();
  }
  for (auto &each : nodes)
    for (Node *before : each->after) twin[each.get()]->after.push_back(twin[before]);
  return made;
}

std::vector<Node *> list(const hipGraphNode_t *nodes, size_t n) {
  std::vector<Node *> found;
  for (size_t i = 0; i < n; i++) found.push_back(node(nodes[i]));
  return found;
}

Graph *keep(std::unique_ptr<Graph> graph) {
  Graph *kept = graph.release();
  world().graphs.insert(kept);
  return kept;
}

Exec *unused(hipGraphExec_t handle) {
  Exec *exec = live(handle);
  if (exec && exec->running) world().n_touched++;
  return exec;
}

Node *Exec::find(const Node *original) const {
  for (auto &each : graph->nodes)
    if (each->copied_from == original) return each.get();
  return nullptr;
}

}  // namespace fake

namespace {

hipGraph_t handle(Graph *graph) { return reinterpret_cast<hipGraph_t>(graph); }
hipGraphNode_t handle(Node *each) { return reinterpret_cast<hipGraphNode_t>(each); }

// hipGraph* that hand out arrays: a null array asks for the number, a short one is filled.
template <class List>
hipError_t give(const List &all, hipGraphNode_t *nodes, size_t *n) {
  if (!n) return done(kInvalidValue);
  if (nodes)
    for (size_t i = 0; i < std::min(*n, all.size()); i++) nodes[i] = handle(all[i]);
  *n = all.size();
  return 0;
}

}  // namespace

FAKE_API const char *hipGetErrorName(hipError_t status) {
  switch (status) {
    case 0: return "hipSuccess";
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 401: return "hipErrorIllegalState";
    case 700: return "hipErrorIllegalAddress";
    case 801: return "hipErrorNotSupported";
    case 900: return "hipErrorStreamCaptureUnsupported";
    case 901: return "hipErrorStreamCaptureInvalidated";
    case 903: return "hipErrorStreamCaptureUnmatched";
    case 904: return "hipErrorStreamCaptureUnjoined";
    case 906: return "hipErrorStreamCaptureImplicit";
    case 908: return "hipErrorStreamCaptureWrongThread";
    case 910: return "hipErrorGraphExecUpdateFailure";
    default: return "hipErrorUnknown";
  }
}
FAKE_API hipError_t hipGetLastError(void) {
  hipError_t was = world().last_error;
  world().last_error = 0;
  return was;
}
FAKE_API hipError_t hipPeekAtLastError(void) { return world().last_error; }
FAKE_API hipError_t hipRuntimeGetVersion(int *version) { return *version = world().profile->version, 0; }
FAKE_API const char *hipKernelNameRefByPtr(const void *stub, hipStream_t) {
  Kernel *found = world().functions.count(stub) ? nullptr : kernel_of(stub);
  return found ? found->name.c_str() : nullptr;
}

FAKE_API hipError_t hipGraphCreate(hipGraph_t *out, unsigned) {
  FAKE_ENTER();
  *out = handle(keep(std::make_unique<Graph>()));
  return 0;
}
FAKE_API hipError_t hipGraphDestroy(hipGraph_t graph) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found) return done(kInvalidValue);
  world().graphs.erase(found);
  delete found;
  return 0;
}
FAKE_API hipError_t hipGraphClone(hipGraph_t *out, hipGraph_t graph) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found || !out) return done(kInvalidValue);
  *out = handle(keep(found->clone()));
  return 0;
}
FAKE_API hipError_t hipGraphNodeFindInClone(hipGraphNode_t *out, hipGraphNode_t original, hipGraph_t clone) {
  FAKE_ENTER();
  Graph *found = live(clone);
  if (!found) return done(kInvalidValue);
  for (auto &each : found->nodes)
    if (each->copied_from == node(original)) return *out = handle(each.get()), 0;
  return done(kInvalidValue);
}
FAKE_API hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *n) {
  FAKE_ENTER();
  Graph *found = live(graph);
  return found ? give(found->ordered(), nodes, n) : done(kInvalidValue);
}
FAKE_API hipError_t hipGraphGetEdges(hipGraph_t graph, hipGraphNode_t *from, hipGraphNode_t *to, size_t *n) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found || !n) return done(kInvalidValue);
  size_t count = 0;
  for (auto &each : found->nodes)
    for (Node *before : each->after) {
      if (from && count < *n) from[count] = handle(before), to[count] = handle(each.get());
      count++;
    }
  *n = count;
  return 0;
}
FAKE_API hipError_t hipGraphNodeGetType(hipGraphNode_t each, hipGraphNodeType *type) {
  FAKE_ENTER();
  *type = node(each)->type;
  return 0;
}
FAKE_API hipError_t hipGraphAddEmptyNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                         size_t n) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found) return done(kInvalidValue);
  *out = handle(found->add(gfx::kEmpty, list(after, n)));
  return 0;
}
FAKE_API hipError_t hipGraphAddKernelNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                          size_t n, const hipKernelNodeParams *params) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found || !params || !kernel_of(params->func)) return done(kInvalidValue);
  Node *made = found->add(gfx::kKernel, list(after, n));
  made->keep_arguments(*params);
  *out = handle(made);
  return 0;
}
FAKE_API hipError_t hipGraphAddMemsetNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                          size_t n, const hipMemsetParams *params) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found || !params) return done(kInvalidValue);
  Node *made = found->add(gfx::kMemset, list(after, n));
  made->set = *params;
  *out = handle(made);
  return 0;
}
FAKE_API hipError_t hipGraphAddMemcpyNode1D(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                            size_t n, void *dst, const void *src, size_t nbytes, hipMemcpyKind) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found) return done(kInvalidValue);
  Node *made = found->add(gfx::kMemcpy, list(after, n));
  made->one_dimensional = true;
  made->dst = dst, made->src = src, made->nbytes = nbytes;
  *out = handle(made);
  return 0;
}
FAKE_API hipError_t hipGraphAddMemcpyNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                          size_t n, const hipMemcpy3DParms *params) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found || !params) return done(kInvalidValue);
  Node *made = found->add(gfx::kMemcpy, list(after, n));
  made->copy = *params;
  *out = handle(made);
  return 0;
}
FAKE_API hipError_t hipGraphAddHostNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                        size_t n, const hipHostNodeParams *params) {
  FAKE_ENTER();
  Graph *found = live(graph);
  if (!found || !params) return done(kInvalidValue);
  Node *made = found->add(gfx::kHost, list(after, n));
  made->host = *params;
  *out = handle(made);
  return 0;
}
FAKE_API hipError_t hipGraphAddChildGraphNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after,
                                              size_t n, hipGraph_t child) {
  FAKE_ENTER();
  Graph *found = live(graph), *inner = live(child);
  if (!found || !inner) return done(kInvalidValue);
  auto copy = inner->clone();  // first: a graph may be added to itself
  Node *made = found->add(gfx::kChild, list(after, n));
  made->child = std::move(copy);
  world().graphs.insert(made->child.get());  // its handle may be asked for
  *out = handle(made);
  return 0;
}
FAKE_API hipError_t hipGraphChildGraphNodeGetGraph(hipGraphNode_t each, hipGraph_t *out) {
  FAKE_ENTER();
  if (!node(each)->child) return done(kInvalidValue);
  world().graphs.insert(node(each)->child.get());
  *out = handle(node(each)->child.get());
  return 0;
}
FAKE_API hipError_t hipGraphKernelNodeGetParams(hipGraphNode_t each, hipKernelNodeParams *out) {
  FAKE_ENTER();
  if (node(each)->type != gfx::kKernel) return done(kInvalidValue);
  *out = node(each)->kernel;
  return 0;
}
FAKE_API hipError_t hipGraphKernelNodeSetParams(hipGraphNode_t each, const hipKernelNodeParams *params) {
  FAKE_ENTER();
  if (node(each)->type != gfx::kKernel || !params || !kernel_of(params->func)) return done(kInvalidValue);
  node(each)->keep_arguments(*params);
  return 0;
}
FAKE_API hipError_t hipGraphMemsetNodeGetParams(hipGraphNode_t each, hipMemsetParams *out) {
  FAKE_ENTER();
  if (node(each)->type != gfx::kMemset) return done(kInvalidValue);
  *out = node(each)->set;
  return 0;
}
FAKE_API hipError_t hipGraphMemcpyNodeGetParams(hipGraphNode_t each, hipMemcpy3DParms *out) {
  FAKE_ENTER();
  if (node(each)->type != gfx::kMemcpy) return done(kInvalidValue);
  *out = node(each)->copy;  // all zero for a 1D copy
  return 0;
}
FAKE_API hipError_t hipGraphHostNodeGetParams(hipGraphNode_t each, hipHostNodeParams *out) {
  FAKE_ENTER();
  if (node(each)->type != gfx::kHost) return done(kInvalidValue);
  *out = node(each)->host;
  return 0;
}

// Graph execs --------------------------------------------------------------------------------------

namespace {

hipError_t instantiate(hipGraphExec_t *out, hipGraph_t graph, unsigned long long flags = 0) {
  Graph *found = live(graph);
  if (!found || !out) return done(kInvalidValue);
  auto *exec = new Exec{found->clone(), {}};
  exec->flags = flags;
  world().execs.insert(exec);
  *out = reinterpret_cast<hipGraphExec_t>(exec);
  return 0;
}

}  // namespace

// The handle is written on failure too, before the call is refused.
#define GARBAGE(out) \
  if (out) *(out) = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(0xdead0000)

FAKE_API hipError_t hipGraphInstantiate(hipGraphExec_t *out, hipGraph_t graph, hipGraphNode_t *, char *, size_t) {
  GARBAGE(out);
  FAKE_ENTER();
  return instantiate(out, graph);
}
FAKE_API hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *out, hipGraph_t graph, unsigned long long flags) {
  GARBAGE(out);
  FAKE_ENTER();
  if (flags != 0 && flags != 1 && flags != 8) return done(kInvalidValue);
  return instantiate(out, graph, flags);
}
FAKE_API hipError_t hipGraphInstantiateWithParams(hipGraphExec_t *out, hipGraph_t graph,
                                                  hipGraphInstantiateParams *params) {
  GARBAGE(out);
  FAKE_ENTER();
  if (!params) return done(kInvalidValue);
  params->result_out = 0;
  return instantiate(out, graph, params->flags);
}
FAKE_API hipError_t hipGraphExecDestroy(hipGraphExec_t handle) {
  FAKE_ENTER();
  Exec *exec = unused(handle);
  if (!exec) return done(kInvalidValue);
  for (Event *each : world().events) each->covers.erase(exec);
  world().execs.erase(exec);
  delete exec;
  return 0;
}
FAKE_API hipError_t hipGraphLaunch(hipGraphExec_t handle, hipStream_t) {
  FAKE_ENTER();
  Exec *exec = live(handle);
  if (!exec) return done(kInvalidValue);
  exec->running = world().busy;
  // Also on a capturing stream: it runs at once, and nothing is recorded.
  for (Node *each : exec->graph->ordered())
    if (!exec->off.count(each)) each->run();
  return 0;
}
FAKE_API hipError_t hipGraphUpload(hipGraphExec_t handle, hipStream_t) {
  FAKE_ENTER();
  return live(handle) ? 0 : done(kInvalidValue);
}
FAKE_API hipError_t hipGraphNodeSetEnabled(hipGraphExec_t handle, hipGraphNode_t each, unsigned on) {
  FAKE_ENTER();
  Exec *exec = live(handle);
  Node *found = exec ? exec->find(node(each)) : nullptr;
  if (!found || found->type > gfx::kMemset) return done(kInvalidValue);
  if (on) exec->off.erase(found);
  else exec->off.insert(found);
  return 0;
}
FAKE_API hipError_t hipGraphNodeGetEnabled(hipGraphExec_t handle, hipGraphNode_t each, unsigned *on) {
  FAKE_ENTER();
  Exec *exec = live(handle);
  Node *found = exec ? exec->find(node(each)) : nullptr;
  if (!found) return done(kInvalidValue);
  *on = !exec->off.count(found);
  return 0;
}
FAKE_API hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t handle, hipGraphNode_t each,
                                                    const hipKernelNodeParams *params) {
  FAKE_ENTER();
  Exec *exec = unused(handle);
  Node *found = exec ? exec->find(node(each)) : nullptr;
  if (!found || found->type != gfx::kKernel || !params || !kernel_of(params->func)) return done(kInvalidValue);
  found->keep_arguments(*params);
  return 0;
}
FAKE_API hipError_t hipGraphExecUpdate(hipGraphExec_t handle, hipGraph_t graph, hipGraphNode_t *bad,
                                       hipGraphExecUpdateResult *result) {
  FAKE_ENTER();
  Exec *exec = unused(handle);
  Graph *found = live(graph);
  if (!exec || !found || !bad || !result) return done(kInvalidValue);
  auto ours = exec->graph->ordered(), theirs = found->ordered();
  bool same = ours.size() == theirs.size();
  for (size_t i = 0; same && i < ours.size(); i++)
    same = ours[i]->type == theirs[i]->type && ours[i]->after.size() == theirs[i]->after.size();
  *bad = nullptr;
  *result = same ? 0 : 2;
  if (!same) return done(gfx::kUpdateFailure);
  // As HIP does, by position: the exec's own nodes stay, so that node handles go on working.
  for (size_t i = 0; i < ours.size(); i++) {
    if (ours[i]->type == gfx::kKernel) ours[i]->keep_arguments(theirs[i]->kernel);
    ours[i]->copy = theirs[i]->copy;
    ours[i]->dst = theirs[i]->dst, ours[i]->src = theirs[i]->src, ours[i]->nbytes = theirs[i]->nbytes;
    ours[i]->set = theirs[i]->set;
    ours[i]->host = theirs[i]->host;
    if (theirs[i]->child) ours[i]->child = theirs[i]->child->clone();
  }
  return 0;
}

// By name, from this library. A real one answers with its dispatch table's entries.
FAKE_API hipError_t hipGetProcAddress(const char *symbol, void **out, int, uint64_t, int *) {
  Dl_info self;
  dladdr(reinterpret_cast<void *>(&hipGetErrorName), &self);
  void *handle = dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  *out = handle ? dlsym(handle, symbol) : nullptr;
  if (handle) dlclose(handle);
  return *out ? 0 : done(kInvalidValue);
}
