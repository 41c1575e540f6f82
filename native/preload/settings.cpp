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

// -1 where `text` does not begin with a mode; else the mode, and `text` behind it.
int mode_at(const char **text) {
  const char *const names[] = {"global", "thread_local", "relaxed"};
  for (int i = 0; i < 3; i++)
    if (!strncmp(*text, names[i], strlen(names[i]))) return *text += strlen(names[i]), i;
  return -1;
}

// "thread_local" for all, or "global:thread_local,relaxed:thread_local" for each by itself.
void read_modes(const char *text, int *modes) {
  while (*text) {
    const int asked = mode_at(&text);
    if (asked < 0) return;
    if (*text == ':') {
      text++;
      const int used = mode_at(&text);
      if (used < 0) return;
      modes[asked] = used;
    } else if (!*text) {
      modes[0] = modes[1] = modes[2] = asked;
    }
    if (*text == ',') text++;
    else return;
  }
}

Settings read() {
  Settings s;
  s.report = getenv("GFXGRAPH_PRELOAD_REPORT");
  s.explain = !is_off("GFXGRAPH_DIAG");
  const char *lang = getenv("GFXGRAPH_LANG");
  s.chinese = lang && !strncmp(lang, "zh", 2);
  s.fallback = !is_off("GFXGRAPH_PRELOAD_FALLBACK");
  if (const char *modes = getenv("GFXGRAPH_PRELOAD_CAPTURE_MODE")) read_modes(modes, s.capture_mode);
  const char *deepbind = getenv("GFXGRAPH_PRELOAD_DEEPBIND");
  s.keep_deepbind = deepbind && !strcmp(deepbind, "keep");
  s.update_budget = count("GFXGRAPH_PRELOAD_UPDATE_BUDGET");
  s.refuse_launch = count("GFXGRAPH_PRELOAD_REFUSE_LAUNCH");
  s.exec_limit = count("GFXGRAPH_PRELOAD_EXEC_LIMIT");
  s.node_limit = count("GFXGRAPH_PRELOAD_NODE_LIMIT");
  return s;
}

}  // namespace

const Settings &settings() {
  static const Settings read_once = read();
  return read_once;
}

}  // namespace gfx
