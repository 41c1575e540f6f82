"""What torch.cuda.CUDAGraph and torch.cuda.graph accept, answer and refuse: the same with and without the bridge.

Every scenario runs on torch alone first (in the simulator, or on the GPU), so that what it states is
torch's own behaviour, and then under the bridge, where no split or fallback may be reported.
"""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

HAS_GPU = torch.cuda.is_available()

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
# From 2.14 on replay() instantiates first, and that is what refuses.
NO_CAPTURE = "without a preceding successful capture|must have been called before calling instantiate"


def since(major, minor):
    """Skip where the torch installed does not have the feature yet."""
    return pytest.mark.skipif(TORCH < (major, minor), reason=f"came with torch {major}.{minor}")


def arange(n=8):
    return torch.arange(float(n), device="cuda")


def captured(graph, body, **kw):
    with torch.cuda.graph(graph, **kw):
        return body()


def on_stream(begin, body, end):
    """begin, body and end on a stream of their own, as programs do that call capture_begin themselves."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        begin()
        out = body()
        end()
    torch.cuda.synchronize()
    return out


# -- the class ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda: torch.cuda.CUDAGraph(),
    lambda: torch.cuda.CUDAGraph(False),
    lambda: torch.cuda.CUDAGraph(True),
    lambda: torch.cuda.CUDAGraph(keep_graph=False),
    lambda: torch.cuda.CUDAGraph(keep_graph=True),
    lambda: torch.cuda.graphs.CUDAGraph(),
], ids=["none", "false", "true", "keyword-false", "keyword-true", "other-name"])  # fmt: skip
def test_constructor(surface, make):
    """Every way to construct a graph gives one that captures and replays."""
    x, graph = arange(), make()
    y = captured(graph, lambda: x + 1)
    x.fill_(3)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_constructor_refuses_what_torch_refuses(surface):
    """Unknown arguments of the constructor are a TypeError."""
    with pytest.raises(TypeError):
        torch.cuda.CUDAGraph(nonsense=1)


class _Named:
    """Two arguments of its own, as engines' subclasses have them."""

    def __new__(cls, name, keep_graph=False):
        return super().__new__(cls, keep_graph)

    def __init__(self, name, keep_graph=False):
        super().__init__(keep_graph)
        self.name = name
        self.begun = self.ended = self.replayed = 0

    def capture_begin(self, *args, **kwargs):
        self.begun += 1
        super().capture_begin(*args, **kwargs)

    def capture_end(self):
        super().capture_end()
        self.ended += 1

    def replay(self):
        self.replayed += 1
        super().replay()


@pytest.mark.parametrize("keep_graph", [False, True])
def test_user_subclass(surface, keep_graph):
    """A subclass with its own __new__, __init__ and overrides works, and its overrides are called."""
    named = type("Named", (_Named, torch.cuda.CUDAGraph), {})
    x, graph = arange(), named("decode", keep_graph=keep_graph)
    y = captured(graph, lambda: x * 2)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, x * 2)
    assert isinstance(graph, torch.cuda.CUDAGraph)
    assert (graph.name, graph.begun, graph.ended, graph.replayed) == ("decode", 1, 1, 2)


def test_user_subclass_that_overrides_only_new(surface):
    """super().__new__(cls, keep_graph) without an __init__, as torch's own class does it."""

    class Kept(torch.cuda.CUDAGraph):
        def __new__(cls, keep_graph=True):
            return super().__new__(cls, keep_graph)

    x, graph = arange(), Kept()
    y = captured(graph, lambda: x - 1)
    graph.replay()
    assert torch.equal(y, x - 1)


def test_graph_is_an_ordinary_object(surface):
    """Attributes can be set; it hashes by identity, can be a key and can be weakly referenced."""
    one, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    one.batch = 4
    by_graph = {one: "one", other: "other"}
    ref = weakref.ref(one)
    assert by_graph[one] == "one" and one != other and ref() is one and one.batch == 4
    del one, by_graph
    assert ref() is None


def test_names_are_one_class(surface):
    """torch.cuda.CUDAGraph and torch.cuda.graphs.CUDAGraph are the same class, whose base is torch's."""
    assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph
    assert issubclass(torch.cuda.CUDAGraph, torch._C._CUDAGraph)


