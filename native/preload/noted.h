// Paths that the report names: who fetched CUDA's functions, and what was opened where names are bound otherwise.
#pragma once

namespace gfx {

enum class Noted {
  kAsked,    // fetched CUDA's driver functions by name: libcudart, or a program that has it linked in
  kCleared,  // opened with RTLD_DEEPBIND, without which it was opened
  kDeep,     // opened with RTLD_DEEPBIND: its calls go around us
  kApart,    // opened in a namespace of its own: there we are not
};
constexpr int kNotedKinds = 4;
constexpr int kMaxNoted = 8;

void note(Noted kind, const char *path);
// The module in which `address` lies.
void note_asker(const void *address);
// In the order in which they came, each once; null past the last.
const char *noted(Noted kind, int index);

void lock_noted();
void unlock_noted();

}  // namespace gfx
