"""How vLLM, SGLang, TGI, ComfyUI, TensorRT-LLM, TransformerEngine and transformers call the graph API.

Each client does in its own few lines what the engine's graph code does to torch: which names it
calls, in which order, and what it replaces. Results equal eager ones, on torch alone and under the
bridge, and under the bridge nothing is split and nothing falls back.

Source: the engines as read for the design (vLLM 0.33, SGLang 0.5.23, TensorRT-LLM's PyTorch
backend, TransformerEngine d0067d0d, transformers 5.23, text-generation-inference 00359fc,
comfy/model_prefetch.py of ComfyUI 03fb330).
"""

from __future__ import annotations

import contextlib
import gc
import threading
from unittest.mock import patch

import pytest
import torch

pytestmark = pytest.mark.any_platform

SIZES = (1, 2, 4, 8)
HIDDEN = 16


@pytest.fixture(autouse=True)
def unfrozen():
    """vLLM has the collector look at everything again: 250 ms for each collection of later tests.

    What is garbage by then must not be frozen: torch's graph class has a subclass of each test's bridge, and to put
    another base below them all takes longer with each.
    """
    yield
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def weak(tensor):
    """A tensor over the same memory that does not own it, as the engines' weak_ref_tensor gives."""
    storage = torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), tensor.device, tensor.untyped_storage().nbytes()
    )
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(
        {
            "nbytes": storage.nbytes(),
            "data_ptr": tensor.data_ptr(),
            "size": tuple(tensor.size()),
            "stride": tuple(tensor.stride()),
            "dtype": tensor.dtype,
            "device": tensor.device,
            "storage_offset": 0,
        },
        storage,
    )


class Layers:
    """A decoder's step cut in pieces: two graphed parts around an 'attention' that some run eagerly."""

    def __init__(self):
        torch.manual_seed(0)
        self.a = torch.randn(HIDDEN, HIDDEN, device="cuda") / 4
        self.b = torch.randn(HIDDEN, HIDDEN, device="cuda") / 4
        self.cache = torch.zeros(16, HIDDEN, device="cuda")

    def before(self, x):
        return (x @ self.a).relu() + x

    def attention(self, h, slots):
        self.cache.index_copy_(0, slots, h)
        return h + self.cache.sum(0)

    def after(self, h):
        return (h @ self.b).tanh()

    def step(self, x, slots):
        return self.after(self.attention(self.before(x), slots))


def inputs(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, HIDDEN, generator=generator).cuda(), torch.randperm(16, generator=generator)[:n].cuda()


def padded(n):
    return next(size for size in SIZES if size >= n)


def check(run, layers, requests=((1, 1), (3, 2), (8, 3), (2, 4), (5, 5))):
    """``run(x, slots)`` follows eager execution request by request, the cache included."""
    eager = Layers()
    for n, seed in requests:
        x, slots = inputs(n, seed)
        layers.cache.zero_()
        eager.cache.zero_()
        got, want = run(x, slots), eager.step(x, slots)
        torch.cuda.synchronize()
        assert torch.allclose(got, want, rtol=1e-5, atol=1e-5)
        assert torch.allclose(layers.cache, eager.cache, rtol=1e-5, atol=1e-5)


# -- vLLM -----------------------------------------------------------------------------------------------------


