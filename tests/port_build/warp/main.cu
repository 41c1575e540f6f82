// Runs every kernel on the device: nvcc main.cu, or hipcc through the stand-in toolkit. One line a kernel and block: its
// name, the threads, how many have another value than reference.h says, and a number made of all values (FNV-1a).
#include <cstdio>

#include "kernels.cu"
#include "reference.h"

int main() {
  int wrong = 0;
  for (int threads : {32, 64, 96, 1024}) {
    Values in = inputs(threads), out(threads);
    int *from, *to;
    if (cudaMalloc(&from, threads * 4) != cudaSuccess || cudaMalloc(&to, threads * 4) != cudaSuccess) return 2;
    if (cudaMemcpy(from, in.data(), threads * 4, cudaMemcpyHostToDevice) != cudaSuccess) return 2;
#define RUN(name)                                                                                       \
  name<<<1, threads>>>(from, to);                                                                       \
  if (cudaMemcpy(out.data(), to, threads * 4, cudaMemcpyDeviceToHost) != cudaSuccess) return 2;         \
  printf("%s %d %d %08x\n", #name, threads, failures(#name, in, out), digest(out));                     \
  wrong += failures(#name, in, out) != 0;
    KERNELS(RUN)
    if (cudaFree(from) != cudaSuccess || cudaFree(to) != cudaSuccess) return 2;
  }
  return wrong != 0;
}
