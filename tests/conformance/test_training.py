"""Training and compilation inside captures: the same on torch alone and under the bridge, and equal to eager."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.utils.checkpoint

from tests.conformance.test_surface import TORCH, captured

MAKE_MODES = [False, True]


def model(dropout=0.0):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(dropout), torch.nn.Linear(16, 4)
    ).cuda()


def train(step, net, batches, optimizer=None):
    """Losses and final parameters of a few steps of ``step``."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for x, y in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(step(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses, [p.detach().clone() for p in net.parameters()]


def batches(n=4, rows=6):
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(rows, 8, generator=generator).cuda(), torch.randn(rows, 4, generator=generator).cuda())
        for _ in range(n)
    ]


def same(one, other):
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(one[0], other[0])) and all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(one[1], other[1])
    )


# -- make_graphed_callables -----------------------------------------------------------------------------------


def test_graphed_module_trains_as_eager(surface):
    """Forward and backward of a graphed module give eager's losses and parameters."""
    eager, graphed = model(), model()
    sample = torch.randn(6, 8, device="cuda")
    step = torch.cuda.make_graphed_callables(graphed, (sample,))
    data = batches()
    assert same(train(step, graphed, data), train(eager, eager, data))


def test_graphed_module_in_eval_mode_runs_eagerly(surface):
    """What was graphed in training mode runs its own forward in eval mode."""
    net = model(dropout=0.5)
    graphed = torch.cuda.make_graphed_callables(net, (torch.randn(6, 8, device="cuda"),))
    x = torch.randn(6, 8, device="cuda")
    graphed.eval()
    first, second = graphed(x), graphed(x)
    assert torch.equal(first, second)
    graphed.train()
    assert not torch.equal(graphed(x).clone(), graphed(x).clone())


@pytest.mark.parametrize("with_pool", [False, True])
def test_several_graphed_callables_share_a_pool(surface, with_pool):
    """A tuple of modules and a function, captured into one pool, trains as the eager pipeline does."""
    torch.manual_seed(2)
    parts = [torch.nn.Linear(8, 8).cuda(), torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).cuda()]
    eager_parts = copy.deepcopy(parts)

    def scale(t):
        return t * 2

    def sample():
        return torch.randn(6, 8, device="cuda", requires_grad=True)

    kw = {"pool": torch.cuda.graph_pool_handle()} if with_pool else {}
    first, middle, last = torch.cuda.make_graphed_callables(
        (parts[0], scale, parts[1]), ((sample().detach(),), (sample(),), (sample(),)), **kw
    )
    nets = [torch.nn.ModuleList(parts), torch.nn.ModuleList(eager_parts)]
    data = batches()
    got = train(lambda x: last(middle(first(x))), nets[0], data)
    want = train(lambda x: eager_parts[1](scale(eager_parts[0](x))), nets[1], data)
    assert same(got, want)


def test_unused_input(surface):
    """allow_unused_input: an input without a gradient gets None, the others get eager's."""

    def f(x, unused):
        return x.exp().sum(1)

    def sample():
        return torch.randn(4, 8, device="cuda", requires_grad=True)

    with pytest.raises(RuntimeError):
        torch.cuda.make_graphed_callables(f, (sample(), sample()))
    graphed = torch.cuda.make_graphed_callables(f, (sample(), sample()), allow_unused_input=True)
    x, unused = sample(), sample()
    graphed(x, unused).sum().backward()
    assert torch.allclose(x.grad, x.detach().exp()) and unused.grad is None


