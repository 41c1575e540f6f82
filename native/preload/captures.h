// Captures that are active, and work that a capture did not record.
#pragma once

#include <vector>

#include "../table.h"

namespace gfx {

// Cheap: whether any thread has a capture active. Everything else here is for when it has.
bool any_capture();
bool is_capturing(const Table &t, hipStream_t stream);
inline bool is_legacy(hipStream_t stream) { return reinterpret_cast<uintptr_t>(stream) <= 1; }

// What a capturing stream's graph looks like at one moment.
struct Look {
  bool capturing = false;
  unsigned long long id = 0;
  size_t n_nodes = 0;
  std::vector<hipGraphNode_t> frontier;
};
Look look(const Table &t, hipStream_t stream);

// The mode that a capture is begun in where the settings choose one.
hipStreamCaptureMode chosen_mode(hipStreamCaptureMode mode);
void capture_began(const Table &t, hipStream_t stream, hipGraph_t into = nullptr);
hipError_t end_capture(const Table &t, hipError_t (*real)(hipStream_t, hipGraph_t *), hipStream_t stream,
                       hipGraph_t *graph);

// An event was recorded: inside the capture that `where` shows, or in none.
void note_event(hipEvent_t event, const Look &where);
// A wait that needs no fork is made as a dependency, and its status left in `status`; false where HIP's own is due.
bool waits_inside(const Table &t, const Look &before, hipStream_t stream, hipEvent_t event, unsigned int flags,
                  hipError_t *status);
bool was_recorded_inside(hipEvent_t event);
void note_placed(hipGraphNode_t node);  // into a graph that may be captured, by hand

void lock_captures();
void unlock_captures();

}  // namespace gfx
