// One graph, two execs: while one runs, the other takes the next parameters.
//
// Problem: the arguments of an exec that is running must not be touched, and waiting for it would undo
// what a graph is for. Idea: two execs, used in turn whenever something changed. `plan` is a graph of
// ours that always has the newest parameters; an exec that missed changes reads them from there, so no
// argument's size needs to be known.
//
// Invariants:
//   1. An exec is changed only while it is idle.
//   2. `plan` is changed first. A node whose change did not reach an exec is in that exec's `behind`.
//   3. An exec is launched only when its `behind` is empty; one that cannot catch up is made anew.
//   4. Nothing changed: the same exec is launched again, and no event is waited for.
#include <map>
#include <set>

#include "context.h"

using namespace gfx;

struct gfxg_pipeline {
  explicit gfxg_pipeline(gfxg_context &context) : c(context) {}

  struct Half {
    Exec exec;
    bool is_of_plan = false;         // made from plan: plan's nodes name its nodes
    bool must_become_plan = false;   // everything changed
    std::set<hipGraphNode_t> behind;
    bool is_current() const { return behind.empty() && !must_become_plan; }
  };
  struct Copy {
    void *dst;
    const void *src;
    size_t nbytes;
    int kind;
  };

  gfxg_context &c;
  std::mutex lock;
  hipGraph_t plan = nullptr;
  Half halves[2];
  int last = 1;     // launched last
  bool news = false;  // something changed since
  std::map<hipGraphNode_t, Copy> copies;  // of nodes in plan: a runtime may not give them back

  Half &next() { return halves[news ? 1 - last : last]; }

  gfxg_status node_of(void *theirs, const char *api, int wanted, hipGraphNode_t *node) {
    if (!theirs) return c.invalid(api, "node is NULL");
    GFX_CALL_RUNTIME(c, find_in_clone(node, static_cast<hipGraphNode_t>(theirs), plan));
    int type = -1;
    GFX_CALL_RUNTIME(c, node_type(*node, &type));
    return type == wanted ? GFXG_OK : c.invalid(api, "the node is of another kind");
  }

  // Something changed in plan; the half that runs next takes it now if it can.
  void changed() {
    // Where the half launched last is over already, it may as well go on.
    if (!news) news = !halves[last].exec.idle(c);
    if (next().exec.idle(c)) catch_up(next());
  }

  // What could not be brought over stays marked.
  void catch_up(Half &half) {
    if (half.must_become_plan) {
      const hipGraphExec_t before = half.exec.handle();
      if (half.exec.become(c, plan)) return;
      half.is_of_plan = half.exec.handle() != before;
      half.must_become_plan = false;
    }
    while (!half.behind.empty() && half.is_of_plan && half.exec.may_update(c)) {
      const hipGraphNode_t node = *half.behind.begin();
      if (bring(half.exec.handle(), node)) {
        c.updates_refused++;
        c.runtime.forget_error();
        return;
      }
      c.updates++;
      half.behind.erase(half.behind.begin());
    }
  }

  // The node's parameters, from plan to an exec.
  Answer bring(hipGraphExec_t exec, hipGraphNode_t node) {
    int type = -1;
    if (const Answer answer = c.runtime.node_type(node, &type)) return answer;
    if (type == kKernel) {
      hipKernelNodeParams params{};
      if (const Answer answer = c.runtime.get_kernel(node, &params)) return answer;
      return c.runtime.exec_set_kernel(exec, node, &params);
    }
    if (type == kMemset) {
      hipMemsetParams params{};
      if (const Answer answer = c.runtime.get_memset(node, &params)) return answer;
      return c.runtime.exec_set_memset(exec, node, &params);
    }
    const Copy &copy = copies.at(node);
    return c.runtime.exec_set_copy_1d(exec, node, copy.dst, copy.src, copy.nbytes, copy.kind);
  }

  gfxg_status make_ready(Half &half) {
    if (half.is_current()) return GFXG_OK;
    GFX_TRY(half.exec.wait(c));
    catch_up(half);
    return half.is_current() ? GFXG_OK : make_anew(half);
  }

  gfxg_status make_anew(Half &half) {
    GFX_TRY(half.exec.make(c, plan));
    half.is_of_plan = true, half.must_become_plan = false;
    half.behind.clear();
    return half.exec.upload(c, nullptr);
  }

  gfxg_status node_changed(hipGraphNode_t node) {
    for (Half &half : halves) half.behind.insert(node);
    changed();
    return GFXG_OK;
  }
};

