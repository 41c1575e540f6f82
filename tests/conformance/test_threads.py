"""Threads beside each other: two that capture, and others that work while one captures.

On the GPU these are the promise of tests/gpu/test_threads_gpu.py, too; here the simulator's profiles refuse what the
runtimes refuse (research: the rows ``thread_*`` of simulator/profiles).
"""

from __future__ import annotations

import gc
import signal
import subprocess
import threading
import time
import weakref
from contextlib import contextmanager

import pytest
import torch

import gfxgraph
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches import patch_table
from gfxgraph.capture.record import random_generators
from gfxgraph.capture.record.random_generators import registering
from gfxgraph.process import process
from tests.warm_python import warm_python

MODES = ["global", "thread_local", "relaxed"]


@pytest.fixture(autouse=True)
def time_for_a_simulated_draw(monkeypatch):
    """The simulator's is Python, which other processes may interrupt; a device's takes some microseconds."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(patch_table, "_DRAWN_WITHIN_S", 0.03)


def run_together(*bodies):
    """Run each in a thread of its own; raise what one raised."""
    errors = []

    def guarded(body):
        try:
            body()
        except BaseException as error:  # noqa: BLE001  (raised below, in the test's thread)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def no_event(*kinds):
    return not [event for event in gfxgraph.stats()["events"] if event["kind"] in kinds]


@contextmanager
def capturing_elsewhere(mode, draws=False):
    """Another thread's capture is underway inside; at the end it is ended and its graph's result checked."""
    begun, go_on, result = threading.Event(), threading.Event(), []
    x = torch.ones(4, device="cuda")

    def work():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
            y = x * 2
            if draws:
                y = y + torch.rand(4, device="cuda") * 0
            begun.set()
            while not go_on.is_set():  # at work, as a capture is; not waiting for anybody
                sum(range(100))
            y = y + 1
        result.append((graph, y))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    try:
        yield go_on
    finally:
        go_on.set()
        thread.join()
    graph, y = result[0]
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [3.0] * 4
    assert graph._program.is_plain and no_event("fallback", "capture_failed")


@pytest.mark.parametrize("mode", MODES)
def test_two_threads_capture(platform, mode):
    """Two plain programs in two threads, each with its own graphs, in every mode: captured, replayed, right."""

    def work(seed):
        torch.manual_seed(seed)
        w, x = made[seed]
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
                y = torch.relu(x @ w)
            for _ in range(3):
                x.add_(0.1)
                graph.replay()
                assert torch.allclose(y, torch.relu(x @ w), atol=1e-5)
            assert graph._program.is_plain

    made = [(torch.randn(16, 16, device="cuda"), torch.randn(4, 16, device="cuda")) for _ in range(2)]
    run_together(lambda: work(0), lambda: work(1))
    assert no_event("fallback", "split") and gfxgraph.stats()["capture_count"] == 6


def test_draws_under_way_when_a_capture_begins(platform):
    """A thread that draws all the time meets no error: a draw that it has begun is over before torch captures."""
    is_over, errors = threading.Event(), []

    def draw():
        while not is_over.is_set():
            try:
                torch.rand(4, device="cuda")
            except RuntimeError as error:
                errors.append(error)
                return

    x = torch.ones(4, device="cuda")
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(8):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                _ = x * 2
    finally:
        is_over.set()
        thread.join()
    assert not errors


CALLS = {
    "synchronize": torch.cuda.synchronize,
    "stream": lambda: torch.cuda.current_stream().synchronize(),
    "event": lambda: recorded().synchronize(),
    "query": lambda: recorded().query(),
    "allocate": lambda: torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1),
    "read": lambda: torch.ones(4, device="cuda").sum().item(),
    "empty_cache": torch.cuda.empty_cache,
    "rand": lambda: torch.rand(4, device="cuda"),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(4, device="cuda")),
    "normal_": lambda: torch.empty(4, device="cuda").normal_(),
    "capture": lambda: captured(),
}
PREPARED = {"free": lambda: captured().reset, "drop": lambda: [captured()].clear}
"""What is to be there before the capture begins; gives the call."""


def recorded():
    event = torch.cuda.Event()
    event.record()
    return event


def captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        torch.ones(4, device="cuda") + 1
    return graph


@pytest.mark.parametrize("call", [*CALLS, *PREPARED])
def test_others_work_beside_a_capture(platform, call, nothing_compiled):
    """What another thread does is right or waits, and the capture comes to its end."""
    for mode in MODES:
        action = PREPARED[call]() if call in PREPARED else CALLS[call]
        with capturing_elsewhere(mode, draws=call in ("rand", "dropout", "normal_")) as go_on:
            threading.Timer(0.05, go_on.set).start()  # a call that waits, waits for this
            action()
            del action


@pytest.mark.parametrize("call", ["bernoulli", "dropout", "normal_"])
def test_draws_wait_though_something_was_compiled(platform, call):
    """Only what compiled code is guarded on keeps torch's error; that code is not compiled anew."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(lambda x: x + torch.randn_like(x), backend=counter)
    compiled(torch.ones(4))
    actions = {**CALLS, "bernoulli": lambda: torch.bernoulli(torch.ones(4, device="cuda"))}
    with capturing_elsewhere("global", draws=True) as go_on:
        threading.Timer(0.05, go_on.set).start()
        actions[call]()
    with capturing_elsewhere("global") as go_on:
        threading.Timer(0.05, go_on.set).start()
        compiled(torch.ones(4))
    assert counter.frame_count == 1


