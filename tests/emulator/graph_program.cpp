// A program with graphs of its own: streams that join by events, fills and copies, updated execs, child graphs,
// and captures that fail. It prints a line for each fact; test_graph_program.py says what must stand there.
#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int N = 256;
constexpr size_t kBytes = N * sizeof(int);

__global__ void add(int *out, const int *in, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i] + value;
}

__global__ void multiply(int *out, const int *left, const int *right) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = left[i] * right[i];
}

void must(hipError_t status, const char *call, int line) {
  if (status == hipSuccess) return;
  printf("line %d: %s returned %d\n", line, call, status);
  exit(1);
}
#define MUST(call) must(call, #call, __LINE__)

void say(const char *name, const std::vector<int> &values) {
  printf("%s:", name);
  for (int value : values) printf(" %d", value);
  printf("\n");
}

int *buffer(int value = 0) {
  int *made = nullptr;
  const std::vector<int> host(N, value);
  MUST(hipMalloc(&made, kBytes));
  MUST(hipMemcpy(made, host.data(), kBytes, hipMemcpyHostToDevice));
  return made;
}

void fill(int *data, int value) {
  const std::vector<int> host(N, value);
  MUST(hipMemcpy(data, host.data(), kBytes, hipMemcpyHostToDevice));
}

// The value that every element has; -1 where they differ.
int read(const int *data) {
  std::vector<int> host(N);
  MUST(hipMemcpy(host.data(), data, kBytes, hipMemcpyDeviceToHost));
  for (int value : host)
    if (value != host[0]) return -1;
  return host[0];
}

hipStream_t stream() {
  hipStream_t made;
  MUST(hipStreamCreateWithFlags(&made, hipStreamNonBlocking));
  return made;
}

hipEvent_t event() {
  hipEvent_t made;
  MUST(hipEventCreateWithFlags(&made, hipEventDisableTiming));
  return made;
}

void launch_add(hipStream_t on, int *out, const int *in, int value) { add<<<N / 64, 64, 0, on>>>(out, in, value); }

int launched(hipGraphExec_t exec, hipStream_t on, const int *result) {
  MUST(hipGraphLaunch(exec, on));
  MUST(hipStreamSynchronize(on));
  return read(result);
}

hipGraph_t captured(hipStream_t on, const std::function<void()> &work) {
  hipGraph_t graph = nullptr;
  MUST(hipStreamBeginCapture(on, hipStreamCaptureModeGlobal));
  work();
  MUST(hipStreamEndCapture(on, &graph));
  return graph;
}

