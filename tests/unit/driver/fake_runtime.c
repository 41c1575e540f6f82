/* A GPU runtime in a few hundred lines, for the driver room's tests.
 *
 * Compiled once per flavour: -DHIP or -DCUDA, and -DOLD to leave out what old releases lack.
 * It keeps a log of the calls, can refuse one of them, and has the structs as C compilers lay them
 * out, which is what the ctypes layouts are held against. It computes nothing.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } dim3;

#ifdef HIP
#define FN(hip, cuda) hip
typedef struct {
  dim3 blockDim; void **extra; void *func; dim3 gridDim; void **kernelParams; unsigned sharedMemBytes;
} Params;
enum { LAUNCH_END = 3 };
#else
#define FN(hip, cuda) cuda
typedef struct {
  void *func; unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void **kernelParams; void **extra; void *kern; void *ctx;
} Params;
enum { LAUNCH_END = 0 };
#endif

enum { NONE, ACTIVE, INVALIDATED };
enum { MAX = 64 };

typedef struct { unsigned long long from[32], to[32], nbytes[32]; } Parts; /* of driver/small_copies.py */
typedef struct Node { int type, enabled; Params params; struct Graph *inner, *child; Parts *parts; unsigned n_parts;
  unsigned long long *decides, handle; struct Graph *body; int repeats; } Node;
typedef struct Graph { int n_nodes, n_edges, alive; Node *nodes[MAX]; Node *from[MAX], *to[MAX]; } Graph;
typedef struct { int status; unsigned long long id; Graph *graph; Node *last; int stuck, ended; } Stream;
typedef struct { Graph *graph; int launches; } Exec;

static char call_log[1 << 16];
static char refused[128];
static int refused_status, last_error, version_number = FN(60443484, 13000);
static unsigned long long next_id = 7;

static int enter(const char *symbol) {
  strncat(call_log, symbol, sizeof call_log - strlen(call_log) - 2);
  strcat(call_log, " ");
  if (!strcmp(symbol, refused)) { refused[0] = 0; return last_error = refused_status; }
  return 0;
}
#define ENTER() do { int refused_ = enter(__func__); if (refused_) return refused_; } while (0)

