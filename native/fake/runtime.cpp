// A libcudart that does what the real one does with graphs: fetch the driver's functions by name and version
// from cuGetProcAddress, and hand its arguments on. Built shared, and as an archive to link in.
//
// The names and versions are those that libcudart 13.0 asks for.
#include <dlfcn.h>

#include "../abi.h"

namespace {

using Get = hipError_t (*)(const char *, void **, int, uint64_t, int *);

template <class F>
F *driver(const char *name, int version) {
  static const Get get = [] {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? reinterpret_cast<Get>(dlsym(library, "cuGetProcAddress_v2")) : nullptr;
  }();
  void *found = nullptr;
  if (!get || get(name, &found, version, 0, nullptr)) return nullptr;
  return reinterpret_cast<F *>(found);
}

}  // namespace

#define CUDART(cuda, cu, version, params, args)                                        \
  extern "C" __attribute__((visibility("default"))) hipError_t cuda params {           \
    static auto *const real = driver<hipError_t params>(#cu, version);                 \
    return real ? real args : gfx::kLibraryInitFailed;                                 \
  }
CUDART(cudaStreamBeginCapture, cuStreamBeginCapture, 10010, (hipStream_t on, int mode), (on, mode))
CUDART(cudaStreamEndCapture, cuStreamEndCapture, 10000, (hipStream_t on, hipGraph_t *out), (on, out))
CUDART(cudaStreamCreateWithFlags, cuStreamCreate, 2000, (hipStream_t * out, unsigned flags), (out, flags))
CUDART(cudaStreamSynchronize, cuStreamSynchronize, 2000, (hipStream_t on), (on))
CUDART(cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040,
       (hipGraphExec_t * out, hipGraph_t graph, unsigned long long flags), (out, graph, flags))
CUDART(cudaGraphLaunch, cuGraphLaunch, 10000, (hipGraphExec_t exec, hipStream_t on), (exec, on))
CUDART(cudaGraphDestroy, cuGraphDestroy, 10000, (hipGraph_t graph), (graph))
CUDART(cudaGraphExecDestroy, cuGraphExecDestroy, 10000, (hipGraphExec_t exec), (exec))
CUDART(cudaMemsetAsync, cuMemsetD8Async, 3020, (void *dst, int value, size_t nbytes, hipStream_t on),
       (dst, value, nbytes, on))
CUDART(cudaLaunchHostFunc, cuLaunchHostFunc, 10000, (hipStream_t on, hipHostFn_t fn, void *data), (on, fn, data))

extern "C" __attribute__((visibility("default"))) hipError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes,
                                                                              int, hipStream_t on) {
  static auto *const real = driver<hipError_t(void *, const void *, size_t, hipStream_t)>("cuMemcpyDtoDAsync", 3020);
  return real ? real(dst, src, nbytes, on) : gfx::kLibraryInitFailed;
}
