// Finding HIP, translating statuses, saying what is refused, and the symbol report.
#include "compat.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "../bridge/errors.h"

namespace gfx::compat {

Counter counters[kCudaCount];

namespace {

struct Symbol {
  const char *name, *how, *to;
  int version;  // of libcudart: 0 both, 12 only 12
};
const Symbol kSymbols[] = {
#define CUDA_SAME(name, hip, params, args) {#name, "mapped", #hip, 0},
#define CUDA_CONVERTED(name, params, args) {#name, "mapped", "hip", 0},
#define CUDA_BRIDGED(name, params, args) {#name, "bridged", "hip", 0},
#define CUDA_REFUSED(name, params, args) {#name, "refused", "", 0},
#define CUDA_PTSZ(name, plain, params, args) {#name, "mapped", #plain, 0},
#include "cuda.inc"
#define CUDA_12(name, plain, params, args) {#name, "bridged", #plain, 12},
#include "cuda.inc"
};
static_assert(sizeof kSymbols / sizeof *kSymbols == kCudaCount);

// The HIP function behind a CUDA name, where there is one of the same name.
std::string target(const Symbol &symbol) {
  // By the kind of node, one of many.
  for (const char *name : {"cudaGraphAddNode", "cudaGraphNodeSetParams", "cudaGraphExecNodeSetParams"})
    if (!strcmp(symbol.name, name) || !strcmp(symbol.to, name)) return "";
  if (strcmp(symbol.to, "hip") != 0) return symbol.to;
  return std::string("hip") + (symbol.name + 4);
}

bool is_in_runtime(const Table &t, const std::string &name) {
#define GFX_GRAPH(fn, need, params, args) \
  if (name == #fn) return t.fn != nullptr;
#include "../api.inc"
  return false;
}

bool quiet() {
  const char *diag = getenv("GFXGRAPH_DIAG");
  return diag && !strcmp(diag, "0");
}
void say(const char *code, Fields fields) {
  if (quiet()) return;
  const char *language = getenv("GFXGRAPH_LANG");
  const std::string text = catalogue_text(code, language && !strncmp(language, "zh", 2), fields) + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}
bool first_failure(Cuda which) { return counters[static_cast<int>(which)].failures.load(std::memory_order_relaxed) == 0; }

// HIP's name for a status, and CUDA's number for it, where the numbers differ.
struct Renumbered {
  const char *name;
  cudaError_t cuda;
};
const Renumbered kRenumbered[] = {
    {"hipErrorInvalidChannelDescriptor", 20},
    {"hipErrorInvalidTexture", 18},
    {"hipErrorInvalidClusterSize", 912},
    {"hipErrorStreamDetached", 917},
};

struct AtExit {
  ~AtExit() {
    const char *path = getenv("GFXGRAPH_COMPAT_REPORT");
    if (!path || !*path) return;
    if (FILE *out = fopen(path, "w")) {
      const std::string text = report();
      fwrite(text.data(), 1, text.size(), out);
      fclose(out);
    }
  }
} at_exit;

}  // namespace

const char *name_of(Cuda which) { return kSymbols[static_cast<int>(which)].name; }

const Table *hip() {
  return hip_backend(true) ? table() : nullptr;
}
const Backend &backend() { return *hip_backend(true); }

cudaError_t to_cuda_status(const Table &t, hipError_t status) {
  if (status <= 910) return status;
  const char *name = t.hipGetErrorName ? t.hipGetErrorName(status) : nullptr;
  for (const Renumbered &each : kRenumbered)
    if (name && !strcmp(name, each.name)) return each.cuda;
  return kCudaUnknown;
}

int refuse(Cuda which, const char *problem) {
  if (!first_failure(which)) return kRefused;
  const bool is_conditional = strstr(name_of(which), "Conditional") != nullptr;
  if (!problem)
    problem = is_conditional ? "HIP has no conditional nodes; gfxg_conditional of gfxgraph.h chooses on the host"
                             : "HIP gives graphs and nodes no numbers";
  say("native_compat_refused", {{"api", name_of(which)}, {"problem", problem}});
  return kRefused;
}
void absent(Cuda which, const char *hip_name) {
  if (!first_failure(which)) return;
  const std::string name = strncmp(hip_name, "cuda", 4) ? hip_name : std::string("hip") + (hip_name + 4);
  say("native_function_missing", {{"api", name}, {"library", table()->library}});
}
void no_runtime(Cuda which) {
  if (first_failure(which)) say("native_no_runtime", {});
}

std::string report() {
  const Table *t = hip();
  std::string out = "{\"library\": \"";
  out += t ? t->library : "";
  out += "\", \"hip\": " + std::to_string(t ? t->version : 0) + ", \"symbols\": {";
  for (int i = 0; i < kCudaCount; i++) {
    const Symbol &symbol = kSymbols[i];
    const std::string to = target(symbol);
    const bool same_library = !strncmp(to.c_str(), "cuda", 4);  // a form of another of ours
    std::string asked = same_library ? std::string("hip") + (to.c_str() + 4) : to;
    if (const size_t at = asked.find("_ptsz"); at != std::string::npos) asked.erase(at);
    if (i) out += ", ";
    out += std::string("\"") + symbol.name + (symbol.version == 12 ? "@12" : "") + "\": {\"how\": \"" + symbol.how + "\"";
    if (!to.empty()) {
      out += ", \"to\": \"" + to + "\", \"present\": ";
      out += t && is_in_runtime(*t, asked) ? "true" : "false";
    }
    out += ", \"calls\": " + std::to_string(counters[i].calls.load()) +
           ", \"failures\": " + std::to_string(counters[i].failures.load()) + "}";
  }
  return out + "}}\n";
}

}  // namespace gfx::compat

// The symbol report as JSON, like snprintf: the length it has, at most size - 1 copied.
extern "C" __attribute__((visibility("default"))) size_t gfxgraph_compat_report(char *buffer, size_t size) {
  return gfx::copy_text(gfx::compat::report(), buffer, size);
}