extern "C" {

gfxg_status gfxg_pipeline_create(gfxg_context *context, void *graph, gfxg_pipeline **out) {
  return at_boundary(context, [&] {
    if (!out || !graph) return context->invalid("gfxg_pipeline_create", "graph or out is NULL");
    *out = nullptr;
    gfxg_pipeline *o = nullptr;
    GFX_TRY(make_object(*context, &o));
    gfxg_status status = keep(*context, graph_of(graph), &o->plan);
    for (auto &half : o->halves)
      if (!status) status = o->make_anew(half);
    if (!status) {
      *out = o;
      return status;
    }
    // What is told is why it could not be made, not what its removal met with.
    for (auto &half : o->halves) half.exec.destroy(*context, /*quietly=*/true);
    drop(*context, &o->plan);
    delete o;
    context->n_objects--;
    return status;
  });
}

gfxg_status gfxg_pipeline_set_kernel(gfxg_pipeline *o, void *node, const gfxg_kernel *params) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (!params || (params->args && params->extra))
      return o->c.invalid("gfxg_pipeline_set_kernel", "params is NULL, or has both args and extra");
    hipGraphNode_t ours = nullptr;
    GFX_TRY(o->node_of(node, "gfxg_pipeline_set_kernel", kKernel, &ours));
    hipKernelNodeParams all{};
    GFX_CALL_RUNTIME(o->c, get_kernel(ours, &all));
    if (params->func) all.func = params->func;
    all.gridDim = {params->grid[0], params->grid[1], params->grid[2]};
    all.blockDim = {params->block[0], params->block[1], params->block[2]};
    all.sharedMemBytes = params->shared_nbytes;
    // Neither args nor extra: the node's own, which may only stay with its own function.
    if (params->args || params->extra || params->func) all.kernelParams = params->args, all.extra = params->extra;
    GFX_CALL_RUNTIME(o->c, set_kernel(ours, &all));
    return o->node_changed(ours);
  });
}

gfxg_status gfxg_pipeline_get_kernel(gfxg_pipeline *o, void *node, gfxg_kernel *params) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (!params) return o->c.invalid("gfxg_pipeline_get_kernel", "params is NULL");
    hipGraphNode_t ours = nullptr;
    GFX_TRY(o->node_of(node, "gfxg_pipeline_get_kernel", kKernel, &ours));
    hipKernelNodeParams all{};
    GFX_CALL_RUNTIME(o->c, get_kernel(ours, &all));
    *params = {all.func,
               {all.gridDim.x, all.gridDim.y, all.gridDim.z},
               {all.blockDim.x, all.blockDim.y, all.blockDim.z},
               all.sharedMemBytes,
               all.kernelParams,
               all.extra};
    return GFXG_OK;
  });
}

gfxg_status gfxg_pipeline_set_memset(gfxg_pipeline *o, void *node, const gfxg_memset *params) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (!params) return o->c.invalid("gfxg_pipeline_set_memset", "params is NULL");
    hipGraphNode_t ours = nullptr;
    GFX_TRY(o->node_of(node, "gfxg_pipeline_set_memset", kMemset, &ours));
    const hipMemsetParams all{params->dst,   params->element_nbytes, params->height,
                              params->pitch, params->value,          params->width};
    GFX_CALL_RUNTIME(o->c, set_memset(ours, &all));
    return o->node_changed(ours);
  });
}

gfxg_status gfxg_pipeline_set_copy(gfxg_pipeline *o, void *node, void *dst, const void *src, size_t nbytes, int kind) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    hipGraphNode_t ours = nullptr;
    GFX_TRY(o->node_of(node, "gfxg_pipeline_set_copy", kMemcpy, &ours));
    GFX_CALL_RUNTIME(o->c, set_copy_1d(ours, dst, src, nbytes, kind));
    o->copies[ours] = {dst, src, nbytes, kind};
    return o->node_changed(ours);
  });
}

gfxg_status gfxg_pipeline_update(gfxg_pipeline *o, void *graph) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    if (!graph) return o->c.invalid("gfxg_pipeline_update", "graph is NULL");
    hipGraph_t fresh = nullptr;
    GFX_TRY(keep(o->c, graph_of(graph), &fresh));
    drop(o->c, &o->plan);
    o->plan = fresh;
    o->copies.clear();
    for (auto &half : o->halves) {
      half.behind.clear();  // of nodes that are gone
      half.must_become_plan = true, half.is_of_plan = false;
    }
    o->changed();
    return GFXG_OK;
  });
}

gfxg_status gfxg_pipeline_launch(gfxg_pipeline *o, void *stream) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    const int which = o->news ? 1 - o->last : o->last;
    GFX_TRY(o->make_ready(o->halves[which]));
    GFX_TRY(o->halves[which].exec.launch(o->c, stream_of(stream)));
    o->last = which;
    o->news = false;
    return GFXG_OK;
  });
}

gfxg_status gfxg_pipeline_wait(gfxg_pipeline *o) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    for (auto &half : o->halves) GFX_TRY(half.exec.wait(o->c));
    return GFXG_OK;
  });
}

gfxg_status gfxg_pipeline_destroy(gfxg_pipeline *o) {
  if (!o) return GFXG_OK;
  gfxg_context &c = o->c;
  return at_boundary(&c, [&] {
    gfxg_status first = GFXG_OK;
    for (auto &half : o->halves) {
      const gfxg_status status = half.exec.destroy(c);
      if (!first) first = status;
    }
    const Answer answer = c.runtime.graph_destroy(o->plan);
    if (answer && !first) first = c.refused(answer);
    delete o;
    c.n_objects--;
    return first;
  });
}

}  // extern "C"