hipGraphExec_t made_of(hipGraph_t graph) {
  hipGraphExec_t exec = nullptr;
  MUST(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
  return exec;
}

std::vector<hipGraphNode_t> nodes_of(hipGraph_t graph, hipGraphNodeType type) {
  size_t n = 0;
  MUST(hipGraphGetNodes(graph, nullptr, &n));
  std::vector<hipGraphNode_t> all(n), found;
  if (n) MUST(hipGraphGetNodes(graph, all.data(), &n));
  for (hipGraphNode_t node : all) {
    hipGraphNodeType is;
    MUST(hipGraphNodeGetType(node, &is));
    if (is == type) found.push_back(node);
  }
  return found;
}

// e = (a + value + 10) * (0x01010101 + 2), the factors on two streams.
struct Fork {
  hipStream_t first = stream(), second = stream();
  hipEvent_t forked = event(), joined = event();
  int *a = buffer(), *b = buffer(), *c = buffer(), *d = buffer(), *e = buffer();

  void operator()(int value, bool copies = true) const {
    launch_add(first, b, a, value);
    MUST(hipEventRecord(forked, first));
    MUST(hipStreamWaitEvent(second, forked, 0));
    MUST(hipMemsetAsync(c, 1, kBytes, second));
    launch_add(second, c, c, 2);
    MUST(hipEventRecord(joined, second));
    launch_add(first, d, b, 10);
    MUST(hipStreamWaitEvent(first, joined, 0));
    if (copies) MUST(hipMemcpyAsync(e, d, kBytes, hipMemcpyDeviceToDevice, first));
    multiply<<<N / 64, 64, 0, first>>>(e, copies ? e : d, c);
  }
};

void two_streams_and_updates() {
  const Fork fork;
  const hipGraph_t graph = captured(fork.first, [&] { fork(1); });
  size_t n_edges = 0;
  MUST(hipGraphGetEdges(graph, nullptr, nullptr, &n_edges));
  const auto count = [&](hipGraphNodeType type) { return static_cast<int>(nodes_of(graph, type).size()); };
  const std::vector<int> kinds{count(hipGraphNodeTypeKernel), count(hipGraphNodeTypeMemset),
                               count(hipGraphNodeTypeMemcpy)};
  say("kernels, fills, copies, edges", {kinds[0], kinds[1], kinds[2], static_cast<int>(n_edges)});
  const hipGraphExec_t exec = made_of(graph);
  const auto results = [&](hipGraphExec_t of) {
    std::vector<int> seen;
    for (int value : {0, 1, 2}) {
      fill(fork.a, value);
      fill(fork.c, -7);
      seen.push_back(launched(of, fork.first, fork.e) / 0x01010103);
    }
    return seen;
  };
  say("replays", results(exec));
  // Other arguments: the exec follows. Another shape: it is refused, and the exec stays what it was.
  hipGraphNode_t culprit = nullptr;
  hipGraphExecUpdateResult result;
  const hipGraph_t same = captured(fork.first, [&] { fork(5); });
  const hipGraph_t other = captured(fork.first, [&] { fork(6, false); });
  MUST(hipGraphExecUpdate(exec, same, &culprit, &result));
  say("updated", results(exec));
  const int refused = hipGraphExecUpdate(exec, other, &culprit, &result);
  say("another shape is refused", {refused, result != hipGraphExecUpdateSuccess});
  (void)hipGetLastError();
  say("and changes nothing", results(exec));
  // One node's arguments, then a node switched off, in the exec alone.
  int twenty = 20;
  void *arguments[] = {const_cast<int **>(&fork.b), const_cast<int **>(&fork.a), &twenty};
  const hipGraph_t plain = captured(fork.first, [&] { launch_add(fork.first, fork.b, fork.a, 1); });
  const hipGraphExec_t one = made_of(plain);
  const hipGraphNode_t node = nodes_of(plain, hipGraphNodeTypeKernel)[0];
  hipKernelNodeParams params{};
  MUST(hipGraphKernelNodeGetParams(node, &params));
  params.kernelParams = arguments;
  params.extra = nullptr;
  MUST(hipGraphExecKernelNodeSetParams(one, node, &params));
  fill(fork.a, 3);
  std::vector<int> seen{launched(one, fork.first, fork.b)};
  fill(fork.b, 4);
  MUST(hipGraphNodeSetEnabled(one, node, 0));
  seen.push_back(launched(one, fork.first, fork.b));
  MUST(hipGraphNodeSetEnabled(one, node, 1));
  seen.push_back(launched(one, fork.first, fork.b));
  say("arguments set, off, on", seen);
  // The graph may go, and a copy of it lives on.
  hipGraph_t clone = nullptr;
  MUST(hipGraphClone(&clone, graph));
  MUST(hipGraphDestroy(graph));
  MUST(hipGraphDestroy(same));
  say("without its graph", results(exec));
  MUST(hipGraphExecDestroy(exec));
  const hipGraphExec_t again = made_of(clone);
  say("a clone", results(again));
  MUST(hipGraphExecDestroy(again));
}

void child_graphs() {
  const hipStream_t on = stream();
  int *data = buffer(), *copy = buffer();
  const auto inner = [&](int value) {
    return captured(on, [&] {
      launch_add(on, data, data, value);
      MUST(hipMemcpyAsync(copy, data, kBytes, hipMemcpyDeviceToDevice, on));
    });
  };
  const hipGraph_t five = inner(5), nine = inner(9);
  hipGraph_t graph = nullptr;
  hipGraphNode_t cleared, first, second, added;
  MUST(hipGraphCreate(&graph, 0));
  hipMemsetParams zeros{};
  zeros.dst = data;
  zeros.elementSize = 4;
  zeros.width = N;
  zeros.height = 1;
  MUST(hipGraphAddMemsetNode(&cleared, graph, nullptr, 0, &zeros));
  MUST(hipGraphAddChildGraphNode(&first, graph, &cleared, 1, five));
  int thousand = 1000;
  void *arguments[] = {&data, &copy, &thousand};
  hipKernelNodeParams params{};
  params.func = reinterpret_cast<void *>(add);
  params.gridDim = dim3(N / 64);
  params.blockDim = dim3(64);
  params.kernelParams = arguments;
  MUST(hipGraphAddKernelNode(&added, graph, &first, 1, &params));
  MUST(hipGraphAddChildGraphNode(&second, graph, &added, 1, five));
  const hipGraphExec_t exec = made_of(graph);
  std::vector<int> seen{launched(exec, on, data), read(copy)};
  say("children", seen);
  MUST(hipGraphExecChildGraphNodeSetParams(exec, first, nine));
  say("a child replaced", {launched(exec, on, data), launched(exec, on, copy)});
  hipGraph_t there = nullptr;
  MUST(hipGraphChildGraphNodeGetGraph(second, &there));
  say("inside a child", {static_cast<int>(nodes_of(there, hipGraphNodeTypeKernel).size()),
                         static_cast<int>(nodes_of(there, hipGraphNodeTypeMemcpy).size())});
}

// One capture with something in it that a capture forbids: what that returned, what the end returned, and whether
// the stream works afterwards, eagerly and in a new capture.
void failing(const char *name, const std::function<hipError_t(hipStream_t, int *)> &forbidden) {
  const hipStream_t on = stream();
  int *data = buffer(1);
  hipGraph_t graph = nullptr;
  MUST(hipStreamBeginCapture(on, hipStreamCaptureModeGlobal));
  launch_add(on, data, data, 1);
  const int status = forbidden(on, data);
  (void)hipGetLastError();
  const int end = hipStreamEndCapture(on, &graph);
  (void)hipGetLastError();
  say(name, {status, end});
  if (end == hipSuccess) {
    say((std::string("replay, ") + name).c_str(), {launched(made_of(graph), on, data)});
    return;
  }
  launch_add(on, data, data, 10);
  const bool eager = hipStreamSynchronize(on) == hipSuccess && read(data) == 11;
  (void)hipGetLastError();
  bool again = hipStreamBeginCapture(on, hipStreamCaptureModeGlobal) == hipSuccess;
  if (again) {
    launch_add(on, data, data, 100);
    again = hipStreamEndCapture(on, &graph) == hipSuccess && graph;
  }
  hipGraphExec_t exec = nullptr;
  again = again && hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0) == hipSuccess;
  (void)hipGetLastError();
  if (again) {
    const int before = read(data);
    again = launched(exec, on, data) == before + 100;
  }
  say((std::string("after ") + name).c_str(), {eager, again});
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  int version = 0;
  MUST(hipRuntimeGetVersion(&version));
  say("hip", {version});
  two_streams_and_updates();
  child_graphs();
  failing("nothing forbidden", [](hipStream_t, int *) { return hipSuccess; });
  failing("a wait", [](hipStream_t on, int *) { return hipStreamSynchronize(on); });
  failing("a wait for the device", [](hipStream_t, int *) { return hipDeviceSynchronize(); });
  failing("a copy that waits", [](hipStream_t, int *data) { return hipMemcpy(data, data, 4, hipMemcpyDeviceToDevice); });
  failing("an allocation", [](hipStream_t, int *) {
    void *made = nullptr;
    return hipMalloc(&made, 64);
  });
  failing("a second begin", [](hipStream_t on, int *) {
    return hipStreamBeginCapture(on, hipStreamCaptureModeGlobal);
  });
  failing("a stream not joined", [](hipStream_t on, int *data) {
    const hipStream_t side = stream();
    const hipEvent_t forked = event();
    MUST(hipEventRecord(forked, on));
    MUST(hipStreamWaitEvent(side, forked, 0));
    launch_add(side, data, data, 3);
    return hipSuccess;
  });
  return 0;
}
