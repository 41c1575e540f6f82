// Calls of libcudart's graph functions as a file of bytes says, answered by libcudagraph_compat over HIP.
//
//   fuzz_compat LIBRARY RUNTIME FILE...
//
// Four bytes are one call: which, and three operands. Graphs, execs and nodes are live ones; structs have any kind,
// any numbers, and pointers that are ours or NULL. At the end everything is destroyed.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "../compat/cuda_abi.h"

static struct {
#define CUDA_SAME(name, hip, params, args) cudaError_t(*name) params;
#define CUDA_CONVERTED(name, params, args) cudaError_t(*name) params;
#define CUDA_BRIDGED(name, params, args) cudaError_t(*name) params;
#include "../compat/cuda.inc"
#define CUDA_12(name, plain, params, args) cudaError_t(*name##_of_12) params;
#include "../compat/cuda.inc"
  const void *(*fake_stub_add_to)();
  void (*fake_fail)(long, int, const char *);
} rt;

static bool fill(const char *library, const char *runtime) {
  void *cuda = dlopen(library, RTLD_NOW | RTLD_LOCAL), *hip = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
  if (!cuda || !hip) return fprintf(stderr, "%s\n", dlerror()), false;
  bool all = true;
  auto fetch = [&](const char *name, const char *version) {
    void *found = dlvsym(cuda, name, version);
    return all = all && found, found;
  };
#define FETCH(slot, name, version) rt.slot = reinterpret_cast<decltype(rt.slot)>(fetch(name, "libcudart.so." version))
#define CUDA_SAME(name, hip, params, args) FETCH(name, #name, "13");
#define CUDA_CONVERTED(name, params, args) FETCH(name, #name, "13");
#define CUDA_BRIDGED(name, params, args) FETCH(name, #name, "13");
#define CUDA_CHANGED(name, params, args) FETCH(name, #name, "13");
#define CUDA_12(name, plain, params, args) FETCH(name##_of_12, #name, "12");
#include "../compat/cuda.inc"
  rt.fake_stub_add_to = reinterpret_cast<decltype(rt.fake_stub_add_to)>(dlsym(hip, "fake_stub_add_to"));
  rt.fake_fail = reinterpret_cast<decltype(rt.fake_fail)>(dlsym(hip, "fake_fail"));
  return all && rt.fake_stub_add_to && rt.fake_fail;
}

constexpr unsigned kPlaces = 5;
static int a[64], b[64];
static cudaGraph_t graphs[kPlaces];
static cudaGraphExec_t execs[kPlaces];

static std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  size_t n = 0;
  if (rt.cudaGraphGetNodes(graph, nullptr, &n) != 0 || n > 4096) return {};
  std::vector<cudaGraphNode_t> found(n);
  if (n && rt.cudaGraphGetNodes(graph, found.data(), &n) != 0) return {};
  return found.resize(n), found;
}

// What a program may fill in for a node of any kind.
static void describe(cudaGraphNodeParams &out, unsigned kind, unsigned z, void **args) {
  memset(&out, 0, sizeof out);
  out.type = static_cast<int>(kind % 17) - 1;
  if (out.type == 0) {
    out.kernel = {const_cast<void *>(rt.fake_stub_add_to()), {1, 1, 1}, {64, 1, 1}, 0, args, nullptr};
  } else if (out.type == 1) {
    out.memcpy.copyParams.srcPtr = {b, sizeof b, sizeof b, 1}, out.memcpy.copyParams.dstPtr = {a, sizeof a, sizeof a, 1};
    out.memcpy.copyParams.extent = {z % sizeof a, 1, 1}, out.memcpy.copyParams.kind = 3;
  } else if (out.type == 2) {
    out.memset = {a, 0, z, 4, z % 64, 1};
  } else if (out.type == 3) {
    out.host = {[](void *) {}, nullptr};
  } else if (out.type == 4) {
    out.graph = {graphs[1 + z % (kPlaces - 1)], static_cast<int>(z % 3)};
  }
}

