// Kernels that think in warps of 32 lanes, each in the style of public CUDA code. Compiled as they stand by nvcc, by
// hipcc through the stand-in toolkit, and by g++ through lanes.h, which runs a wavefront's lanes on the CPU.
// Every kernel reads `in` and writes one value for each thread of a grid of one block; reference.h has CUDA's results.
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#define FULL 0xffffffff

__device__ int warp_sum(int v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(FULL, v, o);
  return v;
}
__device__ int warp_scan(int v) {
  for (int o = 1; o < 32; o *= 2) {
    int n = __shfl_up_sync(FULL, v, o);
    if ((threadIdx.x & 31) >= o) v += n;
  }
  return v;
}

// 1 to 4: broadcasts
__global__ void broadcast_first(const int* in, int* out) { out[threadIdx.x] = __shfl_sync(FULL, in[threadIdx.x], 0); }
__global__ void broadcast_last(const int* in, int* out) { out[threadIdx.x] = __shfl_sync(FULL, in[threadIdx.x], 31); }
__global__ void rotate(const int* in, int* out) {
  out[threadIdx.x] = __shfl_sync(FULL, in[threadIdx.x], (threadIdx.x + 1) % 32);
}
__global__ void broadcast_in_eights(const int* in, int* out) {
  out[threadIdx.x] = __shfl_sync(FULL, in[threadIdx.x], 3, 8);
}
// 5 to 9: reductions
__global__ void sum_down(const int* in, int* out) {
  int v = warp_sum(in[threadIdx.x]);
  out[threadIdx.x] = threadIdx.x % 32 == 0 ? v : 0;
}
__global__ void max_xor(const int* in, int* out) {
  int v = in[threadIdx.x];
  for (int o = 16; o; o /= 2) v = max(v, __shfl_xor_sync(FULL, v, o));
  out[threadIdx.x] = v;
}
__global__ void reduce_add(const int* in, int* out) { out[threadIdx.x] = __reduce_add_sync(FULL, in[threadIdx.x]); }
__global__ void sum_of_warp_size(const int* in, int* out) {
  int v = in[threadIdx.x];
  for (int o = warpSize / 2; o > 0; o /= 2) v += __shfl_xor_sync(FULL, v, o);
  out[threadIdx.x] = v * warpSize;
}
__global__ void block_sum(const int* in, int* out) {
  __shared__ int sums[32];
  int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize, warps = (blockDim.x + 31) / 32;
  int v = warp_sum(in[threadIdx.x]);
  if (lane == 0) sums[warp] = v;
  __syncthreads();
  v = 0;
  for (int i = 0; i < warps; i++) v += sums[i];
  out[threadIdx.x] = v;
}
// 10 and 11: scans
__global__ void scan_up(const int* in, int* out) { out[threadIdx.x] = warp_scan(in[threadIdx.x]); }
__global__ void exclusive_scan(const int* in, int* out) {
  int v = in[threadIdx.x];
  out[threadIdx.x] = warp_scan(v) - v;
}
// 12 to 15: votes and ballots
__global__ void any_all(const int* in, int* out) {
  out[threadIdx.x] = __any_sync(FULL, in[threadIdx.x] > 90) * 2 + __all_sync(FULL, in[threadIdx.x] < 97);
}
__global__ void ballot_rank(const int* in, int* out) {
  unsigned odd = __ballot_sync(FULL, in[threadIdx.x] & 1), lane = threadIdx.x & 31;
  out[threadIdx.x] = __popc(odd & ((1u << lane) - 1)) * 100 + __popc(odd);
}
__global__ void compact(const int* in, int* out) {
  unsigned big = __ballot_sync(FULL, in[threadIdx.x] > 50);
  int lane = threadIdx.x % 32, first = threadIdx.x - lane;
  out[threadIdx.x] = -1;
  __syncwarp();
  if (big >> lane & 1) out[first + __popc(big & ((1u << lane) - 1))] = in[threadIdx.x];
}
__global__ void first_voter(const int* in, int* out) {
  unsigned who = __ballot_sync(FULL, in[threadIdx.x] % 7 == 0);
  out[threadIdx.x] = who ? __shfl_sync(FULL, in[threadIdx.x], __ffs(who) - 1) : -1;
}
// 16 and 17: matched and segmented
__global__ void matched_sum(const int* in, int* out) {
  unsigned peers = __match_any_sync(FULL, in[threadIdx.x] % 3);
  int leader = __ffs(peers) - 1;
  int v = __reduce_add_sync(peers, in[threadIdx.x]);
  out[threadIdx.x] = __shfl_sync(peers, v, leader) + __popc(peers) * 10000;
}
__global__ void segmented_sum(const int* in, int* out) {
  int lane = threadIdx.x & 31, v = in[threadIdx.x];
  bool head = lane == 0 || in[threadIdx.x] % 5 == 0;
  unsigned heads = __ballot_sync(FULL, head);
  int start = 31 - __clz(heads & (0xffffffffu >> (31 - lane)));
  for (int o = 1; o < 32; o <<= 1) {
    int n = __shfl_up_sync(FULL, v, o);
    if (lane - o >= start) v += n;
  }
  out[threadIdx.x] = v;
}
// 18 to 20: divergent branches, groups
__global__ void active_in_branch(const int* in, int* out) {
  out[threadIdx.x] = 0;
  if (in[threadIdx.x] & 1) {
    unsigned mask = __activemask();
    int lane = threadIdx.x & 31;
    out[threadIdx.x] = __popc(mask) * 100 + __popc(mask & ((1u << lane) - 1));
  } else if (threadIdx.x % 32 < 20) {
    out[threadIdx.x] = -__popc(__activemask());
  }
}
__global__ void halves(const int* in, int* out) {
  unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffff : 0xffff0000;
  int v = in[threadIdx.x];
  if (threadIdx.x % 32 < 16) {
    for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(mask, v, o);
  } else {
    for (int o = 8; o; o >>= 1) v = min(v, __shfl_xor_sync(mask, v, o));
  }
  out[threadIdx.x] = v + (__any_sync(mask, in[threadIdx.x] == 96) ? 1000 : 0);
}
__global__ void aggregated(const int* in, int* out) {
  namespace cg = cooperative_groups;
  out[threadIdx.x] = -1;
  if (in[threadIdx.x] > 30) {
    auto group = cg::coalesced_threads();
    out[threadIdx.x] = group.thread_rank() * 100 + group.size();
  }
}
#define KERNELS(X)                                                                                               \
  X(broadcast_first) X(broadcast_last) X(rotate) X(broadcast_in_eights) X(sum_down) X(max_xor) X(reduce_add)     \
  X(sum_of_warp_size) X(block_sum) X(scan_up) X(exclusive_scan) X(any_all) X(ballot_rank) X(compact)             \
  X(first_voter) X(matched_sum) X(segmented_sum) X(active_in_branch) X(halves) X(aggregated)