def test_what_compiled_code_is_guarded_on_after_dynamo_began_again(platform, monkeypatch):
    """Dynamo counts its frames from nothing again; the functions of the code before are not taken for today's."""
    import torch._dynamo.convert_frame as frames
    from torch._dynamo.testing import CompileCounter

    for function in (lambda x: x + torch.rand_like(x), lambda x: x + torch.randn_like(x)):
        torch._dynamo.reset()
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)
        counter = CompileCounter()
        compiled = torch.compile(function, backend=counter)
        compiled(torch.ones(4))
        with capturing_elsewhere("global") as go_on:
            threading.Timer(0.05, go_on.set).start()
            compiled(torch.ones(4))
        assert counter.frame_count == 1


def test_compiling_inside_a_capture_beside_another_thread(platform):
    """Dynamo sees torch's own function in what waits in its place: one graph, as the program asks."""
    torch._dynamo.reset()
    x = torch.ones(4, device="cuda")
    compiled = torch.compile(lambda x: x + torch.randn_like(x), backend="eager", fullgraph=True)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        graph.replay()
    finally:
        done.set()
        other.join()
    torch.cuda.manual_seed(3)
    graph.replay()
    torch.cuda.manual_seed(3)
    assert torch.equal(y, x + torch.randn(4, device="cuda"))


def test_a_replay_of_random_numbers_waits(platform):
    """A graph that draws is replayed by another thread while this one captures: by the graph, with its own numbers."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    expected = [torch.rand(4, device="cuda") for _ in range(2)]
    torch.cuda.manual_seed(3)
    graph.replay()
    assert torch.equal(y, expected[0])
    with capturing_elsewhere("global") as go_on:
        threading.Timer(0.05, go_on.set).start()
        graph.replay()
    assert torch.equal(y, expected[1]) and no_event("fallback")


def test_a_capture_waits_for_a_draw_that_has_begun(platform):
    """Or the generator would be in capture mode before the draw asks for it."""
    begun, go_on, is_captured = threading.Event(), threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        while not go_on.is_set():
            sum(range(100))
        assert not is_captured.is_set()
        return torch.rand_like(x)

    threads = [
        threading.Thread(target=random_generators._waiting(slow), args=(torch.ones(4, device="cuda"),)),
        threading.Thread(target=lambda: (captured(), is_captured.set())),
    ]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    assert not is_captured.wait(0.5)
    go_on.set()
    for thread in threads:
        thread.join()
    assert is_captured.is_set()


def test_a_capture_that_waits_for_a_capturing_thread(platform):
    """A thread started and joined inside a capture captures itself: no hang, both right, and it is said."""
    x, inner = torch.ones(4, device="cuda"), []

    def work():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            inner.append((graph, x + 5))
            graph.capture_end()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        z = y * 2
    for made in (graph, inner[0][0]):
        made.replay()
    assert z.tolist() == [4.0] * 4 and inner[0][1].tolist() == [6.0] * 4
    assert not no_event("capture_not_serialized")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_capture_that_waits_for_a_thread_that_synchronizes(platform):
    """The wait is refused there and ends the capture, as in stock: the tape runs in its place, and that is reported."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        thread = threading.Thread(target=torch.cuda.synchronize)
        thread.start()
        thread.join()
        z = y * 2
    graph.replay()
    assert z.tolist() == [4.0] * 4 and not no_event("fallback")