/* what tests use ------------------------------------------------------------------------------ */
const char *fake_log(void) { return call_log; }
void fake_clear(void) { call_log[0] = 0; }
void fake_refuse(const char *symbol, int status) { snprintf(refused, sizeof refused, "%s", symbol); refused_status = status; }
void fake_set_version(int number) { version_number = number; }
int fake_last_error(void) { return last_error; }
void *fake_stream(void) { return calloc(1, sizeof(Stream)); }
void *fake_graph(void) { Graph *g = calloc(1, sizeof *g); g->alive = 1; return g; }
int fake_graph_alive(Graph *g) { return g->alive; }
void fake_invalidate(Stream *s, int stuck) { s->status = INVALIDATED; s->stuck = stuck; }
void *fake_add(Graph *g, int type, Node *after) {
  Node *n = calloc(1, sizeof *n);
  n->type = type; n->enabled = 1; g->nodes[g->n_nodes++] = n;
  if (after) { g->from[g->n_edges] = after; g->to[g->n_edges++] = n; }
  return n;
}
void *fake_record(Stream *s, int type, int forked) {
  Node *n = fake_add(s->graph, type, forked ? NULL : s->last);
  if (!forked) s->last = n;
  return n;
}
void fake_set_inner(Node *n, Graph *inner) { n->inner = inner; }
/* An argument buffer laid out as (int, 8-byte pointer, char). */
typedef struct { int a; void *b; char c; } Arguments;
static Arguments arguments = {0x01020304, (void *)0x1122334455667788, 0x7f};
static void *slots[3] = {&arguments.a, &arguments.b, &arguments.c};
static size_t buffer_nbytes = sizeof(Arguments);
static void *extra[5] = {(void *)1, &arguments, (void *)2, &buffer_nbytes, (void *)(uintptr_t)LAUNCH_END};
Arguments *fake_arguments(void) { return &arguments; }
void fake_set_kernel(Node *n, void *func, int packed) {
  Params p; memset(&p, 0, sizeof p);
  p.func = func; p.sharedMemBytes = 4096;
#ifdef HIP
  p.gridDim = (dim3){2, 3, 4}; p.blockDim = (dim3){64, 5, 6};
#else
  p.gridDimX = 2; p.gridDimY = 3; p.gridDimZ = 4; p.blockDimX = 64; p.blockDimY = 5; p.blockDimZ = 6;
#endif
  if (packed) p.extra = extra; else p.kernelParams = slots;
  n->params = p;
}
size_t fake_sizeof_params(void) { return sizeof(Params); }
size_t fake_offset(const char *member) {
#define AT(name, field) if (!strcmp(member, name)) return offsetof(Params, field)
  AT("func", func); AT("shared_nbytes", sharedMemBytes); AT("params", kernelParams); AT("extra", extra);
#ifdef HIP
  AT("grid", gridDim); AT("block", blockDim);
#else
  AT("grid", gridDimX); AT("block", blockDimX); AT("kern", kern); AT("ctx", ctx);
#endif
  return (size_t)-1;
}
static int lossy;
void fake_lose_a_node(void) { lossy = 1; }
int fake_launches(Exec *e) { return e->launches; }
/* What the last SetParams or AddKernelNode was given, copied as a runtime would. */
static Params given; static Arguments given_arguments;
Params *fake_given(void) { return &given; }
Arguments *fake_given_arguments(void) { return &given_arguments; }
/* A module is its image's first bytes; the one kernel there is copies `Parts`. */
static char image[8];
static unsigned conditions[MAX], defaults[MAX], assigned[MAX], n_conditions = 1; /* by handle; 0 is none */
static void run_parts(const Parts *p, unsigned n) {
  for (unsigned i = 0; i < n; i++) memcpy((void *)p->to[i], (void *)p->from[i], p->nbytes[i]);
}
static int take(const Params *p, Node *n) {
  if (p->func == image) {
#ifdef HIP
    n->n_parts = p->gridDim.y;
#else
    n->n_parts = p->gridDimY;
#endif
    memcpy(n->parts = n->parts ? n->parts : malloc(sizeof(Parts)), p->kernelParams[0], sizeof(Parts));
    return 0;
  }
  if (p->func == image + 1) {
    n->decides = malloc(32);
    for (int i = 0; i < 4; i++) n->decides[i] = *(unsigned long long *)p->kernelParams[i];
    return 0;
  }
  given = *p;
  if (p->extra) {
    if (p->kernelParams || p->extra[0] != (void *)1 || p->extra[2] != (void *)2) return 1;
    if (*(size_t *)p->extra[3] != sizeof(Arguments) || (uintptr_t)p->extra[4] != LAUNCH_END) return 1;
    memcpy(&given_arguments, p->extra[1], sizeof(Arguments));
  } else if (p->kernelParams) {
    given_arguments.a = *(int *)p->kernelParams[0];
    given_arguments.b = *(void **)p->kernelParams[1];
    given_arguments.c = *(char *)p->kernelParams[2];
  } else return 1;
  return 0;
}

