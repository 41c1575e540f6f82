"""Whole training steps as graphs, and make_graphed_callables: losses are eager's, bit for bit."""

from __future__ import annotations

import copy
import gc
import sys
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gfxgraph
from gfxgraph.callables.training.training_step import TrainingStep
from tests.conformance.conftest import HAS_GPU

pytestmark = pytest.mark.any_platform

# The full measure on a GPU (tests/gpu/test_beyond_gpu.py runs this file's functions), a small one elsewhere.
N_STEPS = 50 if HAS_GPU else 12


class Block(torch.nn.Module):
    """Pre-norm attention and MLP with dropout in both."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(4 * width, width),
        )

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mask = torch.ones(n, n, device=x.device, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5).masked_fill(~mask, float("-inf"))
        weights = torch.nn.functional.dropout(scores.softmax(-1), self.dropout, self.training)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.norms[1](x))


class Transformer(torch.nn.Module):
    def __init__(self, width=32, heads=2, layers=2, vocabulary=31, length=8, dropout=0.1):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data(n, rows=4, length=8, vocabulary=31):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(vocabulary, (rows, length + 1), generator=generator).cuda() for _ in range(n)]


def run(n_steps, *, graphed, scaler=None, seed=11, overflow_at=(), lr=1e-3, fused=False, schedule=None, **size):
    """Losses and parameters of training a small transformer; ``graphed`` wraps the step."""
    torch.manual_seed(seed)
    model = Transformer(**size).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, capturable=True, fused=fused)
    amp = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=5) if scaler else None
    blow_up = torch.ones((), device="cuda")

    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp is not None):
            logits = model(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        if amp is None:
            loss.backward()
            optimizer.step()
        else:
            amp.scale(loss * blow_up).backward()
            amp.step(optimizer)
            amp.update()
        return loss.detach()

    call = TrainingStep(step) if graphed else step
    torch.cuda.manual_seed(seed)
    losses, scales = [], []
    for number, ids in enumerate(data(n_steps, length=size.get("length", 8))):
        blow_up.fill_(float("inf") if number in overflow_at else 1.0)
        losses.append(call(ids).clone())
        if schedule is not None:
            schedule(optimizer, number)
        if amp is not None:
            scales.append(amp._scale.clone())
    found = {
        "losses": torch.stack(losses),
        "parameters": [p.detach().clone() for p in model.parameters()],
        "grads": [p.grad.clone() for p in model.parameters()],
        "scales": scales,
        "generator": torch.cuda.get_rng_state(),
    }
    return found, call


def assert_same_bits(got, want):
    assert torch.equal(got["losses"], want["losses"]), (got["losses"] - want["losses"]).abs().max()
    for name in ("parameters", "grads", "scales"):
        assert all(torch.equal(a, b) for a, b in zip(got[name], want[name])), name
    assert torch.equal(got["generator"], want["generator"])


def test_a_transformers_losses_are_eagers_bit_for_bit(platform):
    """AdamW capturable, dropout: losses, gradients, parameters and the generator's state, every bit, every step."""
    want, _ = run(N_STEPS, graphed=False)
    gfxgraph.reset_stats()
    got, step = run(N_STEPS, graphed=True)
    assert_same_bits(got, want)
    assert step.why_eager == "" and step.n_captures == 1
    stats = gfxgraph.stats()
    assert stats["replay_count"] == N_STEPS - 3 and stats["split_count"] == stats["fallback_count"] == 0
    assert len(set(want["losses"].tolist())) == N_STEPS


@pytest.mark.parametrize("fused", [False, True])
def test_with_a_gradient_scaler_too(platform, fused):
    """Scaled half precision with overflowing steps: skipped as in eager, without a wait, the scale moves alike."""
    overflow_at = (1, 6, 9)
    kw = {"scaler": True, "overflow_at": overflow_at, "fused": fused}
    want, _ = run(N_STEPS, graphed=False, **kw)
    gfxgraph.reset_stats()
    got, step = run(N_STEPS, graphed=True, **kw)
    assert_same_bits(got, want)
    assert step.why_eager == "" and gfxgraph.stats()["split_count"] == 0
    assert len({float(s) for s in want["scales"]}) > 2
    assert gfxgraph.stats()["replay_count"] == N_STEPS - 3


