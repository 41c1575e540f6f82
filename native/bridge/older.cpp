// gfxgraph 1.1.0's C functions (hipgraph_bridge.h), each over the objects of gfxgraph.h.
//
// 1.1.0 had one library-wide state; here that is one context, opened by hgb_init. Its callers own the structs, of
// which only `object` and what the header names are used, so they may be as large as 1.1.0's were.
#include "context.h"

#define HGB_WITHOUT_HIP  // HIP's types as the rest of the bridge has them, from abi.h
#define HGB_HAS_HIP 1
#include "../hipgraph_bridge.h"

#include <glob.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

using namespace gfx;

namespace {

// Of HIP's statuses, those that abi.h has no name for.
constexpr hipError_t kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101, kUnknown = 999;

std::mutex state_lock;
gfxg_context *context = nullptr;
std::atomic<bool> is_debugging{false};

gfxg_context *opened() {
  std::lock_guard<std::mutex> hold(state_lock);
  return context;
}

hipError_t told(gfxg_context *c, gfxg_status status) {
  if (status == GFXG_OK) return 0;
  if (is_debugging) {
    char text[2048];
    gfxg_error_text(c, getenv("GFXGRAPH_LANG"), text, sizeof text);
    fprintf(stderr, "%s\n", text);
  }
  switch (status) {
    case GFXG_INVALID_ARGUMENT:
    case GFXG_NO_BUCKET: return kInvalidValue;
    case GFXG_OUT_OF_MEMORY: return kOutOfMemory;
    case GFXG_NO_RUNTIME: return kNoDevice;
    case GFXG_FUNCTION_MISSING: return kNotSupported;
    case GFXG_RUNTIME_REFUSED: return gfxg_runtime_status(c);
    default: return kUnknown;
  }
}

// Runs f on the context; `fits` says whether the arguments can be used.
template <class F>
hipError_t with_context(bool fits, const F &f) {
  gfxg_context *c = opened();
  if (!c) return kNotInitialized;
  if (!fits) return kInvalidValue;
  return told(c, f(c));
}

template <class T>
T *object_of(void *object) { return static_cast<T *>(object); }

// As the kernel numbers it: 100300 is gfx1030. HSA_OVERRIDE_GFX_VERSION=10.3.0 goes before.
const char *gfx_target() {
  static const std::string found = [] {
    unsigned major = 0, minor = 0, step = 0;
    const char *asked = getenv("HSA_OVERRIDE_GFX_VERSION");
    if (!asked || sscanf(asked, "%u.%u.%u", &major, &minor, &step) != 3) {
      glob_t nodes;
      if (!glob("/sys/class/kfd/kfd/topology/nodes/*/properties", 0, nullptr, &nodes)) {
        for (size_t i = 0; i < nodes.gl_pathc && !major; i++) {
          std::ifstream file(nodes.gl_pathv[i]);
          std::string name;
          unsigned long value = 0;
          while (file >> name >> value)
            if (name == "gfx_target_version" && value)
              major = unsigned(value / 10000), minor = unsigned(value / 100 % 100), step = unsigned(value % 100);
        }
        globfree(&nodes);
      }
    }
    char text[32] = "unknown";
    if (major) snprintf(text, sizeof text, "gfx%u%x%x", major, minor & 0xfu, step & 0xfu);
    return std::string(text);
  }();
  return found.c_str();
}

// The profiler: a ring, guarded; an event costs what a launch does not notice.
std::mutex ring_lock;
hgb_profile_sample_t ring[HGB_PROFILER_CAPACITY];
uint64_t n_written = 0;

template <class F>
gfxg_status timed(hgb_profile_event_kind_t event, uint64_t value0, const F &f) {
  const uint64_t begin = hgb_monotonic_ns();
  const gfxg_status status = f();
  if (!status) hgb_profiler_record(event, hgb_monotonic_ns() - begin, value0, 0);
  return status;
}

uint64_t as_value(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }

gfxg_status set_kernel(gfxg_pipeline *pipe, hipGraphNode_t node, const hipKernelNodeParams *p) {
  return timed(HGB_PROFILE_EVENT_PIPELINE_UPDATE, as_value(node), [&] {
    gfxg_kernel kernel{};
    kernel.func = p->func;
    kernel.grid[0] = p->gridDim.x, kernel.grid[1] = p->gridDim.y, kernel.grid[2] = p->gridDim.z;
    kernel.block[0] = p->blockDim.x, kernel.block[1] = p->blockDim.y, kernel.block[2] = p->blockDim.z;
    kernel.shared_nbytes = p->sharedMemBytes;
    kernel.args = p->kernelParams, kernel.extra = p->extra;
    return gfxg_pipeline_set_kernel(pipe, node, &kernel);
  });
}

// A graph a size, as the callback gave it: its nodes are the ones that the caller may change.
struct Sizes {
  struct Bucket {
    int size = 0;
    hipGraph_t graph = nullptr;
    Exec exec;
  };
  explicit Sizes(size_t n) : buckets(n) {}
  std::mutex lock;
  std::vector<Bucket> buckets;
};

gfxg_status destroy_sizes(gfxg_context *c, Sizes *sizes) {
  gfxg_status first = GFXG_OK;
  for (auto &bucket : sizes->buckets) {
    const gfxg_status status = bucket.exec.destroy(*c);
    if (!first) first = status;
    drop(*c, &bucket.graph);
  }
  delete sizes;
  c->n_objects--;
  return first;
}

}  // namespace

