"""Small copies of a call in one launch: right for whatever lies at whatever address, and never missed where refused."""

from __future__ import annotations

import threading

import pytest
import torch

import gfxgraph
from gfxgraph.callables import joined_launch
from gfxgraph.callables.signature import MISS
from gfxgraph.process import process
from tests.conformance.conftest import HAS_GPU, on_both_platforms

pytestmark = pytest.mark.any_platform

MODES = ["standard", "hot"]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(params=["joined", "launched"])
def way(platform, request):
    """The copies as nodes of one graph exec, as they are where that may be; and as launches of their own."""
    if request.param == "launched":
        process.current().joins[0] = False
    return request.param


WAYS = {"joined": ["back", "into"], "launched": ["back0", "in0"]}


def launches(g):
    """Names of the prepared launches that the last call's short way has."""
    names = getattr(g._fast, "__globals__", {})
    return sorted({name.removesuffix("_words").removesuffix("_b") for name in names if name.endswith("_words")})


def kinds():
    return [event["kind"] for event in gfxgraph.stats()["events"]]


def of_all_kinds(i, n=3):
    """Arguments of several dtypes, odd sizes and offsets, one of them transposed."""
    torch.manual_seed(i)
    return (
        torch.randn(n, 5, device="cuda"),
        torch.arange(i, i + n, device="cuda"),
        torch.randn(64, device="cuda").half()[i % 7 : i % 7 + 33],
        torch.randn(41, device="cuda") > 0,
        torch.randn(5, n, device="cuda").t(),
    )


def step(x, ids, h, mask, y):
    return x * 2 + y, ids + 1, [h.float().sum(), ~mask], y.t() - ids


def flat(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [t for part in tree for t in flat(part)]


def same(got, want):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(flat(got), flat(want), strict=True))


@pytest.mark.parametrize("mode", MODES)
@on_both_platforms
def test_arguments_of_all_kinds_are_copied_in_one_launch(platform, way, mode):
    """Five dtypes and layouts at another address each call: eager's results, by one launch in, one out."""
    g = gfxgraph.graphed(step, mode=mode)
    kept = []
    for i in range(12):
        args = of_all_kinds(i)
        kept.append((g(*args), step(*args)))
        if mode == "hot":
            assert same(*kept.pop())
    assert all(same(*pair) for pair in kept)
    assert launches(g) == {"hot": WAYS[way][1:], "standard": WAYS[way]}[mode] or launches(g) == ["into0"]


def test_forty_arguments_take_two_launches(platform):
    """More than one launch can carry are split, and none is left out."""
    g = gfxgraph.graphed(lambda *xs: [x + i for i, x in enumerate(xs)])
    for n in range(5):
        xs = [torch.full((3,), float(n * i), device="cuda") for i in range(40)]
        assert same(g(*xs), [x + i for i, x in enumerate(xs)])
    assert launches(g) == ["back0", "back32", "in0", "in32"]


