"""Graphed callables at their limits: memory, threads, failures planted in the runtime, what cannot work."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.callables.arena import arena_of
from gfxgraph.callables.padding.row_independence import Trace
from gfxgraph.process import process
from tests.conformance.conftest import on_both_platforms

pytestmark = pytest.mark.any_platform


@pytest.fixture(autouse=True)
def _platform(platform):
    with torch.no_grad():
        yield platform


needs_simulator = pytest.mark.skipif(torch.cuda.is_available(), reason="failures are planted in the simulator")


@pytest.fixture
def faults():
    sim = simulator.active()
    sim.faults = simulator.Faults()
    yield sim.faults
    sim.faults = simulator.Faults()


@pytest.fixture
def arena():
    found = arena_of(process.current(), 0)
    yield found
    found.limit = None


def chain(x):
    for _ in range(5):
        x = x * 1.5 + 1
    return x


def double(x):
    return x * 2


def filled(value, *size):
    return torch.full(size or (4,), float(value), device="cuda")


def same(g, fn, *args):
    mine, eager = g(*args), fn(*args)
    torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    return mine


@needs_simulator
@pytest.mark.parametrize(
    ("call", "n"), [(c, n) for c in ("begin", "end", "instantiate", "launch") for n in (1, 2)] + [("op", 8)]
)
@on_both_platforms
def test_failures_of_the_runtime(faults, call, n):
    """Whatever call of the runtime is refused, results stay right and a later function can be captured."""
    g = gfxgraph.graphed(chain)
    same(g, chain, filled(1))
    faults.fail_nth(call, n, 1)
    for i in range(6):
        same(g, chain, filled(i))
    for n in (7, 9):
        other = gfxgraph.graphed(chain)
        for i in range(4):
            same(other, chain, filled(i, n))
    assert faults.calls[call] and not faults.fail[call], "the failure was never struck"
    assert other.stats()["replays"] == 3


@needs_simulator
@on_both_platforms
def test_out_of_memory_in_a_capture(faults):
    """The call runs eagerly, other captures are given back, and later there is another attempt."""
    g = gfxgraph.graphed(lambda x: chain(x).cumsum(0))
    for i in range(3):
        same(g, lambda x: chain(x).cumsum(0), filled(i))
    big = filled(1, 64)
    same(g, lambda x: chain(x).cumsum(0), big)
    faults.oom_nth(4)
    for _ in range(4):
        same(g, lambda x: chain(x).cumsum(0), big)
    assert faults.calls["allocate"] >= 4
    assert g.stats()["replays"] >= 4


def test_no_room_for_a_second_buffer():
    """Where a capture's own buffers take what the function itself needs, they are given up and it runs."""
    nbytes = 64 << 20

    def step(x):
        return (x + 1).sum() + (x * 2).max()

    x = torch.ones(nbytes // 4, device="cuda")
    g = gfxgraph.graphed(step)
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    room, held = torch.cuda.memory_reserved() + nbytes + (nbytes >> 3), torch.cuda.memory_allocated()
    try:
        torch.cuda.set_per_process_memory_fraction(min(1.0, room / total))
        for _ in range(6):
            same(g, step, x)
        assert g.stats()["replays"] == 0 and g.stats()["eager"]["out of memory in a capture"], g.explain()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_allocated() < held + nbytes


def test_the_limit_evicts_the_least_recently_used(arena):
    """Under a hard limit captures make room for each other, and every answer stays right."""
    g = gfxgraph.graphed(double)
    sizes = [(1 << 19,), (1 << 19, 2), (1 << 19, 3)]
    for size in sizes[:2]:
        for i in range(2):
            same(g, double, filled(i, *size))
    first, second = g._entries.values()
    assert first.is_captured and second.is_captured and arena.graph_nbytes() > 0
    arena.limit = arena.graph_nbytes()
    for i in range(2):
        same(g, double, filled(i, *sizes[2]))
    assert not first.is_captured, gfxgraph.memory_report()
    assert arena.graph_nbytes() <= arena.limit or len([e for e in arena.entries if e.is_captured]) == 1
    for size in sizes:
        same(g, double, filled(3, *size))


@torch.enable_grad()
def test_graphs_with_gradients_are_under_the_limit(arena):
    """They are evicted as others are; a backward that waits then still has its forward's graphs."""
    w = torch.full((1 << 19,), 2.0, device="cuda", requires_grad=True)
    weigh = lambda x: ((x * w).sin().sum(), x + w)  # noqa: E731
    g, plain = gfxgraph.graphed(weigh), gfxgraph.graphed(double)

    def gradient(fn, x):
        w.grad = None
        fn(x)[0].backward()
        return w.grad

    for i in range(6):
        assert torch.equal(gradient(g, filled(i, 1 << 19)), gradient(weigh, filled(i, 1 << 19)))
    assert any("with gradients" in row["signature"] for row in arena.report()), g.explain()
    waiting = g(filled(7, 1 << 19))[0]
    arena.limit = arena.graph_nbytes()
    with torch.no_grad():
        for i in range(2):
            same(plain, double, filled(i, 1 << 19, 3))
    assert not any("with gradients" in row["signature"] and row["n_graphs"] for row in arena.report())
    w.grad = None
    waiting.backward()
    assert torch.equal(w.grad, gradient(weigh, filled(7, 1 << 19)))
    arena.limit = None
    before = g.stats()["captures"]
    for i in range(3):
        assert torch.equal(gradient(g, filled(i, 1 << 19)), gradient(weigh, filled(i, 1 << 19)))
    assert g.stats()["captures"] == before + 1
    arena.limit = 1
    w2 = torch.ones(1 << 19, device="cuda", requires_grad=True)
    small = gfxgraph.graphed(lambda x: x * w2)
    for i in range(4):
        assert torch.equal(small(filled(i, 1 << 19)), filled(i, 1 << 19))
    assert any("memory limit" in why for why in small.stats()["eager"]), small.stats()


def test_no_room_at_all(arena):
    """Where nothing fits the call runs eagerly and says why."""
    g = gfxgraph.graphed(double)
    for i in range(2):
        same(g, double, filled(i, 1 << 19))
    arena.limit = 1
    before = g.stats()["replays"]
    for i in range(2):
        same(g, double, filled(i, 1 << 20))
    assert g.stats()["replays"] == before
    assert any("memory limit" in why for why in g.stats()["eager"])
    strict = gfxgraph.graphed(double, strict=True)
    strict(filled(1, 1 << 19))
    with pytest.raises(gfxgraph.CaptureError, match="vram_cap_exceeded"):
        strict(filled(1, 1 << 19))


def test_max_graphs():
    """The least recently used signature of a callable goes first, and is captured again when it comes back."""
    g = gfxgraph.graphed(chain, max_graphs=2)
    for n in (2, 3, 4, 2, 3, 4):
        for i in range(3):
            same(g, chain, filled(i, n))
    assert sum(e.is_captured for e in g._entries.values()) == 2
    assert g.stats()["captures"] == 6


def test_dropping_the_callable_frees_its_graphs():
    """No cycle holds graphs, buffers or the function."""
    gc.collect()
    gc.disable()
    try:
        g = gfxgraph.graphed(lambda x: chain(x))
        for i in range(3):
            g(filled(i, 1 << 10))
        (entry,) = g._entries.values()
        graph, fn = weakref.ref(entry.capture.first.graph), weakref.ref(g._fn)
        del entry, g
        assert graph() is None and fn() is None
    finally:
        gc.enable()


def test_captures_share_memory(arena):
    """32 buckets take little more than the largest."""
    g = gfxgraph.graphed(chain, dynamic={"x": {0: "n"}}, buckets=[64 * i for i in range(1, 33)])
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    done = g.capture_all(filled(1, 2048))
    gc.collect()  # a trace leaves cycles, and they may hold the tensors of eager runs
    torch.cuda.empty_cache()
    assert done["n_captured"] == 32
    # torch reserves 2 MiB at a time and by stream: the pool's, the warm-up stream's and the arguments'.
    assert torch.cuda.memory_reserved() - before <= 6 << 20, gfxgraph.memory_report()


def test_capture_all_stops_where_the_warm_up_has_no_memory():
    """As where a capture has none: it says so, and calls run eagerly or are captured when they come."""

    def step(x):
        if x.shape[0] == 8:
            raise torch.OutOfMemoryError("planted")
        return x * 2

    # Not traced: Dynamo gives up a function for good that raises while it looks.
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[2, 8], assume_pure=True)
    assert g.capture_all(filled(1, 8))["n_captured"] == 0
    assert any("not captured ahead" in event["reason"] for event in gfxgraph.stats()["events"])
    for i in range(3):
        same(g, step, filled(i, 2))
    assert g.stats()["replays"] >= 2, f"{g.explain()} {gfxgraph.stats()['events']}"


