// Graph execs as the application knows them, and what really stands behind each handle.
//
// A handle is the runtime's own, until something must stand in for it: a failed instantiation gives
// the address of our record, an exhausted update budget puts a fresh exec behind the old handle.
// `Record::graph` is our copy of the graph, kept up to date, to run node by node from.
#pragma once

#include "counters.h"
#include "walk.h"

namespace gfx {

struct Record {
  std::atomic<hipGraphExec_t> handle{nullptr};  // null: free to use
  std::atomic<hipGraphExec_t> real{nullptr};    // null: there is only the copy
  hipGraph_t graph = nullptr;                   // our copy; null when fallback is off or copying failed
  Copies copies;                                // one-dimensional copies in it
  unsigned long long flags = 0;
  bool rebuilt = false;         // node handles of calls must be translated into our copy's
  bool has_switched_off = false;  // a rebuild would switch its nodes on again
  uint64_t updates_since_build = 0;
  std::atomic<hipStream_t> last_stream{nullptr};
  Count launches, updates, walked, n_nodes, instantiate_ns;
};

constexpr int kMaxRecords = 4096;
extern Record records[kMaxRecords];

// Called with the outcome of an instantiation of `graph`. May turn a failure into a success whose
// exec is run node by node; then *exec is a handle of ours.
hipError_t instantiated(const Table &t, hipError_t status, hipGraphExec_t *exec, hipGraph_t graph,
                        unsigned long long flags, uint64_t ns);
// True when the graph is larger than the node limit, so that it must not be instantiated at all.
bool over_node_limit(const Table &t, hipGraph_t graph);

Record *find_record(hipGraphExec_t handle);  // null: not seen being made
hipGraphExec_t real_of(hipGraphExec_t handle);
hipGraphNode_t node_in(const Table &t, Record *record, hipGraphNode_t node);

hipError_t launch(const Table &t, hipError_t (*real)(hipGraphExec_t, hipStream_t), hipGraphExec_t handle,
                  hipStream_t stream);
hipError_t update(const Table &t, hipGraphExec_t handle, hipGraph_t graph, hipGraphNode_t *node,
                  hipGraphExecUpdateResult *result);
hipError_t set_kernel_params(const Table &t, hipGraphExec_t handle, hipGraphNode_t node,
                             const hipKernelNodeParams *params);
hipError_t destroy(const Table &t, hipGraphExec_t handle);

// One-dimensional copies, remembered when they are recorded or added.
void remember_copy(hipGraphNode_t node, const Copy1D &copy);
void remember_child(const Table &t, hipGraphNode_t node, hipGraph_t child);
void forget_copies_of(const Table &t, hipGraph_t graph);

// Around fork(): no lock of ours may be held by a thread that the child does not have.
void lock_execs();
void unlock_execs();

}  // namespace gfx
