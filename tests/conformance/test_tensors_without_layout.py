"""Tensors that no address and strides describe, inside a plain capture: sparse, nested, conjugated, wrapped.

Each program takes six floats; run eagerly and replayed it must agree, whatever number of elements is not zero.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

import gfxgraph

pytestmark = [
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.any_platform,
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
INPUTS = [
    [1.0, -2.0, 3.0, -4.0, 5.0, 6.0],
    [1.0, 2.0, -3.0, 4.0, -5.0, 6.0],
    [-1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    [1.0, 0.0, 0.0, -1.0, 0.0, -1.0],
]
RIGHT: dict[str, object] = {}
GUARDED: dict[str, object] = {}
REFUSED: dict[str, object] = {}
KEPT: dict[str, torch.Tensor] = {}
"""What a program made before its capture."""


def right(func):
    RIGHT[func.__name__] = func
    return func


def refused(func):
    REFUSED[func.__name__] = func
    return func


def guarded(func):
    GUARDED[func.__name__] = func
    return func


def positive(x):
    return x.view(2, 3) * (x.view(2, 3) > 0)


@refused
def coo_round(x):
    return x.view(2, 3).to_sparse().to_dense() + 1


@refused
def csr_mm(x):
    return positive(x).to_sparse_csr() @ x.view(3, 2) * 2


@refused
def coo_from_nonzero(x):
    i = (x.view(2, 3) > 0).nonzero().t()
    return torch.sparse_coo_tensor(i, x.view(2, 3)[x.view(2, 3) > 0], (2, 3)).to_dense() + 1


@refused
def embedding_sparse_grad(x):
    w = torch.ones(4, 3, device="cuda", requires_grad=True)
    i = torch.tensor([0, 2], device="cuda")
    (F.embedding(i, w, sparse=True) * x[:3]).sum().backward()
    return w.grad.to_dense() * 1


@refused
def nested_padded(x):
    return torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x[:2] * 2, x[2:] * 3]), 0.0) * 2


@right
def jagged(x):
    n = torch.nested.nested_tensor([x[:2] * 2, x[2:] * 3], layout=torch.jagged)
    return n.values() + 1


@right
def jagged_mul(x):
    n = torch.nested.as_nested_tensor([x[:2] * 2, x[2:] * 3], layout=torch.jagged)
    return (n * 2 + 1).values() + 1


@right
def jagged_linear(x):
    n = torch.nested.as_nested_tensor([x[:2].view(1, 2), x[2:].view(2, 2)], layout=torch.jagged)
    return F.linear(n, torch.ones(3, 2, device="cuda")).values() * 2


@right
def jagged_padded(x):
    n = torch.nested.as_nested_tensor([x[:2].view(1, 2), x[2:].view(2, 2)], layout=torch.jagged)
    return n.to_padded_tensor(0.0) * 2


@guarded
def jagged_of_masks(x):
    n = torch.nested.as_nested_tensor([x[x > 0], x[x <= 0]], layout=torch.jagged)
    return (n * 2).values().sum()


@right
def jagged_result(x):
    return torch.nested.as_nested_tensor([x[:2] * 2, x[2:] * 3], layout=torch.jagged)


@right
def jagged_from_offsets(x):
    off = torch.tensor([0, 2, 6], device="cuda")
    return (torch.nested.nested_tensor_from_jagged(x * 2, off) * 3).values() + 1


@right
def jagged_sum(x):
    off = torch.tensor([0, 2, 6], device="cuda")
    return torch.nested.nested_tensor_from_jagged((x * 2).view(6, 1), off).sum(dim=1) + 1


def jagged_rows(x):
    """As many rows as the data says, in three parts."""
    offsets = F.pad((x[:3] > 0).long().add(1).cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(torch.stack([x, x * 2], 1)[: offsets[-1].item()], offsets)


@guarded
def jagged_rows_linear(x):
    return F.linear(jagged_rows(x), torch.ones(3, 2, device="cuda")).values() * 2


@guarded
def jagged_rows_pooled(x):
    n = jagged_rows(x)
    return torch.nested.to_padded_tensor(n, 0.0).sum(1), n.sum(1) / n.offsets().diff()[:, None], x * n.size(0)


@guarded
def jagged_rows_softmax(x):
    n = jagged_rows(x)
    return torch.softmax(n, 1).values(), F.layer_norm(n, (2,)).values() + 1, n.mean(1)


@guarded
def jagged_rows_unbound(x):
    return [part.sum() * k for k, part in enumerate(jagged_rows(x).unbind())]


@guarded
def jagged_rows_result(x):
    return jagged_rows(x) * 2


@right
def jagged_gradient(x):
    v = x.clone().requires_grad_()
    n = torch.nested.nested_tensor_from_jagged(v.view(6, 1), torch.tensor([0, 1, 3, 6], device="cuda"))
    (n * n).values().sum().backward()
    return v.grad * 2


@right
def conj_view(x):
    c = torch.complex(x, x * 2).conj()
    return torch.view_as_real(c.resolve_conj()).sum(1) + 1


@right
def conj_view_held(x):
    c = torch.complex(x, x * 2)
    d = c.conj()
    return torch.cat([torch.view_as_real(c), torch.view_as_real(d.resolve_conj())]), d, c


@right
def neg_view_held(x):
    c = torch.complex(x, x * 2).conj()
    return c.imag, c


@right
def jvp(x):
    return torch.func.jvp(lambda t: (t * t).sin(), (x,), (torch.ones_like(x),))[1]


@right
def vmapped(x):
    return torch.func.vmap(lambda r: r * r.sum())(x.view(2, 3))


@right
def meta(x):
    m = torch.empty(3, device="meta")
    return x * (m * 2).numel()


class Two(torch.Tensor):
    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.size(), dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Two(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ra = func(*tree_map(lambda t: t.a if isinstance(t, Two) else t, args), **kwargs)
        rb = func(*tree_map(lambda t: t.b if isinstance(t, Two) else t, args), **kwargs)
        return Two(ra, rb) if isinstance(ra, torch.Tensor) else ra


@right
def two(x):
    t = Two(x * 1, x * 2)
    u = t * 3 + t
    return u.a + u.b


@guarded
def two_mask(x):
    t = Two(x * 1, x * 1)
    u = t[x > 0] * 2
    return u.a.sum() + u.b.sum()


@right
def two_item(x):
    t = Two(x * 1, x * 1)
    return x * t.sum().item()


@right
def two_result(x):
    return Two(x * 1, x * 2) * 2


@right
def two_outside(x):
    u = KEPT.setdefault("two", Two(torch.ones(6, device="cuda"), torch.ones(6, device="cuda"))) * x
    return u.a + u.b


@refused
def sparse_outside_written(x):
    s = KEPT["s"] if "s" in KEPT else KEPT.setdefault("s", torch.eye(3, device="cuda").to_sparse())
    s.add_(s)
    r = s.to_dense() * x[:3]
    return r


@right
def sparse_outside_read(x):
    s = KEPT["r"] if "r" in KEPT else KEPT.setdefault("r", torch.eye(3, device="cuda").to_sparse().coalesce())
    return (s @ x.view(3, 2)) * 2


@right
def csr_outside_values(x):
    s = KEPT["c"] if "c" in KEPT else KEPT.setdefault("c", torch.eye(3, device="cuda").to_sparse_csr())
    return s.values() * x[:3]


def dense(value):
    """Its content, as tensors of its own."""
    if isinstance(value, (tuple, list)):
        return [each for item in value for each in dense(item)]
    if isinstance(value, Two):
        return [value.a.clone(), value.b.clone()]
    if value.is_nested:
        return [part.clone() for part in value.unbind()]
    if value.layout is not torch.strided:
        return [value.to_dense().clone()]
    return [value.resolve_conj().resolve_neg().clone()]


def outcomes(body):
    """What each replay gives, compared with eager: "right" or "guarded"."""
    x = torch.tensor(INPUTS[0], device="cuda")
    KEPT.clear()
    body(x)
    want = []
    for values in INPUTS:
        x.copy_(torch.tensor(values))
        want.append(dense(body(x)))
    KEPT.clear()
    x.copy_(torch.tensor(INPUTS[0]))
    body(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = body(x)
    found = []
    for values, expected in zip(INPUTS, want):
        x.copy_(torch.tensor(values))
        try:
            graph.replay()
        except gfxgraph.GuardMismatch as error:
            assert "test_tensors_without_layout.py" in str(error)
            found.append("guarded")
            continue
        actual = dense(got)
        assert len(actual) == len(expected)
        for mine, other in zip(actual, expected):
            assert mine.shape == other.shape and torch.allclose(mine, other, equal_nan=True), (values, mine, other)
        found.append("right")
    return found


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_program_is_right(platform, name):
    """Every replay agrees with eager, however many elements there are."""
    assert outcomes(RIGHT[name]) == ["right"] * len(INPUTS)


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_program_is_right_or_guarded(platform, name):
    """With as many elements as at capture it is right; with others it may raise GuardMismatch with its line."""
    found = outcomes(GUARDED[name])[:2]
    assert found == ["right", "guarded" if name == "jagged_rows_unbound" else "right"]  # C++ reads the lengths


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_no_replay_could_fill_is_refused(platform, name):
    """The error names the line; captures work afterwards, and so do autograd's threads."""
    for policy in ("split", "pin"):
        x = torch.tensor(INPUTS[0], device="cuda")
        KEPT.clear()
        REFUSED[name](x)
        with pytest.raises(gfxgraph.CaptureError, match="test_tensors_without_layout.py") as caught:
            with torch.cuda.graph(torch.cuda.CUDAGraph(on_unsafe=policy)):
                REFUSED[name](x)
        assert caught.value.code == "refused_in_capture"
        assert torch.autograd.is_multithreading_enabled()
    assert outcomes(two) == ["right"] * len(INPUTS)