extern "C" {

// ---- the library ------------------------------------------------------------------------------------

hgb_version_t hgb_get_version(void) {
  static char rocm[32] = "unknown";
  std::lock_guard<std::mutex> hold(state_lock);
  if (context) {
    const int v = gfxg_runtime_version(context);
    snprintf(rocm, sizeof rocm, "%d.%d.%d", v / 10000000, v / 100000 % 100, v % 100000);
  }
  return {HGB_VERSION_MAJOR, HGB_VERSION_MINOR, HGB_VERSION_PATCH, gfx_target(), rocm};
}

hipError_t hgb_init(void) {
  std::lock_guard<std::mutex> hold(state_lock);
  if (context) return 0;
  const char *debug = getenv("HGB_DEBUG");
  if (debug && *debug && strcmp(debug, "0") != 0) is_debugging = true;
  gfxg_status status = gfxg_open(nullptr, &context);
  if (status == GFXG_NO_RUNTIME) status = gfxg_open("hip", &context);
  if (status && is_debugging) fprintf(stderr, "hgb_init: %s\n", gfxg_status_name(status));
  return told(nullptr, status);
}

void hgb_shutdown(void) {
  std::lock_guard<std::mutex> hold(state_lock);
  if (context && gfxg_close(context) == GFXG_OK) context = nullptr;
}

int hgb_is_initialized(void) { return opened() != nullptr; }

hipError_t hgb_validate_gfx1030(void) { return strcmp(gfx_target(), "gfx1030") ? kInvalidDevice : 0; }

void hgb_set_debug(int enabled) { is_debugging = enabled != 0; }

// ---- conditional ------------------------------------------------------------------------------------

hipError_t hgb_conditional_create(hipGraph_t *graphs, int count, hgb_conditional_t *out) {
  return with_context(graphs && out && count > 0 && count <= HGB_MAX_BRANCHES, [&](gfxg_context *c) {
    out->object = nullptr;
    gfxg_conditional *made = nullptr;
    GFX_TRY(gfxg_conditional_create(c, static_cast<unsigned>(count), &made));
    for (int i = 0; i < count; i++)
      if (const gfxg_status status = gfxg_conditional_set(made, static_cast<unsigned>(i), graphs[i])) {
        gfxg_conditional_destroy(made);
        return status;
      }
    out->object = made, out->num_branches = count;
    return GFXG_OK;
  });
}

hipError_t hgb_conditional_launch(hgb_conditional_t *cond, int branch, hipStream_t stream) {
  return with_context(cond && cond->object && branch >= 0 && branch < cond->num_branches, [&](gfxg_context *) {
    return gfxg_conditional_launch(object_of<gfxg_conditional>(cond->object), static_cast<unsigned>(branch), stream);
  });
}

hipError_t hgb_conditional_launch_by_flag(hgb_conditional_t *cond, int *d_flag, hipStream_t stream) {
  return with_context(cond && cond->object && d_flag, [&](gfxg_context *c) {
    auto *object = object_of<gfxg_conditional>(cond->object);
    unsigned taken = GFXG_NO_BRANCH;
    GFX_TRY(gfxg_conditional_read(object, d_flag, stream));
    GFX_TRY(gfxg_conditional_launch_read(object, stream, &taken));
    if (taken != GFXG_NO_BRANCH) return GFXG_OK;
    return c->invalid("hgb_conditional_launch_by_flag", "the flag names no branch");
  });
}

void hgb_conditional_destroy(hgb_conditional_t *cond) {
  if (!cond) return;
  gfxg_conditional_destroy(object_of<gfxg_conditional>(cond->object));
  cond->object = nullptr, cond->num_branches = 0;
}

// ---- pipeline ---------------------------------------------------------------------------------------

hipError_t hgb_pipeline_create(hipGraph_t graph, hgb_pipeline_t *out) {
  return with_context(graph && out, [&](gfxg_context *c) {
    *out = hgb_pipeline_t{};
    hipStream_t stream = nullptr;
    GFX_CALL_RUNTIME(*c, stream_create(&stream, 0));
    gfxg_pipeline *made = nullptr;
    const gfxg_status status = timed(HGB_PROFILE_EVENT_PIPELINE_CREATE, as_value(graph),
                                     [&] { return gfxg_pipeline_create(c, graph, &made); });
    if (status) {
      if (c->runtime.stream_destroy(stream)) c->runtime.forget_error();
      return status;
    }
    out->object = made, out->stream = stream;
    return GFXG_OK;
  });
}

hipError_t hgb_pipeline_launch(hgb_pipeline_t *pipe) {
  return with_context(pipe && pipe->object, [&](gfxg_context *) {
    return timed(HGB_PROFILE_EVENT_PIPELINE_LAUNCH, as_value(pipe->object), [&] {
      return gfxg_pipeline_launch(object_of<gfxg_pipeline>(pipe->object), pipe->stream);
    });
  });
}

hipError_t hgb_pipeline_update_kernel(hgb_pipeline_t *pipe, hipGraphNode_t node, hipKernelNodeParams *params) {
  return with_context(pipe && pipe->object && params, [&](gfxg_context *) {
    return set_kernel(object_of<gfxg_pipeline>(pipe->object), node, params);
  });
}

hipError_t hgb_pipeline_update_and_launch(hgb_pipeline_t *pipe, hipGraphNode_t node, hipKernelNodeParams *params) {
  const hipError_t refused = hgb_pipeline_update_kernel(pipe, node, params);
  return refused ? refused : hgb_pipeline_launch(pipe);
}

void hgb_pipeline_destroy(hgb_pipeline_t *pipe) {
  if (!pipe) return;
  gfxg_pipeline_destroy(object_of<gfxg_pipeline>(pipe->object));
  gfxg_context *c = opened();
  if (c && pipe->stream && c->runtime.stream_destroy(pipe->stream)) c->runtime.forget_error();
  *pipe = hgb_pipeline_t{};
}

// ---- shape pool -------------------------------------------------------------------------------------

hipError_t hgb_shape_pool_create(hgb_capture_fn graph_fn, void *ctx, const int *buckets, int count,
                                 hgb_shape_pool_t *out) {
  bool fits = graph_fn && buckets && out && count > 0 && count <= HGB_MAX_BUCKETS;
  for (int i = 0; fits && i < count; i++) fits = buckets[i] > (i ? buckets[i - 1] : 0);
  int refused = 0;
  const hipError_t result = with_context(fits, [&](gfxg_context *c) {
    return at_boundary(c, [&] {
      *out = hgb_shape_pool_t{};
      auto numbers = std::make_unique<int[]>(static_cast<size_t>(count));
      auto *sizes = new Sizes(static_cast<size_t>(count));
      c->n_objects++;
      gfxg_status status = GFXG_OK;
      for (int i = 0; i < count && !status; i++) {
        auto &bucket = sizes->buckets[static_cast<size_t>(i)];
        bucket.size = numbers[static_cast<size_t>(i)] = buckets[i];
        refused = graph_fn(buckets[i], &bucket.graph, ctx);
        if (refused) status = c->fail(GFXG_CALLBACK_FAILED, {{"status", std::to_string(refused)}});
        else if (!bucket.graph) status = c->invalid("hgb_shape_pool_create", "the callback gave no graph");
        else status = bucket.exec.make(*c, bucket.graph);
      }
      if (status) {
        destroy_sizes(c, sizes);
        return status;
      }
      out->bucket_sizes = numbers.release(), out->num_buckets = count, out->object = sizes;
      return GFXG_OK;
    });
  });
  return refused ? refused : result;
}

hipError_t hgb_shape_pool_launch(hgb_shape_pool_t *pool, int size, hipStream_t stream, int *actual_bucket) {
  return with_context(pool && pool->object && size > 0, [&](gfxg_context *c) {
    return at_boundary(c, [&] {
      auto *sizes = object_of<Sizes>(pool->object);
      std::lock_guard<std::mutex> hold(sizes->lock);
      auto found = std::find_if(sizes->buckets.begin(), sizes->buckets.end(),
                                [&](const Sizes::Bucket &bucket) { return bucket.size >= size; });
      if (found == sizes->buckets.end())
        return c->fail(GFXG_NO_BUCKET, {{"size", std::to_string(size)},
                                        {"largest", std::to_string(sizes->buckets.back().size)}});
      if (actual_bucket) *actual_bucket = found->size;
      return timed(HGB_PROFILE_EVENT_SHAPE_LAUNCH, static_cast<uint64_t>(size),
                   [&] { return found->exec.launch(*c, stream); });
    });
  });
}

hipError_t hgb_shape_pool_update_params(hgb_shape_pool_t *pool, int index, hipGraphNode_t node,
                                        hipKernelNodeParams *params) {
  const bool fits = pool && pool->object && node && params && index >= 0 && index < pool->num_buckets;
  return with_context(fits, [&](gfxg_context *c) {
    return at_boundary(c, [&] {
      auto *sizes = object_of<Sizes>(pool->object);
      std::lock_guard<std::mutex> hold(sizes->lock);
      auto &bucket = sizes->buckets[static_cast<size_t>(index)];
      // The graph first: an exec that is instantiated anew is made of it.
      GFX_CALL_RUNTIME(*c, set_kernel(node, params));
      GFX_TRY(bucket.exec.wait(*c));
      if (!bucket.exec.may_update(*c)) return bucket.exec.make(*c, bucket.graph);
      if (c->runtime.exec_set_kernel(bucket.exec.handle(), node, params)) {
        c->runtime.forget_error();
        c->updates_refused++;
        return bucket.exec.make(*c, bucket.graph);
      }
      c->updates++;
      return GFXG_OK;
    });
  });
}

void hgb_shape_pool_destroy(hgb_shape_pool_t *pool) {
  gfxg_context *c = opened();
  if (!pool || !pool->object || !c) return;
  at_boundary(c, [&] { return destroy_sizes(c, object_of<Sizes>(pool->object)); });
  delete[] pool->bucket_sizes;
  *pool = hgb_shape_pool_t{};
}

// ---- compositor -------------------------------------------------------------------------------------

hipError_t hgb_compose_graphs(hipGraph_t *graphs, int count, const int *deps, hgb_composed_graph_t *out) {
  bool fits = graphs && deps && out && count > 0;
  for (int i = 0; fits && i < count; i++) fits = deps[i] < i;
  return with_context(fits, [&](gfxg_context *c) {
    *out = hgb_composed_graph_t{};
    gfxg_compositor *made = nullptr;
    GFX_TRY(gfxg_compositor_create(c, &made));
    gfxg_status status = GFXG_OK;
    for (int i = 0; i < count && !status; i++) {
      const unsigned after = static_cast<unsigned>(std::max(deps[i], 0));
      status = gfxg_compositor_add(made, graphs[i], &after, deps[i] < 0 ? 0 : 1, nullptr);
    }
    if (!status) status = gfxg_compositor_build(made);
    if (status) {
      gfxg_compositor_destroy(made);
      return status;
    }
    out->object = made, out->num_children = count;
    return GFXG_OK;
  });
}

hipError_t hgb_compose_update_child(hgb_composed_graph_t *comp, int index, hipGraph_t graph) {
  const bool fits = comp && comp->object && index >= 0 && index < comp->num_children;
  return with_context(fits, [&](gfxg_context *) {
    return gfxg_compositor_set(object_of<gfxg_compositor>(comp->object), static_cast<unsigned>(index), graph);
  });
}

hipError_t hgb_compose_launch(hgb_composed_graph_t *comp, hipStream_t stream) {
  return with_context(comp && comp->object, [&](gfxg_context *) {
    return timed(HGB_PROFILE_EVENT_COMPOSE_LAUNCH, as_value(comp->object),
                 [&] { return gfxg_compositor_launch(object_of<gfxg_compositor>(comp->object), stream); });
  });
}

void hgb_compose_destroy(hgb_composed_graph_t *comp) {
  if (!comp) return;
  gfxg_compositor_destroy(object_of<gfxg_compositor>(comp->object));
  *comp = hgb_composed_graph_t{};
}

// ---- the same behind handles ------------------------------------------------------------------------

struct hgb_pipeline_handle {
  hgb_pipeline_t pipeline;
};
struct hgb_composed_graph_handle {
  hgb_composed_graph_t graph;
};

hipError_t hgb_pipeline_handle_create(hipGraph_t graph, hgb_pipeline_handle_t **out) {
  if (!out) return kInvalidValue;
  *out = nullptr;
  std::unique_ptr<hgb_pipeline_handle> made(new (std::nothrow) hgb_pipeline_handle{});
  if (!made) return kOutOfMemory;
  const hipError_t refused = hgb_pipeline_create(graph, &made->pipeline);
  if (!refused) *out = made.release();
  return refused;
}

hipError_t hgb_pipeline_handle_launch(hgb_pipeline_handle_t *handle) {
  return hgb_pipeline_launch(handle ? &handle->pipeline : nullptr);
}

hipError_t hgb_pipeline_handle_update_kernel(hgb_pipeline_handle_t *handle, hipGraphNode_t node,
                                             hipKernelNodeParams *params) {
  return hgb_pipeline_update_kernel(handle ? &handle->pipeline : nullptr, node, params);
}

hipError_t hgb_pipeline_handle_update_and_launch(hgb_pipeline_handle_t *handle, hipGraphNode_t node,
                                                 hipKernelNodeParams *params) {
  return hgb_pipeline_update_and_launch(handle ? &handle->pipeline : nullptr, node, params);
}

void hgb_pipeline_handle_destroy(hgb_pipeline_handle_t *handle) {
  if (handle) hgb_pipeline_destroy(&handle->pipeline);
  delete handle;
}

hipError_t hgb_composed_handle_create(hipGraph_t *graphs, int count, const int *deps,
                                      hgb_composed_graph_handle_t **out) {
  if (!out) return kInvalidValue;
  *out = nullptr;
  std::unique_ptr<hgb_composed_graph_handle> made(new (std::nothrow) hgb_composed_graph_handle{});
  if (!made) return kOutOfMemory;
  const hipError_t refused = hgb_compose_graphs(graphs, count, deps, &made->graph);
  if (!refused) *out = made.release();
  return refused;
}

hipError_t hgb_composed_handle_launch(hgb_composed_graph_handle_t *handle, hipStream_t stream) {
  return hgb_compose_launch(handle ? &handle->graph : nullptr, stream);
}

hipError_t hgb_composed_handle_update_child(hgb_composed_graph_handle_t *handle, int index, hipGraph_t graph) {
  return hgb_compose_update_child(handle ? &handle->graph : nullptr, index, graph);
}

void hgb_composed_handle_destroy(hgb_composed_graph_handle_t *handle) {
  if (handle) hgb_compose_destroy(&handle->graph);
  delete handle;
}

// ---- the profiler -----------------------------------------------------------------------------------

uint64_t hgb_monotonic_ns(void) {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

void hgb_profiler_reset(void) {
  std::lock_guard<std::mutex> hold(ring_lock);
  n_written = 0;
}

uint64_t hgb_profiler_record(uint32_t event, uint64_t duration_ns, uint64_t value0, uint64_t value1) {
  std::lock_guard<std::mutex> hold(ring_lock);
  ring[n_written % HGB_PROFILER_CAPACITY] = {n_written + 1, hgb_monotonic_ns(), duration_ns, value0, value1, event, 0, 0, 0};
  return ++n_written;
}

size_t hgb_profiler_snapshot(hgb_profile_sample_t *out, size_t max_samples, hgb_profile_counters_t *counters) {
  std::lock_guard<std::mutex> hold(ring_lock);
  const uint64_t kept = std::min<uint64_t>(n_written, HGB_PROFILER_CAPACITY);
  if (counters) *counters = {n_written, n_written - kept, HGB_PROFILER_CAPACITY};
  const uint64_t n = out ? std::min<uint64_t>(kept, max_samples) : 0;
  for (uint64_t i = 0; i < n; i++) out[i] = ring[(n_written - n + i) % HGB_PROFILER_CAPACITY];
  return n;
}

}  // extern "C"
