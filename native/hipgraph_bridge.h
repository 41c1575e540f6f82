/* hipgraph_bridge.h: gfxgraph 1.1.0's C names, over gfxgraph.h.
 *
 * Programs written for 1.1.0 compile and link as they are, and those that are compiled already find every function
 * and every field that they may read (`stream` of a pipeline, the counts) where it was. New programs use gfxgraph.h,
 * which tells in words what went wrong; here that text goes to stderr where HGB_DEBUG=1 or hgb_set_debug(1) asks.
 *
 * Call hgb_init first. Functions return a hipError_t: 0, the runtime's own status, or one that says what was refused
 * before (1 invalid value, 2 no memory, 3 hgb_init was not called, 100 no HIP here, 801 this HIP lacks a function).
 */
#ifndef HIPGRAPH_BRIDGE_H
#define HIPGRAPH_BRIDGE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include) && !defined(HGB_WITHOUT_HIP)
#if __has_include(<hip/hip_runtime_api.h>)
#include <hip/hip_runtime_api.h>
#define HGB_HAS_HIP 1
#endif
#endif
#ifndef HGB_HAS_HIP
/* HIP's own handles, for programs that are compiled without ROCm. */
typedef int hipError_t;
typedef void *hipGraph_t, *hipGraphExec_t, *hipGraphNode_t, *hipStream_t;
typedef struct {
  struct { unsigned x, y, z; } blockDim;
  void **extra, *func;
  struct { unsigned x, y, z; } gridDim;
  void **kernelParams;
  unsigned sharedMemBytes;
} hipKernelNodeParams;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HGB_VERSION_MAJOR 2
#define HGB_VERSION_MINOR 0
#define HGB_VERSION_PATCH 0
#define HGB_MAX_BRANCHES 32
#define HGB_MAX_BUCKETS 64
#define HGB_PROFILER_CAPACITY 4096
#define HGB_EXPORT __attribute__((visibility("default")))

/* ---- the library ---------------------------------------------------------------------------------- */

typedef struct {
  int major, minor, patch;
  const char *gfx_target;   /* of the first GPU, as gfx1030; "unknown" where the kernel names none */
  const char *rocm_version; /* HIP's, "unknown" before hgb_init */
} hgb_version_t;

HGB_EXPORT hgb_version_t hgb_get_version(void);
HGB_EXPORT hipError_t hgb_init(void);
/* Does nothing while objects are alive; the last one destroyed, call it again. */
HGB_EXPORT void hgb_shutdown(void);
HGB_EXPORT int hgb_is_initialized(void);
/* 0 on a gfx1030, or what HSA_OVERRIDE_GFX_VERSION=10.3.0 makes one; else 101. Nothing here needs a gfx1030. */
HGB_EXPORT hipError_t hgb_validate_gfx1030(void);
HGB_EXPORT void hgb_set_debug(int enabled);

/* ---- conditional ---------------------------------------------------------------------------------- */

typedef struct {
  void *object;
  int num_branches;
} hgb_conditional_t;

/* graphs: one a branch, 1 to HGB_MAX_BRANCHES of them; they stay the caller's. */
HGB_EXPORT hipError_t hgb_conditional_create(hipGraph_t *graphs, int count, hgb_conditional_t *out);
HGB_EXPORT hipError_t hgb_conditional_launch(hgb_conditional_t *cond, int branch_index, hipStream_t stream);
/* The branch that the number at d_flag, in device memory, names; 1 where it names none. */
HGB_EXPORT hipError_t hgb_conditional_launch_by_flag(hgb_conditional_t *cond, int *d_flag, hipStream_t stream);
HGB_EXPORT void hgb_conditional_destroy(hgb_conditional_t *cond);

/* ---- pipeline ------------------------------------------------------------------------------------- */

typedef struct {
  void *object;
  void *reserved;
  hipStream_t stream; /* on which it launches: its own */
} hgb_pipeline_t;

HGB_EXPORT hipError_t hgb_pipeline_create(hipGraph_t graph, hgb_pipeline_t *out);
HGB_EXPORT hipError_t hgb_pipeline_launch(hgb_pipeline_t *pipe);
/* The change holds from the next launch on; nodes are those of the graph given to create. */
HGB_EXPORT hipError_t hgb_pipeline_update_kernel(hgb_pipeline_t *pipe, hipGraphNode_t node,
                                                 hipKernelNodeParams *params);
HGB_EXPORT hipError_t hgb_pipeline_update_and_launch(hgb_pipeline_t *pipe, hipGraphNode_t node,
                                                     hipKernelNodeParams *params);
HGB_EXPORT void hgb_pipeline_destroy(hgb_pipeline_t *pipe);

/* ---- shape pool ----------------------------------------------------------------------------------- */

/* Gives a graph for `size`, which from then on is the pool's. */
typedef hipError_t (*hgb_capture_fn)(int size, hipGraph_t *out, void *ctx);

typedef struct {
  int *bucket_sizes;
  int num_buckets;
  void *object;
} hgb_shape_pool_t;

