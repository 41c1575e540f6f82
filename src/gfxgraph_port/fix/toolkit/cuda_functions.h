// Functions of CUDA's that HIP lacks or has behind a switch, in plain C++. Each that the sources use has its name below.
#include "cuda_warp.h"  // HIP's own headers first: their uses of what is redefined here are right as they are
#if defined(__HIPCC__) && !defined(CUDA_TO_HIP_FUNCTIONS)
#define CUDA_TO_HIP_FUNCTIONS

// Lanes of 8 or 16 bits in one register; `Lane` says whether they have a sign.
template <class Lane, class Op>
__device__ inline unsigned cuda_lanes(unsigned a, unsigned b, Op op) {
  unsigned made = 0;
  for (unsigned at = 0; at < 32; at += 8 * sizeof(Lane))
    made |= (unsigned(op(int(Lane(a >> at)), int(Lane(b >> at)))) & ((1u << 8 * sizeof(Lane)) - 1)) << at;
  return made;
}
template <class Lane>
__device__ inline int cuda_saturated(int value) {
  int most = Lane(-1) > 0 ? Lane(-1) : (1 << (8 * sizeof(Lane) - 1)) - 1, least = Lane(-1) > 0 ? 0 : -most - 1;
  return value > most ? most : value < least ? least : value;
}
#define CUDA_LANES(name, lane, value)                                                  \
  __device__ inline unsigned cuda_to_hip##name(unsigned first, unsigned second = 0) {  \
    return cuda_lanes<lane>(first, second, [](int a, int b) { return int(value); });   \
  }
#define CUDA_LANES_OF(n, sign, lane)                                     \
  CUDA_LANES(__vadd##sign##s##n, lane, cuda_saturated<lane>(a + b))      \
  CUDA_LANES(__vsub##sign##s##n, lane, cuda_saturated<lane>(a - b))      \
  CUDA_LANES(__vmax##sign##n, lane, a > b ? a : b)                       \
  CUDA_LANES(__vmin##sign##n, lane, a < b ? a : b)                       \
  CUDA_LANES(__vabsdiff##sign##n, lane, a > b ? a - b : b - a)           \
  CUDA_LANES(__vavg##sign##n, lane, (a + b + (a + b >= 0)) >> 1)         \
  CUDA_LANES(__vcmpgt##sign##n, lane, -(a > b))                          \
  CUDA_LANES(__vcmpge##sign##n, lane, -(a >= b))                         \
  CUDA_LANES(__vcmplt##sign##n, lane, -(a < b))                          \
  CUDA_LANES(__vcmple##sign##n, lane, -(a <= b))                         \
  CUDA_LANES(__vsetgt##sign##n, lane, a > b)                             \
  CUDA_LANES(__vsetge##sign##n, lane, a >= b)                            \
  CUDA_LANES(__vsetlt##sign##n, lane, a < b)                             \
  CUDA_LANES(__vsetle##sign##n, lane, a <= b)
#define CUDA_LANES_ANY(n, lane)                   \
  CUDA_LANES(__vadd##n, lane, a + b)              \
  CUDA_LANES(__vsub##n, lane, a - b)              \
  CUDA_LANES(__vcmpeq##n, lane, -(a == b))        \
  CUDA_LANES(__vcmpne##n, lane, -(a != b))        \
  CUDA_LANES(__vseteq##n, lane, a == b)           \
  CUDA_LANES(__vsetne##n, lane, a != b)           \
  CUDA_LANES(__vabs##n, lane, a < 0 ? -a : a)     \
  CUDA_LANES(__vneg##n, lane, -a)
CUDA_LANES_OF(4, s, signed char)
CUDA_LANES_OF(4, u, unsigned char)
CUDA_LANES_OF(2, s, short)
CUDA_LANES_OF(2, u, unsigned short)
CUDA_LANES_ANY(4, signed char)
CUDA_LANES_ANY(2, short)

__device__ inline int cuda_to_hip__dp4a(int a, int b, int c) {
  for (int at = 0; at < 32; at += 8) c += int((signed char)(a >> at)) * int((signed char)(b >> at));
  return c;
}
__device__ inline unsigned cuda_to_hip__dp4a(unsigned a, unsigned b, unsigned c) {
  for (int at = 0; at < 32; at += 8) c += (a >> at & 255) * (b >> at & 255);
  return c;
}
__device__ inline int cuda_to_hip__dp4a(char4 a, char4 b, int c) {
  return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__device__ inline unsigned cuda_to_hip__dp4a(uchar4 a, uchar4 b, unsigned c) {
  return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Hints to a cache. A load or store without the hint has the same meaning; HIP has some of them for half alone.
#define CUDA_LOAD(name)       \
  template <class T>          \
  __device__ inline T cuda_to_hip##name(const T* from) { return *from; }
#define CUDA_STORE(name)      \
  template <class T>          \
  __device__ inline void cuda_to_hip##name(T* to, T value) { *to = value; }
CUDA_LOAD(__ldcg)
CUDA_LOAD(__ldca)
CUDA_LOAD(__ldcs)
CUDA_LOAD(__ldlu)
CUDA_STORE(__stcg)
CUDA_STORE(__stcs)
CUDA_STORE(__stwb)
CUDA_STORE(__stwt)

__device__ inline __hip_bfloat162 cuda_to_hip__floats2bfloat162_rn(float x, float y) {
  return __float22bfloat162_rn(float2{x, y});
}
__device__ inline void cuda_to_hip__nanosleep(unsigned) { __builtin_amdgcn_s_sleep(1); }
__device__ inline void cuda_to_hip__trap() { __builtin_trap(); }
// Copies at once; a barrier follows where other threads read, as CUDA asks for it too.
__device__ inline void cuda_to_hip__pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
  __builtin_memcpy(to, from, size - zeros);
  __builtin_memset(static_cast<char*>(to) + size - zeros, 0, zeros);
}
__device__ inline void cuda_to_hip__pipeline_commit() {}
__device__ inline void cuda_to_hip__pipeline_wait_prior(size_t) {}
#endif
