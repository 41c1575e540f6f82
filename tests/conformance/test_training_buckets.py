"""Buckets where results need gradients: padding changes no result and no gradient, or is refused by name."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gfxgraph
from gfxgraph.callables.padding.padding_check import PaddingCheck
from gfxgraph.errors import ConfigError

pytestmark = pytest.mark.any_platform
LENGTHS = [9, 30, 12, 25, 16, 7, 31, 20, 11, 28, 14, 22, 13, 27]


@pytest.fixture(autouse=True)
def _platform(platform):
    yield


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50)

    def forward(self, ids, mask):
        found = torch.log_softmax(self.head(F.gelu(self.mix(self.table(ids)))), -1)
        return found.gather(-1, ids[..., None])[..., 0] * mask


def batch(n, rows=4):
    return torch.randint(0, 50, (rows, n), device="cuda"), (torch.rand(rows, n, device="cuda") > 0.1).float()


def trained(net, optimizer, ids, mask):
    optimizer.zero_grad()
    out = net(ids, mask)
    loss = -out.sum() / mask.sum()
    loss.backward()
    found = [out.detach(), loss.detach(), *[p.grad.clone() for p in net.parameters()]]
    optimizer.step()
    return found


@pytest.mark.parametrize("buckets", [[16, 32], None])
def test_many_lengths_are_few_captures(buckets):
    """Losses, gradients and weights are eager's; by the second epoch nothing is captured any more."""
    torch.manual_seed(0)
    theirs = Tagger().cuda()
    own = copy.deepcopy(theirs)
    net = gfxgraph.graphed(own, dynamic={"ids": {1: "t"}, "mask": {1: "t"}}, buckets=buckets)
    of = gfxgraph.callables.graphed.Graphed.of(net)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, theirs)]
    seen, lengths = [], LENGTHS if buckets else [*LENGTHS, 10]  # the first call is traced, and captures nothing
    for _ in range(4):
        for n in lengths:
            given = batch(n)
            mine, eager = (trained(each, o, *given) for each, o in zip((net, theirs), optimizers))
            torch.testing.assert_close(mine, eager)
            assert mine[0].is_contiguous() and mine[0].untyped_storage().nbytes() == 4 * 4 * n
        seen.append(of.stats()["captures"])
    stats = of.stats()
    # Four an octave from 7 to 31: 7, 10, 12, 14, 16, 20, 24, 28, 32.
    assert seen[0] == seen[-1] == (2 if buckets else 9), of.explain()
    assert stats["eager"] == {"warm-up": 1} and stats["replays"] == 4 * len(lengths) - 1 and not stats["pieces"], (
        of.explain()
    )
    assert "t may be padded: no row reaches an earlier one" in of.explain()


