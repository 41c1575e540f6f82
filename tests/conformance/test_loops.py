"""Loops as programs write them: eager's results, effects and numbers of steps, in every call."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import weakref

import pytest
import torch

import gfxgraph
from gfxgraph.callables import buffers
from gfxgraph.callables.control import device_loop
from gfxgraph.callables.control.loops import WhileLoop
from gfxgraph.errors import DriverError
from gfxgraph_simulator.planted_faults import Faults
from tests.conformance.conftest import HAS_GPU

pytestmark = pytest.mark.any_platform
MOST = 40


@pytest.fixture(autouse=True)
def no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def on_device(*values, dtype=None):
    return tuple(torch.tensor(value, device="cuda", dtype=dtype) for value in values)


def randn(*size):
    return torch.randn(*size, device="cuda")


# -- programs: condition, body, and the states of several calls ----------------------------------------------------


def newton():
    """Square roots."""
    starts = [(torch.ones(16, device="cuda"), torch.rand(16, device="cuda") * scale + 0.5) for scale in (9, 400, 2)]
    return lambda x, a: (x * x / a - 1).abs().max() > 1e-5, lambda x, a: ((x + a / x) / 2, a), starts


def power_iteration():
    """The largest eigenvalue, until it moves no more."""
    m = randn(12, 12)
    m = m @ m.t()

    def body(v, value, moved):
        w = m @ v
        now = w.norm()
        return w / now, now, (now - value).abs()

    starts = [(randn(12), *on_device(0.0, 1e9)) for _ in range(3)]
    return lambda v, value, moved: moved > 1e-1, body, starts


def _decoding(writes):
    """Tokens until the end of the text; keys and values of earlier ones in a cache."""
    table, head, end = randn(11, 8), randn(8, 11), 3

    def body(tokens, at, cache):
        x = table[tokens.gather(0, at.view(1))]
        cache = writes(cache, at.view(1), x)
        seen = torch.arange(24, device="cuda") <= at
        weights = (cache @ x[0]).masked_fill(~seen, -1e9).softmax(0)
        chosen = ((weights @ cache + x[0]) @ head).argmax()
        at = at + 1
        return tokens.scatter(0, at.view(1), chosen.view(1)), at, cache

    def goes_on(tokens, at, cache):
        return (tokens.gather(0, at.view(1)) != end).all() & (at < 22)

    starts = [
        (torch.full((24,), first, device="cuda"), *on_device(0), torch.zeros(24, 8, device="cuda"))
        for first in (1, 5, 9, 3)
    ]
    return goes_on, body, starts


def decoding():
    return _decoding(lambda cache, at, x: cache.index_copy(0, at, x))


def decoding_into_the_callers_cache():
    return _decoding(lambda cache, at, x: cache.index_copy_(0, at, x))


def fixed_point():
    """Several tensors that depend on each other."""
    a, b = randn(6, 6) * 0.1, randn(6)

    def body(x, y, z, moved, n):
        now = torch.tanh(a @ y + b)
        return now, (x + z) / 3, x * 0.5 + y * 0.1, (now - x).abs().max(), n + 1

    starts = [(randn(6), randn(6), randn(6), *on_device(1.0, 0)) for _ in range(3)]
    return lambda x, y, z, moved, n: moved > 1e-4, body, starts


def passed_through():
    """Three of four come back as they are."""
    starts = [(randn(5), *on_device(0, n, 1.5)) for n in (4, 7, 1, 0)]
    return lambda x, n, most, w: n < most, lambda x, n, most, w: (x * w, n + 1, most, w), starts


def swapped():
    """(a, b) becomes (b, a), with a counter."""
    starts = [(randn(4), randn(4), *on_device(n)) for n in (5, 6, 1, 0)]
    return lambda a, b, n: n > 0, lambda a, b, n: (b, a, n - 1), starts


def swapped_and_written():
    """The tensors change places, and one is written in place: the caller's, as in eager execution."""
    starts = [(randn(4), randn(4), *on_device(n)) for n in (5, 6, 1, 0)]
    return lambda a, b, n: n > 0, lambda a, b, n: (b, a.mul_(2).add_(1), n - 1), starts


