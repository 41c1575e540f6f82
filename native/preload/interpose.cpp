// The shims: every function of the list, exported under its own name. No logic but what a hook adds.
#include "shim.h"

namespace gfx {

thread_local bool inside_shim = false;
thread_local hipError_t owed_error = kSuccess;

void escaped(Fn fn, bool legacy_stream) {
  const bool first = counters.fn[static_cast<int>(fn)].escaped.fetch_add(1) == 0;
  if (legacy_stream) add(counters.legacy_stream_work);
  if (first) explain_escape(fn, legacy_stream);
}

// Captures -----------------------------------------------------------------------------------------

#define HOOK(name) \
  template <>      \
  struct Hook<Fn::name>

HOOK(hipStreamBeginCapture) {
  static hipError_t call(const Table &t, decltype(Table::hipStreamBeginCapture) real, hipStream_t stream,
                         hipStreamCaptureMode mode) {
    const hipError_t status = real(stream, chosen_mode(mode));
    if (!status) capture_began(t, stream);
    return status;
  }
};
HOOK(hipStreamBeginCaptureToGraph) {
  static hipError_t call(const Table &t, decltype(Table::hipStreamBeginCaptureToGraph) real, hipStream_t stream,
                         hipGraph_t graph, const hipGraphNode_t *after, const hipGraphEdgeData *data, size_t n,
                         hipStreamCaptureMode mode) {
    const hipError_t status = real(stream, graph, after, data, n, chosen_mode(mode));
    if (!status) capture_began(t, stream, graph);
    return status;
  }
};
HOOK(hipStreamBeginCapture_spt) : Hook<Fn::hipStreamBeginCapture>{};
HOOK(hipStreamEndCapture) {
  static hipError_t call(const Table &t, decltype(Table::hipStreamEndCapture) real, hipStream_t stream,
                         hipGraph_t *graph) {
    return end_capture(t, real, stream, graph);
  }
};
HOOK(hipStreamEndCapture_spt) : Hook<Fn::hipStreamEndCapture>{};

// Graphs and execs ---------------------------------------------------------------------------------

HOOK(hipGraphDestroy) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphDestroy) real, hipGraph_t graph) {
    forget_copies_of(t, graph);
    return real(graph);
  }
};
HOOK(hipGraphAddMemcpyNode1D) {
  static hipError_t call(const Table &, decltype(Table::hipGraphAddMemcpyNode1D) real, hipGraphNode_t *node,
                         hipGraph_t graph, const hipGraphNode_t *after, size_t n, void *dst, const void *src,
                         size_t nbytes, hipMemcpyKind kind) {
    const hipError_t status = real(node, graph, after, n, dst, src, nbytes, kind);
    if (!status) remember_copy(*node, {dst, src, nbytes, kind});
    return status;
  }
};

HOOK(hipGraphAddChildGraphNode) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphAddChildGraphNode) real, hipGraphNode_t *node,
                         hipGraph_t graph, const hipGraphNode_t *after, size_t n, hipGraph_t child) {
    const hipError_t status = real(node, graph, after, n, child);
    if (!status) remember_child(t, *node, child);
    return status;
  }
};

HOOK(hipGraphInstantiate) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphInstantiate) real, hipGraphExec_t *exec,
                         hipGraph_t graph, hipGraphNode_t *node, char *text, size_t nbytes) {
    return instantiate(t, Fn::hipGraphInstantiate, exec, graph, 0, [&] { return real(exec, graph, node, text, nbytes); });
  }
};
HOOK(hipGraphInstantiateWithFlags) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphInstantiateWithFlags) real, hipGraphExec_t *exec,
                         hipGraph_t graph, unsigned long long flags) {
    return instantiate(t, Fn::hipGraphInstantiateWithFlags, exec, graph, flags, [&] { return real(exec, graph, flags); });
  }
};
HOOK(hipGraphInstantiateWithParams) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphInstantiateWithParams) real, hipGraphExec_t *exec,
                         hipGraph_t graph, hipGraphInstantiateParams *params) {
    const hipError_t status = instantiate(t, Fn::hipGraphInstantiateWithParams, exec, graph,
                                          params ? params->flags & 9 : 0, [&] { return real(exec, graph, params); });
    if (!status && params) params->result_out = 0;  // also where the runtime refused and we stand in
    return status;
  }
};