class Attention(nn.Module):
    """A block as people write it: positions from a table, fused projections, torch's own causal attention."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.norm, self.qkv, self.out, self.head = (
            nn.LayerNorm(16),
            nn.Linear(16, 48),
            nn.Linear(16, 16),
            nn.Linear(16, 50),
        )

    def forward(self, input_ids):
        b, t = input_ids.size()
        x = self.tokens(input_ids) + self.places(torch.arange(t, device=input_ids.device))
        q, k, v = (each.view(b, t, 2, 8).transpose(1, 2) for each in self.qkv(self.norm(x)).split(16, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).contiguous().view(b, t, 16)))


def language_model(name):
    if name == "own":
        return Attention()
    models = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    if name == "GPT2":
        small = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 32}
        return models.GPT2LMHeadModel(models.GPT2Config(**sizes, **small, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    small = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    return models.LlamaForCausalLM(models.LlamaConfig(**sizes, **small, num_key_value_heads=1))


@pytest.mark.parametrize("name", ["own", "GPT2", "Llama with a mask"])
def test_language_models_of_any_length(name):
    """What follows a token does not reach it: a batch of any length trains in the graphs of two buckets."""
    torch.manual_seed(0)
    theirs = language_model(name.partition(" ")[0]).cuda()
    own = copy.deepcopy(theirs)
    has_mask = name.endswith("mask")
    dynamic = {"input_ids": {1: "t"}} | ({"attention_mask": {1: "t"}} if has_mask else {})
    net = gfxgraph.graphed(own, dynamic=dynamic, buckets=[16, 32])
    options = {} if name == "own" else {"use_cache": False}
    lengths = [*LENGTHS[:7], 32, *LENGTHS[:2]]
    for n in lengths:
        ids = torch.randint(0, 50, (3, n), device="cuda")
        mask = (torch.arange(n, device="cuda") < n - 2).long().expand(3, n).contiguous()
        given = options | ({"attention_mask": mask} if has_mask else {})
        found = []
        for each in (net, theirs):
            out = each(input_ids=ids, **given)
            logits = out if name == "own" else out.logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            found.append([logits.detach(), *torch.autograd.grad(loss, [*each.parameters()], allow_unused=True)])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    of = gfxgraph.callables.graphed.Graphed.of(net)
    assert of.stats()["captures"] == 2 and of.stats()["calls"]["eager"] == {"warm-up": 1}, of.explain()
    with torch.no_grad():  # without gradients too
        for n in LENGTHS[:4] * 2:
            ids = torch.randint(0, 50, (3, n), device="cuda")
            given = options | ({"attention_mask": torch.ones_like(ids)} if has_mask else {})
            found = [each(input_ids=ids, **given) for each in (net, theirs)]
            torch.testing.assert_close(*(out if name == "own" else out.logits for out in found), rtol=1e-4, atol=1e-5)
    assert of.stats()["calls"]["by_graph"] >= len(lengths) - 1 + 3, of.explain()


def gradients(fn, given, wanted):
    """Results and gradients, the latter of a loss that weighs each row in its own way."""
    out = fn(*given)
    weights = torch.linspace(0.5, 2, out.numel(), device="cuda").view(out.size())
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True)]


def same(fn, graphed, make, wanted, sizes):
    for size in sizes:
        given = make(*size) if isinstance(size, tuple) else make(size)
        own = [*wanted, *[t for t in given if t.requires_grad]]
        torch.testing.assert_close(gradients(graphed, given, own), gradients(fn, given, own), msg=str(size))


def weight(*size):
    return torch.randn(*size, device="cuda", requires_grad=True)


def test_an_argument_that_needs_gradients_and_two_dims():
    """The gradient of a padded argument is its own rows' one; the two dims are told apart."""
    torch.manual_seed(0)
    w = weight(6, 6)

    def f(x, bias):
        return torch.softmax((x @ w).transpose(0, 1) + bias[:, None], -1).tanh()

    make = lambda b, t: (weight(b, t, 6), torch.randn(t, 6, device="cuda"))  # noqa: E731
    g = gfxgraph.graphed(f, dynamic={"x": {0: "b", 1: "t"}, "bias": {0: "t"}}, buckets={"b": [4, 8], "t": [16]})
    same(f, g, make, [w], [(3, 9), (5, 12), (8, 16), (3, 11), (4, 9), (7, 16), (5, 12), (2, 13), (3, 9)])
    assert g.stats()["captures"] == 2 and g.stats()["eager"] == {"warm-up": 1}, g.explain()


def test_padding_is_no_row_of_zeros():
    """A row is divided by its length: of zeros, that is not a number, and would reach the weights' gradients."""
    torch.manual_seed(0)
    w = weight(6, 6)
    f = lambda x: (x / x.norm(dim=-1, keepdim=True)) @ w  # noqa: E731
    g = gfxgraph.graphed(f, dynamic={"x": {0: "n"}}, buckets=[8])
    same(f, g, lambda n: (torch.randn(n, 6, device="cuda"),), [w], [5, 6, 7, 5, 3])
    assert g.stats()["replays"] == 4, g.explain()


def test_two_lengths_before_one_backward():
    """A backward belongs to its own forward, whose rows were others."""
    torch.manual_seed(0)
    w = weight(6, 6)
    f = lambda x: (x @ w).sigmoid()  # noqa: E731
    g = gfxgraph.graphed(f, dynamic={"x": {0: "n"}}, buckets=[8])
    for _ in range(4):
        a, b = torch.randn(5, 6, device="cuda"), torch.randn(7, 6, device="cuda")
        mine, eager = (torch.autograd.grad(fn(a).sum() + 2 * fn(b).sum(), w) for fn in (g, f))
        torch.testing.assert_close(mine, eager)
    assert g.stats()["captures"] == 1