/* the runtime --------------------------------------------------------------------------------- */
int FN(hipRuntimeGetVersion, cuDriverGetVersion)(int *out) { *out = version_number; return 0; }
static const char *name_of(int status) {
  switch (status) {
    case 0: return FN("hipSuccess", "CUDA_SUCCESS");
    case 1: return FN("hipErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE");
    case 901: return FN("hipErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
    case 904: return FN("hipErrorStreamCaptureUnjoined", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
    case 910: return FN("hipErrorGraphExecUpdateFailure", "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE");
    case 906: return FN("hipErrorStreamCaptureImplicit", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
    default: return NULL;
  }
}
#ifdef HIP
const char *hipGetErrorName(int status) { return name_of(status); }
int hipGetLastError(void) { int was = last_error; last_error = 0; strcat(call_log, "hipGetLastError "); return was; }
#else
int cuGetErrorName(int status, const char **out) { *out = name_of(status); return *out ? 0 : 1; }
#endif

int FN(hipStreamBeginCapture, cuStreamBeginCapture_v2)(Stream *s, int mode) {
  ENTER();
  (void)mode;
  if (s->status == ACTIVE) return last_error = 401;
  if (s->status == INVALIDATED && !s->ended) abort(); /* HIP 6.4 keeps the old capture in its lists */
  s->status = ACTIVE; s->id = next_id++; s->graph = fake_graph(); s->last = NULL; s->stuck = s->ended = 0;
  return 0;
}
static int n_leaves(Graph *g) {
  int n = 0;
  for (int i = 0; i < g->n_nodes; i++) {
    int followed = 0;
    for (int e = 0; e < g->n_edges; e++) followed |= g->from[e] == g->nodes[i];
    n += !followed;
  }
  return n;
}
int FN(hipStreamEndCapture, cuStreamEndCapture)(Stream *s, Graph **out) {
  int was = s->status;
  *out = (Graph *)0xdead0000; /* garbage unless it succeeds */
  ENTER();
  if (was == NONE) return last_error = 1;
  if (was == INVALIDATED) {
    if (s->stuck && s->ended) abort(); /* HIP 6.4 crashes at the second end */
    s->ended = 1;
    if (!s->stuck) s->status = NONE;
    return last_error = 901;
  }
  if (n_leaves(s->graph) > 1) {
#ifdef CUDA
    s->status = NONE;
#endif
    if (s->ended) abort();
    s->ended = 1;
    return last_error = 904; /* HIP: still active, with a graph that is gone */
  }
  s->status = NONE; *out = s->graph;
  return 0;
}
int FN(hipStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2)(Stream *s, int *status, unsigned long long *id,
    Graph **graph, Node ***deps, size_t *n_deps) {
  ENTER();
  *status = s->status;
  if (s->status != ACTIVE) return 0;
  if (id) *id = s->id; /* each optional, in both runtimes */
  if (graph) *graph = s->graph;
  if (deps) *deps = &s->last;
  if (n_deps) *n_deps = s->last != NULL;
  return 0;
}
int FN(hipStreamSynchronize, cuStreamSynchronize)(Stream *s) { ENTER(); (void)s; return 0; }
#ifndef OLD
int FN(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)(void *to, const void *from, size_t n, Stream *s) {
  ENTER(); (void)s; memcpy(to, from, n); return 0;
}
#endif
#ifndef OLD
const char *fake_image(void) { return image; }
int FN(hipModuleLoadData, cuModuleLoadData)(void **out, const char *data) { ENTER(); memcpy(image, data, 7); *out = image; return 0; }
int FN(hipModuleGetFunction, cuModuleGetFunction)(void **out, void *module, const char *name) {
  ENTER();
  *out = module == image && !strcmp(name, "gfxgraph_copy") ? image : NULL;
  if (module == image && !strcmp(name, "gfxgraph_goes_on")) *out = image + 1;
  return *out ? 0 : (last_error = 500);
}
static unsigned copied_grid[3]; static void *copied_on;
unsigned *fake_copied_grid(void) { return copied_grid; }
void *fake_copied_on(void) { return copied_on; }
static int copy(void *f, unsigned gx, unsigned gy, unsigned threads, void *s, void **params) {
  Parts *p = params[0];
  if (f != image || !gx || gy > 32 || !threads) return last_error = 1;
  copied_grid[0] = gx; copied_grid[1] = gy; copied_grid[2] = threads; copied_on = s;
  run_parts(p, gy);
  return 0;
}
int FN(hipModuleLaunchKernel, cuLaunchKernel)(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, void *s, void **params, void **extra) {
  ENTER();
  if (gz != 1 || by != 1 || bz != 1 || shared || extra) return last_error = 1;
  return copy(f, gx, gy, bx, s, params);
}
int FN(hipThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)(int *mode) {
  static int own;
  ENTER();
  int was = own; own = *mode; *mode = was;
  return 0;
}
#ifdef HIP
/* The compiler is in the runtime, as it was until 7.0. */
static const char *source;
int hiprtcCreateProgram(void **out, const char *text, const char *name, int n, void *headers, void *names) {
  ENTER(); (void)name; (void)n; (void)headers; (void)names; source = text; *out = image; return 0;
}
int hiprtcCompileProgram(void *p, int n, const char **options) {
  ENTER(); (void)p;
  return n == 1 && !strcmp(options[0], "--offload-arch=gfx942") && strstr(source, "gfxgraph_copy") ? 0 : 6;
}
int hiprtcGetProgramLogSize(void *p, size_t *n) { ENTER(); (void)p; *n = 8; return 0; }
int hiprtcGetProgramLog(void *p, char *out) { ENTER(); (void)p; memcpy(out, "no way!", 8); return 0; }
int hiprtcGetCodeSize(void *p, size_t *n) { ENTER(); (void)p; *n = 8; return 0; }
int hiprtcGetCode(void *p, char *out) { ENTER(); (void)p; memcpy(out, "object\0", 8); return 0; }
int hiprtcDestroyProgram(void **p) { ENTER(); *p = NULL; return 0; }
#else
typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned n; } Config;
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
  ENTER();
  if (c->grid[2] != 1 || c->block[1] != 1 || c->block[2] != 1 || c->shared || c->attributes || c->n || extra) return last_error = 1;
  return copy(f, c->grid[0], c->grid[1], c->block[0], c->stream, params);
}
#endif
#endif
int FN(hipGraphCreate, cuGraphCreate)(Graph **out, unsigned flags) { ENTER(); (void)flags; *out = fake_graph(); return 0; }
int FN(hipGraphDestroy, cuGraphDestroy)(Graph *g) { ENTER(); g->alive = 0; return 0; }
int FN(hipGraphGetNodes, cuGraphGetNodes)(Graph *g, Node **nodes, size_t *n) {
  ENTER();
  if (nodes) memcpy(nodes, g->nodes, sizeof(Node *) * g->n_nodes);
  *n = g->n_nodes;
  return 0;
}
int FN(hipGraphGetEdges, cuGraphGetEdges)(Graph *g, Node **from, Node **to, size_t *n) {
  ENTER();
  if (from) { memcpy(from, g->from, sizeof(Node *) * g->n_edges); memcpy(to, g->to, sizeof(Node *) * g->n_edges); }
  *n = g->n_edges;
  return 0;
}
int FN(hipGraphAddEmptyNode, cuGraphAddEmptyNode)(Node **out, Graph *g, Node **deps, size_t n) {
  ENTER();
  *out = fake_add(g, FN(version_number < 50300000 ? 6 : 5, 5), NULL);
  for (size_t i = 0; i < n; i++) { g->from[g->n_edges] = deps[i]; g->to[g->n_edges++] = *out; }
  return 0;
}
int FN(hipGraphAddKernelNode, cuGraphAddKernelNode_v2)(Node **out, Graph *g, Node **deps, size_t n, const Params *p) {
  ENTER();
  Node *made = fake_add(g, 0, NULL);
  if (take(p, made)) { g->n_nodes--; return last_error = 1; }
  for (size_t i = 0; i < n; i++) { g->from[g->n_edges] = deps[i]; g->to[g->n_edges++] = made; }
  *out = made;
  return 0;
}
int FN(hipGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph)(Node *n, Graph **out) { ENTER(); *out = n->inner; return 0; }
/* Both runtimes copy the child graph when it is added. */
int FN(hipGraphAddChildGraphNode, cuGraphAddChildGraphNode)(Node **out, Graph *g, Node **deps, size_t n, Graph *child) {
  ENTER();
  if (!child->alive) return last_error = 1;
  *out = fake_add(g, FN(version_number < 50300000 ? 5 : 4, 4), NULL);
  (*out)->inner = memcpy(fake_graph(), child, sizeof *child);
  (*out)->inner->n_nodes -= lossy; (*out)->child = (*out)->inner;
  for (size_t i = 0; i < n; i++) { g->from[g->n_edges] = deps[i]; g->to[g->n_edges++] = *out; }
  return 0;
}
int FN(hipGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams)(Exec *e, Node *n, Graph *child) {
  ENTER();
  for (int i = 0; i < e->graph->n_nodes; i++)
    if (e->graph->nodes[i] == n) return n->inner->n_nodes == child->n_nodes ? 0 : (last_error = 910);
  return last_error = 1;
}
int FN(hipGraphNodeGetType, cuGraphNodeGetType)(Node *n, int *type) { ENTER(); *type = n->type; return 0; }
int FN(hipGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2)(Node *n, Params *out) { ENTER(); *out = n->params; return 0; }
int FN(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)(Exec **out, Graph *g, unsigned long long flags) {
  *out = (Exec *)0xdead0000;
  ENTER();
  (void)flags;
  *out = calloc(1, sizeof(Exec)); (*out)->graph = g;
  return 0;
}
int FN(hipGraphExecDestroy, cuGraphExecDestroy)(Exec *e) { ENTER(); (void)e; return 0; }
static void *launched_on;
void *fake_launched_on(void) { return launched_on; }
/* Our copies and decisions only, in the order of insertion; those of child graphs and bodies among them. */
static void run(const Graph *g) {
  for (int i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    if (n->parts) run_parts(n->parts, n->n_parts);
    if (n->decides) { /* as goes_on.ptx */
      unsigned *left = (unsigned *)n->decides[3], still = (*left >> 1) - 1, flag = *(unsigned char *)n->decides[2];
      *left = still << 1 | flag;
      conditions[n->decides[0]] = flag && still;
      if (n->decides[1]) conditions[n->decides[1]] = flag && still;
    }
    if (n->child) run(n->child);
    while (n->body && conditions[n->handle]) { run(n->body); if (!n->repeats) break; }
  }
}
int FN(hipGraphLaunch, cuGraphLaunch)(Exec *e, Stream *s) {
  ENTER();
  launched_on = s; e->launches++;
  for (unsigned i = 1; i < n_conditions; i++) if (assigned[i]) conditions[i] = defaults[i];
  run(e->graph);
  return 0;
}
int FN(hipGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2)(Exec *e, Node *n, const Params *p) {
  ENTER();
  (void)e;
  return last_error = take(p, n);
}
#ifdef HIP
int hipGraphExecUpdate(Exec *e, Graph *g, Node **node, int *result) { ENTER(); (void)e; (void)g; if (!node || !result) return last_error = 1; *result = 0; return 0; }
/* A stub is an address that the runtime has in a map; a function is an object it may follow. */
static char stub, function_object[16] = "module_kernel";
void *fake_stub(void) { return &stub; }
void *fake_function(void) { return function_object; }
const char *hipKernelNameRefByPtr(const void *p, void *stream) { enter(__func__); (void)stream; return p == &stub ? "stub_kernel" : NULL; }
const char *hipKernelNameRef(void *f) { enter(__func__); return f; }
#else
typedef struct { int result; Node *node, *from; } UpdateResult;
int cuGraphExecUpdate_v2(Exec *e, Graph *g, UpdateResult *r) { ENTER(); (void)e; (void)g; r->result = 0; return 0; }
static char function_object[16] = "func_kernel";
void *fake_function(void) { return function_object; }
#ifndef OLD
/* CUgraphNodeParams of CUDA 12.4, with a conditional node's members. */
typedef struct {
  int type, reserved0[3];
  union {
    long long reserved1[29];
    struct { unsigned long long handle; int type; unsigned size; Graph **phGraph_out; void *ctx; } conditional;
  };
  long long reserved2;
} NodeParams;
static char context;
int cuCtxGetCurrent(void **out) { ENTER(); *out = &context; return 0; }
int cuGraphConditionalHandleCreate(unsigned long long *out, Graph *g, void *ctx, unsigned value, unsigned flags) {
  ENTER();
  if (!g->alive || ctx != &context || flags > 1 || n_conditions == MAX) return last_error = 1;
  defaults[n_conditions] = value; assigned[n_conditions] = flags;
  *out = n_conditions++;
  return 0;
}
int cuGraphAddNode(Node **out, Graph *g, Node **deps, size_t n, NodeParams *p) {
  ENTER();
  static const long long zeros[30];
  if (p->type != 13 || p->conditional.ctx != &context || p->conditional.size != 1 || p->conditional.type > 1) return 1;
  if (memcmp(&p->conditional + 1, zeros, sizeof p->reserved1 - sizeof p->conditional) || p->reserved2) return 1;
  *out = fake_add(g, 13, NULL);
  (*out)->handle = p->conditional.handle; (*out)->repeats = p->conditional.type; (*out)->body = fake_graph();
  p->conditional.phGraph_out = &(*out)->body;
  for (size_t i = 0; i < n; i++) { g->from[g->n_edges] = deps[i]; g->to[g->n_edges++] = *out; }
  return 0;
}
#endif
#endif

#ifndef OLD
int FN(hipGraphNodeSetEnabled, cuGraphNodeSetEnabled)(Exec *e, Node *n, unsigned on) { ENTER(); (void)e; n->enabled = on; return 0; }
int FN(hipGraphNodeGetEnabled, cuGraphNodeGetEnabled)(Exec *e, Node *n, unsigned *on) { ENTER(); (void)e; *on = n->enabled; return 0; }
static int param_info(size_t index, size_t *offset, size_t *nbytes) {
  static const size_t at[3][2] = {{0, 4}, {8, 8}, {16, 1}};
  if (index > 2) return last_error = 1;
  *offset = at[index][0]; *nbytes = at[index][1];
  return 0;
}
#ifdef HIP
int hipGetFuncBySymbol(void **out, const void *p) { ENTER(); *out = p == &stub ? function_object : NULL; return *out ? 0 : (last_error = 1); }
int hipKernelGetParamInfo(void *f, size_t i, size_t *offset, size_t *nbytes) { ENTER(); return f == function_object ? param_info(i, offset, nbytes) : (last_error = 98); }
#else
typedef struct { unsigned char from_port, to_port, type, reserved[5]; } EdgeData;
int cuGraphGetEdges_v2(Graph *g, Node **from, Node **to, EdgeData *data, size_t *n) { if (data) memset(data, 0, 8 * g->n_edges); return cuGraphGetEdges(g, from, to, n); }
int cuFuncGetName(const char **out, void *f) { ENTER(); *out = f; return 0; }
int cuKernelGetName(const char **out, void *k) { ENTER(); (void)k; *out = "kern_kernel"; return 0; }
int cuFuncGetParamInfo(void *f, size_t i, size_t *offset, size_t *nbytes) { ENTER(); (void)f; return param_info(i, offset, nbytes); }
int cuKernelGetParamInfo(void *k, size_t i, size_t *offset, size_t *nbytes) { ENTER(); (void)k; return param_info(i, offset, nbytes); }
#endif
#endif