# -- as arguments and results of callables ------------------------------------------------------------------


class Own(torch.Tensor):
    """A class of its own over plain memory."""


ODD = {
    "coo": lambda x: positive(x).to_sparse(),
    "csr": lambda x: positive(x).to_sparse_csr(),
    "bsc": lambda x: torch.cat([x, x[:2]]).view(4, 2).to_sparse_bsc((2, 2)),
    "strided nested": lambda x: torch.nested.nested_tensor([x[:4], x[4:]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[:4], x[4:]], layout=torch.jagged),
    "wrapper": lambda x: Two(x + 0, x * 2),
    "masked": lambda x: torch.masked.masked_tensor(x + 0, x > 0),
    "own class": lambda x: (x + 0).as_subclass(Own),
}
"""Tensors for which no buffer of a graph can stand."""


def content(tensor):
    """Its class, and every element that it holds."""
    if isinstance(tensor, Two):
        return Two, tensor.a.tolist(), tensor.b.tolist()
    if isinstance(tensor, torch.masked.MaskedTensor):
        return tensor.get_data().tolist(), tensor.get_mask().tolist()
    if tensor.is_nested:
        return tensor.layout, [part.tolist() for part in tensor.unbind()]
    return type(tensor), tensor.layout, tensor.to_dense().tolist()


