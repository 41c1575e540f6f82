"""Optimizers inside plain captures: eager's parameters and state after each replay, or GuardMismatch."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn, optim

import gfxgraph
from tests.conformance.conftest import HAS_GPU, on_both_platforms

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
    "adam": partial(optim.Adam, lr=0.05, foreach=False),
    "adam-foreach": partial(optim.Adam, lr=0.05, foreach=True, amsgrad=True, maximize=True, weight_decay=0.1),
    "adamw": partial(optim.AdamW, lr=0.05, foreach=False, amsgrad=True),
    "adamw-fused": partial(optim.AdamW, lr=0.05, fused=True),
    "adam-capturable": partial(optim.Adam, lr=0.05, capturable=True),
    "nadam": partial(optim.NAdam, lr=0.05),
    "adamax": partial(optim.Adamax, lr=0.05),
    "asgd-foreach": partial(optim.ASGD, lr=0.05, t0=2, foreach=True),
    "rprop": partial(optim.Rprop, lr=0.05),
    "rmsprop": partial(optim.RMSprop, lr=0.05, momentum=0.9),
    "adadelta": partial(optim.Adadelta, lr=0.5),
    "adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "adafactor": partial(optim.Adafactor, lr=0.05),
    "sgd": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "sgd-fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.any_platform
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first-step"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_optimizers_count_and_keep_their_state(platform, name, warm):
    """Whatever the flag, and whether or not the captured step is the optimizer's first, replays are eager's steps."""
    assert Twins(EVERYWHERE[name], warm=warm).replays() == ["right"] * N_REPLAYS


@pytest.mark.any_platform
def test_first_steps_are_known_also_once_dynamo_is_used(platform, monkeypatch):
    """Dynamo, at its first use, gives a class that inherits ``_init_group`` one of its own."""
    assert Twins(EVERYWHERE["adam"], warm=False).replays() == ["right"] * N_REPLAYS
    monkeypatch.setattr(optim.AdamW, "_init_group", torch._dynamo.disable(optim.Adam._init_group))
    assert Twins(EVERYWHERE["adamw"], warm=False).replays() == ["right"] * N_REPLAYS


@pytest.mark.parametrize("make", [partial(optim.RAdam, lr=0.05), partial(optim.ASGD, lr=0.05, t0=3, foreach=False)])
def test_a_branch_on_the_count_of_steps_is_guarded(platform, make):
    """RAdam and ASGD take another path once they have made enough steps."""
    found = Twins(make).replays()
    assert found[-1] == "guarded" and set(found[:-1]) == {"right"} and len(found) > 3


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first-step"])
@pytest.mark.parametrize("name", ["adam", "adam-foreach", "adamw-fused", "sgd"])
def test_skipped_steps_are_not_counted(platform, name, warm):
    """With a GradScaler, an overflow leaves counts, state and parameters; the scale follows eager's."""
    twins = Twins(EVERYWHERE[name], scaler=True, warm=warm)
    assert twins.replays() == ["right"] * N_REPLAYS
    assert twins.scalers[0].get_scale() != 8.0


@pytest.mark.parametrize("name", ["adam", "adamw-fused"])
def test_a_loaded_state_is_the_graphs(platform, name):
    """``load_state_dict`` between replays: the next replay goes on from what was loaded."""
    kept = {}

    def before(i, optimizer):
        if i == 1:
            kept[id(optimizer)] = copy.deepcopy(optimizer.state_dict())
        if i == 4:
            optimizer.load_state_dict(kept[id(optimizer)])

    twins = Twins(EVERYWHERE[name])
    assert twins.replays(before=before) == ["right"] * N_REPLAYS
    of_graph = next(iter(twins.optimizers[0].state.values()))
    assert of_graph["step"] == N_REPLAYS + 1 - 3


@pytest.mark.any_platform
def test_a_state_of_another_kind_is_refused(platform):
    """A loaded state that cannot go into the graph's tensors raises before the replay does anything."""
    twins = Twins(EVERYWHERE["adam"])
    empty = EVERYWHERE["adam"](twins.nets[0].parameters()).state_dict()

    def before(i, optimizer):
        if i == 2:
            optimizer.load_state_dict(empty)

    assert twins.replays(before=before) == ["right", "right", "guarded"]
    assert "in the state of Adam" in twins.refused


