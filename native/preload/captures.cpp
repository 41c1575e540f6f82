#include "captures.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "counters.h"
#include "settings.h"

namespace gfx {
namespace {

std::mutex lock;
std::atomic<int> n_active{0};

struct State {
  std::unordered_map<hipStream_t, hipGraph_t> active;  // origins of captures that have not ended, and what into
  std::unordered_set<hipStream_t> stuck;      // ended with a fork not joined: never to be ended again
  std::unordered_map<hipEvent_t, Look> events;  // recorded inside a capture, and where its stream stood then
  std::unordered_set<hipGraphNode_t> placed;  // by the program's own hand, not by a capture
};
State &state() {
  static auto *made = new State;  // never destroyed: calls may come while the process ends
  return *made;
}

}  // namespace

namespace {

std::vector<hipGraphNode_t> nodes_in(const Table &t, hipGraph_t graph) {
  size_t n = 0;
  if (t.hipGraphGetNodes(graph, nullptr, &n)) return {};
  std::vector<hipGraphNode_t> nodes(n);
  if (n && t.hipGraphGetNodes(graph, nodes.data(), &n)) return {};
  return nodes;
}

// Ties the ends of an active capture together where a fork was not joined, and returns the node that does. HIP
// refuses to end such a capture, and then its graph is gone, the stream captures for ever, and a second end crashes.
//
// A fork is what HIP takes for one: an end at which the stream does not stand and that the program did not
// place itself. A side stream joined right before the end is none: the stream stands at both ends then.
hipGraphNode_t join_forks(const Table &t, hipStream_t stream) {
  if (t.cuda) return nullptr;  // it tells, and leaves the stream as it was
  // A program that edits dependencies by hand may have left a loose end on purpose.
  if (counters.fn[static_cast<int>(Fn::hipStreamUpdateCaptureDependencies)].calls.load()) return nullptr;
  hipStreamCaptureStatus status = kNone;
  unsigned long long id = 0;
  hipGraph_t graph = nullptr;
  const hipGraphNode_t *last = nullptr;
  size_t n_last = 0, n_edges = 0;
  if (!t.hipGraphGetEdges || !t.hipGraphAddEmptyNode) return nullptr;
  if (t.hipStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &n_last) || status != kActive) return nullptr;
  std::unordered_set<hipGraphNode_t> stands(last, last + n_last);
  const std::vector<hipGraphNode_t> nodes = nodes_in(t, graph);
  if (t.hipGraphGetEdges(graph, nullptr, nullptr, &n_edges)) return nullptr;
  std::vector<hipGraphNode_t> from(n_edges), to(n_edges), ends;
  if (n_edges && t.hipGraphGetEdges(graph, from.data(), to.data(), &n_edges)) return nullptr;
  const std::unordered_set<hipGraphNode_t> followed(from.begin(), from.end());
  bool is_forked = false;
  {
    std::lock_guard<std::mutex> hold(lock);
    for (hipGraphNode_t node : nodes) {
      if (followed.count(node)) continue;
      ends.push_back(node);
      is_forked = is_forked || (!stands.count(node) && !state().placed.count(node));
    }
  }
  hipGraphNode_t join = nullptr;
  return is_forked && !t.hipGraphAddEmptyNode(&join, graph, ends.data(), ends.size()) ? join : nullptr;
}

// Until 7.14 a refused end (901) leaves the stream invalidated, and work sent to it vanishes without
// an error. A new capture resets it.
void revive(const Table &t, hipStream_t stream) {
  hipStreamCaptureStatus status = kNone;
  hipGraph_t graph = nullptr;
  if (t.hipStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr)) return;
  if (status != kInvalidated || t.hipStreamBeginCapture(stream, kRelaxed)) return;
  if (!t.hipStreamEndCapture(stream, &graph) && graph) t.hipGraphDestroy(graph);
}

bool still_active(const Table &t, hipStream_t stream) {
  hipStreamCaptureStatus status = kNone;
  return !t.hipStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr) && status == kActive;
}

}  // namespace

bool any_capture() { return n_active.load(std::memory_order_relaxed) > 0; }

bool is_capturing(const Table &t, hipStream_t stream) {
  if (!any_capture() || is_legacy(stream)) return false;
  hipStreamCaptureStatus status = kNone;
  return !t.hipStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr) && status != kNone;
}

Look look(const Table &t, hipStream_t stream) {
  Look seen;
  if (is_legacy(stream)) return seen;
  {
    // Its graph is gone, and asking for its nodes would crash.
    std::lock_guard<std::mutex> hold(lock);
    if (state().stuck.count(stream)) return seen;
  }
  hipStreamCaptureStatus status = kNone;
  unsigned long long id = 0;
  hipGraph_t graph = nullptr;
  const hipGraphNode_t *last = nullptr;
  size_t n = 0;
  if (t.hipStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &n) || status != kActive) return seen;
  if (t.hipGraphGetNodes(graph, nullptr, &seen.n_nodes)) return seen;
  seen.frontier.assign(last, last + n);
  seen.capturing = true;
  seen.id = id;
  return seen;
}

