#include "context.h"

#include <chrono>
#include <cstring>
#include <string>

#include "../table.h"

using gfx::at_boundary;

namespace {

const char *const kStatusNames[] = {
    "ok",
    "native_invalid_argument",
    "native_no_runtime",
    "native_function_missing",
    "native_runtime_refused",
    "native_capture_failed",
    "native_callback_failed",
    "native_capture_empty",
    "native_no_bucket",
    "native_context_busy",
    "native_out_of_memory",
    "native_not_ready",
};
constexpr int kStatuses = sizeof kStatusNames / sizeof *kStatusNames;

uint64_t now_ns() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

}  // namespace

// Errors ------------------------------------------------------------------------------------------

gfxg_status gfxg_context::fail(gfxg_status status, gfx::Fields fields) {
  std::lock_guard<std::mutex> hold(error_lock);
  runtime_status = 0;
  for (int chinese = 0; chinese < 2; chinese++)
    error[chinese] = gfx::catalogue_text(kStatusNames[status], chinese != 0, fields);
  return status;
}

gfxg_status gfxg_context::invalid(const char *api, const char *problem) {
  return fail(GFXG_INVALID_ARGUMENT, {{"api", api}, {"problem", problem}});
}

gfxg_status gfxg_context::refused(gfx::Answer answer) {
  if (answer.status == gfx::kAbsent)
    return fail(GFXG_FUNCTION_MISSING, {{"api", answer.api}, {"library", runtime.library()}});
  runtime.forget_error();
  const char *name = runtime.error_name(answer.status);
  const gfxg_status status = fail(GFXG_RUNTIME_REFUSED, {{"api", answer.api},
                                                        {"name", name ? name : "?"},
                                                        {"status", std::to_string(answer.status)}});
  std::lock_guard<std::mutex> hold(error_lock);
  runtime_status = answer.status;
  return status;
}

// Graph execs -------------------------------------------------------------------------------------

namespace gfx {

gfxg_status Exec::make(gfxg_context &c, hipGraph_t graph) {
  hipGraphExec_t fresh = nullptr;
  if (const Answer answer = c.runtime.instantiate(&fresh, graph, 0)) return c.refused(answer);
  c.instantiations++;
  if (!done_) {
    constexpr unsigned kNoTiming = 2;
    hipEvent_t event = nullptr;
    if (const Answer answer = c.runtime.event_create(&event, kNoTiming)) {
      c.runtime.exec_destroy(fresh);
      return c.refused(answer);
    }
    done_ = event;
  }
  if (exec_) {
    c.rebuilds++;
    // The old one may still run.
    if (const gfxg_status status = wait(c)) {
      c.runtime.exec_destroy(fresh);
      return status;
    }
    if (const Answer answer = c.runtime.exec_destroy(exec_)) {
      c.runtime.exec_destroy(fresh);
      return c.refused(answer);
    }
  }
  exec_ = fresh;
  launched_ = false;
  n_updates_ = 0;
  return GFXG_OK;
}

bool Exec::may_update(gfxg_context &c) {
  const unsigned budget = c.current().update_budget;
  if (budget && n_updates_ >= budget) return false;
  n_updates_++;
  return true;
}

gfxg_status Exec::become(gfxg_context &c, hipGraph_t graph) {
  if (!exec_) return make(c, graph);
  GFX_TRY(wait(c));
  if (may_update(c)) {
    if (!c.runtime.exec_update(exec_, graph)) {
      c.updates++;
      return GFXG_OK;
    }
    c.updates_refused++;
    c.runtime.forget_error();
  }
  return make(c, graph);
}

gfxg_status Exec::upload(gfxg_context &c, hipStream_t stream) {
  const Answer answer = c.runtime.upload(exec_, stream);
  if (answer.status == kAbsent) return GFXG_OK;  // only the first launch is slower
  if (answer) return c.refused(answer);
  c.uploads++;
  return GFXG_OK;
}

gfxg_status Exec::launch(gfxg_context &c, hipStream_t stream) {
  if (reinterpret_cast<uintptr_t>(stream) > 2) {
    // HIP runs a graph that is launched into a capture at once, records nothing, and says nothing.
    int status = kNone;
    hipGraph_t graph = nullptr;
    const hipGraphNode_t *last = nullptr;
    size_t n = 0;
    GFX_CALL_RUNTIME(c, capture_info(stream, &status, &graph, &last, &n));
    if (status != kNone) return c.invalid("launch", "the stream is capturing; gfxg_capture_graph puts a graph into a capture");
  }
  const uint64_t begin = now_ns();
  const Answer answer = c.runtime.launch(exec_, stream);
  if (answer) return c.refused(answer);
  c.launch_ns += now_ns() - begin;
  c.launches++;
  launched_ = true;
  if (!c.runtime.event_record(done_, stream)) return GFXG_OK;
  // Without the event nobody could tell when it is over, so it has to be over now.
  c.runtime.forget_error();
  GFX_CALL_RUNTIME(c, stream_synchronize(stream));
  launched_ = false;
  return GFXG_OK;
}

bool Exec::idle(gfxg_context &c) {
  if (!launched_) return true;
  if (c.runtime.event_query(done_)) {
    c.runtime.forget_error();  // not ready is an answer
    return false;
  }
  launched_ = false;
  return true;
}

gfxg_status Exec::wait(gfxg_context &c) {
  if (idle(c)) return GFXG_OK;
  c.waits++;
  GFX_CALL_RUNTIME(c, event_synchronize(done_));
  launched_ = false;
  return GFXG_OK;
}

gfxg_status Exec::destroy(gfxg_context &c, bool quietly) {
  // Every part is tried; the first refusal is the one that is told.
  gfxg_status first = GFXG_OK;
  auto attempt = [&](Answer answer) {
    if (!answer) return;
    if (quietly) c.runtime.forget_error();
    else if (!first) first = c.refused(answer);
  };
  if (!idle(c)) attempt(c.runtime.event_synchronize(done_));
  if (exec_) attempt(c.runtime.exec_destroy(exec_));
  if (done_) attempt(c.runtime.event_destroy(done_));
  exec_ = nullptr, done_ = nullptr, launched_ = false;
  return first;
}

gfxg_status keep(gfxg_context &c, hipGraph_t graph, hipGraph_t *copy) {
  hipGraph_t made = nullptr;
  if (const Answer answer = c.runtime.graph_clone(&made, graph)) return c.refused(answer);
  *copy = made;
  return GFXG_OK;
}

void drop(gfxg_context &c, hipGraph_t *graph) {
  if (*graph && c.runtime.graph_destroy(*graph)) c.runtime.forget_error();
  *graph = nullptr;
}

}  // namespace gfx

