// <cooperative_groups/reduce.h>, which HIP lacks: for tiles, whose size is a power of two.
#pragma once
#include <hip/hip_runtime.h>
#include <hip/hip_cooperative_groups.h>

namespace cooperative_groups {
#define CUDA_OPERATOR(name, value)                                             \
  template <class T>                                                           \
  struct name {                                                                \
    __host__ __device__ T operator()(T a, T b) const { return value; }         \
  };
CUDA_OPERATOR(plus, a + b)
CUDA_OPERATOR(less, b < a ? b : a)
CUDA_OPERATOR(greater, a < b ? b : a)
CUDA_OPERATOR(bit_and, a & b)
CUDA_OPERATOR(bit_or, a | b)
CUDA_OPERATOR(bit_xor, a ^ b)
#undef CUDA_OPERATOR
template <class Tile, class T, class Op>
__device__ inline T reduce(const Tile& tile, T value, Op op) {
  for (unsigned at = tile.size() / 2; at > 0; at /= 2) value = op(value, tile.shfl_xor(value, at));
  return value;
}
}  // namespace cooperative_groups
