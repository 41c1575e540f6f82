"""Branches and loops of graphs: eager's results on every platform, without stalling the stream."""

from __future__ import annotations

import threading

import pytest
import torch

import gfxgraph
from gfxgraph.callables.control.conditional import Conditional
from gfxgraph.callables.control.loops import WhileLoop
from tests.conformance.conftest import HAS_GPU

pytestmark = pytest.mark.any_platform

BRANCHES = {
    "grow": lambda x, k: (x @ x.t()).relu() @ x + k,
    "shrink": lambda x, k: x / 2 - k,
    "sort": lambda x, k: x.sort(1).values,
}


def randn(*size):
    return torch.randn(*size, device="cuda")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def simulated(platform):
    """The simulator, for failures that only it can be asked for."""
    if HAS_GPU:
        pytest.skip("needs planted failures")
    import gfxgraph_simulator as simulator

    return simulator.active()


# -- branches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["name", "index", "flag"])
def test_branches_are_chosen_alike_by_name_index_and_flag(platform, how):
    """Whatever names the branch, the result is the branch's own; after the first calls every one is a replay."""
    chosen = Conditional(BRANCHES)
    for turn in range(9):
        at = (turn * 2) % 3
        name = list(BRANCHES)[at]
        x, k = randn(4, 6), torch.tensor(float(turn), device="cuda")
        which = {"name": name, "index": at}.get(how, torch.tensor(at, device="cuda"))
        assert torch.allclose(chosen(which, x, k), BRANCHES[name](x, k), rtol=1e-5, atol=1e-6)
    assert chosen.captured_branches == list(BRANCHES)
    assert gfxgraph.stats()["replay_count"] == 6


def test_branches_share_inputs_and_memory(platform):
    """Four take hardly more memory than one."""
    size = (16, 64)

    def body(k):
        return lambda x: ((x + k).cos().mul(k).add(x).sin() * (x - k).exp()).sqrt() + k

    def reserved(make):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        kept = make()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before, kept

    x = randn(*size)

    def of(n):
        made = Conditional([body(k) for k in range(n)])
        made.capture(x)
        return made

    taken_by_one, one = reserved(lambda: of(1))
    del one
    taken, chosen = reserved(lambda: of(4))
    assert taken <= 2 * taken_by_one
    for k in range(4):
        assert torch.allclose(chosen(k, x), body(k)(x), equal_nan=True, rtol=1e-5, atol=1e-6)


def test_owned_results_outlive_later_calls(platform):
    """By default a result is the caller's own: later calls of any branch leave it alone."""
    chosen = Conditional([lambda x: x * 2, lambda x: x * 3])
    kept = [chosen(i % 2, torch.full((4,), float(i), device="cuda")) for i in range(8)]
    assert [t[0].item() for t in kept] == [i * (2 + i % 2) for i in range(8)]


def test_what_a_branch_writes_into_its_argument_reaches_the_caller(platform):
    """A branch that works in place changes the caller's tensor, as in eager, and the other branch leaves it."""
    chosen = Conditional({"step": lambda x: x.add_(1), "look": lambda x: x + 0})
    x = torch.zeros(3, device="cuda")
    for turn in range(8):
        chosen("step" if turn % 2 else "look", x)
    assert x.tolist() == [4.0] * 3


def test_every_branch_is_captured_ahead(platform):
    """Captured before the first call, by calls: what a branch writes is written as often as it ran."""
    count, x = torch.zeros((), device="cuda"), randn(4)

    def body(x):
        count.add_(1)
        return x + count

    chosen = Conditional([body, lambda x: x + 0])
    chosen.capture(x)
    assert count.item() == 2 and chosen.captured_branches == [0, 1]
    assert torch.equal(chosen(0, x), x + 3) and chosen.stats()["replays"] == 3


