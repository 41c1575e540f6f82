"""Optimizers inside plain captures: eager's parameters and state after each replay, or an error."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn, optim

import gfxgraph
from tests.conformance.conftest import HAS_GPU

pytestmark = [pytest.mark.any_platform, pytest.mark.usefixtures("nothing_compiled")]
N_REPLAYS = 7


class Twins:
    """A training step in a graph, and the same done eagerly."""

    def __init__(self, make, scaler=False, warm=True, step=None, **options):
        self.x = torch.zeros(4, 6, device="cuda")
        self.spoil = torch.ones((), device="cuda")
        self.nets = [self._net(), self._net()]
        self.optimizers = [make(net.parameters()) for net in self.nets]
        self.scalers = [torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=2) if scaler else None] * 2
        if scaler:
            self.scalers[1] = copy.deepcopy(self.scalers[0])
        self.step = step or type(self)._step
        self._give(0)
        if warm:
            self.eager()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.step(self, 0)
            torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph(**options)
        with torch.cuda.graph(self.graph):
            self.step(self, 0)

    def _net(self):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).cuda()

    def _step(self, which):
        net, optimizer, scaler = self.nets[which], self.optimizers[which], self.scalers[which]
        optimizer.zero_grad(set_to_none=True)
        loss = net(self.x).square().mean() * self.spoil
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def _give(self, i):
        self.x.copy_(torch.randn(4, 6, generator=torch.Generator().manual_seed(i)))
        self.spoil.fill_(float("inf") if self.scalers[0] is not None and i == 1 else 1.0)

    def eager(self):
        self.step(self, 1)

    def _numbers(self, which):
        states = self.optimizers[which].state
        yield from self.nets[which].parameters()
        for parameter in self.nets[which].parameters():
            yield from (item for _, item in sorted(states[parameter].items()) if isinstance(item, torch.Tensor))
        if self.scalers[which] is not None:
            yield self.scalers[which]._scale

    def assert_equal(self):
        mine, others = map(list, map(self._numbers, (0, 1)))
        assert len(mine) == len(others)
        for one, other in zip(mine, others):
            assert torch.allclose(one.float(), other.float(), rtol=1e-4, atol=1e-5), (one, other)

    def replays(self, n=N_REPLAYS, before=None):
        """Replay ``n`` times beside eager; "right" or "guarded" for each, up to the first that is guarded."""
        found = []
        for i in range(n):
            self._give(i)
            for optimizer in self.optimizers if before is not None else ():
                before(i, optimizer)
            try:
                self.graph.replay()
            except gfxgraph.GuardMismatch as error:
                self.refused = str(error)
                return [*found, "guarded"]
            self.eager()
            self.assert_equal()
            found.append("right")
        return found


EVERYWHERE = {
    "adam": partial(optim.Adam, lr=0.05, foreach=False, capturable=True),
    "adam-foreach": partial(optim.Adam, lr=0.05, foreach=True, amsgrad=True, weight_decay=0.1, capturable=True),
    "adamw-fused": partial(optim.AdamW, lr=0.05, fused=True, capturable=True),
    "nadam": partial(optim.NAdam, lr=0.05, capturable=True),
    "adamax": partial(optim.Adamax, lr=0.05, capturable=True),
    "asgd-foreach": partial(optim.ASGD, lr=0.05, t0=2, foreach=True, capturable=True),
    "rprop": partial(optim.Rprop, lr=0.05, capturable=True),
    "rmsprop": partial(optim.RMSprop, lr=0.05, momentum=0.9, capturable=True),
    "adadelta": partial(optim.Adadelta, lr=0.5, capturable=True),
    "adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "sgd": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "sgd-damped": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd-fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
}
MAKE_STATE_EARLY = ("adagrad",)


@pytest.mark.any_platform
@pytest.mark.parametrize("name", EVERYWHERE)
def test_optimizers_count_and_keep_their_state(platform, name):
    """After a warm-up step, replays are eager's steps."""
    assert Twins(EVERYWHERE[name]).replays() == ["right"] * N_REPLAYS


@pytest.mark.any_platform
@pytest.mark.parametrize("name", [name for name in EVERYWHERE if name not in MAKE_STATE_EARLY])
def test_a_first_step_is_refused(platform, name):
    """Its state would begin anew in each replay; the error says what to do, and captures work afterwards."""
    with pytest.raises(gfxgraph.CaptureError, match="run one step before") as caught:
        Twins(EVERYWHERE[name], warm=False)
    assert caught.value.code == "refused_in_capture"
    assert Twins(EVERYWHERE[name]).replays(2) == ["right"] * 2


