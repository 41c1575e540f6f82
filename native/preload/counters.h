// What happened, in static atomics: written without locks, read by a signal handler.
#pragma once

#include <atomic>
#include <ctime>

#include "../table.h"

namespace gfx {

using Count = std::atomic<uint64_t>;

struct FnCounter {
  Count calls, failures, escaped;
  Count timed, ns, max_ns;  // of those calls that were timed
};

struct Failure {
  std::atomic<int> fn{-1};
  std::atomic<hipError_t> status{0};
  Count times;
};

struct Counters {
  FnCounter fn[kFnCount];
  Failure failures[64];  // distinct (function, status); the rest only count in fn
  Count captures, captures_failed, captured_nodes;
  Count fallback_instantiate, fallback_launch, fallback_refused, walked_nodes;
  Count rebuilds;
  Count set_aside, made_again;  // execs, under a limit of how many there are
  Count legacy_stream_work;  // work on the null stream while a capture was active
};

extern Counters counters;

inline void add(Count &count, uint64_t n = 1) { count.fetch_add(n, std::memory_order_relaxed); }

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// Two readings of the clock cost as much as all else that a launch is given, so only some launches are timed.
constexpr bool is_launch(Fn fn) {
  return fn == Fn::hipGraphLaunch || fn == Fn::hipGraphLaunch_spt || fn == Fn::cuGraphLaunch ||
         fn == Fn::cuGraphLaunch_ptsz;
}
constexpr uint32_t kTimedLaunches = 16;  // one in so many, by thread
extern thread_local uint32_t launches_here;

// When a call of `fn` began; 0 where it is not timed.
template <Fn F>
uint64_t begin_ns() {
  if constexpr (is_launch(F))
    if (launches_here++ % kTimedLaunches) return 0;
  return now_ns();
}

// Count a finished call; true the first time that this function failed with this status.
bool count_call(Fn fn, hipError_t status, uint64_t begun_ns);

// Whether the application has made any graph call yet.
bool any_call();

}  // namespace gfx
