/* Calls of gfxgraph.h as a file of bytes says: what somebody may write with the header at hand.
 *
 *   fuzz_c_api RUNTIME FILE...
 *
 * Four bytes are one call: which, and three operands, each a place in a small table (place 0 is NULL) or a
 * number. Handles are valid ones or NULL, since no library can tell a handle that it has destroyed. A file ends
 * when its bytes do; then everything is destroyed, and the context must close.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gfxgraph.h"

typedef struct {
  unsigned x, y, z;
} dim;

enum { N = 64, PLACES = 6 };
static int a[N], b[N], flag;
static void *stream;
static gfxg_context *context;

static int (*stream_create)(void **, unsigned), (*stream_destroy)(void *);
static int (*fill)(void *, int, size_t, void *);
static int (*launch)(const void *, dim, dim, void **, size_t, void *);
static int (*graph_nodes)(void *, void **, size_t *), (*node_type)(void *, int *);
static const void *(*stub)(void);
static void (*fail)(long, int, const char *);

static int load(const char *path) {
  const char *prefix = strstr(path, "cudart") ? "cuda" : "hip";
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  char name[128];
  if (!handle) return fprintf(stderr, "%s\n", dlerror()), 0;
#define FETCH(slot, symbol) snprintf(name, sizeof name, "%s" symbol, prefix), *(void **)(&slot) = dlsym(handle, name)
  FETCH(stream_create, "StreamCreateWithFlags"), FETCH(stream_destroy, "StreamDestroy");
  FETCH(fill, "MemsetAsync"), FETCH(launch, "LaunchKernel");
  FETCH(graph_nodes, "GraphGetNodes"), FETCH(node_type, "GraphNodeGetType");
  *(void **)(&stub) = dlsym(handle, "fake_stub_add_to"), *(void **)(&fail) = dlsym(handle, "fake_fail");
  return stream_create && stub && fail;
}

/* A kernel, a memset, both, nothing, or a refusal: by the low bits of `user`. */
static int record_size(void *on, size_t size, void *user) {
  int *out = b, *in = a, value = (int)size, n = N;
  void *args[] = {&out, &in, &value, &n};
  dim grid = {2, 1, 1}, block = {64, 1, 1};
  size_t what = (size_t)user % 6;
  int failed = 0;
  if (what == 5) return 7;
  if (what & 1) failed = launch(stub(), grid, block, args, 0, on);
  if (!failed && (what & 2)) failed = fill(b, (int)what, sizeof b, on);
  return failed;
}
static int record(void *on, void *user) { return record_size(on, 1, user); }

static void *graphs[PLACES];
static gfxg_conditional *conditionals[PLACES];
static gfxg_pipeline *pipelines[PLACES];
static gfxg_pool *pools[PLACES];
static gfxg_compositor *compositors[PLACES];

static void *node_of(void *graph, unsigned which, int *type) {
  void *nodes[64];
  size_t n = 64;
  *type = -1;
  if (!graph || graph_nodes(graph, nodes, &n) != 0 || !n) return NULL;
  node_type(nodes[which % n], type);
  return nodes[which % n];
}

static void change_node(unsigned x, unsigned y, unsigned z) {
  int *out = a, *in = b, value = (int)z, n = N, type;
  void *args[] = {&out, &in, &value, &n}, *node = node_of(graphs[y], z, &type);
  gfxg_kernel kernel = {NULL, {1, 1, 1}, {64, 1, 1}, 0, args, NULL}, seen;
  gfxg_memset memset_params = {b, 0, z, 4, N, 1};
  if (type == 0) {
    gfxg_pipeline_set_kernel(pipelines[x], node, z & 1 ? NULL : &kernel);
    gfxg_pipeline_get_kernel(pipelines[x], node, z & 2 ? NULL : &seen);
  } else if (type == 2) {
    gfxg_pipeline_set_memset(pipelines[x], node, z & 1 ? NULL : &memset_params);
  }
  gfxg_pipeline_set_copy(pipelines[x], NULL, a, b, sizeof a, 3);
}

