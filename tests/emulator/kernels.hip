// Kernels of the emulator tests: launched by host stub (the functions below) and by module.
#include <hip/hip_runtime.h>

extern "C" __global__ void add_to(int *out, const int *in, int value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + value;
}

extern "C" __global__ void times_two(int *data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * 2;
}

extern "C" int launch_add_to(int *out, const int *in, int value, int n, hipStream_t stream) {
  add_to<<<(n + 63) / 64, 64, 0, stream>>>(out, in, value, n);
  return hipGetLastError();
}

extern "C" int launch_times_two(int *data, int n, hipStream_t stream) {
  times_two<<<(n + 63) / 64, 64, 0, stream>>>(data, n);
  return hipGetLastError();
}
