// <cuda/barrier>: a barrier in shared memory, and copies that are done at once. Lanes of one wavefront run together, so
// that one lane must not wait for what another does later in a branch of its own.
#pragma once
#include <hip/hip_runtime.h>
#if defined(__HIPCC__)
namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
template <size_t Alignment>
struct aligned_size_t {
  size_t value;
  __host__ __device__ explicit constexpr aligned_size_t(size_t bytes) : value(bytes) {}
  __host__ __device__ constexpr operator size_t() const { return value; }
};
// Those that are still awaited, below the phase in which they are: one word, which a block's threads change atomically.
template <thread_scope Scope>
class barrier {
 public:
  using arrival_token = unsigned;
  barrier() = default;
  __host__ __device__ barrier(unsigned expected) { set(expected); }
  __host__ __device__ void set(unsigned expected) { expected_ = left_ = expected, phase_ = 0; }
  __device__ arrival_token arrive(unsigned count = 1) {
    __threadfence();
    unsigned phase = __hip_atomic_load(&phase_, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
    if (atomicSub(&left_, count) == count) {
      atomicExch(&left_, expected_);
      __hip_atomic_store(&phase_, phase + 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
    }
    return phase;
  }
  __device__ void wait(arrival_token phase) const {
    while (__hip_atomic_load(&phase_, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == phase)
      __builtin_amdgcn_s_sleep(1);
  }
  __device__ void arrive_and_wait() { wait(arrive()); }
  __device__ void arrive_and_drop() {
    atomicSub(&expected_, 1u);
    (void)arrive();
  }

 private:
  unsigned expected_, left_, phase_;
};
template <thread_scope Scope>
__host__ __device__ inline void init(barrier<Scope>* made, unsigned expected) {
  made->set(expected);
}
template <class Size, class Barrier>
__device__ inline void memcpy_async(void* to, const void* from, Size bytes, Barrier&) {
  __builtin_memcpy(to, from, size_t(bytes));
}
template <class Group, class Size, class Barrier>
__device__ inline auto memcpy_async(const Group& group, void* to, const void* from, Size bytes, Barrier&)
    -> decltype(group.thread_rank(), void()) {
  for (size_t at = group.thread_rank(); at < size_t(bytes); at += group.size())
    static_cast<char*>(to)[at] = static_cast<const char*>(from)[at];
}
}  // namespace cuda
#endif
