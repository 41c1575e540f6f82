// Graph execs as the application knows them, and what really stands behind each handle.
//
// A handle is the runtime's own, until something must stand in for it: a failed instantiation gives
// the address of our record, an exhausted update budget puts a fresh exec behind the old handle.
// `Record::graph` is our copy of the graph, kept up to date, to run node by node from.
#pragma once

#include <functional>

#include "counters.h"
#include "walk.h"

namespace gfx {

struct Record {
  std::atomic<hipGraphExec_t> handle{nullptr};  // null: free to use
  std::atomic<hipGraphExec_t> real{nullptr};    // null: there is only the copy
  std::atomic<bool> is_aside{false};            // so, until it is used: there were more execs than the limit
  std::atomic<uint64_t> used{0};                // larger is later; kept under a limit only
  hipGraph_t graph = nullptr;                   // our copy; null when fallback is off or copying failed
  Copies copies;                                // one-dimensional copies in it
  unsigned long long flags = 0;
  bool rebuilt = false;         // node handles of calls must be translated into our copy's
  bool has_switched_off = false;  // a rebuild would switch its nodes on again
  uint64_t updates_since_build = 0;
  std::atomic<hipStream_t> last_stream{nullptr};
  std::atomic<bool> was_used{false};  // what it says is for the report, also when its exec is gone
  Count launches, updates, walked, n_nodes, instantiate_ns;
};

constexpr int kMaxRecords = 4096;
extern Record records[kMaxRecords];

// Called with the outcome of an instantiation of `graph`. May turn a failure into a success whose
// exec is run node by node; then *exec is a handle of ours, as it is where the runtime's own would be another's.
hipError_t instantiated(const Table &t, Fn fn, hipError_t status, hipGraphExec_t *exec, hipGraph_t graph,
                        unsigned long long flags, uint64_t ns, bool over_limit);
// True when the graph is larger than the node limit and can be run without an exec, so that none is made.
bool over_node_limit(const Table &t, hipGraph_t graph);

Record *find_record(hipGraphExec_t handle);  // null: not seen being made
// The record, its exec made again where it was set aside; null as above.
Record *awake(const Table &t, hipGraphExec_t handle);
hipGraphExec_t real_of(const Table &t, hipGraphExec_t handle);
hipGraphNode_t node_in(const Table &t, Record *record, hipGraphNode_t node);

hipError_t launch(const Table &t, Fn fn, hipError_t (*real)(hipGraphExec_t, hipStream_t), hipGraphExec_t handle,
                  hipStream_t stream);
// `on_exec` is the call as the application made it, with the exec that really stands there.
hipError_t update(const Table &t, hipGraphExec_t handle, hipGraph_t graph,
                  const std::function<hipError_t(hipGraphExec_t)> &on_exec);
// New parameters for one node of an exec. `on_copy` gives them to the node's twin in our copy; where it is
// empty or fails, there is no copy from then on, since it would run the old work.
using OnCopy = std::function<hipError_t(Record *, hipGraphNode_t twin)>;
hipError_t set_params(const Table &t, hipGraphExec_t handle, hipGraphNode_t node,
                      const std::function<hipError_t(hipGraphExec_t, hipGraphNode_t)> &on_exec, const OnCopy &on_copy);
hipError_t destroy(const Table &t, hipGraphExec_t handle);

// One-dimensional copies, remembered when they are recorded or added.
void remember_copy(hipGraphNode_t node, const Copy1D &copy);
void remember_child(const Table &t, hipGraphNode_t node, hipGraph_t child);
void forget_copies_of(const Table &t, hipGraph_t graph);

// Around fork(): no lock of ours may be held by a thread that the child does not have.
void lock_execs();
void unlock_execs();

}  // namespace gfx