HOOK(hipGraphLaunch) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphLaunch) real, hipGraphExec_t exec,
                         hipStream_t stream) {
    if (!any_capture()) return launch(t, Fn::hipGraphLaunch, real, exec, stream);
    const Look before = look(t, stream);
    const hipError_t status = launch(t, Fn::hipGraphLaunch, real, exec, stream);
    if (!status && before.capturing) check_recorded<Fn::hipGraphLaunch>(t, before, stream, exec, stream);
    return status;
  }
};
HOOK(hipGraphLaunch_spt) : Hook<Fn::hipGraphLaunch>{};
HOOK(hipGraphExecUpdate) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecUpdate) real, hipGraphExec_t exec,
                         hipGraph_t graph, hipGraphNode_t *node, hipGraphExecUpdateResult *result) {
    bool asked = false;
    const hipError_t status = update(t, exec, graph, [&](hipGraphExec_t now) {
      asked = true;
      return real(now, graph, node, result);
    });
    if (!asked && !status) {
      if (node) *node = nullptr;
      if (result) *result = 0;
    }
    return status;
  }
};

// Nodes of an exec given other parameters. The copy that is kept for a walk must follow.
HOOK(hipGraphExecKernelNodeSetParams) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecKernelNodeSetParams) real, hipGraphExec_t exec,
                         hipGraphNode_t node, const hipKernelNodeParams *params) {
    return set_params(
        t, exec, node, [&](hipGraphExec_t now, hipGraphNode_t there) { return real(now, there, params); },
        [&](Record *, hipGraphNode_t twin) {
          return t.hipGraphKernelNodeSetParams ? t.hipGraphKernelNodeSetParams(twin, params) : kNotSupported;
        });
  }
};
HOOK(hipGraphExecMemsetNodeSetParams) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecMemsetNodeSetParams) real, hipGraphExec_t exec,
                         hipGraphNode_t node, const hipMemsetParams *params) {
    return set_params(
        t, exec, node, [&](hipGraphExec_t now, hipGraphNode_t there) { return real(now, there, params); },
        [&](Record *, hipGraphNode_t twin) {
          return t.hipGraphMemsetNodeSetParams ? t.hipGraphMemsetNodeSetParams(twin, params) : kNotSupported;
        });
  }
};
HOOK(hipGraphExecHostNodeSetParams) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecHostNodeSetParams) real, hipGraphExec_t exec,
                         hipGraphNode_t node, const hipHostNodeParams *params) {
    return set_params(
        t, exec, node, [&](hipGraphExec_t now, hipGraphNode_t there) { return real(now, there, params); },
        [&](Record *, hipGraphNode_t twin) {
          return t.hipGraphHostNodeSetParams ? t.hipGraphHostNodeSetParams(twin, params) : kNotSupported;
        });
  }
};
HOOK(hipGraphExecMemcpyNodeSetParams1D) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecMemcpyNodeSetParams1D) real, hipGraphExec_t exec,
                         hipGraphNode_t node, void *dst, const void *src, size_t nbytes, hipMemcpyKind kind) {
    return set_params(
        t, exec, node,
        [&](hipGraphExec_t now, hipGraphNode_t there) { return real(now, there, dst, src, nbytes, kind); },
        [&](Record *r, hipGraphNode_t twin) {
          if (!t.hipGraphMemcpyNodeSetParams1D) return kNotSupported + 0;
          const hipError_t status = t.hipGraphMemcpyNodeSetParams1D(twin, dst, src, nbytes, kind);
          if (!status) r->copies[twin] = {dst, src, nbytes, kind};
          return status;
        });
  }
};
// No twin that could be told: from here on there is no walk.
template <Fn F>
struct HookWithoutCopy {
  template <class... A>
  static hipError_t call(const Table &t, hipError_t (*real)(hipGraphExec_t, hipGraphNode_t, A...), hipGraphExec_t exec,
                         hipGraphNode_t node, A... rest) {
    return set_params(
        t, exec, node, [&](hipGraphExec_t now, hipGraphNode_t there) { return real(now, there, rest...); }, {});
  }
};
#define WITHOUT_COPY(name) HOOK(name) : HookWithoutCopy<Fn::name>{};
WITHOUT_COPY(hipDrvGraphExecMemcpyNodeSetParams)
WITHOUT_COPY(hipDrvGraphExecMemsetNodeSetParams)
WITHOUT_COPY(hipGraphExecBatchMemOpNodeSetParams)
WITHOUT_COPY(hipGraphExecChildGraphNodeSetParams)
WITHOUT_COPY(hipGraphExecEventRecordNodeSetEvent)
WITHOUT_COPY(hipGraphExecEventWaitNodeSetEvent)
WITHOUT_COPY(hipGraphExecExternalSemaphoresSignalNodeSetParams)
WITHOUT_COPY(hipGraphExecExternalSemaphoresWaitNodeSetParams)
WITHOUT_COPY(hipGraphExecMemcpyNodeSetParams)
WITHOUT_COPY(hipGraphExecMemcpyNodeSetParamsFromSymbol)
WITHOUT_COPY(hipGraphExecMemcpyNodeSetParamsToSymbol)
WITHOUT_COPY(hipGraphExecNodeSetParams)
HOOK(hipGraphNodeSetEnabled) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphNodeSetEnabled) real, hipGraphExec_t exec,
                         hipGraphNode_t node, unsigned int on) {
    Record *r = awake(t, exec);
    if (!r) return real(exec, node, on);
    // A walk or a rebuild would run the node all the same: from here on there is neither.
    if (!on) r->has_switched_off = true;
    return real(r->real.load(), node_in(t, r, node), on);
  }
};
HOOK(hipGraphUpload) {
  static hipError_t call(const Table &, decltype(Table::hipGraphUpload) real, hipGraphExec_t exec,
                         hipStream_t stream) {
    Record *r = find_record(exec);
    if (!r) return real(exec, stream);
    hipGraphExec_t now = r->real.load();
    return now ? real(now, stream) : kSuccess;  // nothing to upload where there is no exec
  }
};
HOOK(hipGraphNodeGetEnabled) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphNodeGetEnabled) real, hipGraphExec_t exec,
                         hipGraphNode_t node, unsigned int *on) {
    Record *r = awake(t, exec);
    return r ? real(r->real.load(), node_in(t, r, node), on) : real(exec, node, on);
  }
};
HOOK(hipGraphExecGetFlags) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecGetFlags) real, hipGraphExec_t exec,
                         unsigned long long *flags) {
    return real(real_of(t, exec), flags);
  }
};
HOOK(hipGraphExecDestroy) {
  static hipError_t call(const Table &t, decltype(Table::hipGraphExecDestroy), hipGraphExec_t exec) {
    return destroy(t, exec);
  }
};