class PiecewiseRunner:
    """vLLM's piecewise mode: one graph per piece and size, largest first, one global pool, weak outputs.

    All pieces but the first are captured with the collector and empty_cache replaced by no-ops; each
    piece's input has a fixed place.
    """

    def __init__(self, layers):
        self.layers, self.entries = layers, {}
        self.pool = torch.cuda.graph_pool_handle()
        self.x = torch.zeros(max(SIZES), HIDDEN, device="cuda")
        self.slots = torch.zeros(max(SIZES), dtype=torch.long, device="cuda")
        self.hidden = torch.zeros(max(SIZES), HIDDEN, device="cuda")

    def capture(self):
        gc.collect()
        gc.freeze()
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for size in sorted(SIZES, reverse=True):
                    self.run_size(size, warm=True)
                    self.run_size(size)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
        finally:
            gc.unfreeze()

    def run_size(self, size, warm=False):
        x, slots = self.x[:size], self.slots[:size]
        if warm:
            return self.layers.step(x, slots)
        h = self.piece("before", size, self.layers.before, x, is_first=True)
        self.hidden[:size].copy_(self.layers.attention(h, slots))  # eager, between the graphs
        return self.piece("after", size, self.layers.after, self.hidden[:size])

    def piece(self, name, size, body, argument, is_first=False):
        entry = self.entries.get((name, size))
        if entry is None:
            with contextlib.ExitStack() as stack:
                if not is_first:
                    stack.enter_context(patch("gc.collect", lambda *a: 0))
                    stack.enter_context(patch("torch.accelerator.empty_cache", lambda: None))
                    stack.enter_context(patch("torch.cuda.empty_cache", lambda: None))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream()):
                    out = body(argument)
                    out = weak(out)
            self.entries[name, size] = (graph, out, argument.data_ptr())
            return out
        graph, out, address = entry
        assert argument.data_ptr() == address  # as vLLM does in debug mode
        graph.replay()
        return out

    def __call__(self, x, slots):
        n = x.shape[0]
        self.x[:n].copy_(x)
        self.slots[:n].copy_(slots)
        size = padded(n)
        if size != n:  # padding rows rewrite the first slot with its own row
            self.x[n:size].copy_(x[:1].expand(size - n, -1))
            self.slots[n:size].copy_(slots[:1].expand(size - n))
        return self.run_size(size)[:n]


def test_vllm_piecewise(surface):
    """Pieces with weak outputs in one pool, captured largest first, with gc and empty_cache replaced."""
    layers = Layers()
    runner = PiecewiseRunner(layers)
    runner.capture()
    assert len(runner.entries) == 2 * len(SIZES)
    check(runner, layers)


class FullRunner:
    """Full graphs keyed by batch descriptor, one pool and one stream, through a replaced set_stream."""

    def __init__(self, layers, pool=None, mode="global"):
        self.layers, self.graphs, self.mode = layers, {}, mode
        self.pool = pool if pool is not None else torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.x = torch.zeros(max(SIZES), HIDDEN, device="cuda")
        self.slots = torch.zeros(max(SIZES), dtype=torch.long, device="cuda")
        self.out = torch.zeros(max(SIZES), HIDDEN, device="cuda")

    def body(self, size):
        out = self.layers.step(self.x[:size], self.slots[:size])
        self.out[:size].copy_(out)
        return out

    def capture(self, sizes=SIZES):
        self.stream.wait_stream(torch.cuda.current_stream())
        for size in sorted(sizes, reverse=True):
            with torch.cuda.stream(self.stream):
                self.body(size)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode=self.mode):
                out = self.body(size)
            self.graphs[size, False] = (graph, weak(out))
        torch.cuda.synchronize()

    def __call__(self, x, slots):
        n = x.shape[0]
        size = padded(n)
        self.x[:n].copy_(x)
        self.slots[:n].copy_(slots)
        self.x[n:size].copy_(x[:1].expand(size - n, -1))
        self.slots[n:size].copy_(slots[:1].expand(size - n))
        self.graphs[size, False][0].replay()
        return self.out[:n]


def test_vllm_full_graphs_with_replaced_set_stream(surface, monkeypatch):
    """torch.cuda.set_stream is vLLM's own wrapper, which remembers the stream per thread."""
    current, stock = threading.local(), torch.cuda.set_stream

    def set_stream(stream):
        current.value = stream
        stock(stream)

    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    layers = Layers()
    runner = FullRunner(layers)
    runner.capture()
    check(runner, layers)
    assert current.value == torch.cuda.current_stream()


