// CUB, whose warps have 32 threads by default; hipCUB's have as many as the wavefront.
#pragma once
#include "cuda_to_hip.h"
#include "cuda_names_off.h"
#include <hipcub/hipcub.hpp>
#include "cuda_names_on.h"
#ifdef __HIPCC__
namespace cub {
using namespace hipcub;
template <class T, int Lanes = CUDA_WARP_WIDTH, int = 0>
using WarpReduce = hipcub::WarpReduce<T, Lanes>;
template <class T, int Lanes = CUDA_WARP_WIDTH, int = 0>
using WarpScan = hipcub::WarpScan<T, Lanes>;
template <class T, int Items, int Lanes = CUDA_WARP_WIDTH, int = 0>
using WarpExchange = hipcub::WarpExchange<T, Items, Lanes>;
template <class Key, int Items, int Lanes = CUDA_WARP_WIDTH, class Value = hipcub::NullType>
using WarpMergeSort = hipcub::WarpMergeSort<Key, Items, Lanes, Value>;
template <class T, int Items, WarpLoadAlgorithm How = WARP_LOAD_DIRECT, int Lanes = CUDA_WARP_WIDTH>
using WarpLoad = hipcub::WarpLoad<T, Items, How, Lanes>;
template <class T, int Items, WarpStoreAlgorithm How = WARP_STORE_DIRECT, int Lanes = CUDA_WARP_WIDTH>
using WarpStore = hipcub::WarpStore<T, Items, How, Lanes>;
__device__ inline unsigned LaneId() { return cuda_laneid(); }
}  // namespace cub
#endif