def one_element_twice():
    """The same tensor in two places of the next state."""

    def body(a, b, n):
        c = a + b * 0.5
        return c, c, n - 1

    x = randn(3)
    return (
        lambda a, b, n: n > 0,
        body,
        [(randn(3), randn(3), *on_device(n)) for n in (5, 4)] + [(x, x, *on_device(3))],
    )


def views():
    """Parts of one tensor, a view of an argument, and a state that is transposed in each step."""

    def body(a, b, m, n):
        both = torch.cat([b, a]) * 1.01
        return both[:3], both[3:], m.t(), n - 1

    starts = [(randn(3), randn(3), randn(4, 4), *on_device(n)) for n in (5, 6, 2)]
    return lambda a, b, m, n: n > 0, body, starts


def views_of_the_state():
    """Each next state lies inside the last."""
    starts = [(randn(8)[::2], randn(6, 6)[1:4, 2:5], *on_device(n)) for n in (5, 2, 1)]
    return lambda a, m, n: n > 0, lambda a, m, n: (a.flip(0) + 1, m.t() * 2, n - 1), starts


def fibonacci():
    """Integers."""
    starts = [on_device(0, 1, n) for n in (9, 10, 1, 0, 30)]
    return lambda a, b, n: n > 0, lambda a, b, n: (b, a + b, n - 1), starts


def only_written():
    """A state that is one tensor, written in place."""
    starts = [(torch.zeros(3, device="cuda") + k,) for k in (0, 3, 4.5, 9)]
    return lambda x: x.sum() < 20, lambda x: x.add_(1), starts


def from_outside():
    """A state that becomes a tensor of the program's."""
    table = randn(4)
    starts = [(randn(4), *on_device(n)) for n in (3, 1, 0, 4)]
    return lambda x, n: n > 0, lambda x, n: (table, n - 1), starts


def flag_in_the_state():
    """The condition is an element of the state."""
    starts = [(*on_device(limit), *on_device(True)) for limit in (3.0, 9.0, 0.5)]
    return lambda x, goes: goes, lambda x, goes: (x - 1, x > 2), starts


def random_walk():
    """Numbers drawn in each step."""
    starts = [(torch.zeros(4, device="cuda"), *on_device(n)) for n in (6, 5, 1)]
    return lambda x, n: n > 0, lambda x, n: (x + torch.rand_like(x), n - 1), starts


def endless():
    """Ends at its bound."""
    return lambda x: x.sum() < 1e9, lambda x: x + 1, [(randn(4),) for _ in range(3)]


PROGRAMS = (
    newton, power_iteration, decoding, decoding_into_the_callers_cache, fixed_point, passed_through, swapped,
    swapped_and_written, one_element_twice, views, views_of_the_state, fibonacci, only_written, from_outside,
    flag_in_the_state, random_walk, endless,
)  # fmt: skip


STEP_BY_STEP = views, views_of_the_state, from_outside, random_walk
"""Those whose steps draw, and those whose state has another layout in each step, or is a tensor of the program's."""


def eagerly(condition, body, state, most=MOST):
    n = 0
    while bool(condition(*state)) and n < most:
        made = body(*state)
        state, n = made if isinstance(made, tuple) else (made,), n + 1
    return [t.clone() for t in state], n, bool(condition(*state))


class Whole:
    """What a driver with conditional nodes does, over the simulator's."""

    n = 0

    def __init__(self, driver, steps, left, stream):
        self._driver, self._left = driver, ctypes.c_uint.from_address(left)
        self._steps = [(driver.instantiate(graph), ctypes.c_ubyte.from_address(flag)) for graph, flag in steps]
        self.on(stream)

    def on(self, stream):
        self._stream = stream

    def launch(self):
        Whole.n += 1
        for graph_exec, flag in itertools.cycle(self._steps):
            self._driver.launch(graph_exec, self._stream)
            left = (self._left.value >> 1) - 1
            self._left.value = left << 1 | flag.value
            if not (left and flag.value):
                return 0


