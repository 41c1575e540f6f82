"""Numbers and containers that are others at each call: counters, schedules, logs, NumPy's numbers, random ones."""

from __future__ import annotations

import collections
import itertools
import random
import re

import numpy as np
import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph import torch_names

pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.any_platform]


@pytest.fixture(autouse=True, scope="module")
def handlers_of_the_simulators_functions():
    """Dynamo keeps a table of functions; a test without the simulator, which has its own, may have made it."""
    torch._dynamo.variables.TorchInGraphFunctionVariable._get_handlers.cache_clear()


COUNT = 0
HISTORY: list[int] = []


def ones(i: int = 0, n: int = 4) -> torch.Tensor:
    return torch.ones(n, device="cuda") + i


class Counter:
    """A number that only Python reads."""

    def __init__(self) -> None:
        self.n = 0

    def step(self, x):
        self.n += 1
        return x.exp() * 2

    def seen(self):
        return self.n


class Schedule(Counter):
    """A float that one operation of several takes."""

    def __init__(self) -> None:
        self.sigma = 1.0

    def step(self, x):
        self.sigma *= 0.9
        return ((x * 2).relu() * self.sigma).exp() + x

    def seen(self):
        return self.sigma


class Ring(Counter):
    """An index that comes round."""

    def __init__(self) -> None:
        self.rows, self.at = torch.zeros(3, 4, device="cuda"), 0

    def step(self, x):
        self.rows[self.at].copy_(x)
        self.at = (self.at + 1) % 3
        return self.rows.sum(0)

    def seen(self):
        return self.at, self.rows.tolist()


class Written(Counter):
    """A number that is added in place, to what later operations read and to a view of it."""

    def step(self, x):
        self.n += 1
        y = x * 2
        half = y[:2]
        half.add_(self.n)
        z = y.sin()
        y.mul_(self.n)
        return z + y, half


class Switched(Counter):
    """A number that is taken where autocast is on: the graph is not cut."""

    def step(self, x):
        self.n += 1
        with torch.autocast("cuda", torch.bfloat16):
            return (torch.outer(x, x) @ torch.outer(x, x)) * self.n


class Logged(Counter):
    """A list that grows."""

    def __init__(self) -> None:
        self.log: list[object] = []

    def step(self, x):
        y = x * 2
        self.log.append(y.sum())
        self.log.append("step")
        return y.exp()

    def seen(self):
        return [each if isinstance(each, str) else each.item() for each in self.log]


class Frames(Counter):
    """A deque with a bound."""

    def __init__(self) -> None:
        self.frames: collections.deque[torch.Tensor] = collections.deque(maxlen=3)

    def step(self, x):
        self.frames.append(x * 0.5)
        while len(self.frames) < self.frames.maxlen:
            self.frames.appendleft(torch.zeros_like(x))
        return torch.stack(list(self.frames)).sum(0)

    def seen(self):
        return len(self.frames)


class Ticking(Counter):
    """A count that goes on by itself."""

    def __init__(self) -> None:
        self.count, self.last = itertools.count(), 0

    def step(self, x):
        self.last = next(self.count)
        return x.exp() + 1

    def seen(self):
        return self.last


class Recent(Counter):
    """An order that changes."""

    def __init__(self) -> None:
        self.kept = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def step(self, x):
        first = next(iter(self.kept))
        self.kept.move_to_end(first)
        return x * self.kept[first]

    def seen(self):
        return list(self.kept)


