/* gfxgraph.h: GPU graphs from C, on HIP or CUDA, whichever runtime this process has.
 *
 *   conditional   several graphs, one of which is launched, chosen by the host or by a flag in device memory
 *   pipeline      one graph as two execs, so that parameters change while the other one runs
 *   pool          a graph for each size that occurs, captured by a callback, sizes rounded up to buckets
 *   compositor    a graph made of other graphs, which can be replaced one by one
 *
 * Every call returns a gfxg_status; gfxg_error_text says in words what happened, why, and what to do.
 * Streams, graphs, nodes and events are the runtime's own handles (hipStream_t, cudaGraph_t, ...), passed
 * as void *. Nothing here is global: all belongs to a context, and contexts do not know of each other.
 * A context may be used from several threads; one pipeline, pool, ... by one thread at a time is fastest,
 * and by several is safe.
 *
 * Who owns what: graphs that are passed in stay the caller's and may be destroyed right after the call.
 * A *_destroy takes NULL. Close the context last.
 */
#ifndef GFXGRAPH_H
#define GFXGRAPH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GFXG_ABI_VERSION 1
#define GFXG_API __attribute__((visibility("default")))

typedef enum gfxg_status {
  GFXG_OK = 0,
  GFXG_INVALID_ARGUMENT = 1,
  GFXG_NO_RUNTIME = 2,       /* neither libamdhip64 nor libcudart is in this process */
  GFXG_FUNCTION_MISSING = 3, /* this release of the runtime lacks a function */
  GFXG_RUNTIME_REFUSED = 4,  /* a call into the runtime failed: gfxg_runtime_status */
  GFXG_CAPTURE_FAILED = 5,   /* something in the callback broke the capture */
  GFXG_CALLBACK_FAILED = 6,  /* the callback returned something other than 0 */
  GFXG_CAPTURE_EMPTY = 7,    /* the callback put no work on the stream it was given */
  GFXG_NO_BUCKET = 8,        /* larger than every bucket */
  GFXG_BUSY = 9,             /* objects of this context are still alive */
  GFXG_OUT_OF_MEMORY = 10,   /* of the host */
  GFXG_NOT_READY = 11        /* asked to launch what was not captured, built or read yet */
} gfxg_status;

typedef struct gfxg_context gfxg_context;
typedef struct gfxg_conditional gfxg_conditional;
typedef struct gfxg_pipeline gfxg_pipeline;
typedef struct gfxg_pool gfxg_pool;
typedef struct gfxg_compositor gfxg_compositor;

/* ---- the library itself --------------------------------------------------------------------------- */

/* GFXG_ABI_VERSION of the library that is loaded. */
GFXG_API int gfxg_abi_version(void);

/* The catalogue's name of a status, as in `gfxgraph explain NAME`; "ok" for GFXG_OK. */
GFXG_API const char *gfxg_status_name(gfxg_status status);

/* ---- context -------------------------------------------------------------------------------------- */

/* backend: "hip" or "cuda", or NULL for the runtime that is mapped, HIP before CUDA. A runtime that is
 * named is loaded where it is not mapped. */
GFXG_API gfxg_status gfxg_open(const char *backend, gfxg_context **out);
/* GFXG_BUSY, with nothing done, while objects of the context are alive. */
GFXG_API gfxg_status gfxg_close(gfxg_context *context);

GFXG_API const char *gfxg_backend(const gfxg_context *context);         /* "hip" or "cuda" */
GFXG_API const char *gfxg_runtime_library(const gfxg_context *context); /* path of the runtime */
GFXG_API int gfxg_runtime_version(const gfxg_context *context);         /* as the runtime numbers itself */

/* Text of the last error of the context, like snprintf: the length it has, at most size - 1 copied.
 * language: "en", "zh" or NULL for English. Empty where there was no error. */
