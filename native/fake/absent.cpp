// Every function of the list that the fake does not implement: there, and refusing. The weak
// definitions give way to the real ones of graphs.cpp and streams.cpp.
#include "device.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define GFX_GRAPH(name, need, params, args)                                     \
  extern "C" __attribute__((weak, visibility("default"))) hipError_t name params { \
    FAKE_ENTER();                                                               \
    return fake::done(gfx::kNotSupported);                                      \
  }
#include "../api.inc"