@pytest.mark.parametrize(
    ("make", "most_captures"),
    [(Counter, 1), (Schedule, 9), (Ring, 6), (Logged, 3), (Frames, 3), (Ticking, 3)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_it_runs_by_graphs_all_the_same(make, most_captures):
    """What changes at each call is done in Python; the operations are captured once."""
    graphed, eager = make(), make()
    step = gfxgraph.graphed(graphed.step)
    with torch.no_grad():
        for i in range(20):
            assert torch.equal(step(ones(i % 5)), eager.step(ones(i % 5)))
            assert graphed.seen() == eager.seen()
    stats = step.stats()
    assert stats["replays"] >= 8 and stats["captures"] <= most_captures, stats
    ways = [
        re.match(r" +(\d+)  (by a graph|in pieces|eager)", line)
        for line in step.explain().rpartition("calls  way")[2].splitlines()
    ]
    assert sum(int(way[1]) for way in ways if way) == 20, step.explain()


@pytest.mark.parametrize("make", [Written, Switched, Recent])
def test_it_is_eagers(make):
    """Where the graph is cut, what is written is read; where it is not, and what is left behind, too."""
    graphed, eager = make(), make()
    step = gfxgraph.graphed(graphed.step)
    for i in range(14):
        torch.testing.assert_close(step(ones(i)), eager.step(ones(i)), rtol=0, atol=0)
        assert graphed.seen() == eager.seen()


def test_gradients_go_through_a_cut():
    """A loss weight that changes at each call."""

    class Loss(Counter):
        def step(self, x):
            self.n += 1
            return ((x.sin() * 2) * self.n).cos().sum()

    graphed, eager = Loss(), Loss()
    step = gfxgraph.graphed(graphed.step)
    for i in range(14):
        x, y = ones(i).requires_grad_(), ones(i).requires_grad_()
        step(x).backward()
        eager.step(y).backward()
        assert torch.allclose(x.grad, y.grad)
    assert step.stats()["replays"] >= 4


def test_a_number_that_an_operation_takes_is_named():
    """The advice says which to make a tensor, where no form of the operation takes one."""

    class Powers(Schedule):
        def step(self, x):
            self.sigma *= 0.9
            return (x.exp() * 2 + 1) ** self.sigma

    graphed = Powers()
    step = gfxgraph.graphed(graphed.step)
    with torch.no_grad():
        for i in range(12):
            step(ones(i))
    assert "self.sigma is another number at each call" in step.explain()
    assert step.stats()["eager"]["self.sigma changes too often; make it a tensor on the device"] >= 1


def test_an_argument_that_is_another_number_each_time():
    """From some number of values on no graph is made for each."""
    step = gfxgraph.graphed(lambda x, at: (x.exp() * 2).relu() + at)
    for i in range(30):
        assert torch.equal(step(ones(), i), (ones().exp() * 2).relu() + i)
    stats = step.stats()
    assert stats["captures"] <= 3 and stats["replays"] >= 10, stats
    assert "argument at was 30 different numbers" in step.explain()


def test_arguments_that_come_again_have_graphs():
    """The steps of a loop that is run again and again: in the end each has its graph."""
    step = gfxgraph.graphed(lambda x, at: (x.exp() * 2).relu() + at)
    for _ in range(5):
        for at in range(20):
            step(ones(), at)
    before = step.stats()["replays"]
    for at in range(20):
        assert torch.equal(step(ones(), at), (ones().exp() * 2).relu() + at)
    assert step.stats()["replays"] == before + 20 and not step.stats()["pieces"]


def count(x):
    global COUNT
    COUNT += 1
    HISTORY.append(COUNT)
    return x.exp() if COUNT % 2 else x - 1


def test_a_global_that_counts():
    """Dynamo takes the numbers of globals for constants."""
    HISTORY.clear()
    step = gfxgraph.graphed(count)
    first = COUNT
    for i in range(20):
        assert torch.equal(step(ones(i)), ones(i).exp() if (first + i + 1) % 2 else ones(i) - 1)
    assert COUNT == first + 20 and HISTORY == list(range(first + 1, first + 21))
    assert step.stats()["replays"] >= 4


def test_a_deque_is_known_by_its_bound_where_others_have_compiled():
    """Dynamo's table of its functions is made once in a process."""
    torch._dynamo.variables.builder.VariableBuilder._type_dispatch()
    frames = Frames()
    step = gfxgraph.graphed(frames.step)
    for i in range(6):
        step(ones(i))
    assert len(frames.frames) == 3 and step.stats()["replays"]


def test_full_has_the_dtype_of_the_number():
    """Filled with a random int, or with what an int tensor holds."""

    def fill(x):
        return torch.full((2,), random.randrange(3), device="cuda"), torch.full((2,), x.long().sum(), device="cuda")

    step = gfxgraph.graphed(fill)
    for i in range(4):
        assert [each.dtype for each in step(ones(i))] == [torch.int64, torch.int64]


NUMBERS = [np.float64(0.5), np.float32(2), np.int64(3)]


def test_numpys_numbers_are_numbers():
    """They promote no dtype: an int tensor times a numpy.float64 has the default dtype."""
    config = {"by": NUMBERS[0]}
    step = gfxgraph.graphed(lambda x, i: (x.half() * config["by"], i * config["by"]))
    x, i = ones(), torch.arange(4, device="cuda")
    for number in NUMBERS:
        config["by"] = number
        for _ in range(3):
            for ours, eagers in zip(step(x, i), (x.half() * number, i * number)):
                assert ours.dtype is eagers.dtype and torch.equal(ours, eagers)


def test_numpys_numbers_are_in_graphs():
    """What is made of one anew at each call is the same input."""
    config = {"by": np.float32(0.5)}
    step = gfxgraph.graphed(lambda x: x * config["by"])
    for i in range(10):
        config["by"] = np.float32(0.5 if i < 5 else 3)
        assert torch.equal(step(ones(i)), ones(i) * config["by"])
    assert step.stats()["replays"] >= 6


def test_random_numbers_promote_no_dtype():
    """Dynamo takes them for tensors."""
    step = gfxgraph.graphed(lambda i: i * random.uniform(1, 2))
    i = torch.arange(3, device="cuda")
    for seed in range(3):
        random.seed(seed)
        expected = i * random.uniform(1, 2)
        random.seed(seed)
        found = step(i)
        assert found.dtype is torch.float32 and torch.equal(found, expected)


def test_methods_of_classes_and_of_objects_with_slots():
    """They have no dict in which their captures could be kept."""

    class Scaled:
        __slots__ = ("by",)
        of_all = 2.0

        @gfxgraph.graphed
        def scale(self, x):
            return x * self.by

        @classmethod
        @gfxgraph.graphed
        def scale_all(cls, x):
            return x * cls.of_all

    class Other(Scaled):
        of_all = 5.0

    first, second = Scaled(), Scaled()
    first.by, second.by = 3.0, 4.0
    for i in range(4):
        assert torch.equal(first.scale(ones(i)), ones(i) * 3) and torch.equal(second.scale(ones(i)), ones(i) * 4)
        made = [kind.scale_all(ones(i)) for kind in (Scaled, Other)]
        assert [each.tolist() for each in made] == [(ones(i) * by).tolist() for by in (2.0, 5.0)]
    assert first.scale.stats()["replays"] == second.scale.stats()["replays"] == 3


def test_a_module_that_counts_beside_a_growing_list():
    """A trainer's step: a counter, a log every few steps, buckets of neither."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.log = 0, []

        def forward(self, x):
            self.n += 1
            loss = (x * 2).square().mean()
            if self.n % 5 == 0:
                self.log.append((self.n, loss.item()))
            return loss

    graphed, eager = Step(), Step()
    step = gfxgraph.graphed(graphed)
    for i in range(22):
        assert torch.equal(step(ones(i)), eager(ones(i)))
    assert graphed.log == eager.log and graphed.n == eager.n == 22
    assert step.stats()["replays"] >= 8


class Thing:
    def __init__(self, **held: object) -> None:
        vars(self).update(held)


FORMS = {
    "added": lambda x, n: (x + n, n - x, x - n),
    "times": lambda x, n: (x * n, n * x, torch.mul(x, n)),
    "divided": lambda x, n: (x / n, torch.div(x, n), (x.double() / n).float()),
    "a divisor": lambda x, n: (n / (x + 2), x.int() / n),
    "compared": lambda x, n: (x < n, n >= x, x.eq(n)),
    "a half": lambda x, n: (x.half() * n, x.bfloat16() + n, x.half() / n),
    "an int": lambda x, n: (x.int() * n, x.long() + n, x.int() > n),
    "in place": lambda x, n: ((x * 1).mul_(n), (x * 1).add_(n), x.clone().fill_(n)),
    "bounds": lambda x, n: (x.clamp(max=n), torch.where(x > 0, x, n), x.masked_fill(x > 0, n), x.lerp(x + 1, n)),
    "made of it": lambda x, n: (
        torch.full((3, 1), n, device=x.device),
        x.new_full((2,), n),
        torch.full_like(x, n),
        torch.tensor([n], device=x.device),
        torch.tensor(n, device=x.device),
    ),
    "drawn": lambda x, n: (x.clone().uniform_(0, n + 1) * 0, torch.add(x, x, alpha=n)),
}


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("name", FORMS)
def test_a_changing_number_on_the_device_gives_eagers_bits(name, kind):
    """Each form of an operation that takes the number as a tensor computes what the operation computes of it."""
    form, state = FORMS[name], Thing(n=kind(0))

    def step(x):
        state.n += kind(1) if kind is int else 0.3
        return form(x, state.n)

    g, (x, *_) = gfxgraph.graphed(step), [torch.arange(-3.0, 4.0, device="cuda") / 3]
    with torch.no_grad():
        for i in range(9):
            before = state.n
            made = g(x + i)
            state.n = before
            for a, b in zip(made, step(x + i), strict=True):
                assert a.dtype is b.dtype and torch.equal(a, b), (name, i)
    if name not in ("a half", "a divisor", "drawn"):  # these have no form
        assert g.stats()["replays"] >= 4 and not g.stats()["pieces"], g.explain()


def test_an_index_that_changes_is_one_graph():
    """A row and a window are written and read at a position that is a number, up to the end of the buffer."""
    state = Thing(at=0, rows=torch.zeros(12, 3, device="cuda"), table=torch.randn(12, device="cuda"))

    def step(x):
        state.rows[state.at] = x
        state.rows[:, state.at % 3] = 5
        state.at += 1
        return state.rows.sum(0)

    def look(x):
        state.at += 1
        return x * state.table[state.at - 1] + state.table[state.at - 1 : state.at + 1].sum()

    def window(x):
        state.rows[state.at : state.at + 2] = x
        state.at += 2
        return state.rows.sum(0)

    for fn, n in ((step, 12), (look, 10), (window, 6)):
        state.at, g = 0, gfxgraph.graphed(fn)
        eager_rows, given = (
            torch.zeros(12, 3, device="cuda"),
            [torch.full((3,), i + 1.0, device="cuda") for i in range(n)],
        )
        with torch.no_grad():
            state.rows.zero_()
            made = [g(x).clone() for x in given]
            rows, state.rows, state.at = state.rows, eager_rows, 0
            for a, x in zip(made, given):
                assert torch.equal(a, fn(x))
            assert torch.equal(rows, state.rows)
            state.rows = rows
        stats = g.stats()
        if fn is not window and fn is not look:
            with pytest.raises(IndexError), torch.no_grad():
                g(given[0])
        assert stats["replays"] >= 1, g.explain()


@pytest.mark.skipif(
    torch_names.version() < (2, 13), reason="Dynamo of this torch does not trace an assignment to a class"
)
def test_a_counter_of_the_class_is_traced_twice():
    """A number that the function counts up in a class is a symbol, as one of an object's."""

    class Counting(Thing):
        n = 0

    def step(x):
        Counting.n += 1
        return x * 2

    g = gfxgraph.graphed(step)
    for i in range(12):
        assert torch.equal(g(ones(i)), ones(i) * 2) and Counting.n == i + 1
    assert g.stats()["replays"] >= 8, g.explain()


def test_what_is_stored_is_one_replay():
    """Tensors and numbers that a call leaves in objects, dicts and buffers; also with gradients."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3, device="cuda"))
            self.weight, self.n, self.last = nn.Parameter(torch.ones(3, device="cuda")), 0, {}

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x
            self.n += 1
            self.last["x"] = x * 3
            return (x - self.mean) * self.weight

    for grad in (False, True):
        mine, eager = Mean(), Mean()
        g = gfxgraph.graphed(mine)
        with torch.set_grad_enabled(grad):
            for i in range(10):
                a, b = g(ones(i)[:3]), eager(ones(i)[:3])
                if grad:
                    a.sum().backward(), b.sum().backward()
                    assert torch.equal(mine.weight.grad, eager.weight.grad)
                assert torch.equal(a, b) and mine.n == eager.n and torch.equal(mine.mean, eager.mean)
                assert torch.equal(mine.last["x"], eager.last["x"])
        assert g.stats()["replays"] >= 6 and not g.stats()["pieces"], g.explain()


def test_tensors_as_keys_are_themselves_alone():
    """State by parameter, as optimizers keep it, is a graph from the second call on."""

    class Momentum:
        def __init__(self):
            self.params, self.state = [torch.nn.Parameter(ones(i)) for i in range(2)], {}

        @torch.no_grad()
        def step(self, *gradients):
            for p, g in zip(self.params, gradients, strict=True):
                if p not in self.state:
                    self.state[p] = torch.zeros_like(p)
                p.sub_(self.state[p].mul_(0.9).add_(g))
            return [p.clone() for p in self.params]

    graphed, eager = Momentum(), Momentum()
    step = gfxgraph.graphed(graphed.step)
    for i in range(8):
        for a, b in zip(step(ones(i), ones(1)), eager.step(ones(i), ones(1)), strict=True):
            assert torch.equal(a, b)
    assert step.stats()["replays"] >= 4, step.explain()


def test_a_call_of_which_nothing_is_a_graph_is_eager():
    class Kept:
        def __init__(self):
            self.best, self.n = torch.zeros(2, device="cuda"), 0

        def offer(self, x):
            self.n += 1
            if random.Random(self.n).randrange(9) > 9:
                self.best.copy_(x)
            return self.best.mean()

    step = gfxgraph.graphed(Kept().offer)
    for i in range(8):
        step(ones(i))
    stats = step.stats()
    assert sum(stats["eager"].values()) + sum(stats["pieces"].values()) + stats["replays"] == 8, step.explain()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_a_number_that_overflows_is_refused_as_eagerly(dtype):
    """A tensor in its place would wrap around without a word."""
    state = Thing(n=2**31 - 9)

    def step(x):
        state.n += 1
        return torch.full(
            (2,), state.n if dtype is torch.int32 else state.n - 2**31 + 257, dtype=dtype, device=x.device
        )

    g = gfxgraph.graphed(step)
    with pytest.raises(RuntimeError, match="without overflow"):
        for i in range(12):
            g(ones(i))


def test_a_zero_in_a_named_tuple_of_state_is_told_from_minus_zero():
    State = collections.namedtuple("State", "mean n")

    def step(state, x):
        return State(state.mean + x / (state.n + 1), state.n), x / state.n

    call, x = gfxgraph.graphed(step), ones()
    for n in (0.0, 1.0, 0.0, 2.0, 0.0, -0.0):
        given = State(torch.zeros(4, device="cuda"), n)
        (found, kept), quotient = call(given, x)
        assert torch.equal(found, x / (n + 1)) and kept == n and torch.equal(quotient, x / n), n