def test_capture_all_leaves_a_bucket_that_the_examples_index_does_not_fit(platform):
    """The last of eight rows is not among the first two: an assertion on the device, did anybody run it."""

    def step(x, i):
        return x.index_select(0, i) * 2

    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[2, 8])
    x, i = filled(1, 8), torch.tensor([7], device="cuda")
    done = g.capture_all(x, i)
    assert (done["n_captured"], done["n_left"]) == (1, 1)
    assert any("the example's values do not suit its size" in event["reason"] for event in gfxgraph.stats()["events"])
    for n, at in ((8, 7), (2, 1), (2, 0), (2, 1)):
        x, i = filled(n, n), torch.tensor([at], device="cuda")
        same(g, step, x, i)
    assert g.stats()["captures"] == 2


@pytest.mark.parametrize("assume_pure", [False, True])
def test_capture_all_judges_all_buckets_at_once(platform, monkeypatch, assume_pure):
    """Two runs without data, however many buckets."""
    runs, run = [], Trace.run
    monkeypatch.setattr(Trace, "run", lambda self, *given: runs.append(given) or run(self, *given))
    g = gfxgraph.graphed(double, dynamic={"x": {0: "n"}}, buckets=range(2, 14), assume_pure=assume_pure)
    assert g.capture_all(filled(1, 4))["n_captured"] == 12
    assert len(runs) == 2


