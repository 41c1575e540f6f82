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
KEPT: dict[str, torch.Tensor] = {}
"""What a program made before its capture."""


def right(func):
    RIGHT[func.__name__] = func
    return func


def guarded(func):
    GUARDED[func.__name__] = func
    return func


def positive(x):
    return x.view(2, 3) * (x.view(2, 3) > 0)


@right
def coo_round(x):
    return x.view(2, 3).to_sparse().to_dense() + 1


@right
def csr_round(x):
    return x.view(2, 3).to_sparse_csr().to_dense() + 1


@right
def bsr_round(x):
    return torch.cat([x, x[:2]]).view(4, 2).to_sparse_bsr((2, 2)).to_dense() * 2


@right
def coo_mm(x):
    return torch.sparse.mm(positive(x).to_sparse(), x.view(3, 2)) + 1


@right
def csr_mm(x):
    return positive(x).to_sparse_csr() @ x.view(3, 2) * 2


@right
def csr_mv(x):
    return positive(x).to_sparse_csr() @ x[:3] * 2


@right
def values_scaled(x):
    return positive(x).to_sparse().coalesce().values() * 3


@right
def indices_used(x):
    return positive(x).to_sparse().coalesce().indices().float() * 3


@right
def rebuilt(x):
    s = positive(x).to_sparse().coalesce()
    return torch.sparse_coo_tensor(s.indices(), s.values() * 2, s.shape).to_dense() + 1


@guarded
def nnz_read(x):
    return x * positive(x).to_sparse()._nnz()


@guarded
def nnz_if(x):
    s = positive(x).to_sparse()
    return x * 2 if s._nnz() > 3 else x * 3


@guarded
def csr_nnz(x):
    return x + positive(x).to_sparse_csr()._nnz()


@right
def values_in_place(x):
    s = positive(x).to_sparse().coalesce()
    s.values().mul_(2)
    return s.to_dense() + 1


@right
def csr_values_in_place(x):
    s = positive(x).to_sparse_csr()
    s.values().mul_(2)
    return s.to_dense() + 1


@right
def sparse_add_(x):
    s = positive(x).to_sparse()
    s.add_(s)
    return s.to_dense() + 1


@right
def dense_add_sparse(x):
    y = x.view(2, 3) * 1
    y.add_(positive(x).to_sparse())
    return y * 2


@right
def sparse_sum(x):
    return torch.sparse.sum(positive(x).to_sparse()) + x


@right
def sparse_softmax(x):
    return torch.sparse.softmax(positive(x).to_sparse(), 1).to_dense() * 2


@right
def sparse_mask(x):
    return x.view(2, 3).sparse_mask((x.view(2, 3) > 0).float().to_sparse().coalesce()).to_dense() * 2


@right
def sparse_result(x):
    return positive(x).to_sparse()


@right
def csr_result(x):
    return positive(x).to_sparse_csr()


@right
def csr_result_scaled(x):
    return positive(x).to_sparse_csr() * 2


@right
def coo_from_nonzero(x):
    i = (x.view(2, 3) > 0).nonzero().t()
    return torch.sparse_coo_tensor(i, x.view(2, 3)[x.view(2, 3) > 0], (2, 3)).to_dense() + 1


@right
def coo_without_size(x):
    i = (x.view(2, 3) > 0).nonzero().t()
    return torch.sparse_coo_tensor(i, x.view(2, 3)[x.view(2, 3) > 0]).to_dense().sum() + 1


@right
def coo_made_static(x):
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 2]], device="cuda"), x[:2] * 2, (2, 3)).to_dense() + 1


@right
def coo_made_static_mm(x):
    v = x[:2] * 2
    s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 2]], device="cuda"), v, (2, 3))
    del v
    y = torch.zeros(3, 2, device="cuda") + 1
    return s @ y


@right
def embedding_sparse_grad(x):
    w = torch.ones(4, 3, device="cuda", requires_grad=True)
    i = torch.tensor([0, 2], device="cuda")
    (F.embedding(i, w, sparse=True) * x[:3]).sum().backward()
    return w.grad.to_dense() * 1


@right
def embedding_sparse_grad_result(x):
    w = torch.ones(4, 3, device="cuda", requires_grad=True)
    i = torch.tensor([0, 2], device="cuda")
    (F.embedding(i, w, sparse=True) * x[:3]).sum().backward()
    return w.grad


@right
def grads_through_sparse(x):
    y = x.detach().clone().requires_grad_()
    (y.view(2, 3).to_sparse().to_dense() ** 2).sum().backward()
    return y.grad * 1


@right
def grads_sparse_mm(x):
    y = x.detach().clone().requires_grad_()
    s = positive(x).to_sparse()
    (torch.sparse.mm(s, y.view(3, 2)) ** 2).sum().backward()
    return y.grad * 1