def test_unknown_branch_names_those_there_are(platform):
    """A flag out of range is an error with the branches in it; with a default it is that one."""
    branches = {"a": lambda x: x + 1, "b": lambda x: x + 2}
    x = torch.zeros(2, device="cuda")
    with pytest.raises(gfxgraph.ReplayError) as caught:
        Conditional(branches)(torch.tensor(7, device="cuda"), x)
    assert caught.value.code == "no_such_branch" and "'a', 'b'" in str(caught.value)
    assert Conditional(branches, default="b")(torch.tensor(7, device="cuda"), x).tolist() == [2.0, 2.0]


def test_shapes_never_seen_and_host_tensors_give_eagers_answer(platform):
    """Another shape gets graphs of its own, too many shapes and host tensors run eagerly; nothing is stale."""
    chosen = Conditional([lambda x, k: x * k, lambda x, k: x + k])
    for rows in range(1, 14):
        for turn in range(2):
            x, k = randn(rows, 2), torch.tensor(float(rows + turn))
            k = k if rows % 2 else k.cuda()
            for branch in range(2):
                assert torch.equal(chosen(branch, x, k), x * k if not branch else x + k)


def test_gradients_are_eagers(platform):
    """Where a call needs gradients the branch runs eagerly, and backward is eager's."""
    w = randn(3, 3).requires_grad_()
    chosen = Conditional([lambda x: (x @ w).sum(), lambda x: x.sum()])
    x = randn(2, 3)
    for _ in range(3):
        chosen(0, x)
    with torch.enable_grad():
        y = randn(2, 3).requires_grad_()
        chosen(0, y).backward()
    assert torch.allclose(w.grad, y.detach().sum(0)[:, None].expand(3, 3))


def test_a_branch_whose_capture_fails_runs_eagerly_and_the_others_do_not(platform):
    """A value that goes into arithmetic: that branch gives eager's result for good, reported with its name."""
    chosen = Conditional({**BRANCHES, "shrink": lambda x, k: x * x.sum().item()})
    x, k = randn(4, 6), torch.ones((), device="cuda")
    for _ in range(3):
        for name in ("grow", "sort"):
            assert torch.allclose(chosen(name, x, k), BRANCHES[name](x, k), rtol=1e-5, atol=1e-6)
        assert torch.allclose(chosen("shrink", x, k), x * x.sum())
    assert set(chosen.eager_branches) == {"shrink"}
    assert "Tensor.item()" in chosen.eager_branches["shrink"]
    assert chosen.captured_branches == ["grow", "sort"]


def test_a_failed_launch_gives_the_branchs_result_once(simulated):
    """A launch that fails is answered from the tape: right result, and in-place work done once."""
    count = torch.zeros((), device="cuda")

    def body(x):
        count.add_(1)
        return x + 1

    chosen = Conditional([body, lambda x: x - 1])
    x = randn(4)
    chosen(0, x)
    simulated.faults.fail_nth("launch", 1, 999)
    assert torch.equal(chosen(0, x), x + 1)
    assert count.item() == 2
    assert gfxgraph.stats()["fallback_count"] == 1


def test_a_guard_that_fails_half_way_is_undone(platform):
    """A branch that looks at a value: when the outcome changes, what ran before it is not done twice."""
    count = torch.zeros((), device="cuda")

    def body(x):
        count.add_(1)
        if x.sum().item() > 0:
            return x * 2
        return x * 3

    chosen = Conditional([body])
    for value, times in ((1.0, 2), (1.0, 2), (-1.0, 3), (1.0, 2)):
        x = torch.full((4,), value, device="cuda")
        assert torch.equal(chosen(0, x), x * times)
    assert count.item() == 4


def test_inside_a_capture_the_choice_is_guarded(capture):
    """In somebody's capture the branch taken is recorded; when the flag changes the replay says so."""
    flag, x = torch.tensor(True, device="cuda"), randn(4)
    chosen = Conditional({True: lambda x: x + 1, False: lambda x: x - 1})
    graph, y = capture(lambda: chosen(flag, x))
    x.copy_(randn(4))
    graph.replay()
    assert torch.equal(y, x + 1)
    flag.fill_(False)
    with pytest.raises(gfxgraph.GuardMismatch):
        graph.replay()


