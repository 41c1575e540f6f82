/* A C program that uses gfxgraph.h, on whichever runtime it is told to load.
 *
 *   c_api RUNTIME SCENARIO           prints one `name value` a line
 *   c_api RUNTIME SCENARIO every     fails every call of the runtime in turn, and looks at what is left
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gfxgraph.h"

typedef struct {
  unsigned x, y, z;
} dim;

static struct {
  int (*stream_create)(void **, unsigned);
  int (*stream_destroy)(void *);
  int (*event_create)(void **, unsigned);
  int (*event_destroy)(void *);
  int (*event_record)(void *, void *);
  int (*wait_event)(void *, void *, unsigned);
  int (*copy)(void *, const void *, size_t, int, void *);
  int (*fill)(void *, int, size_t, void *);
  int (*launch)(const void *, dim, dim, void **, size_t, void *);
  int (*begin_capture)(void *, int);
  int (*end_capture)(void *, void **);
  int (*graph_nodes)(void *, void **, size_t *);
  int (*node_type)(void *, int *);
  const void *(*stub)(void);
  void (*fail)(long, int, const char *);
  long (*calls)(void);
  const char *(*refused)(void);
  void (*strict)(int);
  void (*busy)(int);
  int (*touched)(void), (*live_graphs)(void), (*live_execs)(void), (*live_others)(void);
} rt;

static int load(const char *path) {
  const char *prefix = strstr(path, "cudart") ? "cuda" : "hip";
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  char name[128];
  if (!handle) return fprintf(stderr, "%s\n", dlerror()), 0;
#define FETCH(slot, symbol) \
  snprintf(name, sizeof name, "%s" symbol, prefix), *(void **)(&rt.slot) = dlsym(handle, name)
#define FETCH_FAKE(slot, symbol) *(void **)(&rt.slot) = dlsym(handle, symbol)
  FETCH(stream_create, "StreamCreateWithFlags"), FETCH(stream_destroy, "StreamDestroy");
  FETCH(event_create, "EventCreateWithFlags"), FETCH(event_destroy, "EventDestroy");
  FETCH(event_record, "EventRecord"), FETCH(wait_event, "StreamWaitEvent");
  FETCH(copy, "MemcpyAsync"), FETCH(fill, "MemsetAsync"), FETCH(launch, "LaunchKernel");
  FETCH(begin_capture, "StreamBeginCapture"), FETCH(end_capture, "StreamEndCapture");
  FETCH(graph_nodes, "GraphGetNodes"), FETCH(node_type, "GraphNodeGetType");
  FETCH_FAKE(stub, "fake_stub_add_to"), FETCH_FAKE(fail, "fake_fail"), FETCH_FAKE(calls, "fake_calls");
  FETCH_FAKE(strict, "fake_strict"), FETCH_FAKE(busy, "fake_busy"), FETCH_FAKE(touched, "fake_touched");
  FETCH_FAKE(live_graphs, "fake_live_graphs"), FETCH_FAKE(live_execs, "fake_live_execs");
  FETCH_FAKE(live_others, "fake_live_others"), FETCH_FAKE(refused, "fake_refused");
  return rt.stream_create && rt.stub;
}

enum { N = 100, KIND_DEVICE = 3 };
static int a[N], b[N], c[N], flag;
static void *stream;
static gfxg_context *context;
static int quiet, n_errors, n_uncatalogued;
static unsigned long said; /* everything that was said, in one number */

static void say(const char *name, long value) {
  if (strcmp(name, "touched_while_running") != 0) said = said * 31 + (unsigned long)value;
  if (!quiet) printf("%s %ld\n", name, value);
}

/* Counts what is refused; every refusal must have a text that starts with its name. */
static int ok(gfxg_status status) {
  char text[2048];
  if (status == GFXG_OK) return 1;
  n_errors++;
  gfxg_error_text(context, "en", text, sizeof text);
  if (strncmp(text, gfxg_status_name(status), strlen(gfxg_status_name(status))) != 0) {
    n_uncatalogued++;
    fprintf(stderr, "%d %s: %s\n", status, gfxg_status_name(status), text);
  }
  if (!quiet) printf("error %s %d\n%s\n", gfxg_status_name(status), gfxg_runtime_status(context), text);
  return 0;
}

