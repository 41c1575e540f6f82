// A program that uses graphs and has never heard of us: what the tests preload the library into.
//
//   app WAY LIBRARY SCENARIO      WAY: linked, dlsym or procaddress
//
// Prints one `name value` a line. A refused call prints `failed NAME STATUS`, and what was made is
// destroyed all the same, so that `live` at the end counts what somebody else left behind.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../abi.h"

struct Hip {
#define GFX_GRAPH(name, need, params, args) hipError_t(*name) params;
#include "../api.inc"
  hipError_t (*hipEventCreate)(hipEvent_t *);
  hipError_t (*hipPeekAtLastError)();
  const void *(*fake_stub_add_to)();
  hipFunction_t (*fake_function_add_to)();
  int (*fake_live_graphs)();
  int (*fake_live_execs)();
  long (*fake_calls)();
};
static Hip hip;

#ifdef GFX_LINKED
#define GFX_GRAPH(name, need, params, args) extern "C" hipError_t name params;
#include "../api.inc"
#endif

static bool fill(const char *way, const char *library) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return fprintf(stderr, "%s\n", dlerror()), false;
#define FETCH(name) hip.name = reinterpret_cast<decltype(hip.name)>(dlsym(handle, #name))
  FETCH(hipStreamCreateWithFlags), FETCH(hipStreamDestroy), FETCH(hipEventCreate), FETCH(hipEventDestroy);
  FETCH(hipPeekAtLastError);
  FETCH(fake_stub_add_to), FETCH(fake_function_add_to), FETCH(fake_live_graphs), FETCH(fake_live_execs), FETCH(fake_calls);
  if (!strcmp(way, "dlsym")) {
#define GFX_GRAPH(name, need, params, args) FETCH(name);
#include "../api.inc"
    return true;
  }
  if (!strcmp(way, "procaddress")) {
    using Get = hipError_t (*)(const char *, void **, int, uint64_t, int *);
    auto get = reinterpret_cast<Get>(dlsym(handle, "hipGetProcAddress"));
    void *found;
#define GFX_GRAPH(name, need, params, args) \
  hip.name = get(#name, &found, 60000000, 0, nullptr) ? nullptr : reinterpret_cast<decltype(hip.name)>(found);
#include "../api.inc"
    return true;
  }
#ifdef GFX_LINKED
#define GFX_GRAPH(name, need, params, args) hip.name = &::name;
#include "../api.inc"
#endif
  return true;
}

static const char *failed = nullptr;
#define TRY(name, ...)                                                        \
  do {                                                                        \
    if (hipError_t status = hip.name(__VA_ARGS__); status && !failed) {       \
      failed = #name;                                                         \
      printf("failed %s %d\n", #name, status);                                \
    }                                                                         \
  } while (0)
static void say(const char *name, long value) { printf("%s %ld\n", name, value); }

constexpr int N = 100;
static int a[N], b[N], c[N], host_calls;
static hipStream_t stream;
static void on_host(void *) { host_calls++; }

static void add_by_stub(int *out, const int *in, int value) {
  int n = N;
  void *args[] = {&out, &in, &value, &n};
  TRY(hipLaunchKernel, hip.fake_stub_add_to(), dim3{2, 1, 1}, dim3{64, 1, 1}, args, 0, stream);
}
static void add_by_module(int *out, const int *in, int value, bool packed) {
  struct { int *out; const int *in; int value, n; } all{out, in, value, N};
  int n = N;
  void *args[] = {&out, &in, &value, &n};
  size_t nbytes = sizeof all;
  void *extra[] = {reinterpret_cast<void *>(1), &all, reinterpret_cast<void *>(2), &nbytes, reinterpret_cast<void *>(3)};
  TRY(hipModuleLaunchKernel, hip.fake_function_add_to(), 2, 1, 1, 64, 1, 1, 0, stream, packed ? nullptr : args,
      packed ? extra : nullptr);
}

// c = 1s + 5 + 7 + 9, through every kind of node that has a form outside a graph.
static hipGraph_t record(int plus) {
  hipGraph_t graph = nullptr;
  TRY(hipStreamBeginCapture, stream, 1);
  TRY(hipMemsetD32Async, a, 1, N, stream);
  add_by_stub(b, a, plus);
  add_by_module(c, b, 7, false);
  TRY(hipMemcpyAsync, a, c, sizeof a, 3, stream);
  TRY(hipLaunchHostFunc, stream, on_host, nullptr);
  add_by_module(c, a, 9, true);
  if (hipError_t status = hip.hipStreamEndCapture(stream, &graph)) {
    if (!failed) failed = "hipStreamEndCapture", printf("failed hipStreamEndCapture %d\n", status);
    // A second end, as careless programs do: the handle must be null and nothing may crash.
    say("graph_is_null", !graph);
    return nullptr;
  }
  return graph;
}

static void plain() {
  hipGraph_t graph = record(5);
  hipGraphExec_t exec = nullptr;
  if (graph) {
    TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
    TRY(hipGraphDestroy, graph);  // the exec must not need it
  }
  for (int i = 0; exec && i < 3; i++) {
    memset(c, 0, sizeof c);
    TRY(hipGraphLaunch, exec, stream);
    TRY(hipStreamSynchronize, stream);
  }
  if (exec) TRY(hipGraphExecDestroy, exec);
  say("c", c[N - 1]);
  say("host_calls", host_calls);
}

static void updates() {
  hipGraph_t first = record(5), second = record(50);
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphInstantiate, &exec, first, nullptr, nullptr, 0);
  hipGraphNode_t bad;
  hipGraphExecUpdateResult result;
  for (int i = 0; exec && i < 6; i++) {
    TRY(hipGraphExecUpdate, exec, i % 2 ? first : second, &bad, &result);
    TRY(hipGraphLaunch, exec, stream);
    say("c", c[0]);
  }
  if (exec) TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, first);
  TRY(hipGraphDestroy, second);
}