def test_graphed_dropout_draws_anew(surface):
    """Dropout in a graphed callable: another mask in each call, the same sequence after the same seed."""
    net = torch.nn.Dropout(0.5)
    x = torch.ones(64, 8, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(net, (torch.ones(64, 8, device="cuda", requires_grad=True),))
    torch.cuda.manual_seed(11)
    first = [graphed(x).detach().clone() for _ in range(3)]
    torch.cuda.manual_seed(11)
    second = [graphed(x).detach().clone() for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not torch.equal(first[0], first[1])
    out = graphed(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out.detach())


def test_graphed_callable_under_no_grad_and_amp(surface):
    """A graphed callable without parameters; and one under autocast with its cache off."""
    sample = torch.randn(6, 8, device="cuda")
    plain = torch.cuda.make_graphed_callables(lambda t: (t * 2).relu(), (sample,))
    x = torch.randn(6, 8, device="cuda")
    assert torch.equal(plain(x), (x * 2).relu())
    net = model()
    eager = copy.deepcopy(net)
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        graphed = torch.cuda.make_graphed_callables(net, (sample,))
        got = graphed(x)
        want = eager(x)
    assert got.dtype == want.dtype and torch.allclose(got.float(), want.float(), rtol=1e-2, atol=1e-2)
    with torch.autocast("cuda", torch.float16), pytest.raises(RuntimeError, match="cache_enabled"):
        torch.cuda.make_graphed_callables(model(), (sample,))


# -- whole steps captured by hand -----------------------------------------------------------------------------


def whole_step(net, optimizer, x, y, scaler=None, zero=True):
    if zero:
        optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(net(x), y)
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss


def capture_step(net, optimizer, x, y, scaler=None):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            whole_step(net, optimizer, x, y, scaler)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = whole_step(net, optimizer, x, y, scaler, zero=False)
    return graph, loss


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True, foreach=True),
    "adamw-tensor-lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01, device="cuda"), capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, capturable=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5, capturable=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_whole_step_with_capturable_optimizer(surface, name):
    """Forward, backward and optimizer in one graph: parameters follow eager's step by step."""
    nets = [model(), model()]
    optimizers = [OPTIMIZERS[name](net.parameters()) for net in nets]
    data = batches(5)
    x, y = data[0][0].clone(), data[0][1].clone()
    graph, loss = capture_step(nets[0], optimizers[0], x, y)
    for _ in range(2):
        whole_step(nets[1], optimizers[1], *data[0])
    for now_x, now_y in data[1:]:
        x.copy_(now_x)
        y.copy_(now_y)
        graph.replay()
        want = whole_step(nets[1], optimizers[1], now_x, now_y)
        assert torch.allclose(loss, want, rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters()):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_optimizer_without_capturable_refuses(surface):
    """capturable=False: torch's own refusal where no host steps are wanted, and the process stays usable."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x, y = batches(1)[0]
    whole_step(net, optimizer, x, y)
    with pytest.raises(RuntimeError, match="capturable"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(**({"on_unsafe": "strict"} if surface.is_bridged else {}))):
            optimizer.step()
    z = captured(torch.cuda.CUDAGraph(), lambda: x + 1)
    assert z is not None


def test_grad_scaler_around_a_graph(surface):
    """Scaled loss and backward in the graph, scaler.step and update outside: torch's documented pattern."""
    net, eager = model(), model()
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (net, eager)]
    scalers = [torch.amp.GradScaler("cuda", init_scale=8.0) for _ in range(2)]
    data = batches(4)
    x, y = data[0][0].clone(), data[0][1].clone()
    scalers[0].scale(torch.zeros((), device="cuda"))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            scalers[0].scale(torch.nn.functional.mse_loss(net(x), y)).backward()
    torch.cuda.current_stream().wait_stream(side)
    optimizers[0].zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scalers[0].scale(torch.nn.functional.mse_loss(net(x), y)).backward()
    for now_x, now_y in data:
        x.copy_(now_x)
        y.copy_(now_y)
        graph.replay()
        scalers[0].step(optimizers[0])
        scalers[0].update()
        whole_step(eager, optimizers[1], now_x, now_y, scalers[1])
    for mine, theirs in zip(net.parameters(), eager.parameters()):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_inside_a_capture(surface, use_reentrant):
    """torch.utils.checkpoint inside a capture, without RNG to preserve: gradients are eager's, nothing is split."""
    net = model()
    x = torch.randn(6, 8, device="cuda", requires_grad=True)

    def body():
        hidden = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=use_reentrant, preserve_rng_state=False)
        return torch.autograd.grad(hidden.square().sum(), x)[0] if not use_reentrant else hidden.square().sum()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()
    torch.cuda.current_stream().wait_stream(side)
    out = captured(torch.cuda.CUDAGraph(), body)
    graph = torch.cuda.CUDAGraph()
    out = captured(graph, body)
    with torch.no_grad():
        x.copy_(torch.randn(6, 8))
    graph.replay()
    assert torch.allclose(out, body(), rtol=1e-5, atol=1e-6)


def test_checkpoint_that_preserves_rng(surface):
    """With dropout checkpoint reads and rewinds the generator: a step of a split program, with the same masks."""
    if not surface.is_bridged:
        pytest.skip("torch alone cannot capture this")
    surface.allow("split")
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda()
    x = torch.randn(6, 8, device="cuda", requires_grad=True)

    def body():
        out = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        (grad,) = torch.autograd.grad(out.sum(), x)
        return out.detach(), grad

    graph = torch.cuda.CUDAGraph()
    out, grad = captured(graph, body)
    state = torch.cuda.get_rng_state()
    graph.replay()
    torch.cuda.synchronize()
    got = (out.clone(), grad.clone())
    torch.cuda.set_rng_state(state)
    want = body()
    assert torch.allclose(got[0], want[0]) and torch.allclose(got[1], want[1])


# -- compiled code ----------------------------------------------------------------------------------------------


def test_compiled_function_in_a_capture(surface):
    """A function compiled before the capture gives eager's results inside it and stays compiled afterwards."""
    calls = []

    def backend(module, inputs):
        def run(*args):
            calls.append(torch.cuda.is_current_stream_capturing())
            return module.forward(*args)

        return run

    torch._dynamo.reset()

    @torch.compile(backend=backend)
    def f(t):
        return (t * 2 + 1).relu().sum(1)

    x = torch.randn(4, 8, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(x)
        graph = torch.cuda.CUDAGraph()
        y = captured(graph, lambda: f(x))
        assert torch.equal(f(x), (x * 2 + 1).relu().sum(1))
    x.copy_(torch.randn(4, 8))
    graph.replay()
    assert torch.equal(y, (x * 2 + 1).relu().sum(1))
    assert calls[0] is False and calls[-1] is False and len(calls) == 3 and calls[1] is True


@pytest.mark.skipif(TORCH < (2, 12), reason="came with torch 2.12")
def test_accelerator_graph_exists(surface):
    """torch.accelerator.Graph has a C++ base of its own; enabling the bridge leaves it alone."""
    assert not issubclass(torch.accelerator.Graph, torch._C._CUDAGraph)