@pytest.mark.any_platform
def test_first_steps_are_known_also_once_dynamo_is_used(platform, monkeypatch):
    """Dynamo, at its first use, gives a class that inherits ``_init_group`` one of its own."""
    make = partial(optim.AdamW, lr=0.05, capturable=True)
    assert Twins(make).replays(2) == ["right"] * 2
    monkeypatch.setattr(optim.AdamW, "_init_group", torch._dynamo.disable(optim.Adam._init_group))
    with pytest.raises(gfxgraph.CaptureError, match="run one step before"):
        Twins(make, warm=False)


@pytest.mark.any_platform
def test_a_first_step_of_a_copied_optimizer_is_refused(platform):
    """A copy is made without ``__init__``."""
    with pytest.raises(gfxgraph.CaptureError, match="run one step before"):
        Twins(lambda parameters: copy.copy(EVERYWHERE["adam"](parameters)), warm=False)


@pytest.mark.parametrize("name", ["adam", "nadam", "rmsprop"])
def test_steps_counted_on_the_host_are_refused_as_by_torch(platform, name):
    """torch's own error, whatever the policy; afterwards captures work."""
    for policy in ("split", "pin", "strict", "raise"):
        with pytest.raises(RuntimeError, match="capturable is False"):
            Twins(partial(EVERYWHERE[name], capturable=False), on_unsafe=policy)
    assert Twins(EVERYWHERE[name]).replays(2) == ["right"] * 2


@pytest.mark.parametrize("name", ["adamw-fused", "sgd-fused"])
def test_skipped_steps_are_not_counted(platform, name):
    """With a GradScaler and a fused optimizer, an overflow leaves counts, state and parameters."""
    twins = Twins(EVERYWHERE[name], scaler=True)
    assert twins.replays() == ["right"] * N_REPLAYS
    assert twins.scalers[0].get_scale() != 8.0


def test_an_overflow_is_guarded_where_the_host_decides_about_the_step(platform):
    """Other optimizers are asked on the host whether to step."""
    assert Twins(EVERYWHERE["adam"], scaler=True).replays() == ["right", "guarded"]


def test_a_first_scale_is_refused(platform):
    """A GradScaler makes its scale at its first use: each replay would begin with it anew."""
    with pytest.raises(gfxgraph.CaptureError, match="GradScaler.scale"):
        Twins(EVERYWHERE["adamw-fused"], scaler=True, warm=False)


def split(twins, which):
    """A step in a capture that torch would not have made."""
    assert twins.x.isfinite().all().item()
    twins._step(which)


@pytest.mark.parametrize("name", ["adam", "adamw-fused"])
def test_a_loaded_state_is_refused_where_the_capture_was_split(platform, name):
    """``load_state_dict`` puts other tensors in the place of those that the replay writes."""

    def before(i, optimizer):
        if i == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    twins = Twins(EVERYWHERE[name], step=split)
    assert twins.replays(before=before) == ["right", "right", "guarded"]
    assert "the state of Adam" in twins.refused


def _set_eps(i, optimizer):
    if i == 3:
        optimizer.param_groups[0]["eps"] = 0.5


def _set_rate(i, optimizer):
    if i == 3:
        optimizer.param_groups[0]["lr"] = 0.5


def _add_group(i, optimizer):
    if i == 3:
        optimizer.add_param_group({"params": [torch.zeros(2, device="cuda", requires_grad=True)]})


@pytest.mark.parametrize(
    ("change", "text"), [(_set_eps, "'eps' of Adam"), (_add_group, "the number of groups of Adam")]
)
def test_settings_are_constants_that_are_compared(platform, change, text):
    """A number that Python changes, or another group, is not followed: the replay raises and names it."""
    twins = Twins(partial(optim.Adam, lr=0.05, capturable=True), step=split)
    assert twins.replays(before=change) == ["right"] * 3 + ["guarded"]
    assert text in twins.refused


def test_a_rate_is_followed_where_the_capture_was_split(platform):
    """It is an input of the graph: the optimizer takes tensors."""
    twins = Twins(partial(optim.Adam, lr=0.05, capturable=True), step=split)
    assert twins.replays(before=_set_rate) == ["right"] * N_REPLAYS


@pytest.mark.any_platform
def test_a_scheduler_inside_the_capture_is_refused(platform):
    """Python sets the rate in each step: replays would repeat the first's rate."""
    schedulers = {}

    def step(twins, which):
        optimizer = twins.optimizers[which]
        if which not in schedulers:
            schedulers[which] = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        twins._step(which)
        schedulers[which].step()

    with pytest.raises(gfxgraph.CaptureError, match="'lr' of Adam"):
        Twins(EVERYWHERE["adam"], step=step)