// More execs than a program should keep, used in turns, updated, and destroyed in another order.
static void cache() {
  constexpr int n = 6;
  hipGraph_t graphs[n];
  hipGraphExec_t execs[n];
  long most = 0;
  hipGraphNode_t bad;
  hipGraphExecUpdateResult result;
  for (int i = 0; i < n; i++) {
    graphs[i] = record(5 + i);
    TRY(hipGraphInstantiateWithFlags, &execs[i], graphs[i], 0);
  }
  for (int round = 0; !failed && round < 3; round++) {
    for (int i = 0; i < n; i++) {
      TRY(hipGraphLaunch, execs[i], stream);
      TRY(hipStreamSynchronize, stream);
      say("c", c[0]);
      most = std::max<long>(most, hip.fake_live_execs());
    }
    TRY(hipGraphExecUpdate, execs[round], graphs[n - 1], &bad, &result);
    TRY(hipGraphUpload, execs[round + 1], stream);
  }
  say("host_calls", host_calls);
  say("most_execs", most);
  for (int i = n - 1; i >= 0; i--) {
    if (execs[i]) TRY(hipGraphExecDestroy, execs[i]);
    if (graphs[i]) TRY(hipGraphDestroy, graphs[i]);
  }
}

static void params() {
  hipGraph_t graph = record(5);
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
  size_t n = 0;
  TRY(hipGraphGetNodes, graph, nullptr, &n);
  std::vector<hipGraphNode_t> nodes(n);
  TRY(hipGraphGetNodes, graph, nodes.data(), &n);
  hipKernelNodeParams p{};
  if (!failed) TRY(hipGraphKernelNodeGetParams, nodes[1], &p);
  for (int plus : {50, 500, 5000}) {
    if (failed) break;
    int *out = b, *in = a, count = N;
    void *args[] = {&out, &in, &plus, &count};
    p.kernelParams = args;
    TRY(hipGraphExecKernelNodeSetParams, exec, nodes[1], &p);
    TRY(hipGraphLaunch, exec, stream);
    say("c", c[0]);
  }
  if (exec) TRY(hipGraphExecDestroy, exec);
  if (graph) TRY(hipGraphDestroy, graph);
}

static void children() {
  hipGraph_t inner = record(5), outer = nullptr;
  hipGraphNode_t node, last;
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphCreate, &outer, 0);
  TRY(hipGraphAddChildGraphNode, &node, outer, nullptr, 0, inner);
  hipMemsetParams set{b, 4, 1, sizeof b, 3, N};
  TRY(hipGraphAddMemsetNode, &last, outer, &node, 1, &set);
  TRY(hipGraphInstantiateWithFlags, &exec, outer, 0);
  if (exec) TRY(hipGraphLaunch, exec, stream);
  say("c", c[0]);
  say("b", b[N - 1]);
  if (exec) TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, outer);
  TRY(hipGraphDestroy, inner);
}

