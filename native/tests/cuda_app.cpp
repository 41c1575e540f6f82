// A CUDA program that uses graphs and has never heard of us. Built four times: on the driver, linked or
// fetching its functions, and on the runtime library, shared or linked in.
//
//   cuda_app WAY SCENARIO      WAY: linked, dlsym, procaddress or runtime
//
// Prints as app.cpp does.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../abi.h"

// name, version to ask cuGetProcAddress for, symbol, parameters
#define DRIVER(X)                                                                                              \
  X(cuStreamCreate, 2000, cuStreamCreate, (hipStream_t *, unsigned))                                           \
  X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, (hipStream_t, int))                                  \
  X(cuStreamEndCapture, 10000, cuStreamEndCapture, (hipStream_t, hipGraph_t *))                                \
  X(cuStreamSynchronize, 2000, cuStreamSynchronize, (hipStream_t))                                             \
  X(cuGraphCreate, 10000, cuGraphCreate, (hipGraph_t *, unsigned))                                             \
  X(cuGraphDestroy, 10000, cuGraphDestroy, (hipGraph_t))                                                       \
  X(cuGraphGetNodes, 10000, cuGraphGetNodes, (hipGraph_t, hipGraphNode_t *, size_t *))                         \
  X(cuGraphNodeGetType, 10000, cuGraphNodeGetType, (hipGraphNode_t, int *))                                    \
  X(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags, (hipGraphExec_t *, hipGraph_t, unsigned long long)) \
  X(cuGraphLaunch, 10000, cuGraphLaunch, (hipGraphExec_t, hipStream_t))                                        \
  X(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2, (hipGraphExec_t, hipGraph_t, cuGraphExecUpdateResultInfo *)) \
  X(cuGraphExecDestroy, 10000, cuGraphExecDestroy, (hipGraphExec_t))                                           \
  X(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2,                                                      \
    (hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const cuKernelNodeParams *))                \
  X(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2, (hipGraphNode_t, cuKernelNodeParams *))  \
  X(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2,                                  \
    (hipGraphExec_t, hipGraphNode_t, const cuKernelNodeParams *))                                              \
  X(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode,                                                         \
    (hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const cuMemsetParams *, void *))            \
  X(cuMemsetD8Async, 3020, cuMemsetD8Async, (void *, unsigned char, size_t, hipStream_t))                      \
  X(cuMemsetD32Async, 3020, cuMemsetD32Async, (void *, unsigned, size_t, hipStream_t))                         \
  X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, (void *, void *, size_t, hipStream_t))                      \
  X(cuLaunchHostFunc, 10000, cuLaunchHostFunc, (hipStream_t, hipHostFn_t, void *))                             \
  X(cuLaunchKernel, 4000, cuLaunchKernel,                                                                      \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **, void **))

struct Api {
#define MEMBER(name, version, symbol, params) hipError_t(*name) params;
  DRIVER(MEMBER)
  hipFunction_t (*fake_function_add_to)();
  const void *(*fake_stub_add_to)();
  int (*fake_live_graphs)();
  int (*fake_live_execs)();
  long (*fake_calls)();
};
static Api cu;

#ifdef GFX_LINKED
#define DECLARE(name, version, symbol, params) extern "C" hipError_t symbol params;
DRIVER(DECLARE)
#endif
#ifdef GFX_RUNTIME
extern "C" {
hipError_t cudaStreamBeginCapture(hipStream_t, int);
hipError_t cudaStreamEndCapture(hipStream_t, hipGraph_t *);
hipError_t cudaStreamCreateWithFlags(hipStream_t *, unsigned);
hipError_t cudaStreamSynchronize(hipStream_t);
hipError_t cudaGraphInstantiateWithFlags(hipGraphExec_t *, hipGraph_t, unsigned long long);
hipError_t cudaGraphLaunch(hipGraphExec_t, hipStream_t);
hipError_t cudaGraphDestroy(hipGraph_t);
hipError_t cudaGraphExecDestroy(hipGraphExec_t);
hipError_t cudaMemsetAsync(void *, int, size_t, hipStream_t);
hipError_t cudaMemcpyAsync(void *, const void *, size_t, int, hipStream_t);
hipError_t cudaLaunchHostFunc(hipStream_t, hipHostFn_t, void *);
}
#endif

static bool fill(const char *way) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) return fprintf(stderr, "%s\n", dlerror()), false;
#define FETCH(name) cu.name = reinterpret_cast<decltype(cu.name)>(dlsym(handle, #name))
  FETCH(fake_function_add_to), FETCH(fake_stub_add_to), FETCH(fake_live_graphs), FETCH(fake_live_execs), FETCH(fake_calls);
