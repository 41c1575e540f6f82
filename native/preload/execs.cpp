#include "execs.h"

#include <mutex>
#include <vector>

#include "captures.h"
#include "explain.h"
#include "settings.h"

namespace gfx {

Record records[kMaxRecords];

namespace {

std::mutex lock;
Copies &all_copies() {
  static auto *made = new Copies;  // never destroyed: calls may come while the process ends
  return *made;
}
std::unordered_map<hipGraphExec_t, Record *> &by_handle() {
  static auto *made = new std::unordered_map<hipGraphExec_t, Record *>;
  return *made;
}
// Bumped whenever a handle changes its meaning, so that threads drop what they remember.
std::atomic<uint64_t> generation{1};

// Round and round, so that what was destroyed stays in the report for as long as possible.
Record *take_free() {
  static int next = 0;
  for (int i = 0; i < kMaxRecords; i++) {
    Record *r = &records[next];
    next = (next + 1) % kMaxRecords;
    if (!r->handle.load(std::memory_order_relaxed)) return r;
  }
  return nullptr;
}

std::vector<hipGraphNode_t> nodes_of(const Table &t, hipGraph_t graph) {
  size_t n = 0;
  if (t.hipGraphGetNodes(graph, nullptr, &n)) return {};
  std::vector<hipGraphNode_t> nodes(n);
  if (n && t.hipGraphGetNodes(graph, nodes.data(), &n)) return {};
  return nodes;
}

hipGraph_t inner_graph(const Table &t, hipGraphNode_t node) {
  hipGraphNodeType type = -1;
  hipGraph_t inner = nullptr;
  if (t.hipGraphNodeGetType(node, &type) || type != kChild) return nullptr;
  return t.hipGraphChildGraphNodeGetGraph(node, &inner) ? nullptr : inner;
}

// Carry what is known of one-dimensional copies from `from` over to its clone `to`, child graphs
// included. Inside those the runtime finds no twins, but clones list their nodes in the same order.
void carry_copies(const Table &t, hipGraph_t from, hipGraph_t to, bool is_clone, Copies *out) {
  const std::vector<hipGraphNode_t> theirs = nodes_of(t, from), ours = nodes_of(t, to);
  if (theirs.size() != ours.size()) return;
  for (size_t i = 0; i < theirs.size(); i++) {
    hipGraphNode_t twin = ours[i];
    if (is_clone && t.hipGraphNodeFindInClone(&twin, theirs[i], to)) continue;
    auto known = all_copies().find(theirs[i]);
    if (known != all_copies().end()) (*out)[twin] = known->second;
    hipGraph_t inner = inner_graph(t, theirs[i]), inner_twin = inner ? inner_graph(t, twin) : nullptr;
    if (inner_twin) carry_copies(t, inner, inner_twin, false, out);
  }
}

hipGraph_t copy_of(const Table &t, hipGraph_t graph, Copies *copies) {
  hipGraph_t made = nullptr;
  if (t.hipGraphClone(&made, graph)) return nullptr;
  copies->clear();
  if (!all_copies().empty()) carry_copies(t, graph, made, true, copies);
  return made;
}

void drop_copy(const Table &t, Record *r) {
  if (r->graph) t.hipGraphDestroy(r->graph);
  r->graph = nullptr;
  r->copies.clear();
}

// Bring our copy up to the graph that the exec was just updated with.
bool renew_copy(const Table &t, Record *r, hipGraph_t graph) {
  Copies copies;
  hipGraph_t made = copy_of(t, graph, &copies);
  if (!made) return false;
  drop_copy(t, r);
  r->graph = made;
  r->copies = std::move(copies);
  r->rebuilt = false;  // calls will name nodes of the new graph, which the copy is made from
  return true;
}

void rebuild_if_worn(const Table &t, Record *r) {
  const long budget = settings().update_budget;
  if (!budget || ++r->updates_since_build < static_cast<uint64_t>(budget)) return;
  hipGraphExec_t old = r->real.load(), fresh = nullptr;
  if (!old || !r->graph || r->has_switched_off || !t.hipGraphInstantiateWithFlags) return;
  if (t.hipGraphInstantiateWithFlags(&fresh, r->graph, r->flags)) return;  // the old one goes on
  // The old exec may still be running where it was last launched.
  t.hipStreamSynchronize(r->last_stream.load());
  r->real.store(fresh);
  r->rebuilt = true;
  r->updates_since_build = 0;
  t.hipGraphExecDestroy(old);
  add(counters.rebuilds);
}

// Under a limit: destroy the execs that were not used for longest, but `keep`. Their handles stay good: the next
// use makes the exec again from our copy. Only such as could be run node by node, should that be refused.
void set_aside(const Table &t, const Record *keep) {
  const long limit = settings().exec_limit;
  for (long tries = limit ? kMaxRecords : 0; tries; tries--) {
    long n = 0;
    Record *oldest = nullptr;
    size_t nodes = 0;
    for (auto &each : by_handle()) {
      Record *r = each.second;
      if (!r->real.load()) continue;
      n++;
      if (r == keep || !r->graph || r->has_switched_off || (oldest && oldest->used.load() < r->used.load())) continue;
      if (is_capturing(t, r->last_stream.load()) || can_walk(t, r->graph, r->copies, &nodes)) continue;
      oldest = r;
    }
    if (n <= limit || !oldest) return;
    // It may still be running where it was last launched.
    if (oldest->launches.load() && t.hipStreamSynchronize(oldest->last_stream.load())) return;
    hipGraphExec_t exec = oldest->real.load();
    oldest->real.store(nullptr);
    oldest->is_aside.store(true);
    oldest->rebuilt = true;
    t.hipGraphExecDestroy(exec);
    add(counters.set_aside);
  }
}

void make_again(const Table &t, Record *r) {
  hipGraphExec_t fresh = nullptr;
  if (!r->is_aside.load() || t.hipGraphInstantiateWithFlags(&fresh, r->graph, r->flags)) return;
  r->real.store(fresh);
  r->is_aside.store(false);
  add(counters.made_again);
  set_aside(t, r);
}

uint64_t next_use() {
  static uint64_t n = 0;  // with the lock held
  return ++n;
}

// The one launch of the process that a rehearsal refuses.
bool is_refused(long nth) {
  static std::atomic<long> seen{0};
  return seen.fetch_add(1) + 1 == nth;
}

// An answer about what the program passed, which it may be counting on: nothing to stand in for.
bool is_about_arguments(hipError_t status) {
  constexpr hipError_t kInvalidHandle = 400, kContextDestroyed = 709;
  return status == kInvalidValue || status == kInvalidHandle || status == kIllegalState ||
         status == kContextDestroyed || (status >= kCaptureUnsupported && status <= kCaptureWrongThread);
}

hipError_t walk_instead(const Table &t, Record *r, hipStream_t stream) {
  size_t n = 0;
  std::lock_guard<std::mutex> hold(lock);
  if (!r->graph || r->has_switched_off) return kNotSupported;
  // Refused before anything has run, or not at all: half a graph is worse than none.
  if (hipError_t status = can_walk(t, r->graph, r->copies, &n)) return status;
  if (hipError_t status = walk(t, r->graph, r->copies, stream)) return status;
  add(r->walked);
  add(counters.walked_nodes, n);
  return kSuccess;
}

}  // namespace

bool over_node_limit(const Table &t, hipGraph_t graph) {
  size_t n = 0;
  const long limit = settings().node_limit;
  if (!limit || !settings().fallback || t.hipGraphGetNodes(graph, nullptr, &n) || n <= static_cast<size_t>(limit))
    return false;
  std::lock_guard<std::mutex> hold(lock);
  Copies copies;
  hipGraph_t copy = copy_of(t, graph, &copies);
  const bool walkable = copy && !can_walk(t, copy, copies, &n);
  if (copy) t.hipGraphDestroy(copy);
  return walkable;
}

hipError_t instantiated(const Table &t, Fn fn, hipError_t status, hipGraphExec_t *exec, hipGraph_t graph,
                        unsigned long long flags, uint64_t ns, bool over_limit) {
  if (!exec) return status;
  if (status) *exec = nullptr;  // the runtime leaves garbage there
  if (is_about_arguments(status)) return status;
  std::lock_guard<std::mutex> hold(lock);
  Record *r = take_free();
  if (!r) return status;
  size_t n = 0;
  Copies copies;
  hipGraph_t copy = settings().fallback ? copy_of(t, graph, &copies) : nullptr;
  if (status) {
    if (!copy || can_walk(t, copy, copies, &n)) {
      if (copy) t.hipGraphDestroy(copy);
      add(counters.fallback_refused);
      return status;
    }
    *exec = reinterpret_cast<hipGraphExec_t>(r);
    add(counters.fallback_instantiate);
    explain_fallback(fn, over_limit ? kSuccess : status, n);
  }
  t.hipGraphGetNodes(graph, nullptr, &n);
  const hipGraphExec_t made = status ? nullptr : *exec;
  // The runtime gives the address of an exec that we destroyed, whose handle the program still has: ours then.
  if (made && by_handle().count(made)) *exec = reinterpret_cast<hipGraphExec_t>(r);
  r->graph = copy;
  r->copies = std::move(copies);
  r->flags = flags;
  r->rebuilt = r->has_switched_off = false;
  r->is_aside.store(false);
  r->used.store(next_use());
  r->updates_since_build = 0;
  for (Count *count : {&r->launches, &r->updates, &r->walked}) count->store(0);
  r->n_nodes.store(n);
  r->instantiate_ns.store(ns);
  r->real.store(made);
  r->was_used.store(true);
  r->handle.store(*exec, std::memory_order_release);
  by_handle()[*exec] = r;
  generation.fetch_add(1);
  set_aside(t, r);
  if (status) t.hipGetLastError();  // what we answered for is not the application's error
  return kSuccess;
}

Record *find_record(hipGraphExec_t handle) {
  struct Last {
    hipGraphExec_t handle;
    Record *record;
    uint64_t generation;
  };
  static thread_local Last last{};
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (last.handle == handle && last.generation == now) return last.record;
  std::lock_guard<std::mutex> hold(lock);
  auto found = by_handle().find(handle);
  Record *r = found == by_handle().end() ? nullptr : found->second;
  last = {handle, r, now};
  return r;
}

Record *awake(const Table &t, hipGraphExec_t handle) {
  Record *r = find_record(handle);
  if (r && r->is_aside.load()) {
    std::lock_guard<std::mutex> hold(lock);
    make_again(t, r);
  }
  return r;
}

hipGraphExec_t real_of(const Table &t, hipGraphExec_t handle) {
  Record *r = awake(t, handle);
  return r ? r->real.load() : handle;
}

hipGraphNode_t node_in(const Table &t, Record *r, hipGraphNode_t node) {
  if (!r || !r->rebuilt || !r->graph) return node;
  hipGraphNode_t twin = nullptr;
  return t.hipGraphNodeFindInClone(&twin, node, r->graph) ? node : twin;
}

hipError_t launch(const Table &t, Fn fn, hipError_t (*real)(hipGraphExec_t, hipStream_t), hipGraphExec_t handle,
                  hipStream_t stream) {
  Record *r = find_record(handle);
  if (!r) return real(handle, stream);
  // Under a limit another thread may set this exec aside: not between here and its launch.
  std::unique_lock<std::mutex> hold(lock, std::defer_lock);
  if (settings().exec_limit) {
    hold.lock();
    r->used.store(next_use());
    make_again(t, r);
  }
  hipGraphExec_t exec = r->real.load(std::memory_order_relaxed);
  static const long refused = settings().refuse_launch;
  hipError_t status = !exec ? kNotSupported : refused && is_refused(refused) ? kLaunchFailure : real(exec, stream);
  if (hold) {
    r->last_stream.store(stream);
    add(r->launches);
    hold.unlock();
  }
  // Not in a capture: the nodes would be recorded into it.
  if (status && !is_about_arguments(status) && r->graph && !is_capturing(t, stream)) {
    const hipError_t walked = walk_instead(t, r, stream);
    if (exec) {
      add(walked ? counters.fallback_refused : counters.fallback_launch);
      if (!walked) explain_fallback(fn, status, r->n_nodes.load());
    }
    if (!walked) t.hipGetLastError();
    status = walked ? (exec ? status : walked) : kSuccess;
  }
  if (r->last_stream.load(std::memory_order_relaxed) != stream) r->last_stream.store(stream);
  if (!settings().exec_limit) add(r->launches);
  return status;
}

hipError_t update(const Table &t, hipGraphExec_t handle, hipGraph_t graph,
                  const std::function<hipError_t(hipGraphExec_t)> &on_exec) {
  Record *r = find_record(handle);
  if (!r) return on_exec(handle);
  std::lock_guard<std::mutex> hold(lock);
  add(r->updates);
  make_again(t, r);
  hipGraphExec_t exec = r->real.load();
  // Only the copy: any shape will do.
  if (!exec) return renew_copy(t, r, graph) ? kSuccess : kUpdateFailure;
  const hipError_t status = on_exec(exec);
  if (status || !r->graph) return status;
  // A copy that is out of date would run the old work: better none.
  if (!renew_copy(t, r, graph)) drop_copy(t, r);
  rebuild_if_worn(t, r);
  return status;
}

hipError_t set_params(const Table &t, hipGraphExec_t handle, hipGraphNode_t node,
                      const std::function<hipError_t(hipGraphExec_t, hipGraphNode_t)> &on_exec, const OnCopy &on_copy) {
  Record *r = find_record(handle);
  if (!r) return on_exec(handle, node);
  std::lock_guard<std::mutex> hold(lock);
  add(r->updates);
  make_again(t, r);
  hipGraphExec_t exec = r->real.load();
  hipGraphNode_t twin = nullptr;
  const bool has_twin = r->graph && !t.hipGraphNodeFindInClone(&twin, node, r->graph);
  hipError_t status = exec ? on_exec(exec, r->rebuilt && has_twin ? twin : node) : (has_twin ? kSuccess : kInvalidValue);
  if (status || !r->graph) return status;
  if (!has_twin || !on_copy || on_copy(r, twin)) {
    if (!exec) return kInvalidValue;
    drop_copy(t, r);
  }
  rebuild_if_worn(t, r);
  return status;
}

hipError_t destroy(const Table &t, hipGraphExec_t handle) {
  Record *r = find_record(handle);
  if (!r) return t.hipGraphExecDestroy(handle);
  std::lock_guard<std::mutex> hold(lock);
  hipGraphExec_t exec = r->real.load();
  const hipError_t status = exec ? t.hipGraphExecDestroy(exec) : kSuccess;
  if (status) return status;
  drop_copy(t, r);
  by_handle().erase(handle);
  generation.fetch_add(1);
  r->real.store(nullptr);
  r->handle.store(nullptr, std::memory_order_release);
  return status;
}

void remember_copy(hipGraphNode_t node, const Copy1D &copy) {
  std::lock_guard<std::mutex> hold(lock);
  all_copies()[node] = copy;
}

void remember_child(const Table &t, hipGraphNode_t node, hipGraph_t child) {
  std::lock_guard<std::mutex> hold(lock);
  hipGraph_t inner = inner_graph(t, node);
  if (!inner || all_copies().empty()) return;
  Copies found;
  carry_copies(t, child, inner, false, &found);
  for (auto &each : found) all_copies()[each.first] = each.second;
}

namespace {
void forget(const Table &t, hipGraph_t graph) {
  for (hipGraphNode_t node : nodes_of(t, graph)) {
    all_copies().erase(node);
    if (hipGraph_t inner = inner_graph(t, node)) forget(t, inner);
  }
}
}  // namespace

void forget_copies_of(const Table &t, hipGraph_t graph) {
  std::lock_guard<std::mutex> hold(lock);
  if (!all_copies().empty()) forget(t, graph);
}

void lock_execs() { lock.lock(); }
void unlock_execs() { lock.unlock(); }

}  // namespace gfx
