// The fake runtime's objects: a device that is this CPU and runs everything at once, in order.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../abi.h"

namespace fake {

// What a release does differently. One line each in control.cpp, from measurements on real HIP.
struct Profile {
  const char *name;
  int version;                    // hipRuntimeGetVersion
  bool refused_end_frees_stream;  // 901 resets the stream's status
  bool callback_is_refused;       // hipStreamAddCallback in a capture: 900; else it runs at once
  bool success_is_last;           // hipGetLastError answers for the last call, which may have succeeded
  bool stream_values_recorded;    // hipStreamWriteValue* becomes a node; else it runs at once
};

struct Kernel {
  std::string name;
  std::vector<size_t> sizes;  // of the arguments
  std::function<void(dim3 grid, dim3 block, void **args)> body;
};

struct Graph;

struct Node {
  gfx::NodeType type = gfx::kEmpty;
  Graph *owner = nullptr;
  std::vector<Node *> after;  // what it depends on
  Node *copied_from = nullptr;
  bool recorded = false;  // by a capture; what a program adds to its graph by hand is no fork
  // kernel: the node's own copy of its arguments, as HIP keeps it
  hipKernelNodeParams kernel{};
  std::vector<std::vector<char>> arguments;
  std::vector<void *> slots;
  hipMemcpy3DParms copy{};
  bool one_dimensional = false;  // a 1D copy, whose 3D params HIP leaves empty
  void *dst = nullptr;
  const void *src = nullptr;
  size_t nbytes = 0;
  hipMemsetParams set{};
  hipHostNodeParams host{};
  std::function<void()> other;  // stream values
  hipEvent_t event = nullptr;
  void *freed = nullptr;
  char params[120] = {};  // of the kinds that are kept as they come: allocations, semaphores, batches
  char attributes[16][64] = {};
  std::unique_ptr<Graph> child;

  void keep_arguments(const hipKernelNodeParams &given);
  void run();
};

struct UserObject {
  void *data;
  hipHostFn_t destroy;
  unsigned n_references;
  void release(unsigned n);
};

struct Graph {
  Graph() = default;
  ~Graph();
  std::map<UserObject *, unsigned> retained;
  std::vector<std::unique_ptr<Node>> nodes;
  Node *add(gfx::NodeType type, const std::vector<Node *> &after);
  std::vector<Node *> leaves() const;
  std::vector<Node *> ordered() const;  // topologically
  std::unique_ptr<Graph> clone() const;
};

struct Exec {
#ifndef __SANITIZE_ADDRESS__
  // Addresses come back at once, as they may: a handle that is kept too long is somebody else's.
  static inline std::vector<void *> spare;
  static void *operator new(size_t n) {
    if (spare.empty()) return ::operator new(n);
    void *found = spare.back();
    spare.pop_back();
    return found;
  }
  static void operator delete(void *gone) { spare.push_back(gone); }
#endif
  std::unique_ptr<Graph> graph;  // nodes remember which they were copied from
  std::set<const Node *> off;
  unsigned long long flags = 0;
  bool running = false;  // only while the device is made to be busy
  Node *find(const Node *original) const;
};

struct Stream {
  gfx::CaptureStatus status = gfx::kNone;
  int mode = 0;
  unsigned long long id = 0;
  std::shared_ptr<Graph> capture;
  bool edited = false;  // an end was left behind by hipStreamUpdateCaptureDependencies
  bool capture_gone = false;  // a refused end freed the graph, and the stream still points at it
  Graph *into = nullptr;  // the graph that is captured into, where it is not the capture's own
  Stream *origin = nullptr;
  std::thread::id owner;
  std::vector<Node *> last;
};

struct Event {
  std::vector<Node *> after;
  std::shared_ptr<Graph> capture;
  Stream *recorded_on = nullptr;
  bool pending = false;          // only while the device is made to be busy
  std::set<Exec *> covers;       // execs that are over when this is
};

struct World {
  std::recursive_mutex lock;
  const Profile *profile = nullptr;
  std::set<Graph *> graphs;  // handles that may be used
  std::set<Exec *> execs;
  std::set<Stream *> streams;
  std::map<const void *, Kernel *> stubs;
  std::set<const void *> functions;
  std::set<void *> dangling;  // graphs that a refused EndCapture handed out
  std::set<Event *> events;
  std::set<UserObject *> objects;
  std::set<void *> pinned;
  unsigned long long next_id = 1;
  bool strict = false;  // streams, events and pinned memory are refused like anything else
  bool busy = false;    // what is launched stays unfinished until somebody waits for it
  int n_touched = 0;    // execs changed while they ran
  // failing on purpose
  long n_calls = 0, fail_at = 0;
  hipError_t fail_status = gfx::kInvalidValue;
  std::string fail_name, refused;
  hipError_t last_error = 0;
  std::vector<std::string> log;
};

World &world();

// Called first by every function: logs it and, when it is the one that must fail, says with what.
hipError_t enter(const char *name);
hipError_t done(hipError_t status);

Kernel *kernel_of(const void *function);
Graph *live(hipGraph_t graph);
Exec *live(hipGraphExec_t exec);
Exec *unused(hipGraphExec_t exec);  // live, and noted when it runs
Graph *keep(std::unique_ptr<Graph> graph);
std::vector<Node *> list(const hipGraphNode_t *nodes, size_t n);
Node *node(hipGraphNode_t handle);
Stream *stream(hipStream_t handle);  // null for the legacy stream

// Record `make` on a capturing stream, or `run` it. The runtime's STREAM_CAPTURE.
hipError_t record_or_run(hipStream_t handle, const std::function<void(Node *)> &make, gfx::NodeType type,
                         const std::function<void()> &run);
void invalidate_all();

}  // namespace fake

#define FAKE_ENTER()                                      \
  std::lock_guard<std::recursive_mutex> hold(fake::world().lock); \
  if (hipError_t refused = fake::enter(__func__)) return refused

// The same for what older tests do not count on being refused.
#define FAKE_ENTER_IF_STRICT()                                    \
  std::lock_guard<std::recursive_mutex> hold(fake::world().lock); \
  if (fake::world().strict)                                       \
    if (hipError_t refused = fake::enter(__func__)) return refused

#define FAKE_API extern "C" __attribute__((visibility("default")))
