// Calls of CUDA's that are functions of C++ too: memory by a pointer of any type, and what a device says of its warps.
#pragma once
#include <hip/hip_runtime_api.h>
#include <float.h>  // which CUDA's own header brings
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
template <class T>
inline hipError_t hipHostGetDevicePointer(T** to, void* host, unsigned flags) {
  return hipHostGetDevicePointer(reinterpret_cast<void**>(to), host, flags);
}
template <class T, class Symbol>
inline hipError_t hipGetSymbolAddress(T** to, const Symbol& symbol) {
  return hipGetSymbolAddress(reinterpret_cast<void**>(to), static_cast<const void*>(&symbol));
}
inline hipError_t hipGraphInstantiate(hipGraphExec_t* made, hipGraph_t graph, unsigned long long flags = 0) {
  return hipGraphInstantiateWithFlags(made, graph, flags);
}
#endif

#if defined(GFXGRAPH_NATIVE_WARP)
#define CUDA_TOLD_WARP(asked, told) told
#else
#define CUDA_TOLD_WARP(asked, told) ((asked) ? 32 : (told))
#endif
static inline hipError_t cuda_to_hipGetDeviceProperties(hipDeviceProp_t* found, int device) {
  hipError_t status = hipGetDeviceProperties(found, device);
  if (status == hipSuccess) found->warpSize = CUDA_TOLD_WARP(1, found->warpSize);
  return status;
}
static inline hipError_t cuda_to_hipDeviceGetAttribute(int* value, hipDeviceAttribute_t asked, int device) {
  hipError_t status = hipDeviceGetAttribute(value, asked, device);
  if (status == hipSuccess) *value = CUDA_TOLD_WARP(asked == hipDeviceAttributeWarpSize, *value);
  return status;
}
