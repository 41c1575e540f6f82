/* A C program on gfxgraph 1.1.0's names; prints one `name value` a line, exit status 0 where all is well.
 *
 *   older RUNTIME [GRAPHS]      GRAPHS: conditional, pipeline, shapes, compositor, handles, profiler, refusals; all
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../hipgraph_bridge.h"

typedef struct {
  unsigned x, y, z;
} dim;

static int (*launch)(const void *, dim, dim, void **, size_t, void *);
static int (*begin_capture)(void *, int), (*end_capture)(void *, void **), (*stream_create)(void **, unsigned);
static int (*stream_wait)(void *), (*graph_nodes)(void *, void **, size_t *), (*graph_destroy)(void *);
static int (*live_graphs)(void), (*live_execs)(void), (*live_others)(void);
static const void *(*stub)(void);

enum { N = 100 };
static int a[N], c[N], flag, n_failed, others_at_start;
static void *stream;

static void check(const char *name, long got, long wanted) {
  printf("%s %ld\n", name, got);
  if (got != wanted) n_failed++, fprintf(stderr, "%s: got %ld, wanted %ld\n", name, got, wanted);
}

static void *fetch(void *handle, const char *name) {
  void *found = dlsym(handle, name);
  if (!found) n_failed++, fprintf(stderr, "no %s\n", name);
  return found;
}
#define FETCH(slot, symbol) *(void **)(&slot) = fetch(handle, symbol)

/* c = a + value, as a graph of one kernel. */
static void *graph_of(int value) {
  int *out = c, *in = a, n = N;
  void *args[] = {&out, &in, &value, &n}, *graph = NULL;
  dim grid = {2, 1, 1}, block = {64, 1, 1};
  if (begin_capture(stream, 1) || launch(stub(), grid, block, args, 0, stream) || end_capture(stream, &graph))
    n_failed++;
  return graph;
}
static void *only_node(void *graph) {
  void *node = NULL;
  size_t n = 1;
  if (graph_nodes(graph, &node, &n)) n_failed++;
  return node;
}
/* The kernel of graph_of, with another value. */
static int update(int (*how)(void *, void *, hipKernelNodeParams *), void *object, void *node, int value) {
  int *out = c, *in = a, n = N;
  void *args[] = {&out, &in, &value, &n};
  hipKernelNodeParams params = {{64, 1, 1}, NULL, (void *)stub(), {2, 1, 1}, args, 0};
  return how(object, node, &params);
}
static int in_pipeline(void *o, void *node, hipKernelNodeParams *p) { return hgb_pipeline_update_kernel(o, node, p); }
static int and_launch(void *o, void *node, hipKernelNodeParams *p) {
  return hgb_pipeline_update_and_launch(o, node, p);
}
static int in_handle(void *o, void *node, hipKernelNodeParams *p) {
  return hgb_pipeline_handle_update_and_launch(o, node, p);
}
static int in_bucket_1(void *o, void *node, hipKernelNodeParams *p) {
  return hgb_shape_pool_update_params(o, 1, node, p);
}

static void conditional(void) {
  void *graphs[2] = {graph_of(1), graph_of(2)};
  hgb_conditional_t cond;
  check("create", hgb_conditional_create(graphs, 2, &cond), 0);
  graph_destroy(graphs[0]), graph_destroy(graphs[1]);
  check("branches", cond.num_branches, 2);
  check("launch", hgb_conditional_launch(&cond, 0, stream), 0);
  stream_wait(stream), check("branch_0", c[0], 21);
  flag = 1;
  check("by_flag", hgb_conditional_launch_by_flag(&cond, &flag, stream), 0);
  stream_wait(stream), check("branch_1", c[0], 22);
  flag = 7, check("flag_of_none", hgb_conditional_launch_by_flag(&cond, &flag, stream), 1);
  check("no_branch", hgb_conditional_launch(&cond, 2, stream), 1);
  hgb_conditional_destroy(&cond), hgb_conditional_destroy(&cond);
  check("destroyed", hgb_conditional_launch(&cond, 0, stream), 1);
}

