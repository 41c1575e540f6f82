// Device memory with untouched bytes on both sides, for torch's CUDAPluggableAllocator.
//
// torch asks for whole segments. Each gets ZONE bytes before and behind, which nobody owns; Python
// fills them with a pattern and looks at them after each replay. The runtime is the one already in
// the process: libamdhip64, or libcuda, whose calls have the same shape.
//
// Built with plain g++ at first use; no SDK.

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace {
constexpr size_t ZONE = 65536;
int (*allocate)(void**, size_t) = nullptr;
int (*release)(void*) = nullptr;
int (*exchange_mode)(int*) = nullptr;

// A capture may be underway on this thread; allocating in it is allowed in relaxed mode only.
struct Relaxed {
    int mode = 2;
    Relaxed() { exchange_mode(&mode); }
    ~Relaxed() { exchange_mode(&mode); }
};
}  // namespace

extern "C" {

size_t gfxgraph_zone_nbytes() { return ZONE; }

// 0 where every function was found.
int gfxgraph_zone_open(const char* library, const char* alloc_name, const char* free_name, const char* mode_name) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (!handle) handle = dlopen(library, RTLD_NOW);
    if (!handle) return 1;
    allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(handle, alloc_name));
    release = reinterpret_cast<int (*)(void*)>(dlsym(handle, free_name));
    exchange_mode = reinterpret_cast<int (*)(int*)>(dlsym(handle, mode_name));
    return allocate && release && exchange_mode ? 0 : 2;
}

// Null where there is no memory: torch then raises its own error.
void* gfxgraph_zone_alloc(ssize_t nbytes, int, void*) {
    if (!allocate || nbytes < 0) return nullptr;
    Relaxed relaxed;
    void* base = nullptr;
    if (allocate(&base, static_cast<size_t>(nbytes) + 2 * ZONE) != 0 || !base) return nullptr;
    return static_cast<char*>(base) + ZONE;
}

void gfxgraph_zone_free(void* address, ssize_t, int, void*) {
    if (!address || !release) return;
    Relaxed relaxed;
    release(static_cast<char*>(address) - ZONE);
}
}
