"""Functions that take gradients themselves, with ``torch.autograd.grad``: one graph where Dynamo can follow."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gfxgraph
from gfxgraph import torch_names
from tests.conformance.conftest import on_both_platforms

pytestmark = [pytest.mark.any_platform, pytest.mark.usefixtures("nothing_compiled")]

HAS_TRACED_GRADIENTS = hasattr(torch_names.dynamo_config, "trace_autograd_ops")


def net(n_out=1):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, n_out)).cuda()


def inner_steps():
    """Two steps on one batch, differentiated through on another."""
    parameters = [*net().parameters()]

    def loss(x, y, now):
        return F.mse_loss(F.linear(torch.tanh(F.linear(x, now[0], now[1])), now[2], now[3]), y)

    def gradients(x, y, x2, y2):
        now = parameters
        for _ in range(2):
            found = torch.autograd.grad(loss(x, y, now), now, create_graph=True)
            now = [each - 0.1 * grad for each, grad in zip(now, found)]
        return torch.autograd.grad(loss(x2, y2, now), parameters)

    return gradients, ((4, 3), (4, 1), (4, 3), (4, 1))


def second_derivative():
    model = net()

    def products(x, v):
        found = torch.autograd.grad(model(x).square().mean(), [*model.parameters()], create_graph=True)
        return torch.autograd.grad(sum((each * v).sum() for each in found), [*model.parameters()], allow_unused=True)

    return products, ((5, 3), ())


def with_a_hook():
    w = torch.randn(3, device="cuda", requires_grad=True)
    w.register_hook(lambda grad: grad * 2)
    return lambda x: torch.autograd.grad((w * x).sin().sum(), w)[0], ((3,),)


def own_step():
    w = torch.randn(3, device="cuda", requires_grad=True)

    def step(x):
        loss = (w * x).sum().square()
        (grad,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w.sub_(0.1 * grad)
        return loss.detach(), w.detach().clone()

    return step, ((3,),)


def under_autocast():
    model = net()

    def gradients(x):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        return torch.autograd.grad(loss, [*model.parameters()])

    return gradients, ((5, 3),)


def clipped_by_the_host():
    model = net()

    def gradients(x):
        found = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])
        norm = torch.stack([each.norm() for each in found]).norm()
        return [each * 0.5 / norm for each in found] if norm.item() > 0.5 else found

    return gradients, ((5, 3),)


def of_the_accumulated():
    model = net()

    def gradients(x):
        model.zero_grad()
        x = x.clone().requires_grad_()
        found = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        (model(x).mean() + found.square().mean()).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    return gradients, ((5, 3),)


WHOLE = (inner_steps, second_derivative, with_a_hook, own_step, under_autocast)


@on_both_platforms
@pytest.mark.parametrize("make", [*WHOLE, clipped_by_the_host, of_the_accumulated])
def test_gradients_taken_inside_are_eagers(platform, make):
    """Seven calls: those that Python decides nothing about are replays of one graph, the others are right in pieces."""
    made = []
    for wrap in (lambda fn: fn, gfxgraph.graphed):
        torch.manual_seed(3)
        fn, sizes = make()
        made.append(wrap(fn))
    eager, graphed = made
    for n in range(7):
        given = [torch.randn(size, device="cuda") for size in sizes]
        results = []
        for fn in (eager, graphed):
            torch.manual_seed(n)
            results.append(torch_names.tree_leaves(fn(*given)))
        for mine, theirs in zip(*results, strict=True):
            assert torch.allclose(mine, theirs, 1e-4, 1e-5) and mine.requires_grad == theirs.requires_grad
    if make in WHOLE and HAS_TRACED_GRADIENTS:
        assert graphed.stats()["calls"]["by_graph"] == 6, graphed.explain()


def test_a_backward_of_what_was_computed_before_a_break(platform):
    """It reaches parameters that the rest of the function, which is traced on its own, does not mention."""
    eager = net()[:2]
    model = copy.deepcopy(eager)

    def step(of, x):
        loss = of(x).square().mean()
        if loss.item() > 1e9:  # Python runs
            return None
        loss.backward()
        return loss.detach()

    graphed = gfxgraph.graphed(step)
    for _ in range(5):
        x = torch.randn(5, 3, device="cuda")
        torch.testing.assert_close(graphed(model, x), step(eager, x))
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_backward_between_pieces_is_not_traced(platform):
    """Forces, differentiated again in training: the code of our backward is none of the function's."""
    model = net()[:2]

    def forces(x):
        x = x.detach().requires_grad_()
        energy = model(x).sum()
        return energy, torch.autograd.grad(energy, x, create_graph=True)[0]

    graphed = gfxgraph.graphed(forces)
    for _ in range(7):
        x, found = torch.randn(5, 3, device="cuda"), []
        for fn in (graphed, forces):
            energy, force = fn(x)
            (energy.square() + force.square().sum()).backward()
            found.append([energy, force, *[p.grad for p in model.parameters()]])
            model.zero_grad()
        torch.testing.assert_close(*found)
    assert graphed.stats()["pieces"] and set(graphed.stats()["eager"]) == {"warm-up"}, graphed.explain()
