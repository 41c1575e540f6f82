"""What engines do, on a real GPU: Triton kernels, compiled regions, graphed callables, cudagraph trees, HF decode.

The same call patterns as tests/conformance/test_engine_patterns.py need only a simulated card; these
need real kernels. Written for torch 2.11, triton 3.6, transformers 5.17.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

import gfxgraph  # noqa: E402

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def bridge():
    """The bridge enabled; compiled code forgotten before and after."""
    torch._dynamo.reset()
    gfxgraph.enable(allow_cuda=True, validate=False)
    gfxgraph.reset_stats()
    try:
        yield gfxgraph
    finally:
        torch.cuda.synchronize()
        gfxgraph.disable()
        torch._dynamo.reset()


def nothing_fell_back():
    """Nothing was split and nothing fell back."""
    stats = gfxgraph.stats()
    assert stats["split_count"] == 0 and stats["fallback_count"] == 0, stats["events"]
    return stats


def capture(body, **kw):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **kw):
        out = body()
    return graph, out


def kernel_names(call):
    """Names of the kernels that ``call`` runs."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as report:
        call()
        torch.cuda.synchronize()
    return [event.name for event in report.events() if event.device_type == torch.autograd.DeviceType.CUDA]


# -- Triton ---------------------------------------------------------------------------------------------------


def scale_add():
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")

    @triton.jit
    def kernel(x_ptr, y_ptr, out_ptr, n, k, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        x = tl.load(x_ptr + at, mask=mask)
        y = tl.load(y_ptr + at, mask=mask)
        tl.store(out_ptr + at, x * k + y, mask=mask)

    # A kernel looks its globals up by name when it is compiled.
    kernel.fn.__globals__["tl"] = tl

    def launch(x, y, k):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), k, BLOCK=256)
        return out

    return launch


def test_triton_kernel_is_noted_and_replays(bridge):
    """A Triton launch between torch's operations is counted as opaque, and replays on new input."""
    launch = scale_add()
    x, y = torch.randn(5000, device="cuda"), torch.randn(5000, device="cuda")

    def body():
        a = x.relu()
        b = launch(a, y, 3.0)
        return b * 2 + launch(b, a, 2.0)

    graph, out = capture(body)
    assert nothing_fell_back()["opaque_launches"] >= 1
    for _ in range(3):
        x.copy_(torch.randn(5000, device="cuda"))
        y.copy_(torch.randn(5000, device="cuda"))
        graph.replay()
        a = x.relu()
        b = a * 3 + y
        assert torch.allclose(out, b * 2 + (b * 2 + a), rtol=1e-5, atol=1e-5)
    nothing_fell_back()


def test_triton_inside_a_split_program(bridge):
    """A read between two Triton launches splits the capture; what could not be undone is said, results are right."""
    launch = scale_add()
    x, y = torch.rand(512, device="cuda"), torch.rand(512, device="cuda")

    def body():
        a = launch(x, y, 2.0)
        if a.sum().item() > 1e9:
            return a
        return launch(a, y, 5.0)

    graph, out = capture(body)
    x.copy_(torch.rand(512, device="cuda"))
    graph.replay()
    assert torch.allclose(out, (x * 2 + y) * 5 + y, rtol=1e-5, atol=1e-5)
    stats = gfxgraph.stats()
    assert stats["split_count"] == 1 and stats["fallback_count"] == 0
    assert stats["effects_not_undone"] >= 1


