"""Branches, loops and training steps whose surroundings change between calls: eager's answers, whatever changes."""

from __future__ import annotations

import copy
import random
import types

import pytest
import torch

import gfxgraph
from gfxgraph.callables.control.conditional import Conditional
from gfxgraph.callables.control.loops import WhileLoop
from gfxgraph.callables.training.training_step import TrainingStep
from tests.conftest import DEPTH

FACTOR = 2.0


class Box:
    """A plain object with an attribute."""

    def __init__(self):
        self.scale, self.parts = 1.0, [1.0]


class Scene:
    """A branch, the same every time it is made, and ways to change what it reads."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).cuda()
        self.box, self.factor, self.weight = Box(), 1.0, torch.ones(4, device="cuda")
        self.said = []
        self.functions = {"times": lambda x: x * self.box.scale}
        self.space = types.SimpleNamespace(kind="a")
        factor = 1.5

        def branch(x):
            y = self.net(x) * factor + self.box.parts[0] - self.weight
            y = y + 1 if self.space.kind == "a" else y - 1
            return self.functions["times"](y) * FACTOR if self.net.training else self.functions["times"](y)

        def closure():
            nonlocal factor
            factor += 0.5

        self.branch, self._closure = branch, closure

    def change(self, what, n):
        """Change one thing; ``n`` makes it another one each time."""
        net, box = self.net, self.box
        if what == "mode":
            net.train(not net.training)
        elif what == "closure":
            self._closure()
        elif what == "attribute":
            box.scale += 0.25
        elif what == "list":
            box.parts[0] += 0.5
        elif what == "layer":
            net[1] = torch.nn.Tanh() if n % 2 else torch.nn.ReLU()
        elif what == "weight replaced":
            net[0].weight = torch.nn.Parameter(torch.full((4, 4), 0.1 * (n + 1), device="cuda"))
        elif what == "weight.data":
            net[2].weight.data = torch.full((4, 4), 0.2 * (n + 1), device="cuda")
        elif what == "weight in place":
            with torch.no_grad():
                net[2].weight.mul_(0.5)
        elif what == "tensor replaced":
            self.weight = torch.full((4,), float(n), device="cuda")
        elif what == "hook":
            net[0].register_forward_hook(lambda module, given, result: result + 0.5)
        elif what == "function":
            self.functions["times"] = lambda x: x - 0.5 * (n + 1)
        elif what == "enum":
            self.space.kind = "b" if self.space.kind == "a" else "a"
        elif what == "forward":
            net[1].forward = lambda x: x * 0.25 * (n + 1)
        elif what == "global":
            globals()["FACTOR"] = 2.0 + n


CHANGES = [
    "mode", "closure", "attribute", "list", "layer", "weight replaced", "weight.data", "weight in place",
    "tensor replaced", "hook", "function", "enum", "forward", "global",
]  # fmt: skip


def in_turn(changes):
    """In two tests: what is captured anew after one change is there before the next."""
    return [changes[0::2], changes[1::2]]


@pytest.fixture(autouse=True)
def _begins_anew(simulated_once):
    gfxgraph.reset_stats()
    yield
    globals()["FACTOR"] = 2.0


def ways(scene):
    """The branch in a conditional, and as the body of a loop."""
    chosen = Conditional({"a": scene.branch, "b": lambda x: x + 1})
    loop = WhileLoop(lambda x: x.abs().sum() > scene.box.scale, lambda x: scene.branch(x) * 0.3, max_steps=3)
    return {"conditional": lambda x: chosen("a", x), "loop": lambda x: loop(x)[0]}


def eagerly(scene):
    def loop(x):
        for _ in range(3):
            if not x.abs().sum() > scene.box.scale:
                break
            x = scene.branch(x) * 0.3
        return x

    return {"conditional": scene.branch, "loop": loop}


@pytest.mark.parametrize("changes", in_turn(CHANGES), ids=", ".join)
def test_a_branch_and_a_loop_see_what_changes(simulated_once, changes):
    """One thing after the other: the next call is eager's; before and later there are replays."""
    ours, theirs = Scene(), Scene()
    mine, want = ways(ours), eagerly(theirs)
    x = torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        for turn, what in enumerate([None, *changes]):
            if what is not None:
                ours.change(what, turn)
                theirs.change(what, turn)
            for name in mine:
                before = gfxgraph.stats()["replay_count"]
                for call in range(3):
                    assert torch.allclose(mine[name](x), want[name](x), atol=1e-5), (name, what, call)
                assert gfxgraph.stats()["replay_count"] >= before + 2, (name, what)


def test_effects_of_a_branch_happen_at_each_call(simulated_once):
    """Appending, counting, printing and the host's random numbers: Python's, every time; what can be is a graph."""
    said, box = [], Box()

    def branch(x):
        said.append(len(said))
        box.scale += 1.0
        return x * box.scale + random.random()

    chosen = Conditional([branch])
    x = torch.ones(3, device="cuda")
    with torch.no_grad():
        for turn in range(6):
            random.seed(turn)
            got = chosen(0, x)
            random.seed(turn)
            assert torch.allclose(got, x * (turn + 2.0) + random.random())
    assert said == list(range(6)) and chosen.eager_branches[0]


