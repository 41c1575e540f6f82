// A CUDA program that captures, updates and launches graphs through the runtime API; what the preload library
// is tested with on a real GPU.
//
//   native_graphs SCENARIO [COUNT]      prints one `name value` a line
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define TRY(call)                                                                    \
  do {                                                                               \
    const cudaError_t status = (call);                                               \
    if (status != cudaSuccess) {                                                     \
      printf("failed %d\n", static_cast<int>(status));                               \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));                \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

constexpr int N = 1000;
static int *a, *b, *c;
static cudaStream_t stream;
static int host_calls;
static void CUDART_CB on_host(void *) { host_calls++; }

__global__ void add_to(int *out, const int *in, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + value;
}
// Adds the number of blocks in its cluster times `value`: two, if it is launched as it was captured.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define IN_PAIRS
#else
#define IN_PAIRS __cluster_dims__(2, 1, 1)
#endif
__global__ void IN_PAIRS add_in_cluster(int *out, int value, int n) {
#if __CUDA_ARCH__ >= 900
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += value * static_cast<int>(size);
#endif
}

static int first(const int *from) {
  int value = -1;
  TRY(cudaMemcpy(&value, from + N - 1, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

// c = 0x01010101 + plus + 7, through fills, copies, kernels and a host function.
static cudaGraph_t record(int plus) {
  cudaGraph_t graph;
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  TRY(cudaMemsetAsync(a, 1, N * sizeof *a, stream));
  add_to<<<(N + 63) / 64, 64, 0, stream>>>(b, a, plus, N);
  TRY(cudaMemcpyAsync(a, b, N * sizeof *a, cudaMemcpyDeviceToDevice, stream));
  TRY(cudaLaunchHostFunc(stream, on_host, nullptr));
  add_to<<<(N + 63) / 64, 64, 0, stream>>>(c, a, 7, N);
  TRY(cudaStreamEndCapture(stream, &graph));
  return graph;
}

static void plain() {
  cudaGraph_t graph = record(5);
  cudaGraphExec_t exec;
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  TRY(cudaGraphDestroy(graph));
  for (int i = 0; i < 3; i++) {
    TRY(cudaMemsetAsync(c, 0, N * sizeof *c, stream));
    TRY(cudaGraphLaunch(exec, stream));
    TRY(cudaStreamSynchronize(stream));
    printf("c %d\n", first(c));
  }
  printf("host_calls %d\n", host_calls);
  TRY(cudaGraphExecDestroy(exec));
}

static void updates() {
  cudaGraph_t one = record(5), other = record(50);
  cudaGraphExec_t exec;
  TRY(cudaGraphInstantiate(&exec, one, 0));
  for (int i = 0; i < 6; i++) {
    cudaGraphExecUpdateResultInfo info;
    TRY(cudaGraphExecUpdate(exec, i % 2 ? one : other, &info));
    TRY(cudaGraphLaunch(exec, stream));
    TRY(cudaStreamSynchronize(stream));
    printf("c %d\n", first(c));
  }
  TRY(cudaGraphExecDestroy(exec));
  TRY(cudaGraphDestroy(one));
  TRY(cudaGraphDestroy(other));
}

static void params() {
  cudaGraph_t graph = record(5);
  cudaGraphExec_t exec;
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  size_t n = 0;
  TRY(cudaGraphGetNodes(graph, nullptr, &n));
  std::vector<cudaGraphNode_t> nodes(n);
  TRY(cudaGraphGetNodes(graph, nodes.data(), &n));
  for (int plus : {50, 500, 5000}) {
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type;
      TRY(cudaGraphNodeGetType(node, &type));
      if (type != cudaGraphNodeTypeKernel) continue;
      cudaKernelNodeParams p;
      TRY(cudaGraphKernelNodeGetParams(node, &p));
      int *out = *static_cast<int **>(p.kernelParams[0]);
      if (out != b) continue;
      void *args[4] = {p.kernelParams[0], p.kernelParams[1], &plus, p.kernelParams[3]};
      p.kernelParams = args;
      TRY(cudaGraphExecKernelNodeSetParams(exec, node, &p));
    }
    TRY(cudaGraphLaunch(exec, stream));
    TRY(cudaStreamSynchronize(stream));
    printf("c %d\n", first(c));
  }
  TRY(cudaGraphExecDestroy(exec));
  TRY(cudaGraphDestroy(graph));
}

static void cluster() {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  TRY(cudaMemsetAsync(c, 0, N * sizeof *c, stream));
  add_in_cluster<<<16, 64, 0, stream>>>(c, 10, N);
  TRY(cudaStreamEndCapture(stream, &graph));
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  TRY(cudaGraphLaunch(exec, stream));
  TRY(cudaStreamSynchronize(stream));
  printf("c %d\n", first(c));
}

// Fork and join: an order that ignores edges gives another sum.
static void forked() {
  cudaStream_t side;
  cudaEvent_t begun, done;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  TRY(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  TRY(cudaEventCreate(&begun));
  TRY(cudaEventCreate(&done));
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  TRY(cudaMemsetAsync(a, 0, N * sizeof *a, stream));
  TRY(cudaEventRecord(begun, stream));
  TRY(cudaStreamWaitEvent(side, begun, 0));
  for (int i = 0; i < 10; i++) add_to<<<(N + 63) / 64, 64, 0, stream>>>(a, a, 1, N);
  add_to<<<(N + 63) / 64, 64, 0, side>>>(b, a, 0, 0);
  TRY(cudaEventRecord(done, side));
  TRY(cudaStreamWaitEvent(stream, done, 0));
  add_to<<<(N + 63) / 64, 64, 0, stream>>>(c, a, 100, N);
  TRY(cudaStreamEndCapture(stream, &graph));
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  TRY(cudaGraphLaunch(exec, stream));
  TRY(cudaStreamSynchronize(stream));
  printf("c %d\n", first(c));
}

// A failing capture: what is refused, and that the stream lives.
static void invalidated() {
  cudaGraph_t graph = nullptr;
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  TRY(cudaMemsetAsync(a, 0, N * sizeof *a, stream));
  printf("synchronize %d\n", static_cast<int>(cudaStreamSynchronize(stream)));
  printf("end %d\n", static_cast<int>(cudaStreamEndCapture(stream, &graph)));
  cudaGetLastError();
  printf("graph_is_null %d\n", graph == nullptr);
  plain();
}

// The launch fetched as a driver entry point, as frameworks do.
static void entry_point() {
  using Launch = CUresult (*)(CUgraphExec, CUstream);
  void *found = nullptr;
  cudaDriverEntryPointQueryResult answer;
  TRY(cudaGetDriverEntryPointByVersion("cuGraphLaunch", &found, 12000, cudaEnableDefault, &answer));
  cudaGraph_t graph = record(5);
  cudaGraphExec_t exec;
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  printf("launch %d\n", static_cast<int>(reinterpret_cast<Launch>(found)(exec, stream)));
  TRY(cudaStreamSynchronize(stream));
  printf("c %d\n", first(c));
}

static double ns_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

// COUNT kernels in a row, launched until a million nodes have run.
static void bench(int count) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  for (int i = 0; i < count; i++) add_to<<<1, 64, 0, stream>>>(c, a, 7, 64);
  TRY(cudaStreamEndCapture(stream, &graph));
  TRY(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 100; i++) TRY(cudaGraphLaunch(exec, stream));
  TRY(cudaStreamSynchronize(stream));
  const int launches = 1000000 / count;
  double inside = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; i++) {
    const auto before = std::chrono::steady_clock::now();
    TRY(cudaGraphLaunch(exec, stream));
    inside += ns_since(before);
    if (i % 256 == 255) TRY(cudaStreamSynchronize(stream));  // the queue never fills
  }
  TRY(cudaStreamSynchronize(stream));
  printf("ns_per_launch %.1f\n", inside / launches);
  printf("ns_per_node %.1f\n", ns_since(begin) / launches / count);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int **each : {&a, &b, &c}) TRY(cudaMalloc(each, N * sizeof **each));
  const struct { const char *name; void (*run)(); } scenarios[] = {
      {"plain", plain}, {"updates", updates}, {"params", params}, {"cluster", cluster},
      {"forked", forked}, {"invalidated", invalidated}, {"entry_point", entry_point},
  };
  for (auto &each : scenarios)
    if (!strcmp(each.name, argv[1])) return each.run(), 0;
  if (!strcmp(argv[1], "bench")) return bench(argc > 2 ? atoi(argv[2]) : 1), 0;
  return 2;
}
