// What tests ask of the fake runtime. Not part of any real one.
#pragma once

#include "../abi.h"

extern "C" {
// "6.2", "7.2.0", "7.14" or "10.0"; also read from GFX_FAKE_PROFILE. 0 when there is no such profile.
int fake_use_profile(const char *name);
// The Nth call from now on (counting those called `name`, or all for null) returns `status`.
void fake_fail(long nth, hipError_t status, const char *name);
long fake_calls(void);
const char *fake_refused(void);  // the function that the Nth call was, or ""
int fake_count(const char *name);  // how often a function was called since fake_reset_log
void fake_reset_log(void);
// A kernel taking (int *out, const int *in, int value, int n); the address is a host stub, and
// fake_function gives what a module would.
const void *fake_stub_add_to(void);
hipFunction_t fake_function_add_to(void);
// Streams, events and pinned memory are refused too from now on, or no longer.
void fake_strict(int on);
// What is launched from now on is unfinished until somebody waits for it; 0 ends everything.
void fake_busy(int on);
int fake_touched(void);   // graph execs that were changed or destroyed while they ran
int fake_live_others(void);  // streams, events, user objects, pinned memory
int fake_live_graphs(void);
int fake_live_execs(void);
}