def test_signatures_match():
    """Each public method of the installed torch's class exists on ours and takes every call that torch's takes."""
    from tests.conformance.conftest import SURFACES, Surface

    stock = torch.cuda.graphs.CUDAGraph
    methods = {
        name: inspect.signature(member)
        for name, member in vars(stock).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }
    assert {"capture_begin", "capture_end", "replay", "reset", "pool", "instantiate"} <= set(methods)
    with Surface(SURFACES[1]).installed():
        ours = torch.cuda.CUDAGraph
        for name, theirs in methods.items():
            mine = inspect.signature(getattr(ours, name))
            for arguments in _calls(theirs):
                mine.bind(*arguments[0], **arguments[1])
        for name in ("register_generator_state", "raw_cuda_graph", "raw_cuda_graph_exec"):
            assert callable(getattr(ours, name))


def _calls(signature):
    """Calls that the signature takes: all by position, and all by keyword."""
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name: p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    yield ["self", *(p.name for p in by_place)], {p.name: 1 for p in parameters if p.kind is p.KEYWORD_ONLY}
    yield ["self"], named
    yield ["self"], {n: n for n in named if signature.parameters[n].default is inspect.Parameter.empty}


# -- capture_begin and torch.cuda.graph ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "zeros", "handle", "graph", "mempool-id"])
@pytest.mark.parametrize("how", ["position", "keyword", "context"])
def test_pool_argument(surface, kind, how):
    """Every form of a pool is taken by position, by keyword, and through torch.cuda.graph."""
    first = torch.cuda.CUDAGraph()
    x = arange()
    captured(first, lambda: x + 0)
    mempool = torch.cuda.MemPool()
    pool = {
        "none": None,
        "zeros": (0, 0),
        "handle": torch.cuda.graph_pool_handle(),
        "graph": first.pool(),
        "mempool-id": mempool.id,
    }[kind]
    graph = torch.cuda.CUDAGraph()
    if how == "context":
        y = captured(graph, lambda: x + 5, pool=pool)
    elif how == "position":
        y = on_stream(lambda: graph.capture_begin(pool), lambda: x + 5, graph.capture_end)
    else:
        y = on_stream(
            lambda: graph.capture_begin(pool=pool, capture_error_mode="global"), lambda: x + 5, graph.capture_end
        )
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, x + 5)
    if kind in ("handle", "graph", "mempool-id"):
        assert tuple(graph.pool()) == tuple(pool)
    else:
        assert tuple(graph.pool()) != (0, 0) and tuple(graph.pool()) != tuple(first.pool())
    del graph, y


@pytest.mark.parametrize("pool", ["none", "zeros", "handle"])
def test_inputs_are_kept_whatever_the_pool(surface, pool):
    """An input that the program lets go of is kept, also where pool=(0, 0) means "a new one"."""
    if not surface.is_bridged:
        pytest.skip("torch alone replays from freed memory")
    x, graph = arange(), torch.cuda.CUDAGraph()
    pool = {"none": None, "zeros": (0, 0), "handle": torch.cuda.graph_pool_handle()}[pool]
    y = captured(graph, lambda: x + 1, pool=pool)
    del x
    torch.full((8,), 99.0, device="cuda")
    graph.replay()
    assert torch.equal(y, arange() + 1)


@since(2, 14)
def test_pool_may_be_a_mempool(surface):
    """From 2.14 on a MemPool itself is a pool."""
    x, pool, graph = arange(), torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    y = captured(graph, lambda: x + 5, pool=pool)
    graph.replay()
    assert torch.equal(y, x + 5) and tuple(graph.pool()) == tuple(pool.id)
    again = torch.cuda.CUDAGraph()
    z = on_stream(lambda: again.capture_begin(pool), lambda: x + 6, again.capture_end)
    again.replay()
    assert torch.equal(z, x + 6)
    del graph, again, y, z


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_capture_error_modes(surface, mode):
    """All three modes capture; the second argument by position is the mode."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    y = captured(graph, lambda: x * 3, capture_error_mode=mode)
    graph.replay()
    other = torch.cuda.CUDAGraph()
    z = on_stream(lambda: other.capture_begin(None, mode), lambda: x * 4, other.capture_end)
    other.replay()
    assert torch.equal(y, x * 3) and torch.equal(z, x * 4)


def test_unknown_mode_is_refused(surface):
    """An unknown mode is torch's error, and leaves everything usable."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="[Uu]nknown capture error mode"):
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="careless")
    assert torch.cuda.current_stream() == before and not torch.cuda.is_current_stream_capturing()
    torch.rand(2, device="cuda")
    y = captured(torch.cuda.CUDAGraph(), lambda: x + 1)
    assert y is not None


