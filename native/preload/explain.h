// A failing call, explained on stderr, once for each function and status.
#pragma once

#include "../table.h"

namespace gfx {

void explain(Fn fn, hipError_t status);
// A call that succeeded without doing what a capture expects of it.
void explain_escape(Fn fn, bool legacy_stream);
// A launch that we refused, as a replay would run more threads than it has.
void explain_part(Fn fn);
// `status` is what was refused with; kSuccess where nothing was, and the graph is over the node limit.
void explain_fallback(Fn fn, hipError_t status, size_t n_nodes);

}  // namespace gfx
