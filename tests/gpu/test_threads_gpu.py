"""What calls of other threads do to a capture on a real GPU, and that calls in relaxed mode do nothing to it.

The simulator's profile "cuda" says the same in its rows ``thread_*``; where the GPU answers otherwise, the row is to
be changed. The promises built on them are tests/conformance/test_threads.py, which runs on the GPU, too.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.capture.failures import end_dead_capture
from gfxgraph.driver import small_copies
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus
from gfxgraph_simulator import profiles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MODES = ["global", "thread_local", "relaxed"]
CALLS = [
    "device_synchronize",
    "stream_synchronize",
    "stream_query",
    "event_query",
    "event_synchronize",
    "malloc",
    "instantiate",
    "graph_destroy",
    "begin_and_end",
]


@pytest.fixture(scope="module")
def state():
    gfxgraph.enable(allow_cuda=True, validate=False)
    yield process.require()
    gfxgraph.disable()


def prepared(state, call):
    """What ``call`` needs, made before the capture begins; gives the call itself."""
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record(side)
    graph = state.base(keep_graph=True)
    x = torch.ones(4, device="cuda")
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        y = x + 1
        graph.capture_end()
    if call == "graph_destroy":
        graph.instantiate()

    def begin_and_end():
        with torch.cuda.stream(side):
            other = state.base()
            other.capture_begin(capture_error_mode="thread_local")
            y.add_(1)
            other.capture_end()

    return {
        "device_synchronize": torch.cuda.synchronize,
        "stream_synchronize": side.synchronize,
        "stream_query": side.query,
        "event_query": event.query,
        "event_synchronize": event.synchronize,
        "malloc": lambda: torch.cuda.caching_allocator_alloc(512 << 20),
        "instantiate": graph.instantiate,
        "graph_destroy": graph.reset,
        "begin_and_end": begin_and_end,
    }[call]


def survives(state, mode, action):
    """Capture in ``mode``; have another thread do ``action``; tell whether the capture lives and what was raised."""
    errors, held = [], []

    def work():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                held.append(action())
            except RuntimeError as error:
                errors.append(str(error).splitlines()[0])
        # torch only warns where it is refused to destroy a graph.
        errors.extend(str(each.message) for each in said if "not permitted" in str(each.message))

    stream = torch.cuda.Stream()
    graph, x = state.base(), torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        state.base.capture_begin(graph, None, mode)
        y = x * 2
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        lives = state.driver.capture_info(stream.cuda_stream).status is CaptureStatus.ACTIVE
        if lives:
            state.base.capture_end(graph)
        else:
            end_dead_capture(state.base, graph, stream, state.driver)
    if lives:
        graph.replay()
        assert y.tolist() == [2.0] * 4
    if held and isinstance(held[0], int) and held[0] > 1:
        torch.cuda.caching_allocator_delete(held[0])
    torch.cuda.synchronize()
    return lives, errors


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [call for call in CALLS if call != "begin_and_end"])
def test_other_threads_do_to_a_capture_what_the_profile_says(state, call, mode):
    """A row of the simulator's profile: refused, and the capture invalidated, or not."""
    rule = profiles.load("cuda").rule(f"thread_{call}", mode)
    lives, errors = survives(state, mode, prepared(state, call))
    assert (lives, bool(errors)) == (not rule.invalidates, bool(rule.code)), errors


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [call for call in CALLS if call != "device_synchronize"])
def test_relaxed_calls_do_nothing_to_a_capture(state, call, mode):
    """Inside ``driver.relaxed()`` none of them is refused or ends the capture; what a session does is done so."""
    action = prepared(state, call)

    def relaxed():
        with state.driver.relaxed():
            return action()

    assert survives(state, mode, relaxed) == (True, [])


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_kernel_is_loaded_and_dies_inside_a_capture(state, monkeypatch, mode):
    """As Triton from 3.7 on: its module is loaded inside the capture; an old one goes when it is over."""
    cuda, image = ctypes.CDLL("libcuda.so.1"), (Path(small_copies.__file__).parent / "copies.ptx").read_bytes()
    statuses = []

    class CompiledKernel:
        def _init_handles(self):
            self.module = ctypes.c_void_p()
            statuses.append(cuda.cuModuleLoadData(ctypes.byref(self.module), image))

        def __del__(self):
            statuses.append(cuda.cuModuleUnload(self.module))

    for name in ("triton", "triton.compiler", "triton.compiler.compiler"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["triton.compiler.compiler"].CompiledKernel = CompiledKernel
    torch.cuda.synchronize()
    old, x = CompiledKernel(), torch.ones(4, device="cuda")
    old._init_handles()
    bag, graph = [old], torch.cuda.CUDAGraph()
    del old
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = x + 1
        bag.clear()
        new = CompiledKernel()
        new._init_handles()
        assert statuses == [0, 0]
        y = y * 2
    assert statuses == [0, 0, 0]
    graph.replay()
    assert y.tolist() == [4.0] * 4 and graph._program.is_plain
    del new
    assert statuses == [0, 0, 0, 0]