static void one(const unsigned char *call) {
  const unsigned x = 1 + call[1] % (kPlaces - 1), y = call[2], z = call[3];
  int *out = a, *in = b, value = 1, n = 64, type;
  void *args[] = {&out, &in, &value, &n};
  cudaGraphNodeParams params;
  describe(params, y, z, args);
  cudaGraphEdgeData edges[64] = {};
  edges[0].type = z & 64 ? 1 : 0;
  cudaGraphNode_t made = nullptr, from[64], to[64];
  size_t n_edges = z % 64;
  if (call[0] % 16 == 0) return void(graphs[x] || rt.cudaGraphCreate(&graphs[x], z & 32 ? 1 : 0));
  if (call[0] % 16 == 1) return rt.fake_fail(z, static_cast<int>(y) + 1, nullptr);
  if (call[0] % 16 == 2) return rt.fake_fail(0, 0, nullptr);
  if (!graphs[x]) return;
  const auto nodes = nodes_of(graphs[x]);
  cudaGraphNode_t node = nodes.empty() ? nullptr : nodes[y % nodes.size()];
  cudaGraphNode_t other = nodes.empty() ? nullptr : nodes[z % nodes.size()];
  const cudaGraphNode_t *after = node && (z & 2) ? &node : nullptr;
  switch (call[0] % 16) {
    case 3: rt.cudaGraphAddNode(&made, graphs[x], after, z & 4 ? edges : nullptr, after ? 1 : 0, z & 8 ? nullptr : &params); break;
    case 4: rt.cudaGraphAddNode_of_12(&made, graphs[x], after, after ? 1 : 0, z & 8 ? nullptr : &params); break;
    case 5: rt.cudaGraphGetEdges(graphs[x], z & 1 ? nullptr : from, z & 1 ? nullptr : to, z & 2 ? nullptr : edges, &n_edges); break;
    case 6: if (!execs[x]) rt.cudaGraphInstantiate(&execs[x], graphs[x], z % 16); break;
    case 7: if (execs[x]) rt.cudaGraphExecDestroy(execs[x]), execs[x] = nullptr; break;
    case 8: {
      cudaGraphExecUpdateResultInfo info;
      if (execs[x]) rt.cudaGraphExecUpdate(execs[x], graphs[1 + y % (kPlaces - 1)] ? graphs[1 + y % (kPlaces - 1)] : graphs[x], z & 1 ? nullptr : &info);
      break;
    }
    case 9: if (node) rt.cudaGraphNodeSetParams(node, z & 8 ? nullptr : &params); break;
    case 10: if (node && execs[x]) rt.cudaGraphExecNodeSetParams(execs[x], node, z & 8 ? nullptr : &params); break;
    case 11:
      if (!node || rt.cudaGraphNodeGetType(node, &type) != 0) break;
      if (type == 0) rt.cudaGraphKernelNodeGetParams(node, &params.kernel), rt.cudaGraphKernelNodeSetParams(node, z & 1 ? nullptr : &params.kernel);
      if (type == 2) rt.cudaGraphMemsetNodeGetParams(node, &params.memset), rt.cudaGraphMemsetNodeSetParams(node, z & 1 ? nullptr : &params.memset);
      break;
    case 12:
      if (node && other) rt.cudaGraphAddDependencies(graphs[x], &node, &other, z & 4 ? edges : nullptr, 1);
      break;
    case 13:
      if (node && other) rt.cudaGraphRemoveDependencies(graphs[x], &node, &other, z & 4 ? edges : nullptr, 1);
      break;
    case 14:
      if (node) rt.cudaGraphNodeGetDependencies(node, z & 1 ? nullptr : from, z & 2 ? nullptr : edges, &n_edges);
      if (execs[x]) rt.cudaGraphLaunch(execs[x], nullptr);
      break;
    case 15:
      if (execs[x]) rt.cudaGraphExecDestroy(execs[x]), execs[x] = nullptr;
      if (rt.cudaGraphDestroy(graphs[x]) == 0) graphs[x] = nullptr;
      break;
  }
}

int main(int argc, char **argv) {
  if (argc < 4 || !fill(argv[1], argv[2])) return 2;
  for (int i = 3; i < argc; i++) {
    unsigned char call[4];
    FILE *file = fopen(argv[i], "rb");
    if (!file) return fprintf(stderr, "%s cannot be opened\n", argv[i]), 2;
    while (fread(call, 1, sizeof call, file) == sizeof call) one(call);
    fclose(file);
    rt.fake_fail(0, 0, nullptr);
    for (unsigned x = 1; x < kPlaces; x++) {
      if (execs[x]) rt.cudaGraphExecDestroy(execs[x]), execs[x] = nullptr;
      if (graphs[x]) rt.cudaGraphDestroy(graphs[x]), graphs[x] = nullptr;
    }
  }
  return 0;
}
