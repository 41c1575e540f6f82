// Captures that cannot leave anything behind.
//
//   begin ──callback──> end ──> a graph with nodes in it     success
//                        ├────> a graph without nodes         native_capture_empty, destroyed
//                        └────> refused                       native_capture_failed, stream thrown away
#include "context.h"

namespace gfx {

gfxg_status capture(gfxg_context &c, const Record &record, hipGraph_t *graph) {
  constexpr unsigned kNonBlocking = 1;
  *graph = nullptr;
  hipStream_t stream = nullptr;
  auto failed = [&](gfxg_status status) {
    c.captures_failed++;
    return status;
  };
  if (const Answer answer = c.runtime.stream_create(&stream, kNonBlocking)) return failed(c.refused(answer));
  if (const Answer answer = c.runtime.begin_capture(stream, c.current().capture_mode)) {
    c.runtime.stream_destroy(stream);
    return failed(c.refused(answer));
  }
  const int said = record(stream);
  hipGraph_t made = nullptr;
  Begun begun;
  const Answer ended = safe_end(c.runtime, stream, &made, begun);
  if (ended) {
    c.runtime.forget_error();
    // A stream whose capture did not end may crash the runtime when it is destroyed: it is left alone.
    int status = kActive;
    hipGraph_t none = nullptr;
    const hipGraphNode_t *last = nullptr;
    size_t n = 0;
    if (!begun.is_stuck && !c.runtime.capture_info(stream, &status, &none, &last, &n) && status != kActive)
      c.runtime.stream_destroy(stream);
    if (said) return failed(c.fail(GFXG_CALLBACK_FAILED, {{"status", std::to_string(said)}}));
    const char *name = ended.status == kAbsent ? "absent" : c.runtime.error_name(ended.status);
    return failed(c.fail(GFXG_CAPTURE_FAILED, {{"api", ended.api},
                                              {"name", name ? name : "?"},
                                              {"status", std::to_string(ended.status)}}));
  }
  const Answer destroyed = c.runtime.stream_destroy(stream);
  size_t n_nodes = 0;
  const Answer counted = c.runtime.graph_nodes(made, nullptr, &n_nodes);
  gfxg_status status = GFXG_OK;
  if (said) status = c.fail(GFXG_CALLBACK_FAILED, {{"status", std::to_string(said)}});
  else if (counted) status = c.refused(counted);
  else if (destroyed) status = c.refused(destroyed);
  else if (!n_nodes) status = c.fail(GFXG_CAPTURE_EMPTY, {});
  if (status) {
    drop(c, &made);
    return failed(status);
  }
  c.captures++;
  c.captured_nodes += n_nodes;
  *graph = made;
  return GFXG_OK;
}

}  // namespace gfx

using namespace gfx;

extern "C" gfxg_status gfxg_capture(gfxg_context *context, gfxg_record record, void *user, void **graph) {
  return at_boundary(context, [&] {
    if (!record || !graph) return context->invalid("gfxg_capture", "record or graph is NULL");
    hipGraph_t made = nullptr;
    *graph = nullptr;
    GFX_TRY(capture(*context, [&](hipStream_t stream) { return record(stream, user); }, &made));
    *graph = made;
    return GFXG_OK;
  });
}

extern "C" gfxg_status gfxg_capture_graph(gfxg_context *context, void *stream, void *graph) {
  return at_boundary(context, [&] {
    gfxg_context &c = *context;
    int status = kNone;
    hipGraph_t into = nullptr;
    const hipGraphNode_t *last = nullptr;
    size_t n_last = 0;
    GFX_CALL_RUNTIME(c, capture_info(stream_of(stream), &status, &into, &last, &n_last));
    if (status != kActive) return c.invalid("gfxg_capture_graph", "the stream is not capturing");
    const std::vector<hipGraphNode_t> after(last, last + n_last);  // theirs changes with the next call
    hipGraphNode_t child = nullptr;
    GFX_CALL_RUNTIME(c, add_child(&child, into, after.data(), after.size(), graph_of(graph)));
    if (const Answer answer = c.runtime.capture_goes_on_after(stream_of(stream), &child, 1)) {
      // Left in the graph it would be a loose end, with which the capture could not be ended.
      c.runtime.destroy_node(child);
      return c.refused(answer);
    }
    return GFXG_OK;
  });
}

extern "C" gfxg_status gfxg_graph_destroy(gfxg_context *context, void *graph) {
  return at_boundary(context, [&] {
    if (graph) GFX_CALL_RUNTIME(*context, graph_destroy(graph_of(graph)));
    return GFXG_OK;
  });
}
