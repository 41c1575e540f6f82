// A graph of graphs. The parts are copies of ours, from which the whole can be built again.
#include "context.h"

using namespace gfx;

struct gfxg_compositor {
  explicit gfxg_compositor(gfxg_context &context) : c(context) {}
  struct Part {
    hipGraph_t graph = nullptr;
    std::vector<unsigned> after;
    hipGraphNode_t node = nullptr;  // in `whole`
  };
  gfxg_context &c;
  std::mutex lock;
  std::vector<Part> parts;
  hipGraph_t whole = nullptr;  // what `exec` was made from, and whose nodes name its children
  Exec exec;
  bool is_built = false;

  gfxg_status build() {
    if (is_built) return GFXG_OK;
    if (parts.empty()) return c.fail(GFXG_NOT_READY, {{"problem", "no graph was added to the compositor"}});
    hipGraph_t fresh = nullptr;
    GFX_CALL_RUNTIME(c, graph_create(&fresh, 0));
    std::vector<hipGraphNode_t> nodes;
    gfxg_status status = GFXG_OK;
    for (const Part &part : parts) {
      std::vector<hipGraphNode_t> after;
      for (unsigned number : part.after) after.push_back(nodes[number]);
      hipGraphNode_t node = nullptr;
      if (const Answer answer = c.runtime.add_child(&node, fresh, after.data(), after.size(), part.graph)) {
        status = c.refused(answer);
        break;
      }
      nodes.push_back(node);
    }
    if (!status) status = exec.make(c, fresh);
    if (status) {
      drop(c, &fresh);
      return status;
    }
    drop(c, &whole);
    whole = fresh;
    for (size_t i = 0; i < parts.size(); i++) parts[i].node = nodes[i];
    is_built = true;
    return GFXG_OK;
  }
};

extern "C" {

gfxg_status gfxg_compositor_create(gfxg_context *context, gfxg_compositor **out) {
  return at_boundary(context, [&] { return make_object(*context, out); });
}

gfxg_status gfxg_compositor_add(gfxg_compositor *o, void *graph, const unsigned *after, size_t n_after,
                                unsigned *index) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (!graph || (n_after && !after)) return o->c.invalid("gfxg_compositor_add", "graph or after is NULL");
    gfxg_compositor::Part part;
    part.after.assign(after, after + n_after);
    for (unsigned number : part.after)
      if (number >= o->parts.size()) return o->c.invalid("gfxg_compositor_add", "after names a part that is not there yet");
    o->parts.reserve(o->parts.size() + 1);
    GFX_TRY(keep(o->c, graph_of(graph), &part.graph));
    if (index) *index = static_cast<unsigned>(o->parts.size());
    o->parts.push_back(std::move(part));
    o->is_built = false;
    return GFXG_OK;
  });
}

gfxg_status gfxg_compositor_set(gfxg_compositor *o, unsigned index, void *graph) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (index >= o->parts.size()) return o->c.invalid("gfxg_compositor_set", "there is no such part");
    if (!graph) return o->c.invalid("gfxg_compositor_set", "graph is NULL");
    gfxg_compositor::Part &part = o->parts[index];
    hipGraph_t fresh = nullptr;
    GFX_TRY(keep(o->c, graph_of(graph), &fresh));
    drop(o->c, &part.graph);
    part.graph = fresh;
    if (!o->is_built) return GFXG_OK;
    // From here on a failure only means that the next launch builds the whole.
    o->is_built = false;
    GFX_TRY(o->exec.wait(o->c));
    if (!o->exec.may_update(o->c)) return GFXG_OK;
    if (o->c.runtime.exec_set_child(o->exec.handle(), part.node, fresh)) {
      o->c.runtime.forget_error();
      o->c.updates_refused++;
      return GFXG_OK;
    }
    o->c.updates++;
    o->is_built = true;
    return GFXG_OK;
  });
}

gfxg_status gfxg_compositor_build(gfxg_compositor *o) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    return o->build();
  });
}

gfxg_status gfxg_compositor_launch(gfxg_compositor *o, void *stream) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    GFX_TRY(o->build());
    return o->exec.launch(o->c, stream_of(stream));
  });
}

gfxg_status gfxg_compositor_destroy(gfxg_compositor *o) {
  if (!o) return GFXG_OK;
  gfxg_context &c = o->c;
  return at_boundary(&c, [&] {
    gfxg_status first = o->exec.destroy(c);
    auto attempt = [&](hipGraph_t graph) {
      if (!graph) return;
      const Answer answer = c.runtime.graph_destroy(graph);
      if (answer && !first) first = c.refused(answer);
    };
    attempt(o->whole);
    for (const auto &part : o->parts) attempt(part.graph);
    delete o;
    c.n_objects--;
    return first;
  });
}

}  // extern "C"