namespace {

hipError_t last_error(hipError_t (*Table::*ask)(), bool clear) {
  const Table *t = table();
  if (!t || !(t->*ask)) return kSuccess;
  const hipError_t theirs = (t->*ask)();
  if (inside_shim) return theirs;
  const hipError_t owed = owed_error;
  if (clear) owed_error = kSuccess;
  return owed ? owed : theirs;
}

}  // namespace
}  // namespace gfx

extern "C" __attribute__((visibility("default"))) hipError_t hipGetLastError(void) {
  return gfx::last_error(&gfx::Table::hipGetLastError, true);
}
extern "C" __attribute__((visibility("default"))) hipError_t hipPeekAtLastError(void) {
  return gfx::last_error(&gfx::Table::hipPeekAtLastError, false);
}

#define GFX_GRAPH(name, need, params, args)                                         \
  extern "C" __attribute__((visibility("default"))) hipError_t name params {        \
    return gfx::graph_call<gfx::Fn::name>(&gfx::Table::name, GFX_UNWRAP args);      \
  }
#define GFX_WORK(name, need, params, args)                                          \
  extern "C" __attribute__((visibility("default"))) hipError_t name params {        \
    return gfx::work_call<gfx::Fn::name>(&gfx::Table::name, GFX_UNWRAP args);       \
  }
#define GFX_CALL(name, need, params, args)
#define GFX_UNWRAP(...) __VA_ARGS__
#include "../api.inc"