def _set_rate(i, optimizer):
    if i == 3:
        optimizer.param_groups[0]["lr"] = 0.5


def _add_group(i, optimizer):
    if i == 3:
        optimizer.add_param_group({"params": [torch.zeros(2, device="cuda", requires_grad=True)]})


@pytest.mark.parametrize(
    ("change", "text"), [(_set_rate, "'lr' of Adam"), (_add_group, "the number of groups of Adam")]
)
@pytest.mark.parametrize("name", ["adam", "adam-fused"])
def test_settings_are_constants_that_are_compared(platform, name, change, text):
    """A learning rate that Python changes, or another group, is not followed: the replay raises and names it."""
    twins = Twins(partial(optim.Adam, lr=0.05, foreach=False) if name == "adam" else partial(optim.Adam, fused=True))
    assert twins.replays(before=change) == ["right"] * 3 + ["guarded"]
    assert text in twins.refused


@pytest.mark.any_platform
def test_a_scheduler_inside_the_capture_is_refused_from_the_second_replay_on(platform):
    """Python sets the rate in each step: the first replay is eager's step, a second would repeat the first's rate."""
    schedulers = {}

    def step(twins, which):
        optimizer = twins.optimizers[which]
        if which not in schedulers:
            schedulers[which] = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        twins._step(which)
        schedulers[which].step()

    twins = Twins(EVERYWHERE["adam"], step=step)
    assert twins.replays() == ["right", "guarded"]
    assert "'lr' of Adam" in twins.refused


@pytest.mark.any_platform
def test_damped_momentum_is_refused_after_a_captured_first_step(platform):
    """SGD's first step takes the gradient undamped, which no later step does."""
    make = partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)
    assert Twins(make).replays() == ["right"] * N_REPLAYS
    assert Twins(make, warm=False).replays() == ["right", "guarded"]


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
def test_a_count_in_python_is_refused_from_the_second_replay_on(platform):
    """No replay advances it; the message names the optimizer."""
    twins = Twins(CountsInPython)
    assert twins.replays() == ["right", "guarded"]
    assert "steps that CountsInPython keeps in Python" in twins.refused


@pytest.mark.skipif(not HAS_GPU, reason="the simulator has no sparse gradients")
def test_sparse_adam_is_refused_from_the_second_replay_on(platform):
    """It counts in Python."""
    weights = nn.Embedding(5, 3, sparse=True).cuda()
    optimizer = optim.SparseAdam(weights.parameters())
    ids = torch.tensor([0, 2], device="cuda")

    def step():
        optimizer.zero_grad()
        weights(ids).sum().backward()
        optimizer.step()

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    with pytest.raises(gfxgraph.GuardMismatch, match="SparseAdam keeps in Python"):
        graph.replay()


def test_an_optimizer_of_the_capture_begins_anew_in_each_replay(platform):
    """Made inside the captured code, as in meta-learning: its state is made there, too."""

    def step(twins, which):
        optimizer = optim.Adam(twins.nets[which].parameters(), lr=0.05)
        for _ in range(2):
            optimizer.zero_grad()
            twins.nets[which](twins.x).square().mean().backward()
            optimizer.step()

    assert Twins(EVERYWHERE["adam"], step=step).replays() == ["right"] * N_REPLAYS


def test_an_optimizer_over_host_tensors(platform):
    """Master weights on the host: its steps are host steps."""
    x = torch.ones(4, device="cuda")
    runs = []
    for _ in range(2):
        weights, master = torch.ones(4, device="cuda", requires_grad=True), nn.Parameter(torch.ones(4))
        optimizer = optim.Adam([master], lr=0.1)

        def step(weights=weights, master=master, optimizer=optimizer):
            (gradient,) = torch.autograd.grad((weights * x).square().sum(), weights)
            master.grad = gradient.cpu()
            optimizer.step()
            with torch.no_grad():
                weights.copy_(master)

        step()
        runs.append((weights, optimizer.state[master], step))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runs[0][2]()
    for i in range(4):
        x.fill_(i + 1)
        graph.replay()
        runs[1][2]()
        assert torch.allclose(runs[0][0], runs[1][0]) and runs[0][1]["step"] == runs[1][1]["step"] == i + 2