def test_a_learning_rate_that_changes_is_seen(platform):
    """A number of the optimizer changes twice: two captures more, eager's bits; a tensor needs no capture."""

    def schedule(optimizer, number):
        if number in (5, 7):
            for group in optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].mul_(0.5)
                else:
                    group["lr"] *= 0.5

    for lr, captures in ((1e-3, 3), (torch.tensor(1e-3, device="cuda"), 1)):
        again = lr.clone() if isinstance(lr, torch.Tensor) else lr
        want, _ = run(10, graphed=False, schedule=schedule, lr=lr)
        got, step = run(10, graphed=True, schedule=schedule, lr=again)
        assert_same_bits(got, want)
        assert step.n_captures == captures and not step.why_eager


def simple(n=6, **kw):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2)).cuda()
    return net, torch.optim.AdamW(net.parameters(), lr=0.1, capturable=True)


def test_gradients_gathered_over_calls_and_given_up_in_one_of_them(platform):
    """Steps that add to gradients, every second one of which uses them and sets them to None: eager's weights."""
    results = []
    for wrap in (lambda f: f, TrainingStep):
        net, optimizer = simple()
        net.eval()

        def body(x, is_last):
            net(x).square().mean().backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()

        step, seen = wrap(body), []
        for number in range(14):
            step(torch.full((3, 4), 1.0 + number, device="cuda"), number % 2 == 1)
            seen.append([p.detach().clone() for p in net.parameters()])
        results.append(seen)
    assert all(torch.equal(a, b) for want, got in zip(*results) for a, b in zip(want, got))
    assert step.n_replays >= 4


