#include "explain.h"

#include <unistd.h>

#include <cstdio>

#include "counters.h"
#include "settings.h"

namespace gfx {
namespace {

struct Meaning {
  int number;
  const char *name;
  const char *text[2][2];  // language, then meaning and remedy
};
const Meaning kMeanings[] = {
#define GFX_STATUS(number, name, why, what, why_zh, what_zh) {number, name, {{why, what}, {why_zh, what_zh}}},
#include "statuses.inc"
};

// One write for the whole text: other threads print too.
void say(const char *text, int length) {
  if (length <= 0) return;
  ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(length));
  (void)written;  // nothing can be said about a stderr that is closed
}

int fit(int length, size_t room) {
  return length < 0 ? 0 : static_cast<size_t>(length) < room ? length : static_cast<int>(room) - 1;
}

}  // namespace

void explain(Fn fn, hipError_t status) {
  if (!settings().explain || status == 600) return;  // 600: not ready, an answer and not an error
  const bool zh = settings().chinese;
  char text[2048];
  for (const Meaning &m : kMeanings)
    if (m.number == status) {
      const char *format = zh ? "gfxgraph: %s 返回 %s (%d)\n  原因：%s\n  处理：%s\n  详情：gfxgraph explain %s\n"
                              : "gfxgraph: %s returned %s (%d)\n  why:  %s\n  do:   %s\n  more: gfxgraph explain %s\n";
      const int n = snprintf(text, sizeof text, format, name_of(fn), m.name, status, m.text[zh][0],
                             m.text[zh][1], m.name);
      return say(text, fit(n, sizeof text));
    }
  const Table *t = table();
  const char *name = t && t->hipGetErrorName ? t->hipGetErrorName(status) : nullptr;
  if (!name) name = "?";
  const int n = snprintf(text, sizeof text, "gfxgraph: %s returned %s (%d)\n  more: gfxgraph explain %s\n",
                         name_of(fn), name, status, name);
  say(text, fit(n, sizeof text));
}

void explain_escape(Fn fn, bool legacy_stream) {
  if (!settings().explain) return;
  const char *format;
  if (settings().chinese)
    format = legacy_stream ? "gfxgraph: 捕获期间，%s 在空流上立即执行，没有被录制\n  处理：在捕获流上提交它\n"
                           : "gfxgraph: %s 在捕获流上立即执行，返回成功，却没有被录制\n  处理：把它移出捕获；重放时它不会执行\n";
  else
    format = legacy_stream
                 ? "gfxgraph: %s on the null stream ran at once while a capture was active; it is in no graph\n"
                   "  do:   submit it to the capturing stream\n"
                 : "gfxgraph: %s on a capturing stream ran at once and returned success; nothing was recorded\n"
                   "  do:   move it out of the capture: a replay will not do it\n";
  char text[512];
  say(text, fit(snprintf(text, sizeof text, format, name_of(fn)), sizeof text));
}

void explain_fallback(const char *what, hipError_t status, size_t n_nodes) {
  if (!settings().explain) return;
  const char *format = settings().chinese
                           ? "gfxgraph: %s 失败 (%d)：改为逐个运行图的 %zu 个节点；结果相同，速度较慢\n"
                           : "gfxgraph: %s failed (%d): the graph's %zu nodes are run one by one instead; "
                             "same results, slower\n";
  char text[512];
  say(text, fit(snprintf(text, sizeof text, format, what, status, n_nodes), sizeof text));
}

}  // namespace gfx
