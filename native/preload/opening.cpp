// Libraries opened where names are bound otherwise: RTLD_DEEPBIND and dlmopen.
//
// A library opened with RTLD_DEEPBIND looks names up in itself and in what it needs before it looks where we are, so
// its calls, dlsym's included, would go around us. The flag is cleared, as sanitizers and memory profilers have it,
// unless GFXGRAPH_PRELOAD_DEEPBIND=keep. In a namespace of its own nothing of ours is there to be found, and that is
// told. The loader looks at who calls dlopen (for $ORIGIN, RUNPATH and the namespace), so both are entered by a jump.
#include <dlfcn.h>

#include "noted.h"
#include "settings.h"

#if defined(__x86_64__)

static_assert(LM_ID_BASE == 0, "the assembly's callers pass it as 64 bits");

namespace {

void *next(const char *name) {
  // By version: the plain name is ours. The second is the one before glibc 2.34.
  void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
  return found ? found : dlvsym(RTLD_NEXT, name, name[2] == 'm' ? "GLIBC_2.3.4" : "GLIBC_2.2.5");
}

}  // namespace

extern "C" {
// Filled by the first call; the assembly below jumps through them.
__attribute__((visibility("hidden"))) void *gfx_real_dlopen = nullptr, *gfx_real_dlmopen = nullptr;

// The flags to go on with. Sanitizer runtimes open libraries before they are ready.
__attribute__((visibility("hidden"), no_sanitize("address", "undefined"))) int gfx_flags_to_open(
    long space, const char *path, int flags) {
  if (!gfx_real_dlopen) {
    gfx_real_dlmopen = next("dlmopen");
    gfx_real_dlopen = next("dlopen");
  }
  if (!path || flags & RTLD_NOLOAD) return flags;
  if (space != LM_ID_BASE) {
    gfx::note(gfx::Noted::kApart, path);
  } else if (flags & RTLD_DEEPBIND) {
    const bool kept = gfx::settings().keep_deepbind;
    gfx::note(kept ? gfx::Noted::kDeep : gfx::Noted::kCleared, path);
    if (!kept) return flags & ~RTLD_DEEPBIND;
  }
  return flags;
}
}

asm(R"(
    .text
    .globl dlopen
    .type dlopen, @function
dlopen:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    movl %esi, %edx
    movq %rdi, %rsi
    xorl %edi, %edi
    call gfx_flags_to_open
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movl %eax, %esi
    movq gfx_real_dlopen(%rip), %rax
    jmp *%rax
    .cfi_endproc
    .size dlopen, .-dlopen

    .globl dlmopen
    .type dlmopen, @function
dlmopen:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call gfx_flags_to_open
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movl %eax, %edx
    movq gfx_real_dlmopen(%rip), %rax
    jmp *%rax
    .cfi_endproc
    .size dlmopen, .-dlmopen
)");
#endif
