"""What a graphed function returns: whose memory it is, which object, and what it was made of."""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import gfxgraph

pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.any_platform]
N_CALLS = 5


def X(seed: float = 0.0, rows: int = 4) -> torch.Tensor:
    return torch.arange(rows * 8.0, device="cuda").view(rows, 8) + seed


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return type(value), ([plain(each) for each in value] if isinstance(value, (tuple, list)) else value)


SHARING = {
    "offset": lambda x: (lambda y: (y[1:], y, y[:, 2]))(x * 2),
    "flat": lambda x: (lambda y: (y.view(-1)[3:7], y.t()))(x * 2),
    "other type": lambda x: (lambda y: (y, y.view(torch.int32), torch.view_as_complex(y.view(4, 4, 2))))(x * 2),
    "chunks": lambda x: (x * 2).chunk(4, -1),
}


@pytest.mark.parametrize("mode", ["standard", "hot"])
@pytest.mark.parametrize("name", SHARING)
def test_results_that_share_memory_share_it_again(name, mode):
    """What the caller writes to one result is in the others that lie there, wherever in the memory that is."""
    fn = SHARING[name]
    g = gfxgraph.graphed(fn, mode=mode)
    for i in range(N_CALLS):
        mine, real = g(X(i)), fn(X(i))
        mine[0].add_(100)
        real[0].add_(100)
        assert plain(mine) == plain(real)
    assert g.stats()["replays"] > 2


@pytest.mark.parametrize("fn", [lambda x: ((y := x * 2), y[:, 1:]), lambda x: ((y := x * 2).t(), y.view(-1))])
def test_results_cut_to_size_share_memory_as_in_eager(fn):
    """In a bucket, too, and where they would lie otherwise there the call is eager."""
    g = gfxgraph.graphed(fn, dynamic={"x": {0: "n"}}, buckets=[4, 8])
    for n in (4, 3, 3, 3, 7, 7, 4):
        mine, real = g(X(rows=n)), fn(X(rows=n))
        mine[0].zero_()
        real[0].zero_()
        assert plain(mine) == plain(real)
        assert [t.stride() for t in mine] == [t.stride() for t in real]