def test_unknown_keyword_is_torchs_to_refuse(surface):
    """A keyword that torch does not know raises TypeError as on torch alone, and leaves everything usable."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    with pytest.raises(TypeError):
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(keyword_of_the_future=True)
    y = captured(graph, lambda: x + 1)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_keyword_of_a_newer_torch_passes_through(surface):
    """A keyword that a newer base class takes reaches it."""
    if not surface.is_bridged:
        pytest.skip("about the bridge alone")
    from gfxgraph.capture.graph import bridged_class
    from gfxgraph.process import process

    state = process.require()
    base = state.base
    seen = []

    class Newer(base):
        def capture_begin(self, pool=None, capture_error_mode="global", *, keyword_of_the_future=None, **kwargs):
            seen.append(keyword_of_the_future)
            super().capture_begin(pool, capture_error_mode, **kwargs)

    state.base = Newer
    try:
        x, graph = arange(), bridged_class(Newer)()
        y = on_stream(lambda: graph.capture_begin(keyword_of_the_future=7), lambda: x + 1, graph.capture_end)
        graph.replay()
        assert torch.equal(y, x + 1) and seen == [7]
    finally:
        state.base = base


def test_context_manager_by_keyword(surface):
    """torch.cuda.graph(cuda_graph=..., pool=..., stream=..., capture_error_mode=...), as SGLang calls it."""
    x, graph, stream = arange(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    pool = torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(cuda_graph=graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.is_current_stream_capturing()
        y = x + 1
    assert torch.cuda.current_stream() != stream and not torch.cuda.is_current_stream_capturing()
    graph.replay()
    assert torch.equal(y, x + 1)


def test_default_capture_stream_is_shared(surface):
    """Captures without stream= use one stream of the class, made at first use, that a program may set."""
    x, streams = arange(), []
    for _ in range(2):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            streams.append(torch.cuda.current_stream())
            x + 1
    assert streams[0] == streams[1] == torch.cuda.graph.default_capture_stream
    mine = torch.cuda.Stream()
    torch.cuda.graph.default_capture_stream = mine
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert torch.cuda.current_stream() == mine
            x + 1
    finally:
        torch.cuda.graph.default_capture_stream = streams[0]


def test_subclass_of_the_context_manager(surface):
    """A subclass of torch.cuda.graph with its own __enter__ and __exit__ keeps working."""
    log = []

    class logged(torch.cuda.graph):
        def __enter__(self):
            log.append("in")
            return super().__enter__()

        def __exit__(self, *args):
            out = super().__exit__(*args)
            log.append("out")
            return out

    x, graph = arange(), torch.cuda.CUDAGraph()
    with logged(graph):
        y = x + 1
    graph.replay()
    assert log == ["in", "out"] and torch.equal(y, x + 1)


@pytest.fixture(autouse=True)
def _flags_of_no_other_test():
    """torch's flags are the process's: threads of an earlier test may have left their modes in turn, and a flag up."""
    from torch.utils import _python_dispatch as dispatch

    if dispatch._len_torch_dispatch_stack() == 0:
        for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode"):
            if hasattr(dispatch, name):
                setattr(dispatch, name, False)


def assert_no_mode_is_left():
    """No dispatch mode on the stack, and none that torch thinks is there: compiled code would stay uncompiled."""
    from torch.utils import _python_dispatch as dispatch

    assert dispatch._len_torch_dispatch_stack() == 0
    assert not dispatch.is_in_torch_dispatch_mode()
    assert not dispatch.is_in_any_mode_without_ignore_compile_internals()


class Passing(TorchDispatchMode):
    """A program's own mode; changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_mode_across_the_end_of_a_capture(surface):
    """A mode entered inside a capture and left after it leaves no trace."""
    x, graph, mode = arange(), torch.cuda.CUDAGraph(), Passing()
    with torch.cuda.graph(graph):
        y = x + 1
        mode.__enter__()
        z = y * 2
    mode.__exit__(None, None, None)
    assert_no_mode_is_left()
    graph.replay()
    assert torch.equal(z, (x + 1) * 2)


