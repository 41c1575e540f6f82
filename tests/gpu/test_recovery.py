"""After a capture has died on a real GPU: process, stream, pool, generator and exit status as before it.

The simulated card drives every failure point (tests/conformance/test_failures.py); here stand the ones whose
answer only a driver can give: captures ended by calls that nothing watches.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

from tests.conformance.bench import Bench, ProcessState, reserved, same  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph.capture.replay import node_walk  # noqa: E402
from gfxgraph.capture.replay.rollback import Rollback  # noqa: E402
from gfxgraph.process import process  # noqa: E402
from gfxgraph.types import CaptureStatus  # noqa: E402

PROGRAMS = ["plain", "rng", "in_place", "forked", "split"]
N_CALLS = {"plain": 3, "rng": 2, "in_place": 2, "forked": 1, "split": 2}


def runtime():
    """The GPU runtime that torch has mapped: (library, prefix of its names)."""
    if torch.version.hip:
        return ctypes.CDLL("libamdhip64.so"), "hip"
    return ctypes.CDLL("libcuda.so.1"), "cu"


def synchronize_device():
    library, prefix = runtime()
    return library.hipDeviceSynchronize() if prefix == "hip" else library.cuCtxSynchronize()


def query_event_in_another_thread():
    """What a collective library's watchdog does."""
    library, prefix = runtime()
    event = QUERIED[0]
    thread = threading.Thread(
        target=lambda: getattr(library, f"{prefix}EventQuery")(ctypes.c_void_p(event.cuda_event))
    )
    thread.start()
    thread.join()


def query_own_event():
    library, prefix = runtime()
    return getattr(library, f"{prefix}EventQuery")(ctypes.c_void_p(QUERIED[0].cuda_event))


QUERIED = []
KILLS = [synchronize_device, query_own_event, query_event_in_another_thread]


@pytest.fixture
def bench(request):
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    made = Bench()
    QUERIED[:] = [torch.cuda.Event()]
    QUERIED[0].record()
    torch.cuda.synchronize()
    # What torch allocates once (its graph workspaces) is there before the memory is compared.
    made.assert_usable()
    try:
        yield made
    finally:
        gfxgraph.disable()


def attempt(bench, body, pool=None, graph=None):
    graph = graph if graph is not None else torch.cuda.CUDAGraph()
    external, rng = [t.clone() for t in bench.external], torch.cuda.get_rng_state()
    state = ProcessState()
    bench.n_calls = 0
    outputs = error = None
    try:
        with torch.cuda.graph(graph, stream=bench.stream, pool=pool):
            outputs = body()
    except RuntimeError as caught:
        error = caught.with_traceback(None)
        error.__context__ = error.__cause__ = None
    bench.die_at = 0
    state.check()
    torch.cuda.synchronize()
    same(bench.external, external)
    assert torch.equal(torch.cuda.get_rng_state(), rng)
    return graph, outputs, error