static void switched_off() {
  hipGraph_t graph = record(5);
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
  size_t n = 0;
  TRY(hipGraphGetNodes, graph, nullptr, &n);
  std::vector<hipGraphNode_t> nodes(n);
  TRY(hipGraphGetNodes, graph, nodes.data(), &n);
  TRY(hipGraphNodeSetEnabled, exec, nodes[5], 0);
  c[0] = -1;
  TRY(hipGraphLaunch, exec, stream);
  say("c", c[0]);
  TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, graph);
}

static void callback(hipStream_t, hipError_t, void *) { host_calls++; }
static hipGraph_t end() {
  hipGraph_t graph = nullptr;
  const hipError_t status = hip.hipStreamEndCapture(stream, &graph);
  say("end", status);
  say("graph_is_null", !graph);
  return graph;
}

static void escapes() {
  hipGraph_t inner = record(5);
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphInstantiateWithFlags, &exec, inner, 0);
  hipEvent_t outside, inside;
  hipStream_t side;
  hip.hipEventCreate(&outside), hip.hipEventCreate(&inside);
  hip.hipStreamCreateWithFlags(&side, 1);
  TRY(hipEventRecord, outside, side);
  TRY(hipStreamBeginCapture, stream, 2);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  TRY(hipMemsetAsync, a, 0, 0, stream);                          // no bytes: rightly no node
  TRY(hipGraphLaunch, exec, stream);                             // runs at once
  TRY(hipMemcpyPeerAsync, b, 0, a, 0, sizeof b, stream);         // runs at once
  unsigned word = 0;
  TRY(hipStreamWriteValue32, stream, &word, 1, 0);               // runs at once, before 10.0
  TRY(hipStreamWaitEvent, stream, outside, 0);                   // waits at once
  TRY(hipEventRecord, inside, stream);
  TRY(hipStreamWaitEvent, side, inside, 0);                      // a fork: recorded
  hipStream_t origin = stream;
  stream = side;
  TRY(hipMemsetAsync, b, 0, sizeof b, stream);
  TRY(hipEventRecord, inside, stream);
  stream = origin;
  TRY(hipStreamWaitEvent, stream, inside, 0);                    // the join: recorded
  stream = nullptr;
  add_by_stub(b, a, 1);                                          // the null stream: runs at once
  stream = origin;
  say("callback", hip.hipStreamAddCallback(stream, callback, nullptr, 0));
  say("word", word);
  if (hipGraph_t graph = end()) TRY(hipGraphDestroy, graph);
  TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, inner);
  hip.hipEventDestroy(outside), hip.hipEventDestroy(inside);
}

static void part_of_a_workgroup() {
  int *out = b, *in = a, value = 1, n = N;
  void *args[] = {&out, &in, &value, &n};
  const auto launch = [&](unsigned threads) {
    return hip.hipExtModuleLaunchKernel(hip.fake_function_add_to(), threads, 1, 1, 64, 1, 1, 0, stream, args, nullptr,
                                        nullptr, nullptr, 0);
  };
  say("eager", launch(96));
  TRY(hipStreamBeginCapture, stream, 1);
  say("part", launch(96));
  say("whole", launch(128));
  size_t n_nodes = 0;
  if (hipGraph_t graph = end()) {
    TRY(hipGraphGetNodes, graph, nullptr, &n_nodes);
    TRY(hipGraphDestroy, graph);
  }
  say("nodes", static_cast<long>(n_nodes));
}

static void unjoined() {
  hipEvent_t event;
  hipStream_t side;
  hip.hipEventCreate(&event);
  hip.hipStreamCreateWithFlags(&side, 1);
  TRY(hipStreamBeginCapture, stream, 1);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  TRY(hipEventRecord, event, stream);
  TRY(hipStreamWaitEvent, side, event, 0);
  TRY(hipMemsetAsync, b, 0, sizeof b, side);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  end();
  end();  // crashes without help
  memset(a, 1, sizeof a);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  say("stream_works", a[0] == 0);
  if (hipGraph_t graph = record(5)) TRY(hipGraphDestroy, graph);
  hip.hipEventDestroy(event);
}