GFXG_API size_t gfxg_error_text(gfxg_context *context, const char *language, char *buffer, size_t size);
/* Status with which the runtime refused, 0 where the last error was not its. */
GFXG_API int gfxg_runtime_status(gfxg_context *context);

typedef struct gfxg_settings {
  size_t nbytes;          /* sizeof(gfxg_settings) */
  int capture_mode;       /* 0 global, 1 thread-local (the default), 2 relaxed */
  unsigned update_budget; /* updates of an exec before it is instantiated anew; 0: never. Default 256 on HIP,
                             which keeps the argument memory of every update until the exec is destroyed;
                             0 on CUDA */
} gfxg_settings;
GFXG_API gfxg_status gfxg_configure(gfxg_context *context, const gfxg_settings *settings);

typedef struct gfxg_stats {
  size_t nbytes; /* set to sizeof(gfxg_stats) before the call; no more is written */
  uint64_t captures, captures_failed, captured_nodes;
  uint64_t instantiations, rebuilds; /* rebuilds: instantiated anew behind the same object */
  uint64_t updates, updates_refused;
  uint64_t launches, launch_ns; /* CPU time inside the runtime's launch */
  uint64_t uploads, flag_reads, skipped, waits;
  uint64_t failures; /* calls of this API that did not return GFXG_OK */
} gfxg_stats;
GFXG_API gfxg_status gfxg_get_stats(gfxg_context *context, gfxg_stats *stats);

/* ---- capturing ------------------------------------------------------------------------------------ */

/* Puts work on `stream`, which is capturing, and returns 0. It must not wait for the device. */
typedef int (*gfxg_record)(void *stream, void *user);
typedef int (*gfxg_record_size)(void *stream, size_t size, void *user);

/* Captures what `record` does, on a stream of the context's own. The graph is the caller's to destroy. */
GFXG_API gfxg_status gfxg_capture(gfxg_context *context, gfxg_record record, void *user, void **graph);
/* Puts a graph into the capture that is active on `stream`: capturing inside a capture. */
GFXG_API gfxg_status gfxg_capture_graph(gfxg_context *context, void *stream, void *graph);
GFXG_API gfxg_status gfxg_graph_destroy(gfxg_context *context, void *graph);

/* ---- conditional ---------------------------------------------------------------------------------- */

#define GFXG_NO_BRANCH 0xffffffffu

GFXG_API gfxg_status gfxg_conditional_create(gfxg_context *context, unsigned n_branches, gfxg_conditional **out);
/* Sets or replaces a branch, from a graph or by capturing. A branch left out does nothing. */
GFXG_API gfxg_status gfxg_conditional_set(gfxg_conditional *conditional, unsigned branch, void *graph);
GFXG_API gfxg_status gfxg_conditional_capture(gfxg_conditional *conditional, unsigned branch, gfxg_record record,
                                              void *user);
GFXG_API gfxg_status gfxg_conditional_launch(gfxg_conditional *conditional, unsigned branch, void *stream);
/* Asks for the 32-bit value at `flag`, in device memory, in stream order; returns at once. */
GFXG_API gfxg_status gfxg_conditional_read(gfxg_conditional *conditional, const void *flag, void *stream);
/* Waits for that value, not for later work on the stream, and launches the branch of that number. A value
 * that is no branch launches nothing: *taken is then GFXG_NO_BRANCH. taken may be NULL. */
GFXG_API gfxg_status gfxg_conditional_launch_read(gfxg_conditional *conditional, void *stream, unsigned *taken);
GFXG_API gfxg_status gfxg_conditional_destroy(gfxg_conditional *conditional);

/* ---- launch pipeline ------------------------------------------------------------------------------ */

typedef struct gfxg_kernel {
  void *func; /* as in the runtime's kernel-node parameters; NULL keeps the node's */
  unsigned grid[3], block[3], shared_nbytes;
  void **args;  /* one pointer per argument, or */
  void **extra; /* all of them in one buffer, in the runtime's own form */
} gfxg_kernel;

