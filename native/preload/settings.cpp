#include "settings.h"

#include <cstdlib>
#include <cstring>

namespace gfx {
namespace {

bool is_off(const char *name) {
  const char *value = getenv(name);
  return value && !strcmp(value, "0");
}

long count(const char *name) {
  const char *value = getenv(name);
  const long n = value ? strtol(value, nullptr, 10) : 0;
  return n > 0 ? n : 0;
}

Settings read() {
  Settings s;
  s.report = getenv("GFXGRAPH_PRELOAD_REPORT");
  s.explain = !is_off("GFXGRAPH_DIAG");
  const char *lang = getenv("GFXGRAPH_LANG");
  s.chinese = lang && !strncmp(lang, "zh", 2);
  s.fallback = !is_off("GFXGRAPH_PRELOAD_FALLBACK");
  const char *const modes[] = {"global", "thread_local", "relaxed"};
  if (const char *mode = getenv("GFXGRAPH_PRELOAD_CAPTURE_MODE"))
    for (int i = 0; i < 3; i++)
      if (!strcmp(mode, modes[i])) s.capture_mode = i;
  s.update_budget = count("GFXGRAPH_PRELOAD_UPDATE_BUDGET");
  s.refuse_launch = count("GFXGRAPH_PRELOAD_REFUSE_LAUNCH");
  s.node_limit = count("GFXGRAPH_PRELOAD_NODE_LIMIT");
  return s;
}

}  // namespace

const Settings &settings() {
  static const Settings read_once = read();
  return read_once;
}

}  // namespace gfx