def test_triton_is_given_numbers_that_the_program_reads(bridge):
    """As plain ones, pinned: as arguments, grids, constants, keys of the autotuner and by `wrap_triton`."""
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")

    def scale(x_ptr, out_ptr, n, k, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * k, mask=at < n)

    scale.__globals__["tl"] = tl
    plain = triton.jit(scale)
    tuned = triton.autotune([triton.Config({"BLOCK": size}) for size in (16, 32)], key=["n"])(triton.jit(scale))
    sized = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})(triton.jit(scale))
    wrapped = torch.library.wrap_triton(plain)

    def plainly(x, out, n, k):
        plain[(triton.cdiv(n, 16),)](x, out, n, k, BLOCK=16)

    def by_meta(x, out, n, k):
        plain[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, k, BLOCK=triton.next_power_of_2(n))

    def tuning(x, out, n, k):
        tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, k)

    def sizing(x, out, n, k):
        sized[(1,)](x, out, n, k)

    def wrapping(x, out, n, k):
        wrapped[(triton.cdiv(n, 16),)](x, out, n, k, BLOCK=16)

    for launch in (plainly, by_meta, tuning, sizing, wrapping):
        x = torch.arange(24.0, device="cuda")

        def body(x=x, launch=launch):
            kept = x[x > 3].contiguous()
            out = torch.zeros(32, device="cuda")
            launch(kept, out, int(kept.numel()), float(x.max()))
            return out, out.sum() + kept.size(0)

        graph, got = capture(body)
        for _ in range(2):
            graph.replay()
            for mine, eager in zip(got, body()):
                assert torch.allclose(mine, eager), launch.__name__
        x[0] = 5
        with pytest.raises(
            gfxgraph.GuardMismatch, match=r"20 when captured and is 21 now|\(20,\) at capture and \(21,\) now"
        ):
            graph.replay()
    assert plain.run.__func__ is triton.runtime.jit.JITFunction.run
    assert triton.runtime.jit.JITFunction.run.__module__ == "triton.runtime.jit"


# -- compiled regions -------------------------------------------------------------------------------------------


def model(width=64):
    torch.manual_seed(0)
    return (
        torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        )
        .cuda()
        .eval()
    )


@torch.no_grad()
def test_compiled_region_stays_compiled(bridge):
    """Inductor's kernels run inside the capture, the replay and afterwards; nothing is compiled again."""
    pytest.importorskip("triton")
    net = model()
    compiled = torch.compile(net)
    x = torch.randn(8, 64, device="cuda")
    compiled(x)
    n_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    before = kernel_names(lambda: compiled(x))
    assert any("triton" in name for name in before)
    graph, out = capture(lambda: compiled(x).clone())
    assert nothing_fell_back()["opaque_launches"] >= 1
    x.copy_(torch.randn(8, 64, device="cuda"))
    graph.replay()
    assert torch.allclose(out, net(x), rtol=1e-3, atol=1e-3)
    with torch._dynamo.config.patch(error_on_recompile=True):
        after = kernel_names(lambda: compiled(x))
    assert sorted(after) == sorted(before)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == n_graphs
    torch.cuda.synchronize()
    assert torch.allclose(compiled(x), net(x), rtol=1e-3, atol=1e-3)