#define BY_SYMBOL(name, version, symbol, params) cu.name = reinterpret_cast<decltype(cu.name)>(dlsym(handle, #symbol));
  if (!strcmp(way, "dlsym")) {
    DRIVER(BY_SYMBOL)
    return true;
  }
  if (!strcmp(way, "procaddress")) {
    using Get = hipError_t (*)(const char *, void **, int, uint64_t, int *);
    auto get = reinterpret_cast<Get>(dlsym(handle, "cuGetProcAddress_v2"));
    void *found;
#define BY_NAME(name, version, symbol, params) \
  cu.name = get(#name, &found, version, 0, nullptr) ? nullptr : reinterpret_cast<decltype(cu.name)>(found);
    DRIVER(BY_NAME)
    return true;
  }
#ifdef GFX_LINKED
#define BY_LINK(name, version, symbol, params) cu.name = &::symbol;
  DRIVER(BY_LINK)
#endif
  return true;
}

static bool failed = false;
static void check(const char *name, hipError_t status) {
  if (!status || failed) return;
  failed = true;
  printf("failed %s %d\n", name, status);
}
#define TRY(name, ...) check(#name, cu.name(__VA_ARGS__))
static void say(const char *name, long value) { printf("%s %ld\n", name, value); }

constexpr int N = 100;
static int a[N], b[N], c[N], host_calls;
static hipStream_t stream;
static void on_host(void *) { host_calls++; }

static void add(const void *what, int *out, const int *in, int value) {
  int n = N;
  void *args[] = {&out, &in, &value, &n};
  TRY(cuLaunchKernel, const_cast<void *>(what), 2, 1, 1, 64, 1, 1, 0, stream, args, nullptr);
}

// c = 1s + 5 + 7 + 9: kernels by CUfunction and by CUkernel, a fill, a copy, a host function.
static hipGraph_t record(int plus) {
  hipGraph_t graph = nullptr;
  TRY(cuStreamBeginCapture, stream, 2);
  TRY(cuMemsetD32Async, a, 1, N, stream);
  add(cu.fake_stub_add_to(), b, a, plus);
  add(cu.fake_function_add_to(), c, b, 7);
  TRY(cuMemcpyDtoDAsync, a, c, sizeof a, stream);
  TRY(cuLaunchHostFunc, stream, on_host, nullptr);
  add(cu.fake_function_add_to(), c, a, 9);
  TRY(cuStreamEndCapture, stream, &graph);
  return graph;
}

static void plain() {
  hipGraph_t graph = record(5);
  hipGraphExec_t exec = nullptr;
  if (graph) {
    TRY(cuGraphInstantiate, &exec, graph, 0);
    TRY(cuGraphDestroy, graph);
  }
  for (int i = 0; exec && i < 3; i++) {
    memset(c, 0, sizeof c);
    TRY(cuGraphLaunch, exec, stream);
    TRY(cuStreamSynchronize, stream);
  }
  if (exec) TRY(cuGraphExecDestroy, exec);
  say("c", c[N - 1]);
  say("host_calls", host_calls);
}

static void updates() {
  hipGraph_t first = record(5), second = record(50);
  hipGraphExec_t exec = nullptr;
  TRY(cuGraphInstantiate, &exec, first, 0);
  cuGraphExecUpdateResultInfo info;
  for (int i = 0; exec && i < 6; i++) {
    TRY(cuGraphExecUpdate, exec, i % 2 ? first : second, &info);
    TRY(cuGraphLaunch, exec, stream);
    say("c", c[0]);
  }
  if (exec) TRY(cuGraphExecDestroy, exec);
  TRY(cuGraphDestroy, first);
  TRY(cuGraphDestroy, second);
}

static void params() {
  hipGraph_t graph = record(5);
  hipGraphExec_t exec = nullptr;
  TRY(cuGraphInstantiate, &exec, graph, 0);
  size_t n = 0;
  TRY(cuGraphGetNodes, graph, nullptr, &n);
  std::vector<hipGraphNode_t> nodes(n);
  TRY(cuGraphGetNodes, graph, nodes.data(), &n);
  // The first kernel is the one through a CUkernel.
  hipGraphNode_t kernel = nullptr;
  cuKernelNodeParams p{};
  for (hipGraphNode_t node : nodes) {
    if (failed) break;
    int type = -1;
    cu.cuGraphNodeGetType(node, &type);
    if (type == 0 && !cu.cuGraphKernelNodeGetParams(node, &p) && p.kern) kernel = node;
  }
  if (kernel) cu.cuGraphKernelNodeGetParams(kernel, &p);
  for (int plus : {50, 500, 5000}) {
    if (failed || !kernel) break;
    int *out = b, *in = a, count = N;
    void *args[] = {&out, &in, &plus, &count};
    p.kernelParams = args;
    TRY(cuGraphExecKernelNodeSetParams, exec, kernel, &p);
    TRY(cuGraphLaunch, exec, stream);
    say("c", c[0]);
  }
  if (exec) TRY(cuGraphExecDestroy, exec);
  if (graph) TRY(cuGraphDestroy, graph);
}

