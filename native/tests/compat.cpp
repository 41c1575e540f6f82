// A program that calls every graph function of libcudart 12 and 13, with only HIP in the process.
//
//   compat LIBRARY RUNTIME [every]
//
// Without `every` it prints the symbol report last; a wrong answer is a line `wrong ...`.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../compat/cuda_abi.h"

static struct {
#define CUDA_SAME(name, hip, params, args) cudaError_t(*name) params;
#define CUDA_CONVERTED(name, params, args) cudaError_t(*name) params;
#define CUDA_BRIDGED(name, params, args) cudaError_t(*name) params;
#define CUDA_REFUSED(name, params, args) cudaError_t(*name) params;
#define CUDA_PTSZ(name, plain, params, args) cudaError_t(*name) params;
#include "../compat/cuda.inc"
#define CUDA_12(name, plain, params, args) cudaError_t(*name##_of_12) params;
#include "../compat/cuda.inc"
  size_t (*gfxgraph_compat_report)(char *, size_t);
  hipError_t (*hipStreamCreateWithFlags)(hipStream_t *, unsigned);
  hipError_t (*hipStreamDestroy)(hipStream_t);
  hipError_t (*hipEventCreate)(hipEvent_t *);
  hipError_t (*hipEventDestroy)(hipEvent_t);
  hipError_t (*hipEventRecord)(hipEvent_t, hipStream_t);
  hipError_t (*hipStreamWaitEvent)(hipStream_t, hipEvent_t, unsigned);
  hipError_t (*hipMemsetAsync)(void *, int, size_t, hipStream_t);
  hipError_t (*hipLaunchKernel)(const void *, dim3, dim3, void **, size_t, hipStream_t);
  hipFunction_t (*fake_function_add_to)();
  const void *(*fake_stub_add_to)();
  void (*fake_fail)(long, int, const char *);
  const char *(*fake_refused)();
  int (*fake_live_graphs)(), (*fake_live_execs)(), (*fake_live_others)();
} rt;

static bool fill(const char *library, const char *runtime) {
  void *cuda = dlopen(library, RTLD_NOW | RTLD_LOCAL), *hip = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
  if (!cuda || !hip) return fprintf(stderr, "%s\n", dlerror()), false;
  bool all = true;
  auto fetch = [&](const char *name, const char *version) {
    void *found = dlvsym(cuda, name, version);
    if (!found) all = false, printf("absent %s@%s\n", name, version);
    return found;
  };
#define FETCH(slot, name, version) rt.slot = reinterpret_cast<decltype(rt.slot)>(fetch(name, "libcudart.so." version))
#define CUDA_SAME(name, hip, params, args) FETCH(name, #name, "12"), FETCH(name, #name, "13");
#define CUDA_CONVERTED(name, params, args) FETCH(name, #name, "12"), FETCH(name, #name, "13");
#define CUDA_BRIDGED(name, params, args) FETCH(name, #name, "12"), FETCH(name, #name, "13");
#define CUDA_CHANGED(name, params, args) FETCH(name, #name, "13");
#define CUDA_REFUSED(name, params, args) FETCH(name, #name, "12"), FETCH(name, #name, "13");
#define CUDA_PTSZ(name, plain, params, args) FETCH(name, #name, "12"), FETCH(name, #name, "13");
#define CUDA_PTSZ_CHANGED(name, plain, params, args) FETCH(name, #name, "13");
#define CUDA_12(name, plain, params, args) FETCH(name##_of_12, #name, "12");
#include "../compat/cuda.inc"
  rt.gfxgraph_compat_report = reinterpret_cast<decltype(rt.gfxgraph_compat_report)>(dlsym(cuda, "gfxgraph_compat_report"));
#define TAKE(name) rt.name = reinterpret_cast<decltype(rt.name)>(dlsym(hip, #name))
  TAKE(hipStreamCreateWithFlags), TAKE(hipStreamDestroy), TAKE(hipEventCreate), TAKE(hipEventDestroy);
  TAKE(hipEventRecord), TAKE(hipStreamWaitEvent), TAKE(hipMemsetAsync), TAKE(hipLaunchKernel);
  TAKE(fake_function_add_to), TAKE(fake_stub_add_to), TAKE(fake_fail), TAKE(fake_refused);
  TAKE(fake_live_graphs), TAKE(fake_live_execs), TAKE(fake_live_others);
  return all;
}

