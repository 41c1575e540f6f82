// A wavefront on the CPU: what HIP's headers declare of lanes, so that the stand-in's own text runs under g++.
//
// Each thread of a block is a coroutine that runs until it shuffles, votes or waits. Of the lanes of a wavefront that
// wait, those go on together that stand at the same place, the earliest in the text first, as the hardware does with
// diverged lanes. A place is the stack of return addresses, which without optimization follow the text.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#define __HIPCC__ 1
#define GFXGRAPH_LANES 1
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline

namespace lanes {
typedef unsigned long long Word;
struct Lane {
  ucontext_t at;
  std::vector<char> stack = std::vector<char>(1 << 16);
  std::vector<void*> place;
  void* bottom = nullptr;
  enum { READY, WARP, BLOCK, DONE } state = READY;
  struct { unsigned x, y = 0, z = 0; } thread;
  Word value = 0, made = 0;
  int from = 0;  // the lane that is read; negative for a vote
};
inline int wave = 64;
inline std::vector<Lane> block;
inline Lane* now;
inline ucontext_t scheduler;
inline std::function<void()> kernel;

__attribute__((noinline)) inline Word wait(Word value, int from) {
  Lane& me = *now;
  me.value = value, me.from = from, me.state = Lane::WARP, me.place.clear();
  for (void** frame = (void**)__builtin_frame_address(0); frame != me.bottom; frame = (void**)*frame)
    me.place.insert(me.place.begin(), frame[1]);
  swapcontext(&me.at, &scheduler);
  return me.made;
}
inline void barrier() {
  Lane& me = *now;
  me.state = Lane::BLOCK;
  swapcontext(&me.at, &scheduler);
}
inline void enter() {
  now->bottom = __builtin_frame_address(0);
  kernel();
  now->state = Lane::DONE;
  swapcontext(&now->at, &scheduler);
}
inline bool step(int first) {  // the earliest lanes of one wavefront
  std::vector<Lane*> all;
  for (int i = first; i < std::min<int>(first + wave, block.size()); i++)
    if (block[i].state == Lane::WARP) all.push_back(&block[i]);
  if (all.empty()) return false;
  auto place = (*std::min_element(all.begin(), all.end(), [](Lane* a, Lane* b) { return a->place < b->place; }))->place;
  Word said = 0;
  std::vector<Lane*> active;
  for (Lane* lane : all)
    if (lane->place == place) active.push_back(lane), said |= Word(lane->value != 0) << (lane->thread.x - first);
  for (Lane* lane : active) {
    lane->made = lane->from < 0 ? said : 0xdeadbeef;  // a lane that does not run has nothing to read
    for (Lane* other : active)
      if (lane->from == int(other->thread.x) - first) lane->made = other->value;
    lane->state = Lane::READY;
  }
  return true;
}
inline void launch(int threads, std::function<void()> body) {
  kernel = body, block.clear(), block.resize(threads);
  for (int i = 0; i < threads; i++) {
    block[i].thread.x = i;
    getcontext(&block[i].at);
    block[i].at.uc_stack = {block[i].stack.data(), 0, block[i].stack.size()};
    makecontext(&block[i].at, enter, 0);
  }
  for (bool goes = true; goes;) {
    goes = false;
    for (Lane& lane : block)
      while (lane.state == Lane::READY) goes = true, now = &lane, swapcontext(&scheduler, &lane.at);
    for (int first = 0; first < threads; first += wave) goes |= step(first);
    if (goes) continue;
    for (Lane& lane : block)
      if (lane.state == Lane::BLOCK) goes = true, lane.state = Lane::READY;
  }
}
}  // namespace lanes

#define threadIdx (lanes::now->thread)
struct { operator unsigned() const { return lanes::block.size(); } } inline lanes_in_block;
struct { decltype(lanes_in_block) x; } inline blockDim;
inline unsigned __lane_id() { return threadIdx.x % lanes::wave; }
inline lanes::Word __ballot(int said) { return lanes::wait(said != 0, -1); }
inline void __syncthreads() { lanes::barrier(); }
#define __builtin_amdgcn_fence(...) (void)0
#define __builtin_amdgcn_wave_barrier() (void)lanes::wait(0, -1)
#define __builtin_amdgcn_s_sleep(n) (void)0

template <class T>
T lanes_read(T value, int lane) {
  lanes::Word word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = lanes::wait(word, lane);
  std::memcpy(&value, &word, sizeof value);
  return value;
}
// By HIP's manual: a lane outside the group of `width` reads itself.
template <class T>
T __shfl(T value, int lane, int width = lanes::wave) {
  return lanes_read(value, (lane & (width - 1)) + (int(__lane_id()) & ~(width - 1)));
}
template <class T>
T __shfl_up(T value, unsigned by, int width = lanes::wave) {
  int self = __lane_id(), lane = self - int(by);
  return lanes_read(value, lane < (self & ~(width - 1)) ? self : lane);
}
template <class T>
T __shfl_down(T value, unsigned by, int width = lanes::wave) {
  int self = __lane_id();
  return lanes_read(value, int((self & (width - 1)) + by) >= width ? self : self + int(by));
}
template <class T>
T __shfl_xor(T value, int by, int width = lanes::wave) {
  int self = __lane_id(), lane = self ^ by;
  return lanes_read(value, lane >= ((self + width) & ~(width - 1)) ? self : lane);
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline int __ffsll(unsigned long long v) { return __builtin_ffsll(v); }
inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
using std::max;
using std::min;

namespace cooperative_groups {
struct coalesced_group {
  lanes::Word mask;
  unsigned size() const { return __builtin_popcountll(mask); }
  unsigned thread_rank() const { return __builtin_popcountll(mask & ((1ull << __lane_id()) - 1)); }
};
inline coalesced_group coalesced_threads() { return {__ballot(1)}; }
inline coalesced_group binary_partition(const coalesced_group& group, bool said) {
  lanes::Word yes = __ballot(said) & group.mask;
  return {said ? yes : group.mask ^ yes};
}
}  // namespace cooperative_groups

// Names of HIP's that the stand-in's other headers speak of and no kernel here calls.
struct float2 { float x, y; };
struct char4 { signed char x, y, z, w; };
struct uchar4 { unsigned char x, y, z, w; };
struct __hip_bfloat162 {};
inline __hip_bfloat162 __float22bfloat162_rn(float2) { return {}; }
typedef int hipError_t;
typedef int hipDeviceAttribute_t;
struct hipDeviceProp_t { int warpSize; };
enum { hipSuccess, hipDeviceAttributeWarpSize };
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* found, int) { return found->warpSize = lanes::wave, 0; }
inline hipError_t hipDeviceGetAttribute(int* value, int, int) { return *value = lanes::wave, 0; }
inline hipError_t hipHostGetDevicePointer(void**, void*, unsigned) { return 0; }
inline hipError_t hipGetSymbolAddress(void**, const void*) { return 0; }
typedef void *hipGraph_t, *hipGraphExec_t;
inline hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t*, hipGraph_t, unsigned long long) { return 0; }