def test_every_call_is_counted_with_why_it_was_eager(platform):
    """A scheduler that changes a number at each call: what changed is named from the first such call on."""
    net, optimizer = simple()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @TrainingStep
    def step(x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    x = torch.ones(3, 4, device="cuda")
    for number in range(14):
        step(x)
        if number < 7:
            scheduler.step()
        if 3 <= number < 7:
            assert "['lr'] has changed" in step.why_eager and "tensor" in step.why_eager, number
    found = step.stats()
    assert found["replays"] + sum(found["eager"].values()) == 14 and found["replays"] >= 4
    assert step.why_eager == "" and "['lr'] has changed" in step.explain()
    step(torch.ones(3, 4, device="cuda", requires_grad=True))
    assert step.why_eager == "an argument needs gradients"


def test_an_optimizer_that_has_no_capturable_is_named(platform):
    """Adagrad counts on the host and cannot do otherwise: the advice is not to pass what it does not take."""
    net, _ = simple()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)

    @TrainingStep
    def step(x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step(torch.ones(3, 4, device="cuda"))
    assert "Adagrad" in step.why_eager and step.stats()["eager"][step.why_eager] >= 2


def test_a_scheduler_inside_the_step_is_refused(platform):
    """Python that computes a learning rate inside the step would run once: the step stays eager and says so."""
    nets = []
    for wrap in (TrainingStep, lambda f: f):
        net, optimizer = simple()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def body(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss

        step = wrap(body)
        torch.cuda.manual_seed(1)
        nets.append([step(torch.ones(3, 4, device="cuda") * i).item() for i in range(7)])
        if wrap is TrainingStep:
            assert "scheduler" in step.why_eager
    assert nets[0] == nets[1]


def test_other_shapes_and_modes_have_graphs_of_their_own(platform):
    """A smaller last batch and eval mode: eager's losses, gradients where the program looks for them."""
    results = []
    for wrap in (lambda f: f, TrainingStep):
        net, optimizer = simple()

        def body(x):
            optimizer.zero_grad(set_to_none=True)
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step, seen = wrap(body), []
        torch.cuda.manual_seed(1)
        for number in range(16):
            net.train(number % 8 != 7)
            rows = 2 if number % 4 == 3 else 3
            loss = step(torch.full((rows, 4), 1.0 + number, device="cuda"))
            seen.append((loss.item(), *[p.grad.clone() for p in net.parameters()]))
        results.append(seen)
    for want, got in zip(*results):
        assert want[0] == got[0] and all(torch.equal(a, b) for a, b in zip(want[1:], got[1:]))
    assert step.n_captures == 3 and not step.why_eager


def test_what_cannot_be_captured_trains_eagerly_with_the_reason(platform):
    """capturable=False: eager's losses, torch's own words kept. A loss that goes into Python arithmetic is captured."""
    for kind in ("capturable", "value"):
        runs = []
        for wrap in (lambda f: f, TrainingStep):
            net, _ = simple()
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, capturable=kind != "capturable")

            def body(x):
                optimizer.zero_grad()
                loss = net(x).square().mean()
                (loss * (1 + 0 * loss.item()) if kind == "value" else loss).backward()
                optimizer.step()
                return loss

            step = wrap(body)
            torch.cuda.manual_seed(1)
            runs.append([step(torch.ones(3, 4, device="cuda")).item() for _ in range(6)])
        assert runs[0] == runs[1]
        if kind == "capturable":
            assert step.why_eager and len([e for e in gfxgraph.stats()["events"] if e["kind"] == "fallback"]) >= 1


def test_a_failed_replay_does_the_step_eagerly_once(platform):
    """A launch that fails in the middle of training: the same losses, nothing done twice."""
    if HAS_GPU:
        pytest.skip("needs planted failures")
    import gfxgraph_simulator as simulator

    want, _ = run(10, graphed=False)
    plan = simulator.active().faults
    for nth in (3, 4):  # the fast path's, then the slow one's
        plan.fail_nth("launch", nth, 999)
    got, step = run(10, graphed=True)
    assert_same_bits(got, want)
    assert gfxgraph.stats()["fallback_count"] == 1


def test_a_replay_of_a_step_runs_no_python_for_each_parameter(platform):
    """Steps of 4 and of 60 parameters replay in equally many Python calls; a state that came back is replayed, too."""
    found = []
    for n in (2, 30):
        net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(n)]).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def body(x, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step, x, calls = TrainingStep(body), torch.ones(3, 4, device="cuda"), []
        for _ in range(7):
            step(x)
        ours = lambda file: "/gfxgraph/" in file or file.startswith("<")  # noqa: E731
        sys.setprofile(
            lambda frame, event, _: (
                calls.append(event) if ours(frame.f_code.co_filename) and event == "call" else None
            )  # noqa: B023
        )
        step(x)
        sys.setprofile(None)
        found.append(len(calls))
        net.zero_grad()  # a replay puts its gradients back
        step(x)
        assert all(p.grad is not None for p in net.parameters()) and step.n_replays == 6 and not step.why_eager
    assert found[0] == found[1] < 20


# -- make_graphed_callables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_add_up_over_backwards_of_graphed_callables(platform, to_none):
    """The first gradient does not keep the memory that the next replay writes, in torch a silent error."""
    model = torch.nn.Linear(4, 3).cuda()
    twin = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(2, 4, device="cuda"),))
    for n in (1, 3, 2):
        for call in (graphed, twin):
            call.zero_grad(set_to_none=to_none)
        for k in range(n):
            x = torch.full((2, 4), 1.0 + k, device="cuda")
            graphed(x).square().sum().backward()
            twin(x).square().sum().backward()
        for mine, theirs in zip(graphed.parameters(), twin.parameters()):
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_graphed_callables_train_with_eagers_bits(platform):
    """Forward and backward of a transformer by make_graphed_callables, dropout included: eager's losses, every bit."""
    losses = []
    for graphed in (False, True):
        torch.manual_seed(4)
        model = Transformer().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        batches = data(N_STEPS)
        call = torch.cuda.make_graphed_callables(model, (batches[0][:, :-1].clone(),)) if graphed else model
        torch.cuda.manual_seed(9)
        seen = []
        for ids in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(call(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            seen.append(loss.detach().clone())
        losses.append(torch.stack(seen))
    assert torch.equal(*losses), (losses[0] - losses[1]).abs().max()


def test_warm_up_runs_on_the_stream_that_captures(platform):
    """Warm-ups of each callable are on the capture's stream, and as many as asked for."""
    streams, capturing = [], []

    def f(x):
        streams.append(torch.cuda.current_stream().cuda_stream)
        capturing.append(torch.cuda.is_current_stream_capturing())
        return x * 2

    x = torch.randn(3, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(f, (x,), num_warmup_iters=4)
    assert capturing == [False] * 4 + [True]
    assert len(set(streams)) == 1
    y = torch.randn(3, device="cuda", requires_grad=True)
    graphed(y).sum().backward()
    assert torch.equal(y.grad, torch.full_like(y, 2.0))
    streams.clear()

    @TrainingStep
    def step(x):
        streams.append(torch.cuda.current_stream().cuda_stream)
        return x + 1

    for _ in range(5):
        assert torch.equal(step(y.detach()), y.detach() + 1)
    # A step that keeps a list in Python is no graph; its calls run where a capture would.
    assert len(streams) == 5 and len(set(streams)) == 1


def test_switching_off_puts_torchs_function_back(platform):
    """disable() leaves both names as they were, and it is torch's contract that answers while the bridge is on."""
    ours = torch.cuda.make_graphed_callables
    assert ours.__module__.startswith("gfxgraph") and torch.cuda.graphs.make_graphed_callables is ours
    with pytest.raises(AssertionError, match="only Tensors"):
        torch.cuda.make_graphed_callables(lambda x, n: x * n, (torch.ones(2, device="cuda"), 2))
    gfxgraph.disable()
    assert torch.cuda.make_graphed_callables.__module__ == "torch.cuda.graphs"
    assert torch.cuda.graphs.make_graphed_callables is torch.cuda.make_graphed_callables


# -- graphed() where results need gradients -------------------------------------------------------------------


def graphed_losses(n_steps, wrap, *, between=lambda: None):
    torch.manual_seed(4)
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    call = wrap(model)
    torch.cuda.manual_seed(9)
    seen = []
    for ids in data(n_steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(call(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        between()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    return torch.stack(seen), call


def test_graphed_modules_train_with_eagers_bits(platform):
    """graphed(model) under autograd: two graphs from the third call on, dropout included, eager's losses."""
    want, _ = graphed_losses(N_STEPS, lambda f: f)
    gfxgraph.reset_stats()
    got, call = graphed_losses(N_STEPS, gfxgraph.graphed)
    assert torch.equal(got, want), (got - want).abs().max()
    assert gfxgraph.stats()["replay_count"] == 2 * (N_STEPS - 2)
    assert call.stats()["captures"] == 1 and call.stats()["eager"] == {"warm-up": 2}


def graphed_and_eager(f, call_both):
    """What ``call_both`` gives with ``f`` and with ``graphed(f)``, twice over, from the same seed."""
    results = []
    for wrap in (lambda g: g, gfxgraph.graphed):
        call = wrap(f)
        for turn in range(3):
            torch.cuda.manual_seed(turn)
            found = call_both(call, turn)
        results.append(found)
    assert all(torch.allclose(a, b) for a, b in zip(*results)), results
    return results


def leaf(*size, value=None):
    made = torch.randn(*size, device="cuda") if value is None else torch.full(size, float(value), device="cuda")
    return made.requires_grad_()


def test_backwards_out_of_order_are_right(platform):
    """Two forwards, then their backwards in the other order: each gets the gradients of its own inputs and masks."""
    w = leaf(4, 4)

    def f(x):
        return torch.nn.functional.dropout((x @ w).tanh(), 0.4).exp()

    def both(call, turn):
        w.grad = None
        one, other = leaf(3, 4, value=0.3 + turn), leaf(3, 4, value=-0.2)
        a, b = call(one), call(other)
        b.sum().backward()
        a.sum().backward()
        return a, b, one.grad, other.grad, w.grad, torch.rand(2, device="cuda")

    graphed_and_eager(f, both)


def test_backward_twice_accumulation_and_kept_gradients(platform):
    """retain_graph and a second backward; gradients added up over calls; a gradient kept is not overwritten."""
    w = leaf(4, 4)

    def both(call, turn):
        w.grad = None
        kept = []
        for k in range(3):
            x = leaf(3, 4, value=k + 1)
            y = call(x).sum()
            y.backward(retain_graph=True)
            y.backward()
            kept.append(x.grad)
        return (w.grad, *kept)

    # A chain: its backward frees what it has used, and takes that memory for what it makes.
    graphed_and_eager(lambda x: (x @ w).sin().cos().mul(2).sin().cos().sin() * x, both)


def test_trees_unused_inputs_and_results_without_gradients(platform):
    """A tree of results of which one needs no gradient, an argument that is not used, one that needs none."""
    w = leaf(4)

    def f(x, unused, *, scale):
        return {"y": (x * w * scale,), "n": (x > 0).sum()}

    def both(call, turn):
        w.grad = None
        x, unused = leaf(4, value=turn - 1.0), leaf(4)
        got = call(x, unused, scale=torch.tensor(2.0, device="cuda"))
        assert not got["n"].requires_grad
        got["y"][0].sum().backward()
        assert unused.grad is None
        return got["y"][0], got["n"].float(), x.grad, w.grad

    graphed_and_eager(f, both)


def test_without_gradients_the_same_function_has_another_graph(platform):
    """Under no_grad its results need none; back in training they do again."""
    net, _ = simple()
    call = gfxgraph.graphed(net)
    x = torch.ones(3, 4, device="cuda")
    for _ in range(3):
        net.train()
        call(x).sum().backward()
        net.eval()
        with torch.no_grad():
            assert torch.allclose(call(x), net(x)) and not call(x).requires_grad
    assert call.stats()["captures"] == 2


def test_an_input_changed_before_the_backward_is_torchs_error_where_it_matters(platform):
    """The forward must be replayed for a late backward; with its input changed in place that is an error."""
    call = gfxgraph.graphed(lambda x: x.sin())
    for _ in range(3):
        call(leaf(3)).sum().backward()
    base = leaf(3)
    x = base * 1
    late = call(x)
    call(base * 2)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.sum().backward()


def test_running_statistics_are_updated_once_a_forward(platform):
    """Batch norm in training: its statistics after forwards whose backwards come late are eager's."""
    results = []
    for wrap in (lambda f: f, gfxgraph.graphed):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(4).cuda()
        call, kept = wrap(norm), []
        for turn in range(3):
            pair = [call(leaf(6, 4, value=1.0 + turn) * torch.arange(6.0, device="cuda")[:, None]) for _ in range(2)]
            pair[0].square().sum().backward()
            pair[1].square().sum().backward()
            kept += [norm.running_mean.clone(), norm.running_var.clone(), norm.weight.grad.clone()]
        assert norm.num_batches_tracked.item() == 6
        results.append(kept)
    assert all(torch.allclose(a, b) for a, b in zip(*results))


def test_a_function_that_writes_to_its_argument_stays_eager(platform):
    """The caller's tensor is to have what was written: such a call is not replayed."""
    w = leaf(3)

    def f(x, count):
        count.add_(1)
        return x * w

    call, count = gfxgraph.graphed(f), torch.zeros((), device="cuda")
    for _ in range(4):
        call(leaf(3), count).sum().backward()
    assert count.item() == 4
    assert any("where a result needs gradients: write to" in why for why in call.stats()["eager"])


def test_a_step_that_updates_its_own_parameters_is_replayed(platform):
    """The update comes after the graph break: it writes to a parameter, and no result of it needs gradients."""
    found = []
    for wrap in (lambda f: f, gfxgraph.graphed):
        torch.manual_seed(0)
        w = torch.randn(4, 1, device="cuda").requires_grad_()

        def f(x, w=w):
            loss = (x @ w).square().mean()
            (grad,) = torch.autograd.grad(loss, [w])
            with torch.no_grad():
                w.sub_(0.1 * grad)
            return loss.detach()

        call = wrap(f)
        losses = [call(torch.randn(3, 4, device="cuda")) for _ in range(6)]
        found.append((losses, w.detach()))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0])) and torch.equal(found[0][1], found[1][1])
    assert set(call.stats()["eager"]) == {"warm-up"}


def test_an_argument_that_is_a_result_is_the_callers_own(platform):
    """As without gradients: the very tensor, which autograd goes on from."""
    w = torch.randn(4, 4, device="cuda", requires_grad=True)

    def step(x):
        return x, x @ w

    g = gfxgraph.graphed(step)
    for needs in (False, True):
        for _ in range(4):
            x = torch.randn(3, 4, device="cuda", requires_grad=needs)
            same, product = g(x)
            assert same is x
            (same.sum() * 3 + product.sum()).backward()
            assert torch.allclose(w.grad, x.detach().sum(0)[:, None].expand(4, 4), atol=1e-5)
            assert not needs or torch.allclose(x.grad, 3 + w.detach().sum(1).expand(3, 4), atol=1e-5)
            w.grad = None
    assert g.stats()["captures"] == 2


def test_a_step_that_returns_a_number_of_the_device_is_eager(platform):
    """A loss read by ``item()`` is this step's, not that of the step which was captured."""
    model = torch.nn.Linear(4, 4).cuda()
    with torch.no_grad():
        model.weight.copy_(torch.eye(4) / 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @gfxgraph.TrainingStep
    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    x = torch.ones(2, 4, device="cuda")
    losses = [step(x) for _ in range(8)]
    assert all(a > b for a, b in zip(losses, losses[1:])), losses
    assert step.why_eager == "it returns a number that it reads from the device; return the tensor"


def test_gradients_that_are_differentiated_again(platform):
    """``create_graph=True`` gives gradients with a history; a replay alone would give numbers without one."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).cuda()
    g, found = gfxgraph.graphed(model), {}
    for name, f in (("eager", model), ("graphed", g)):
        for _ in range(4):
            model.zero_grad()
            x = torch.arange(8.0, device="cuda").view(2, 4).div(8).requires_grad_()
            y = f(x)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (gradient.pow(2).sum() + y.sum()).backward()
            found[name] = [x.grad, *[p.grad.clone() for p in model.parameters()]]
    for a, b in zip(found["eager"], found["graphed"]):
        torch.testing.assert_close(a, b)
    found = g.stats()
    assert found["replays"] > 0 and found["parts"]["its gradients are differentiated again"] == 2


@pytest.mark.parametrize("inside", [torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)], ids=["statistics", "draws"])
def test_a_gradient_penalty_of_a_net_that_draws_or_counts(platform, inside):
    """As critics are trained: what the second run for ``create_graph=True`` draws and counts is the first one's."""
    found = {}
    for name in ("eager", "graphed"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), copy.deepcopy(inside), torch.nn.Linear(8, 1)).cuda()
        critic, optimizer = net if name == "eager" else gfxgraph.graphed(net), torch.optim.SGD(net.parameters(), 0.05)
        for step in range(6):
            torch.manual_seed(step)
            real, fake = torch.randn(2, 6, 3, device="cuda")
            x = (0.3 * real + 0.7 * fake).requires_grad_()
            (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + (gradient.norm(2, 1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found[name] = [loss.detach(), *net.state_dict().values()]
    for a, b in zip(found["eager"], found["graphed"]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_inside_draws_the_same_numbers_twice(platform, use_reentrant):
    """What is computed again for the backward is what the forward computed, dropped elements among it."""

    def part(x):
        return torch.nn.functional.dropout(x, 0.5) * x

    g = gfxgraph.graphed(lambda x: checkpoint(part, x, use_reentrant=use_reentrant))
    for _ in range(4):
        x = torch.arange(1.0, 17.0, device="cuda").view(4, 4).requires_grad_()
        y = g(x)
        y.sum().backward()
        assert torch.equal(x.grad * x.detach(), 2 * y.detach())


def test_results_that_nobody_differentiates_give_no_gradients(platform):
    """Not zeros, which an optimizer with weight decay would step by; which results are, differs from call to call."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4)).cuda()
    layers[0].weight.register_hook(lambda grad: grad * 2)
    f = lambda x: ((layers(x) * x).sum(), layers[0](x).mean())  # noqa: E731
    found = []
    for call in (f, gfxgraph.graphed(f)):
        torch.manual_seed(1)
        layers[2].reset_running_stats()
        found.append([])
        for i in range(8):
            losses = call(torch.arange(12.0, device="cuda").view(3, 4).sin() + i)
            (losses[0] + losses[1] if i == 5 else losses[i % 2]).backward()
            found[-1] += [p.grad for p in layers.parameters()] + [layers[2].running_mean.clone(), torch.rand(2)]
            layers.zero_grad()
    torch.testing.assert_close(found[1], found[0])
    assert call.stats()["replays"] >= 6, call.explain()


class _Unmaterialized(torch.autograd.Function):
    """Tells a gradient that is not wanted from one of zeros."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a * 2, b * 3

    @staticmethod
    def backward(ctx, grad_a, grad_b):
        return grad_a if grad_a is None else grad_a * 2, grad_b if grad_b is None else grad_b * 3


def test_gradients_that_a_function_of_autograd_leaves_out(platform):
    """ctx.set_materialize_grads(False), which Dynamo forgets: None where eager has None."""
    graphed = gfxgraph.graphed(lambda a, b: _Unmaterialized.apply(a, b))
    for number in range(6):
        a, b = (torch.ones(4, device="cuda", requires_grad=True) for _ in "ab")
        graphed(a, b)[number % 2].sum().backward()
        assert (a.grad is None, b.grad is None) == (number % 2 == 1, number % 2 == 0)
    assert any("set_materialize_grads" in why for why in graphed.stats()["eager"])
    # Nothing was captured, so nothing is said to run in pieces with graphs between.
    assert "6  eager       it calls ctx.set_materialize_grads()" in graphed.explain()


def test_gradients_that_the_program_keeps_are_its_own(platform):
    """A step's gradients kept from step to step keep their values; of one kept as a view the step is eager."""
    for keep in (lambda grad: grad, lambda grad: grad.view(-1)):
        kept = []
        for wrap in (lambda f: f, TrainingStep):
            net, optimizer = simple()
            net.eval()

            def body(x):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()

            step, mine = wrap(body), []
            for number in range(9):
                step(torch.full((3, 4), 1.0 + number, device="cuda"))
                mine.append(keep(net[0].weight.grad))
            kept.append(mine)
        assert all(torch.equal(a, b) for a, b in zip(*kept))
        is_view = keep(kept[0][0]) is not kept[0][0]
        assert step.n_captures == 1 and step.n_replays == (1 if is_view else 6)
        assert ("clone what you keep" in step.why_eager) == is_view


def test_several_gradients_at_once(platform):
    """torch.autograd.grad with is_grads_batched: eager's Jacobian, and the reason is counted."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3).cuda()
    graphed = gfxgraph.graphed(lambda x: net(x).tanh())
    for number in range(5):
        x = torch.full((4,), 0.1 + number, device="cuda", requires_grad=True)
        eye = torch.eye(3, device="cuda")
        (got,) = torch.autograd.grad(graphed(x), x, eye, is_grads_batched=True)
        (want,) = torch.autograd.grad(net(x).tanh(), x, eye, is_grads_batched=True)
        assert torch.equal(got, want)
    assert any("at once" in why for why in graphed.stats()["parts"])


def test_a_number_that_changes_has_graphs_with_gradients(platform):
    """Each of two values has a graph; from the third on the number is an input of the graph."""
    weight = torch.ones(3, device="cuda", requires_grad=True)
    state = {"scale": 1.0}
    graphed = gfxgraph.graphed(lambda x: (x * weight * state["scale"]).sum())

    def call(scale):
        state["scale"] = scale
        weight.grad = None
        graphed(torch.full((3,), 2.0, device="cuda")).backward()
        assert torch.equal(weight.grad, torch.full((3,), 2.0, device="cuda") * scale)

    for turn in range(12):
        call(1.0 + turn // 4)
    assert graphed.stats()["replays"] == 7 and set(graphed.stats()["eager"]) == {"warm-up"}
    for turn in range(20):
        call(0.1 * turn)
    assert set(graphed.stats()["eager"]) == {"warm-up"} and graphed.stats()["replays"] >= 7 + 15


def test_a_tensor_on_the_host_that_changes_is_named(platform):
    """It is a constant, and each value has graphs up to a bound, beside a number of Python's too."""
    x = torch.full((3,), 2.0, device="cuda", requires_grad=True)
    state = {"scale": torch.tensor(1.0), "n": 0}
    graphed = gfxgraph.graphed(lambda x: (x * state["scale"] * state["n"]).sum())
    for turn in range(22):
        state.update(scale=torch.tensor(0.5 * turn), n=turn if turn < 3 else 2)
        x.grad = None
        graphed(x).backward()
        assert x.grad.tolist() == [0.5 * turn * state["n"]] * 3
    assert graphed.stats()["eager"]["state['scale'] changes too often; make it a tensor on the device"]


def test_a_tensor_made_under_inference_mode_and_gradients(platform):
    """Autograd saves none, and a graph with gradients saves all of its inputs: such calls run eagerly, as its errors."""
    with torch.inference_mode():
        held = {"mean": torch.full((3,), 2.0, device="cuda")}
    scaled = gfxgraph.graphed(lambda x: (x * held["mean"].mean()).sum())
    saving = gfxgraph.graphed(lambda x: (x * held["mean"]).sum())
    x = torch.ones(3, device="cuda", requires_grad=True)
    for _ in range(4):
        x.grad = None
        scaled(x).backward()
        assert x.grad.tolist() == [2.0] * 3
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            saving(x)
    assert any("inference_mode" in why for why in scaled.stats()["eager"])
    held["mean"] = torch.full((3,), 4.0, device="cuda")
    for graphed in (scaled, saving) * 4:
        x.grad = None
        graphed(x).backward()
        assert x.grad.tolist() == [4.0] * 3
    assert scaled.stats()["replays"] >= 2


def test_a_learning_rate_computed_on_the_device_by_the_step(platform):
    """A tensor that the step itself computes is no number of Python's: every step is eager's, by one graph."""
    found = []
    for wrap in (TrainingStep, lambda f: f):
        torch.manual_seed(0)
        net, rate, n = torch.nn.Linear(4, 1).cuda(), *torch.zeros(2, device="cuda").unbind()
        rate = rate.clone()
        optimizer = torch.optim.AdamW(net.parameters(), rate, capturable=True)

        def body(x):
            n.add_(1)
            rate.copy_(0.1 * (n / 5).clamp(max=1))
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

        step = wrap(body)
        for _ in range(8):
            step(torch.ones(3, 4, device="cuda"))
        found.append(net.weight.tolist())
        if wrap is TrainingStep:
            assert step.n_replays == 5 and not step.why_eager, step.explain()
    assert found[0] == found[1]


def test_a_counter_in_host_memory_is_named_with_what_to_do(platform):
    """A buffer that was left on the host and that each step changes."""
    net, n = torch.nn.Linear(4, 1).cuda(), torch.zeros((), dtype=torch.int64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @TrainingStep
    def step(x):
        n.add_(1)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for _ in range(8):
        step(torch.ones(3, 4, device="cuda"))
    assert n == 8 and step.why_eager == "it changes step.n itself, a tensor in host memory; create it on the device"


# -- values read inside, and gradients ------------------------------------------------------------------------


def _place(y, i):
    y[:, i] = y[:, i] * 3
    return y


HELD = {
    "a factor": lambda x, w: (x @ w) * x.abs().max().item(),
    "factors": lambda x, w: ((x @ w) * x.abs().max().item()).sin() * x.abs().mean().item(),
    "in place": lambda x, w: (x @ w).mul_(x.abs().max().item()).add_(x, alpha=x.abs().mean().item()),
    "a bound": lambda x, w: (x @ w).clone().clamp_(max=x.abs().mean().item()),
    "a parameter of a loss": lambda x, w: torch.nn.functional.huber_loss(x @ w, x, delta=x.abs().mean().item()),
    "a scale": lambda x, w: torch.nn.functional.celu(x @ w, x.abs().mean().item() + 1),
    "a base": lambda x, w: (x.abs().mean().item() + 1) ** (x @ w).tanh(),
    "a shift": lambda x, w: (x @ w).roll(x.abs().sum(0).argmax().item(), 1) * x,
    "an index": lambda x, w: (x @ w)[:, x.abs().sum(0).argmax().item()],
    "a start": lambda x, w: (x @ w)[:, x.abs().sum(0).argmax().item() // 2 :] * 2,
    "a place": lambda x, w: _place((x @ w).clone(), x.abs().sum(0).argmax().item()),
}


@pytest.mark.parametrize("graphs", ["callable", "two"])
@pytest.mark.parametrize("name", HELD)
def test_backward_of_a_value_that_the_forward_read(platform, name, graphs):
    """Autograd keeps the number for a backward with a graph of its own: the captured one is right, another raises."""
    fn = HELD[name]
    inputs = [torch.roll(torch.linspace(-k, k + 1.0, 32), 3 * k).reshape(4, 8).cuda() for k in (1, 2, 4, 1)]
    w = torch.eye(8, device="cuda").add(0.25).requires_grad_()
    static = inputs[0].clone().requires_grad_()
    if graphs == "callable":
        call = torch.cuda.make_graphed_callables(fn, (static, w.detach().clone().requires_grad_()))
    else:
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward):
            out = fn(static, w)
            loss = out.square().sum()
        with torch.cuda.graph(backward, pool=forward.pool()):
            grads = torch.autograd.grad(loss, (static, w))
    outcomes = []
    for given in inputs:
        x = given.clone().requires_grad_()
        expected = torch.autograd.grad(fn(x, w).square().sum(), (x, w))
        try:
            if graphs == "callable":
                grads = torch.autograd.grad(call(x, w).square().sum(), (x, w))
            else:
                static.data.copy_(given)
                forward.replay()
                backward.replay()
        except gfxgraph.GuardMismatch as error:
            assert "test_training_graphed.py" in str(error)
            outcomes.append("guarded")
            continue
        torch.testing.assert_close(grads, expected, rtol=2e-4, atol=2e-4)
        outcomes.append("right")
    assert outcomes[0] == "right" and set(outcomes) <= {"right", "guarded"}


def test_a_number_that_dynamo_leaves_in_the_graph_is_the_captured_calls(platform):
    """The capture reads it from that call's inputs, so a replay for an equal call finds it as it was."""
    weight = torch.ones(3, device="cuda", requires_grad=True)
    graphed = gfxgraph.graphed(lambda x: (x * weight).sum() * x.sum().item())
    for _ in range(4):
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            (grad,) = torch.autograd.grad(graphed(torch.full((3,), 2.0, device="cuda")), weight)
        assert grad.tolist() == [12.0] * 3
    assert (gfxgraph.stats()["guard_mismatches"], graphed.stats()["replays"]) == (0, 2)


@pytest.mark.skipif(
    not hasattr(torch.compiler, "nested_compile_region"), reason="this torch has no nested_compile_region"
)
def test_a_nested_compile_region_has_gradients(platform):
    """Its operator has a backward only for compilers: such a function is left to Python, by name."""
    region = torch.compiler.nested_compile_region(lambda x: x.sin() * 2)
    graphed = gfxgraph.graphed(lambda x: region(region(x)) + 1)
    for k in range(4):
        mine, twin = (torch.full((4,), k + 0.5, device="cuda", requires_grad=True) for _ in range(2))
        graphed(mine).sum().backward()
        ((twin.sin() * 2).sin() * 2).sum().backward()
        assert torch.equal(mine.grad, twin.grad)
    assert "nested_compile_region" in graphed.explain()


@pytest.mark.parametrize("name", ["a factor", "a parameter of a loss"])
def test_numbers_kept_for_a_backward_do_not_keep_the_capture(platform, name):
    """Autograd's nodes hold them, where Python's collector does not look."""

    def captured():
        x, w = (torch.ones(8, 8, device="cuda", requires_grad=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = HELD[name](x, w).sum()
            print(loss.item())
        return weakref.ref(w)

    w = captured()
    gc.collect()
    assert w() is None
