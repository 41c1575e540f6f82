// One runtime, as the C API sees it: HIP's types, HIP's struct layouts, HIP's numbers for node types.
// The CUDA half converts.
#pragma once

#include <vector>

#include "../abi.h"

namespace gfx {

// A call into the runtime and what it answered.
struct Answer {
  const char *api;
  int status;
  explicit operator bool() const { return status != 0; }  // true: refused
};
// The runtime lacks the function; no runtime has a negative status.
constexpr int kAbsent = -1;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char *prefix() const = 0;  // "hip" or "cuda"
  virtual const char *library() const = 0;
  virtual int version() const = 0;
  virtual const char *error_name(int status) const = 0;
  // Reads and clears the runtime's own last error, so that the program does not find ours.
  virtual void forget_error() const = 0;

#define GFX_BOTH(method, name, params, args) virtual Answer method params const = 0;
#include "backend.inc"
  // NodeType, whatever this version's own numbers are; -1 for kinds that no NodeType names.
  Answer node_type(hipGraphNode_t node, int *type) const {
    const Answer answer = raw_node_type(node, type);
    if (!answer) *type = plain_node_type(*type);
    return answer;
  }
  virtual int plain_node_type(int raw) const = 0;
  // True where a capture that cannot end leaves its stream usable all the same.
  virtual bool frees_unjoined_streams() const = 0;
  // Updates of an exec after which it had better be instantiated anew; 0: never.
  virtual unsigned update_budget() const = 0;

  // The capture on a stream: its graph and the last nodes, null and none unless it is active.
  virtual Answer capture_info(hipStream_t stream, int *status, hipGraph_t *graph, const hipGraphNode_t **last,
                              size_t *n_last) const = 0;
  virtual Answer capture_goes_on_after(hipStream_t stream, hipGraphNode_t *last, size_t n) const = 0;
  virtual Answer graph_edges(hipGraph_t graph, hipGraphNode_t *from, hipGraphNode_t *to, size_t *n) const = 0;
  virtual Answer exec_update(hipGraphExec_t exec, hipGraph_t graph) const = 0;
  virtual Answer get_kernel(hipGraphNode_t node, hipKernelNodeParams *params) const = 0;
  virtual Answer set_kernel(hipGraphNode_t node, const hipKernelNodeParams *params) const = 0;
  virtual Answer exec_set_kernel(hipGraphExec_t exec, hipGraphNode_t node, const hipKernelNodeParams *params) const = 0;
  virtual Answer get_memset(hipGraphNode_t node, hipMemsetParams *params) const = 0;
  virtual Answer set_memset(hipGraphNode_t node, const hipMemsetParams *params) const = 0;
  virtual Answer exec_set_memset(hipGraphExec_t exec, hipGraphNode_t node, const hipMemsetParams *params) const = 0;
  virtual Answer host_alloc(void **memory, size_t nbytes) const = 0;
  virtual Answer host_free(void *memory) const = 0;
};

// The runtimes that this process has; `load` loads one that is not mapped yet. Null where there is none.
// They live as long as the process, as the runtime does.
const Backend *hip_backend(bool load);
const Backend *cuda_backend(bool load);

// What is known of a capture besides what the runtime tells.
struct Begun {
  bool edited = false;  // its dependencies were set by hand: loose ends may be wanted
  std::vector<hipGraphNode_t> before;  // nodes that its graph had already
  bool is_stuck = false;  // set by safe_end: the runtime must never be asked about this stream again
};

// Ends a capture, whatever its state: HIP keeps a stream for ever whose forks were not joined, so they
// are joined first and the answer is then the one that the runtime has for it. The handle is null
// unless the answer is success.
Answer safe_end(const Backend &runtime, hipStream_t stream, hipGraph_t *graph, Begun &begun);

}  // namespace gfx
