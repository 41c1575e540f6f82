// Every kernel on wavefronts of 32 and 64 lanes: kernel, wavefront, threads, threads whose value is not CUDA's, and a
// number made of all values.
#include "../kernels.cu"

#include <cstdio>

#include "../reference.h"

int main() {
  for (int wave : {32, 64})
    for (int threads : {32, 64, 96, 1024}) {
      lanes::wave = wave;
      Values in = inputs(threads), out(threads);
#define RUN(name)                                                           \
  lanes::launch(threads, [&] { name(in.data(), out.data()); });             \
  std::printf("%s %d %d %d %08x\n", #name, wave, threads, failures(#name, in, out), digest(out));
      KERNELS(RUN)
    }
  cudaDeviceProp found;
  int asked = 0;
  (void)cudaGetDeviceProperties(&found, 0);
  (void)cudaDeviceGetAttribute(&asked, cudaDevAttrWarpSize, 0);
  std::printf("host %d %d %d\n", found.warpSize, asked, int(warpSize));
}