@since(2, 13)
def test_check_input_liveness(surface):
    """check_input_liveness=True captures and replays; a live input raises nothing."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, check_input_liveness=True):
        y = (x + 1) * 2
    x.fill_(4)
    graph.replay()
    assert torch.equal(y, (x + 1) * 2)
    z = x + 1  # no mode is left behind on the stack
    assert_no_mode_is_left()
    assert torch.equal(z, x + 1)


@since(2, 13)
def test_dead_input_is_found(surface):
    """An input that the program let go: torch's check raises, and so does the bridge's."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, check_input_liveness=True):
        _ = x + 1
    del x
    gc.collect()
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match="input_let_go: .*\n.*x, float32" if surface.is_bridged else "dead tensor"
        ):
            graph.replay()


@since(2, 13)
def test_check_input_liveness_with_a_split(surface):
    """The check, and a capture that has to be split: both work, and no mode is left behind."""
    if not surface.is_bridged:
        pytest.skip("torch alone cannot capture this")
    surface.allow("split")
    x, graph = arange(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, check_input_liveness=True):
        y = x + 1
        if y.sum().item() > -1:
            y = y * 2
    x.fill_(4)
    graph.replay()
    assert torch.equal(y, (x + 1) * 2)
    assert_no_mode_is_left()


@since(2, 12)
def test_enable_annotations_off(surface):
    """enable_annotations is torch.cuda.graph's own business; False passes everywhere."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, enable_annotations=False):
        y = x + 1
    graph.replay()
    assert torch.equal(y, x + 1)


# -- keep_graph, handles, errors -----------------------------------------------------------------------


def test_keep_graph_flow(surface):
    """keep_graph=True: raw handle after the capture, exec handle after instantiate, which may run again."""
    x, graph = arange(), torch.cuda.CUDAGraph(keep_graph=True)
    with pytest.raises(RuntimeError):
        graph.raw_cuda_graph()
    y = captured(graph, lambda: x + 1)
    assert graph.raw_cuda_graph()
    with pytest.raises(RuntimeError, match="until instantiate"):
        graph.raw_cuda_graph_exec()
    graph.instantiate()
    assert graph.raw_cuda_graph_exec()
    graph.instantiate()
    assert graph.raw_cuda_graph_exec() and graph.raw_cuda_graph()
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, x + 1)
    graph.reset()
    y = captured(graph, lambda: x + 2)
    graph.replay()
    assert torch.equal(y, x + 2) and graph.raw_cuda_graph_exec()


def test_keep_graph_replay_instantiates(surface):
    """keep_graph=True: the first replay instantiates by itself."""
    x, graph = arange(), torch.cuda.CUDAGraph(keep_graph=True)
    y = captured(graph, lambda: x + 1)
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, x + 1) and graph.raw_cuda_graph_exec()


def test_without_keep_graph_both_errors(surface):
    """keep_graph=False: no raw graph, and no instantiate by the user, but an exec handle."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    y = captured(graph, lambda: x + 1)
    with pytest.raises(RuntimeError, match=r"Graph_t"):
        graph.raw_cuda_graph()
    with pytest.raises(RuntimeError):
        graph.instantiate()
    assert graph.raw_cuda_graph_exec()
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, x + 1)


@pytest.mark.parametrize("keep_graph", [False, True])
def test_errors_before_a_capture(surface, keep_graph):
    """Before any capture each of these is a RuntimeError with torch's text in it, and spoils nothing."""
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with pytest.raises(RuntimeError, match=r"Called CUDAGraph::pool\(\) without a preceding successful capture"):
        graph.pool()
    with pytest.raises(RuntimeError, match=NO_CAPTURE):
        graph.replay()
    with pytest.raises(RuntimeError):
        graph.raw_cuda_graph()
    with pytest.raises(RuntimeError, match="until instantiate"):
        graph.raw_cuda_graph_exec()
    with pytest.raises(RuntimeError):
        graph.instantiate()
    graph.reset()
    x = arange()
    y = captured(graph, lambda: x + 1)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_second_capture_without_reset(surface):
    """A graph object that owns a graph refuses another capture with torch's text, and still replays."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    y = captured(graph, lambda: x + 1)
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
    x.fill_(5)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_default_stream_is_refused(surface):
    """Capturing on the default stream is torch's error; the next capture works."""
    if HAS_GPU and not surface.is_bridged:
        pytest.skip("stock torch leaves its generator stuck after this, for the whole process")
    x, graph = arange(), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="CUDA graphs must be captured on a non-default stream"):
        graph.capture_begin()
    assert not torch.cuda.is_current_stream_capturing()
    torch.rand(2, device="cuda")
    y = captured(torch.cuda.CUDAGraph(), lambda: x + 1)
    assert y is not None