def test_a_branch_that_needs_gradients_through_its_closure_has_them(simulated_once):
    """A weight that only the closure knows: results stay differentiable after a call without gradients."""
    w = torch.ones(3, 3, device="cuda", requires_grad=True)
    chosen = Conditional([lambda x: x @ w])
    x = torch.randn(2, 3, device="cuda")
    for _ in range(4):
        with torch.no_grad():
            chosen(0, x)
        w.grad = None
        chosen(0, x).sum().backward()
        assert torch.allclose(w.grad, x.sum(0)[:, None].expand(3, 3))


def test_arguments_that_share_memory_with_what_a_branch_writes(simulated_once):
    """The same tensor twice, one of them written, and an argument that the branch writes by its own name."""
    own = torch.zeros(4, device="cuda")

    def twice(a, b):
        a.add_(1)
        return a + b

    def by_name(a, b):
        own.add_(1)
        return a + b

    chosen = Conditional([twice, by_name])
    with torch.no_grad():
        for turn in range(5):
            x, y = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
            given = (x, x) if turn % 2 else (x, y)
            assert chosen(0, *given).tolist() == [2.0] * 4
            before = own[0].item()
            assert chosen(1, own if turn % 2 else x, y)[0].item() == (before + 2 if turn % 2 else 2.0)


# -- training steps -------------------------------------------------------------------------------------------


class Training:
    """A step and ways to change what it reads."""

    def __init__(self, wrap):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.1, capturable=True)
        self.box, self.kept = Box(), None
        self.zero = True
        w = 1.0

        def step(x):
            if self.zero:
                self.optimizer.zero_grad()
            loss = (self.model(x) * w * self.box.scale).square().mean() * FACTOR + self.box.parts[0]
            loss.backward()
            self.optimizer.step()
            return loss

        def closure():
            nonlocal w
            w += 1.0

        self.step, self._closure = wrap(step), closure

    def change(self, what, n):
        model, optimizer = self.model, self.optimizer
        if what == "load_state_dict":
            if len(self.kept["param_groups"]) == len(optimizer.param_groups):
                optimizer.load_state_dict(self.kept)
        elif what == "cleared state":
            optimizer.state.clear()
        elif what == "frozen":
            model[0].weight.requires_grad_(not model[0].weight.requires_grad)
        elif what == "closure":
            self._closure()
        elif what == "attribute":
            self.box.scale += 0.25
        elif what == "list":
            self.box.parts[0] += 0.5
        elif what == "global":
            globals()["FACTOR"] = 2.0 + n
        elif what == "layer":
            model[1] = torch.nn.Tanh() if n % 2 else torch.nn.ReLU()
        elif what == "weight.data":
            model[0].weight.data = model[0].weight.data * 0 + 0.1 * (n + 1)
        elif what == "weight replaced":
            model[2].weight = torch.nn.Parameter(torch.full((4, 4), 0.1 * (n + 1), device="cuda"))
        elif what == "lr":
            optimizer.param_groups[0]["lr"] *= 0.5
        elif what == "group":
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, device="cuda"))], "lr": 0.1})
        elif what == "mode":
            model.train(not model.training)
        elif what == "forward hook":
            model[0].register_forward_hook(lambda module, given, result: result + 0.5)
        elif what == "gradient hook":
            model[2].weight.register_hook(lambda grad: grad * 0.5)
        elif what == "optimizer hook":
            optimizer.register_step_pre_hook(lambda opt, args, kwargs: [g.mul_(0.5) for g in self.grads()] and None)
        elif what == "zero":
            self.zero = not self.zero
        elif what == "gradients gone":
            optimizer.zero_grad()
        elif what == "gradients set":
            for p in model.parameters():
                p.grad = torch.ones_like(p)
        elif what == "forward":
            model[1].forward = lambda x: x * 0.25 * (n + 1)

    def grads(self):
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def state(self):
        return [p.detach().clone() for p in self.model.parameters()]


STEP_CHANGES = [
    "load_state_dict", "cleared state", "frozen", "closure", "attribute", "list", "global", "layer", "weight.data",
    "weight replaced", "lr", "group", "mode", "forward hook", "gradient hook", "optimizer hook", "zero",
    "gradients gone", "gradients set", "forward",
]  # fmt: skip


def train(wrap, changes, n_calls=11):
    """Losses and weights, with changes before some of the calls."""
    globals()["FACTOR"] = 2.0
    made = Training(wrap)
    found = []
    for turn in range(n_calls):
        if turn == 2:
            made.kept = copy.deepcopy(made.optimizer.state_dict())
        for what in changes.get(turn, ()):
            made.change(what, turn)
        found.append((made.step(torch.ones(2, 4, device="cuda")).item(), *made.state()))
    return found, made.step


def assert_same_training(changes, n_calls=11):
    want, _ = train(lambda f: f, changes, n_calls)
    got, step = train(TrainingStep, changes, n_calls)
    for turn, (ours, theirs) in enumerate(zip(got, want)):
        assert all(torch.allclose(torch.as_tensor(a), torch.as_tensor(b), atol=1e-5) for a, b in zip(ours, theirs)), (
            turn, changes, step.why_eager)  # fmt: skip
    return step