static void pipeline(void) {
  void *graph = graph_of(1), *node = only_node(graph);
  hgb_pipeline_t pipe;
  check("create", hgb_pipeline_create(graph, &pipe), 0);
  check("launch", hgb_pipeline_launch(&pipe), 0);
  stream_wait(pipe.stream), check("first", c[0], 21);
  check("update", update(in_pipeline, &pipe, node, 5), 0);
  check("launch_again", hgb_pipeline_launch(&pipe), 0);
  stream_wait(pipe.stream), check("changed", c[0], 25);
  check("both", update(and_launch, &pipe, node, 6), 0);
  stream_wait(pipe.stream), check("changed_again", c[0], 26);
  hgb_pipeline_destroy(&pipe), hgb_pipeline_destroy(NULL);
  graph_destroy(graph);
}

static void *last_given;
static int n_given;
static hipError_t give(int size, hipGraph_t *out, void *ctx) {
  if (size == *(int *)ctx) return 719;
  n_given++;
  *out = graph_of(size);
  if (size == 4) last_given = *out;
  return 0;
}

static void shapes(void) {
  const int buckets[] = {2, 4, 8}, wrong[] = {4, 2};
  int refuses = 0, bucket = 0;
  hgb_shape_pool_t pool;
  check("create", hgb_shape_pool_create(give, &refuses, buckets, 3, &pool), 0);
  check("given", n_given, 3);
  check("launch", hgb_shape_pool_launch(&pool, 3, stream, &bucket), 0);
  stream_wait(stream), check("bucket", bucket, 4), check("value", c[0], 24);
  check("update", update(in_bucket_1, &pool, only_node(last_given), 9), 0);
  check("launch_again", hgb_shape_pool_launch(&pool, 4, stream, NULL), 0);
  stream_wait(stream), check("changed", c[0], 29);
  check("too_large", hgb_shape_pool_launch(&pool, 9, stream, &bucket), 1);
  check("sizes", pool.bucket_sizes[2], 8), check("n_buckets", pool.num_buckets, 3);
  hgb_shape_pool_destroy(&pool), hgb_shape_pool_destroy(&pool);
  refuses = 4;
  check("callback_refuses", hgb_shape_pool_create(give, &refuses, buckets, 3, &pool), 719);
  check("not_ascending", hgb_shape_pool_create(give, &refuses, wrong, 2, &pool), 1);
}

static void compositor(void) {
  void *graphs[2] = {graph_of(1), graph_of(2)}, *other = graph_of(7);
  const int deps[] = {-1, 0}, forward[] = {1, -1};
  hgb_composed_graph_t whole;
  check("create", hgb_compose_graphs(graphs, 2, deps, &whole), 0);
  check("launch", hgb_compose_launch(&whole, stream), 0);
  stream_wait(stream), check("last_wins", c[0], 22), check("children", whole.num_children, 2);
  check("update", hgb_compose_update_child(&whole, 1, other), 0);
  check("launch_again", hgb_compose_launch(&whole, stream), 0);
  stream_wait(stream), check("replaced", c[0], 27);
  check("no_child", hgb_compose_update_child(&whole, 2, other), 1);
  hgb_compose_destroy(&whole);
  check("forward", hgb_compose_graphs(graphs, 2, forward, &whole), 1);
  graph_destroy(graphs[0]), graph_destroy(graphs[1]), graph_destroy(other);
}