def test_end_without_begin(surface):
    """capture_end before capture_begin is a RuntimeError."""
    with pytest.raises(RuntimeError):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.CUDAGraph().capture_end()


def test_empty_capture_warns(surface):
    """An empty capture warns and does not fail; its pool can be used (torch's own code counts on both)."""
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(graph, lambda: None)
    x, other = arange(), torch.cuda.CUDAGraph()
    y = captured(other, lambda: x + 1, pool=graph.pool())
    graph.replay()
    other.replay()
    assert torch.equal(y, x + 1)


def test_full_capture_does_not_warn(surface):
    """A capture of one operation warns of nothing."""
    x = arange()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(torch.cuda.CUDAGraph(), lambda: x + 1)


@pytest.mark.parametrize("keep_graph", [False, True])
def test_debug_mode_and_dump(surface, keep_graph, tmp_path):
    """enable_debug_mode before a capture and debug_dump after it do not fail, also over two streams."""
    if TORCH >= (2, 14):
        pytest.skip("from 2.14 on a dump asks NVIDIA's own bindings for a graph of the driver's")
    x, graph, side = arange(), torch.cuda.CUDAGraph(keep_graph=keep_graph), torch.cuda.Stream()
    graph.enable_debug_mode()

    def body():
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a * 2
        torch.cuda.current_stream().wait_stream(side)
        return a + b

    y = captured(graph, body)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    x.fill_(1)
    graph.replay()
    assert torch.equal(y, (x + 1) * 3)
    if keep_graph:
        assert "digraph" in (tmp_path / "graph.dot").read_text()