/* c = a + value, in two nodes before it: b filled, a copied to b. */
static int add(void *on, int *out, const int *in, int value) {
  int n = N;
  void *args[] = {&out, &in, &value, &n};
  dim grid = {2, 1, 1}, block = {64, 1, 1};
  return rt.launch(rt.stub(), grid, block, args, 0, on);
}
static int record_add(void *on, void *user) { return add(on, c, a, *(int *)user); }
static int record_chain(void *on, void *user) {
  int failed = rt.fill(b, 0, sizeof b, on);
  if (!failed) failed = rt.copy(b, a, sizeof b, KIND_DEVICE, on);
  return failed ? failed : add(on, c, b, *(int *)user);
}
static int record_nothing(void *on, void *user) { return (void)on, (void)user, 0; }
static int record_and_refuse(void *on, void *user) { return record_add(on, user), 7; }
static int record_with_loose_fork(void *on, void *user) {
  void *event, *side;
  int failed = rt.event_create(&event, 2) || rt.stream_create(&side, 1);
  failed = failed || record_add(on, user) || rt.event_record(event, on) || rt.wait_event(side, event, 0);
  failed = failed || add(side, b, a, 1) || add(on, c, a, 2);
  rt.event_destroy(event);
  rt.stream_destroy(side);
  return failed;
}
static int record_elsewhere(void *on, void *user) { return (void)on, record_add(NULL, user); }
static int n_recorded;
static size_t sizes[16];
static int scale = 1;
static int record_size(void *on, size_t size, void *user) {
  int value = (int)size * scale;
  (void)user;
  sizes[n_recorded++ % 16] = size;
  return add(on, c, a, value);
}

static void *node_of(void *graph, int wanted) {
  void *nodes[16];
  size_t n = 16, i;
  n_errors++; /* unless it is found; these calls are ours */
  if (rt.graph_nodes(graph, nodes, &n)) return NULL;
  for (i = 0; i < n; i++) {
    int type = -1;
    if (!rt.node_type(nodes[i], &type) && type == wanted) return n_errors--, nodes[i];
  }
  return NULL;
}

/* ---- scenarios: each destroys what it made, whatever failed ---------------------------------------- */

static void conditional(void) {
  gfxg_conditional *o = NULL;
  unsigned taken = 9;
  int one = 1, two = 2;
  void *graph = NULL;
  if (ok(gfxg_conditional_create(context, 3, &o))) {
    ok(gfxg_conditional_capture(o, 0, record_add, &one));
    if (ok(gfxg_capture(context, record_chain, &two, &graph))) ok(gfxg_conditional_set(o, 1, graph));
    c[0] = 0;
    if (ok(gfxg_conditional_launch(o, 0, stream))) say("branch_0", c[0]);
    flag = 1;
    if (ok(gfxg_conditional_read(o, &flag, stream)) && ok(gfxg_conditional_launch_read(o, stream, &taken)))
      say("taken", taken), say("branch_1", c[0]);
    flag = 2, taken = 9; /* a branch that was left out */
    if (ok(gfxg_conditional_read(o, &flag, stream)) && ok(gfxg_conditional_launch_read(o, stream, &taken)))
      say("taken_empty", taken), say("unchanged", c[0]);
    flag = -5;
    if (ok(gfxg_conditional_read(o, &flag, stream)) && ok(gfxg_conditional_launch_read(o, stream, &taken)))
      say("none", taken == GFXG_NO_BRANCH);
    ok(gfxg_conditional_capture(o, 0, record_add, &two)); /* updated */
    if (ok(gfxg_conditional_launch(o, 0, stream))) say("updated", c[0]);
    ok(gfxg_conditional_capture(o, 0, record_chain, &one)); /* another shape */
    if (ok(gfxg_conditional_launch(o, 0, stream))) say("rebuilt", c[0]);
    ok(gfxg_graph_destroy(context, graph));
    ok(gfxg_conditional_destroy(o));
  }
}

