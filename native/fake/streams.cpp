// Streams, events and the capture state machine of the fake runtime.
//
//   NONE ──Begin──> ACTIVE ──End──> NONE, a graph
//                     │  └──End, a fork not joined──> ACTIVE with a graph that is gone (904)
//                     └──forbidden call──> INVALIDATED ──End (901)──> NONE, or stays (until 7.14)
#include <algorithm>

#include "device.h"

using namespace fake;
using gfx::kInvalidValue;

namespace fake {

Stream *stream(hipStream_t handle) {
  return reinterpret_cast<uintptr_t>(handle) > 2 ? reinterpret_cast<Stream *>(handle) : nullptr;
}

void invalidate_all() {
  for (Stream *each : world().streams)
    if (each->status == gfx::kActive) each->status = gfx::kInvalidated;
}

hipError_t record_or_run(hipStream_t handle, const std::function<void(Node *)> &make, gfx::NodeType type,
                         const std::function<void()> &run) {
  Stream *on = stream(handle);
  if (!on || on->status == gfx::kNone) {
    run();
    return 0;
  }
  if (on->status == gfx::kInvalidated) return done(gfx::kCaptureInvalidated);
  if (on->capture_gone) return 0;  // stuck: the work vanishes
  Node *made = on->capture->add(type, on->last);
  made->recorded = true;
  make(made);
  on->last = {made};
  return 0;
}

}  // namespace fake

FAKE_API hipError_t hipStreamCreateWithFlags(hipStream_t *out, unsigned) {
  FAKE_ENTER_IF_STRICT();
  auto *made = new Stream;
  world().streams.insert(made);
  *out = reinterpret_cast<hipStream_t>(made);
  return 0;
}
FAKE_API hipError_t hipStreamDestroy(hipStream_t handle) {
  FAKE_ENTER_IF_STRICT();
  if (!world().streams.count(stream(handle))) return done(kInvalidValue);
  if (stream(handle)->capture_gone) abort();  // nothing good comes of it
  world().streams.erase(stream(handle));
  delete stream(handle);
  return 0;
}
FAKE_API hipError_t hipEventCreateWithFlags(hipEvent_t *out, unsigned) {
  FAKE_ENTER_IF_STRICT();
  auto *made = new Event;
  world().events.insert(made);
  *out = reinterpret_cast<hipEvent_t>(made);
  return 0;
}
FAKE_API hipError_t hipEventCreate(hipEvent_t *out) { return hipEventCreateWithFlags(out, 0); }
FAKE_API hipError_t hipEventDestroy(hipEvent_t event) {
  FAKE_ENTER_IF_STRICT();
  if (!world().events.erase(reinterpret_cast<Event *>(event))) return done(kInvalidValue);
  delete reinterpret_cast<Event *>(event);
  return 0;
}
FAKE_API hipError_t hipEventQuery(hipEvent_t event) {
  FAKE_ENTER_IF_STRICT();
  constexpr hipError_t kNotReady = 600;
  return reinterpret_cast<Event *>(event)->pending ? kNotReady : 0;
}
FAKE_API hipError_t hipEventSynchronize(hipEvent_t event) {
  FAKE_ENTER_IF_STRICT();
  auto *over = reinterpret_cast<Event *>(event);
  over->pending = false;
  for (Exec *exec : over->covers) exec->running = false;
  over->covers.clear();
  return 0;
}

FAKE_API hipError_t hipStreamBeginCapture(hipStream_t handle, hipStreamCaptureMode mode) {
  FAKE_ENTER();
  Stream *on = stream(handle);
  if (!on) return done(gfx::kCaptureUnsupported);
  if (on->status == gfx::kActive) return done(gfx::kIllegalState);
  on->status = gfx::kActive;
  on->mode = mode;
  on->id = world().next_id++;
  on->capture = std::make_shared<Graph>();
  world().graphs.insert(on->capture.get());
  on->capture_gone = on->edited = false;
  on->origin = on;
  on->owner = std::this_thread::get_id();
  on->last.clear();
  return 0;
}

namespace {

void leave(Stream *origin) {
  for (Stream *each : world().streams)
    if (each->origin == origin) {
      each->status = gfx::kNone;
      each->origin = nullptr;
      each->capture.reset();
      each->last.clear();
    }
}

}  // namespace