hipStreamCaptureMode chosen_mode(hipStreamCaptureMode mode) {
  return mode >= 0 && mode < 3 ? settings().capture_mode[mode] : mode;
}

void capture_began(const Table &t, hipStream_t stream, hipGraph_t into) {
  // What was there before is no fork. The graph is asked for: it may have another handle from here on.
  hipStreamCaptureStatus status = kNone;
  hipGraph_t graph = nullptr;
  std::vector<hipGraphNode_t> before;
  if (into && !t.hipStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr) && status == kActive)
    before = nodes_in(t, graph);
  std::lock_guard<std::mutex> hold(lock);
  state().stuck.erase(stream);
  state().placed.insert(before.begin(), before.end());
  if (state().active.insert_or_assign(stream, into).second) n_active.fetch_add(1);
}

hipError_t end_capture(const Table &t, hipError_t (*real)(hipStream_t, hipGraph_t *), hipStream_t stream,
                       hipGraph_t *graph) {
  hipGraph_t into = nullptr;
  bool is_origin = false;  // a stream that forked from it cannot end its capture
  {
    std::lock_guard<std::mutex> hold(lock);
    if (state().stuck.count(stream)) {
      if (graph) *graph = nullptr;
      return kCaptureUnjoined;  // the runtime would crash
    }
    const auto begun = state().active.find(stream);
    is_origin = begun != state().active.end();
    if (is_origin) into = begun->second;
  }
  const hipGraphNode_t join = graph && is_origin ? join_forks(t, stream) : nullptr;
  hipError_t status = real(stream, graph);
  // A refused end leaves a dangling handle, which no caller must ever see.
  if (status && graph) *graph = nullptr;
  if (status == kIllegalState) return status;  // there was none
  if (status && status != kCaptureUnjoined && still_active(t, stream)) {  // it goes on
    if (join && t.hipGraphDestroyNode) t.hipGraphDestroyNode(join);
    return status;
  }
  if (status == kCaptureInvalidated && !t.cuda) revive(t, stream);
  if (!status && join) {
    // The answer that the program would have had, from a stream that lives on. A graph of the program's that
    // was captured into stays the program's.
    if (!into) t.hipGraphDestroy(*graph);
    *graph = nullptr;
    status = kCaptureUnjoined;
  }
  size_t n = 0;
  add(status ? counters.captures_failed : counters.captures);
  if (!status && graph && !t.hipGraphGetNodes(*graph, nullptr, &n)) add(counters.captured_nodes, n);
  std::lock_guard<std::mutex> hold(lock);
  if (status == kCaptureUnjoined && !join && !t.cuda) state().stuck.insert(stream);
  if (state().active.erase(stream) && n_active.fetch_sub(1) == 1) state().events.clear(), state().placed.clear();
  return status;
}

void note_event(hipEvent_t event, const Look &where) {
  std::lock_guard<std::mutex> hold(lock);
  if (where.capturing) state().events[event] = where;
  else state().events.erase(event);
}

// HIP makes a stream that waits for another's event that stream's fork, and its EndCapture ends each stream after its
// forks. Where two side streams wait for each other it goes round for ever, and the process dies (6.4.3 to 7.15). A
// stream that captures already needs no fork: all that the wait does besides is to let it go on after more nodes.
bool waits_inside(const Table &t, const Look &before, hipStream_t stream, hipEvent_t event, unsigned int flags,
                  hipError_t *status) {
  if (t.cuda || flags || !before.capturing || !t.hipStreamUpdateCaptureDependencies) return false;
  std::vector<hipGraphNode_t> after;
  {
    std::lock_guard<std::mutex> hold(lock);
    const auto known = state().events.find(event);
    if (known == state().events.end() || known->second.id != before.id || state().active.count(stream)) return false;
    for (hipGraphNode_t node : known->second.frontier)
      if (std::find(before.frontier.begin(), before.frontier.end(), node) == before.frontier.end()) after.push_back(node);
  }
  *status = after.empty() ? kSuccess : t.hipStreamUpdateCaptureDependencies(stream, after.data(), after.size(), 0);
  return true;
}

void note_placed(hipGraphNode_t node) {
  std::lock_guard<std::mutex> hold(lock);
  state().placed.insert(node);
}

bool was_recorded_inside(hipEvent_t event) {
  std::lock_guard<std::mutex> hold(lock);
  return state().events.count(event) != 0;
}

void lock_captures() { lock.lock(); }
void unlock_captures() { lock.unlock(); }

}  // namespace gfx
