// One struct, two layouts.
#pragma once

#include "cuda_abi.h"

namespace gfx {

inline hipKernelNodeParams to_hip(const cudaKernelNodeParams &c) {
  return {c.blockDim, c.extra, c.func, c.gridDim, c.kernelParams, c.sharedMemBytes};
}
inline cudaKernelNodeParams to_cuda(const hipKernelNodeParams &h) {
  return {h.func, h.gridDim, h.blockDim, h.sharedMemBytes, h.kernelParams, h.extra};
}
inline hipMemsetParams to_hip(const cudaMemsetParams &c) {
  return {c.dst, c.elementSize, c.height, c.pitch, c.value, c.width};
}
inline cudaMemsetParams to_cuda(const hipMemsetParams &h) {
  return {h.dst, h.pitch, h.value, h.elementSize, h.width, h.height};
}
inline hipGraphInstantiateParams to_hip(const cudaGraphInstantiateParams &c) {
  return {c.errNode_out, c.flags, c.result_out, c.uploadStream};
}

// Arguments in one buffer: both runtimes say 1 for the pointer and 2 for the size, but HIP ends the
// list with 3 and CUDA with 0, and HIP wants the pointer first.
constexpr uintptr_t kBuffer = 1, kSize = 2, kHipEnd = 3, kCudaEnd = 0;
struct Extra {
  void *entries[5];
};
inline bool read_extra(void **given, uintptr_t end, void **buffer, void **size) {
  *buffer = *size = nullptr;
  for (; given && reinterpret_cast<uintptr_t>(*given) != end; given += 2) {
    const uintptr_t what = reinterpret_cast<uintptr_t>(*given);
    if (what == kBuffer) *buffer = given[1];
    else if (what == kSize) *size = given[1];
    else return false;
  }
  return *buffer && *size;
}
inline Extra make_extra(void *buffer, void *size, uintptr_t end) {
  return {{reinterpret_cast<void *>(kBuffer), buffer, reinterpret_cast<void *>(kSize), size,
           reinterpret_cast<void *>(end)}};
}

}  // namespace gfx
