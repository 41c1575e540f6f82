// What every object of the C API shares: the runtime, the last error, counters, and captures.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "../gfxgraph.h"
#include "backend.h"
#include "errors.h"

struct gfxg_context {
  explicit gfxg_context(const gfx::Backend &backend) : runtime(backend) {
    settings.update_budget = backend.update_budget();
  }
  const gfx::Backend &runtime;

  std::mutex error_lock;
  std::string error[2];  // English, Chinese
  int runtime_status = 0;

  std::mutex settings_lock;
  gfxg_settings settings{sizeof(gfxg_settings), 1, 0};

  std::atomic<size_t> n_objects{0};
  std::atomic<uint64_t> captures{0}, captures_failed{0}, captured_nodes{0}, instantiations{0}, rebuilds{0},
      updates{0}, updates_refused{0}, launches{0}, launch_ns{0}, uploads{0}, flag_reads{0}, skipped{0}, waits{0},
      failures{0};

  // Remembers what went wrong, and hands the status on.
  gfxg_status fail(gfxg_status status, gfx::Fields fields);
  gfxg_status invalid(const char *api, const char *problem);
  // For a call that the runtime refused or does not have.
  gfxg_status refused(gfx::Answer answer);
  gfxg_settings current() {
    std::lock_guard<std::mutex> hold(settings_lock);
    return settings;
  }
};

namespace gfx {

using Record = std::function<int(hipStream_t)>;

// Captures on a stream made for it, so that a capture that goes wrong spoils nobody's stream.
gfxg_status capture(gfxg_context &c, const Record &record, hipGraph_t *graph);

// A graph exec, its age in updates, and the event behind its last launch.
class Exec {
 public:
  Exec() = default;
  Exec(const Exec &) = delete;
  Exec &operator=(const Exec &) = delete;

  bool made() const { return exec_ != nullptr; }
  hipGraphExec_t handle() const { return exec_; }
  // Instantiates `graph`; what was there before is destroyed once it is idle.
  gfxg_status make(gfxg_context &c, hipGraph_t graph);
  // Updates to `graph`, or instantiates it anew where that is refused or the budget is used up.
  gfxg_status become(gfxg_context &c, hipGraph_t graph);
  // True when one more update is within the budget, which it then takes.
  bool may_update(gfxg_context &c);
  gfxg_status upload(gfxg_context &c, hipStream_t stream);
  gfxg_status launch(gfxg_context &c, hipStream_t stream);
  gfxg_status wait(gfxg_context &c);
  bool idle(gfxg_context &c);
  // Quietly: what is refused is not told, because something else is being told already.
  gfxg_status destroy(gfxg_context &c, bool quietly = false);

 private:
  hipGraphExec_t exec_ = nullptr;
  hipEvent_t done_ = nullptr;
  bool launched_ = false;
  unsigned n_updates_ = 0;
};

// A copy of somebody's graph, ours to keep.
gfxg_status keep(gfxg_context &c, hipGraph_t graph, hipGraph_t *copy);
void drop(gfxg_context &c, hipGraph_t *graph);

// The C boundary: nothing is thrown across it.
template <class F>
gfxg_status at_boundary(gfxg_context *c, const F &f) {
  if (!c) return GFXG_INVALID_ARGUMENT;
  gfxg_status status;
  try {
    status = f();
  } catch (const std::bad_alloc &) {
    status = GFXG_OUT_OF_MEMORY;
    try {
      c->fail(status, {});
    } catch (const std::bad_alloc &) {
      // Then it has no text.
    }
  }
  if (status) c->failures++;
  return status;
}

// Makes an object of the API and counts it.
template <class T, class... A>
gfxg_status make_object(gfxg_context &c, T **out, A &&...args) {
  if (!out) return c.invalid("create", "out is NULL");
  *out = nullptr;
  *out = new T(c, std::forward<A>(args)...);
  c.n_objects++;
  return GFXG_OK;
}

inline hipStream_t stream_of(void *stream) { return static_cast<hipStream_t>(stream); }
inline hipGraph_t graph_of(void *graph) { return static_cast<hipGraph_t>(graph); }

}  // namespace gfx

// Hand an error on to the caller.
#define GFX_TRY(expression)                                        \
  do {                                                             \
    if (const gfxg_status failed_ = (expression)) return failed_;  \
  } while (0)
#define GFX_CALL_RUNTIME(c, call)                                               \
  do {                                                                          \
    if (const ::gfx::Answer answer_ = (c).runtime.call) return (c).refused(answer_); \
  } while (0)