def reserved():
    """What the allocator holds, without cuBLAS' workspace for each stream (32 MiB on some GPUs)."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_vllm_profiles_memory_in_a_throw_away_pool(surface):
    """The two largest graphs are captured into a pool that is thrown away, then all into the real one."""
    layers = Layers()
    before = reserved()
    profile = FullRunner(layers)
    profile.capture(sorted(SIZES)[-2:])
    assert torch.cuda.memory_reserved() > before
    for graph, _ in profile.graphs.values():
        graph.reset()
    del profile, graph
    assert reserved() <= before
    layers.cache.zero_()
    runner = FullRunner(layers)
    runner.capture()
    check(runner, layers)


class BreakableRunner:
    """One capture cut in graph, eager call, graph: a new graph object for each part, one pool, one stream."""

    def __init__(self, layers):
        self.layers, self.parts = layers, {}
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self.x = torch.zeros(max(SIZES), HIDDEN, device="cuda")
        self.slots = torch.zeros(max(SIZES), dtype=torch.long, device="cuda")

    def capture(self):
        for size in sorted(SIZES, reverse=True):
            x, slots = self.x[:size], self.slots[:size]
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.layers.step(x, slots)
                torch.cuda.synchronize()
                parts = []
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=self.pool)
                h = self.layers.before(x)
                graph.capture_end()
                parts.append(graph.replay)
                graph.replay()
                attended = torch.empty_like(h)

                def eager(h=h, slots=slots, attended=attended):
                    attended.copy_(self.layers.attention(h, slots))

                eager()
                parts.append(eager)
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=self.pool)
                out = self.layers.after(attended)
                graph.capture_end()
                parts.append(graph.replay)
            torch.cuda.current_stream().wait_stream(self.stream)
            self.parts[size] = (parts, out)

    def __call__(self, x, slots):
        n = x.shape[0]
        size = padded(n)
        self.x[:n].copy_(x)
        self.slots[:n].copy_(slots)
        self.x[n:size].copy_(x[:1].expand(size - n, -1))
        self.slots[n:size].copy_(slots[:1].expand(size - n))
        parts, out = self.parts[size]
        for part in parts:
            part()
        return out[:n]


def test_breakable_graphs(surface):
    """capture_end, an eager piece, capture_begin on a new object, in one pool on one stream."""
    layers = Layers()
    runner = BreakableRunner(layers)
    runner.capture()
    check(runner, layers)


def test_vllm_two_ubatches(surface):
    """Two micro-batches in two threads with their own streams, forked from and joined to the capturing one."""
    layers = Layers()
    x, _ = inputs(8, 7)
    compute, communicate = torch.cuda.Stream(), torch.cuda.Stream()
    out = torch.zeros(8, HIDDEN, device="cuda")

    def half(rows, stream):
        with torch.cuda.stream(stream):
            h = layers.before(x[rows])
            out[rows].copy_(layers.after(h))

    def body():
        main = torch.cuda.current_stream()
        for rows, stream in ((slice(0, 4), compute), (slice(4, 8), communicate)):
            stream.wait_stream(main)
            half(rows, stream)
        main.wait_stream(compute)
        main.wait_stream(communicate)

    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        body()
    for seed in (8, 9):
        x.copy_(inputs(8, seed)[0])
        graph.replay()
        torch.cuda.synchronize()
        assert torch.allclose(out, layers.after(layers.before(x)), rtol=1e-5, atol=1e-5)


def test_graphs_cleared_before_teardown(surface):
    """All graphs and their pool are dropped at once, in one dictionary clear, and nothing stays reserved."""
    layers = Layers()
    before = reserved()
    runner = FullRunner(layers)
    runner.capture()
    runner.graphs.clear()
    torch.cuda.synchronize()
    del runner
    assert reserved() <= before


# -- SGLang ---------------------------------------------------------------------------------------------------


def test_sglang_device_module_and_keywords(surface):
    """Everything reached through torch.get_device_module(), cuda_graph= by keyword, thread_local mode."""
    layers = Layers()
    device_module = torch.get_device_module("cuda")
    pool, stream = device_module.graph_pool_handle(), device_module.Stream()
    graphs, outs = {}, {}
    static = torch.zeros(max(SIZES), HIDDEN, device="cuda")
    for size in reversed(SIZES):
        stream.wait_stream(device_module.current_stream())
        with device_module.stream(stream):
            layers.after(layers.before(static[:size]))
        graph = device_module.CUDAGraph()
        with device_module.graph(cuda_graph=graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            outs[size] = layers.after(layers.before(static[:size]))
        graphs[size, 0, None] = graph
        device_module.synchronize()
    for n in (1, 4, 8):
        x, _ = inputs(n, n)
        static[:n].copy_(x)
        graphs[n, 0, None].replay()
        assert torch.allclose(outs[n], layers.after(layers.before(x)), rtol=1e-5, atol=1e-5)


def test_sglang_hooked_wait_stream(surface, monkeypatch):
    """Stream.wait_stream replaced, so that streams forked inside a capture are joined automatically at its end."""
    forked, stock = [], torch.cuda.Stream.wait_stream

    def wait_stream(self, stream):
        if torch.cuda.is_current_stream_capturing() and self not in forked:
            forked.append(self)
        return stock(self, stream)

    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", wait_stream)
    layers, side = Layers(), torch.cuda.Stream()
    x, _ = inputs(4, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            a = layers.before(x)
        b = layers.after(x)
        for stream in list(forked):  # the body never joined it
            main.wait_stream(stream)
        out = a + b
    assert forked[0] == side
    x.copy_(inputs(4, 4)[0])
    graph.replay()
    assert torch.allclose(out, layers.before(x) + layers.after(x), rtol=1e-5, atol=1e-5)


def test_sglang_capture_inside_use_mem_pool(surface):
    """Graphs captured while use_mem_pool routes this thread's eager allocations to another pool."""
    layers, weights_pool = Layers(), torch.cuda.MemPool()
    graph_pool = torch.cuda.graph_pool_handle()
    x, _ = inputs(4, 3)
    layers.before(x)  # the warm-up that every engine makes
    with torch.cuda.use_mem_pool(weights_pool):
        extra = torch.ones(HIDDEN, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graph_pool):
            out = layers.before(x) * extra
    x.copy_(inputs(4, 4)[0])
    extra.fill_(2)
    graph.replay()
    assert torch.allclose(out, layers.before(x) * 2, rtol=1e-5, atol=1e-5)
    del graph, out, extra