@pytest.mark.parametrize("kill", KILLS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_and_recovered(bench, program, kill):
    """Wherever an unseen call ends the capture, replays are eager's, and stream, pool and object go on."""
    bench.kill = kill
    body = getattr(bench, program)
    for pool in (None, bench.pool):
        for n in range(1, N_CALLS[program] + 1):
            baseline = reserved()
            first = bench.first_in(pool) if pool is not None else None
            bench.die_at = n
            graph, outputs, error = attempt(bench, body, pool)
            assert error is None, (n, error)
            bench.assert_replay_is_eager(graph, outputs, body)
            bench.assert_usable(pool=pool)
            graph.reset()
            graph, outputs, error = attempt(bench, body, pool, graph)
            assert error is None
            bench.assert_replay_is_eager(graph, outputs, body, 1)
            del graph, outputs, error, first
            assert reserved() <= baseline


@pytest.mark.parametrize("program", ["opaque_first", "opaque_last"])
def test_killed_after_an_opaque_launch(bench, program):
    """What the tape does not know cannot be recovered: an error, and everything as before."""
    bench.kill = synchronize_device
    baseline = reserved()
    for _ in range(2):
        bench.die_at = 1
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(gfxgraph.CaptureError) as caught:
            with torch.cuda.graph(graph, stream=bench.stream):
                torch.cuda._sleep(100)
                getattr(bench, program)()
        assert caught.value.code in ("capture_failed", "end_failed")
        bench.n_calls = 0
        del caught
        bench.assert_usable()
    del graph
    assert reserved() <= baseline


@pytest.mark.parametrize("recovers", [True, False], ids=["recovered", "failed"])
def test_users_mempool(bench, recovers):
    """A MemPool that a dead capture used: use_count is back, the pool serves captures and eager code again."""
    pool = torch.cuda.MemPool()
    before = pool.use_count()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool.id, stream=bench.stream):
            if not recovers:
                torch.cuda._sleep(100)
            a = bench.x + 1
            synchronize_device()
            y = a * 2
        failed = False
    except gfxgraph.CaptureError:
        failed = True
    assert failed is not recovers
    if recovers:
        graph.replay()
        same([y], [(bench.x + 1) * 2])
        del a, y
    del graph
    assert pool.use_count() == before
    with torch.cuda.use_mem_pool(pool):
        torch.ones(1000, device="cuda")
    bench.assert_usable(pool=pool.id)
    assert pool.use_count() == before


def test_shared_pool(bench):
    """Three graphs share a pool, the second dies: the first still replays, the third captures."""
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    for n in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=bench.stream):
            a = bench.x + n
            if n == 1:
                synchronize_device()
            y = a * 2
        graphs.append((graph, y))
    for n, (graph, y) in enumerate(graphs):
        bench.x.fill_(n)
        graph.replay()
        same([y], [(bench.x + n) * 2])


def test_generators_after_a_dead_capture(bench):
    """The default generator, and one registered with the graph, draw as if nothing had happened."""
    mine = torch.Generator(device="cuda")
    mine.manual_seed(5)
    torch.cuda.manual_seed(6)
    want = (torch.rand(4, device="cuda"), torch.rand(4, device="cuda", generator=mine))
    mine.manual_seed(5)
    torch.cuda.manual_seed(6)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(mine)
    with pytest.raises(gfxgraph.CaptureError):
        with torch.cuda.graph(graph, stream=bench.stream):
            torch.cuda._sleep(100)
            torch.rand(4, device="cuda") + torch.rand(4, device="cuda", generator=mine)
            synchronize_device()
            bench.x + 1
    got = (torch.rand(4, device="cuda"), torch.rand(4, device="cuda", generator=mine))
    same(got, want)


def test_raw_capture_dropped(bench):
    """capture_begin, an exception, no capture_end: once the object is gone its stream and pool are free."""
    state, baseline = ProcessState(), reserved()
    first = bench.first_in(bench.pool)
    for act in (lambda: None, synchronize_device):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(bench.stream):
            graph.capture_begin(pool=bench.pool)
            bench.x + torch.rand(8, device="cuda")
            act()
            del graph
        state.check()
        bench.assert_usable(pool=bench.pool)
    del first
    assert reserved() <= baseline


def test_out_of_memory(bench):
    """Out of memory inside a capture is torch's exception; the next capture works."""
    state = ProcessState()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=bench.stream):
            bench.x + 1
            torch.empty(1 << 48, dtype=torch.uint8, device="cuda")
    state.check()
    bench.assert_usable()


def test_begin_on_a_stream_that_somebody_else_captures(bench):
    """The begin is refused, and the other capture is as alive as before."""
    driver = process.require().driver
    driver.begin_capture(bench.stream.cuda_stream)
    try:
        with torch.cuda.stream(bench.stream), pytest.raises(gfxgraph.CaptureError) as caught:
            torch.cuda.CUDAGraph().capture_begin()
        assert caught.value.code == "overlapping_captures"
        assert driver.capture_info(bench.stream.cuda_stream).status is CaptureStatus.ACTIVE
    finally:
        driver.abandon_capture(bench.stream.cuda_stream)
    bench.assert_usable()