RETURNED = {
    "number": ("k", 1, 2),
    "fraction": ("k", 1.5, 2.5),
    "text": ("k", "a", "b"),
    "truth": ("k", 1, True),
    "tuple": ("k", (1, "a"), (1, "b")),
    "list": ("k", [1], [1, 2]),
    "nothing": ("k", None, 3),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_only_handed_on_is_guarded(name):
    """A number or a text that a function returns and does nothing with is the one of now."""
    attribute, first, second = RETURNED[name]
    state = types.SimpleNamespace()
    g = gfxgraph.graphed(lambda x: (x * 2, {"k": getattr(state, attribute)}))
    for value in (first, first, first, second, second, first):
        setattr(state, attribute, value)
        assert plain(g(X())[1]["k"]) == plain(value)
    assert g.stats()["replays"] >= 2


HANDED_ON: object = None


@pytest.mark.parametrize("values", [(1, 2), ("a", "b"), (1.5, 2.5)], ids=str)
def test_a_global_that_is_only_handed_on_is_the_one_of_now(values, monkeypatch):
    """Dynamo's code fetches it anew, and guards it only where something is done with it; a replay does not."""
    g = gfxgraph.graphed(lambda x: (x * 2, HANDED_ON))
    first, second = values
    for value in (first, first, first, second, second, first):
        monkeypatch.setattr(sys.modules[__name__], "HANDED_ON", value)
        assert plain(g(X())[1]) == plain(value)
    assert g.stats()["replays"] >= 2


def test_a_tensor_that_is_only_returned_is_the_one_of_now():
    """It need not be an input of the graph."""
    state = types.SimpleNamespace(t=X())
    g = gfxgraph.graphed(lambda x: (x * 2, state.t))
    for i in range(8):
        if i in (3, 6):
            state.t = X(i)
        assert g(X(i))[1] is state.t
    assert g.stats()["replays"] >= 2


def test_a_container_that_was_not_made_inside_is_itself():
    """One of the arguments', one from outside, and one that stands in the result twice."""
    state: dict[str, Any] = {"n": 1}

    def twice(x):
        made = {"y": x * 2}
        return made, [made]

    given = gfxgraph.graphed(lambda x, d: (x * 2, {"inner": d}))
    outside = gfxgraph.graphed(lambda x: (x * 2, state))
    doubled = gfxgraph.graphed(twice)
    for i in range(N_CALLS):
        d = {"a": X(i)}
        assert given(X(i), d)[1]["inner"] is d
        state["n"] = i
        assert outside(X(i))[1] is state
        made, [same] = doubled(X(i))
        assert made is same
    assert all(g.stats()["replays"] > 0 for g in (given, outside, doubled))


def test_a_piece_returns_a_view_of_the_callers_parameter():
    """What is written to the view is in the parameter, and nothing else is ever written there."""
    module = nn.Linear(8, 8).cuda()

    def f(x):
        y = module(x)
        print(end="")
        return y, module.weight[1:3], module.weight.t()

    g = gfxgraph.graphed(f)
    before = module.weight.detach().clone()
    with torch.no_grad():
        for i in range(1, N_CALLS + 1):
            _, rows, turned = g(X(i))
            assert rows.requires_grad == module.weight[1:3].requires_grad
            rows.add_(1)
            before[1:3] += 1
            assert torch.equal(module.weight, before) and torch.equal(turned, before.t())
    assert g.stats()["replays"] > 0


@pytest.mark.parametrize("assume_pure", [False, True])
def test_gradients_that_are_switched_on_inside_are_there(assume_pure):
    """Where the caller has switched them off."""
    module = nn.Linear(8, 8).cuda()

    def f(x):
        with torch.enable_grad():
            return module(x)

    def towards(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(x.pow(3).sum(), x)
        return gradient

    g, h = gfxgraph.graphed(f, assume_pure=assume_pure), gfxgraph.graphed(towards, assume_pure=assume_pure)
    for i in range(N_CALLS):
        with torch.no_grad():
            result = g(X(i))
            assert torch.allclose(h(X(i)), 3 * X(i) ** 2)
        result.sum().backward()
    assert torch.allclose(module.bias.grad, torch.full((8,), 4.0 * N_CALLS, device="cuda"))


def test_a_deque_keeps_its_bound():
    """Of one that the function has not made Dynamo knows none."""
    mine: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
    read = collections.deque([1.0, 2.0], maxlen=2)

    def f(x):
        mine.append(x.sum())
        return torch.stack(list(mine)).sum()

    g, h = gfxgraph.graphed(f), gfxgraph.graphed(lambda x: x * sum(read) * read.maxlen)
    for i in range(N_CALLS):
        assert g(X(i)) == sum(X(k).sum() for k in range(max(0, i - 1), i + 1))
        assert torch.equal(h(X(i)), X(i) * sum(read) * 2)
    read.append(5.0)
    assert torch.equal(h(X()), X() * 14)
    k = gfxgraph.graphed(lambda d: d[0] * 2)
    assert torch.equal(k(collections.deque([X()], maxlen=3)), X() * 2)
    assert "pass a list" in k.explain()


def test_a_number_that_is_formatted_is_text():
    """At each call, and of the value of now."""
    g = gfxgraph.graphed(lambda x: (f"{x.sum().item():.1f}", x * 2))
    assert [g(X(i))[0] for i in range(N_CALLS)] == [f"{X(i).sum().item():.1f}" for i in range(N_CALLS)]


def test_a_pending_conjugation_is_not_lost():
    """Nor a pending sign."""
    g = gfxgraph.graphed(lambda x: ((x * 2).conj(), (x * 2).conj().imag, x.conj()))
    for i in range(N_CALLS):
        z = torch.complex(X(i), X(i) + 1)
        one, two, three = g(z)
        assert torch.equal(one.resolve_conj(), torch.complex(X(i) * 2, -2 * X(i) - 2))
        assert torch.equal(two.resolve_neg(), -2 * X(i) - 2)
        assert torch.equal(three.resolve_conj(), torch.complex(X(i), -X(i) - 1))
    assert "resolve_conj()" in g.explain()


def test_several_streams_inside_run_as_they_are():
    """In an FX graph other streams are notes."""

    def f(x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    g = gfxgraph.graphed(f)
    for i in range(N_CALLS):
        assert torch.equal(g(X(i)), X(i) * 2 + 1)
    assert not g.stats()["replays"] and any("stream" in why for why in g.stats()["eager"]), g.explain()


def test_a_transform_around_leaves_later_calls_their_graph():
    """A call under vmap or grad is eager, with the reason, and says nothing of others."""
    g = gfxgraph.graphed(lambda x: x.sin().sum())
    assert torch.equal(torch.func.vmap(g)(X()), X().sin().sum(1))
    assert torch.allclose(torch.func.grad(g)(X()), X().cos())
    for i in range(N_CALLS):
        assert torch.equal(g(X(i)), X(i).sin().sum())
    assert g.stats()["replays"] == N_CALLS - 1
    assert "put it inside" in g.explain()


class Table(collections.abc.Mapping):
    def __init__(self, **held):
        self.held = held

    def __getitem__(self, name):
        return self.held[name]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


def test_a_mapping_that_is_only_asked_leaves_other_arguments_their_pieces():
    """A key that is missing in an argument's mapping has no guard; an argument without a mapping has none to miss."""
    known = Table(a=2.0)

    def f(x, about):
        return x * (known["a"] if "a" in known else 1.0) + (1.0 if "b" in about.table else 0.0)

    g = gfxgraph.graphed(f)
    without, with_one = types.SimpleNamespace(table=["b"]), types.SimpleNamespace(table=Table(c=1))
    for _ in range(N_CALLS):
        assert torch.equal(g(X(), without), X() * 2 + 1)
    assert g.stats()["replays"] > 0
    for _ in range(2):
        assert torch.equal(g(X(), with_one), X() * 2)
    with_one.table.held["b"] = 1
    assert torch.equal(g(X(), with_one), X() * 2 + 1)


def test_attributes_that_python_gave_a_tensor_are_seen():
    """Where the function asks for them by name, on the fast path, too."""
    g = gfxgraph.graphed(lambda x: x * getattr(x, "scale", 1.0))
    for i in range(N_CALLS):
        assert torch.equal(g(X(i)), X(i))
    x = X()
    x.scale = 3.0
    for _ in range(3):
        assert torch.equal(g(x), X() * 3)
    assert torch.equal(g(X()), X())
    assert g.stats()["replays"] >= N_CALLS - 1


def test_a_tensor_whose_data_is_set_is_the_callers():
    """The argument has other memory then, which no replay would give it."""

    def f(x, y):
        x.data = y * 2
        return x + 1

    g = gfxgraph.graphed(f)
    for i in range(N_CALLS):
        x = X()
        assert torch.equal(g(x, X(i)), X(i) * 2 + 1) and torch.equal(x, X(i) * 2)
    assert "copy_()" in g.explain()


def test_a_training_step_writes_to_its_callers_arguments():
    """And gives results that share memory as the step's own do."""
    module = nn.Linear(8, 3).cuda()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)

    @gfxgraph.TrainingStep
    def step(x, total):
        optimizer.zero_grad()
        out = module(x)
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        total.add_(1)
        kept = out.detach()
        return kept, kept[1:]

    total = torch.zeros((), device="cuda")
    for i in range(8):
        whole, part = step(X(i) / 100, total)
        part.fill_(7)
        assert whole[1:].eq(7).all()
    assert total == 8 and step.n_captures == 1


def lazy_cases():
    def by_hand(x):
        y = x * 2
        yield y
        yield y + STATE["k"]

    def inside(x):
        return {"now": x + 1, "later": (x * i * STATE["k"] for i in range(3))}

    async def awaited(x):
        return x * STATE["k"]

    def ended(coroutine):
        with pytest.raises(StopIteration) as end:
            coroutine.send(None)
        return [end.value.value]

    return {"by hand": (by_hand, list), "inside": (inside, lambda r: list(r["later"])), "awaited": (awaited, ended)}


STATE = {"k": 1.0}


@pytest.mark.parametrize("name", lazy_cases())
def test_what_runs_later_runs_later(name):
    """A generator or a coroutine that is returned reads what is there when it is asked, not when it was made."""
    fn, consume = lazy_cases()[name]
    g = gfxgraph.graphed(fn)
    for i in range(N_CALLS):
        mine, real = g(X(i)), fn(X(i))
        STATE["k"] += 1
        assert plain(consume(mine)) == plain(consume(real))


def test_a_generator_used_inside_is_in_the_graph():
    """Only one that outlives the call is left to Python."""
    g = gfxgraph.graphed(lambda x: sum(x * i for i in range(3)))
    for i in range(N_CALLS):
        assert plain(g(X(i))) == plain(X(i) * 3)
    assert g.stats()["replays"] > 2


@pytest.mark.parametrize("is_made", [True, False])
def test_attributes_given_to_tensors_are_there_each_time(is_made):
    """To one that the function makes, or to the caller's own."""

    def fn(x):
        y = x * 2
        (y if is_made else x).tag = "given"
        return y

    g = gfxgraph.graphed(fn)
    for i in range(N_CALLS):
        x = X(i)
        y = g(x)
        assert (y if is_made else x).tag == "given"


def test_reset_lets_go_of_a_module_that_was_an_argument():
    """A server that swaps models has one set of weights after ``reset()``; the callable is traced anew."""
    step = gfxgraph.graphed(lambda module, x: module(x) * 2)
    x = torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        first, second = (torch.nn.Linear(4, 4).cuda() for _ in range(2))
        for _ in range(4):
            torch.testing.assert_close(step(first, x), first(x) * 2)
        left = weakref.ref(first.weight)
        del first
        step.reset()
        gc.collect()
        assert left() is None
        for _ in range(4):
            torch.testing.assert_close(step(second, x), second(x) * 2)
    assert step.stats()["replays"] >= 2


def _of_argument(x, w):
    return x, x[1:], x @ w


def _last(x, w):
    return (x @ w)[:, -1]


def _whole_and_detached(x, w):
    y = x @ w
    return y.detach(), y[1:], y


def _turned(x, w):
    y = (x @ w).t()
    return y, y[0], y.sum()


WITH_GRADIENTS = {
    "chunks": lambda x, w: (x @ w).chunk(3, -1),
    "of an argument": _of_argument,
    "a part alone": _last,
    "the whole, a part, and detached": _whole_and_detached,
    "turned": _turned,
}


@pytest.mark.parametrize("differentiated", ["all", "the first"])
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_results_that_share_memory_have_gradients_by_graph(name, differentiated):
    """Gradients of each result reach what it is a part of, and a write to one is seen in the others."""
    fn = WITH_GRADIENTS[name]
    g = gfxgraph.graphed(fn)
    for i in range(N_CALLS + 2):
        found = []
        for call in (fn, g):
            torch.manual_seed(i)
            x, w = (torch.randn(*size, device="cuda", requires_grad=True) for size in ((3, 4), (4, 12)))
            made = call(x, w)
            results = made if isinstance(made, tuple) else (made,)
            ends = [t * (k + 1) for k, t in enumerate(results) if t.requires_grad]
            sum(t.sin().sum() for t in (ends if differentiated == "all" else ends[:1])).backward()
            with torch.no_grad():
                results[-1].zero_()
            found.append([*results, x.grad, w.grad])
        for want, got in zip(*found):
            assert got is want is None or torch.allclose(got, want, atol=1e-5), i
    assert g.stats()["replays"] >= N_CALLS - 1, g.explain()


def test_a_small_host_tensor_that_changes_is_named():
    """Its content is part of the signature; after sixteen of them calls say which argument belongs on the device."""
    g = gfxgraph.graphed(lambda x, scale: x * scale)
    for i in range(20):
        assert torch.equal(g(X(), torch.tensor(i + 1.0)), X() * (i + 1.0))
    assert torch.equal(g(X(), torch.tensor(3.0)), X() * 3.0) and g.stats()["replays"] == 1
    why = next(why for why in g.stats()["eager"] if why != "warm-up")
    assert why.startswith("scale is a tensor in host memory") and g.stats()["eager"][why] == 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16])