def test_calls_from_several_threads_and_streams_do_not_mix(platform):
    """One conditional called from four threads, each on a stream of its own: everybody gets their own answer."""
    chosen = Conditional([lambda x: (x * 2).sum(0), lambda x: (x * 3).sum(0)])
    wrong, begin = [], threading.Barrier(4)
    chosen.capture(randn(16, 4))

    def work(number):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            begin.wait()
            for turn in range(10):
                x = torch.full((16, 4), float(number + 1), device="cuda")
                got = chosen(turn % 2, x)
                torch.cuda.current_stream().synchronize()
                if got.tolist() != [16.0 * (number + 1) * (2 + turn % 2)] * 4:
                    wrong.append((number, turn, got.tolist()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- while loops ----------------------------------------------------------------------------------------------


def collatz(limit=200, **kw):
    """Steps until 1."""

    def body(n, steps):
        return torch.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return WhileLoop(lambda n, steps: n > 1, body, max_steps=limit, **kw)


def python_collatz(n, limit=200):
    steps = 0
    while n > 1 and steps < limit:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return n, steps


def test_while_loop_ends_where_python_does(platform):
    """State and number of steps are Python's."""
    loop = collatz()
    for start in (6, 6, 7, 1, 27, 2):
        n, steps = loop(*(torch.tensor(v, device="cuda") for v in (start, 0)))
        want = python_collatz(start)
        assert (n.item(), steps.item(), loop.n_steps) == (*want, want[1])
        assert not loop.hit_bound
    assert loop._step.stats()["eager"] == {"warm-up": 1} and loop._step.stats()["captures"] == 1


def test_no_step_sees_a_state_that_the_program_excluded(platform):
    """Walking along a table to its end: the body is not run with the index past it."""
    table = torch.arange(10, device="cuda")
    loop = WhileLoop(
        lambda i, total: i < 10,
        lambda i, total: (i + 1, total + table.index_select(0, i.view(1)).view(())),
        max_steps=40,
    )
    for start in (0, 0, 7, 10, 12):
        i, total = loop(*(torch.tensor(v, device="cuda") for v in (start, 0)))
        assert (i.item(), total.item()) == (max(start, 10), sum(range(start, 10)))
    assert loop.stats()["replays"] > 10 and not loop.why_eager


def test_while_loop_stops_at_its_bound(platform):
    """A condition that never falls ends at max_steps, and is said to."""
    loop = collatz(limit=10)
    for _ in range(2):
        n, steps = loop(*(torch.tensor(v, device="cuda") for v in (27, 0)))
        assert (n.item(), steps.item()) == python_collatz(27, 10)
        assert loop.n_steps == 10 and loop.hit_bound
    loop(*(torch.tensor(v, device="cuda") for v in (2, 0)))
    assert not loop.hit_bound


@pytest.mark.parametrize("effect", ["writes", "draws"])
def test_while_loop_with_effects_makes_as_many_as_steps(platform, effect):
    """A body that writes elsewhere or draws: as many effects as steps, and the generator where eager leaves it."""
    log = torch.zeros((), device="cuda")

    def body(x):
        if effect == "writes":
            log.add_(1)
            return x + 1
        return x + 1 + torch.rand((), device="cuda") * 1e-3

    loop = WhileLoop(lambda x: x < 5, body, max_steps=100)
    results = []
    for turn in range(3):
        torch.cuda.manual_seed(7)
        results.append((loop(torch.zeros((), device="cuda"))[0].item(), torch.cuda.get_rng_state()))
        if effect == "writes":
            assert log.item() == 5 * (turn + 1)
    assert loop._step.stats()["replays"] == 14
    assert all(r[0] == results[0][0] and torch.equal(r[1], results[0][1]) for r in results)


def test_a_loop_whose_step_changes_its_state_says_what_it_became(platform):
    """A state of another shape is refused with both shapes."""
    loop = WhileLoop(lambda x: x.sum() < 5, lambda x: torch.cat([x, x]), max_steps=3)
    with pytest.raises(gfxgraph.CaptureError) as caught:
        loop(torch.ones(2, device="cuda"))
    assert (
        caught.value.code == "loop_state" and "float32[2]" in str(caught.value) and "float32[4]" in str(caught.value)
    )


@torch.enable_grad()
def test_loops_leave_gradients_as_eager_does(platform):
    """A body with weights, and a state that needs gradients: both get them, in every call."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4).cuda()
    found = []
    for is_loop in (False, True):
        loop = gfxgraph.WhileLoop(lambda x, n: n < 3, lambda x, n: (net(x).tanh(), n + 1), max_steps=9)
        for number in range(4):
            x = torch.full((2, 4), 0.1 + number, device="cuda", requires_grad=number % 2 == 1)
            y, n = x, torch.zeros((), device="cuda")
            if is_loop:
                y, n = loop(x, n)
            else:
                for _ in range(3):
                    y = net(y).tanh()
            net.zero_grad()
            y.sum().backward()
            found.append((y.detach(), x.grad, net.weight.grad.clone()))
    for want, got in zip(found[:4], found[4:]):
        assert all(a is b if a is None else torch.equal(a, b) for a, b in zip(want, got))
    assert loop.stats()["replays"]
    with torch.no_grad():
        for _ in range(2):
            y, _ = loop(x, torch.zeros((), device="cuda"))
    assert torch.equal(y, found[3][0]) and loop.stats()["replays"] and not loop.why_eager


def test_the_layout_of_arguments_and_the_sign_of_zero_tell_calls_apart(platform):
    """Random numbers fill memory in its order; what a capture made of one layout is not what another gives."""
    chosen = gfxgraph.Conditional({"noise": lambda x, s: x + torch.rand_like(x), "sign": lambda x, s: x / s})
    with torch.no_grad():
        for _ in range(3):
            for x in (torch.randn(3, 3, device="cuda").t(), torch.randn(3, 3, device="cuda")):
                torch.manual_seed(3)
                y = chosen("noise", x, 1.0)
                torch.manual_seed(3)
                assert torch.equal(y, x + torch.rand_like(x))
                for zero in (0.0, -0.0):
                    assert torch.equal(chosen("sign", x, zero), x / zero)


def test_numbers_of_a_subclass_are_told_apart_by_value(platform):
    """As numpy's are: each is another object at each call, and the same number."""

    class Number(float):
        pass

    chosen = gfxgraph.Conditional({"times": lambda x, s: x * s})
    x = torch.randn(3, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            for factor in (2.0, 3.0):
                assert torch.equal(chosen("times", x, Number(factor)), x * factor)


def test_results_of_branches_share_memory_as_eagers_do(platform):
    """A branch that returns its argument, a part of it, or two parts of one result."""

    def two_of_one(x):
        y = x * 2
        return y, y[0]

    chosen = gfxgraph.Conditional([lambda x: x.add_(1), lambda x: x[0], two_of_one])
    with torch.no_grad():
        for i in range(9):
            x = torch.ones(2, 2, device="cuda")
            made = chosen(i % 3, x)
            whole, part = made if i % 3 == 2 else (x, made)
            part.zero_()
            assert not whole[0].any(), i
    assert chosen.captured_branches == [0, 1, 2]


def test_conditionals_and_loops_inside_graphed_functions(platform):
    chosen = gfxgraph.Conditional({"double": lambda x: x * 2, "more": lambda x: x + 1})
    nested = gfxgraph.Conditional([lambda x: chosen("double", x) + 1, lambda x: chosen("more", x) - 1])
    loop = gfxgraph.WhileLoop(lambda x: x.max() < 20, lambda x: x * 2, max_steps=10)
    f = gfxgraph.graphed(lambda x, name: loop(chosen(name, x))[0] + 1)
    x = torch.ones(4, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(f(x, "double"), x * 33) and torch.equal(f(x, "more"), x * 33)
            assert torch.equal(nested(0, x), x * 3) and torch.equal(nested(1, x), x)
    assert nested.captured_branches == [0, 1]
    assert loop.stats()["replays"] and f.stats()["replays"], f.explain()