// Ends that are no forks: of a side stream joined with nothing after it, of a node placed by hand, of what a
// graph had before it was captured into.
static void ends() {
  hipEvent_t event;
  hipStream_t side;
  hip.hipEventCreate(&event);
  hip.hipStreamCreateWithFlags(&side, 1);
  for (int way : {0, 1, 2}) {
    hipGraph_t graph = nullptr, own = nullptr;
    hipGraphNode_t before, placed;
    hipGraphExec_t exec = nullptr;
    memset(a, 1, sizeof a), memset(b, 1, sizeof b), memset(c, 1, sizeof c);
    const hipMemsetParams set{c, 4, 1, sizeof c, 0, N};
    if (way == 2) {
      TRY(hipGraphCreate, &own, 0);
      TRY(hipGraphAddMemsetNode, &before, own, nullptr, 0, &set);
      TRY(hipStreamBeginCaptureToGraph, stream, own, nullptr, nullptr, 0, 1);
    } else {
      TRY(hipStreamBeginCapture, stream, 1);
    }
    TRY(hipMemsetAsync, a, 0, sizeof a, stream);
    TRY(hipEventRecord, event, stream);
    TRY(hipStreamWaitEvent, side, event, 0);
    TRY(hipMemsetAsync, b, 0, sizeof b, side);
    TRY(hipMemsetAsync, a, 2, sizeof a, stream);
    if (way == 1) {
      hipStreamCaptureStatus is_active = 0;
      TRY(hipStreamGetCaptureInfo_v2, stream, &is_active, nullptr, &graph, nullptr, nullptr);
      TRY(hipGraphAddMemsetNode, &placed, graph, nullptr, 0, &set);
    }
    TRY(hipEventRecord, event, side);
    TRY(hipStreamWaitEvent, stream, event, 0);
    if ((graph = end())) {
      size_t n = 0;
      TRY(hipGraphGetNodes, graph, nullptr, &n);
      say("nodes", n);
      TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
      if (exec) TRY(hipGraphLaunch, exec, stream);
      say("replayed", a[0] == 0x02020202 && b[0] == 0 && c[0] == (way ? 0 : 0x01010101));
      if (exec) TRY(hipGraphExecDestroy, exec);
    }
    if (graph || own) TRY(hipGraphDestroy, graph ? graph : own);
  }
  hip.hipEventDestroy(event);
}

// What a program is told that looks at every answer: the last error, a capture ended by the wrong stream, no exec.
static void answers() {
  hipEvent_t event;
  hipStream_t side;
  hipGraph_t graph = nullptr;
  hip.hipEventCreate(&event);
  hip.hipStreamCreateWithFlags(&side, 1);
  TRY(hipStreamBeginCapture, stream, 1);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  say("synchronize", hip.hipStreamSynchronize(stream));
  say("invalidated", hip.hipStreamEndCapture(stream, &graph));
  for (int i = 0; i < 2; i++) say("peeked", hip.hipPeekAtLastError());
  for (int i = 0; i < 2; i++) say("last", hip.hipGetLastError());
  TRY(hipStreamBeginCapture, side, 1);  // the other one may still be invalidated, without us
  hip.hipStreamEndCapture(side, &graph);
  TRY(hipGraphDestroy, graph);
  hipStream_t origin, fork;
  hip.hipStreamCreateWithFlags(&origin, 1), hip.hipStreamCreateWithFlags(&fork, 1);
  TRY(hipStreamBeginCapture, origin, 1);
  TRY(hipEventRecord, event, origin);
  TRY(hipStreamWaitEvent, fork, event, 0);
  TRY(hipMemsetAsync, a, 0, sizeof a, origin);
  TRY(hipMemsetAsync, b, 0, sizeof b, fork);
  say("wrong_stream", hip.hipStreamEndCapture(fork, &graph));
  std::thread([&] { say("wrong_thread", hip.hipStreamEndCapture(origin, &graph)); }).join();
  TRY(hipEventRecord, event, fork);
  TRY(hipStreamWaitEvent, origin, event, 0);
  say("end", hip.hipStreamEndCapture(origin, &graph));
  size_t n = 0;
  TRY(hipGraphGetNodes, graph, nullptr, &n);
  say("nodes", n);
  TRY(hipGraphDestroy, graph);
  say("no_exec", hip.hipGraphUpload(nullptr, side));
  hip.hipEventDestroy(event);
}

// A fork not joined in a capture into the program's own graph, which must outlive it.
static void unjoined_into() {
  hipEvent_t event;
  hipStream_t side;
  hipGraph_t own = nullptr;
  hip.hipEventCreate(&event);
  hip.hipStreamCreateWithFlags(&side, 1);
  TRY(hipGraphCreate, &own, 0);
  TRY(hipStreamBeginCaptureToGraph, stream, own, nullptr, nullptr, 0, 1);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  TRY(hipEventRecord, event, stream);
  TRY(hipStreamWaitEvent, side, event, 0);
  TRY(hipMemsetAsync, b, 0, sizeof b, side);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  end();
  if (hipGraph_t graph = record(5)) TRY(hipGraphDestroy, graph);
  TRY(hipGraphDestroy, own);
  hip.hipEventDestroy(event);
}