class _Centred(torch.autograd.Function):
    """Its backward takes rows together, its forward does not."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0)


REFUSED = {
    "batch norm": (lambda x, w: F.batch_norm(x @ w, None, None, training=True), "batch_norm"),
    "mean": (lambda x, w: x @ w - (x @ w).mean(0), "mean"),
    "frequencies": (lambda x, w: F.embedding(x.argmax(1), w, scale_grad_by_freq=True), "embedding"),
    "custom": (lambda x, w: _Centred.apply(x @ w), "a custom autograd function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_that_mixes_rows_is_named(name, caplog):
    """Each size has graphs of its own then: explain(), stats() and one warning say why, and strict raises."""
    torch.manual_seed(0)
    (f, op), w = REFUSED[name], weight(6, 6)
    make = lambda n: (torch.randn(n, 6, device="cuda"), w.detach().requires_grad_())  # noqa: E731
    dynamic = {"x": {0: "n"}}
    with caplog.at_level(logging.WARNING):
        g = gfxgraph.graphed(f, dynamic=dynamic, buckets=[8])
        same(f, g, make, [], [5, 6, 7, 5, 6, 7, 5, 6, 7])
    (why,) = g.stats()["slow"]
    assert why.startswith("padding refused: n is not padded: ") and op in why and "graphs of its own" in why
    assert why in g.explain() and sum("padding_refused" in each.message for each in caplog.records) == 1
    assert g.stats()["captures"] == 3
    strict = gfxgraph.graphed(f, dynamic=dynamic, buckets=[8], strict=True)
    with pytest.raises(ConfigError, match="padding_refused"):
        for n in (5, 6, 7):
            strict(*make(n))


def test_above_every_bucket():
    """Such a call runs eagerly, and says so."""
    w = weight(6, 6)
    f = lambda x: (x @ w).relu()  # noqa: E731
    g = gfxgraph.graphed(f, dynamic={"x": {0: "n"}}, buckets=[8])
    same(f, g, lambda n: (torch.randn(n, 6, device="cuda"),), [w], [5, 6, 9, 7, 9])
    assert g.stats()["eager"]["n=9 is larger than every bucket"] == 2 and g.stats()["captures"] == 1


@pytest.mark.parametrize("needs_gradients", [True, False])
def test_one_tensor_for_several_arguments_is_padded_once(needs_gradients):
    """As self-attention is called, and unlike two tensors, whose graph is another."""
    torch.manual_seed(0)
    inner = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    theirs, dims = copy.deepcopy(inner), dict.fromkeys(("query", "key", "value"), {0: "rows"})
    net = gfxgraph.graphed(inner, dynamic=dims, buckets=[4, 8])
    for turn, n in enumerate((5, 7, 3, 6, 8, 2, 5, 7, 3, 6)):
        x = torch.randn(n, 6, 8, device="cuda", requires_grad=needs_gradients)
        others = (x, x) if turn < 8 else (x, torch.randn_like(x))
        found = []
        for each in (net, theirs):
            each.zero_grad()
            with torch.set_grad_enabled(needs_gradients):
                out = each(x, *others, need_weights=False)[0]
            if needs_gradients:
                out.square().sum().backward()
            found.append([out, x.grad, *[p.grad for p in each.parameters()]])
            x.grad = None
        torch.testing.assert_close(*found)
    stats = gfxgraph.callables.graphed.Graphed.of(net).stats()
    assert stats["captures"] <= 4 and not stats["calls"]["slow"] and "padding" not in str(stats["eager"]), stats


def test_which_results_receive_gradients_is_learnt_for_all_sizes():
    """As of a model that returns a loss and what it is made of: the first backward tells it."""
    torch.manual_seed(0)
    lin = nn.Linear(8, 8).cuda()
    net = gfxgraph.graphed(lambda x: (lin(x).square().mean(), lin(x) * 2))
    for n in (3, 4, 5, 6):
        for _ in range(4):
            net(torch.randn(n, 8, device="cuda"))[0].backward()
    traced_once_more = 2  # of one size, then of any
    assert net.stats()["captures"] == 4 + traced_once_more, net.explain()


def test_a_refusal_at_three_sizes_is_one_at_all(monkeypatch):
    """As of a language model that shifts its labels: a verdict on a large one takes a second."""
    decided = []
    decide = PaddingCheck._decide
    monkeypatch.setattr(PaddingCheck, "_decide", lambda *of: decided.append(of) or decide(*of))
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    shift = lambda x: F.pad(x * weight, (0, 0, 0, 1))[:, 1:] * (x.shape[1] * 2 - 1)  # noqa: E731
    net = gfxgraph.graphed(shift, dynamic={"x": {1: "t"}}, buckets=[8, 16, 32])
    for n in (8, 16, 5, 6, 7, 9, 10, 5, 6, 20):
        x = torch.randn(2, n, 8, device="cuda")
        torch.testing.assert_close(net(x), shift(x))
        net(x).sum().backward()
    assert len(decided) == 3 and "constant_pad_nd" in net.explain(), net.explain()


@pytest.mark.parametrize("needs_gradients", [True, False])
def test_one_tensor_of_which_one_argument_alone_is_dynamic(needs_gradients):
    """A padding of the one would pad the other, which the program has not allowed."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    fn = lambda a, b: (a * 2 + b - b.mean(0)) * weight  # noqa: E731
    net = gfxgraph.graphed(fn, dynamic={"b": {0: "rows"}}, buckets=[8])
    with torch.set_grad_enabled(needs_gradients):
        for n in (8, 8, 8, 5, 5, 5, 7, 7, 7):
            x = torch.randn(n, 4, device="cuda")
            torch.testing.assert_close(net(x, x), fn(x, x))
    assert "not each of them has the dynamic dims" in net.explain()