def test_nothing_is_left_of_the_capture_lock(platform):
    """A capture that failed, at its begin or in its body, keeps nobody out; nor does a thread that died in one."""
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="careless"):
        pass
    with pytest.raises(RuntimeError, match="cholesky"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.linalg.cholesky(-torch.eye(3, device="cuda"))
    assert capture_lock._owners == [] and not patch_table.captures
    owner = capture_lock.Owner()

    def dies():
        owner.thread = threading.get_ident()
        capture_lock.acquire(owner)

    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    captured()
    capture_lock.release(owner)
    assert torch.rand.__module__ != "gfxgraph.capture.record.random_generators"


def test_the_runtime_refuses_other_threads(platform):
    """Without us: in global mode an unsafe call of another thread is refused and ends the capture, as CUDA says."""
    state = process.require()
    if platform == "gpu":
        pytest.skip("tests/gpu/test_threads_gpu.py asks the GPU")
    for mode, survives in (("global", False), ("thread_local", True), ("relaxed", True)):
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = state.base()
            state.base.capture_begin(graph, None, mode)
            errors = []

            def allocate(errors=errors):
                try:
                    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
                except RuntimeError as error:
                    errors.append(error)

            run_together(allocate)
            assert bool(errors) != survives
            stream = torch.cuda.current_stream().cuda_stream
            assert state.driver.capture_info(stream).status.name == ("ACTIVE" if survives else "INVALIDATED")
            if survives:
                state.base.capture_end(graph)
            else:
                with pytest.raises(RuntimeError):
                    state.base.capture_end(graph)
        if not survives:
            gfxgraph.disable()
            gfxgraph.enable(simulate=platform, validate=False)
            state = process.require()


def test_an_interrupt_while_another_thread_calls(platform):
    """A call that waits for another thread's is interrupted as any wait is, and leaves the lock to those that come."""
    fn, x = lambda x: x * 2, torch.ones(4, device="cuda")
    call = gfxgraph.graphed(fn, assume_pure=True)
    for _ in range(3):
        call(x)
    (entry,) = call._entries.values()
    held, done = threading.Event(), threading.Event()

    def hold():
        with entry.arena.lock:
            held.set()
            done.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            call(x)
    finally:
        signal.signal(signal.SIGALRM, before)
        done.set()
        other.join()
    run_together(lambda: call(x))
    assert torch.equal(call(x), fn(x))


def test_a_finalizer_while_a_capture_ends_elsewhere(platform):
    """A graph dies where owners are looked through, while another thread ends its capture: neither waits for both."""
    holder, has_lock = object(), threading.Event()
    patch_table.begin_capture(holder)

    def look():
        with capture_lock.lock:
            has_lock.set()
            time.sleep(0.2)  # by then the other thread is in the middle of ending its capture
            capture_lock.keep_until_captures_end(())

    def end():
        has_lock.wait(20)
        patch_table.end_capture(holder)

    threads = [threading.Thread(target=each, daemon=True) for each in (look, end)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_graphs_are_freed_where_no_capture_can_begin(platform):
    """Also beside another thread's call that owns the lock: freeing one would end a capture that begins meanwhile."""
    held, go_on, seen = threading.Event(), threading.Event(), []

    class Dying:
        def __del__(self):
            seen.append(capture_lock.is_owned_here())

    def hold():
        with capture_lock.owned():
            held.set()
            go_on.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    try:
        patch_table._free([Dying()])
    finally:
        go_on.set()
        thread.join()
    assert seen == [True]


def test_graphs_freed_while_another_thread_begins(platform):
    """torch begins a capture without the GIL and without a lock: neither a program's graph nor one of ours dies then."""
    state, freed = process.require(), []
    x = torch.ones(4, device="cuda")

    class Seen:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            freed.append((self.name, bool(patch_table.captures)))

    whole, split, pools = (
        torch.cuda.CUDAGraph(),
        torch.cuda.CUDAGraph(),
        patch_table.own_graph_class(state.base)(),
    )
    with torch.cuda.graph(whole):
        x + 1
    with torch.cuda.graph(split):
        x.add(1).sum().item()
        x + 2
    for name, graph in (("whole", whole), ("segment", split._program.steps[-1].graph), ("pool", pools)):
        graph.of_a_test = Seen(name)
    with capturing_elsewhere("thread_local"):
        del graph, whole, split, pools
        assert freed == []
    assert sorted(freed) == [("pool", False), ("segment", False), ("whole", False)]


INTERRUPTED = """
import torch, gfxgraph
from torch.utils._python_dispatch import TorchDispatchMode
gfxgraph.enable(**{options})


class Strikes(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if strikes and func is torch.ops.aten.empty.memory_format:
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {{}}))


graph, generator, strikes = torch.cuda.CUDAGraph(), torch.Generator("cuda"), False
with Strikes():
    strikes = True
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        strikes = False
        y = torch.rand(4, device="cuda", generator=generator)
    assert not strikes
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = torch.ones(4, device="cuda") + 1
    try:
        other.register_generator_state(generator)
    except RuntimeError as error:  # torch 2.12 takes it
        assert "during capturing" in str(error), error
del other
graph.replay()
assert y.tolist() == [2.0] * 4
import gfxgraph_simulator as simulator
assert not {is_simulated} or simulator.active().crashes == []
print("alive")
"""


@pytest.mark.any_platform
def test_a_generator_that_was_registered_by_half(platform):
    """Whatever strikes or is refused there, freeing the graph does not end the process, as torch's destructor would."""
    options = {"allow_cuda": True} if platform == "gpu" else {"simulate": platform}
    text = INTERRUPTED.format(options={**options, "validate": False}, is_simulated=platform != "gpu")
    done = subprocess.run([warm_python(), "-c", text], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_graph_that_cannot_be_registered_is_never_destroyed(platform):
    """Of a card that is dead, say: its destructor would end the process."""

    class Refusing:
        def register_generator_state(self, state):
            raise RuntimeError("no memory")

    graph, freed = Refusing(), []
    weakref.finalize(graph, freed.append, "graph").atexit = False
    with pytest.raises(RuntimeError, match="no memory"):
        with registering(Refusing, graph, [torch.cuda.default_generators[0]]):
            graph.register_generator_state(None)
    del graph
    gc.collect()
    assert freed == []


def test_a_call_that_outlives_the_last_capture(platform):
    """A replaced function that another thread is in when the capture ends still reaches torch's own."""
    x = torch.full((1,), 5.0, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        item, empty_cache = torch.Tensor.item, torch._C._host_emptyCache
        _ = x * 2
    assert item is not torch.Tensor.item
    assert item(x) == 5.0
    empty_cache()


def test_a_replay_refused_by_a_capture_that_has_ended_since(platform):
    """It is launched again: by the graph, not from the tape."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device="cuda")
    graph.replay()
    torch.cuda.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    graph._replay_failed(RuntimeError("Cannot prepare for replay during capturing stage."))
    assert torch.equal(y, expected) and no_event("fallback")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_thread_that_ends_inside_its_capture_blocks_nobody(platform, mode):
    """Whoever still holds the graph: captures, allocations, draws and waits of others work from then on."""
    held = []

    def begin():
        x, graph, stream = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode=mode)
            held.append((graph, stream, x, x * 2))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    torch.rand(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * x.sum().item()
    graph.replay()
    assert y.tolist() == [4.0] * 4
    with pytest.raises(RuntimeError):
        held[0][0].replay()


def test_every_call_of_every_thread_is_counted_once(platform):
    """Also while another thread's call is traced: by a graph, in pieces and eager add up to the calls."""

    class Steps:
        n = 0

        def step(self, x):
            for _ in range(30):
                x = x.sin() + 1
            return x

        def counted(self, x):
            self.n += 1
            return x * 2

    def how_often(g):
        rows = [line.split() for line in g.explain().rpartition("calls  way")[2].splitlines()]
        return sum(int(row[0]) for row in rows if row and row[0].isdigit() and row[1] in ("by", "in", "eager"))

    steps = Steps()
    for fn in (steps.step, steps.counted):
        g, errors = gfxgraph.graphed(fn), []

        def work(g=g, errors=errors):
            try:
                with torch.no_grad():
                    for i in range(40):
                        g(torch.full((4,), float(i), device="cuda"))
            except Exception as error:  # noqa: BLE001  reported below
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not errors and how_often(g) == 80, g.explain()
        assert g.stats()["replays"] >= 60, g.explain()
