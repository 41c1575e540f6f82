// The report: JSON, at exit and on SIGUSR1.
//
// Written with write(2) from static atomics, without locks or memory, so that it may run in a signal
// handler and while the process ends.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "captures.h"
#include "counters.h"
#include "execs.h"
#include "noted.h"
#include "settings.h"

namespace gfx {
namespace {

class Json {
 public:
  explicit Json(int fd) : fd_(fd) {}
  ~Json() { flush(); }
  Json &raw(const char *text) {
    for (; *text; text++) put(*text);
    return *this;
  }
  Json &text(const char *value) {
    put('"');
    for (const char *c = value ? value : ""; *c; c++) {
      if (*c == '"' || *c == '\\') put('\\');
      put(static_cast<unsigned char>(*c) < 32 ? ' ' : *c);
    }
    put('"');
    return *this;
  }
  Json &number(uint64_t value) {
    char digits[21];
    int n = 0;
    do digits[n++] = static_cast<char>('0' + value % 10);
    while (value /= 10);
    while (n) put(digits[--n]);
    return *this;
  }
  Json &field(const char *name, const Count &value) { return key(name).number(value.load()); }
  Json &key(const char *name) {
    if (!first_) put(',');
    first_ = false;
    return text(name).raw(":");
  }
  Json &open(char bracket) {
    put(bracket);
    first_ = true;
    return *this;
  }
  Json &close(char bracket) {
    put(bracket);
    first_ = false;
    return *this;
  }
  Json &item() {
    if (!first_) put(',');
    first_ = false;
    return *this;
  }

 private:
  void put(char c) {
    if (n_ == sizeof buffer_) flush();
    buffer_[n_++] = c;
  }
  void flush() {
    for (size_t at = 0; at < n_;) {
      const ssize_t wrote = write(fd_, buffer_ + at, n_ - at);
      if (wrote <= 0) break;
      at += static_cast<size_t>(wrote);
    }
    n_ = 0;
  }
  int fd_;
  size_t n_ = 0;
  bool first_ = true;
  char buffer_[4096];
};

// The path with %p replaced by the process id; false when it does not fit.
bool expand(const char *pattern, char *out, size_t room) {
  size_t n = 0;
  for (const char *c = pattern; *c; c++) {
    if (c[0] == '%' && c[1] == 'p') {
      char digits[21];
      int d = 0;
      for (uint64_t id = static_cast<uint64_t>(getpid()); id; id /= 10)
        digits[d++] = static_cast<char>('0' + id % 10);
      while (d && n + 1 < room) out[n++] = digits[--d];
      c++;
    } else if (n + 1 < room) {
      out[n++] = *c;
    }
  }
  out[n] = 0;
  return n + 1 < room;
}

void write_report() {
  char path[4096];
  if (!settings().report || !expand(settings().report, path, sizeof path)) return;
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  {
    Json j(fd);
    j.open('{').key("version").number(1).key("pid").number(static_cast<uint64_t>(getpid()));
    // Not table(): it may take a lock. Nothing was called yet where it is not filled.
    const Table *t = any_call() || noted(Noted::kAsked, 0) ? any_table() : nullptr;
    j.key("library").text(t ? t->library : "").key("runtime").text(!t ? "" : t->cuda ? "cuda" : "hip");
    j.key("runtime_version").number(t ? static_cast<uint64_t>(t->version) : 0);
    const char *const kinds[kNotedKinds] = {"asked_by", "deepbind_cleared", "deepbind_kept", "namespaces"};
    for (int kind = 0; kind < kNotedKinds; kind++) {
      j.key(kinds[kind]).open('[');
      for (int i = 0; const char *path = noted(static_cast<Noted>(kind), i); i++) j.item().text(path);
      j.close(']');
    }
    const Counters &c = counters;
    j.field("captures", c.captures).field("captures_failed", c.captures_failed);
    j.field("captured_nodes", c.captured_nodes).field("rebuilds", c.rebuilds);
    j.field("set_aside", c.set_aside).field("made_again", c.made_again);
    j.key("fallback").open('{').field("instantiate", c.fallback_instantiate).field("launch", c.fallback_launch);
    j.field("refused", c.fallback_refused).field("nodes", c.walked_nodes).close('}');
    j.key("legacy_stream_work").number(c.legacy_stream_work.load());
    j.key("calls").open('{');
    for (int i = 0; i < kFnCount; i++) {
      const FnCounter &f = c.fn[i];
      if (!f.calls.load() && !f.escaped.load()) continue;
      j.key(name_of(static_cast<Fn>(i))).open('{').field("calls", f.calls).field("failures", f.failures);
      j.field("timed", f.timed).field("ns", f.ns).field("max_ns", f.max_ns).close('}');
    }
    j.close('}').key("not_recorded").open('{');
    for (int i = 0; i < kFnCount; i++)
      if (c.fn[i].escaped.load()) j.field(name_of(static_cast<Fn>(i)), c.fn[i].escaped);
    j.close('}').key("failures").open('[');
    for (const Failure &f : c.failures) {
      const int fn = f.fn.load();
      if (fn < 0) continue;
      j.item().open('{').key("api").text(name_of(static_cast<Fn>(fn)));
      j.key("status").number(static_cast<uint64_t>(f.status.load())).field("times", f.times).close('}');
    }
    j.close(']').key("execs").open('[');
    for (const Record &r : records) {
      if (!r.was_used.load()) continue;
      j.item().open('{').key("live").number(r.handle.load() != nullptr).field("nodes", r.n_nodes).field("launches", r.launches);
      j.field("updates", r.updates).field("walked", r.walked).field("instantiate_ns", r.instantiate_ns).close('}');
    }
    j.close(']').close('}').raw("\n");
  }
  close(fd);
}

void on_signal(int) {
  const int kept = errno;
  write_report();
  errno = kept;
}

void before_fork() {
  lock_tables();
  lock_noted();
  lock_execs();
  lock_captures();
}
void after_fork() {
  unlock_captures();
  unlock_execs();
  unlock_noted();
  unlock_tables();
}

__attribute__((constructor)) void begin() {
  pthread_atfork(before_fork, after_fork, after_fork);
  if (!settings().report) return;
  struct sigaction now;
  // A program that has its own use for the signal keeps it.
  if (sigaction(SIGUSR1, nullptr, &now) || now.sa_handler != SIG_DFL) return;
  memset(&now, 0, sizeof now);
  now.sa_handler = on_signal;
  now.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &now, nullptr);
}

// Shells and wrappers on the way to the program inherit us; they have nothing to report.
__attribute__((destructor)) void end() {
  if (any_call() || noted(Noted::kAsked, 0) || noted(Noted::kDeep, 0) || noted(Noted::kApart, 0)) write_report();
}

}  // namespace
}  // namespace gfx