def test_sglang_keep_graph_and_dedup_probe(surface):
    """keep_graph=True, hasattr(raw_cuda_graph), instantiate by hand, replay, reset: the dedup mixin's calls."""
    layers = Layers()
    x, _ = inputs(4, 3)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    assert hasattr(graph, "raw_cuda_graph") and hasattr(graph, "instantiate")
    with torch.cuda.graph(graph):
        out = layers.before(x)
    assert int(graph.raw_cuda_graph()) != 0
    graph.instantiate()
    x.copy_(inputs(4, 4)[0])
    graph.replay()
    assert torch.allclose(out, layers.before(x), rtol=1e-5, atol=1e-5)
    graph.reset()


class GlueGraph:
    """Prepares a step's metadata by a graph captured while serving; on any failure, off for good and eager."""

    def __init__(self):
        self.graphs, self.is_disabled, self.failures = {}, False, []
        self.lengths = torch.zeros(8, dtype=torch.long, device="cuda")
        self.offsets = torch.zeros(9, dtype=torch.long, device="cuda")

    def body(self, n, breaks):
        self.offsets[1 : n + 1].copy_(self.lengths[:n].cumsum(0))
        if breaks:
            raise RuntimeError("a kernel that refuses to be captured")

    def run(self, lengths, breaks=False):
        n = lengths.shape[0]
        self.lengths[:n].copy_(lengths)
        if self.is_disabled:
            self.body(n, False)
            return
        graph = self.graphs.get(n)
        if graph is not None:
            graph.replay()
            return
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.body(n, breaks)
            self.graphs[n] = graph
            graph.replay()
        except RuntimeError as error:
            self.failures.append(error)
            self.is_disabled = True
            self.graphs.clear()
            # What a failed capture recorded was never executed: do this step's work for real.
            self.body(n, False)


