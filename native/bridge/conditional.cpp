// Branches that are graph execs of their own; the host picks one. HIP has no conditional nodes.
#include "context.h"

using namespace gfx;

struct gfxg_conditional {
  gfxg_conditional(gfxg_context &context, unsigned n) : c(context), branches(n) {}
  gfxg_context &c;
  std::mutex lock;
  std::vector<Exec> branches;
  void *seen = nullptr;  // pinned: where the flag is copied to
  hipEvent_t read = nullptr;
  bool asked = false;

  gfxg_status prepare() {
    if (!seen) {
      void *memory = nullptr;
      GFX_CALL_RUNTIME(c, host_alloc(&memory, sizeof(uint32_t)));
      seen = memory;
    }
    if (!read) {
      hipEvent_t event = nullptr;
      GFX_CALL_RUNTIME(c, event_create(&event, 2));
      read = event;
    }
    return GFXG_OK;
  }
  gfxg_status launch(unsigned branch, hipStream_t stream) {
    if (!branches[branch].made()) {
      c.skipped++;
      return GFXG_OK;
    }
    return branches[branch].launch(c, stream);
  }
};

extern "C" {

gfxg_status gfxg_conditional_create(gfxg_context *context, unsigned n_branches, gfxg_conditional **out) {
  return at_boundary(context, [&] {
    if (n_branches == 0 || n_branches > 65536)
      return context->invalid("gfxg_conditional_create", "n_branches is not 1 to 65536");
    return make_object(*context, out, n_branches);
  });
}

gfxg_status gfxg_conditional_set(gfxg_conditional *o, unsigned branch, void *graph) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (branch >= o->branches.size()) return o->c.invalid("gfxg_conditional_set", "there is no such branch");
    if (!graph) return o->c.invalid("gfxg_conditional_set", "graph is NULL");
    return o->branches[branch].become(o->c, graph_of(graph));
  });
}

gfxg_status gfxg_conditional_capture(gfxg_conditional *o, unsigned branch, gfxg_record record, void *user) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (branch >= o->branches.size()) return o->c.invalid("gfxg_conditional_capture", "there is no such branch");
    if (!record) return o->c.invalid("gfxg_conditional_capture", "record is NULL");
    hipGraph_t graph = nullptr;
    GFX_TRY(capture(o->c, [&](hipStream_t stream) { return record(stream, user); }, &graph));
    const gfxg_status status = o->branches[branch].become(o->c, graph);
    drop(o->c, &graph);
    return status;
  });
}

gfxg_status gfxg_conditional_launch(gfxg_conditional *o, unsigned branch, void *stream) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (branch >= o->branches.size()) return o->c.invalid("gfxg_conditional_launch", "there is no such branch");
    return o->launch(branch, stream_of(stream));
  });
}

gfxg_status gfxg_conditional_read(gfxg_conditional *o, const void *flag, void *stream) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (!flag) return o->c.invalid("gfxg_conditional_read", "flag is NULL");
    GFX_TRY(o->prepare());
    constexpr int kDeviceToHost = 2;
    o->asked = false;
    GFX_CALL_RUNTIME(o->c, copy_async(o->seen, flag, sizeof(uint32_t), kDeviceToHost, stream_of(stream)));
    GFX_CALL_RUNTIME(o->c, event_record(o->read, stream_of(stream)));
    o->asked = true;
    o->c.flag_reads++;
    return GFXG_OK;
  });
}

gfxg_status gfxg_conditional_launch_read(gfxg_conditional *o, void *stream, unsigned *taken) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (taken) *taken = GFXG_NO_BRANCH;
    if (!o->asked) return o->c.fail(GFXG_NOT_READY, {{"problem", "gfxg_conditional_read was not called before"}});
    GFX_CALL_RUNTIME(o->c, event_synchronize(o->read));
    o->asked = false;
    const uint32_t branch = *static_cast<volatile uint32_t *>(o->seen);
    if (branch >= o->branches.size()) {
      o->c.skipped++;
      return GFXG_OK;
    }
    GFX_TRY(o->launch(branch, stream_of(stream)));
    if (taken) *taken = branch;
    return GFXG_OK;
  });
}

gfxg_status gfxg_conditional_destroy(gfxg_conditional *o) {
  if (!o) return GFXG_OK;
  gfxg_context &c = o->c;
  return at_boundary(&c, [&] {
    gfxg_status first = GFXG_OK;
    for (Exec &branch : o->branches) {
      const gfxg_status status = branch.destroy(c);
      if (!first) first = status;
    }
    auto attempt = [&](Answer answer) {
      if (answer && !first) first = c.refused(answer);
    };
    // The copy into this memory may still be under way.
    if (o->asked) attempt(c.runtime.event_synchronize(o->read));
    if (o->read) attempt(c.runtime.event_destroy(o->read));
    if (o->seen) attempt(c.runtime.host_free(o->seen));
    delete o;
    c.n_objects--;
    return first;
  });
}

}  // extern "C"