@pytest.fixture(params=["gpu"] if HAS_GPU else ["hip", "one launch"])
def way(request, monkeypatch):
    """How the steps are launched: one by one, or as by a driver with conditional nodes; a GPU has one way."""
    if request.param == "gpu":
        gfxgraph.enable(allow_cuda=True, validate=False)
    else:
        gfxgraph.enable(simulate="hip" if request.param == "hip" else "cuda", validate=False)
    if request.param == "one launch":
        from gfxgraph_simulator.driver import SimDriver

        monkeypatch.setattr(SimDriver, "has_while_loop", True)
        monkeypatch.setattr(SimDriver, "while_loop", lambda driver, *about: Whole(driver, *about))
        device_loop._runs_right.cache_clear()
    Whole.n = 0
    yield request.param
    gfxgraph.disable()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_loop_gives_what_eager_gives(way, program):
    """Results, steps, what is written to the caller's tensors, and results kept from earlier calls."""
    condition, body, starts = program()
    loop = WhileLoop(condition, body, max_steps=MOST)
    kept = []
    for turn in range(3):
        for state in starts:
            # Tensors that are one here are one there.
            mine, theirs = ({id(t): _like(t) for t in state} for _ in range(2))
            torch.cuda.manual_seed(turn)
            want, n, goes_on = eagerly(condition, body, [theirs[id(t)] for t in state])
            torch.cuda.manual_seed(turn)
            got = loop(*[mine[id(t)] for t in state])
            assert loop.n_steps == n and loop.hit_bound == goes_on
            kept.append((got, want))
            assert all(torch.equal(mine[key], theirs[key]) for key in mine), "the caller's tensors"
            for got, want in kept:
                assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(got, want, strict=True))
    homes = [t.untyped_storage().data_ptr() for got, _ in kept for t in got]
    assert len(set(homes)) == len(homes), "each result has memory of its own"
    assert loop.stats()["replays"] and not loop.why_eager and "itself" not in str(loop.stats())
    if way == "one launch":
        assert (Whole.n > 1) == (program not in STEP_BY_STEP)


def _like(t):
    """A copy with the same strides."""
    n = 1 + sum((size - 1) * stride for size, stride in zip(t.size(), t.stride()))
    made = torch.empty(n, dtype=t.dtype, device=t.device).as_strided(t.size(), t.stride())
    return made.copy_(t)


OPERATIONS = {
    "mix": lambda s, i, j: s.__setitem__(i, s[i] * 0.5 + s[j] * 0.25),
    "product": lambda s, i, j: s.__setitem__(i, (s[i] @ s[j] * 0.1).tanh()),
    "swap": lambda s, i, j: s.__setitem__(slice(None), [*s[1:], s[0]]),
    "in place": lambda s, i, j: s[i].mul_(0.75).add_(0.5),
    "a part": lambda s, i, j: s.__setitem__(i, torch.cat([s[i], s[j]])[1:7] * 0.5),
    "a copy": lambda s, i, j: s.__setitem__(i, s[j].clone()),
    "elsewhere": lambda s, i, j: s[i].numel() and LOG[0].add_(1),
}
LOG: list[torch.Tensor] = []


@pytest.mark.parametrize("seed", range(12))
def test_random_loops_give_what_eager_gives(way, seed):
    """Steps of random operations: results, effects, and what is written to the caller's tensors."""
    draw = random.Random(seed)
    n = draw.randrange(1, 4)
    plan = [
        (draw.choice(list(OPERATIONS)), draw.randrange(n), draw.randrange(n)) for _ in range(draw.randrange(1, 5))
    ]
    LOG[:] = on_device(0.0)

    def body(*state):
        *made, left = state
        for name, i, j in plan:
            OPERATIONS[name](made, i, j)
        return *made, left - 1

    def condition(*state):
        return state[-1] > 0

    loop = WhileLoop(condition, body, max_steps=9)
    for steps in (4, 5, 1, 0, 8, 12):
        theirs = [*(randn(6, 6) for _ in range(n)), *on_device(steps)]
        mine = [t.clone() for t in theirs]
        found = []
        for call in (lambda: eagerly(condition, body, theirs, 9)[:2], lambda: (loop(*mine), loop.n_steps)):
            LOG[0].zero_()
            found.append((*call(), LOG[0].item()))
        (want, *other), (got, *same) = found
        assert other == same, plan
        for a, b in zip([*want, *theirs], [*got, *mine], strict=True):
            assert torch.allclose(a, b, atol=1e-5), plan


# -- what a step costs, and what happens if one fails --------------------------------------------------------------