def test_replay_onto_a_dead_stream(bench):
    """Where nothing can run, the replay says so, with the driver's words; afterwards it runs."""
    driver = process.require().driver
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bench.x + 1
    side = torch.cuda.Stream()
    driver.begin_capture(side.cuda_stream)
    synchronize_device()
    with torch.cuda.stream(side), pytest.raises(gfxgraph.ReplayError) as caught:
        graph.replay()
    driver.abandon_capture(side.cuda_stream)
    assert caught.value.code == "no_fallback_left" and caught.value.quote
    assert caught.value.fields["said"] in str(caught.value)
    bench.x.fill_(3)
    graph.replay()
    same([y], [bench.x + 1])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_disabled_node_is_found(bench, position):
    """A node switched off behind torch's back: its op is named, the caller gets eager's result, the graph retires."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        bench.count.add_(1)
        a = bench.x * 3
        y = a.relu()
    graph.replay()
    driver = process.require().driver
    nodes = driver.nodes(node_walk.raw_graph(graph))
    driver.set_node_enabled(node_walk.raw_exec(graph), nodes[position], False)
    bench.x.copy_(torch.arange(8.0) + 1)
    before = bench.count.item()
    assert graph.validate() is False
    torch.cuda.synchronize()
    same([y, bench.count], [bench.x * 3, torch.tensor(before + 1)])
    found = [e for e in gfxgraph.stats()["events"] if e["reason"].startswith("replay differed")]
    assert [e["op"] for e in found] == [["aten::add_", "aten::mul", "aten::relu"][position]]
    assert gfxgraph.stats()["graphs_retired"] == 1
    bench.x.fill_(2)
    graph.replay()
    same([y], [bench.x * 3])


EXIT = """
import ctypes, sys, torch, gfxgraph
gfxgraph.enable(allow_cuda=True, validate=False)
other = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(other):
    held = torch.ones(1000, device="cuda")
x = torch.ones(8, device="cuda")
unsafe = torch.cuda.CUDAGraph(on_unsafe="raise") if sys.argv[1] == "raise" else torch.cuda.CUDAGraph()
library = ctypes.CDLL("libamdhip64.so" if torch.version.hip else "libcuda.so.1")
synchronize = library.hipDeviceSynchronize if torch.version.hip else library.cuCtxSynchronize
try:
    with torch.cuda.graph(unsafe):
        y = x + torch.rand(8, device="cuda")
        if sys.argv[1] == "raise":
            y.sum().item()
        elif sys.argv[1] == "opaque":
            torch.cuda._sleep(100)
            synchronize()
        elif sys.argv[1] == "recovered":
            synchronize()
        elif sys.argv[1] == "left open":
            sys.exit(0)
        z = y + 1
    print("captured")
except RuntimeError as error:
    print(error.code)
torch.rand(3, device="cuda")
"""


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise", "unsafe_op_in_capture"),
        ("opaque", "capture_failed"),
        ("recovered", "captured"),
        ("left open", ""),
    ],
)
def test_exit_status(how, says):
    """A process whose capture died ends with status 0, another MemPool alive and all."""
    done = subprocess.run([sys.executable, "-c", EXIT, how], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout.strip()) == (0, says), done.stderr


def test_what_was_saved_on_another_stream_outlives_its_reading():
    """Put back on a stream that is behind, the saved content is not given to the stream that saved it meanwhile."""
    kept, side = torch.full((1 << 20,), 3.0, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        before = Rollback([kept])
        kept.zero_()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda._sleep(200_000_000)
    before.restore()
    del before
    with torch.cuda.stream(side):
        others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert bool((kept == 3).all()) and len(others) == 4