FAKE_API hipError_t hipStreamEndCapture(hipStream_t handle, hipGraph_t *out) {
  static char garbage[64];
  if (out) *out = reinterpret_cast<hipGraph_t>(garbage);
  world().dangling.insert(garbage);
  FAKE_ENTER();
  Stream *on = stream(handle);
  if (!on || on->status == gfx::kNone) return done(gfx::kIllegalState);
  if (on->origin != on) return done(gfx::kCaptureUnmatched);
  if (on->mode != gfx::kRelaxed && on->owner != std::this_thread::get_id())
    return done(gfx::kCaptureWrongThread);
  if (on->status == gfx::kInvalidated) {
    // A second refused end is told that it is the wrong thread, since the first forgot the owner.
    on->owner = {};
    if (on->capture) world().graphs.erase(on->capture.get());
    if (world().profile->refused_end_frees_stream) leave(on);
    return done(gfx::kCaptureInvalidated);
  }
  if (on->capture_gone) abort();  // the second end of an unjoined capture crashes
  size_t n_loose = 0;  // ends that the stream does not stand at, and was not moved away from by hand
  for (Node *leaf : on->capture->leaves())
    n_loose += leaf->recorded && !std::count(on->last.begin(), on->last.end(), leaf);
  if (n_loose && !on->edited) {
    on->capture_gone = true;
    world().graphs.erase(on->capture.get());
    world().dangling.insert(on->capture.get());
    if (out) *out = reinterpret_cast<hipGraph_t>(on->capture.get());
    return done(gfx::kCaptureUnjoined);
  }
  if (on->into) {  // a capture into the program's own graph
    if (out) *out = reinterpret_cast<hipGraph_t>(on->into);
    on->into = nullptr;
    Graph *into = live(*out);
    on->capture->nodes.swap(into->nodes);
    for (auto &each : into->nodes) each->owner = into;
    world().graphs.erase(on->capture.get());
    leave(on);
    return 0;
  }
  // The handle outlives the capture; the graph is the caller's from here on.
  auto *graph = new Graph;
  graph->nodes = std::move(on->capture->nodes);
  for (auto &each : graph->nodes) each->owner = graph;
  world().graphs.erase(on->capture.get());
  world().graphs.insert(graph);
  *out = reinterpret_cast<hipGraph_t>(graph);
  leave(on);
  return 0;
}

FAKE_API hipError_t hipStreamGetCaptureInfo_v2(hipStream_t handle, hipStreamCaptureStatus *status,
                                               unsigned long long *id, hipGraph_t *graph,
                                               const hipGraphNode_t **last, size_t *n) {
  FAKE_ENTER();
  Stream *on = stream(handle);
  if (!status) return done(kInvalidValue);
  *status = on ? on->status : gfx::kNone;
  if (*status != gfx::kActive) return 0;
  if (id) *id = on->id;
  if (graph) *graph = reinterpret_cast<hipGraph_t>(on->capture.get());
  if (last) *last = reinterpret_cast<const hipGraphNode_t *>(on->last.data());
  if (n) *n = on->last.size();
  return 0;
}
FAKE_API hipError_t hipStreamIsCapturing(hipStream_t handle, hipStreamCaptureStatus *status) {
  FAKE_ENTER();
  *status = stream(handle) ? stream(handle)->status : gfx::kNone;
  return 0;
}
FAKE_API hipError_t hipStreamSynchronize(hipStream_t handle) {
  FAKE_ENTER();
  Stream *on = stream(handle);
  if (on && on->status != gfx::kNone) {
    if (on->status == gfx::kActive) on->status = gfx::kInvalidated;
    return done(gfx::kCaptureUnsupported);
  }
  for (Exec *exec : world().execs) exec->running = false;
  return 0;
}

// Work ---------------------------------------------------------------------------------------------

