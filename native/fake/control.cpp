#include "control.h"

#include <cstdlib>

#include "device.h"

namespace fake {
namespace {

// name, version, refused end frees the stream, callback refused, success is last, stream values recorded
const Profile kProfiles[] = {
    {"6.2", 60241133, false, false, true, false},
    {"7.2.0", 70226015, false, true, false, false},
    {"7.14", 71426000, true, true, false, false},
    {"10.0", 71526333, true, true, false, true},
};

void add_to(dim3 grid, dim3 block, void **args) {
  int *out = *static_cast<int **>(args[0]);
  const int *in = *static_cast<const int **>(args[1]);
  int value = *static_cast<int *>(args[2]), n = *static_cast<int *>(args[3]);
  for (unsigned i = 0; i < grid.x * block.x; i++)
    if (static_cast<int>(i) < n) out[i] = in[i] + value;
}

Kernel add_kernel{"add_to", {8, 8, 4, 4}, add_to};
char add_stub, add_function;

}  // namespace

World &world() {
  static World *made = [] {
    auto *w = new World;  // never destroyed: calls may come while the process ends
    w->profile = &kProfiles[1];
    w->stubs[&add_stub] = &add_kernel;
    w->stubs[&add_function] = &add_kernel;
    w->functions.insert(&add_function);
    const char *wanted = getenv("GFX_FAKE_PROFILE");
    for (const Profile &profile : kProfiles)
      if (wanted && !strcmp(profile.name, wanted)) w->profile = &profile;
    // "3", "3:2" or "1:2:hipGraphLaunch": which call fails, with what, counting which function.
    if (const char *fail = getenv("GFX_FAKE_FAIL")) {
      char *rest = nullptr;
      w->fail_at = strtol(fail, &rest, 10);
      if (rest && *rest == ':') w->fail_status = static_cast<int>(strtol(rest + 1, &rest, 10));
      if (rest && *rest == ':') w->fail_name = rest + 1;
    }
    return w;
  }();
  return *made;
}

constexpr size_t kLongestLog = 100000;  // a million launches, measured, must not wait for memory

hipError_t enter(const char *name) {
  World &w = world();
  if (w.profile->success_is_last) w.last_error = 0;
  if (w.log.size() < kLongestLog) w.log.emplace_back(name);
  if (!w.fail_name.empty() && w.fail_name != name) return 0;
  w.n_calls++;
  if (!w.fail_at || w.n_calls != w.fail_at) return 0;
  w.refused = name;
  return done(w.fail_status);
}

hipError_t done(hipError_t status) {
  if (status) world().last_error = status;
  return status;
}

}  // namespace fake

using fake::world;

FAKE_API int fake_use_profile(const char *name) {
  for (const auto &profile : fake::kProfiles)
    if (!strcmp(profile.name, name)) return world().profile = &profile, 1;
  return 0;
}
FAKE_API void fake_fail(long nth, hipError_t status, const char *name) {
  world().n_calls = 0;
  world().fail_at = nth;
  world().fail_status = status;
  world().fail_name = name ? name : "";
  world().refused.clear();
}
FAKE_API long fake_calls(void) { return world().n_calls; }
FAKE_API int fake_count(const char *name) {
  int n = 0;
  for (const std::string &called : world().log) n += called == name;
  return n;
}
FAKE_API void fake_reset_log(void) { world().log.clear(); }
FAKE_API const void *fake_stub_add_to(void) { return world(), &fake::add_stub; }
FAKE_API hipFunction_t fake_function_add_to(void) {
  return reinterpret_cast<hipFunction_t>(&fake::add_function);
}
FAKE_API const char *fake_refused(void) { return world().refused.c_str(); }
FAKE_API void fake_strict(int on) { world().strict = on != 0; }
FAKE_API void fake_busy(int on) {
  world().busy = on != 0;
  if (on) return;
  for (fake::Event *each : world().events) each->pending = false;
  for (fake::Exec *each : world().execs) each->running = false;
}
FAKE_API int fake_touched(void) { return world().n_touched; }
FAKE_API int fake_live_others(void) {
  return static_cast<int>(world().streams.size() + world().events.size() + world().objects.size() +
                          world().pinned.size());
}
FAKE_API int fake_live_graphs(void) { return static_cast<int>(world().graphs.size()); }
FAKE_API int fake_live_execs(void) { return static_cast<int>(world().execs.size()); }
