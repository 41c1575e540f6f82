// The functions themselves, under both of libcudart's version names. No logic.
//
// A program that was linked with libcudart.so.12 asks for names of version libcudart.so.12, and some
// of those have other arguments than under libcudart.so.13. The loader tells the two apart; a lookup
// by dlsym gets 13.
#include "compat.h"

using namespace gfx;
using namespace gfx::compat;

#define GFX_UNPAREN(...) __VA_ARGS__
#define GFX_EXPORT extern "C" __attribute__((visibility("default"))) cudaError_t
#define GFX_IN_12(symbol, name) __asm__(".symver " #symbol "," #name "@libcudart.so.12")
#define GFX_IN_13(symbol, name) __asm__(".symver " #symbol "," #name "@@libcudart.so.13")

namespace {

// The per-thread forms: no stream means the thread's own.
template <class T>
T per_thread(T value) {
  if constexpr (std::is_same_v<T, cudaStream_t>) return value ? value : reinterpret_cast<cudaStream_t>(2);
  else return value;
}
template <class... P, class... A>
cudaError_t in_thread(cudaError_t (*plain)(P...), A... args) {
  return plain(per_thread(args)...);
}

}  // namespace

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define CUDA_SAME(name, hip, params, args)                           \
  GFX_EXPORT gfxc_##name params {                                    \
    return forward(Cuda::name, #hip, &Table::hip, GFX_UNPAREN args); \
  }                                                                  \
  GFX_IN_12(gfxc_##name, name);                                      \
  GFX_IN_13(gfxc_##name, name);
#define CUDA_CHANGED(name, params, args)                                             \
  GFX_EXPORT gfxc_##name params {                                                    \
    return answer(Cuda::name, #name, [&](const Table &) { return do_##name args; }); \
  }                                                                                  \
  GFX_IN_13(gfxc_##name, name);
#define CUDA_CONVERTED(name, params, args)                                           \
  GFX_EXPORT gfxc_##name params {                                                    \
    return answer(Cuda::name, #name, [&](const Table &) { return do_##name args; }); \
  }                                                                                  \
  GFX_IN_12(gfxc_##name, name);                                                      \
  GFX_IN_13(gfxc_##name, name);
#define CUDA_BRIDGED(name, params, args) CUDA_CONVERTED(name, params, args)
#define CUDA_REFUSED(name, params, args)                                                          \
  GFX_EXPORT gfxc_##name params {                                                                 \
    return answer(Cuda::name, #name, [&](const Table &) { return refuse(Cuda::name, nullptr); }); \
  }                                                                                               \
  GFX_IN_12(gfxc_##name, name);                                                                   \
  GFX_IN_13(gfxc_##name, name);
#include "cuda.inc"

#define CUDA_PTSZ_CHANGED(name, plain, params, args)                                       \
  GFX_EXPORT gfxc_##name params {                                                          \
    counters[static_cast<int>(Cuda::name)].calls.fetch_add(1, std::memory_order_relaxed);  \
    return in_thread(&gfxc_##plain, GFX_UNPAREN args);                                     \
  }                                                                                        \
  GFX_IN_13(gfxc_##name, name);
#define CUDA_PTSZ(name, plain, params, args)   \
  CUDA_PTSZ_CHANGED(name, plain, params, args) \
  GFX_IN_12(gfxc_##name, name);
#include "cuda.inc"

#define CUDA_12(name, plain, params, args)                                                      \
  GFX_EXPORT gfxe_##name params {                                                               \
    counters[static_cast<int>(Cuda::name##_of_12)].calls.fetch_add(1, std::memory_order_relaxed); \
    return gfxc_##plain args;                                                                   \
  }                                                                                             \
  GFX_IN_12(gfxe_##name, name);
#include "cuda.inc"