def test_capture_all_under_a_limit(arena):
    """What does not fit is left out, by prediction, before it is captured."""
    sizes = [1 << 17, 1 << 18, 1 << 19]
    g = gfxgraph.graphed(double, dynamic={"x": {0: "n"}}, buckets=sizes)
    arena.limit = arena.graph_nbytes() + 1
    done = g.capture_all(filled(1, 64))
    assert done["n_captured"] == 0 and done["n_left"] == 3
    same(g, double, filled(1, 1 << 17))


@pytest.mark.parametrize("mode", ["standard", "hot"])
def test_threads(mode):
    """Calls from several threads, on streams of their own, never see each other's values."""
    g = gfxgraph.graphed(chain, mode=mode)
    same(g, chain, filled(1))
    wrong = []

    def work(k):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for i in range(12):
                x = filled(100 * k + i)
                y = g(x)
                stream.synchronize()
                if not torch.equal(y, chain(x)):
                    wrong.append((k, i))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not wrong and not any(w.is_alive() for w in workers)


def test_a_capture_survives_other_threads():
    """Another thread works and allocates while this one captures."""
    stop = threading.Event()
    errors = []

    def busy():
        with torch.no_grad():
            while not stop.is_set():
                try:
                    chain(filled(2, 64)).sum()
                except RuntimeError as error:
                    errors.append(error)
                    return

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        for n in range(3, 8):
            g = gfxgraph.graphed(chain)
            for i in range(3):
                same(g, chain, filled(i, n))
            assert g.stats()["replays"] == 2
    finally:
        stop.set()
        worker.join(30)
    assert not errors


def test_streams():
    """A call on another stream than the last waits for it; results are right on both."""
    g = gfxgraph.graphed(chain)
    side = torch.cuda.Stream()
    for i in range(6):
        stream = side if i % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            same(g, chain, filled(i))
    assert g.stats()["replays"] == 5


def test_in_place_by_recapture():
    """``moved="recapture"`` reads the caller's tensors where they are: another address is another capture."""

    def f(cache, x):
        cache.add_(x)
        return cache * 2

    g = gfxgraph.graphed(f, moved="recapture")
    mine, eager, x = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), filled(1)
    for i in range(6):
        x.fill_(i)
        torch.testing.assert_close(g(mine, x), f(eager, x), rtol=0, atol=0)
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    found = g.stats()
    assert (found["captures"], found["replays"], found["signatures"], found["slow"]) == (1, 5, 1, {})
    assert found["eager"] == {"warm-up": 1} and not found["pieces"]
    other = filled(3)
    for _ in range(3):
        torch.testing.assert_close(g(mine, other), f(eager, other), rtol=0, atol=0)
    assert g.stats()["captures"] == 2


def test_methods():
    """As a method each object has captures of its own; copies of an object do not share them."""

    class Scaler:
        def __init__(self, factor):
            self.factor = torch.tensor(float(factor), device="cuda")

        @gfxgraph.graphed
        def scale(self, x):
            return x * self.factor

    a, b = Scaler(2), Scaler(3)
    for i in range(4):
        torch.testing.assert_close(a.scale(filled(i)), filled(2 * i))
        torch.testing.assert_close(b.scale(filled(i)), filled(3 * i))
    assert a.scale.stats()["replays"] == 3
    c = copy.copy(a)
    c.factor = torch.tensor(5.0, device="cuda")
    for i in range(4):
        torch.testing.assert_close(c.scale(filled(i)), filled(5 * i))
        torch.testing.assert_close(a.scale(filled(i)), filled(2 * i))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu()