@pytest.mark.parametrize("breaks_at", [None, 0, 2])
def test_sglang_glue_graph_reruns_the_step_itself(surface, breaks_at):
    """The engine's own try/except sees its own error, reruns the step eagerly, and everything goes on."""
    glue = GlueGraph()
    for number, lengths in enumerate(([3, 1], [5], [2, 2, 2], [7, 1], [4])):
        t = torch.tensor(lengths).cuda()
        glue.run(t, breaks=number == breaks_at)
        torch.cuda.synchronize()
        assert glue.offsets[1 : len(lengths) + 1].tolist() == torch.tensor(lengths).cumsum(0).tolist()
        torch.rand(2, device="cuda")
    assert [str(e) for e in glue.failures] == (
        ["a kernel that refuses to be captured"] if breaks_at is not None else []
    )
    layers = Layers()
    runner = FullRunner(layers)
    runner.capture()
    check(runner, layers)


def test_replay_on_another_stream_than_captured(surface):
    """Captured on the engine's stream, replayed on the scheduler's."""
    layers = Layers()
    runner = FullRunner(layers)
    runner.capture()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        check(runner, layers)
    torch.cuda.current_stream().wait_stream(other)


# -- text-generation-inference --------------------------------------------------------------------------------


def test_text_generation_inference(surface):
    """Largest first into one pool of the module's, smaller sizes over slices of its inputs; spare rows go to slot 0."""
    layers, graphs, pool = Layers(), {}, torch.cuda.graph_pool_handle()
    x = torch.zeros(max(SIZES), HIDDEN, device="cuda")
    slots = torch.arange(max(SIZES), device="cuda")
    for size in sorted(SIZES, reverse=True):
        graph = torch.cuda.CUDAGraph()
        graphs[size] = {"x": x[:size], "slots": slots[:size], "graph": graph}
        torch.cuda.synchronize()
        layers.step(x[:size], slots[:size])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool):
            graphs[size]["logits"] = layers.step(x[:size], slots[:size])
        torch.cuda.synchronize()

    def run(given, where):
        n = len(given)
        known = graphs[padded(n)]
        known["x"].zero_()
        known["x"][:n] = given
        known["slots"].fill_(0)
        known["slots"][:n] = where
        known["graph"].replay()
        return known["logits"][:n]

    layers.cache.zero_()
    eager = Layers()
    for n, seed in ((8, 1), (3, 2), (1, 3), (5, 4)):
        given = torch.randn(n, HIDDEN, generator=torch.Generator().manual_seed(seed)).cuda()
        where = torch.arange(1, n + 1).cuda()  # slot 0 is the server's own
        got, want = run(given, where), eager.step(given, where)
        torch.cuda.synchronize()
        assert torch.allclose(got, want, rtol=1e-5, atol=1e-5)
        assert torch.allclose(layers.cache, eager.cache, rtol=1e-5, atol=1e-5)


# -- ComfyUI ----------------------------------------------------------------------------------------------------


class Blocks:
    """ComfyUI's core: each block of a model warmed and captured on one stream, then replayed at once, and each step."""

    def __init__(self, n=3):
        generator = torch.Generator().manual_seed(0)
        self.weights = [(torch.randn(HIDDEN, HIDDEN, generator=generator) / 4).cuda() for _ in range(n)]
        self.x = torch.zeros(4, HIDDEN, device="cuda")
        self.noise = torch.Generator(device="cuda")
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            torch.cuda.current_blas_handle()
            one = torch.zeros((2, 2), device="cuda")
            torch.addmm(one[0], one, one)
        self.graphs, self.warmed = {}, set()

    def core(self, block):
        self.x.copy_((self.x @ self.weights[block]).tanh())
        self.x.add_(torch.empty_like(self.x).normal_(generator=self.noise), alpha=0.01)

    def step(self, block):
        if block in self.graphs:
            self.graphs[block].replay()
        elif block in self.warmed:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.noise)
            torch.cuda.synchronize()
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.core(block)
            torch.cuda.current_stream().wait_stream(self.stream)
            graph.replay()
            self.graphs[block] = graph
        else:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.core(block)
            torch.cuda.current_stream().wait_stream(self.stream)
            self.warmed.add(block)

    def drop(self, block):
        self.graphs.pop(block).reset()


