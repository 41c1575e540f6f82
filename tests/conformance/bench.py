"""What the failure tests share: the state a process must be left in, small programs, and their eager results."""

from __future__ import annotations

import gc
import math
import sys
import types
from contextlib import suppress

import pytest
import torch

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.capture.failures import is_stream_lost
from gfxgraph.process import process
from gfxgraph_simulator.runtime import CallRefused

# What torch itself writes there as it goes.
TORCHS_OWN = ("__warningregistry__", "default_capture_stream")


def owners():
    """Every object whose attributes the bridge, or a capture, may replace for a while."""
    cuda = torch.cuda
    found = [torch, torch._C, torch.Tensor, cuda, cuda.graphs, cuda.memory, cuda.streams, cuda.random]
    return [*found, cuda.Stream, cuda.Event, cuda.graph, torch.random, torch.accelerator, math]


def patched(before):
    """Names that are not what they were: ``owner.name`` of each."""
    changed = []
    for owner, names in before.rows:
        now = vars(owner)
        for name in {*names, *now}:
            old, new = names.get(name), now.get(name)
            lazily_imported = name not in names and isinstance(new, types.ModuleType)
            if old is not new and not lazily_imported and name not in TORCHS_OWN:
                changed.append(f"{owner.__name__}.{name}")
    return sorted(changed)


def attributes():
    """In a module, into which no search for an input's holders looks: a test's variable would lead to all of torch."""
    kept = types.ModuleType("attributes")
    kept.rows = [(owner, dict(vars(owner))) for owner in owners()]
    return kept


class ProcessState:
    """Everything of the process that a capture must leave as it was."""

    def __init__(self):
        self.attributes = attributes()
        self.facts = self._facts()

    @staticmethod
    def _facts():
        return {
            "stream": torch.cuda.current_stream(),
            "modes": torch._C._len_torch_dispatch_stack(),
            "autograd threads": torch.autograd.is_multithreading_enabled(),
            "sync debug mode": torch.cuda.get_sync_debug_mode(),
            "gc": gc.isenabled(),
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "capturing": torch.cuda.is_current_stream_capturing(),
        }

    def check(self):
        """Assert that nothing differs from when this was made."""
        assert self._facts() == self.facts
        assert patched(self.attributes) == []


class Bench:
    """Static inputs, external state and the programs over them, on the card that is installed."""

    def __init__(self):
        self.sim = simulator.active()
        self.x = torch.arange(8.0, device="cuda") - 3
        self.count = torch.zeros((), dtype=torch.long, device="cuda")
        self.cache = torch.zeros(4, 8, device="cuda")
        self.scratch = torch.zeros(8, device="cuda")
        self.side = torch.cuda.Stream()
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.n_calls = 0
        self.die_at = 0

    def first_in(self, pool):
        """A graph that keeps a pool in being: torch refuses one whose graphs are all gone."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            self.scratch.add_(0)
        return graph

    @property
    def external(self):
        return (self.x, self.count, self.cache, self.scratch)

    def device_call(self):
        """A driver call that nothing watches; where a plan says so it ends the capture, silently."""
        self.n_calls += 1
        if self.n_calls == self.die_at:
            self.die_at = 0
            self.kill()

    def kill(self):
        with suppress(CallRefused):
            self.sim.device.unsafe_call("device_synchronize")

    # -- programs: each reads the static input and may change the external state ---------------------

    def plain(self):
        a = self.x * 2
        self.device_call()
        b = a + 1
        self.device_call()
        c = b.relu()
        self.device_call()
        return (c,)

    def rng(self):
        noise = torch.rand(8, device="cuda")
        self.device_call()
        kept = torch.dropout(self.x, 0.5, True)
        self.device_call()
        return (kept + noise, torch.randn(3, device="cuda"))

    def in_place(self):
        self.count.add_(1)
        self.device_call()
        row = self.x * 3
        self.cache.index_copy_(0, self.count.clamp(max=3).view(1), row.view(1, 8))
        self.device_call()
        self.cache[0].add_(1)
        return (self.cache.sum(0), self.count + 1)

    def forked(self):
        a = self.x + 1
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            b = a * 2
            self.device_call()
        c = a - 1
        torch.cuda.current_stream().wait_stream(self.side)
        return (b + c,)

    def split(self):
        self.count.add_(1)
        total = (self.x * self.x).sum() + torch.rand((), device="cuda")
        self.device_call()
        if total.item() > 1e9:
            return (total,)
        self.cache[1].add_(self.x)
        self.device_call()
        return (self.x / total, self.cache.sum(0))

    def _opaque(self):
        twice = lambda source, target: target.copy_(source * 2)  # noqa: E731
        if self.sim is None:
            torch.cuda._sleep(100)  # a kernel that torch launches without its dispatcher
            self.scratch.copy_(self.x * 2)
        else:
            simulator.launch_opaque("opaque_kernel", twice, self.x, self.scratch)

    def opaque_first(self):
        self._opaque()
        self.device_call()
        a = self.scratch + 1
        self.device_call()
        return (a * self.x,)

    def opaque_last(self):
        a = self.x + 1
        self.device_call()
        b = a * 2
        self._opaque()
        return (b,)

    # -- eager ---------------------------------------------------------------------------------------

    def eager(self, body):
        """Results, external state and generator after one eager run; everything is put back."""
        saved = [t.clone() for t in self.external]
        rng = torch.cuda.get_rng_state()
        after = self.observe(body())
        for tensor, old in zip(self.external, saved):
            tensor.copy_(old)
        torch.cuda.set_rng_state(rng)
        return after

    def observe(self, outputs):
        torch.cuda.synchronize()
        made = [*outputs, *self.external]
        return [t.detach().cpu().clone() for t in made] + [torch.cuda.get_rng_state()]

    def assert_replay_is_eager(self, graph, outputs, body, times=2):
        """``times`` replays on new input, each against an eager run."""
        for n in range(times):
            self.x.copy_(torch.arange(8.0) * (n + 1) - 2)
            want = self.eager(body)
            graph.replay()
            got = self.observe(outputs)
            same(got, want)

    def replace_lost_stream(self):
        """Where the runtime lost the capture's stream: using it again is refused in words; take another."""
        driver = process.current().driver
        if not is_stream_lost(self.stream, driver):
            return
        with pytest.raises(gfxgraph.CaptureError) as caught:
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self.stream):
                pass
        assert caught.value.code == "overlapping_captures" and "cannot end" in str(caught.value)
        while is_stream_lost(self.stream, driver):
            self.stream = torch.cuda.Stream()

    # -- after a failure -------------------------------------------------------------------------------

    def assert_usable(self, stream=None, pool=None):
        """Random numbers, and a capture on the same stream into the same pool."""
        torch.rand(2, device="cuda")
        torch.cuda.get_rng_state()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream or self.stream, pool=pool):
            y = torch.rand(8, device="cuda") + self.x
        self.x.fill_(2)
        rng = torch.cuda.get_rng_state()
        graph.replay()
        torch.cuda.set_rng_state(rng)
        same([y], [torch.rand(8, device="cuda") + 2])


def same(got, want):
    assert len(got) == len(want)
    for position, (a, b) in enumerate(zip(got, want)):
        assert torch.equal(a.cpu(), b.cpu()), (position, a, b)


def reserved():
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def stripped(error):
    """The error without the frames that it and its causes hold."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
    return seen[0]


def frames(call):
    """Python frames that a call enters."""
    n = 0

    def note(frame, event, arg):
        nonlocal n
        n += event == "call"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return n