@on_both_platforms
def test_what_capturable_would_save_is_reported(platform):
    """Steps counted on the host are a fallback with torch's flag as the remedy; what runs in one graph is none."""
    graphs = [Twins(EVERYWHERE[name]).graph for name in ("adamw-fused", "adam-capturable", "sgd")]
    assert all(graph.is_plain for graph in graphs) and not gfxgraph.stats()["fallbacks"]
    Twins(EVERYWHERE["adam"])
    ((reason, n),) = gfxgraph.stats()["fallbacks"].items()
    assert "capturable=True" in reason and n == 1
    (event,) = [each for each in gfxgraph.stats()["events"] if each["kind"] == "fallback"]
    assert event["op"] == "Adam.step"


@pytest.mark.parametrize("policy", ["pin", "strict", "raise"])
@pytest.mark.parametrize("name", ["adam", "adamw-fused"])
def test_policies_without_host_steps_leave_torchs_refusal(platform, name, policy):
    """torch's own error in the capture; afterwards captures work."""
    with pytest.raises(RuntimeError, match="capturable is False"):
        Twins(EVERYWHERE[name], on_unsafe=policy)
    assert Twins(EVERYWHERE["adam-capturable"], on_unsafe=policy).replays() == ["right"] * N_REPLAYS


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


def cleared_after(twins, which):
    twins._step(which)
    twins.optimizers[which].state.clear()


def cleared_between(twins, which):
    twins._step(which)
    cleared(twins, which)


def loaded_after(twins, which):
    optimizer = twins.optimizers[which]
    saved = copy.deepcopy(optimizer.state_dict())
    twins._step(which)
    optimizer.load_state_dict(saved)


def rate_halved(twins, which):
    twins.optimizers[which].param_groups[0]["lr"] *= 0.5
    twins._step(which)


def rate_set(twins, which):
    twins.optimizers[which].param_groups[0]["lr"] = 0.02
    twins._step(which)


OF_THREE_KINDS = {
    "adam": partial(optim.Adam, lr=0.05),
    "capturable": partial(optim.Adam, lr=0.05, capturable=True),
    "sgd": partial(optim.SGD, lr=0.05, momentum=0.9),
}


@pytest.mark.any_platform
@pytest.mark.parametrize("step", [cleared, dropped, emptied, loaded, rate_set])
@pytest.mark.parametrize("name", OF_THREE_KINDS)
def test_a_state_that_each_call_begins_anew_is_made_by_each_replay(platform, name, step):
    """The warm-up has made one: what is lacking in the capture is not a first step."""
    assert Twins(OF_THREE_KINDS[name], step=step).replays() == ["right"] * N_REPLAYS


@pytest.mark.any_platform
@pytest.mark.parametrize("step", [cleared_after, cleared_between, loaded_after])
@pytest.mark.parametrize("name", OF_THREE_KINDS)
@pytest.mark.parametrize("warm", [True, False])
def test_a_state_that_is_replaced_after_a_step_is_refused(platform, name, step, warm):
    """The graph would go on with the one that it stepped with."""
    twins = Twins(OF_THREE_KINDS[name], step=step, warm=warm)
    assert twins.replays()[-1] == "guarded"
    assert "the state of" in twins.refused


@pytest.mark.any_platform
@pytest.mark.parametrize("name", ["adam", "capturable", "sgd", "plain"])
def test_a_rate_that_the_captured_code_changes_is_refused_from_the_second_replay_on(platform, name):
    """Also where torch itself would have made the graph."""
    make = partial(optim.SGD, lr=0.05) if name == "plain" else OF_THREE_KINDS[name]
    twins = Twins(make, step=rate_halved)
    assert twins.replays() == ["right", "guarded"]
    assert "'lr' of " in twins.refused


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
