// One call of the application, from shim to runtime and back.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "captures.h"
#include "counters.h"
#include "execs.h"
#include "explain.h"

namespace gfx {

// Set while a shim is on this thread's stack: what the runtime and we call from there is not the
// application's, and must not be counted or changed.
extern thread_local bool inside_shim;

// What hipGetLastError owes this thread's program: the answer to its last call, where calls of ours came between.
// HIP before 7 remembers the last call, whoever made it; and some answers are ours.
extern thread_local hipError_t owed_error;
inline void owe(const Table &t, hipError_t status) {
  if (status && t.hipPeekAtLastError && t.hipPeekAtLastError() != status) owed_error = status;
}

struct InsideShim {
  InsideShim() { inside_shim = true; }
  ~InsideShim() { inside_shim = false; }
};

// Exec and node handles, translated in argument order: the exec comes first in every such function.
struct Translate {
  const Table &t;
  Record *record = nullptr;
  template <class T>
  T operator()(T value) {
    if constexpr (std::is_same_v<T, hipGraphExec_t>) {
      record = find_record(value);
      return record ? record->real.load() : value;
    } else if constexpr (std::is_same_v<T, hipGraphNode_t>) {
      return node_in(t, record, value);
    } else {
      return value;
    }
  }
};

template <class... A>
constexpr bool names_an_exec = (std::is_same_v<A, hipGraphExec_t> || ...);

template <class... A>
struct AddsANode : std::false_type {};
template <class... A>
struct AddsANode<hipGraphNode_t *, hipGraph_t, A...> : std::true_type {};

template <class... A>
hipStream_t stream_of(A... args) {
  hipStream_t stream = nullptr;
  auto look_at = [&](auto value) {
    if constexpr (std::is_same_v<decltype(value), hipStream_t>) stream = value;
  };
  (look_at(args), ...);
  return stream;
}

// What a function does besides calling the runtime. The general case: translated handles.
template <Fn F>
struct Hook {
  template <class... A>
  static hipError_t call(const Table &t, hipError_t (*real)(A...), A... args) {
    if constexpr (names_an_exec<A...>) {
      Translate translate{t};
      std::tuple<A...> now{translate(args)...};  // braces: from left to right
      return std::apply(real, now);
    } else {
      return real(args...);
    }
  }
};

// A graph or capture call.
template <Fn F, class... A>
hipError_t graph_call(hipError_t (*Table::*slot)(A...), std::common_type_t<A>... args) {
  const Table *t = table();
  if (!t || !(t->*slot)) {
    if (count_call(F, kLibraryInitFailed, 0)) explain(F, kLibraryInitFailed);
    return kLibraryInitFailed;
  }
  if (inside_shim) return (t->*slot)(args...);
  InsideShim guard;
  owed_error = kSuccess;
  const uint64_t begin = begin_ns<F>();
  const hipError_t status = Hook<F>::call(*t, t->*slot, args...);
  if constexpr (AddsANode<A...>::value)
    if (!status && any_capture()) note_placed(*std::get<0>(std::tie(args...)));
  if (count_call(F, status, begin)) explain(F, status);
  owe(*t, status);
  return status;
}

// An instantiation, whichever of its forms: `call` makes it.
template <class Call>
hipError_t instantiate(const Table &t, Fn fn, hipGraphExec_t *exec, hipGraph_t graph, unsigned long long flags,
                       Call call) {
  const uint64_t begin = now_ns();
  const bool over = over_node_limit(t, graph);
  const hipError_t status = over ? kOutOfMemory : call();
  return instantiated(t, fn, status, exec, graph, flags, now_ns() - begin, over);
}

void escaped(Fn fn, bool legacy_stream);
// What a recorded call left in the graph; `before` was looked at before it.
template <Fn F, class... A>
void check_recorded(const Table &t, const Look &before, hipStream_t stream, A... args);

// hipExtModuleLaunchKernel counts threads. Where they fill no whole workgroup, HIP 7's graphs run the whole one, beyond
// the arrays' ends, and HIP 6 refuses the launch in a capture: so do we, whatever the version.
template <class... A>
bool has_part_of_a_workgroup(hipFunction_t, unsigned x, unsigned y, unsigned z, unsigned group_x, unsigned group_y,
                             unsigned group_z, A...) {
  return (group_x && x % group_x) || (group_y && y % group_y) || (group_z && z % group_z);
}

// A call that puts work on a stream. Outside of captures it costs one load.
template <Fn F, class... A>
hipError_t work_call(hipError_t (*Table::*slot)(A...), std::common_type_t<A>... args) {
  const Table *t = table();
  if (!t || !(t->*slot)) return kLibraryInitFailed;
  if (!inside_shim) owed_error = kSuccess;
  if (inside_shim || !any_capture()) return (t->*slot)(args...);
  InsideShim guard;
  const hipStream_t stream = stream_of(args...);
  const Look before = look(*t, stream);
  const uint64_t begin = now_ns();
  bool is_part = false;
  if constexpr (F == Fn::hipExtModuleLaunchKernel) is_part = before.capturing && has_part_of_a_workgroup(args...);
  hipError_t status = kInvalidValue;
  bool is_made = is_part;
  if constexpr (F == Fn::hipStreamWaitEvent) is_made = waits_inside(*t, before, args..., &status);
  if (!is_made) status = (t->*slot)(args...);
  if (is_part) owed_error = status;
  if (count_call(F, status, begin)) is_part ? explain_part(F) : explain(F, status);
  if (!status) {
    if constexpr (F == Fn::hipEventRecord) note_event(std::get<0>(std::tie(args...)), before);
    // With flags it may be a node of the graph, which marks no place in the capture.
    if constexpr (F == Fn::hipEventRecordWithFlags) note_event(std::get<0>(std::tie(args...)), std::get<2>(std::tie(args...)) ? Look{} : before);
    if (before.capturing) check_recorded<F>(*t, before, stream, args...);
    else if (is_legacy(stream) && F != Fn::hipEventRecord && F != Fn::hipStreamWaitEvent) escaped(F, true);
  }
  return status;
}

template <class... A>
bool has_no_bytes(A... args) {
  bool none = false;
  auto look_at = [&](auto value) {
    if constexpr (std::is_same_v<decltype(value), size_t>) none = none || value == 0;
  };
  (look_at(args), ...);
  return none;
}

// Copies and fills of no bytes are dropped without a node, which is right.
constexpr bool is_copy_or_fill(Fn fn) {
  return fn == Fn::hipMemcpyAsync || fn == Fn::hipMemcpyDtoDAsync || fn == Fn::hipMemcpyDtoHAsync ||
         fn == Fn::hipMemcpyHtoDAsync || fn == Fn::hipMemcpy2DAsync || fn == Fn::hipMemsetAsync ||
         fn == Fn::hipMemsetD8Async || fn == Fn::hipMemsetD16Async || fn == Fn::hipMemsetD32Async ||
         fn == Fn::hipMemset2DAsync;
}

template <Fn F, class... A>
void check_recorded(const Table &t, const Look &before, hipStream_t stream, A... args) {
  const auto all = std::make_tuple(args...);
  if constexpr (F == Fn::hipEventRecord || F == Fn::hipEventRecordWithFlags) return;
  const Look after = look(t, stream);
  const bool grew = !after.capturing || after.n_nodes > before.n_nodes;
  if constexpr (F == Fn::hipMemcpyAsync) {
    if (grew && after.frontier.size() == 1) {
      remember_copy(after.frontier[0], {std::get<0>(all), std::get<1>(all), std::get<2>(all), std::get<3>(all)});
    }
  }
  if (grew || after.frontier != before.frontier) return;
  if constexpr (F == Fn::hipStreamWaitEvent) {
    // Waiting for what the stream already depends on changes nothing, and rightly so.
    if (was_recorded_inside(std::get<1>(all))) return;
  }
  if (is_copy_or_fill(F) && has_no_bytes(args...)) return;
  escaped(F, false);
}

}  // namespace gfx