def test_compiled_training_step_in_a_capture(bridge):
    """Forward, backward and capturable optimizer of a compiled module in one graph follow the eager model."""
    pytest.importorskip("triton")
    nets = [model().train(), model().train()]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True) for net in nets]
    compiled = torch.compile(nets[0])
    x, y = torch.randn(8, 64, device="cuda"), torch.randn(8, 64, device="cuda")

    def step(run, optimizer):
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.mse_loss(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    graph, loss = capture(lambda: step(compiled, optimizers[0]))
    for _ in range(3):
        step(nets[1], optimizers[1])
    for _ in range(5):
        x.copy_(torch.randn(8, 64, device="cuda"))
        graph.replay()
        want = step(nets[1], optimizers[1])
        assert torch.allclose(loss, want, rtol=1e-2, atol=1e-4)
    nothing_fell_back()


@pytest.mark.parametrize("is_training", [False, True])
def test_reduce_overhead_equals_eager(bridge, is_training):
    """torch.compile(mode="reduce-overhead"), which captures by itself, under the bridge: eager's results."""
    pytest.importorskip("triton")
    net = model().train(is_training)
    eager = copy.deepcopy(net)
    compiled = torch.compile(net, mode="reduce-overhead")
    for seed in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        generator = torch.Generator(device="cuda").manual_seed(seed)
        x = torch.randn(8, 64, device="cuda", generator=generator)
        if is_training:
            got, want = compiled(x), eager(x)
            assert torch.allclose(got, want, rtol=1e-3, atol=1e-3)
            got.square().mean().backward()
            want.square().mean().backward()
            for mine, theirs in zip(net.parameters(), eager.parameters()):
                assert torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
                mine.grad = theirs.grad = None
        else:
            with torch.no_grad():
                assert torch.allclose(compiled(x).clone(), eager(x), rtol=1e-3, atol=1e-3)
    stats = nothing_fell_back()
    assert stats["capture_count"] >= 1 and stats["replay_count"] >= 3
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


# -- graphed callables --------------------------------------------------------------------------------------------


def test_make_graphed_callables_trains_as_eager(bridge):
    """make_graphed_callables over two modules and a function that uses its input twice."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 8).cuda()]
    eager = copy.deepcopy(parts)

    def twice(t):
        return t * t + t

    def sample(grad=True):
        return torch.randn(16, 64, device="cuda", requires_grad=grad)

    first, middle, last = torch.cuda.make_graphed_callables(
        (parts[0], twice, parts[1]), ((sample(False),), (sample(),), (sample(),))
    )
    optimizers = [torch.optim.SGD([p for m in ms for p in m.parameters()], lr=0.01) for ms in (parts, eager)]
    for seed in range(4):
        x = torch.randn(16, 64, device="cuda", generator=torch.Generator(device="cuda").manual_seed(seed))
        losses = []
        for run, optimizer in (
            (lambda t: last(middle(first(t))), optimizers[0]),
            (lambda t: eager[1](twice(eager[0](t))), optimizers[1]),
        ):
            optimizer.zero_grad(set_to_none=True)
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
        assert torch.allclose(losses[0], losses[1], rtol=1e-3, atol=1e-5)
    nothing_fell_back()


def test_graphed_callable_with_an_input_used_twice(bridge):
    """The gradient of a leaf that two operations use is accumulated inside the backward graph."""

    def f(x):
        return (x * x).sum(1)

    def sample():
        return torch.randn(4, 32, device="cuda", requires_grad=True)

    graphed = torch.cuda.make_graphed_callables(f, (sample(),))
    for _ in range(3):
        x = sample()
        graphed(x).sum().backward()
        assert torch.allclose(x.grad, 2 * x.detach())
    nothing_fell_back()


# -- transformers -------------------------------------------------------------------------------------------------


def hf_llama():
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("hf_llama", EXAMPLES / "hf_llama.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@torch.no_grad()
def test_hf_static_cache_decode(bridge):
    """One decode step of transformers' Llama over a static cache, captured: the tokens are eager's."""
    example = hf_llama()
    decoder = example.Decoder(layers=2, hidden=256, n_tokens=32)
    eager, _ = example.decode(decoder, decoder.step, 32)
    graph = example.capture(decoder)
    graphed, _ = example.decode(decoder, graph.replay, 32)
    assert graphed == eager
    nothing_fell_back()


@torch.no_grad()
def test_hf_generate_with_a_static_cache(bridge):
    """generate() with its static cache, which compiles with cudagraph trees: the tokens of one without the bridge."""
    pytest.importorskip("triton")
    example = hf_llama()
    decoder = example.Decoder(layers=2, hidden=256, n_tokens=16)

    def generate():
        return decoder.model.generate(
            decoder.prompt, max_new_tokens=12, do_sample=False, cache_implementation="static", pad_token_id=0
        ).tolist()

    bridged = generate()
    torch.cuda.synchronize()
    nothing_fell_back()
    gfxgraph.disable()
    torch._dynamo.reset()
    assert generate() == bridged