static void handles(void) {
  void *graph = graph_of(1), *other = graph_of(3);
  const int deps[] = {-1};
  hgb_pipeline_handle_t *pipe = NULL;
  hgb_composed_graph_handle_t *whole = NULL;
  check("create", hgb_pipeline_handle_create(graph, &pipe), 0);
  check("launch", hgb_pipeline_handle_launch(pipe), 0);
  check("update", update(in_handle, pipe, only_node(graph), 4), 0);
  hgb_pipeline_handle_destroy(pipe);
  check("value", c[0], 24);
  check("compose", hgb_composed_handle_create(&graph, 1, deps, &whole), 0);
  check("replace", hgb_composed_handle_update_child(whole, 0, other), 0);
  check("launch_whole", hgb_composed_handle_launch(whole, stream), 0);
  stream_wait(stream), check("replaced", c[0], 23);
  hgb_composed_handle_destroy(whole), hgb_composed_handle_destroy(NULL);
  check("none", hgb_pipeline_handle_launch(NULL), 1);
  graph_destroy(graph), graph_destroy(other);
}

static void profiler(void) {
  hgb_profile_sample_t samples[4];
  hgb_profile_counters_t counters;
  int i;
  hgb_profiler_reset();
  for (i = 0; i < HGB_PROFILER_CAPACITY + 2; i++) hgb_profiler_record(HGB_PROFILE_EVENT_UNKNOWN, 5, (unsigned)i, 0);
  check("copied", (long)hgb_profiler_snapshot(samples, 4, &counters), 4);
  check("newest", (long)samples[3].value0, HGB_PROFILER_CAPACITY + 1);
  check("written", (long)counters.written, HGB_PROFILER_CAPACITY + 2), check("dropped", (long)counters.dropped, 2);
  check("none", (long)hgb_profiler_snapshot(NULL, 4, NULL), 0);
}

static void refusals(void) {
  void *graph = graph_of(1);
  hgb_pipeline_t pipe;
  hgb_shutdown();
  check("is_initialized", hgb_is_initialized(), 0);
  check("before_init", hgb_pipeline_create(graph, &pipe), 3);
  check("init", hgb_init(), 0), check("init_again", hgb_init(), 0);
  check("is_initialized_now", hgb_is_initialized(), 1);
  check("no_graph", hgb_pipeline_create(NULL, &pipe), 1);
  check("alive", hgb_pipeline_create(graph, &pipe), 0);
  hgb_shutdown(), check("stays_while_alive", hgb_is_initialized(), 1);
  hgb_pipeline_destroy(&pipe);
  graph_destroy(graph);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } all[] = {{"conditional", conditional}, {"pipeline", pipeline}, {"shapes", shapes}, {"compositor", compositor},
             {"handles", handles},         {"profiler", profiler}, {"refusals", refusals}};
  void *handle = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  size_t i, n_run = 0;
  if (!handle) return fprintf(stderr, "older RUNTIME [GRAPHS]\n"), 2;
  FETCH(launch, "hipLaunchKernel"), FETCH(begin_capture, "hipStreamBeginCapture");
  FETCH(end_capture, "hipStreamEndCapture"), FETCH(stream_create, "hipStreamCreateWithFlags");
  FETCH(stream_wait, "hipStreamSynchronize"), FETCH(graph_nodes, "hipGraphGetNodes");
  FETCH(graph_destroy, "hipGraphDestroy"), FETCH(stub, "fake_stub_add_to");
  FETCH(live_graphs, "fake_live_graphs"), FETCH(live_execs, "fake_live_execs"), FETCH(live_others, "fake_live_others");
  if (n_failed || stream_create(&stream, 1)) return 2;
  for (i = 0; i < N; i++) a[i] = 20;
  check("init", hgb_init(), 0);
  printf("version %d %s %s\n", hgb_get_version().major, hgb_get_version().gfx_target, hgb_get_version().rocm_version);
  others_at_start = live_others();
  for (i = 0; i < sizeof all / sizeof *all; i++)
    if (argc < 3 || !strcmp(argv[2], all[i].name)) n_run++, all[i].run();
  check("left", live_graphs() + live_execs() + live_others() - others_at_start, 0);
  hgb_shutdown();
  check("shut_down", hgb_is_initialized(), 0);
  return n_failed || !n_run;
}