def test_comfyui_blocks(surface):
    """Blocks captured between each other's replays, with a generator of the sampler's; dropped and captured anew."""
    blocks, eager = Blocks(), Blocks()
    for one in (blocks, eager):
        one.noise.manual_seed(5)
    for number in range(6):
        if number == 4:
            blocks.drop(1)  # its weights were moved out and in again
            blocks.weights[1] = blocks.weights[1].clone()
        given = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(number)).cuda()
        for one in (blocks, eager):
            one.x.copy_(given)
        for block in range(3):
            blocks.step(block)
            eager.core(block)
        torch.cuda.synchronize()
        assert torch.allclose(blocks.x, eager.x, rtol=1e-5, atol=1e-5), number
    assert len(blocks.graphs) == 3


# -- TensorRT-LLM ---------------------------------------------------------------------------------------------


def test_tensorrt_llm_decode_graphs(surface):
    """Warm-up runs, capture, pool threaded through graph.pool(), weak outputs; unknown shapes run eagerly."""
    layers, graphs, outs, pool = Layers(), {}, {}, None
    static = torch.ones(max(SIZES), HIDDEN, device="cuda")  # ones, to keep NaN out
    for size in sorted(SIZES, reverse=True):
        for _ in range(2):
            layers.after(layers.before(static[:size]))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = layers.after(layers.before(static[:size]))
        graphs[size, 0, False], outs[size, 0, False] = graph, weak(out)
        pool = graph.pool()
    for n in (8, 1, 4, 3):
        x, _ = inputs(n, n)
        want = layers.after(layers.before(x))
        key = (n, 0, False)
        if key not in graphs:
            continue
        static[:n].copy_(x)
        graphs[key].replay()
        assert torch.allclose(outs[key], want, rtol=1e-5, atol=1e-5)


# -- TransformerEngine ----------------------------------------------------------------------------------------


class StateTracker:
    """Named random states swapped in and out of torch's generator, as for tensor parallelism."""

    def __init__(self, **seeds):
        default = torch.cuda.default_generators[0]
        self.states = {}
        for name, seed in seeds.items():
            state = default.clone_state()
            state.manual_seed(seed)
            self.states[name] = state

    @contextlib.contextmanager
    def fork(self, name):
        default = torch.cuda.default_generators[0]
        own = default.graphsafe_get_state()
        default.graphsafe_set_state(self.states[name])
        try:
            yield
        finally:
            default.graphsafe_set_state(own)


def test_transformer_engine_order(surface):
    """Forward graphs, then backward, then weight-gradient graphs, in one pool, with registered random states."""
    torch.manual_seed(0)
    tracker = StateTracker(model_parallel=1234, data_parallel=99)
    weights = [torch.randn(HIDDEN, HIDDEN, device="cuda", requires_grad=True) for _ in range(2)]
    pool = torch.cuda.graph_pool_handle()
    x = torch.randn(4, HIDDEN, device="cuda", requires_grad=True)

    def forward(i, h):
        with tracker.fork("model_parallel"):
            h = torch.nn.functional.dropout(h @ weights[i], 0.25, True)
        return h.sigmoid()

    def new_graph():
        graph = torch.cuda.CUDAGraph()
        for state in tracker.states.values():
            graph.register_generator_state(state)
        return graph

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(2):
            torch.autograd.grad(forward(i, x).sum(), (x, weights[i]))
    torch.cuda.current_stream().wait_stream(side)
    gc.disable()
    try:
        forwards, backwards, wgrads = [], [], []
        static_in = [torch.randn(4, HIDDEN, device="cuda", requires_grad=True) for _ in range(2)]
        outs = []
        for i in range(2):
            graph = new_graph()
            with torch.cuda.graph(graph, pool=pool):
                outs.append(forward(i, static_in[i]))
            forwards.append(graph)
        static_grads = [torch.empty_like(out) for out in outs]
        din, dweight = [None, None], [None, None]
        for i in (1, 0):
            graph = new_graph()
            with torch.cuda.graph(graph, pool=pool):
                (din[i],) = torch.autograd.grad(outs[i], static_in[i], static_grads[i], retain_graph=True)
            backwards.insert(0, graph)
        for i in (1, 0):
            graph = new_graph()
            with torch.cuda.graph(graph, pool=pool):
                (dweight[i],) = torch.autograd.grad(outs[i], weights[i], static_grads[i], retain_graph=True)
            wgrads.insert(0, graph)
    finally:
        gc.enable()

    def graphed(value):
        with torch.no_grad():
            static_in[0].copy_(value)
        forwards[0].replay()
        with torch.no_grad():
            static_in[1].copy_(outs[0])
        forwards[1].replay()
        static_grads[1].fill_(1)
        backwards[1].replay()
        wgrads[1].replay()
        static_grads[0].copy_(din[1])
        backwards[0].replay()
        wgrads[0].replay()
        return [t.detach().clone() for t in (outs[1], din[0], *dweight)]

    def eager(value):
        leaf = value.clone().requires_grad_()
        out = forward(1, forward(0, leaf))
        return [out.detach(), *torch.autograd.grad(out.sum(), (leaf, *weights))]

    for seed in (5, 6, 7):
        value = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(seed)).cuda()
        tracker.states["model_parallel"].manual_seed(seed)
        got = graphed(value)
        tracker.states["model_parallel"].manual_seed(seed)
        want = eager(value)
        for mine, theirs in zip(got, want):
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    again = graphed(value)
    assert not torch.allclose(again[0], got[0])  # another mask: the state moved on


