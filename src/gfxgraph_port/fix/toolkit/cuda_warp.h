// A warp as CUDA has it: 32 lanes and masks of 32 bits, on wavefronts of 64 too, where each half is a warp.
//
// Problem: HIP's shuffles, votes and warpSize follow the hardware, so code that thinks in 32 lanes compiles for a
// wavefront of 64 and is wrong there. Idea: threads of a block fill wavefronts in order, so that the lower and the upper
// half of a wavefront are CUDA's warps 2n and 2n + 1. Shuffles get a width of 32, votes look at the caller's half.
// With GFXGRAPH_NATIVE_WARP defined for a file a warp is the whole wavefront, and masks have a bit for each lane.
#ifndef CUDA_TO_HIP_WARP  // a torch extension can meet two copies
#define CUDA_TO_HIP_WARP
#include <hip/hip_runtime_api.h>
#ifndef HIP_ENABLE_WARP_SYNC_BUILTINS
#define HIP_ENABLE_WARP_SYNC_BUILTINS 1  // votes of cooperative groups
#endif
#if defined(__HIPCC__) && !defined(HIP_INCLUDE_HIP_HIP_RUNTIME_H) && !defined(GFXGRAPH_NATIVE_WARP)
#define CUDA_WARP_NAMED 1
#define warpSize cuda_to_hip_wavefront  // HIP's own; hipDeviceProp_t, above, keeps its member
#endif
#include <hip/hip_runtime.h>
#if defined(__HIPCC__)
#include <hip/hip_bf16.h>
#include <hip/hip_cooperative_groups.h>
#include <hip/hip_fp16.h>
#ifdef CUDA_WARP_NAMED
#undef warpSize
constexpr int warpSize = 32;
#endif

namespace std {  // nvcc takes it in device code
template <class T>
__device__ inline void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}
}  // namespace std

#ifdef GFXGRAPH_NATIVE_WARP
typedef unsigned long long cuda_warp_mask;
#define CUDA_WARP_WIDTH warpSize
__device__ inline unsigned cuda_warp_first() { return 0; }
// All 32 of CUDA's lanes are all that there are.
__device__ inline cuda_warp_mask cuda_warp_lanes(unsigned long long mask) {
  return mask == 0xffffffffull ? ~0ull : mask;
}
#else
typedef unsigned cuda_warp_mask;
#define CUDA_WARP_WIDTH 32
__device__ inline unsigned cuda_warp_first() { return __lane_id() & 32; }
__device__ inline cuda_warp_mask cuda_warp_lanes(unsigned long long mask) { return cuda_warp_mask(mask); }
#endif

__device__ inline cuda_warp_mask cuda_warp_vote(int said) { return cuda_warp_mask(__ballot(said) >> cuda_warp_first()); }
__device__ inline int cuda_warp_lowest(cuda_warp_mask lanes) { return __builtin_ctzll(lanes); }  // never none
template <class T>
__device__ inline T cuda_warp_from(T value, int lane) {
  return __shfl(value, lane, CUDA_WARP_WIDTH);
}

// What PTX reads from %laneid and %lanemask_*.
__device__ inline unsigned cuda_laneid() { return __lane_id() - cuda_warp_first(); }
__device__ inline cuda_warp_mask cuda_lanemask_eq() { return cuda_warp_mask(1) << cuda_laneid(); }
__device__ inline cuda_warp_mask cuda_lanemask_lt() { return cuda_lanemask_eq() - 1; }
__device__ inline cuda_warp_mask cuda_lanemask_le() { return cuda_lanemask_eq() | cuda_lanemask_lt(); }
__device__ inline cuda_warp_mask cuda_lanemask_gt() { return ~cuda_lanemask_le(); }
__device__ inline cuda_warp_mask cuda_lanemask_ge() { return ~cuda_lanemask_lt(); }

// Lanes of a wavefront run together, so that a shuffle needs no mask.
#define CUDA_SHUFFLE(name, type)                                                                        \
  template <class T>                                                                                    \
  __device__ inline T cuda_to_hip##name(T value, type lane, int width = CUDA_WARP_WIDTH) {              \
    return name(value, lane, width);                                                                    \
  }                                                                                                     \
  template <class T>                                                                                    \
  __device__ inline T cuda_to_hip##name##_sync(unsigned long long, T value, type lane,                  \
                                               int width = CUDA_WARP_WIDTH) {                           \
    return name(value, lane, width);                                                                    \
  }