def test_reset_and_recapture_many_times(surface):
    """reset() and another capture on the same object, several times over; each replays its own work."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    for n in range(4):
        y = captured(graph, lambda n=n: x + n)
        x.fill_(n)
        graph.replay()
        assert torch.equal(y, x + n)
        graph.reset()
    with pytest.raises(RuntimeError, match=NO_CAPTURE):
        graph.replay()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.pool()


# -- random numbers --------------------------------------------------------------------------------------


def test_default_generator_advances_as_eager(surface):
    """Replays draw what eager would draw, and follow a new seed."""
    x = torch.ones(64, device="cuda")

    def body():
        return torch.dropout(x, 0.5, True) + torch.rand(64, device="cuda")

    body()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.manual_seed(5)
    y = captured(graph, body)
    want = [body() for _ in range(3)]
    torch.cuda.manual_seed(5)
    for expected in want:
        graph.replay()
        assert torch.equal(y, expected)
    torch.cuda.manual_seed(6)
    graph.replay()
    got = y.clone()
    torch.cuda.manual_seed(6)
    assert torch.equal(got, body())


def test_generator_registered_before_the_capture(surface):
    """register_generator_state before capture_begin, as TransformerEngine does it: replays draw anew."""
    generator = torch.Generator(device="cuda")
    generator.manual_seed(7)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    y = captured(graph, lambda: torch.rand(16, device="cuda", generator=generator))
    generator.manual_seed(7)
    want = [torch.rand(16, device="cuda", generator=generator) for _ in range(3)]
    generator.manual_seed(7)
    for expected in want:
        graph.replay()
        assert torch.equal(y, expected)


def test_generator_states_swapped(surface):
    """graphsafe_set_state between captures: each graph follows the state that was in place when it was captured."""
    generator = torch.Generator(device="cuda")
    generator.manual_seed(3)
    states = [generator.graphsafe_get_state(), generator.clone_state()]
    states[1].manual_seed(4)
    graphs = []
    for state in states:
        graph = torch.cuda.CUDAGraph()
        generator.graphsafe_set_state(state)
        graph.register_generator_state(generator)
        graphs.append((graph, captured(graph, lambda: torch.rand(8, device="cuda", generator=generator))))
    states[0].manual_seed(3)
    states[1].manual_seed(4)
    for seed, (graph, y) in zip((3, 4), graphs):
        eager = torch.Generator(device="cuda")
        eager.manual_seed(seed)
        for _ in range(2):
            graph.replay()
            assert torch.equal(y, torch.rand(8, device="cuda", generator=eager))


# -- streams and threads -----------------------------------------------------------------------------------


def test_replay_on_any_stream(surface):
    """A graph captured on one stream replays on the default stream and on a third one."""
    x, graph = arange(), torch.cuda.CUDAGraph()
    y = captured(graph, lambda: x + 1, stream=torch.cuda.Stream())
    for value, stream in ((1.0, torch.cuda.default_stream()), (2.0, torch.cuda.Stream())):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.fill_(value)
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, torch.full_like(y, value + 1))


def test_captures_in_two_threads(surface):
    """Two captures that overlap, in two threads in thread_local mode: each gets its own graph, no mode stays."""
    surface.allow("capture_not_serialized")  # each waits for the other inside its capture
    both_capture = threading.Barrier(2, timeout=60)
    first_is_begun, first_is_ended = threading.Event(), threading.Event()
    results, errors = {}, []

    def work(number):
        try:
            x, stream = torch.full((8,), float(number), device="cuda"), torch.cuda.Stream()
            torch.cuda.synchronize()
            both_capture.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                if number == 2:
                    first_is_begun.wait(60)
                graph.capture_begin(capture_error_mode="thread_local")
                first_is_begun.set()
                both_capture.wait()
                y = x + number
                both_capture.wait()
                y = y * 2
                if number == 2:
                    first_is_ended.wait(60)
                graph.capture_end()
                first_is_ended.set()
            both_capture.wait()
            x.fill_(10.0)
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            results[number] = y.clone()
        except (RuntimeError, AssertionError) as error:  # a broken barrier is a RuntimeError
            both_capture.abort()
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number in (1, 2):
        assert torch.equal(results[number], torch.full((8,), (10.0 + number) * 2, device="cuda"))
    assert_no_mode_is_left()


def test_another_thread_runs_eagerly_meanwhile(surface):
    """While one thread captures in thread_local mode, the reads of a thread started meanwhile are its own business."""
    x, graph, answers = arange(), torch.cuda.CUDAGraph(), []

    def other():
        with torch.cuda.stream(torch.cuda.Stream()):
            t = torch.ones(4, device="cuda")
            answers.append((t * 2).sum().item())
            answers.append(t.tolist())
            answers.append(type((t * 3).max().item()) is float)

    torch.ones(4, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x + 1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        z = y * 2
    x.fill_(7)
    graph.replay()
    assert answers == [8.0, [1.0] * 4, True]
    assert torch.equal(z, (x + 1) * 2)


# -- graphs from before and after ---------------------------------------------------------------------------


def test_graphs_outlive_disable():
    """A graph of torch's own keeps working while the bridge is on; one of ours, after it is off."""
    import gfxgraph
    from tests.conformance.conftest import HAS_GPU, Surface

    if HAS_GPU:
        outer, on = Surface("stock-gpu"), {"allow_cuda": True, "validate": False}
        with outer.installed():
            _mixed(gfxgraph, on)
        return
    from gfxgraph.process import bridge, process

    with Surface("cuda").installed():
        # What the simulator's own removal would take away with it is not part of this scenario.
        stock = process.require().base
        x, graph = arange(), stock()
        y = captured(graph, lambda: x + 1)
        x.fill_(3)
        graph.replay()
        assert torch.equal(y, x + 1) and type(graph) is stock
        assert not gfxgraph.stats()["capture_count"]
        assert bridge.is_enabled()


def _mixed(gfxgraph, on):
    x, before = arange(), torch.cuda.CUDAGraph()
    y = captured(before, lambda: x + 1)
    gfxgraph.enable(**on)
    during = torch.cuda.CUDAGraph()
    z = captured(during, lambda: x + 2)
    x.fill_(3)
    before.replay()
    gfxgraph.disable()
    during.replay()
    assert torch.equal(y, x + 1) and torch.equal(z, x + 2)
    during.reset()
    z = captured(during, lambda: x + 4)
    during.replay()
    assert torch.equal(z, x + 4)


# -- hooks (2.14 and later) -----------------------------------------------------------------------------------