# -- transformers' continuous batching --------------------------------------------------------------------------


def test_transformers_continuous_batching(surface):
    """Warm-up under use_mem_pool, largest first; captures into that pool's id in thread_local mode; padded keys."""
    layers, pool, graphs = Layers(), torch.cuda.MemPool(), {}
    compute = torch.cuda.Stream()
    static_x = torch.zeros(64, HIDDEN, device="cuda")
    static_out = torch.zeros(64, HIDDEN, device="cuda")

    def forward(n):
        static_out[:n].copy_(layers.after(layers.before(static_x[:n])))

    def run(x):
        n = x.shape[0]
        size = 1 << (n - 1).bit_length()
        static_x[:n].copy_(x)
        static_x[n:size].zero_()
        compute.wait_stream(torch.cuda.current_stream())
        if size not in graphs:
            with torch.cuda.stream(compute), torch.cuda.use_mem_pool(pool):
                forward(size)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=compute, pool=pool.id, capture_error_mode="thread_local"):
                forward(size)
            graphs[size] = graph
        with torch.cuda.stream(compute):
            graphs[size].replay()
        torch.cuda.current_stream().wait_stream(compute)
        return static_out[:n].clone()

    for n in (64, 5, 33, 7, 1, 64):
        x = torch.randn(n, HIDDEN, generator=torch.Generator().manual_seed(n)).cuda()
        assert torch.allclose(run(x), layers.after(layers.before(x)), rtol=1e-5, atol=1e-5)
    assert sorted(graphs) == [1, 8, 64]
    graphs.clear()


def test_worker_threads_in_thread_local_mode(surface):
    """Each worker thread captures and replays its own graphs while the others do the same."""
    n_workers, errors = 3, []
    start = threading.Barrier(n_workers, timeout=60)

    def worker(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                layers = Layers()
                runner = FullRunner(layers, mode="thread_local")
                x, _ = inputs(4, number)
                layers.after(layers.before(x))  # a thread's first matrix product makes its library handle
                torch.cuda.synchronize()
                start.wait()
                graphs = []
                for _ in range(3):
                    graph = torch.cuda.CUDAGraph()
                    stream = torch.cuda.Stream()
                    stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):
                        graph.capture_begin(pool=runner.pool, capture_error_mode="thread_local")
                        out = layers.after(layers.before(x))
                        graph.capture_end()
                    torch.cuda.current_stream().wait_stream(stream)
                    graphs.append((graph, out))
                start.wait()
                for graph, out in graphs:
                    graph.replay()
                    torch.cuda.current_stream().synchronize()
                    assert torch.allclose(out, layers.after(layers.before(x)), rtol=1e-5, atol=1e-5)
        except (RuntimeError, AssertionError) as error:  # a broken barrier is a RuntimeError
            start.abort()
            errors.append(error)

    workers = [threading.Thread(target=worker, args=(n,)) for n in range(n_workers)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert not errors