CUDA_SHUFFLE(__shfl, int)
CUDA_SHUFFLE(__shfl_up, unsigned)
CUDA_SHUFFLE(__shfl_down, unsigned)
CUDA_SHUFFLE(__shfl_xor, int)
__device__ inline cuda_warp_mask cuda_to_hip__activemask() { return cuda_warp_vote(1); }
__device__ inline cuda_warp_mask cuda_to_hip__ballot(int said) { return cuda_warp_vote(said); }
__device__ inline int cuda_to_hip__any(int said) { return cuda_warp_vote(said) != 0; }
__device__ inline int cuda_to_hip__all(int said) { return cuda_warp_vote(!said) == 0; }
__device__ inline cuda_warp_mask cuda_to_hip__ballot_sync(unsigned long long mask, int said) {
  return cuda_warp_vote(said) & cuda_warp_lanes(mask);
}
__device__ inline int cuda_to_hip__any_sync(unsigned long long mask, int said) {
  return cuda_to_hip__ballot_sync(mask, said) != 0;
}
__device__ inline int cuda_to_hip__all_sync(unsigned long long mask, int said) {
  return cuda_to_hip__ballot_sync(mask, !said) == 0;
}
template <class T>
__device__ inline cuda_warp_mask cuda_to_hip__match_any_sync(unsigned long long mask, T value) {
  cuda_warp_mask same = 0;
  for (cuda_warp_mask lanes = cuda_to_hip__ballot_sync(mask, 1); lanes; lanes &= lanes - 1) {
    bool is_same = cuda_warp_from(value, cuda_warp_lowest(lanes)) == value;
    cuda_warp_mask found = cuda_to_hip__ballot_sync(mask, is_same);
    if (is_same) same = found;
  }
  return same;
}
template <class T>
__device__ inline cuda_warp_mask cuda_to_hip__match_all_sync(unsigned long long mask, T value, int* is_all) {
  cuda_warp_mask lanes = cuda_to_hip__ballot_sync(mask, 1);
  *is_all = cuda_to_hip__all_sync(mask, cuda_warp_from(value, cuda_warp_lowest(lanes)) == value);
  return *is_all ? lanes : 0;
}
// Only memory has to be ordered.
__device__ inline void cuda_to_hip__syncwarp(unsigned long long = 0) {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

// A reduction over the lanes of a mask, of which all that are active take part.
#define CUDA_REDUCE(name, type, value)                                                        \
  __device__ inline type cuda_to_hip##name(unsigned long long mask, type mine) {              \
    cuda_warp_mask lanes = cuda_to_hip__ballot_sync(mask, 1);                                 \
    type a = cuda_warp_from(mine, cuda_warp_lowest(lanes));                                   \
    for (lanes &= lanes - 1; lanes; lanes &= lanes - 1) {                                     \
      type b = cuda_warp_from(mine, cuda_warp_lowest(lanes));                                 \
      a = value;                                                                              \
    }                                                                                         \
    return a;                                                                                 \
  }
CUDA_REDUCE(__reduce_add_sync, int, a + b)
CUDA_REDUCE(__reduce_add_sync, unsigned, a + b)
CUDA_REDUCE(__reduce_min_sync, int, a < b ? a : b)
CUDA_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
CUDA_REDUCE(__reduce_max_sync, int, a > b ? a : b)
CUDA_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
CUDA_REDUCE(__reduce_and_sync, unsigned, a & b)
CUDA_REDUCE(__reduce_or_sync, unsigned, a | b)
CUDA_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

namespace cooperative_groups {
// The lanes of the caller's warp that run; HIP's takes the whole wavefront.
__device__ inline coalesced_group cuda_to_hip_coalesced_threads() {
#ifdef GFXGRAPH_NATIVE_WARP
  return coalesced_threads();
#else
  return binary_partition(coalesced_threads(), cuda_warp_first() != 0);
#endif
}
}  // namespace cooperative_groups
#endif
#endif  // CUDA_TO_HIP_WARP
