// Device functions that HIP lacks and the stand-in toolkit writes, and a barrier of cuda/barrier: one line each, with its
// name and a number made of its values (FNV-1a). nvcc has CUDA's own; hipcc, and g++ on the CPU, the stand-in's.
#include <cuda_runtime.h>
#if !defined(GFXGRAPH_LANES)
#include <cuda/barrier>
#endif
#include <cstdio>

#include "reference.h"

#define SIGNS(X, name) X(name##s2) X(name##u2) X(name##s4) X(name##u4)
#define BOTH(X, name) X(name##2) X(name##4)
#define TWO(X)                                                                                                    \
  BOTH(X, __vadd) BOTH(X, __vsub) BOTH(X, __vcmpeq) BOTH(X, __vcmpne) BOTH(X, __vseteq) BOTH(X, __vsetne)         \
  BOTH(X, __vaddss) BOTH(X, __vaddus) BOTH(X, __vsubss) BOTH(X, __vsubus) SIGNS(X, __vmax) SIGNS(X, __vmin)       \
  SIGNS(X, __vabsdiff) SIGNS(X, __vavg) SIGNS(X, __vcmpgt) SIGNS(X, __vcmpge) SIGNS(X, __vcmplt)                  \
  SIGNS(X, __vcmple) SIGNS(X, __vsetgt) SIGNS(X, __vsetge) SIGNS(X, __vsetlt) SIGNS(X, __vsetle)
#define ONE(X) BOTH(X, __vabs) BOTH(X, __vneg)
#define OF_TWO(name) \
  __global__ void of##name(const int* a, const int* b, int* to) { to[threadIdx.x] = name(unsigned(a[threadIdx.x]), unsigned(b[threadIdx.x])); }
#define OF_ONE(name) \
  __global__ void of##name(const int* a, const int*, int* to) { to[threadIdx.x] = name(unsigned(a[threadIdx.x])); }
TWO(OF_TWO)
ONE(OF_ONE)
__global__ void dp4a_signed(const int* a, const int* b, int* to) { to[threadIdx.x] = __dp4a(a[threadIdx.x], b[threadIdx.x], 7); }
__global__ void dp4a_unsigned(const int* a, const int* b, int* to) {
  to[threadIdx.x] = int(__dp4a(unsigned(a[threadIdx.x]), unsigned(b[threadIdx.x]), 7u));
}
#if !defined(GFXGRAPH_LANES)
// Three rounds: each thread copies a value for its neighbour, all wait, and the neighbour reads it.
__global__ void barrier_rounds(const int* a, const int* b, int* to) {
  __shared__ cuda::barrier<cuda::thread_scope_block> ready;
  __shared__ int near[1024];
  if (threadIdx.x == 0) init(&ready, blockDim.x);
  __syncthreads();
  int made = b[threadIdx.x];
  for (int round = 0; round < 3; round++) {
    cuda::memcpy_async(&near[threadIdx.x], &a[(threadIdx.x + round) % blockDim.x], cuda::aligned_size_t<4>(4), ready);
    ready.arrive_and_wait();
    made = made * 31 + near[(threadIdx.x + 1) % blockDim.x];
    ready.wait(ready.arrive());
  }
  to[threadIdx.x] = made;
}
#define LAUNCH(name) name<<<1, 1024>>>(a, b, to); if (cudaDeviceSynchronize() != cudaSuccess) return 1
#else
#define LAUNCH(name) lanes::launch(1024, [&] { name(a, b, to); })
#endif

int main() {
  int *a, *b, *to;
  Values out(1024);
#if !defined(GFXGRAPH_LANES)
  for (int** p : {&a, &b, &to})
    if (cudaMallocManaged(p, 4096) != cudaSuccess) return 1;
#else
  Values given(2048);
  a = given.data(), b = a + 1024, to = out.data();
#endif
  unsigned state = 99, edges[] = {0, 0x80008000u, 0x7fff7fffu, 0x80808080u, 0x7f7f7f7fu, 0xffffffffu};
  auto draw = [&] { return (state = state * 1664525u + 1013904223u) ^ state >> 15; };
  for (int t = 0; t < 1024; t++) a[t] = t < 36 ? edges[t / 6] : draw(), b[t] = t < 36 ? edges[t % 6] : draw();
#define RUN(name) LAUNCH(name); out.assign(to, to + 1024), printf("%s %08x\n", #name, digest(out));
#define RUN_OF(name) RUN(of##name)
  TWO(RUN_OF)
  ONE(RUN_OF)
  RUN(dp4a_signed)
  RUN(dp4a_unsigned)
#if !defined(GFXGRAPH_LANES)
  RUN(barrier_rounds)
#endif
  return 0;
}