def test_what_is_filled_with_a_number_of_the_device_has_that_kind(dtype):
    """``torch.full`` of an int, a bool or a float that is a tensor: Dynamo alone takes the default dtype."""
    x = torch.arange(4, device="cuda").to(dtype)
    for fn in (
        lambda x: torch.full((4,), x[1], device="cuda"),
        lambda x: torch.full((4,), x.sum() > 3, device="cuda"),
    ):
        g = gfxgraph.graphed(fn)
        for _ in range(3):
            got, want = g(x), fn(x)
            assert got.dtype is want.dtype and torch.equal(got, want)


def test_a_models_output_is_as_its_class_makes_it():
    """A replay's output has the same items and attributes, in the same order, and none of its class's Python runs."""
    outputs = pytest.importorskip("transformers.modeling_outputs")
    kind, w = outputs.CausalLMOutputWithPast, torch.full((4,), 2.0, device="cuda")

    def call(x):
        return kind(logits=x * w, hidden_states=(x + 1, [x, w * 3]))

    g, x = gfxgraph.graphed(call), torch.ones(4, device="cuda")
    for _ in range(4):
        g(x)
    ran = []
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    made = g(x)
    sys.setprofile(None)
    assert "__post_init__" not in ran
    eager = call(x)
    assert type(made) is kind and list(made) == list(eager) and list(vars(made)) == list(vars(eager))
    assert made.loss is None and made["logits"] is made.logits is made[0] and made.to_tuple()[1] is made.hidden_states
    assert type(made.hidden_states) is tuple and type(made.hidden_states[1]) is list
    torch.testing.assert_close(made.to_tuple(), eager.to_tuple())
    made.loss = x
    assert list(made) == [*eager, "loss"]
