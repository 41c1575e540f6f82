// The shims over CUDA's driver: every function of cuda.inc, exported under its own name.
//
// Arguments are passed on as words: all of them are integers, pointers or handles. Only what a hook looks
// at is given its type.
#include "shim.h"

namespace gfx {
namespace {

using W = void *;  // one argument

constexpr bool begins_with(const char *text, const char *begin) {
  while (*begin)
    if (*text++ != *begin++) return false;
  return true;
}
constexpr bool contains(const char *text, const char *part) {
  for (; *text; text++)
    if (begins_with(text, part)) return true;
  return false;
}
constexpr const char *kSymbols[] = {
#define GFX_CU(symbol, name, since, stream, arguments) #symbol,
#include "../cuda.inc"
};
constexpr const char *symbol_of(Fn fn) { return kSymbols[static_cast<int>(fn) - kHipCount]; }

template <class T>
T as(W word) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(word);
  else return static_cast<T>(reinterpret_cast<uintptr_t>(word));
}
hipGraphExec_t exec_of(W word) { return reinterpret_cast<hipGraphExec_t>(word); }
hipGraphNode_t node_of(W word) { return reinterpret_cast<hipGraphNode_t>(word); }
hipGraph_t graph_of(W word) { return reinterpret_cast<hipGraph_t>(word); }
hipStream_t stream_word(W word) { return reinterpret_cast<hipStream_t>(word); }

W chosen(W mode) { return reinterpret_cast<W>(static_cast<uintptr_t>(chosen_mode(as<int>(mode)))); }

template <class... A>
hipError_t go(void *real, A... words) {
  return reinterpret_cast<hipError_t (*)(A...)>(real)(words...);
}

// The general case. An exec comes first where there is one; new parameters of a node end the walk.
template <Fn F>
struct CuHook {
  template <class... A>
  static hipError_t call(const Table &t, void *real, A... words) {
    if constexpr (begins_with(symbol_of(F), "cuGraphExec") && contains(symbol_of(F), "Set")) {
      return with_node(t, real, words...);
    } else if constexpr (begins_with(symbol_of(F), "cuGraphExec") || begins_with(symbol_of(F), "cuGraphNodeGetEnabled")) {
      return with_exec(t, real, words...);
    } else {
      return go(real, words...);
    }
  }
  template <class... A>
  static hipError_t with_exec(const Table &t, void *real, W exec, A... rest) {
    return go(real, static_cast<W>(real_of(t, exec_of(exec))), rest...);
  }
  template <class... A>
  static hipError_t with_node(const Table &t, void *real, W exec, W node, A... rest) {
    return set_params(
        t, exec_of(exec), node_of(node),
        [&](hipGraphExec_t now, hipGraphNode_t there) { return go(real, static_cast<W>(now), static_cast<W>(there), rest...); },
        {});
  }
};

#define CU(name) \
  template <>    \
  struct CuHook<Fn::name>

CU(cuStreamBeginCapture_v2) {
  static hipError_t call(const Table &t, void *real, W stream, W mode) {
    const hipError_t status = go(real, stream, chosen(mode));
    if (!status) capture_began(t, stream_word(stream));
    return status;
  }
};
CU(cuStreamBeginCapture_v2_ptsz) : CuHook<Fn::cuStreamBeginCapture_v2>{};
CU(cuStreamBeginCaptureToGraph) {
  static hipError_t call(const Table &t, void *real, W stream, W graph, W after, W data, W n, W mode) {
    const hipError_t status = go(real, stream, graph, after, data, n, chosen(mode));
    if (!status) capture_began(t, stream_word(stream), graph_of(graph));
    return status;
  }
};
CU(cuStreamBeginCaptureToGraph_ptsz) : CuHook<Fn::cuStreamBeginCaptureToGraph>{};
CU(cuStreamEndCapture) {
  static hipError_t call(const Table &t, void *real, W stream, W graph) {
    using Real = hipError_t (*)(hipStream_t, hipGraph_t *);
    return end_capture(t, reinterpret_cast<Real>(real), stream_word(stream), as<hipGraph_t *>(graph));
  }
};
CU(cuStreamEndCapture_ptsz) : CuHook<Fn::cuStreamEndCapture>{};

template <Fn F>
struct OldInstantiate {
  static hipError_t call(const Table &t, void *real, W exec, W graph, W node, W text, W nbytes) {
    return instantiate(t, F, as<hipGraphExec_t *>(exec), graph_of(graph), 0,
                       [&] { return go(real, exec, graph, node, text, nbytes); });
  }
};
CU(cuGraphInstantiate) : OldInstantiate<Fn::cuGraphInstantiate>{};
CU(cuGraphInstantiate_v2) : OldInstantiate<Fn::cuGraphInstantiate_v2>{};
CU(cuGraphInstantiateWithFlags) {
  static hipError_t call(const Table &t, void *real, W exec, W graph, W flags) {
    return instantiate(t, Fn::cuGraphInstantiateWithFlags, as<hipGraphExec_t *>(exec), graph_of(graph),
                       as<unsigned long long>(flags), [&] { return go(real, exec, graph, flags); });
  }
};
CU(cuGraphInstantiateWithParams) {
  static hipError_t call(const Table &t, void *real, W exec, W graph, W params) {
    auto *p = as<cuGraphInstantiateParams *>(params);
    const hipError_t status = instantiate(t, Fn::cuGraphInstantiateWithParams, as<hipGraphExec_t *>(exec),
                                          graph_of(graph), p ? p->flags : 0, [&] { return go(real, exec, graph, params); });
    if (!status && p) p->result_out = 0;
    return status;
  }
};
CU(cuGraphInstantiateWithParams_ptsz) : CuHook<Fn::cuGraphInstantiateWithParams>{};

CU(cuGraphLaunch) {
  static hipError_t call(const Table &t, void *real, W exec, W stream) {
    using Real = hipError_t (*)(hipGraphExec_t, hipStream_t);
    return launch(t, Fn::cuGraphLaunch, reinterpret_cast<Real>(real), exec_of(exec), stream_word(stream));
  }
};
CU(cuGraphLaunch_ptsz) {
  static hipError_t call(const Table &t, void *real, W exec, W stream) {
    // A walk goes to the plain functions, for which no stream is the legacy one: say which is meant.
    constexpr uintptr_t kPerThread = 2;
    using Real = hipError_t (*)(hipGraphExec_t, hipStream_t);
    return launch(t, Fn::cuGraphLaunch_ptsz, reinterpret_cast<Real>(real), exec_of(exec),
                  stream ? stream_word(stream) : reinterpret_cast<hipStream_t>(kPerThread));
  }
};
CU(cuGraphUpload) {
  static hipError_t call(const Table &, void *real, W exec, W stream) {
    Record *r = find_record(exec_of(exec));
    if (!r) return go(real, exec, stream);
    hipGraphExec_t now = r->real.load();
    return now ? go(real, static_cast<W>(now), stream) : kSuccess;
  }
};
CU(cuGraphUpload_ptsz) : CuHook<Fn::cuGraphUpload>{};
CU(cuGraphExecUpdate) {
  static hipError_t call(const Table &t, void *real, W exec, W graph, W node, W result) {
    bool asked = false;
    const hipError_t status = update(t, exec_of(exec), graph_of(graph), [&](hipGraphExec_t now) {
      asked = true;
      return go(real, static_cast<W>(now), graph, node, result);
    });
    if (!asked && !status) {
      if (node) *as<hipGraphNode_t *>(node) = nullptr;
      if (result) *as<int *>(result) = 0;
    }
    return status;
  }
};
CU(cuGraphExecUpdate_v2) {
  static hipError_t call(const Table &t, void *real, W exec, W graph, W info) {
    bool asked = false;
    const hipError_t status = update(t, exec_of(exec), graph_of(graph), [&](hipGraphExec_t now) {
      asked = true;
      return go(real, static_cast<W>(now), graph, info);
    });
    if (!asked && !status && info) *as<cuGraphExecUpdateResultInfo *>(info) = {};
    return status;
  }
};
CU(cuGraphExecKernelNodeSetParams_v2) {
  static hipError_t call(const Table &t, void *real, W exec, W node, W params) {
    return set_params(
        t, exec_of(exec), node_of(node),
        [&](hipGraphExec_t now, hipGraphNode_t there) { return go(real, static_cast<W>(now), static_cast<W>(there), params); },
        [&](Record *, hipGraphNode_t twin) {
          void *set = cuda_function(Fn::cuGraphKernelNodeSetParams_v2);
          return set ? go(set, static_cast<W>(twin), params) : kNotSupported;
        });
  }
};
CU(cuGraphExecMemsetNodeSetParams) {
  static hipError_t call(const Table &t, void *real, W exec, W node, W params, W ctx) {
    return set_params(
        t, exec_of(exec), node_of(node),
        [&](hipGraphExec_t now, hipGraphNode_t there) {
          return go(real, static_cast<W>(now), static_cast<W>(there), params, ctx);
        },
        [&](Record *, hipGraphNode_t twin) {
          void *set = cuda_function(Fn::cuGraphMemsetNodeSetParams);
          return set ? go(set, static_cast<W>(twin), params) : kNotSupported;
        });
  }
};
CU(cuGraphExecMemcpyNodeSetParams) {
  static hipError_t call(const Table &t, void *real, W exec, W node, W params, W ctx) {
    return set_params(
        t, exec_of(exec), node_of(node),
        [&](hipGraphExec_t now, hipGraphNode_t there) {
          return go(real, static_cast<W>(now), static_cast<W>(there), params, ctx);
        },
        [&](Record *, hipGraphNode_t twin) {
          void *set = cuda_function(Fn::cuGraphMemcpyNodeSetParams);
          return set ? go(set, static_cast<W>(twin), params) : kNotSupported;
        });
  }
};
CU(cuGraphNodeSetEnabled) {
  static hipError_t call(const Table &t, void *real, W exec, W node, W on) {
    Record *r = awake(t, exec_of(exec));
    if (!r) return go(real, exec, node, on);
    if (!as<unsigned>(on)) r->has_switched_off = true;
    return go(real, static_cast<W>(r->real.load()), static_cast<W>(node_in(t, r, node_of(node))), on);
  }
};
CU(cuGraphExecDestroy) {
  static hipError_t call(const Table &t, void *, W exec) { return destroy(t, exec_of(exec)); }
};

template <Fn F, class... A>
hipError_t cuda_call(A... words) {
  const Table *t = cuda_table();
  void *real = t ? cuda_function(F) : nullptr;
  if (!real) {
    if (count_call(F, kLibraryInitFailed, 0)) explain(F, kLibraryInitFailed);
    return kLibraryInitFailed;
  }
  if (inside_shim) return go(real, words...);
  InsideShim guard;
  const uint64_t begin = begin_ns<F>();
  const hipError_t status = CuHook<F>::call(*t, real, words...);
  if (count_call(F, status, begin)) explain(F, status);
  return status;
}

}  // namespace
}  // namespace gfx

#define GFX_P1 gfx::W a
#define GFX_P2 GFX_P1, gfx::W b
#define GFX_P3 GFX_P2, gfx::W c
#define GFX_P4 GFX_P3, gfx::W d
#define GFX_P5 GFX_P4, gfx::W e
#define GFX_P6 GFX_P5, gfx::W f
#define GFX_P7 GFX_P6, gfx::W g
#define GFX_A1 a
#define GFX_A2 a, b
#define GFX_A3 a, b, c
#define GFX_A4 a, b, c, d
#define GFX_A5 a, b, c, d, e
#define GFX_A6 a, b, c, d, e, f
#define GFX_A7 a, b, c, d, e, f, g
#define GFX_CU(symbol, name, since, stream, arguments)                                           \
  extern "C" __attribute__((visibility("default"))) hipError_t symbol(GFX_P##arguments) {        \
    return gfx::cuda_call<gfx::Fn::symbol>(GFX_A##arguments);                                     \
  }
#include "../cuda.inc"