def halving(limit=1e-3):
    """Four operations, the condition included, and a state of one large tensor and a counter."""
    return WhileLoop(lambda x, n: x.max() > limit, lambda x, n: (x * 0.5, n + 1), max_steps=MOST)


@pytest.fixture
def simulated(platform):
    if HAS_GPU:
        pytest.skip("counts and planted failures are the simulator's")
    import gfxgraph_simulator as simulator

    return simulator.active()


def test_a_step_is_one_launch_and_copies_nothing(simulated, monkeypatch):
    """However many steps: the state is copied when the loop begins and when it ends."""
    copied, copy_all = [], buffers.copy_all

    def counting(targets, sources, **how):
        copied.extend(source.nbytes for source in sources)
        return copy_all(targets, sources, **how)

    monkeypatch.setattr(buffers, "copy_all", counting)
    loop, x = halving(), torch.ones(1 << 12, device="cuda")
    found = []
    for size in (1.0, 1.0, 1e-1, 1e-2, 1.0):
        copied.clear()
        simulated.faults = Faults()
        y, n = loop(x * size, torch.zeros((), device="cuda"))
        assert torch.equal(y, x * size * 0.5**loop.n_steps) and n == loop.n_steps
        found.append((loop.n_steps, simulated.faults.calls["launch"], sum(copied)))
    state = x.nbytes + 4
    # One launch tests the state that the loop begins with; its copy and the flag's are that test's.
    assert [(steps, launches - steps) for steps, launches, _ in found[2:]] == [(7, 1), (4, 1), (10, 1)]
    assert found[3][2] == found[4][2] == 2 * state + 1, (found, state)


@pytest.mark.parametrize("refuses", ["to build it", "to launch it", "to run it right"])
def test_a_loop_that_the_runtime_refuses_is_launched_step_by_step(way, monkeypatch, refuses):
    """The steps left are made one by one, and the reason is reported once."""
    if way != "one launch":
        pytest.skip("there it is launched so anyway")

    def refused(driver, steps, left, stream):
        raise DriverError("driver_call_failed", api="cuGraphAddNode", status="-", number=801, detail="")

    if refuses == "to build it":
        from gfxgraph_simulator.driver import SimDriver

        monkeypatch.setattr(SimDriver, "while_loop", refused)
    else:
        monkeypatch.setattr(Whole, "launch", lambda self: int(refuses == "to launch it"))
        monkeypatch.setattr(device_loop, "_runs_right", lambda *about: refuses == "to launch it")
    loop, x = halving(), torch.ones(64, device="cuda")
    for _ in range(3):
        y, n = loop(x, torch.zeros((), device="cuda"))
        assert torch.equal(y, x * 0.5**10) and n == loop.n_steps == 10
    step = next(iter(loop._step._entries.values()))
    assert step._ring.why_not and loop.stats()["replays"] == 3 * 10 - 1 + 2 and "itself" not in str(loop.stats())


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_a_step_that_cannot_be_launched_is_made_eagerly(simulated, at):
    """Whichever it is: the others are launched, no step is lost, none is made twice."""
    log = torch.zeros((), device="cuda")

    def body(x, n):
        log.add_(1)
        return x * 0.5, n + 1

    loop, x = WhileLoop(lambda x, n: n < 9, body, max_steps=MOST), torch.ones(8, device="cuda")
    for turn in range(4):
        log.zero_()
        simulated.faults = Faults()
        if turn == 2:
            simulated.faults.fail_nth("launch", at, 1)
        y, n = loop(x, torch.zeros((), device="cuda"))
        assert torch.equal(y, x / 512) and n == log == loop.n_steps == 9
    assert loop.stats()["replays"] > 20