static void pipeline(void) {
  gfxg_pipeline *o = NULL;
  int one = 1, value, i;
  void *graph = NULL, *other = NULL, *kernel, *copy, *fill;
  gfxg_kernel params;
  int *out = c;
  const int *in = b;
  int n = N;
  void *args[4];
  if (!ok(gfxg_capture(context, record_chain, &one, &graph))) return;
  kernel = node_of(graph, 0), copy = node_of(graph, 1), fill = node_of(graph, 2);
  if (ok(gfxg_pipeline_create(context, graph, &o))) {
    if (ok(gfxg_pipeline_launch(o, stream))) say("first", c[0]);
    /* The device stays busy: each change must go to the exec that does not run. */
    if (rt.busy) rt.busy(1);
    for (i = 0; i < 4; i++) {
      if (!ok(gfxg_pipeline_get_kernel(o, kernel, &params))) continue;
      value = 10 + i;
      args[0] = &out, args[1] = &in, args[2] = &value, args[3] = &n;
      params.func = NULL, params.args = args, params.extra = NULL;
      if (ok(gfxg_pipeline_set_kernel(o, kernel, &params)) && ok(gfxg_pipeline_launch(o, stream)))
        say("changed", c[0]);
    }
    if (ok(gfxg_pipeline_launch(o, stream))) say("same", c[0]);
    if (ok(gfxg_pipeline_set_copy(o, copy, b, a, sizeof b / 2, KIND_DEVICE)) && ok(gfxg_pipeline_launch(o, stream)))
      say("half_copied", c[N - 1]);
    {
      gfxg_memset set = {b, sizeof b, 1, 1, sizeof b, 1};
      if (ok(gfxg_pipeline_set_memset(o, fill, &set)) && ok(gfxg_pipeline_launch(o, stream)))
        say("filled", c[N - 1]);
    }
    if (ok(gfxg_pipeline_wait(o)) && ok(gfxg_pipeline_launch(o, stream))) say("after_wait", c[0]);
    value = 100;
    if (ok(gfxg_capture(context, record_chain, &value, &other)) && ok(gfxg_pipeline_update(o, other)) &&
        ok(gfxg_pipeline_launch(o, stream)))
      say("updated", c[0]);
    if (other && (kernel = node_of(other, 0))) {
      value = 200;
      args[0] = &out, args[1] = &in, args[2] = &value, args[3] = &n;
      memset(&params, 0, sizeof params);
      params.grid[0] = 2, params.grid[1] = params.grid[2] = params.block[1] = params.block[2] = 1, params.block[0] = 64;
      params.args = args;
      if (ok(gfxg_pipeline_set_kernel(o, kernel, &params)) && ok(gfxg_pipeline_launch(o, stream)))
        say("of_new_graph", c[0]);
    }
    if (rt.busy) rt.busy(0);
    if (rt.touched) say("touched_while_running", rt.touched());
    ok(gfxg_pipeline_destroy(o));
  }
  if (rt.busy) rt.busy(0);
  ok(gfxg_graph_destroy(context, graph));
  ok(gfxg_graph_destroy(context, other));
}

static void pool(void) {
  const size_t buckets[] = {8, 2, 4, 4};
  gfxg_pool *o = NULL;
  size_t bucket = 0;
  n_recorded = 0, scale = 1;
  if (!ok(gfxg_pool_create(context, buckets, 4, record_size, NULL, &o))) return;
  if (ok(gfxg_pool_launch(o, 3, stream, &bucket))) say("bucket", (long)bucket), say("value", c[0]);
  if (ok(gfxg_pool_prepare(o))) say("captures", n_recorded), say("largest_first", sizes[1] == 8 && sizes[2] == 2);
  if (ok(gfxg_pool_bucket(o, 5, &bucket))) say("bucket_of_5", (long)bucket);
  scale = 10;
  if (ok(gfxg_pool_update(o, 4)) && ok(gfxg_pool_launch(o, 4, stream, NULL))) say("updated", c[0]);
  if (ok(gfxg_pool_launch(o, 8, stream, NULL))) say("others_stay", c[0]);
  ok(gfxg_pool_destroy(o));
}

static void compositor(void) {
  gfxg_compositor *o = NULL;
  int one = 1, two = 2, five = 5;
  unsigned first = 9, second = 9;
  void *g1 = NULL, *g2 = NULL, *g3 = NULL, *g4 = NULL;
  ok(gfxg_capture(context, record_chain, &one, &g1));
  ok(gfxg_capture(context, record_add, &two, &g2));
  ok(gfxg_capture(context, record_add, &five, &g3));
  ok(gfxg_capture(context, record_chain, &five, &g4));
  if (g1 && g2 && g3 && g4 && ok(gfxg_compositor_create(context, &o))) {
    if (ok(gfxg_compositor_add(o, g1, NULL, 0, &first)) && ok(gfxg_compositor_add(o, g2, &first, 1, &second))) {
      if (ok(gfxg_compositor_build(o)) && ok(gfxg_compositor_launch(o, stream))) say("last_wins", c[0]);
      if (ok(gfxg_compositor_set(o, second, g3)) && ok(gfxg_compositor_launch(o, stream))) say("replaced", c[0]);
      if (ok(gfxg_compositor_set(o, second, g4)) && ok(gfxg_compositor_launch(o, stream))) say("other_shape", c[0]);
      if (ok(gfxg_compositor_add(o, g2, &second, 1, NULL)) && ok(gfxg_compositor_launch(o, stream)))
        say("extended", c[0]);
    }
    ok(gfxg_compositor_destroy(o));
  }
  ok(gfxg_graph_destroy(context, g1)), ok(gfxg_graph_destroy(context, g2));
  ok(gfxg_graph_destroy(context, g3)), ok(gfxg_graph_destroy(context, g4));
}

