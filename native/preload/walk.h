// Running a graph's nodes one by one, in order, on a stream: what is left when the graph cannot run.
#pragma once

#include <unordered_map>

#include "../table.h"

namespace gfx {

// A one-dimensional copy. HIP tells nothing about such a node, so its call is remembered.
struct Copy1D {
  void *dst;
  const void *src;
  size_t nbytes;
  hipMemcpyKind kind;
};
using Copies = std::unordered_map<hipGraphNode_t, Copy1D>;

// kSuccess when every node of `graph` can be run outside of it. Nothing is run. `n` is their number.
hipError_t can_walk(const Table &t, hipGraph_t graph, const Copies &copies, size_t *n);

// Run them. Call only after can_walk; the first failing node ends it.
hipError_t walk(const Table &t, hipGraph_t graph, const Copies &copies, hipStream_t stream);

}  // namespace gfx
