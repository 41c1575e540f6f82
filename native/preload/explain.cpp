#include "explain.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "counters.h"
#include "settings.h"

namespace gfx {
namespace {

struct Meaning {
  int number;
  const char *name[2];     // HIP's, CUDA's
  const char *text[2][2];  // language, then meaning and remedy
};
const Meaning kMeanings[] = {
#define GFX_STATUS(number, hip, cuda, why, what, why_zh, what_zh) \
  {number, {hip, cuda}, {{why, what}, {why_zh, what_zh}}},
#include "statuses.inc"  // made by the build: tools/make_statuses.py
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

// CUDA's driver is asked by libcudart, whose name for the call the program's author knows.
void say_name(Fn fn, char *out, size_t room) {
  const char *name = name_of(fn);
  if (!is_cuda(fn)) {
    snprintf(out, room, "%s", name);
    return;
  }
  int n = static_cast<int>(strcspn(name, "_"));  // _v2, _ptsz: the driver's own
  snprintf(out, room, "cuda%.*s (%s)", n - 2, name + 2, name);
}

}  // namespace

void explain(Fn fn, hipError_t status) {
  if (!settings().explain || status == 600) return;  // 600: not ready, an answer and not an error
  const bool zh = settings().chinese, cuda = is_cuda(fn);
  char text[2048], name[128];
  say_name(fn, name, sizeof name);
  for (const Meaning &m : kMeanings) {
    // Above 910 the numbers of the two have parted.
    if (m.number != status || (cuda && status > 910 && status < 999)) continue;
    const char *format = zh ? "gfxgraph: %s 返回 %s (%d)\n  原因：%s\n  处理：%s\n  详情：gfxgraph explain %s\n"
                            : "gfxgraph: %s returned %s (%d)\n  why:  %s\n  do:   %s\n  more: gfxgraph explain %s\n";
    const int n = snprintf(text, sizeof text, format, name, m.name[cuda], status, m.text[zh][0], m.text[zh][1],
                           m.name[cuda]);
    return say(text, fit(n, sizeof text));
  }
  const Table *t = cuda ? nullptr : table();
  const char *what = t && t->hipGetErrorName ? t->hipGetErrorName(status) : nullptr;
  const int n = what ? snprintf(text, sizeof text, "gfxgraph: %s returned %s (%d)\n  more: gfxgraph explain %s\n",
                                name, what, status, what)
                     : snprintf(text, sizeof text, "gfxgraph: %s returned %d\n  more: gfxgraph explain %d\n", name,
                                status, status);
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

void explain_part(Fn fn) {
  if (!settings().explain) return;
  const char *format =
      settings().chinese
          ? "gfxgraph: 捕获期间，%s 的线程不足整数个工作组，已被拒绝 (1)：HIP 7 的图会运行整个工作组，越过数组末尾\n"
            "  处理：把线程数补成整数个工作组并在内核里检查边界，或在捕获之外启动\n"
          : "gfxgraph: %s of a part of a workgroup was refused in a capture (1): a graph of HIP 7 runs the whole one, "
            "beyond the arrays' ends\n"
            "  do:   launch whole workgroups and check bounds in the kernel, or launch it outside the capture\n";
  char text[512];
  say(text, fit(snprintf(text, sizeof text, format, name_of(fn)), sizeof text));
}

void explain_fallback(Fn fn, hipError_t status, size_t n_nodes) {
  if (!settings().explain) return;
  char text[512], name[128];
  say_name(fn, name, sizeof name);
  const bool zh = settings().chinese;
  int n;
  if (status) {
    const char *format = zh ? "gfxgraph: %s 失败 (%d)：改为逐个运行图的 %zu 个节点；结果相同，速度较慢\n"
                            : "gfxgraph: %s failed (%d): the graph's %zu nodes are run one by one instead; "
                              "same results, slower\n";
    n = snprintf(text, sizeof text, format, name, status, n_nodes);
  } else {
    const char *format = zh ? "gfxgraph: %s：图有 %zu 个节点，超过 GFXGRAPH_PRELOAD_NODE_LIMIT=%ld，逐个运行；结果相同，速度较慢\n"
                            : "gfxgraph: %s: the graph has %zu nodes, more than GFXGRAPH_PRELOAD_NODE_LIMIT=%ld: "
                              "they are run one by one; same results, slower\n";
    n = snprintf(text, sizeof text, format, name, n_nodes, settings().node_limit);
  }
  say(text, fit(n, sizeof text));
}

}  // namespace gfx
