// Ending a capture, in every state it can be in.
//
// A fork that nobody joined makes HIP refuse the end (904); the graph is then gone, the stream captures
// for ever, and a second end crashes. So loose ends are tied together before the runtime is asked.
#include <unordered_set>
#include <vector>

#include "backend.h"

namespace gfx {
namespace {

enum class Ends { kOne, kSeveral, kUnknown };

// Loose ends that are not what the capturing stream stands at: forks that nobody joined.
Ends join_forks(const Backend &runtime, hipStream_t stream) {
  int status = kNone;
  hipGraph_t graph = nullptr;
  const hipGraphNode_t *last = nullptr;
  size_t n_last = 0, n_nodes = 0, n_edges = 0;
  if (runtime.capture_info(stream, &status, &graph, &last, &n_last)) return Ends::kUnknown;
  if (status != kActive || !graph) return Ends::kOne;
  std::unordered_set<hipGraphNode_t> followed(last, last + n_last);
  if (runtime.graph_nodes(graph, nullptr, &n_nodes)) return Ends::kUnknown;
  if (n_nodes < 2) return Ends::kOne;
  std::vector<hipGraphNode_t> nodes(n_nodes), leaves(followed.begin(), followed.end());
  if (runtime.graph_nodes(graph, nodes.data(), &n_nodes)) return Ends::kUnknown;
  if (runtime.graph_edges(graph, nullptr, nullptr, &n_edges)) return Ends::kUnknown;
  std::vector<hipGraphNode_t> from(n_edges), to(n_edges);
  if (n_edges && runtime.graph_edges(graph, from.data(), to.data(), &n_edges)) return Ends::kUnknown;
  followed.insert(from.begin(), from.end());
  for (hipGraphNode_t node : nodes)
    if (!followed.count(node)) leaves.push_back(node);
  if (leaves.size() == n_last) return Ends::kOne;
  hipGraphNode_t join = nullptr;
  if (runtime.add_empty(&join, graph, leaves.data(), leaves.size())) return Ends::kUnknown;
  return runtime.capture_goes_on_after(stream, &join, 1) ? Ends::kUnknown : Ends::kSeveral;
}

}  // namespace

Answer safe_end(const Backend &runtime, hipStream_t stream, hipGraph_t *graph) {
  *graph = nullptr;
  const Ends ends = join_forks(runtime, stream);
  hipGraph_t made = nullptr;
  Answer answer = runtime.end_capture(stream, &made);
  if (answer) return answer;  // what it left in `made` is not a graph
  if (ends == Ends::kSeveral) {
    // The answer that the runtime itself has for it, from a stream that lives on.
    runtime.graph_destroy(made);
    return {answer.api, kCaptureUnjoined};
  }
  *graph = made;
  return answer;
}

}  // namespace gfx