def test_copies_and_pickles():
    """A copy is the same callable without captures."""
    net = Net().cuda()
    g = gfxgraph.graphed(net, mode="hot")
    for i in range(3):
        same(g, net, filled(i, 2, 4))
    for other in (copy.deepcopy(g), pickle.loads(pickle.dumps(gfxgraph.graphed(Net())))):
        assert other.stats()["captures"] == 0 and other is not g
    twin = copy.deepcopy(g)
    for i in range(3):
        same(twin, gfxgraph.Graphed.of(twin)._fn, filled(i, 2, 4))
    assert twin.stats()["replays"] == 2


def test_autocast_weights():
    """Copies of weights that autocast keeps go neither into a capture nor out of it."""
    net = Net().cuda()
    g = gfxgraph.graphed(net)
    x = filled(1, 2, 4)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            before = net(x)
            for _ in range(3):
                torch.testing.assert_close(g(x), before, rtol=0, atol=0)
            torch.testing.assert_close(net(x), before, rtol=0, atol=0)
    net.layer.weight.mul_(2)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        same(g, net, x)
    assert g.stats()["replays"] >= 8


def test_gradients():
    """Where the result needs gradients they are eager's, to the bit, and without them calls are replays again."""
    net = Net().cuda()
    g = gfxgraph.graphed(net)
    with torch.enable_grad():
        for i in range(3):
            x = filled(i + 1, 2, 4).requires_grad_()
            g(x).sum().backward()
            mine, x.grad = x.grad, None
            net(x).sum().backward()
            torch.testing.assert_close(mine, x.grad, rtol=0, atol=0)
    same(g, net, filled(1, 2, 4))


def test_random_numbers_advance():
    """Each replay draws new numbers, in eager's order."""
    g = gfxgraph.graphed(lambda x: torch.rand_like(x) + x)
    x = filled(0, 16)
    torch.manual_seed(5)
    mine = [g(x) for _ in range(5)]
    torch.manual_seed(5)
    eager = [torch.rand_like(x) + x for _ in range(5)]
    torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    assert g.stats()["replays"] == 4, g.explain()


def test_recursion():
    """A graphed function that calls itself is captured with the inner calls inside."""

    @gfxgraph.graphed
    def power(x, n):
        return x if n == 1 else power(x, n - 1) * x

    for i in range(4):
        torch.testing.assert_close(power(filled(i), 4), filled(i**4))
    assert power.stats()["replays"] >= 3


def test_what_cannot_work_says_what_to_do():
    """Strict: an error with what, why and what to do; else the function itself, counted with the reason."""

    class Thing:
        pass

    rng = iter(range(100))

    def changing(x):
        return (x + 1,) * (1 + next(rng) % 2)

    def host(x):
        return x.to("cpu").to("cuda") if len(x) else x

    cases = [
        (lambda x, t: x, (filled(1), Thing()), "graphed_unknown_object"),
        (lambda x, c: x, (filled(1), torch.zeros(100)), "graphed_other_device"),
        (changing, (filled(1),), "graphed_result_changes"),
    ]
    for fn, args, code in cases:
        lenient = gfxgraph.graphed(fn, assume_pure=True)
        strict = gfxgraph.graphed(fn, strict=True, assume_pure=True)
        for _ in range(3):
            lenient(*args)
        with pytest.raises(gfxgraph.CaptureError) as caught:
            for _ in range(3):
                strict(*args)
        assert caught.value.code == code
        assert "do:" in str(caught.value) and "要做" not in str(caught.value)
        assert lenient.stats()["replays"] == 0 and len(lenient.explain().splitlines()) >= 2


def test_wrong_use():
    """What is not a callable, and options that do not exist."""
    with pytest.raises(TypeError):
        gfxgraph.graphed(Net)
    with pytest.raises(TypeError):
        gfxgraph.graphed(3)
    with pytest.raises(ValueError):
        gfxgraph.graphed(chain, mode="fast")


def test_the_environment_chooses_the_mode(monkeypatch):
    """GFXGRAPH_REPLAY_MODE, and the older GFXGRAPH_REPLAY_HOT_MODE."""
    monkeypatch.setenv("GFXGRAPH_REPLAY_HOT_MODE", "1")
    assert gfxgraph.graphed(chain)._options.mode == "hot"
    monkeypatch.setenv("GFXGRAPH_REPLAY_MODE", "standard")
    assert gfxgraph.graphed(chain)._options.mode == "standard"