class CountsInPython(optim.Optimizer):
    """Reads a gradient and counts in Python, as SparseAdam does."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            parameter.sub_(parameter.grad, alpha=0.1 * parameter.grad.norm().item() / state["step"])


@pytest.mark.any_platform
def test_a_count_in_python_is_refused(platform):
    """No replay advances it; the message names the optimizer."""
    with pytest.raises(gfxgraph.CaptureError, match="steps that CountsInPython keeps in Python"):
        Twins(CountsInPython)


@pytest.mark.skipif(not HAS_GPU, reason="the simulator has no sparse gradients")
def test_sparse_adam_is_refused(platform):
    """Its gradients are sparse; and it counts in Python."""
    weights = nn.Embedding(5, 3, sparse=True).cuda()
    optimizer = optim.SparseAdam(weights.parameters())
    ids = torch.tensor([0, 2], device="cuda")

    def step():
        optimizer.zero_grad()
        weights(ids).sum().backward()
        optimizer.step()

    step()
    with pytest.raises(gfxgraph.CaptureError, match="_sparse_coo_tensor"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            step()


def test_an_optimizer_of_the_capture_begins_anew_in_each_replay(platform):
    """Made inside the captured code, as in meta-learning: its state is made there, too."""

    def step(twins, which):
        optimizer = optim.Adam(twins.nets[which].parameters(), lr=0.05, capturable=True)
        for _ in range(2):
            optimizer.zero_grad()
            twins.nets[which](twins.x).square().mean().backward()
            optimizer.step()

    assert Twins(EVERYWHERE["adam"], step=step).replays() == ["right"] * N_REPLAYS


# -- what the captured code does with the optimizer itself -------------------------------------------------------


def cleared(twins, which):
    twins.optimizers[which].state.clear()
    twins._step(which)


def dropped(twins, which):
    for parameter in twins.nets[which].parameters():
        twins.optimizers[which].state.pop(parameter, None)
    twins._step(which)


def emptied(twins, which):
    for state in twins.optimizers[which].state.values():
        state.clear()
    twins._step(which)


def loaded(twins, which):
    optimizer = twins.optimizers[which]
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    twins._step(which)


def loaded_after(twins, which):
    twins._step(which)
    optimizer = twins.optimizers[which]
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def rate_halved(twins, which):
    twins.optimizers[which].param_groups[0]["lr"] *= 0.5
    twins._step(which)


def rate_set(twins, which):
    twins.optimizers[which].param_groups[0]["lr"] = 0.02
    twins._step(which)


OF_TWO_KINDS = {
    "adam": partial(optim.Adam, lr=0.05, capturable=True),
    "sgd": partial(optim.SGD, lr=0.05, momentum=0.9),
}


@pytest.mark.any_platform
@pytest.mark.parametrize("step", [cleared, dropped, emptied, loaded])
@pytest.mark.parametrize("name", OF_TWO_KINDS)
def test_a_state_that_each_call_begins_anew_is_refused(platform, name, step):
    """What is lacking in the capture looks like a first step."""
    with pytest.raises(gfxgraph.CaptureError, match="run one step before"):
        Twins(OF_TWO_KINDS[name], step=step)


@pytest.mark.any_platform
def test_a_rate_that_each_call_sets_is_right(platform):
    """It is the same in each call."""
    assert Twins(OF_TWO_KINDS["adam"], step=rate_set).replays() == ["right"] * N_REPLAYS


@pytest.mark.any_platform
@pytest.mark.parametrize("name", OF_TWO_KINDS)
def test_a_state_that_is_replaced_after_a_step_is_refused(platform, name):
    """The graph would go on with the one that it stepped with."""
    with pytest.raises(gfxgraph.CaptureError, match="the state of"):
        Twins(OF_TWO_KINDS[name], step=loaded_after)


@pytest.mark.any_platform
@pytest.mark.parametrize("name", ["adam", "sgd", "plain"])
def test_a_rate_that_the_captured_code_changes_is_refused(platform, name):
    """Also where torch itself would have made the graph."""
    make = partial(optim.SGD, lr=0.05) if name == "plain" else OF_TWO_KINDS[name]
    with pytest.raises(gfxgraph.CaptureError, match="'lr' of "):
        Twins(make, step=rate_halved)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.NAdam, optim.RMSprop, optim.Rprop, optim.ASGD])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_group_that_says_no_is_refused_as_by_torch(platform, kind, foreach):
    """PyTorch's test_graph_optims_with_explicitly_capturable_param_groups: one group of two, under on_unsafe="raise"."""
    weights = [torch.ones(2, device="cuda", requires_grad=True) for _ in range(2)]
    groups = [{"params": [weight], "capturable": said} for weight, said in zip(weights, (True, False))]
    optimizer = kind(groups, lr=0.1, foreach=foreach)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    with pytest.raises(RuntimeError, match="graph capture of step"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(on_unsafe="raise")):
            optimizer.step()
    assert not torch.cuda.is_current_stream_capturing()
