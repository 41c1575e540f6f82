// What the environment asks of the preload library; read once, before the first intercepted call.
#pragma once

namespace gfx {

struct Settings {
  const char *report;       // GFXGRAPH_PRELOAD_REPORT: file for the report; %p is the process id
  bool explain = true;      // GFXGRAPH_DIAG=0 silences explanations on stderr
  bool chinese = false;     // GFXGRAPH_LANG=zh
  bool fallback = true;     // GFXGRAPH_PRELOAD_FALLBACK=0: no copies of graphs, no node by node
  int capture_mode[3] = {0, 1, 2};  // GFXGRAPH_PRELOAD_CAPTURE_MODE: what to use for each that is asked for
  long update_budget = 0;   // GFXGRAPH_PRELOAD_UPDATE_BUDGET: updates before a new instantiation
  long refuse_launch = 0;   // GFXGRAPH_PRELOAD_REFUSE_LAUNCH: this launch is refused, as a rehearsal
  bool keep_deepbind = false;  // GFXGRAPH_PRELOAD_DEEPBIND=keep: leave RTLD_DEEPBIND as programs have it
  long exec_limit = 0;      // GFXGRAPH_PRELOAD_EXEC_LIMIT: execs at once; of more the longest unused are set aside
  long node_limit = 0;      // GFXGRAPH_PRELOAD_NODE_LIMIT: larger graphs are run node by node
};

const Settings &settings();

}  // namespace gfx