def test_a_read_in_a_later_size():
    """The first size is captured clean; a size that reads a value is recorded and guarded."""

    def f(x):
        if len(x) > 4 and x.sum().item() > 100:
            return x - 1
        return x + 1

    g = gfxgraph.graphed(f, dynamic={"x": {0: "n"}}, buckets=[4, 8])
    for n in (4, 4, 4, 8, 8, 8, 4):
        same(g, f, filled(1, n))
    same(g, f, filled(50, 8))
    same(g, f, filled(1, 8))
    assert g.stats()["replays"] >= 4, g.explain()
    assert torch.equal(chain(filled(1)), chain(filled(1)))


def test_options_that_a_rank_would_decide_by_itself():
    """Without torch.distributed ``ranks=True`` works as well; options beside it that could differ are refused."""
    g = gfxgraph.graphed(chain, ranks=True)
    for i in range(4):
        same(g, chain, filled(i))
    assert g.stats()["replays"] == 3 and "3 replays" in g.explain()
    for more in ({"moved": "recapture"}, {"buckets": [4]}, {"mode": "hot"}):
        with pytest.raises(gfxgraph.ArgumentError, match="each rank would decide"):
            gfxgraph.graphed(chain, ranks=True, **more)


def test_the_pool_outlives_its_graphs():
    """torch refuses to capture into a pool whose graphs are all gone: evicted, a signature is captured again."""
    x = filled(1)
    g = gfxgraph.graphed(lambda t: t + 1)
    for _ in range(3):
        for _ in range(3):
            kept = g(x)
        for entry in g._entries.values():
            entry.evict("a test")
    assert torch.equal(kept, x + 1)
    assert g.stats()["captures"] == 3 and g.stats()["replays"] == 8, g.explain()


def test_the_pool_goes_with_its_last_capture():
    """When the last callable has gone, so has the memory that its captures took."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    g = gfxgraph.graphed(lambda t: chain(t))
    for _ in range(3):
        g(filled(1, 1 << 18))
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() > before
    del g
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_a_graph_is_dropped_while_another_thread_captures():
    """Waiting for the device is refused then, and ends that capture; only the arena's streams are waited for."""
    g = gfxgraph.graphed(chain, max_graphs=1)
    same(g, chain, filled(1, 3))
    same(g, chain, filled(1, 3))
    begun, stop, problems = threading.Event(), threading.Event(), []

    def capture():
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                filled(1, 3) + 1
                begun.set()
                stop.wait(60)
                filled(1, 3) + 2
            graph.replay()
        except Exception as error:
            problems.append(error)

    worker = threading.Thread(target=capture)
    worker.start()
    try:
        assert begun.wait(60)
        for _ in range(3):
            g(filled(1, 4))  # no room for a second graph
    finally:
        stop.set()
        worker.join(60)
    same(g, chain, filled(2, 4))
    assert not problems and not worker.is_alive()
    assert any(event["kind"] == "eviction" for event in gfxgraph.stats()["events"])


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("starts_at", [0.0, 1.0])
@needs_simulator
def test_a_kernel_that_torch_does_not_see_writes_the_callers_tensor(is_pure, starts_at):
    """As a Triton kernel or a collective in place does; at 0.0 its first call, times two, changes nothing."""
    sim = simulator.active()

    def step(x):
        sim.launch_opaque("times two", lambda t: t.mul_(2), x)
        return x + 1

    g = gfxgraph.graphed(step, assume_pure=is_pure)
    x, want = torch.full((4,), starts_at, device="cuda"), torch.full((4,), starts_at)
    for turn in range(5):
        got = g(x)
        want.mul_(2)
        assert torch.equal(x.cpu(), want) and torch.equal(got.cpu(), want + 1), turn
        x += 1
        want += 1


def test_a_collectives_writes_are_recorded():
    """c10d's schemas do not say that its operations write to what they are given."""
    from gfxgraph.capture.record.overloads import OpInfo

    names = "allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_scatter_", "alltoall_base_"
    for name in names:
        info = OpInfo(getattr(torch.ops.c10d, name).default)
        assert [position for position, _ in info.mutates] == [0] and not info.makes_memory, name
    assert not OpInfo(torch.ops.c10d.send.default).mutates and not OpInfo(torch.ops.c10d.barrier.default).mutates