def test_large_and_empty_ones_go_another_way(platform, way):
    """What the device spends its time on is left to the driver; what is empty to nobody."""
    g = gfxgraph.graphed(lambda x, y, z: (x + 1, y + 1, z + 1))
    for i in range(5):
        args = (torch.full((3,), float(i), device="cuda"), torch.zeros(0, device="cuda"))
        args += (torch.full((joined_launch.LARGEST_NBYTES // 4 + 1,), float(i), device="cuda"),)
        assert same(g(*args), [a + 1 for a in args])
    names = g._fast.__globals__
    assert launches(g) == WAYS[way]
    if way == "launched":
        assert [len(names["in0_fixed"]), len(names["back0_fixed"])] == [1, 1]
    else:
        assert {name for name in names if name.startswith("pack")} == {"pack1"}  # one address each way


@pytest.mark.parametrize("reads", ["zeros", "last"])
@pytest.mark.parametrize("mode", MODES)
def test_padded_calls(platform, way, mode, reads):
    """In a bucket only the rows of the call are copied, and of the transposed argument the right ones."""
    fn = lambda x, ids, y: ((x * 2).relu() + y, ids * 3)  # noqa: E731
    if reads == "last":  # a computed index, whose padding must repeat a row
        table = torch.randn(64, 4, device="cuda")
        fn = lambda x, ids, y: ((x * 2).relu() + y, table[ids + 1])  # noqa: E731
    dynamic = {name: {0: "n"} for name in ("x", "ids", "y")}
    g = gfxgraph.graphed(fn, dynamic=dynamic, buckets=[4, 8], mode=mode)
    for i, n in enumerate((3, 3, 3, 4, 7, 7, 5, 5, 5, 8, 8, 3, 3)):
        args = (torch.randn(n, 4, device="cuda"), torch.arange(i, i + n, device="cuda"))
        args += (torch.randn(4, n, device="cuda").t(),)
        assert same(g(*args), fn(*args)), n
    assert g.stats()["replays"] >= 9, g.explain()
    assert "go" not in g._fast.__globals__


def test_arguments_that_share_memory(platform, way):
    """Views of one tensor, overlapping, and the same one twice."""
    g = gfxgraph.graphed(lambda a, b, c: a * 2 + b - c)
    for i in range(8):
        base = torch.arange(i, i + 20, dtype=torch.float32, device="cuda")
        args = (base[:10], base[5:15], base[:10])
        assert torch.equal(g(*args), args[0] * 2 + args[1] - args[2])


def test_a_result_is_handed_back_as_an_argument(platform, way):
    """The graph's own buffer, which the next call overwrites, is read before that."""
    g = gfxgraph.graphed(lambda x: x * 2 + 1, mode="hot")
    x = want = torch.ones(5, device="cuda")
    for _ in range(12):
        x, want = g(x), want * 2 + 1
        assert torch.equal(x, want)
    assert launches(g)


def test_the_launch_is_on_the_stream_of_the_call(platform, way):
    """Streams in turn, each with work of its own before and after the call."""
    g = gfxgraph.graphed(lambda x, y: x * 2 + y)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    x = torch.ones(7, device="cuda")
    for _ in range(4):
        g(x, x)
    torch.cuda.synchronize()
    got = []
    for i in range(18):
        # Two calls each: the first finds that the stream is another, the second takes the short way.
        with torch.cuda.stream(streams[i // 2 % 3]):
            a, b = torch.full((7,), float(i), device="cuda"), torch.full((7,), 0.5, device="cuda")
            got.append(g(a, b) + 1)
            if i % 2:
                names = g._fast.__globals__
                if way == "joined":
                    on = [names[name][2] for name in ("at", "at_b")]
                else:
                    on = [names["launches"].stream]
                assert streams[i // 2 % 3].cuda_stream in [getattr(each, "value", each) or 0 for each in on]
    torch.cuda.synchronize()
    assert [t.unique().tolist() for t in got] == [[2.0 * i + 1.5] for i in range(18)]


def test_arguments_that_are_written_to(platform, way):
    """They are given back what the function left in them."""

    def fn(x, y):
        x.add_(y)
        return x * 2

    g = gfxgraph.graphed(fn)
    for i in range(6):
        x, y = torch.full((5,), float(i), device="cuda"), torch.ones(5, device="cuda")
        assert torch.equal(g(x, y), torch.full((5,), 2.0 * (i + 1), device="cuda"))
        assert torch.equal(x, torch.full((5,), i + 1.0, device="cuda"))


@pytest.mark.skipif(HAS_GPU, reason="refusals are planted in the simulator")
@pytest.mark.parametrize("at", [1, 2])
@on_both_platforms
def test_a_refused_launch_is_made_up_for_and_counted(platform, at):
    """The first is the one of the arguments, the second that of the results; the next call is as before."""
    import gfxgraph_simulator as simulator

    process.current().joins[0] = False
    g = gfxgraph.graphed(step)
    for i in range(4):
        g(*of_all_kinds(i))
    assert launches(g) == ["back0", "in0"]
    simulator.active().faults.fail_nth("copy_kernel", at, 1)
    for i in range(4, 7):
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    assert kinds().count("copy_refused") == 1


@pytest.mark.parametrize("broken", ["refused", "wrong", "absent"])
def test_without_the_kernel_calls_are_as_before(platform, monkeypatch, broken):
    """It cannot be loaded, copies wrongly when it is tried, or the runtime has no such calls."""
    driver = process.current().driver
    if broken == "absent":
        monkeypatch.setattr(driver, "missing", driver.missing | {"copy_kernel"})
    elif broken == "wrong":
        real = driver.copy_kernel
        monkeypatch.setattr(driver, "copy_kernel", lambda arch: Forgetful(real(arch)), raising=False)
    else:

        def refuse(arch):
            raise gfxgraph.DriverError("kernel_not_compiled", arch=arch, said="no")

        monkeypatch.setattr(driver, "copy_kernel", refuse, raising=False)
    g = gfxgraph.graphed(step)
    for i in range(6):
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    assert launches(g) == [] and g.stats()["replays"] == 5
    why = {
        "refused": "DriverError",
        "wrong": "it did not copy correctly",
        "absent": "the runtime cannot load a kernel",
    }[broken]
    assert (
        f"launched on their own: {'' if broken == 'absent' else 'the copying kernel is not available: '}{why}"
        in g.explain()
    )
    assert kinds().count("no_copy_kernel") == (broken != "absent")


class Forgetful:
    """A kernel that leaves out its last part."""

    def __init__(self, kernel):
        self.kernel = kernel

    def prepare(self, parts, stream):
        return self.kernel.prepare(parts[:-1], stream)


def test_another_current_device_takes_the_long_way(platform, monkeypatch):
    """With several GPUs a driver's call on the default stream goes to the current one: the short way refuses."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    g = gfxgraph.graphed(lambda x: x * 2)
    for i in range(4):
        x = torch.full((5,), float(i), device="cuda")
        assert torch.equal(g(x), x * 2)
    fast = g._fast
    assert launches(g) == ["back", "into"] and torch.equal(fast((x,), {}), x * 2)
    monkeypatch.setitem(fast.__globals__, "current_device", lambda: 1)
    assert fast((x,), {}) is MISS and torch.equal(g(x), x * 2)


# -- joined graphs ------------------------------------------------------------------------------------


def joined_g(fn=step, calls=4, **options):
    g = gfxgraph.graphed(fn, **options)
    for i in range(calls):
        g(*of_all_kinds(i))
    assert launches(g), g.explain()
    return g


def execs():
    """Graph execs that the simulated driver was asked for and that nobody destroyed."""
    return len(process.current().driver._made)


def test_hot_calls_whose_results_are_all_held(platform):
    """They get copies as by default: one launch, and nothing that is held is written to."""
    fn = lambda x: x * 2 + 1  # noqa: E731
    g = gfxgraph.graphed(fn, mode="hot")
    x = torch.arange(6.0, device="cuda")
    for i in range(6):
        last = g(x + i)  # one held and one being made: both graphs of the ring
    held = [last, *(g(x + i) for i in range(6))]
    assert all(torch.equal(a, fn(x + i)) for a, i in zip(held, (5, *range(6))))
    names = g._fast.__globals__
    assert {"go", "go_b"} <= set(names) and not any(name.startswith(("in0", "back0")) for name in names)


def test_explain_tells_how_copies_are_made(platform, monkeypatch):
    """Where they are nodes of the launch it says so; where not, why."""
    assert "copies are nodes of the launch" in joined_g().explain()
    drawing = gfxgraph.graphed(lambda x, *_: torch.nn.functional.dropout(x, 0.5))
    many = gfxgraph.graphed(lambda *xs: xs[0] + 1)
    for i in range(3):
        drawing(*of_all_kinds(i))
        many(*[torch.ones(2, device="cuda") for _ in range(40)])
    assert "launched on their own: its graph draws random numbers" in drawing.explain()
    assert "launched on their own: it has 41 small arguments and results" in many.explain()
    process.current().joins.clear()
    real = process.current().driver.joined
    monkeypatch.setattr(process.current().driver, "joined", lambda *a: broken(real(*a)), raising=False)
    assert "launched on their own: a joined graph gave different data" in joined_g().explain()


def broken(joined):
    joined.into.apply = lambda: 0
    return joined


def test_the_trial_is_the_first_call_of_a_thread(platform):
    """Neither the kernel nor the joined graph is given up because the thread has no context yet."""
    state, found = process.current(), []
    state.copy_kernels.clear()
    state.joins.clear()
    thread = threading.Thread(target=lambda: found.append(joined_launch.joins(state, 0)))
    thread.start()
    thread.join()
    assert found == [True] and not {"no_copy_kernel", "not_joined"} & set(kinds())


def test_calls_that_are_the_first_of_a_thread(platform, way):
    """A thread's first call of the runtime is the joined launch, or that of the copies: right, nothing given up."""
    g = gfxgraph.graphed(step)
    for i in range(4):
        g(*of_all_kinds(i))
    sets, right = [of_all_kinds(i) for i in range(4, 8)], []
    wanted = [step(*given) for given in sets]

    def call(i):
        with torch.no_grad():
            first = g(*sets[i])
            right.append(same(first, wanted[i]) and same(g(*sets[i]), wanted[i]))

    for i in range(4):
        thread = threading.Thread(target=call, args=(i,))
        thread.start()
        thread.join()
    assert right == [True] * 4 and launches(g) == WAYS[way] and "join_refused" not in kinds()


def listen(g):
    """A list to which every change of a node is added: "into" for the arguments', "back" for the results'."""
    names, told = g._fast.__globals__, []
    for name in [name for name in names if name.endswith("_apply")]:
        real, which = names[name], name[:4]
        names[name] = lambda which=which, real=real: told.append(which) or real()
    return told


def test_results_that_live_until_the_next_take_turns(platform):
    """As in ``y = g(x)`` in a loop: there are two places for results, and after a while nobody has to be told."""
    g = gfxgraph.graphed(lambda x: x * 2)
    args = [torch.full((5,), float(i), device="cuda") for i in range(6)]
    for x in args:
        g(x)
    told = listen(g)
    result = None
    for i in range(12):
        result = g(args[i % 6])
        assert result.tolist() == [2.0 * (i % 6)] * 5
        if i == 5:
            told.clear()
    assert "back" not in told and told.count("into") == 6
    del result
    told.clear()
    for i in range(6):  # and where nobody keeps any, one place is enough
        gone = g(args[i]).tolist()
        assert gone == [2.0 * i] * 5
    assert "back" not in told
    held = [g(args[i]) for i in range(6)]  # and of many each is its own
    assert [each.tolist() for each in held] == [[2.0 * i] * 5 for i in range(6)]


def test_addresses_are_told_only_where_they_changed(platform):
    """The same tensors again cost no change; one that has moved costs one of the arguments' node."""
    g = joined_g()
    args, others = of_all_kinds(7), of_all_kinds(8)
    told = listen(g)
    g(*args)
    told.clear()
    for given in (args, args, (*args[:4], others[4]), args):
        results = g(*given)
        assert same(results, step(*given))
        del results  # so that its memory is there for the next
    assert told.count("into") == 2


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_are_drawn_by_torchs_own_replay(platform, mode):
    """A graph that draws is not joined: each call's numbers are eager's for that seed."""
    g = gfxgraph.graphed(lambda x: torch.nn.functional.dropout(x, 0.5) + 1, mode=mode)
    x = torch.ones(200, device="cuda")
    for _ in range(4):
        g(x)
    torch.manual_seed(3)
    got = [g(x).clone() for _ in range(3)]
    torch.manual_seed(3)
    want = [torch.nn.functional.dropout(x, 0.5) + 1 for _ in range(3)]
    assert same(got, want)
    assert not any(name.startswith("into") or name == "go" for name in g._fast.__globals__)


def test_calls_whose_turn_is_the_checked_replay(platform):
    """When the count of unchecked replays is over, the long way runs, and all calls are counted."""
    g = joined_g()
    before = g.stats()["replays"]
    for i in range(12):
        (entry,) = g._entries.values()
        if i % 4 == 0:
            entry.capture.first.graph._allow_fast_replays(2)
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    assert g.stats()["replays"] == before + 12


def test_a_retired_graph_is_not_launched_joined(platform):
    """What replays wrongly is run by its tape, whatever else has its nodes."""
    g = joined_g(lambda x, ids, h, mask, y: (x * 2 + y, ids + 1))
    (entry,) = g._entries.values()
    entry.capture.first.graph._retire()
    launched = []
    names = g._fast.__globals__
    names["go"] = lambda: launched.append(1) or 1
    for i in range(4):
        args = of_all_kinds(i)
        assert same(g(*args), (args[0] * 2 + args[4], args[1] + 1))
    assert not launched


def test_an_argument_of_another_layout_of_the_same_bucket(platform):
    """Two ways to call one capture, each with other arguments that can be copied whole."""
    fn = lambda x, y: x * 2 - y  # noqa: E731
    g = gfxgraph.graphed(fn, dynamic={"x": {0: "n"}, "y": {0: "n"}}, buckets=[4])
    for i in range(12):
        x, y = torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda")
        args = [(x, y), (x.t(), y), (x, y.t()), (x.t(), y.t())][i % 4]
        assert torch.equal(g(*args), fn(*args)), i


def test_streams_of_two_ways_to_one_capture(platform):
    """Each of two signatures of one bucket is called on a stream of its own; both use the exec that is there."""
    fn = lambda x: x * 2  # noqa: E731
    g = gfxgraph.graphed(fn, dynamic={"x": {0: "n"}}, buckets=[4])
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for i in range(16):
        with torch.cuda.stream(streams[i // 4 % 2]):
            x = torch.randn(4, 4, device="cuda")
            x = x if i // 4 % 2 else x[:, :4]
            assert torch.equal(g(x), fn(x))


@pytest.mark.skipif(HAS_GPU, reason="refusals are planted in the simulator")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [1, 2])
@on_both_platforms
def test_a_refused_change_ends_joining_for_that_signature(platform, mode, at):
    """The call is made as without it, and so are all later ones; counted once."""
    import gfxgraph_simulator as simulator

    g = joined_g(mode=mode)
    simulator.active().faults.fail_nth("exec_params", at, 1)
    for i in range(4, 10):
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    assert kinds().count("join_refused") == 1
    assert not any(name.startswith("into") or name == "go" for name in g._fast.__globals__)
    assert g.stats()["replays"] == 9


@pytest.mark.parametrize("n_ops", [20, 90])
def test_large_graphs_of_buckets_are_not_joined(platform, n_ops):
    """Each size would take memory for further execs; a small graph is joined where a call fills its bucket."""

    def chain(x):
        for _ in range(n_ops):
            x = x + 1
        return x

    g = gfxgraph.graphed(chain, dynamic={"x": {0: "n"}}, buckets=[4, 8])
    alone = gfxgraph.graphed(chain)
    x = torch.zeros(8, device="cuda")
    for _ in range(6):
        assert g(x).tolist() == alone(x).tolist() == [float(n_ops)] * 8
    assert launches(alone) == WAYS["joined"] and launches(g) == WAYS["joined" if n_ops == 20 else "launched"]
    assert ("its graph has 90 nodes, more than 64" in g.explain()) is (n_ops == 90)


@pytest.mark.skipif(HAS_GPU, reason="refusals are planted in the simulator")
@on_both_platforms
def test_a_refused_launch_goes_the_long_way(platform):
    """Once, with the right result; the next call is one launch again."""
    import gfxgraph_simulator as simulator

    g = joined_g()
    simulator.active().faults.fail_nth("launch", 1, 1)
    for i in range(4, 8):
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    assert launches(g) == WAYS["joined"] and g.stats()["replays"] == 7


@pytest.mark.skipif(HAS_GPU, reason="the simulator's driver tells what it holds")
def test_execs_go_with_what_they_were_made_for(platform):
    """Two for a signature in standard mode, one a graph of the ring in hot, where two more are made when all of its
    results are held; none after an eviction."""
    before = execs()
    g = joined_g()
    assert execs() == before + 4  # each an exec and the graph that it was made from
    hot = joined_g(mode="hot")
    held = [hot(*of_all_kinds(i)) for i in range(2)]
    assert execs() == before + 8
    held += [hot(*of_all_kinds(i)) for i in range(2)]
    assert execs() == before + 12
    for which in (g, hot):
        for entry in which._entries.values():
            entry.evict("the test")
    del held, entry
    assert execs() == before
    assert same(g(*of_all_kinds(1)), step(*of_all_kinds(1)))


@pytest.mark.parametrize("broken", ["wrong", "refused", "late"])
def test_nothing_is_joined_where_the_trial_fails(platform, monkeypatch, broken):
    """Changes without effect, changes that are refused, or changes that reach what is already on its way."""
    state = process.current()
    state.joins.clear()
    real = state.driver.joined

    def joined(*args):
        made = real(*args)
        if broken == "wrong":
            made.into.apply = lambda: 0
        elif broken == "refused":
            made.back.apply = lambda: 1
        else:  # every launch copies to where the last one was told to
            launch, told = made.launch, []
            made.launch = lambda: told.append(1) or (launch() if len(told) >= joined_launch.N_TRIED else 0)
        return made

    monkeypatch.setattr(state.driver, "joined", joined, raising=False)
    g = gfxgraph.graphed(step)
    for i in range(5):
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    assert state.joins == {0: False} and launches(g) == WAYS["launched"]
    assert kinds().count("not_joined") == 1


def test_what_writes_outside_is_not_run_once_more(platform):
    """A counter that the function keeps is advanced once a call, joined or not."""
    seen = torch.zeros(1, device="cuda")

    def counts(x):
        seen.add_(1)
        return x + seen

    g = gfxgraph.graphed(counts)
    for i in range(8):
        x = torch.full((3,), float(i), device="cuda")
        assert g(x).tolist() == [i + i + 1.0] * 3
    assert seen.item() == 8 and launches(g) == WAYS["joined"]


def test_large_graphs_are_left_as_they_are(platform, monkeypatch):
    """A second exec of them costs more than it saves."""
    monkeypatch.setattr(joined_launch, "MOST_NODES", 2)
    assert launches(joined_g()) == WAYS["launched"]


@pytest.mark.skipif(not hasattr(torch.cuda.graphs, "register_graph_replay_start_hook"), reason="torch 2.14 and later")
def test_hooks_around_replays_are_run(platform):
    """torch's own replay runs them: while there is one, a joined graph stands back."""
    g, seen = joined_g(), []
    handle = torch.cuda.graphs.register_graph_replay_start_hook(lambda graph: seen.append(graph))
    for i in range(3):
        assert same(g(*of_all_kinds(i)), step(*of_all_kinds(i)))
    handle.remove()
    assert len(seen) == 3 and same(g(*of_all_kinds(1)), step(*of_all_kinds(1))) and len(seen) == 3


@pytest.mark.skipif(HAS_GPU, reason="the guard of a simulated card")
@pytest.mark.parametrize("simulated", ["cuda", "hip"])
def test_a_guarded_graph_is_not_joined_and_looks_before_each_replay(simulated):
    """At tier 1 every call asks whether memory is gone, on the short way too."""
    gfxgraph.enable(simulate=simulated, validate=False, guard=1)
    try:
        g = gfxgraph.graphed(lambda x: x * 2)
        for i in range(4):
            g(torch.full((5,), float(i), device="cuda"))
        names = g._fast.__globals__
        assert launches(g) == WAYS["launched"]
        looked = []
        names["replay"] = lambda: looked.append(1)
        g(torch.ones(5, device="cuda"))
        assert not looked
        names["pointers"].is_dirty = True
        g(torch.ones(5, device="cuda"))
        assert looked
    finally:
        gfxgraph.disable()


@pytest.mark.skipif(HAS_GPU, reason="there torch's own is used; the simulator has none")
@pytest.mark.parametrize("n_devices, current, n_made", [(1, 0, 1), (2, 0, 1), (2, 1, 0)])
def test_results_are_allocated_past_the_dispatcher(platform, monkeypatch, n_devices, current, n_made):
    """With the strides of what the graph made, on the current device alone, and each call's its own."""
    made = []

    def empty(size, stride, dtype):
        if not type(size) is type(stride) is tuple:
            raise RuntimeError("as torch's, which takes no torch.Size")
        made.append(stride)
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", empty)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_devices)
    g = gfxgraph.graphed(lambda x: x.t() * 2)
    for i in range(4):
        g(torch.full((2, 3), float(i), device="cuda"))
    assert launches(g), g.explain()
    g._fast.__globals__["current_device"] = lambda: current
    made.clear()
    results = [g(torch.full((2, 3), float(i), device="cuda")) for i in range(4, 7)]
    assert made == [(1, 3)] * 3 * n_made
    assert [r.unique().tolist() for r in results] == [[8.0], [10.0], [12.0]]
    assert {r.stride() for r in results} == {(1, 3)} and len({r.data_ptr() for r in results}) == 3