@pytest.mark.parametrize("changes", in_turn(STEP_CHANGES), ids=", ".join)
def test_a_training_step_sees_what_changes(simulated_once, changes):
    """One thing after the other: losses and weights are eager's, and each time the step is a graph again."""
    step = assert_same_training({6 + 3 * n: [what] for n, what in enumerate(changes)}, 9 + 3 * len(changes))
    assert "from now on" not in step.explain()
    assert step.n_captures >= len(changes)  # gradients that are gone are made again, and need no other graph


@pytest.mark.parametrize("effect", ["count", "append", "print", "random", "iterator", "item"])
def test_a_step_that_does_more_in_python_stays_eager_and_says_so(simulated_once, effect, capsys):
    """What a replay would leave out: it happens at each call, and the reason is there."""
    runs = []
    for wrap in (lambda f: f, TrainingStep):
        torch.manual_seed(0)
        random.seed(0)
        model, box, seen = torch.nn.Linear(4, 4).cuda(), Box(), []
        optimizer = torch.optim.Adam(model.parameters(), 0.1, capturable=True)
        numbers = iter(range(100))

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if effect == "count":
                box.scale += 1
                loss = loss * box.scale
            elif effect == "append":
                seen.append(1)
            elif effect == "print":
                print("here")
            elif effect == "random":
                loss = loss * random.random()
            elif effect == "iterator":
                loss = loss * next(numbers)
            elif effect == "item":
                seen.append(loss.item())
            loss.backward()
            optimizer.step()
            return loss

        call = wrap(step)
        losses = [call(torch.ones(2, 4, device="cuda")).item() for _ in range(9)]
        runs.append((losses, box.scale, len(seen), capsys.readouterr().out))
    assert runs[0] == runs[1]
    assert call.why_eager and gfxgraph.stats()["fallback_count"] >= 1


@pytest.mark.parametrize("how", ["scaler", "checkpoint", "hook inside", "method"])
def test_scalers_checkpoints_hooks_and_methods_in_a_step(simulated_once, how):
    """A scaler that is set back, recomputed activations, a hook made at each step, a step that is a method."""
    from torch.utils.checkpoint import checkpoint

    class Trainer:
        def __init__(self):
            torch.manual_seed(0)
            self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).cuda()
            self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05, capturable=True)
            self.scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
            self.weight, self.seen = 1.0, 0

        def step(self, x):
            self.optimizer.zero_grad()
            if how == "checkpoint":
                y = checkpoint(self.model, x, use_reentrant=False, preserve_rng_state=False)
            else:
                y = self.model(x)
            loss = y.square().mean() * self.weight
            if how == "hook inside":
                self.model[0].weight.register_hook(lambda grad: grad * 0.9)
            if how == "scaler":
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss.backward()
                self.optimizer.step()
            return loss

    runs = []
    for wrap in (lambda f: f, TrainingStep):
        trainer = Trainer()
        step, losses = wrap(trainer.step), []
        for turn in range(10):
            trainer.seen += 1  # nothing that the step reads
            if turn == 6:
                trainer.weight = 2.0
                if how == "scaler":
                    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 8.0})
            losses.append(step(torch.ones(2, 4, device="cuda")).item())
        runs.append(losses)
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)
    if how == "hook inside":
        assert "hooks" in step.why_eager
    else:
        assert (step.why_eager, step.n_captures) == ("", 2)


# -- at random ------------------------------------------------------------------------------------------------


def random_calls(seed):
    """One random program of each kind: calls with changes between them beside eager."""
    rng = random.Random(seed)
    globals()["FACTOR"] = 2.0
    if rng.random() < 0.5:
        changes = {}
        for turn in range(3, 14):
            if rng.random() < 0.35:
                changes[turn] = rng.sample(STEP_CHANGES, rng.randint(1, 2))
        assert_same_training(changes, 14)
        return
    ours, theirs = Scene(), Scene()
    mine, want = ways(ours), eagerly(theirs)
    with torch.no_grad():
        for turn in range(14):
            if rng.random() < 0.3:
                for what in rng.sample(CHANGES, rng.randint(1, 2)):
                    ours.change(what, turn)
                    theirs.change(what, turn)
            name = rng.choice(list(mine))
            x = torch.randn(rng.choice([2, 3]), 4, device="cuda")
            assert torch.allclose(mine[name](x), want[name](x), atol=1e-4, rtol=1e-4), (seed, turn, name)


@pytest.mark.parametrize("seed", range(int(10 * DEPTH)))
def test_random_changes_between_calls(simulated_once, seed):
    """Whatever changes between calls, in whatever order: eager's answers."""
    random_calls(seed)


@pytest.fixture(scope="module")
def simulated_once():
    """One platform for all random programs."""
    from tests.conformance.conftest import HAS_GPU

    gfxgraph.enable(**({"allow_cuda": True} if HAS_GPU else {"simulate": "hip"}), validate=False)
    yield
    gfxgraph.disable()
