// Callers that fetch functions by name: dlsym, hipGetProcAddress and cuGetProcAddress answer with our shims.
//
// Preloading reaches only what the dynamic linker binds. llama.cpp opens its backend with RTLD_LOCAL,
// Triton asks hipGetProcAddress; both would go around us. libcudart, shared or linked into the program,
// asks cuGetProcAddress for every function of the driver, and so does cudaGetDriverEntryPoint.
#include <dlfcn.h>

#include <cstring>

#include "../table.h"
#include "noted.h"

#define GFX_GRAPH(name, need, params, args) extern "C" hipError_t name params;
#define GFX_CALL(name, need, params, args)
#include "../api.inc"
#define GFX_WATCH(name, params, args) extern "C" hipError_t name params;
#include "../watch.inc"
#define GFX_CU(symbol, name, since, stream, arguments) extern "C" hipError_t symbol(...);
#include "../cuda.inc"
extern "C" hipError_t hipGetLastError(void);
extern "C" hipError_t hipPeekAtLastError(void);
extern "C" hipError_t hipGetProcAddress(const char *, void **, int, uint64_t, hipDriverProcAddressQueryResult *);
extern "C" hipError_t cuGetProcAddress(const char *, void **, int, uint64_t);
extern "C" hipError_t cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

namespace gfx {
namespace {

struct Shim {
  const char *name;
  void *address;
};
const Shim kShims[] = {
#define GFX_GRAPH(name, need, params, args) {#name, reinterpret_cast<void *>(&::name)},
#define GFX_CALL(name, need, params, args)
#include "../api.inc"
#define GFX_WATCH(name, params, args) {#name, reinterpret_cast<void *>(&::name)},
#include "../watch.inc"
#define GFX_CU(symbol, name, since, stream, arguments) {#symbol, reinterpret_cast<void *>(&::symbol)},
#include "../cuda.inc"
    {"hipGetLastError", reinterpret_cast<void *>(&::hipGetLastError)},
    {"hipPeekAtLastError", reinterpret_cast<void *>(&::hipPeekAtLastError)},
    {"hipGetProcAddress", reinterpret_cast<void *>(&::hipGetProcAddress)},
    {"cuGetProcAddress", reinterpret_cast<void *>(&::cuGetProcAddress)},
    {"cuGetProcAddress_v2", reinterpret_cast<void *>(&::cuGetProcAddress_v2)},
};

struct Row {
  const char *name;
  int since, stream;
  void *address;
};
const Row kDriver[] = {
#define GFX_CU(symbol, name, since, stream, arguments) {#name, since, stream, reinterpret_cast<void *>(&::symbol)},
#include "../cuda.inc"
    // From 12.0 on the short name means the form that has only flags.
    {"cuGraphInstantiate", 12000, 0, reinterpret_cast<void *>(&::cuGraphInstantiateWithFlags)},
    {"cuGetProcAddress", 11030, 0, reinterpret_cast<void *>(&::cuGetProcAddress)},
    {"cuGetProcAddress", 12000, 0, reinterpret_cast<void *>(&::cuGetProcAddress_v2)},
};

// What cuGetProcAddress stands for: the newest form that `version` knows, and of those the one for the
// per-thread default stream where it is asked for and there is one.
void *driver_shim(const char *name, int version, uint64_t flags) {
  constexpr uint64_t kPerThreadStream = 2;
  const Row *best = nullptr;
  for (const Row &row : kDriver) {
    if (strcmp(row.name, name) != 0 || row.since > version) continue;
    if (row.stream && !(flags & kPerThreadStream)) continue;
    if (!best || row.stream > best->stream || (row.stream == best->stream && row.since >= best->since)) best = &row;
  }
  return best ? best->address : nullptr;
}

void *shim_of(const char *name) {
  // Nearly every other lookup ends here.
  if (strncmp(name, "hip", 3) != 0 && strncmp(name, "cu", 2) != 0) return nullptr;
  for (const Shim &shim : kShims)
    if (!strcmp(shim.name, name)) return shim.address;
  return nullptr;
}

bool is_in_runtime(void *address) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) return false;
  const char *slash = strrchr(info.dli_fname, '/');
  const char *base = slash ? slash + 1 : info.dli_fname;
  return strncmp(base, "libamdhip64", 11) == 0 || strncmp(base, "libcuda.so", 10) == 0;
}

}  // namespace

using Dlsym = void *(*)(void *, const char *);