def with_numbers(kind):
    """Six calls' arguments."""
    return [
        (ODD[kind](torch.tensor(INPUTS[i % 3], device="cuda")), torch.ones((), device="cuda") * i) for i in range(6)
    ]


def twice(t, n):
    return t * 2


def conditional():
    chosen = gfxgraph.Conditional({0: lambda t: t * 2, 1: lambda t: t * 3})
    return lambda t, n: chosen(int(n) % 2, t), lambda t, n: t * (2 + int(n) % 2)


def while_loop():
    loop = gfxgraph.WhileLoop(lambda k, t: k < 3, lambda k, t: (k + 1, t * 2), max_steps=5)
    return lambda t, n: loop(n, t)[1], lambda t, n: t * 2 ** max(0, 3 - int(n))


CALLABLES = {
    "graphed": lambda: (gfxgraph.graphed(twice), twice),
    "pure": lambda: (gfxgraph.graphed(twice, assume_pure=True), twice),
    "buckets": lambda: (gfxgraph.graphed(twice, buckets="auto"), twice),
    "TrainingStep": lambda: (gfxgraph.TrainingStep(twice), twice),
    "Conditional": conditional,
    "while_loop": while_loop,
}
"""A callable, and what it is to do."""


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", CALLABLES)
def test_callables_run_such_arguments_eagerly(platform, name, kind):
    """What a call gets and returns is what the function itself would have."""
    made, plain = CALLABLES[name]()
    with torch.no_grad():
        for t, n in with_numbers(kind):
            assert content(made(t, n)) == content(plain(t, n))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("is_pure", [False, True])
def test_callables_return_such_results(platform, kind, is_pure):
    """A result of this kind is computed anew in each call."""
    made = gfxgraph.graphed(ODD[kind], assume_pure=is_pure)
    for values in INPUTS[:3] * 2:
        x = torch.tensor(values, device="cuda")
        assert content(made(x)) == content(ODD[kind](x))


class Holder(torch.nn.Module):
    def __init__(self, held):
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, x):
        found = self.held * 2
        return x.sum() + (
            found.b if isinstance(found, Two) else found.values() if found.is_nested else found.to_dense()
        )


@pytest.mark.parametrize("kind", ["coo", "csr", "jagged", "wrapper"])
@pytest.mark.parametrize("is_pure", [False, True])
def test_modules_that_hold_such_tensors(platform, kind, is_pure):
    """A buffer of this kind that was replaced between calls, or given other memory inside, is read anew."""
    module = Holder(ODD[kind](torch.tensor(INPUTS[0], device="cuda")))
    made = gfxgraph.graphed(module, assume_pure=is_pure)
    for i in range(9):
        new = ODD[kind](torch.tensor(INPUTS[(i + 1) % 3], device="cuda"))
        if i == 3:
            module.held = new
        elif i == 6 and kind == "wrapper":
            module.held.b = new.b
        x = torch.ones(2, device="cuda") * i
        assert torch.equal(made(x), module(x))
    assert not is_pure or kind in ("coo", "csr") or made.stats()["replays"] > 4