def test_two_threads_run_one_loop(platform):
    """Each gets its own result."""
    loop, wrong = halving(), []

    def run(size):
        with torch.no_grad():
            for _ in range(6):
                y, n = loop(torch.full((64,), size, device="cuda"), torch.zeros((), device="cuda"))
                if not torch.equal(y, torch.full((64,), size, device="cuda") * 0.5 ** n.item()) or y.max() > 1e-3:
                    wrong.append((size, y.max(), n))

    threads = [threading.Thread(target=run, args=(size,)) for size in (1.0, 0.25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_another_graph_between_the_calls_of_a_loop(platform):
    """Graphs of other functions, captured before and after the loop's, overwrite nothing of its results."""
    others = [gfxgraph.graphed(lambda x, k=k: (x * k).cos() @ x + k) for k in range(3)]
    loop, x = halving(), randn(16, 16).abs()
    kept = []
    for turn in range(6):
        for other in others[: turn + 1]:
            other(x)
        y, n = loop(x * (turn + 1), torch.zeros((), device="cuda"))
        kept.append((y, x * (turn + 1) * 0.5 ** n.item()))
        assert all(torch.equal(got, want) for got, want in kept)


# -- what is no loop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returns, named",
    [(lambda x: x > 0, "bool[2] on cuda:0"), (lambda x: None, "NoneType"), (lambda x: "yes", "str")],
    ids=["two elements", "nothing", "text"],
)
def test_a_condition_that_is_none_is_refused(platform, returns, named):
    """With what it returned, in every call."""
    loop = WhileLoop(returns, lambda x: x - 1, max_steps=5)
    for _ in range(3):
        with pytest.raises(TypeError, match="tensor of one element") as caught:
            loop(torch.ones(2, device="cuda"))
        assert named in str(caught.value)


@pytest.mark.parametrize(
    "body, named",
    [
        (lambda a, b: None, "NoneType"),
        (lambda a, b: a, "float32[2] on cuda:0 "),
        (lambda a, b: (a, b, b), "float32[] on cuda:0, float32[] on cuda:0"),
        (lambda a, b: (a, 3), "int"),
        (lambda a, b: (a.double(), b), "float64[2]"),
        (lambda a, b: (a, b.cpu()), "on cpu"),
    ],
    ids=["nothing", "fewer", "more", "a number", "another type", "elsewhere"],
)
def test_a_step_that_gives_no_such_state_is_refused(platform, body, named):
    """With both, before the condition meets it."""
    loop = WhileLoop(lambda a, b: (a.sum() + b) > 0, body, max_steps=5)
    for _ in range(3):
        with pytest.raises(gfxgraph.CaptureError) as caught:
            loop(torch.ones(2, device="cuda"), torch.ones((), device="cuda"))
        assert caught.value.code == "loop_state" and named in str(caught.value).replace("\n", " ")


def test_a_body_that_raises_leaves_the_loop_as_it_was(platform):
    """Its own error comes out, and later calls run."""
    fails = [False]

    def body(x):
        if fails[0]:
            raise ValueError("no more")
        return x - 1

    loop, x = WhileLoop(lambda x: x.sum() > 0, body, max_steps=MOST), torch.full((2,), 3.0, device="cuda")
    for turn in range(6):
        fails[0] = turn in (0, 3)
        if fails[0]:
            with pytest.raises(ValueError, match="no more"):
                loop(x)
        else:
            assert loop(x)[0].tolist() == [0, 0] and loop.n_steps == 3
    assert loop.stats()["replays"] and x.tolist() == [3, 3]


@pytest.mark.parametrize(
    "condition",
    [lambda x, n: True, lambda x, n: n.view(1) > 0, lambda x, n: n, lambda x, n: n.cpu() > 0],
    ids=["a constant", "one dim", "a number", "on the host"],
)
def test_conditions_of_other_kinds(platform, condition):
    """A constant, one element of any shape and type, and one that was moved to the host."""
    loop = WhileLoop(condition, lambda x, n: (x * 2, n - 1), max_steps=6)
    for n in (4, 3, 4, 0, 1, 9):
        x, left = loop(torch.ones(3, device="cuda"), torch.tensor(n, device="cuda"))
        steps = 6 if condition(x, torch.zeros(1, device="cuda", dtype=int)) is True else min(n, 6)
        assert loop.n_steps == steps and left == n - steps and torch.equal(x, torch.full_like(x, 2.0**steps))


def test_an_evicted_loop_frees_its_graphs(way):
    """All of them; the next call captures again."""
    loop, x = halving(), torch.ones(1 << 16, device="cuda")
    for _ in range(3):
        for _ in range(3):
            y, n = loop(x, torch.zeros((), device="cuda"))
            assert torch.equal(y, x * 0.5**10) and n == 10
        graphs = [weakref.ref(graph) for graph in loop._step.graphs]
        assert len(graphs) > 1
        loop._step.reset()
        assert not any(graph() for graph in graphs)