static void nested(void) {
  int one = 1;
  void *inner = NULL, *outer = NULL;
  gfxg_pipeline *o = NULL;
  if (!ok(gfxg_capture(context, record_chain, &one, &inner))) return;
  if (!rt.begin_capture(stream, 1)) {
    const int entered = ok(gfxg_capture_graph(context, stream, inner));
    if (add(stream, c, c, 1000)) n_errors++;
    int refused = rt.end_capture(stream, &outer);
    if (refused) n_errors++, refused = rt.end_capture(stream, &outer); /* ours to get right, not the library's */
    if (refused) outer = NULL;
    if (outer && entered && ok(gfxg_pipeline_create(context, outer, &o)))
      if (ok(gfxg_pipeline_launch(o, stream))) say("nested", c[0]);
  } else {
    n_errors++;
  }
  ok(gfxg_pipeline_destroy(o));
  ok(gfxg_graph_destroy(context, outer));
  ok(gfxg_graph_destroy(context, inner));
}

static void misuse(void) {
  gfxg_conditional *o = NULL;
  gfxg_pool *p = NULL;
  gfxg_pipeline *q = NULL;
  gfxg_compositor *r = NULL;
  gfxg_settings settings = {1, 0, 0};
  const size_t two = 2, zero = 0;
  int one = 1;
  unsigned index;
  size_t bucket;
  void *graph = (void *)1, *busy = NULL;
  ok(gfxg_capture(context, record_nothing, NULL, &graph));
  say("null_graph", graph == NULL);
  ok(gfxg_capture(context, record_and_refuse, &one, &graph));
  ok(gfxg_capture(context, record_with_loose_fork, &one, &graph));
  ok(gfxg_capture(context, record_elsewhere, &one, &graph));
  ok(gfxg_capture(context, NULL, NULL, &graph));
  ok(gfxg_capture_graph(context, stream, graph));
  ok(gfxg_configure(context, &settings));
  ok(gfxg_conditional_create(context, 0, &o));
  if (ok(gfxg_conditional_create(context, 1, &o))) {
    ok(gfxg_conditional_set(o, 0, NULL));
    ok(gfxg_conditional_set(o, 1, (void *)&one));
    ok(gfxg_conditional_launch(o, 1, stream));
    ok(gfxg_conditional_launch_read(o, stream, NULL));
    ok(gfxg_conditional_read(o, NULL, stream));
    ok(gfxg_close(context)); /* busy */
    ok(gfxg_conditional_capture(o, 0, record_add, &one));
    if (!rt.begin_capture(stream, 1)) {
      ok(gfxg_conditional_launch(o, 0, stream)); /* into a capture */
      rt.end_capture(stream, &busy);
      ok(gfxg_graph_destroy(context, busy));
    }
    ok(gfxg_conditional_destroy(o));
  }
  ok(gfxg_pool_create(context, &zero, 1, record_size, NULL, &p));
  if (ok(gfxg_pool_create(context, &two, 1, record_size, NULL, &p))) {
    ok(gfxg_pool_launch(p, 3, stream, NULL));
    ok(gfxg_pool_bucket(p, 1, NULL));
    say("fits", gfxg_pool_bucket(p, 1, &bucket) == GFXG_OK && bucket == 2);
    ok(gfxg_pool_destroy(p));
  }
  if (ok(gfxg_compositor_create(context, &r))) {
    ok(gfxg_compositor_launch(r, stream));
    index = 3;
    ok(gfxg_compositor_add(r, (void *)&one, &index, 1, NULL));
    ok(gfxg_compositor_set(r, 0, (void *)&one));
    ok(gfxg_compositor_destroy(r));
  }
  ok(gfxg_pipeline_create(context, NULL, &q));
  say("no_context", gfxg_capture(NULL, record_nothing, NULL, &graph) == GFXG_INVALID_ARGUMENT);
  say("null_is_fine", gfxg_pool_destroy(NULL) == GFXG_OK && gfxg_close(NULL) == GFXG_OK);
}