// Two chains that meet: any order of the list but one along the edges gives another sum.
static void diamond() {
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  hipGraphNode_t fill_a, fill_b, left, last;
  TRY(cuGraphCreate, &graph, 0);
  const cuMemsetParams set_a{a, sizeof a, 1, 4, N, 1}, set_b{b, sizeof b, 2, 4, N, 1};
  TRY(cuGraphAddMemsetNode, &fill_a, graph, nullptr, 0, &set_a, nullptr);
  TRY(cuGraphAddMemsetNode, &fill_b, graph, nullptr, 0, &set_b, nullptr);
  auto node = [&](hipGraphNode_t *made, std::vector<hipGraphNode_t> after, int *out, int *in, int value) {
    int n = N;
    void *args[] = {&out, &in, &value, &n};
    cuKernelNodeParams p{cu.fake_function_add_to(), {2, 1, 1}, {64, 1, 1}, 0, args, nullptr, nullptr, nullptr};
    TRY(cuGraphAddKernelNode, made, graph, after.data(), after.size(), &p);
  };
  node(&left, {fill_a, fill_b}, b, a, 10);
  node(&last, {left}, c, b, 100);
  TRY(cuGraphInstantiate, &exec, graph, 0);
  if (exec) TRY(cuGraphLaunch, exec, stream);
  say("c", c[0]);
  if (exec) TRY(cuGraphExecDestroy, exec);
  TRY(cuGraphDestroy, graph);
}

static void invalidated() {
  hipGraph_t graph = nullptr;
  TRY(cuStreamBeginCapture, stream, 2);
  TRY(cuMemsetD8Async, a, 0, sizeof a, stream);
  say("synchronize", cu.cuStreamSynchronize(stream));
  say("end", cu.cuStreamEndCapture(stream, &graph));
  say("graph_is_null", !graph);
  if ((graph = record(5))) TRY(cuGraphDestroy, graph);
}

static void bench() {
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  TRY(cuGraphCreate, &graph, 0);
  TRY(cuGraphInstantiate, &exec, graph, 0);
  constexpr int rounds = 50000;
  double best = 1e9;
  for (int i = 0; i < 20; i++) {
    const auto begin = std::chrono::steady_clock::now();
    for (int each = 0; each < rounds; each++) cu.cuGraphLaunch(exec, stream);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / rounds);
  }
  printf("ns_per_launch %.1f\n", best);
  TRY(cuGraphExecDestroy, exec);
  TRY(cuGraphDestroy, graph);
}

static void runtime() {
#ifdef GFX_RUNTIME
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, 1));
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, 2));
  check("cudaMemsetAsync", cudaMemsetAsync(a, 1, sizeof a, stream));
  check("cudaMemcpyAsync", cudaMemcpyAsync(c, a, sizeof a, 3, stream));
  check("cudaLaunchHostFunc", cudaLaunchHostFunc(stream, on_host, nullptr));
  check("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph));
  check("cudaGraphInstantiateWithFlags", cudaGraphInstantiateWithFlags(&exec, graph, 0));
  check("cudaGraphDestroy", cudaGraphDestroy(graph));
  for (int i = 0; i < 3; i++) check("cudaGraphLaunch", cudaGraphLaunch(exec, stream));
  check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  check("cudaGraphExecDestroy", cudaGraphExecDestroy(exec));
  say("c", c[N - 1]);
  say("host_calls", host_calls);
#endif
}

int main(int argc, char **argv) {
  if (argc < 3 || !fill(argv[1])) return 2;
  const struct { const char *name; void (*run)(); } scenarios[] = {
      {"plain", plain},     {"updates", updates},         {"params", params}, {"diamond", diamond},
      {"invalidated", invalidated}, {"bench", bench}, {"runtime", runtime},
  };
  if (cu.cuStreamCreate) cu.cuStreamCreate(&stream, 1);
  for (auto &each : scenarios)
    if (!strcmp(each.name, argv[2])) {
      each.run();
      say("live_graphs", cu.fake_live_graphs());
      say("live_execs", cu.fake_live_execs());
      say("calls", cu.fake_calls());
      return 0;
    }
  return 2;
}