@since(2, 14)
def test_hooks_of_a_graph(surface):
    """Each hook fires at its moment, with the graph that the user holds, in torch's order."""
    log, graph, x = [], torch.cuda.CUDAGraph(), arange()

    def hook(name, check=None):
        def called(g):
            assert g is graph
            log.append((name, bool(check(g)) if check else None))

        return called

    graph.register_capture_start_hook(hook("start", lambda g: torch.cuda.is_current_stream_capturing()))
    graph.register_capture_end_hook(hook("end", lambda g: g.raw_cuda_graph()))
    graph.register_post_instantiate_hook(hook("instantiated", lambda g: g.raw_cuda_graph_exec()))
    graph.register_replay_start_hook(hook("before"))
    last = graph.register_replay_end_hook(hook("after"))
    y = captured(graph, lambda: x + 1)
    assert log == [("start", True), ("end", True), ("instantiated", True)]
    log.clear()
    graph.replay()
    graph.replay()
    assert [name for name, _ in log] == ["before", "after"] * 2
    last.remove()
    log.clear()
    graph.replay()
    assert [name for name, _ in log] == ["before"] and torch.equal(y, x + 1)


@since(2, 14)
def test_global_hooks(surface):
    """The hooks of the module fire for each graph."""
    log, graph, x = [], torch.cuda.CUDAGraph(), arange()
    names = ["capture_start", "capture_end", "instantiate", "replay_start", "replay_end"]
    handles = [
        getattr(torch.cuda.graphs, f"register_graph_{name}_hook")(lambda g, name=name: log.append((name, g is graph)))
        for name in names
    ]
    try:
        captured(graph, lambda: x + 1)
        graph.replay()
    finally:
        for handle in handles:
            handle.remove()
    assert log == [(name, True) for name in names]


@since(2, 14)
def test_replay_hooks_of_a_split_capture(surface):
    """A replay of several parts is one replay to its hooks, with everything launched in between."""
    if not surface.is_bridged:
        pytest.skip("torch alone cannot capture this")
    surface.allow("split", "validation_skipped")
    log, graph, x = [], torch.cuda.CUDAGraph(), arange()
    with torch.cuda.graph(graph):
        y = x + 1
        if y.sum().item() > -1:
            y = y * 2
    graph.register_replay_start_hook(lambda g: log.append("before"))
    graph.register_replay_end_hook(lambda g: log.append(("after", torch.equal(y, (x + 1) * 2))))
    for value in (3.0, 4.0):
        x.fill_(value)
        graph.replay()
    assert log == ["before", ("after", True)] * 2


@since(2, 14)
def test_destroy_callbacks_and_retained_objects(surface):
    """A retained object lives as long as the graph; callbacks run once, at reset or at the end."""
    log, x = [], arange()

    class Kept:
        pass

    graph, kept = torch.cuda.CUDAGraph(), Kept()
    ref = weakref.ref(kept)
    graph.register_destroy_callback(lambda: log.append("first"))
    graph.retain_object(kept)
    del kept
    captured(graph, lambda: x + 1)
    graph.replay()
    assert ref() is not None and not log
    graph.reset()
    assert ref() is None and log == ["first"]
    graph.register_destroy_callback(lambda: log.append("second"), synchronize_before_release=True)
    captured(graph, lambda: x + 1)
    graph.replay()
    del graph
    assert log == ["first", "second"]


@since(2, 14)
@pytest.mark.parametrize("keep_graph", [False, True])
def test_capture_end_in_its_parts(surface, keep_graph):
    """capture_end_pre, a look at the graph, instantiate, capture_end_post: as capture_end does it."""
    x, graph = arange(), torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        y = x + 1
        graph.capture_end_pre()
        assert not torch.cuda.is_current_stream_capturing()
        assert graph.raw_cuda_graph()
        graph.instantiate()
        graph.capture_end_post()
    x.fill_(6)
    graph.replay()
    assert torch.equal(y, x + 1)
    if not keep_graph:
        with pytest.raises(RuntimeError, match="Graph_t"):
            graph.raw_cuda_graph()


@since(2, 14)
def test_pools_and_retained_pools(surface):
    """pools() lists the pool of the capture and those used inside it with use_mem_pool."""
    x, graph, pool = arange(), torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    with torch.cuda.graph(graph):
        y = x + 1
        with torch.cuda.use_mem_pool(pool):
            z = y * 2
    x.fill_(2)
    graph.replay()
    assert torch.equal(z, (x + 1) * 2)
    assert tuple(graph.pool()) in [tuple(p) for p in graph.pools()]
    assert tuple(pool.id) in [tuple(p) for p in graph.pools()]
    del y, z, graph
