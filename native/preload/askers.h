// Who fetched CUDA's driver functions by name: libcudart, or a program that has it linked in.
#pragma once

namespace gfx {

constexpr int kMaxAskers = 8;

// `address` lies in the module that asks.
void note_asker(const void *address);
// Paths of the modules, in the order in which they first asked; null past the last.
const char *asker(int index);

void lock_askers();
void unlock_askers();

}  // namespace gfx
