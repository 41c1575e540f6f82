// Kernels of the C API's scenarios (tests/emulator/c_api_scenarios.py), launched by their host stubs.
#include <cuda_runtime.h>

__global__ void add_to(int *out, const int *in, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + value;
}

extern "C" int launch_add_to(int *out, const int *in, int value, int n, cudaStream_t stream) {
  add_to<<<(n + 63) / 64, 64, 0, stream>>>(out, in, value, n);
  return cudaGetLastError();
}