FAKE_API hipError_t hipLaunchKernel(const void *stub, dim3 grid, dim3 block, void **args, size_t shared,
                                    hipStream_t on) {
  FAKE_ENTER();
  if (!kernel_of(stub) || world().functions.count(stub)) return done(98);
  hipKernelNodeParams params{block, nullptr, const_cast<void *>(stub), grid, args, static_cast<unsigned>(shared)};
  return record_or_run(on, [&](Node *n) { n->keep_arguments(params); }, gfx::kKernel,
                       [&] { kernel_of(stub)->body(grid, block, args); });
}
FAKE_API hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                          unsigned by, unsigned bz, unsigned shared, hipStream_t on, void **args,
                                          void **extra) {
  FAKE_ENTER();
  if (!world().functions.count(function) || (args && extra)) return done(kInvalidValue);
  hipKernelNodeParams params{{bx, by, bz}, extra, function, {gx, gy, gz}, args, shared};
  auto keep = [&](Node *n) { n->keep_arguments(params); };
  return record_or_run(on, keep, gfx::kKernel, [&] {
    Node once;
    once.type = gfx::kKernel;
    keep(&once);
    once.run();
  });
}
// As in HIP 7: the last workgroup is whole, in a graph and outside.
FAKE_API hipError_t hipExtModuleLaunchKernel(hipFunction_t function, unsigned x, unsigned y, unsigned z, unsigned bx,
                                             unsigned by, unsigned bz, size_t shared, hipStream_t on, void **args,
                                             void **extra, hipEvent_t, hipEvent_t, unsigned) {
  const unsigned gx = (x + bx - 1) / bx, gy = (y + by - 1) / by, gz = (z + bz - 1) / bz;
  return hipModuleLaunchKernel(function, gx, gy, gz, bx, by, bz, static_cast<unsigned>(shared), on, args, extra);
}
FAKE_API hipError_t hipMemcpyAsync(void *dst, const void *src, size_t nbytes, hipMemcpyKind, hipStream_t on) {
  FAKE_ENTER();
  if (!nbytes) return 0;  // dropped without a node
  return record_or_run(
      on,
      [&](Node *n) { n->one_dimensional = true, n->dst = dst, n->src = src, n->nbytes = nbytes; },
      gfx::kMemcpy, [&] { memcpy(dst, src, nbytes); });
}
FAKE_API hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms *params, hipStream_t on) {
  FAKE_ENTER();
  return record_or_run(on, [&](Node *n) { n->copy = *params; }, gfx::kMemcpy,
                       [&] { memcpy(params->dstPtr.ptr, params->srcPtr.ptr, params->extent.width); });
}
FAKE_API hipError_t hipMemsetAsync(void *dst, int value, size_t nbytes, hipStream_t on) {
  FAKE_ENTER();
  return record_or_run(
      on, [&](Node *n) { n->set = {dst, 1, 1, nbytes, static_cast<unsigned char>(value), nbytes}; },
      gfx::kMemset, [&] { memset(dst, value, nbytes); });
}
FAKE_API hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, size_t count, hipStream_t on) {
  FAKE_ENTER();
  return record_or_run(
      on, [&](Node *n) { n->set = {dst, 4, 1, 4 * count, static_cast<unsigned>(value), count}; }, gfx::kMemset,
      [&] { std::fill_n(static_cast<int *>(dst), count, value); });
}
FAKE_API hipError_t hipLaunchHostFunc(hipStream_t on, hipHostFn_t fn, void *data) {
  FAKE_ENTER();
  return record_or_run(on, [&](Node *n) { n->host = {fn, data}; }, gfx::kHost, [&] { fn(data); });
}
FAKE_API hipError_t hipStreamAddCallback(hipStream_t on, hipStreamCallback_t callback, void *data, unsigned) {
  FAKE_ENTER();
  if (stream(on) && stream(on)->status != gfx::kNone && world().profile->callback_is_refused) {
    stream(on)->status = gfx::kInvalidated;
    return done(gfx::kCaptureUnsupported);
  }
  callback(on, 0, data);
  return 0;
}
FAKE_API hipError_t hipMemcpyPeerAsync(void *dst, int, const void *src, int, size_t nbytes, hipStream_t) {
  FAKE_ENTER();
  memcpy(dst, src, nbytes);  // never recorded, in any release
  return 0;
}
FAKE_API hipError_t hipStreamWriteValue32(hipStream_t on, void *where, unsigned value, unsigned) {
  FAKE_ENTER();
  auto run = [=] { *static_cast<unsigned *>(where) = value; };
  if (!world().profile->stream_values_recorded) return run(), 0;
  return record_or_run(on, [&](Node *n) { n->other = run; }, static_cast<gfx::NodeType>(14), run);
}
FAKE_API hipError_t hipEventRecord(hipEvent_t handle, hipStream_t on) {
  FAKE_ENTER();
  auto *event = reinterpret_cast<Event *>(handle);
  Stream *from = stream(on);
  event->recorded_on = from;
  event->capture = from && from->status == gfx::kActive ? from->capture : nullptr;
  event->after = event->capture ? from->last : std::vector<Node *>{};
  if (event->capture) return 0;
  event->pending = world().busy;
  event->covers.clear();
  for (Exec *exec : world().execs)
    if (exec->running) event->covers.insert(exec);
  return 0;
}
FAKE_API hipError_t hipStreamWaitEvent(hipStream_t on, hipEvent_t handle, unsigned) {
  FAKE_ENTER();
  auto *event = reinterpret_cast<Event *>(handle);
  Stream *waiting = stream(on);
  if (!event->capture || !waiting) return 0;  // recorded outside: waits at once, and no edge is made
  if (waiting->status == gfx::kNone) {
    waiting->status = gfx::kActive;
    waiting->capture = event->capture;
    waiting->origin = event->recorded_on->origin;
    waiting->id = event->recorded_on->id;
    waiting->mode = event->recorded_on->mode;
  }
  for (Node *each : event->after)
    if (std::find(waiting->last.begin(), waiting->last.end(), each) == waiting->last.end())
      waiting->last.push_back(each);
  return 0;
}
