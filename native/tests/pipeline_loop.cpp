// What gfxg_pipeline is worth in a loop that the CPU cannot feed fast enough: every step changes one argument of
// the first of COUNT small kernels and runs them all. Compiled by nvcc over CUDA, by g++ over the fake libamdhip64.
//
//   pipeline_loop WAY COUNT STEPS      prints `ns_per_step`, `cpu_ns_per_step`, `right` and, of a pipeline, `waits`
//
// WAY   kernels    each kernel launched by itself
//       waiting    one exec, changed once its last launch is over: all that HIP allows
//       exec       one exec, changed at once, which CUDA allows and HIP does not
//       pipeline   gfxg_pipeline
//       same, same_pipeline   nothing changes: a launch of an exec, of a pipeline
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "../gfxgraph.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define RT(name) cuda##name
constexpr int N = 64;
__global__ void add_to(int *out, const int *in, int value, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x] + value;
}
static void *kernel() { return reinterpret_cast<void *>(add_to); }
static int *device_memory() {
  int *made = nullptr;
  return cudaMalloc(&made, N * sizeof(int)) || cudaMemset(made, 0, N * sizeof(int)) ? nullptr : made;
}
static int first_of(const int *memory) {
  int value = -1;
  cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost);
  return value;
}
#else
#include "../abi.h"
#define GFX_GRAPH(name, need, params, args) extern "C" hipError_t name params;
#include "../api.inc"
extern "C" hipError_t hipStreamCreateWithFlags(hipStream_t *, unsigned);
extern "C" const void *fake_stub_add_to();
#define RT(name) hip##name
constexpr int N = 64;
static void *kernel() { return const_cast<void *>(fake_stub_add_to()); }
static int *device_memory() { return static_cast<int *>(calloc(N, sizeof(int))); }
static int first_of(const int *memory) { return *memory; }
#endif

#define TRY(call)                                                              \
  do {                                                                         \
    if (const int status = static_cast<int>(call)) {                           \
      fprintf(stderr, "%s: %d\n", #call, status);                              \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

static RT(Stream_t) stream;
static int *x, count = 20, n = N;

// x = x + value, COUNT times: by the step's number first, by 1 from then on.
static void launch_kernels(RT(Stream_t) on, int value) {
  for (int i = 0; i < count; i++) {
    int add = i ? 1 : value;
    void *args[] = {&x, &x, &add, &n};
    TRY(RT(LaunchKernel)(kernel(), dim3{1, 1, 1}, dim3{N, 1, 1}, args, 0, on));
  }
}
static int record(void *on, void *) { return launch_kernels(static_cast<RT(Stream_t)>(on), 0), 0; }

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  const char *way = argv[1];
  const auto is = [&](const char *name) { return !strcmp(way, name); };
  count = atoi(argv[2]);
  const int steps = atoi(argv[3]), warm_up = 20;
  gfxg_context *context = nullptr;
  gfxg_pipeline *pipeline = nullptr;
  void *graph = nullptr;
  RT(GraphExec_t) exec = nullptr;
  RT(GraphNode_t) node = nullptr;
  size_t one = 1;
  TRY(RT(StreamCreateWithFlags)(&stream, 1));
  if (!(x = device_memory())) return 3;
  TRY(gfxg_open(nullptr, &context));
  TRY(gfxg_capture(context, record, nullptr, &graph));
  TRY(gfxg_pipeline_create(context, graph, &pipeline));
  TRY(RT(GraphInstantiateWithFlags)(&exec, static_cast<RT(Graph_t)>(graph), 0));
  TRY(RT(GraphGetRootNodes)(static_cast<RT(Graph_t)>(graph), &node, &one));
  RT(KernelNodeParams) params{};
  TRY(RT(GraphKernelNodeGetParams)(node, &params));
  int value = 0;
  void *args[] = {&x, &x, &value, &n};
  params.kernelParams = args, params.extra = nullptr;
  gfxg_kernel change{nullptr, {1, 1, 1}, {N, 1, 1}, 0, args, nullptr};

  const bool is_pipeline = is("pipeline"), waits = is("waiting"), changes = !is("same") && !is("same_pipeline");
  std::function<void()> step;
  if (is("kernels")) step = [&] { launch_kernels(stream, value); };
  else if (is_pipeline) step = [&] {
    TRY(gfxg_pipeline_set_kernel(pipeline, node, &change));
    TRY(gfxg_pipeline_launch(pipeline, stream));
  };
  else if (is("same_pipeline")) step = [&] { TRY(gfxg_pipeline_launch(pipeline, stream)); };
  else if (waits || is("exec")) step = [&] {
    if (waits) TRY(RT(StreamSynchronize)(stream));
    TRY(RT(GraphExecKernelNodeSetParams)(exec, node, &params));
    TRY(RT(GraphLaunch)(exec, stream));
  };
  else if (is("same")) step = [&] { TRY(RT(GraphLaunch)(exec, stream)); };
  else return 2;

  unsigned sum = 0;
  double ns = 0, cpu_ns = 0;
  for (int timed = 0; timed < 2; timed++) {
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpu_begin = std::clock();
    for (int i = 0; i < (timed ? steps : warm_up); i++) {
      value = changes ? i : 0;
      sum += static_cast<unsigned>(value + count - 1);
      step();
    }
    cpu_ns = 1e9 * static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
    TRY(RT(StreamSynchronize)(stream));
    ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  }
  printf("ns_per_step %.1f\ncpu_ns_per_step %.1f\n", ns / steps, cpu_ns / steps);
  printf("right %d\n", first_of(x) == static_cast<int>(sum));
  gfxg_stats stats{};
  stats.nbytes = sizeof stats;
  TRY(gfxg_get_stats(context, &stats));
  printf("waits %llu\n", static_cast<unsigned long long>(stats.waits));
  TRY(gfxg_pipeline_destroy(pipeline));
  TRY(RT(GraphExecDestroy)(exec));
  TRY(gfxg_graph_destroy(context, graph));
  TRY(gfxg_close(context));
  return 0;
}