/* buckets: ascending, 1 to HGB_MAX_BUCKETS of them; every graph is made at once. */
HGB_EXPORT hipError_t hgb_shape_pool_create(hgb_capture_fn graph_fn, void *ctx, const int *buckets, int num_buckets,
                                            hgb_shape_pool_t *out);
HGB_EXPORT hipError_t hgb_shape_pool_launch(hgb_shape_pool_t *pool, int input_size, hipStream_t stream,
                                            int *actual_bucket);
HGB_EXPORT hipError_t hgb_shape_pool_update_params(hgb_shape_pool_t *pool, int bucket_index, hipGraphNode_t node,
                                                   hipKernelNodeParams *params);
HGB_EXPORT void hgb_shape_pool_destroy(hgb_shape_pool_t *pool);

/* ---- compositor ----------------------------------------------------------------------------------- */

typedef struct {
  void *object;
  void *reserved[2];
  int num_children;
} hgb_composed_graph_t;

/* deps[i]: number of the graph after which the i-th runs, smaller than i, or -1. */
HGB_EXPORT hipError_t hgb_compose_graphs(hipGraph_t *sub_graphs, int count, const int *deps,
                                         hgb_composed_graph_t *out);
HGB_EXPORT hipError_t hgb_compose_update_child(hgb_composed_graph_t *comp, int child_index, hipGraph_t new_sub_graph);
HGB_EXPORT hipError_t hgb_compose_launch(hgb_composed_graph_t *comp, hipStream_t stream);
HGB_EXPORT void hgb_compose_destroy(hgb_composed_graph_t *comp);

/* ---- the same behind handles ---------------------------------------------------------------------- */

typedef struct hgb_pipeline_handle hgb_pipeline_handle_t;
typedef struct hgb_composed_graph_handle hgb_composed_graph_handle_t;

HGB_EXPORT hipError_t hgb_pipeline_handle_create(hipGraph_t graph, hgb_pipeline_handle_t **out);
HGB_EXPORT hipError_t hgb_pipeline_handle_launch(hgb_pipeline_handle_t *handle);
HGB_EXPORT hipError_t hgb_pipeline_handle_update_kernel(hgb_pipeline_handle_t *handle, hipGraphNode_t node,
                                                        hipKernelNodeParams *params);
HGB_EXPORT hipError_t hgb_pipeline_handle_update_and_launch(hgb_pipeline_handle_t *handle, hipGraphNode_t node,
                                                            hipKernelNodeParams *params);
HGB_EXPORT void hgb_pipeline_handle_destroy(hgb_pipeline_handle_t *handle);
HGB_EXPORT hipError_t hgb_composed_handle_create(hipGraph_t *sub_graphs, int count, const int *deps,
                                                 hgb_composed_graph_handle_t **out);
HGB_EXPORT hipError_t hgb_composed_handle_launch(hgb_composed_graph_handle_t *handle, hipStream_t stream);
HGB_EXPORT hipError_t hgb_composed_handle_update_child(hgb_composed_graph_handle_t *handle, int child_index,
                                                       hipGraph_t new_sub_graph);
HGB_EXPORT void hgb_composed_handle_destroy(hgb_composed_graph_handle_t *handle);

/* ---- what was done, newest HGB_PROFILER_CAPACITY events -------------------------------------------- */

typedef enum {
  HGB_PROFILE_EVENT_UNKNOWN = 0,
  HGB_PROFILE_EVENT_PIPELINE_CREATE = 1,
  HGB_PROFILE_EVENT_PIPELINE_UPLOAD = 2,
  HGB_PROFILE_EVENT_PIPELINE_LAUNCH = 3,
  HGB_PROFILE_EVENT_PIPELINE_UPDATE = 4,
  HGB_PROFILE_EVENT_COMPOSE_LAUNCH = 5,
  HGB_PROFILE_EVENT_SHAPE_LAUNCH = 6,
  HGB_PROFILE_EVENT_DEVICE_CLOCK_PROBE = 7
} hgb_profile_event_kind_t;

typedef struct {
  uint64_t seq, timestamp_ns, duration_ns, value0, value1;
  uint32_t event, device_id, stream_id, flags; /* device_id and stream_id: 0, nobody asks the runtime for them */
} hgb_profile_sample_t;

typedef struct {
  uint64_t written, dropped, capacity;
} hgb_profile_counters_t;

HGB_EXPORT uint64_t hgb_monotonic_ns(void);
HGB_EXPORT void hgb_profiler_reset(void);
HGB_EXPORT uint64_t hgb_profiler_record(uint32_t event, uint64_t duration_ns, uint64_t value0, uint64_t value1);
/* Copies the newest samples, oldest first, and returns how many. Both pointers may be NULL. */
HGB_EXPORT size_t hgb_profiler_snapshot(hgb_profile_sample_t *out, size_t max_samples,
                                        hgb_profile_counters_t *counters);

#ifdef __cplusplus
}
#endif
#endif