extern "C" {
// Filled by the first lookup; the assembly below jumps through it.
__attribute__((visibility("hidden"))) Dlsym gfx_real_dlsym = nullptr;

// The shim to answer with, or null to go on to the real dlsym with the caller's own arguments. Sanitizer
// runtimes look up names before they are ready, so this much must run without them.
__attribute__((visibility("hidden"), no_sanitize("address", "undefined"))) void *gfx_dlsym_answer(void *handle, const char *name) {
  if (!gfx_real_dlsym) {
    // By version: the plain name is ours. The second is the one before glibc 2.34.
    void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    gfx_real_dlsym = reinterpret_cast<Dlsym>(found);
  }
  // RTLD_DEFAULT finds the preloaded symbol by itself. RTLD_NEXT means "after the caller", which only
  // a jump can keep true.
  if (!name || handle == RTLD_DEFAULT || handle == RTLD_NEXT) return nullptr;
  void *shim = shim_of(name);
  if (!shim) return nullptr;
  void *theirs = gfx_real_dlsym(handle, name);
  // Only what is the runtime's: another library may export the same name for its own ends.
  return theirs && theirs != shim && is_in_runtime(theirs) ? shim : nullptr;
}
}

void *plain_dlsym(void *handle, const char *name) {
  if (!gfx_real_dlsym) gfx_dlsym_answer(handle, nullptr);
  return gfx_real_dlsym ? gfx_real_dlsym(handle, name) : nullptr;
}

}  // namespace gfx

#if defined(__x86_64__)
// The real dlsym looks at its return address to know who asks, so it is entered by a jump.
asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call gfx_dlsym_answer
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jne 1f
    movq gfx_real_dlsym(%rip), %rax
    jmp *%rax
1:  ret
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#endif

extern "C" __attribute__((visibility("default"))) hipError_t hipGetProcAddress(
    const char *symbol, void **out, int version, uint64_t flags, hipDriverProcAddressQueryResult *result) {
  // Not in the list: its answer is a function, and what matters is which one.
  using Real = hipError_t (*)(const char *, void **, int, uint64_t, hipDriverProcAddressQueryResult *);
  const gfx::Table *t = gfx::table();
  void *handle = t ? dlopen(t->library, RTLD_NOLOAD | RTLD_LAZY) : nullptr;
  Real real = handle ? reinterpret_cast<Real>(gfx::plain_dlsym(handle, "hipGetProcAddress")) : nullptr;
  if (handle) dlclose(handle);
  if (!real) return gfx::kLibraryInitFailed;
  const hipError_t status = real(symbol, out, version, flags, result);
  if (status || !symbol || !out || !*out) return status;
  if (!gfx::is_in_runtime(*out)) return status;
  // By the answer's own name: asked for a plain name, the runtime may give its per-thread-stream form.
  Dl_info info;
  const char *name = dladdr(*out, &info) && info.dli_sname ? info.dli_sname : symbol;
  if (void *shim = gfx::shim_of(name)) *out = shim;
  return status;
}

namespace {

template <class Real>
Real driver_lookup(const char *symbol) {
  const gfx::Table *t = gfx::cuda_table();
  void *handle = t ? dlopen(t->library, RTLD_NOLOAD | RTLD_LAZY) : nullptr;
  Real real = handle ? reinterpret_cast<Real>(gfx::plain_dlsym(handle, symbol)) : nullptr;
  if (handle) dlclose(handle);
  return real;
}

void answer(const char *symbol, void **out, int version, uint64_t flags, const void *caller) {
  if (!symbol || !out || !*out) return;
  if (void *shim = gfx::driver_shim(symbol, version, flags)) {
    *out = shim;
    gfx::note_asker(caller);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) hipError_t cuGetProcAddress(const char *symbol, void **out,
                                                                               int version, uint64_t flags) {
  using Real = hipError_t (*)(const char *, void **, int, uint64_t);
  const Real real = driver_lookup<Real>("cuGetProcAddress");
  if (!real) return gfx::kLibraryInitFailed;
  const hipError_t status = real(symbol, out, version, flags);
  if (!status) answer(symbol, out, version, flags, __builtin_return_address(0));
  return status;
}

extern "C" __attribute__((visibility("default"))) hipError_t cuGetProcAddress_v2(const char *symbol, void **out,
                                                                                  int version, uint64_t flags,
                                                                                  int *found) {
  using Real = hipError_t (*)(const char *, void **, int, uint64_t, int *);
  const Real real = driver_lookup<Real>("cuGetProcAddress_v2");
  if (!real) return gfx::kLibraryInitFailed;
  const hipError_t status = real(symbol, out, version, flags, found);
  if (!status) answer(symbol, out, version, flags, __builtin_return_address(0));
  return status;
}
