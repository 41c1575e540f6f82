// Launches of the driver's before CUDA 4: block and arguments are set on the function, call by call.
#pragma once
#include <hip/hip_runtime_api.h>
#include <string.h>
#ifdef __cplusplus
#include <map>
#include <mutex>
struct cuda_old_launch {
  unsigned x = 1, y = 1, z = 1, shared = 0;
  size_t size = 0;
  char arguments[4096];
};
inline cuda_old_launch& cuda_launch_of(hipFunction_t function) {
  static std::mutex lock;
  static std::map<hipFunction_t, cuda_old_launch> known;
  std::lock_guard<std::mutex> held(lock);
  return known[function];
}
inline hipError_t cuFuncSetBlockShape(hipFunction_t function, int x, int y, int z) {
  cuda_old_launch& at = cuda_launch_of(function);
  at.x = x, at.y = y, at.z = z;
  return hipSuccess;
}
inline hipError_t cuFuncSetSharedSize(hipFunction_t function, unsigned bytes) {
  cuda_launch_of(function).shared = bytes;
  return hipSuccess;
}
inline hipError_t cuParamSetSize(hipFunction_t function, unsigned bytes) {
  if (bytes > sizeof(cuda_old_launch::arguments)) return hipErrorInvalidValue;
  cuda_launch_of(function).size = bytes;
  return hipSuccess;
}
inline hipError_t cuParamSetv(hipFunction_t function, int offset, void* value, unsigned bytes) {
  if (offset < 0 || offset + size_t(bytes) > sizeof(cuda_old_launch::arguments)) return hipErrorInvalidValue;
  memcpy(cuda_launch_of(function).arguments + offset, value, bytes);
  return hipSuccess;
}
inline hipError_t cuParamSeti(hipFunction_t function, int offset, unsigned value) {
  return cuParamSetv(function, offset, &value, sizeof(value));
}
inline hipError_t cuParamSetf(hipFunction_t function, int offset, float value) {
  return cuParamSetv(function, offset, &value, sizeof(value));
}
inline hipError_t cuLaunchGridAsync(hipFunction_t function, int width, int height, hipStream_t stream) {
  cuda_old_launch& at = cuda_launch_of(function);
  void* told[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, at.arguments, HIP_LAUNCH_PARAM_BUFFER_SIZE, &at.size,
                  HIP_LAUNCH_PARAM_END};
  return hipModuleLaunchKernel(function, width, height, 1, at.x, at.y, at.z, at.shared, stream, nullptr, told);
}
inline hipError_t cuLaunchGrid(hipFunction_t function, int width, int height) {
  return cuLaunchGridAsync(function, width, height, nullptr);
}
inline hipError_t cuLaunch(hipFunction_t function) { return cuLaunchGrid(function, 1, 1); }
#endif