static int n_refused;  // calls that should have worked
static bool quiet;
// A call that must answer `wanted`; with a failure planted any answer but a crash is right.
#define IS(wanted, call)                                                                       \
  [&] {                                                                                        \
    const int got = rt.call;                                                                   \
    if (got != (wanted)) {                                                                     \
      n_refused++;                                                                             \
      if (!quiet) printf("wrong %s: %d, not %d\n", #call, got, static_cast<int>(wanted));      \
    }                                                                                          \
    return got == 0;                                                                           \
  }()
#define OK(call) IS(0, call)
static void same(const char *what, long got, long wanted) {
  if (got == wanted) return;
  n_refused++;
  if (!quiet) printf("wrong %s: %ld, not %ld\n", what, got, wanted);
}

constexpr int N = 100, kUnsupported = 801;
static int a[N], b[N], c[N], n_host;
static hipStream_t stream;
static void on_host(void *) { n_host++; }
static void on_gone(void *what) { ++*static_cast<int *>(what); }

struct Add {
  int *out;
  const int *in;
  int value, n;
  void *slots[4] = {&out, &in, &value, &n};
  cudaKernelNodeParams params() {
    return {const_cast<void *>(rt.fake_stub_add_to()), {2, 1, 1}, {64, 1, 1}, 0, slots, nullptr};
  }
};
static cudaMemcpy3DParms copy_of(void *dst, void *src) {
  cudaMemcpy3DParms p{};
  p.srcPtr.ptr = src, p.dstPtr.ptr = dst, p.extent = {sizeof b, 1, 1}, p.kind = 3;
  return p;
}

static void kernels() {
  cudaGraph_t g = nullptr;
  cudaGraphExec_t e = nullptr;
  cudaGraphNode_t set = nullptr, add = nullptr, more = nullptr, found;
  if (!OK(cudaGraphCreate(&g, 0))) return;
  cudaMemsetParams fill{b, 0, 0x01010101, 4, N, 1}, fill_back{};
  Add first{c, b, 5, N}, second{c, c, 100, N};
  cudaKernelNodeParams p = first.params(), back{};
  int type = -1;
  struct { alignas(16) int *out; const int *in; int value, n; } packed{c, c, 1000, N};
  size_t nbytes = 24;
  void *extra[] = {reinterpret_cast<void *>(2), &nbytes, reinterpret_cast<void *>(1), &packed, nullptr};
  if (OK(cudaGraphAddMemsetNode(&set, g, nullptr, 0, &fill)) && OK(cudaGraphAddKernelNode(&add, g, &set, 1, &p))) {
    p = second.params();
    if (!OK(cudaGraphAddKernelNode(&more, g, &add, 1, &p))) more = nullptr;
    if (OK(cudaGraphKernelNodeGetParams(add, &back))) {
      same("blockDim", back.blockDim.x, 64), same("gridDim", back.gridDim.x, 2);
      same("argument", *static_cast<int *>(back.kernelParams[2]), 5);
    }
    if (OK(cudaGraphMemsetNodeGetParams(set, &fill_back)))
      same("width", static_cast<long>(fill_back.width), N), same("element", fill_back.elementSize, 4);
    if (OK(cudaGraphNodeGetType(set, &type))) same("memset type", type, 2);
    // Arguments in one buffer, with CUDA's order and end.
    p = {rt.fake_function_add_to(), {2, 1, 1}, {64, 1, 1}, 0, nullptr, extra};
    if (more) OK(cudaGraphKernelNodeSetParams(more, &p));
    if (OK(cudaGraphInstantiate(&e, g, 0))) {
      if (OK(cudaGraphLaunch(e, stream)) && more) same("first launch", c[0], 0x01010101 + 5 + 1000);
      first.value = 6, p = first.params(), fill.value = 7;
      if (OK(cudaGraphExecKernelNodeSetParams(e, add, &p)) && OK(cudaGraphExecMemsetNodeSetParams(e, set, &fill)) &&
          OK(cudaGraphLaunch_ptsz(e, nullptr)) && more)
        same("second launch", c[0], 7 + 6 + 1000);
      unsigned on = 9;
      if (more && OK(cudaGraphNodeSetEnabled(e, more, 0)) && OK(cudaGraphNodeGetEnabled(e, more, &on)) &&
          OK(cudaGraphLaunch(e, reinterpret_cast<cudaStream_t>(1))))
        same("disabled", on, 0), same("without the last", c[0], 13);
      OK(cudaGraphExecDestroy(e));
    }
    fill.value = 3;
    OK(cudaGraphMemsetNodeSetParams(set, &fill));
    long value[8] = {42}, read[8] = {};
    auto *v = reinterpret_cast<cudaKernelNodeAttrValue *>(value), *r = reinterpret_cast<cudaKernelNodeAttrValue *>(read);
    if (OK(cudaGraphKernelNodeSetAttribute(add, 8, v)) && more && OK(cudaGraphKernelNodeCopyAttributes(more, add)) &&
        OK(cudaGraphKernelNodeGetAttribute(more, 8, r)))
      same("attribute, to and from", read[0], 42);
    IS(kUnsupported, cudaGraphKernelNodeSetAttribute(add, 4, v));
    IS(kUnsupported, cudaGraphKernelNodeGetAttribute(add, 4, r));
    cudaGraph_t clone = nullptr;
    if (OK(cudaGraphClone(&clone, g))) {
      OK(cudaGraphNodeFindInClone(&found, add, clone));
      OK(cudaGraphDestroy(clone));
    }
  }
  OK(cudaGraphDestroy(g));
}

static void copies_and_hosts() {
  cudaGraph_t g = nullptr;
  cudaGraphExec_t e = nullptr;
  cudaGraphNode_t n[8] = {};
  if (!OK(cudaGraphCreate(&g, 0))) return;
  static int symbol[N];
  cudaMemcpy3DParms p = copy_of(b, a), back{};
  cudaHostNodeParams host{on_host, nullptr}, host_back{};
  OK(cudaGraphAddMemcpyNode(&n[0], g, nullptr, 0, &p));
  OK(cudaGraphAddMemcpyNode1D(&n[1], g, nullptr, 0, c, a, sizeof c, 3));
  OK(cudaGraphAddMemcpyNodeToSymbol(&n[2], g, nullptr, 0, symbol, a, 40, 4, 3));
  OK(cudaGraphAddMemcpyNodeFromSymbol(&n[3], g, n[2] ? &n[2] : nullptr, n[2] ? 1 : 0, b, symbol, 4, 4, 3));
  OK(cudaGraphAddHostNode(&n[4], g, nullptr, 0, &host));
  OK(cudaGraphAddEmptyNode(&n[5], g, nullptr, 0));
  if (n[0] && n[1] && n[2] && n[3] && n[4]) {
    if (OK(cudaGraphMemcpyNodeGetParams(n[0], &back))) same("source", back.srcPtr.ptr == a, 1);
    if (OK(cudaGraphHostNodeGetParams(n[4], &host_back))) same("host", host_back.fn == on_host, 1);
    OK(cudaGraphHostNodeSetParams(n[4], &host));
    OK(cudaGraphMemcpyNodeSetParams(n[0], &p));
    OK(cudaGraphMemcpyNodeSetParams1D(n[1], c, a, sizeof c, 3));
    OK(cudaGraphMemcpyNodeSetParamsToSymbol(n[2], symbol, a, 40, 4, 3));
    OK(cudaGraphMemcpyNodeSetParamsFromSymbol(n[3], b, symbol, 4, 4, 3));
    cudaGraphInstantiateParams ip{2, stream, nullptr, 9};  // upload
    if (OK(cudaGraphInstantiateWithParams(&e, g, &ip))) {
      same("result", ip.result_out, 0);
      OK(cudaGraphExecMemcpyNodeSetParams(e, n[0], &p));
      OK(cudaGraphExecMemcpyNodeSetParams1D(e, n[1], c, a, sizeof c, 3));
      OK(cudaGraphExecMemcpyNodeSetParamsToSymbol(e, n[2], symbol, a, 40, 4, 3));
      OK(cudaGraphExecMemcpyNodeSetParamsFromSymbol(e, n[3], b, symbol, 4, 4, 3));
      OK(cudaGraphExecHostNodeSetParams(e, n[4], &host));
      OK(cudaGraphUpload(e, stream)), OK(cudaGraphUpload_ptsz(e, nullptr));
      n_host = 0;
      if (OK(cudaGraphLaunch(e, stream)))
        same("copied", c[N - 1], 20), same("symbol", symbol[1], 20), same("called", n_host, 1);
      OK(cudaGraphExecDestroy(e));
    }
    ip = {4, nullptr, nullptr, 0};
    IS(kUnsupported, cudaGraphInstantiateWithParams(&e, g, &ip));
    ip = {0, nullptr, nullptr, 0};
    if (OK(cudaGraphInstantiateWithParams_ptsz(&e, g, &ip))) OK(cudaGraphExecDestroy(e));
    IS(kUnsupported, cudaGraphInstantiateWithFlags(&e, g, 4));
    same("no handle", e == nullptr, 1);
    unsigned long long flags = 99;
    if (OK(cudaGraphInstantiateWithFlags(&e, g, 9))) {  // HIP takes only one
      if (OK(cudaGraphExecGetFlags(e, &flags))) same("flags", static_cast<long>(flags), 1);
      OK(cudaGraphExecDestroy(e));
    }
  }
  OK(cudaGraphDestroy(g));
}

static void shape() {
  cudaGraph_t g = nullptr, child = nullptr, inner = nullptr, other = nullptr;
  cudaGraphExec_t e = nullptr;
  cudaGraphNode_t n[3] = {}, from[8], to[8], kid = nullptr;
  if (!OK(cudaGraphCreate(&g, 0))) return;
  for (auto &each : n) OK(cudaGraphAddEmptyNode(&each, g, nullptr, 0));
  if (n[0] && n[1] && n[2]) {
    cudaGraphEdgeData plain[2] = {}, typed[2] = {{0, 0, 1, {}}, {}}, back[8];
    memset(back, 7, sizeof back);
    size_t count = 8;
    OK(cudaGraphAddDependencies(g, &n[0], &n[1], plain, 1));
    OK(cudaGraphAddDependencies_of_12(g, &n[1], &n[2], 1));
    OK(cudaGraphAddDependencies_v2_of_12(g, &n[0], &n[2], nullptr, 1));
    IS(kUnsupported, cudaGraphAddDependencies(g, &n[0], &n[2], typed, 1));
    if (OK(cudaGraphGetEdges(g, from, to, back, &count))) same("edges", static_cast<long>(count), 3), same("data", back[1].type, 0);
    count = 8, OK(cudaGraphGetEdges_of_12(g, from, to, &count)), same("edges, old form", static_cast<long>(count), 3);
    count = 8, OK(cudaGraphGetEdges_v2_of_12(g, from, to, nullptr, &count));
    count = 8, OK(cudaGraphNodeGetDependencies(n[2], from, back, &count)), same("before", static_cast<long>(count), 2);
    count = 8, OK(cudaGraphNodeGetDependencies_of_12(n[2], from, &count));
    count = 8, OK(cudaGraphNodeGetDependencies_v2_of_12(n[2], from, back, &count));
    count = 8, OK(cudaGraphNodeGetDependentNodes(n[0], from, back, &count)), same("after", static_cast<long>(count), 2);
    count = 8, OK(cudaGraphNodeGetDependentNodes_of_12(n[0], from, &count));
    count = 8, OK(cudaGraphNodeGetDependentNodes_v2_of_12(n[0], from, back, &count));
    count = 8, OK(cudaGraphGetRootNodes(g, from, &count)), same("roots", static_cast<long>(count), 1);
    OK(cudaGraphRemoveDependencies(g, &n[0], &n[2], nullptr, 1));
    OK(cudaGraphRemoveDependencies_of_12(g, &n[1], &n[2], 1));
    OK(cudaGraphAddDependencies(g, &n[1], &n[2], nullptr, 1));
    OK(cudaGraphRemoveDependencies_v2_of_12(g, &n[1], &n[2], plain, 1));
    IS(kUnsupported, cudaGraphRemoveDependencies(g, &n[0], &n[1], typed, 1));
    OK(cudaGraphDestroyNode(n[2]));
  }
  if (OK(cudaGraphCreate(&child, 0))) {
    cudaGraphNode_t leaf;
    cudaMemsetParams fill{b, 0, 9, 4, N, 1};
    OK(cudaGraphAddMemsetNode(&leaf, child, nullptr, 0, &fill));
    if (OK(cudaGraphAddChildGraphNode(&kid, g, nullptr, 0, child)) && OK(cudaGraphChildGraphNodeGetGraph(kid, &inner))) {
      size_t count = 0;
      OK(cudaGraphGetNodes(inner, nullptr, &count)), same("inside", static_cast<long>(count), 1);
      if (OK(cudaGraphInstantiate(&e, g, 0))) {
        OK(cudaGraphExecChildGraphNodeSetParams(e, kid, child));
        cudaGraphExecUpdateResultInfo info{9, nullptr, nullptr};
        if (OK(cudaGraphExecUpdate(e, g, &info))) same("update", info.result, 0);
        if (OK(cudaGraphCreate(&other, 0))) {
          IS(910, cudaGraphExecUpdate(e, other, &info)), same("topology", info.result, 2);
          OK(cudaGraphDestroy(other));
        }
        if (OK(cudaGraphLaunch(e, stream))) same("child ran", b[0], 9);
        OK(cudaGraphExecDestroy(e));
      }
    }
    OK(cudaGraphDestroy(child));
  }
  const char *folder = getenv("TMPDIR");
  std::string path = std::string(folder ? folder : P_tmpdir) + "/gfx_compat_XXXXXX";
  char text[64] = "";
  if (const int file = mkstemp(path.data()); file >= 0) {
    if (OK(cudaGraphDebugDotPrint(g, path.c_str(), 4 | 8)))  // HIP would take these two for none
      if (FILE *in = fopen(path.c_str(), "r"))
        same("dot", fgets(text, sizeof text, in) && strstr(text, "verbose"), 1), fclose(in);
    remove(path.c_str());
  }
  OK(cudaGraphDestroy(g));
}

static void any_kind() {
  cudaGraph_t g = nullptr, child = nullptr;
  cudaGraphExec_t e = nullptr;
  hipEvent_t event = nullptr, back = nullptr;
  if (!OK(cudaGraphCreate(&g, 0)) || rt.hipEventCreate(&event)) return;
  if (!OK(cudaGraphCreate(&child, 0))) child = nullptr;
  Add add{c, a, 50, N};
  std::vector<cudaGraphNodeParams> all;
  auto take = [&](int type) -> cudaGraphNodeParams & {
    all.emplace_back();
    memset(static_cast<void *>(&all.back()), 0, sizeof all.back());
    all.back().type = type;
    return all.back();
  };
  take(0).kernel = add.params();
  take(1).memcpy.copyParams = copy_of(b, a);
  take(2).memset = {b, 0, 1, 4, N, 1};
  take(3).host = {on_host, nullptr};
  take(4).graph = {child, 0};
  take(5);
  take(6).event = event;
  take(7).event = event;
  take(8), take(9), take(10);
  take(11).free = b;
  cudaGraphNode_t nodes[12] = {}, extra;
  cudaGraphEdgeData plain{}, typed{0, 0, 1, {}};
  for (size_t i = 0; i < all.size(); i++) OK(cudaGraphAddNode(&nodes[i], g, nullptr, nullptr, 0, &all[i]));
  OK(cudaGraphAddNode_of_12(&extra, g, nullptr, 0, &take(5)));
  OK(cudaGraphAddNode_v2_of_12(&extra, g, nodes[5] ? &nodes[5] : nullptr, &plain, nodes[5] ? 1 : 0, &all[5]));
  IS(kUnsupported, cudaGraphAddNode(&extra, g, &extra, &typed, 1, &all[5]));
  IS(kUnsupported, cudaGraphAddNode(&extra, g, nullptr, nullptr, 0, &take(13)));  // conditional
  cudaGraphNodeParams moved = all[4];
  moved.graph.ownership = 1;
  IS(kUnsupported, cudaGraphAddNode(&extra, g, nullptr, nullptr, 0, &moved));
  bool complete = true;
  for (auto *node : nodes) complete = complete && node;
  if (complete) {
    long alloc[15] = {};
    void *freed = nullptr;
    for (int i : {0, 1, 2, 3, 6, 7, 8, 9}) OK(cudaGraphNodeSetParams(nodes[i], &all[i]));
    IS(kUnsupported, cudaGraphNodeSetParams(nodes[11], &all[11]));
    if (OK(cudaGraphEventWaitNodeGetEvent(nodes[6], &back))) same("waits for", back == event, 1);
    if (OK(cudaGraphEventRecordNodeGetEvent(nodes[7], &back))) same("records", back == event, 1);
    OK(cudaGraphEventWaitNodeSetEvent(nodes[6], event)), OK(cudaGraphEventRecordNodeSetEvent(nodes[7], event));
    OK(cudaGraphMemAllocNodeGetParams(nodes[10], reinterpret_cast<cudaMemAllocNodeParams *>(alloc)));
    if (OK(cudaGraphMemFreeNodeGetParams(nodes[11], &freed))) same("frees", freed == b, 1);
    auto *s = reinterpret_cast<cudaExternalSemaphoreSignalNodeParams *>(&all[8].kernel);
    auto *w = reinterpret_cast<cudaExternalSemaphoreWaitNodeParams *>(&all[9].kernel);
    OK(cudaGraphExternalSemaphoresSignalNodeSetParams(nodes[8], s)), OK(cudaGraphExternalSemaphoresSignalNodeGetParams(nodes[8], s));
    OK(cudaGraphExternalSemaphoresWaitNodeSetParams(nodes[9], w)), OK(cudaGraphExternalSemaphoresWaitNodeGetParams(nodes[9], w));
    cudaGraphNode_t one;
    OK(cudaGraphAddEventRecordNode(&one, g, nullptr, 0, event)), OK(cudaGraphAddEventWaitNode(&one, g, nullptr, 0, event));
    OK(cudaGraphAddExternalSemaphoresSignalNode(&one, g, nullptr, 0, s));
    OK(cudaGraphAddExternalSemaphoresWaitNode(&one, g, nullptr, 0, w));
    OK(cudaGraphAddMemAllocNode(&one, g, nullptr, 0, reinterpret_cast<cudaMemAllocNodeParams *>(alloc)));
    OK(cudaGraphAddMemFreeNode(&one, g, nullptr, 0, b));
    if (OK(cudaGraphInstantiate(&e, g, 0))) {
      for (int i : {0, 1, 2, 3, 4, 6, 7, 8, 9}) OK(cudaGraphExecNodeSetParams(e, nodes[i], &all[i]));
      IS(kUnsupported, cudaGraphExecNodeSetParams(e, nodes[5], &all[5]));
      OK(cudaGraphExecEventRecordNodeSetEvent(e, nodes[7], event)), OK(cudaGraphExecEventWaitNodeSetEvent(e, nodes[6], event));
      OK(cudaGraphExecExternalSemaphoresSignalNodeSetParams(e, nodes[8], s));
      OK(cudaGraphExecExternalSemaphoresWaitNodeSetParams(e, nodes[9], w));
      if (OK(cudaGraphLaunch(e, stream))) same("any kind", c[0], 70);
      OK(cudaGraphExecDestroy(e));
    }
  }
  unsigned long value = 1;
  OK(cudaDeviceGetGraphMemAttribute(0, 1, &value)), OK(cudaDeviceSetGraphMemAttribute(0, 1, &value)), OK(cudaDeviceGraphMemTrim(0));
  cudaGraphConditionalHandle handle;
  unsigned id;
  unsigned long long tools;
  cudaGraph_t owner;
  IS(kUnsupported, cudaGraphConditionalHandleCreate(&handle, g, 0, 0));
  IS(kUnsupported, cudaGraphConditionalHandleCreate_v2(&handle, g, nullptr, 0, 0));
  IS(kUnsupported, cudaGraphGetId(g, &id)), IS(kUnsupported, cudaGraphExecGetId(e, &id));
  IS(kUnsupported, cudaGraphNodeGetLocalId(nodes[0], &id)), IS(kUnsupported, cudaGraphNodeGetToolsId(nodes[0], &tools));
  IS(kUnsupported, cudaGraphNodeGetContainingGraph(nodes[0], &owner));
  if (child) OK(cudaGraphDestroy(child));
  OK(cudaGraphDestroy(g));
  rt.hipEventDestroy(event);
}

static void objects() {
  cudaGraph_t g = nullptr;
  cudaUserObject_t object = nullptr;
  static int n_gone;
  n_gone = 0;
  if (!OK(cudaUserObjectCreate(&object, &n_gone, on_gone, 1, 1))) return;
  if (OK(cudaUserObjectRetain(object, 1))) OK(cudaUserObjectRelease(object, 1));
  if (OK(cudaGraphCreate(&g, 0))) {
    if (OK(cudaGraphRetainUserObject(g, object, 2, 0))) OK(cudaGraphReleaseUserObject(g, object, 1));
    same("held", n_gone, 0);
    OK(cudaGraphDestroy(g));
  }
  OK(cudaUserObjectRelease(object, 1));
}

static void captures() {
  cudaGraph_t g = nullptr, seen = nullptr;
  const cudaGraphNode_t *last = nullptr;
  const cudaGraphEdgeData *edges = nullptr;
  unsigned long long id = 0;
  size_t n = 0;
  int status = 9, mode = 1;
  OK(cudaThreadExchangeStreamCaptureMode(&mode)), OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaStreamIsCapturing(stream, &status)), OK(cudaStreamIsCapturing_ptsz(stream, &status)), same("not yet", status, 0);
  if (OK(cudaStreamBeginCapture(stream, 1))) {
    rt.hipMemsetAsync(b, 1, sizeof b, stream);
    if (OK(cudaStreamGetCaptureInfo(stream, &status, &id, &seen, &last, &edges, &n)) && status == 1)
      same("capturing", status, 1), same("frontier", static_cast<long>(n), 1), same("edge data", edges && !edges[0].type, 1);
    OK(cudaStreamGetCaptureInfo_of_12(stream, &status, &id));
    OK(cudaStreamGetCaptureInfo_v2_of_12(stream, &status, &id, &seen, &last, &n));
    OK(cudaStreamGetCaptureInfo_v3_of_12(stream, &status, &id, &seen, &last, &edges, &n));
    OK(cudaStreamGetCaptureInfo_ptsz(stream, &status, &id, &seen, &last, &edges, &n));
    OK(cudaStreamGetCaptureInfo_ptsz_of_12(stream, &status, &id));
    OK(cudaStreamGetCaptureInfo_v2_ptsz_of_12(stream, &status, &id, &seen, &last, &n));
    OK(cudaStreamGetCaptureInfo_v3_ptsz_of_12(stream, &status, &id, &seen, &last, &edges, &n));
    if (last && n == 1) {
      cudaGraphNode_t at = last[0];
      cudaGraphEdgeData typed{0, 0, 1, {}};
      OK(cudaStreamUpdateCaptureDependencies(stream, &at, nullptr, 1, 1));
      OK(cudaStreamUpdateCaptureDependencies_of_12(stream, &at, 1, 1));
      OK(cudaStreamUpdateCaptureDependencies_v2_of_12(stream, &at, nullptr, 1, 1));
      OK(cudaStreamUpdateCaptureDependencies_ptsz(stream, &at, nullptr, 1, 1));
      OK(cudaStreamUpdateCaptureDependencies_ptsz_of_12(stream, &at, 1, 1));
      OK(cudaStreamUpdateCaptureDependencies_v2_ptsz_of_12(stream, &at, nullptr, 1, 1));
      IS(kUnsupported, cudaStreamUpdateCaptureDependencies(stream, &at, &typed, 1, 1));
    }
    if (!OK(cudaStreamEndCapture(stream, &g))) same("null after a refusal", g == nullptr, 1), rt.cudaStreamEndCapture(stream, &g);
    if (g) {
      cudaGraphExec_t e = nullptr;
      if (OK(cudaGraphInstantiate(&e, g, 0))) {
        cudaGraph_t with_launch = nullptr;
        if (OK(cudaStreamBeginCapture_ptsz(stream, 1))) {
          IS(900, cudaGraphLaunch(e, stream));  // HIP would run it at once and say nothing
          if (!OK(cudaStreamEndCapture_ptsz(stream, &with_launch))) rt.cudaStreamEndCapture(stream, &with_launch);
          if (with_launch) OK(cudaGraphDestroy(with_launch));
        }
        OK(cudaGraphExecDestroy(e));
      }
      // Captured into: two more nodes.
      cudaGraphEdgeData typed{0, 0, 1, {}};
      cudaGraphNode_t root = nullptr;
      n = 1, OK(cudaGraphGetNodes(g, &root, &n));
      if (root) IS(kUnsupported, cudaStreamBeginCaptureToGraph(stream, g, &root, &typed, 1, 1));
      for (int i = 0; i < 2; i++) {
        const bool begun = i ? OK(cudaStreamBeginCaptureToGraph_ptsz(stream, g, nullptr, nullptr, 0, 1))
                             : OK(cudaStreamBeginCaptureToGraph(stream, g, root ? &root : nullptr, nullptr, root ? 1 : 0, 2));
        if (!begun) continue;
        if (!i) rt.hipMemsetAsync(c, 1, sizeof c, stream);
        cudaGraph_t same_graph = nullptr;
        if (!OK(cudaStreamEndCapture(stream, &same_graph))) rt.cudaStreamEndCapture(stream, &same_graph);
      }
      n = 0, OK(cudaGraphGetNodes(g, nullptr, &n)), same("captured into", static_cast<long>(n), 2);
      OK(cudaGraphDestroy(g));
    }
  }
  // A fork that nobody joins: refused as CUDA does, and the stream lives on.
  hipStream_t side = nullptr;
  hipEvent_t event = nullptr;
  rt.hipStreamCreateWithFlags(&side, 1), rt.hipEventCreate(&event);
  if (OK(cudaStreamBeginCapture(stream, 2))) {
    rt.hipMemsetAsync(b, 1, sizeof b, stream);
    rt.hipEventRecord(event, stream), rt.hipStreamWaitEvent(side, event, 0);
    rt.hipMemsetAsync(c, 1, sizeof c, side), rt.hipMemsetAsync(b, 2, sizeof b, stream);
    g = nullptr;
    IS(904, cudaStreamEndCapture(stream, &g));
    same("no graph of a loose fork", g == nullptr, 1);
    if (g) rt.cudaGraphDestroy(g);  // there was no fork, because making it was refused
    if (OK(cudaStreamIsCapturing(stream, &status))) same("ended", status, 0);
  }
  rt.hipStreamDestroy(side), rt.hipEventDestroy(event);
}