// The C functions ---------------------------------------------------------------------------------

extern "C" {

int gfxg_abi_version(void) { return GFXG_ABI_VERSION; }

const char *gfxg_status_name(gfxg_status status) {
  return status >= 0 && status < kStatuses ? kStatusNames[status] : "unknown";
}

gfxg_status gfxg_open(const char *backend, gfxg_context **out) {
  if (!out) return GFXG_INVALID_ARGUMENT;
  *out = nullptr;
  const gfx::Backend *found = nullptr;
  if (!backend) {
    found = gfx::hip_backend(false);
    if (!found) found = gfx::cuda_backend(false);
  } else if (!strcmp(backend, "hip")) {
    found = gfx::hip_backend(true);
  } else if (!strcmp(backend, "cuda")) {
    found = gfx::cuda_backend(true);
  } else {
    return GFXG_INVALID_ARGUMENT;
  }
  if (!found) return GFXG_NO_RUNTIME;
  *out = new (std::nothrow) gfxg_context(*found);
  return *out ? GFXG_OK : GFXG_OUT_OF_MEMORY;
}

gfxg_status gfxg_close(gfxg_context *c) {
  if (!c) return GFXG_OK;
  if (const size_t n = c->n_objects) return c->fail(GFXG_BUSY, {{"n", std::to_string(n)}});
  delete c;
  return GFXG_OK;
}

const char *gfxg_backend(const gfxg_context *c) { return c ? c->runtime.prefix() : ""; }
const char *gfxg_runtime_library(const gfxg_context *c) { return c ? c->runtime.library() : ""; }
int gfxg_runtime_version(const gfxg_context *c) { return c ? c->runtime.version() : 0; }

size_t gfxg_error_text(gfxg_context *c, const char *language, char *buffer, size_t size) {
  if (!c) return gfx::copy_text("", buffer, size);
  std::lock_guard<std::mutex> hold(c->error_lock);
  return gfx::copy_text(c->error[language && !strncmp(language, "zh", 2)], buffer, size);
}

int gfxg_runtime_status(gfxg_context *c) {
  if (!c) return 0;
  std::lock_guard<std::mutex> hold(c->error_lock);
  return c->runtime_status;
}

gfxg_status gfxg_configure(gfxg_context *c, const gfxg_settings *settings) {
  return at_boundary(c, [&] {
    if (!settings || settings->nbytes != sizeof(gfxg_settings))
      return c->invalid("gfxg_configure", "settings->nbytes is not sizeof(gfxg_settings)");
    if (settings->capture_mode < 0 || settings->capture_mode > 2)
      return c->invalid("gfxg_configure", "capture_mode is none of 0, 1, 2");
    std::lock_guard<std::mutex> hold(c->settings_lock);
    c->settings = *settings;
    return GFXG_OK;
  });
}

gfxg_status gfxg_get_stats(gfxg_context *c, gfxg_stats *stats) {
  return at_boundary(c, [&] {
    if (!stats || stats->nbytes < sizeof(size_t))
      return c->invalid("gfxg_get_stats", "stats->nbytes is not set");
    gfxg_stats all{};
    all.nbytes = stats->nbytes;
    all.captures = c->captures, all.captures_failed = c->captures_failed, all.captured_nodes = c->captured_nodes;
    all.instantiations = c->instantiations, all.rebuilds = c->rebuilds;
    all.updates = c->updates, all.updates_refused = c->updates_refused;
    all.launches = c->launches, all.launch_ns = c->launch_ns, all.uploads = c->uploads;
    all.flag_reads = c->flag_reads, all.skipped = c->skipped, all.waits = c->waits, all.failures = c->failures;
    memcpy(stats, &all, stats->nbytes < sizeof all ? stats->nbytes : sizeof all);
    return GFXG_OK;
  });
}

}  // extern "C"
