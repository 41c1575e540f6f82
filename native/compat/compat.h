// One CUDA call, answered by HIP.
#pragma once

#include <atomic>
#include <string>
#include <type_traits>

#include "../bridge/backend.h"
#include "../table.h"
#include "cuda_abi.h"

namespace gfx::compat {

// CUDA's statuses that we give ourselves.
enum : cudaError_t {
  kCudaInvalidValue = 1,
  kCudaInsufficientDriver = 35,  // there is no HIP runtime
  kCudaNotSupported = 801,
  kCudaStreamCaptureUnsupported = 900,
  kCudaUnknown = 999,
};
constexpr int kRefused = -2;  // by us, and explained already

// Every function of the list, and the same once more for libcudart 12's own.
enum class Cuda : int {
#define CUDA_SAME(name, hip, params, args) name,
#define CUDA_CONVERTED(name, params, args) name,
#define CUDA_BRIDGED(name, params, args) name,
#define CUDA_REFUSED(name, params, args) name,
#define CUDA_PTSZ(name, plain, params, args) name,
#include "cuda.inc"
#define CUDA_12(name, plain, params, args) name##_of_12,
#include "cuda.inc"
  kCount,
};
constexpr int kCudaCount = static_cast<int>(Cuda::kCount);

struct Counter {
  std::atomic<uint64_t> calls{0}, failures{0};
};
extern Counter counters[kCudaCount];

// The runtime, loaded if the process has none yet; null where there is none.
const Table *hip();
const Backend &backend();  // only after hip() answered

// HIP's status as CUDA numbers it. By name above 910, where the two part.
cudaError_t to_cuda_status(const Table &t, hipError_t status);

// Says once a function why it is refused, and answers kRefused.
int refuse(Cuda which, const char *problem);
void absent(Cuda which, const char *hip_name);
void no_runtime(Cuda which);
const char *name_of(Cuda which);

// CUDA's name for the legacy stream is 1; older HIP only knows null.
template <class T>
T adapt(T value) {
  if constexpr (std::is_same_v<T, cudaStream_t>)
    return reinterpret_cast<uintptr_t>(value) == 1 ? nullptr : value;
  else
    return value;
}

template <class F>
cudaError_t answer(Cuda which, const char *hip_name, const F &call) {
  Counter &counter = counters[static_cast<int>(which)];
  counter.calls.fetch_add(1, std::memory_order_relaxed);
  cudaError_t status;
  if (const Table *t = hip()) {
    const int hip_status = call(*t);
    if (hip_status == kAbsent) absent(which, hip_name);
    status = hip_status == kAbsent || hip_status == kRefused ? kCudaNotSupported : to_cuda_status(*t, hip_status);
  } else {
    no_runtime(which);
    status = kCudaInsufficientDriver;
  }
  if (status) counter.failures.fetch_add(1, std::memory_order_relaxed);
  return status;
}

template <class... P, class... A>
cudaError_t forward(Cuda which, const char *hip_name, hipError_t (*Table::*slot)(P...), A... args) {
  return answer(which, hip_name, [&](const Table &t) { return t.*slot ? (t.*slot)(adapt(args)...) : kAbsent; });
}

// What is not the same function with the same arguments: converted.cpp.
#define CUDA_CONVERTED(name, params, args) int do_##name params;
#define CUDA_BRIDGED(name, params, args) int do_##name params;
#include "cuda.inc"

std::string report();

}  // namespace gfx::compat