static void invalidated() {
  TRY(hipStreamBeginCapture, stream, 1);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  say("synchronize", hip.hipStreamSynchronize(stream));
  end();
  memset(a, 1, sizeof a);
  TRY(hipMemsetAsync, a, 0, sizeof a, stream);
  say("stream_works", a[0] == 0);
  hipGraph_t graph = record(5);
  say("again", graph != nullptr);
  if (graph) TRY(hipGraphDestroy, graph);
}

// Ended by a thread that did not begin it, which only relaxed captures allow.
static void modes() {
  for (int mode : {0, 1, 2}) {
    hipGraph_t graph = nullptr;
    hipError_t status = 0;
    TRY(hipStreamBeginCapture, stream, mode);
    TRY(hipMemsetAsync, a, 0, sizeof a, stream);
    std::thread([&] { status = hip.hipStreamEndCapture(stream, &graph); }).join();
    say("end", status);
    if (status) TRY(hipStreamEndCapture, stream, &graph);
    TRY(hipGraphDestroy, graph);
  }
}

static void forked() {
  hipGraph_t graph = record(5);
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
  fflush(stdout);
  const pid_t child = fork();
  if (!child) {
    TRY(hipGraphLaunch, exec, stream);
    _exit(c[0] == 22 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  say("child", status);
  TRY(hipGraphLaunch, exec, stream);
  TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, graph);
}

static void bench() {
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  TRY(hipGraphCreate, &graph, 0);
  TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
  constexpr int rounds = 50000;
  double best = 1e9;  // the least of twenty: what the call costs when nothing else runs
  for (int i = 0; i < 20; i++) {
    const auto begin = std::chrono::steady_clock::now();
    for (int each = 0; each < rounds; each++) hip.hipGraphLaunch(exec, stream);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / rounds);
  }
  printf("ns_per_launch %.1f\n", best);
  TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, graph);
}

// What a node costs inside an exec, or, where there is none, run by itself.
static void bench_nodes() {
  constexpr int length = 100, rounds = 100;
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  TRY(hipStreamBeginCapture, stream, 1);
  for (int i = 0; i < length; i++) {
    int *out = b, *in = a, value = 1, n = 0;
    void *args[] = {&out, &in, &value, &n};
    TRY(hipLaunchKernel, hip.fake_stub_add_to(), dim3{1, 1, 1}, dim3{1, 1, 1}, args, 0, stream);
  }
  TRY(hipStreamEndCapture, stream, &graph);
  TRY(hipGraphInstantiateWithFlags, &exec, graph, 0);
  double best = 1e9;
  for (int i = 0; i < 20; i++) {
    const auto begin = std::chrono::steady_clock::now();
    for (int each = 0; each < rounds; each++) hip.hipGraphLaunch(exec, stream);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / rounds / length);
  }
  printf("ns_per_node %.1f\n", best);
  TRY(hipGraphExecDestroy, exec);
  TRY(hipGraphDestroy, graph);
}

static void signalled() {
  hipGraph_t graph = record(5);
  kill(getpid(), SIGUSR1);
  say("alive", 1);
  TRY(hipGraphDestroy, graph);
  fflush(stdout);
  _exit(0);  // no destructors: what is reported came from the signal
}

#ifdef GFX_MODULE
extern "C" __attribute__((visibility("default"))) int run(int argc, char **argv) {
#else
int main(int argc, char **argv) {
#endif
  if (argc < 4 || !fill(argv[1], argv[2])) return 2;
  const struct { const char *name; void (*run)(); } scenarios[] = {
      {"plain", plain},       {"updates", updates},         {"params", params},       {"cache", cache},
      {"children", children}, {"switched_off", switched_off}, {"escapes", escapes}, {"part_of_a_workgroup", part_of_a_workgroup},
      {"unjoined", unjoined}, {"unjoined_into", unjoined_into}, {"ends", ends},     {"answers", answers},
      {"invalidated", invalidated}, {"forked", forked},     {"modes", modes},
      {"bench", bench},       {"bench_nodes", bench_nodes}, {"signalled", signalled},
  };
  hip.hipStreamCreateWithFlags(&stream, 1);
  for (auto &each : scenarios)
    if (!strcmp(each.name, argv[3])) {
      each.run();
      say("live_graphs", hip.fake_live_graphs());
      say("live_execs", hip.fake_live_execs());
      say("calls", hip.fake_calls());
      return fflush(stdout);  // in a namespace of its own nobody else does
    }
  return 2;
}
