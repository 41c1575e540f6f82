// What libcudart has besides graphs, and the table that finds the device inside this library.
#include "../compat/compat.h"
#include "../compat/cuda_abi.h"
#include "device.h"

#define GFX_GRAPH(name, need, params, args) extern "C" hipError_t name params;
#include "../api.inc"
extern "C" const char *hipGetErrorName(hipError_t);
extern "C" const char *hipKernelNameRefByPtr(const void *, hipStream_t);

namespace gfx {

const Table *table() {
  static const Table all = [] {
    Table t{};
#define GFX_GRAPH(name, need, params, args) t.name = &::name;
#include "../api.inc"
    t.hipGetErrorName = &::hipGetErrorName;
    t.hipKernelNameRefByPtr = &::hipKernelNameRefByPtr;
    t.library = "libcudart.so.13";
    t.version = fake::world().profile->version;
    return t;
  }();
  return &all;
}

}  // namespace gfx

FAKE_API cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, 0; }
FAKE_API cudaError_t cudaGetLastError(void) { return hipGetLastError(); }
FAKE_API const char *cudaGetErrorName(cudaError_t status) {
  // CUDA's spelling.
  static thread_local std::string name;
  name = hipGetErrorName(status);
  return (name.replace(0, 3, "cuda")).c_str();
}
FAKE_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return hipStreamCreateWithFlags(out, flags);
}
FAKE_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return hipStreamSynchronize(stream); }
FAKE_API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return hipStreamDestroy(stream); }
FAKE_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  return hipEventCreateWithFlags(out, flags);
}
FAKE_API cudaError_t cudaEventDestroy(cudaEvent_t event) { return hipEventDestroy(event); }
FAKE_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return hipEventRecord(event, stream); }
FAKE_API cudaError_t cudaEventQuery(cudaEvent_t event) { return hipEventQuery(event); }
FAKE_API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return hipEventSynchronize(event); }
FAKE_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return hipStreamWaitEvent(stream, event, flags);
}
FAKE_API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, int kind, cudaStream_t stream) {
  return hipMemcpyAsync(dst, src, nbytes, kind, stream);
}
FAKE_API cudaError_t cudaMemsetAsync(void *dst, int value, size_t nbytes, cudaStream_t stream) {
  return hipMemsetAsync(dst, value, nbytes, stream);
}
FAKE_API cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **args, size_t shared,
                                      cudaStream_t stream) {
  return hipLaunchKernel(stub, grid, block, args, shared, stream);
}
FAKE_API cudaError_t cudaHostAlloc(void **out, size_t nbytes, unsigned flags) {
  return hipHostMalloc(out, nbytes, flags);
}
FAKE_API cudaError_t cudaFreeHost(void *memory) { return hipHostFree(memory); }