static void (*const scenarios[])() = {kernels, copies_and_hosts, shape, any_kind, objects, captures};

static int left_over() { return rt.fake_live_graphs() + rt.fake_live_execs() + rt.fake_live_others(); }

// Every call of every scenario is refused once: nothing crashes, nothing but what could not be removed
// stays, and the same scenario works right after.
static int every() {
  quiet = true;
  long total = 0, bad = 0, told = 0, left = 0;
  for (auto *scenario : scenarios) {
    for (long nth = 1;; nth++) {
      // A stream of its own: one that a refused end left capturing is not used again.
      if (rt.hipStreamCreateWithFlags(&stream, 1)) return 1;
      const int had = left_over();
      n_refused = 0;
      rt.fake_fail(nth, 2, nullptr);
      scenario();
      const std::string refused = rt.fake_refused();
      rt.fake_fail(0, 0, nullptr);
      if (refused.empty()) break;
      total++, told += n_refused > 0;
      if (left_over() != had) {
        left++;
        const char *removals[] = {"Destroy", "EndCapture", "Release"};
        bool removal = false;
        for (const char *each : removals) removal = removal || refused.find(each) != std::string::npos;
        if (!removal) bad++, printf("%ld %s: %d left\n", nth, refused.c_str(), left_over() - had);
      }
      rt.hipStreamCreateWithFlags(&stream, 1);
      const int now = left_over();
      n_refused = 0;
      scenario();
      if (n_refused || left_over() != now) bad++, printf("%ld %s: then %d wrong, %d left\n", nth, refused.c_str(), n_refused, left_over() - now);
    }
  }
  printf("calls %ld\ntold %ld\nleft %ld\nbad %ld\n", total, told, left, bad);
  return bad != 0;
}

int main(int argc, char **argv) {
  if (argc < 3 || !fill(argv[1], argv[2])) return 2;
  for (int &each : a) each = 20;
  if (argc > 3) return every();
  if (rt.hipStreamCreateWithFlags(&stream, 1)) return 3;
  for (auto *scenario : scenarios) scenario();
  rt.hipStreamDestroy(stream);
  printf("wrong_answers %d\nleft %d\n", n_refused, left_over());
  std::vector<char> text(rt.gfxgraph_compat_report(nullptr, 0) + 1);
  rt.gfxgraph_compat_report(text.data(), text.size());
  printf("report %s", text.data());
  return n_refused != 0;
}
