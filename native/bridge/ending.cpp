// Ending a capture, in every state it can be in.
//
// A fork that nobody joined makes HIP refuse the end (904); the graph is then gone, the stream captures
// for ever, and a second end crashes. So loose ends are tied together before the runtime is asked.
#include <unordered_set>
#include <vector>

#include "backend.h"

namespace gfx {
namespace {

using Nodes = std::vector<hipGraphNode_t>;

// Ends of the capture's graph that its stream does not stand at. False where the runtime does not say.
bool loose_ends(const Backend &runtime, hipGraph_t graph, const Nodes &last, Nodes *loose) {
  size_t n_nodes = 0, n_edges = 0;
  if (runtime.graph_nodes(graph, nullptr, &n_nodes)) return false;
  if (!n_nodes) return true;
  Nodes nodes(n_nodes);
  if (runtime.graph_nodes(graph, nodes.data(), &n_nodes)) return false;
  if (runtime.graph_edges(graph, nullptr, nullptr, &n_edges)) return false;
  Nodes from(n_edges), to(n_edges);
  if (n_edges && runtime.graph_edges(graph, from.data(), to.data(), &n_edges)) return false;
  std::unordered_set<hipGraphNode_t> followed(last.begin(), last.end());
  followed.insert(from.begin(), from.end());
  for (hipGraphNode_t node : nodes)
    if (!followed.count(node)) loose->push_back(node);
  return true;
}

}  // namespace

Answer safe_end(const Backend &runtime, hipStream_t stream, hipGraph_t *graph, Begun &begun) {
  *graph = nullptr;
  hipGraph_t made = nullptr;
  hipGraphNode_t join = nullptr;
  bool is_forked = false;
  if (!runtime.frees_unjoined_streams() && !begun.edited) {
    int status = kNone;
    hipGraph_t capturing = nullptr;
    const hipGraphNode_t *last = nullptr;
    size_t n_last = 0;
    Nodes loose;
    if (!runtime.capture_info(stream, &status, &capturing, &last, &n_last) && status == kActive && capturing) {
      Nodes ends(last, last + n_last);
      if (loose_ends(runtime, capturing, ends, &loose) && !loose.empty()) {
        const std::unordered_set<hipGraphNode_t> before(begun.before.begin(), begun.before.end());
        for (hipGraphNode_t node : loose) is_forked = is_forked || !before.count(node);
        ends.insert(ends.end(), loose.begin(), loose.end());
        if (runtime.add_empty(&join, capturing, ends.data(), ends.size())) join = nullptr;
        else if (runtime.capture_goes_on_after(stream, &join, 1)) runtime.destroy_node(join), join = nullptr;
      }
    }
  }
  const Answer answer = runtime.end_capture(stream, &made);
  if (answer) {  // what it left in `made` is not a graph
    begun.is_stuck = answer.status == kCaptureUnjoined && !runtime.frees_unjoined_streams();
    return answer;
  }
  if (join && is_forked) {
    // The answer that the runtime itself has for it, from a stream that lives on. A graph that was
    // captured into is the caller's.
    if (begun.before.empty()) runtime.graph_destroy(made);
    return {answer.api, kCaptureUnjoined};
  }
  // Ends that were there before the capture are no forks, and need no node of ours.
  if (join) runtime.destroy_node(join);
  *graph = made;
  return answer;
}

}  // namespace gfx