static void one(const unsigned char *call) {
  unsigned x = call[1] % PLACES, y = call[2] % PLACES, z = call[3];
  void *user = (void *)(size_t)z;
  void *to = z & 1 ? stream : NULL;
  size_t buckets[PLACES] = {z, (size_t)z * 3, call[2], 0, 1, z}, bucket;
  unsigned after[3] = {y, z, z + 1}, index, taken;
  char text[128];
  gfxg_settings settings = {z & 4 ? sizeof settings : z, (int)(z % 5) - 1, y};
  gfxg_stats stats = {z & 4 ? sizeof stats : z % sizeof stats};
#define FREE(kind, objects) if (x) gfxg_##kind##_destroy(objects[x]), objects[x] = NULL
  switch (call[0] % 28) {
    case 0: if (x && !graphs[x]) gfxg_capture(context, record, user, &graphs[x]); break;
    case 1: if (x) gfxg_graph_destroy(context, graphs[x]), graphs[x] = NULL; break;
    case 2: gfxg_capture_graph(context, to, graphs[x]); break;
    case 3: gfxg_configure(context, z & 8 ? NULL : &settings); break;
    case 4: gfxg_get_stats(context, z & 8 ? NULL : &stats); break;
    case 5: gfxg_error_text(context, z & 1 ? "zh" : z & 2 ? "xx" : NULL, z & 4 ? NULL : text, z % sizeof text); break;
    case 6: fail(z, (int)call[2] + 1, NULL); break;
    case 7: fail(0, 0, NULL); break;
    case 8: if (x && !conditionals[x]) gfxg_conditional_create(context, z % 9, &conditionals[x]); break;
    case 9: gfxg_conditional_set(conditionals[x], z, graphs[y]); break;
    case 10: gfxg_conditional_capture(conditionals[x], z % 9, z & 16 ? NULL : record, user); break;
    case 11: gfxg_conditional_launch(conditionals[x], z % 9, to); break;
    case 12: flag = (int)z % 9, gfxg_conditional_read(conditionals[x], z & 16 ? NULL : &flag, to); break;
    case 13: gfxg_conditional_launch_read(conditionals[x], to, z & 2 ? NULL : &taken); break;
    case 14: FREE(conditional, conditionals); break;
    case 15: if (x && !pipelines[x]) gfxg_pipeline_create(context, graphs[y], &pipelines[x]); break;
    case 16: change_node(x, y, z); break;
    case 17: gfxg_pipeline_update(pipelines[x], graphs[y]); break;
    case 18: gfxg_pipeline_launch(pipelines[x], to), gfxg_pipeline_wait(z & 2 ? pipelines[x] : NULL); break;
    case 19: FREE(pipeline, pipelines); break;
    case 20: if (x && !pools[x]) gfxg_pool_create(context, z & 64 ? NULL : buckets, y, record_size, user, &pools[x]); break;
    case 21: gfxg_pool_bucket(pools[x], z, z & 1 ? NULL : &bucket), gfxg_pool_prepare(pools[y]); break;
    case 22: gfxg_pool_update(pools[x], z), gfxg_pool_launch(pools[x], z, to, z & 2 ? NULL : &bucket); break;
    case 23: FREE(pool, pools); break;
    case 24: if (x && !compositors[x]) gfxg_compositor_create(context, &compositors[x]); break;
    case 25: gfxg_compositor_add(compositors[x], graphs[y], z & 8 ? NULL : after, z % 4, z & 16 ? NULL : &index); break;
    case 26: gfxg_compositor_set(compositors[x], z % 4, graphs[y]), gfxg_compositor_build(compositors[x]),
             gfxg_compositor_launch(compositors[x], to); break;
    case 27: FREE(compositor, compositors); break;
  }
}

static int run(const char *path) {
  unsigned char call[4];
  FILE *file = fopen(path, "rb");
  if (!file) return fprintf(stderr, "%s cannot be opened\n", path), 2;
  fail(0, 0, NULL);
  if (gfxg_open(NULL, &context) != GFXG_OK) return fprintf(stderr, "no context\n"), 2;
  stream_create(&stream, 1);
  while (fread(call, 1, sizeof call, file) == sizeof call) one(call);
  fclose(file);
  fail(0, 0, NULL);
  for (unsigned x = 1; x < PLACES; x++) {
    gfxg_conditional_destroy(conditionals[x]), conditionals[x] = NULL;
    gfxg_pipeline_destroy(pipelines[x]), pipelines[x] = NULL;
    gfxg_pool_destroy(pools[x]), pools[x] = NULL;
    gfxg_compositor_destroy(compositors[x]), compositors[x] = NULL;
    if (graphs[x]) gfxg_graph_destroy(context, graphs[x]), graphs[x] = NULL;
  }
  stream_destroy(stream);
  gfxg_status closed = gfxg_close(context);
  return closed == GFXG_OK ? 0 : (fprintf(stderr, "%s: the context did not close (%d)\n", path, closed), 1);
}

int main(int argc, char **argv) {
  if (argc < 3 || !load(argv[1])) return 2;
  for (int i = 2; i < argc; i++) {
    int status = run(argv[i]);
    if (status) return status;
  }
  return 0;
}