static void stats(void) {
  gfxg_stats s;
  memset(&s, 0, sizeof s);
  s.nbytes = sizeof s;
  pipeline();
  conditional();
  pool();
  if (!ok(gfxg_get_stats(context, &s))) return;
  say("captures", (long)s.captures), say("nodes", (long)s.captured_nodes), say("launches", (long)s.launches);
  say("instantiations", (long)s.instantiations), say("updates", (long)s.updates), say("flag_reads", (long)s.flag_reads);
  say("skipped", (long)s.skipped), say("failures", (long)s.failures), say("timed", s.launch_ns > 0);
  s.nbytes = 3 * sizeof(uint64_t), s.launches = 77;
  if (ok(gfxg_get_stats(context, &s))) say("older_callers_keep_theirs", s.launches == 77);
}

static const struct {
  const char *name;
  void (*run)(void);
} scenarios[] = {{"conditional", conditional}, {"pipeline", pipeline}, {"pool", pool}, {"compositor", compositor},
                 {"nested", nested},           {"misuse", misuse},     {"stats", stats}};

static int left_over(void) { return rt.live_graphs() + rt.live_execs() + rt.live_others(); }

static int is_removal(const char *name) {
  return strstr(name, "Destroy") || strstr(name, "Free") || strstr(name, "EndCapture");
}

/* Fails the first call, then the second, ...; after each the same scenario must work. */
static int every(void (*run)(void)) {
  long nth, n_healed = 0, n_told = 0, n_left = 0, bad = 0;
  const int before = left_over();
  unsigned long right;
  quiet = 1, said = 0;
  run();
  right = said;
  if (n_errors || left_over() != before) return printf("clean run: %d errors, %d left\n", n_errors, left_over() - before), 1;
  for (nth = 1;; nth++) {
    char refused[64];
    const int had = left_over(), touched = rt.touched();
    n_errors = 0, said = 0;
    rt.fail(nth, 2, NULL);
    run();
    snprintf(refused, sizeof refused, "%s", rt.refused());
    rt.fail(0, 0, NULL);
    if (!*refused) break; /* it made fewer calls than that */
    if (n_errors) n_told++;
    else n_healed++;
    if (!n_errors && said != right) bad++, printf("%ld %s: success, and wrong results\n", nth, refused);
    if (rt.touched() != touched) bad++, printf("%ld %s: an exec was changed while it ran\n", nth, refused);
    if (left_over() != had) {
      /* What could not be removed is the only thing that may stay. */
      n_left++;
      if (!is_removal(refused)) bad++, printf("%ld %s: %d left\n", nth, refused, left_over() - had);
    }
    {
      const int now = left_over();
      n_errors = 0, said = 0;
      run();
      if (said != right) bad++, printf("%ld %s: then wrong results\n", nth, refused);
      if (n_errors || left_over() != now) bad++, printf("%ld %s: then %d errors, %d left\n", nth, refused, n_errors, left_over() - now);
    }
  }
  printf("calls %ld\ntold %ld\nhealed %ld\nleft %ld\nbad %ld\nuncatalogued %d\n", nth - 1, n_told, n_healed, n_left, bad,
         n_uncatalogued);
  return bad || n_uncatalogued;
}

int main(int argc, char **argv) {
  size_t i;
  int failed = 1;
  if (argc < 3) return 2;
  if (gfxg_open(NULL, &context) != GFXG_NO_RUNTIME) return fprintf(stderr, "a runtime before there is one\n"), 3;
  if (!load(argv[1])) return 2;
  for (i = 0; i < N; i++) a[i] = 20;
  if (gfxg_open(NULL, &context)) return fprintf(stderr, "no runtime\n"), 4;
  printf("backend %s\nversion %d\nlibrary %s\nabi %d\n", gfxg_backend(context), gfxg_runtime_version(context),
         gfxg_runtime_library(context), gfxg_abi_version() == GFXG_ABI_VERSION);
  if (rt.strict) rt.strict(1);
  if (rt.stream_create(&stream, 1)) return 5;
  for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
    if (!strcmp(argv[2], scenarios[i].name)) {
      failed = 0;
      if (argc > 3) failed = every(scenarios[i].run);
      else scenarios[i].run();
    }
  rt.stream_destroy(stream);
  if (argc <= 3 && rt.live_graphs) printf("left %d\n", left_over());
  if (gfxg_close(context)) printf("not closed\n"), failed = 1;
  return failed;
}