@right
def transposed(x):
    return positive(x).to_sparse().t().to_dense() + 1


@right
def is_coalesced(x):
    s = positive(x).to_sparse()
    return x * 2 if s.is_coalesced() else x


@right
def cloned(x):
    s = positive(x).to_sparse().clone()
    return s.to_dense() + 1


@right
def to_host(x):
    return positive(x).to_sparse().cpu().to_dense().to("cuda") + 1


@right
def from_host(x):
    return torch.eye(3).to_sparse().to("cuda").to_dense() * x[:3]


@right
def index_select(x):
    return positive(x).to_sparse().index_select(1, torch.tensor([0, 2], device="cuda")).to_dense() + 1


@right
def nested_as(x):
    return torch.nested.as_nested_tensor([x[:2] * 2, x[2:] * 3])


@right
def nested_padded(x):
    return torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x[:2] * 2, x[2:] * 3]), 0.0) * 2


@right
def nested_mul(x):
    n = torch.nested.as_nested_tensor([x[:2].view(1, 2), x[2:].view(2, 2)])
    return torch.nested.to_padded_tensor(n * 2 + n, 0.0) * 2


@right
def nested_linear(x):
    n = torch.nested.as_nested_tensor([x[:2].view(1, 2), x[2:].view(2, 2)])
    w = torch.ones(3, 2, device="cuda")
    return torch.nested.to_padded_tensor(F.linear(n, w), 0.0) * 2


@guarded
def nested_of_masks(x):
    n = torch.nested.as_nested_tensor([x[x > 0], x[x <= 0]])
    return torch.nested.to_padded_tensor(n, 0.0).sum() * 2


@guarded
def nested_of_masks_result(x):
    return torch.nested.as_nested_tensor([x[x > 0], x[x <= 0]])


@guarded
def nested_size_read(x):
    n = torch.nested.as_nested_tensor([x[x > 0], x[x <= 0]])
    return x * n.size(0)


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
def jagged_attention(x):
    offsets = torch.tensor([0, 1, 3, 6], device="cuda")
    q = torch.nested.nested_tensor_from_jagged(torch.stack([x] * 4, 1).view(6, 2, 2), offsets).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).values() + 1


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


@right
def sparse_outside_written(x):
    s = KEPT.setdefault("s", torch.eye(3, device="cuda").to_sparse())
    s.add_(s)
    r = s.to_dense() * x[:3]
    return r


@right
def sparse_outside_read(x):
    s = KEPT.setdefault("r", torch.eye(3, device="cuda").to_sparse().coalesce())
    return (s @ x.view(3, 2)) * 2


@right
def csr_outside_values(x):
    s = KEPT.setdefault("c", torch.eye(3, device="cuda").to_sparse_csr())
    return s.values() * x[:3]


@right
def sampled(x):
    s = (x.view(2, 3) > 0).float().to_sparse_csr()
    return torch.sparse.sampled_addmm(s, x.view(2, 3) * 1, torch.eye(3, device="cuda")).to_dense() * 2


@right
def adam_sparse(x):
    w = torch.nn.Parameter(torch.ones(4, 3, device="cuda"))
    o = torch.optim.SparseAdam([w])
    (F.embedding(torch.tensor([0, 2], device="cuda"), w, sparse=True) * x[:3]).sum().backward()
    o.step()
    return w.detach() * 1


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


@pytest.mark.parametrize("policy", ["pin", "split"])
def test_a_count_of_elements_is_never_a_constant(platform, policy):
    """Where results do not move, what C++ says of a sparse tensor is compared at each replay."""
    x = torch.tensor(INPUTS[0], device="cuda")
    graph = torch.cuda.CUDAGraph(on_unsafe=policy)
    with torch.cuda.graph(graph):
        y = x * torch.ops.aten._nnz.default(positive(x).to_sparse())
    graph.replay()
    assert y.tolist() == (x * 4).tolist()
    x.copy_(torch.tensor(INPUTS[2]))
    with pytest.raises(gfxgraph.GuardMismatch, match="was 4 when captured and is 5 now"):
        graph.replay()


def test_what_a_capture_executed_is_undone(platform):
    """A sparse tensor from outside that the capture writes has its content, and its count of elements, afterwards."""
    held = torch.eye(3, device="cuda").to_sparse()
    more = torch.ones(3, 3, device="cuda").to_sparse()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held.add_(more)
        y = held.to_dense() * 2
    assert held.to_dense().tolist() == torch.eye(3).tolist()
    graph.replay()
    assert y.tolist() == (2 * (torch.eye(3) + 1)).tolist()


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
    assert not is_pure or made.stats()["replays"] > 4