typedef struct gfxg_memset {
  void *dst;
  size_t pitch;
  unsigned value, element_nbytes;
  size_t width, height; /* width in elements */
} gfxg_memset;

/* Two execs of one graph, uploaded at once. */
GFXG_API gfxg_status gfxg_pipeline_create(gfxg_context *context, void *graph, gfxg_pipeline **out);
/* Changes that the next launch shall have, made in the exec that does not run; waits only where both do.
 * Nodes are those of the graph that was passed to create. */
GFXG_API gfxg_status gfxg_pipeline_set_kernel(gfxg_pipeline *pipeline, void *node, const gfxg_kernel *params);
GFXG_API gfxg_status gfxg_pipeline_get_kernel(gfxg_pipeline *pipeline, void *node, gfxg_kernel *params);
GFXG_API gfxg_status gfxg_pipeline_set_memset(gfxg_pipeline *pipeline, void *node, const gfxg_memset *params);
GFXG_API gfxg_status gfxg_pipeline_set_copy(gfxg_pipeline *pipeline, void *node, void *dst, const void *src,
                                            size_t nbytes, int kind);
/* Everything at once, from a graph with the same nodes; another shape is instantiated anew. Nodes are from
 * then on those of this graph, and the first change to one of them instantiates anew. */
GFXG_API gfxg_status gfxg_pipeline_update(gfxg_pipeline *pipeline, void *graph);
GFXG_API gfxg_status gfxg_pipeline_launch(gfxg_pipeline *pipeline, void *stream);
/* Waits until both execs are idle. */
GFXG_API gfxg_status gfxg_pipeline_wait(gfxg_pipeline *pipeline);
GFXG_API gfxg_status gfxg_pipeline_destroy(gfxg_pipeline *pipeline);

/* ---- shape pool ----------------------------------------------------------------------------------- */

/* `record` is called with a bucket's size whenever that bucket is captured: at its first launch, by
 * gfxg_pool_prepare, or by gfxg_pool_update. */
GFXG_API gfxg_status gfxg_pool_create(gfxg_context *context, const size_t *buckets, size_t n_buckets,
                                      gfxg_record_size record, void *user, gfxg_pool **out);
/* The smallest bucket that holds `size`. */
GFXG_API gfxg_status gfxg_pool_bucket(gfxg_pool *pool, size_t size, size_t *bucket);
/* Captures every bucket that is missing, largest first, so that memory is known early. */
GFXG_API gfxg_status gfxg_pool_prepare(gfxg_pool *pool);
/* Captures the bucket of `size` again, and updates its exec or instantiates it anew. */
GFXG_API gfxg_status gfxg_pool_update(gfxg_pool *pool, size_t size);
/* bucket may be NULL. */
GFXG_API gfxg_status gfxg_pool_launch(gfxg_pool *pool, size_t size, void *stream, size_t *bucket);
GFXG_API gfxg_status gfxg_pool_destroy(gfxg_pool *pool);

/* ---- compositor ----------------------------------------------------------------------------------- */

GFXG_API gfxg_status gfxg_compositor_create(gfxg_context *context, gfxg_compositor **out);
/* Adds a graph that runs after those of the given numbers; *index is its own number. */
GFXG_API gfxg_status gfxg_compositor_add(gfxg_compositor *compositor, void *graph, const unsigned *after,
                                         size_t n_after, unsigned *index);
/* Replaces one; a graph of another shape makes the next launch instantiate anew. */
GFXG_API gfxg_status gfxg_compositor_set(gfxg_compositor *compositor, unsigned index, void *graph);
/* Instantiates now instead of at the first launch. */
GFXG_API gfxg_status gfxg_compositor_build(gfxg_compositor *compositor);
GFXG_API gfxg_status gfxg_compositor_launch(gfxg_compositor *compositor, void *stream);
GFXG_API gfxg_status gfxg_compositor_destroy(gfxg_compositor *compositor);

#ifdef __cplusplus
}
#endif
#endif
