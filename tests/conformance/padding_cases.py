"""Steps whose results padding changes, and steps where nobody can tell; each a function of the size.

A case makes a fresh step with its own outside state, and arguments for any size. ``op`` is the operation
that a refusal must name; None where padding must be found harmless. ``outside`` are tensors that the step
writes to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN = 6
BATCH = {"x": {0: "n"}}


@dataclass
class Case:
    """One planted step."""

    step: Any
    args: Any
    op: str | None
    dynamic: dict = field(default_factory=lambda: BATCH)
    outside: list = field(default_factory=list)


def rows(n):
    return (torch.randn(n, HIDDEN, device="cuda"),)


def refused(op, step, args=rows, **kw):
    return lambda: Case(step, args, op, **kw)


def fine(step, args=rows, **kw):
    def harmless():
        return Case(step, args, None, **kw)

    return harmless


def weight():
    return torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(3)).cuda()


def ids(n):
    return (torch.randint(0, 9, (n,), device="cuda"),)


def table_step(reduce, op):
    def case():
        torch.manual_seed(5)
        table = nn.Embedding(10, HIDDEN).cuda()
        return Case(lambda x: reduce(table(x)), ids, op)

    return named(case, op)


def weighted(step, op=None, args=rows, **kw):
    def case():
        w = weight()
        return Case(lambda x: step(x, w), args, op, **kw)

    return named(case, op is not None)


def named(case, op):
    """What tells the cases apart that graphs must serve."""
    case.__name__ = "harmful" if op else "harmless"
    return case


def cache_case(read):
    """A decode step: each row writes its own slot of a cache that is used before and after."""

    def case():
        cache = torch.randn(32, HIDDEN, generator=torch.Generator().manual_seed(1)).cuda()

        def step(x, slot):
            cache.index_copy_(0, slot, x)
            return cache[slot] * 2 if read else x * 2

        def args(n):
            return (*rows(n), torch.randperm(32, device="cuda")[:n])

        return Case(step, args, "aten::index_copy", {"x": {0: "n"}, "slot": {0: "n"}}, outside=[cache])

    return named(case, "aten::index_copy")


def counter():
    count = torch.zeros((), dtype=torch.long, device="cuda")

    def step(x):
        count.add_(1)
        return x * count

    return Case(step, rows, None, outside=[count])


def row_counter():
    """Counts the rows it has seen: right only without padding."""
    count = torch.zeros((), dtype=torch.long, device="cuda")

    def step(x):
        count.add_(x.shape[0])
        return x * 2

    return Case(step, rows, "aten::add", outside=[count])


def accumulator():
    """Adds every row into a buffer outside; the result itself is fine."""
    total = torch.zeros(HIDDEN, device="cuda")

    def step(x):
        total.add_((x + 1).sum(0))
        return x * 2

    return Case(step, rows, "aten::sum", outside=[total])


def writes_argument():
    def step(x):
        x.add_(1)
        return x * 2

    return Case(step, rows, None)


def batch_norm(training):
    def case():
        norm = nn.BatchNorm1d(HIDDEN).cuda().train(training)
        op = "aten::native_batch_norm|aten::cudnn_batch_norm|aten::miopen_batch_norm|aten::_batch_norm_with_update|aten::_native_batch_norm_legit"
        return Case(lambda x: norm(x), rows, op if training else None, outside=list(norm.buffers()))

    return named(case, training)


SEQ = {name: {2: "n"} for name in ("q", "k", "v")}
ATTENTION = "aten::scaled_dot_product_attention"


def heads(n):
    return tuple(torch.randn(2, 2, n, 8, device="cuda") for _ in range(3))


def with_mask(value):
    def args(n):
        mask = torch.ones(2, 1, 1, n, dtype=torch.bool, device="cuda")
        mask[1, 0, 0, n // 2 :] = False
        if value is not None:
            mask = torch.where(mask, 0.0, value)
        return (*heads(n), mask)

    return args


def attention(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attention_by_hand(x):
    return torch.softmax(x @ x.T, -1) @ x


def labelled(n):
    return (*rows(n), torch.randint(0, HIDDEN, (n,), device="cuda"))


LABELLED = {"x": {0: "n"}, "y": {0: "n"}}


CASES = {
    # across the batch
    "mean": refused("aten::mean", lambda x: (x * 2).mean(0)),
    "centred": refused("aten::mean", lambda x: x - x.mean(0)),
    "sum divided by size": refused("aten::sum", lambda x: x + x.sum(0) / x.shape[0]),
    "standard deviation": refused("aten::std", lambda x: x.std(0)),
    "softmax over the batch": refused("aten::_softmax", lambda x: torch.softmax(x * 2, 0)),
    "sort": refused("aten::sort", lambda x: x.sort(0)[0]),
    "topk": refused("aten::topk", lambda x: x.topk(2, 0)[0]),
    "loss with mean": refused("aten::mse_loss", lambda x: F.mse_loss(x, torch.zeros_like(x))),
    "loss with sum": refused("aten::sum", lambda x: (x * x).sum()),
    "reversed cumsum": refused("aten::flip", lambda x: x.flip(0).cumsum(0).flip(0)),
    "gram over rows": refused("aten::matmul", lambda x: x.T @ x),
    "attention among rows": refused("aten::matmul", attention_by_hand),
    "median": refused("aten::median", lambda x: x.median(0).values),
    "convolution over padding": weighted(
        lambda x, w: F.conv1d(x[None].transpose(1, 2), w[:, :, None].repeat(1, 1, 3), padding=1),
        "aten::convolution|aten::cudnn_convolution|aten::miopen_convolution",
    ),
    # the size as a number
    "times size": refused("aten::mul", lambda x: (x + 1) * x.shape[0]),
    "reversed positions": refused(
        "aten::flip", lambda x: x + torch.arange(x.shape[0], device="cuda").flip(0)[:, None]
    ),
    "linspace": refused("", lambda x: x + torch.linspace(0, 1, x.shape[0], device="cuda")[:, None]),
    "number returned": refused("result", lambda x: (x * 2, x.shape[0])),
    # results
    "doubled by cat": refused("aten::cat", lambda x: torch.cat([x, x])),
    "list of rows": refused("", lambda x: list((x * 2).unbind(0))),
    "pairs flattened": refused("aten::sub|aten::reshape", lambda x: (x[:, None] - x[None]).reshape(-1, HIDDEN)),
    "columns flattened": refused("aten::mul|aten::_unsafe_view|aten::reshape", lambda x: x.T.reshape(-1) * 2),
    # outside
    "batch norm in training": batch_norm(True),
    "rows counted outside": row_counter,
    "rows summed outside": accumulator,
    # indices
    "embedding mean": table_step(lambda e: e.mean(0), "aten::mean"),
    "embedding sum": table_step(lambda e: e.sum(0), "aten::sum"),
    "loss over labels": refused(
        "aten::nll_loss_forward", lambda x, y: F.cross_entropy(x, y), labelled, dynamic=LABELLED
    ),
    # attention
    "attention, no mask": refused(ATTENTION, attention, heads, dynamic=SEQ),
    "attention, zeros for an additive mask": refused(
        ATTENTION, attention, with_mask(-1e9), dynamic={**SEQ, "mask": {3: "n"}}
    ),
    # right today, but nothing says that it must be: which of two equal rows is found is the kernel's choice
    "argmax": refused("aten::argmax", lambda x: x.argmax(0)),
    # a masked weight is zero, but zero times a padding that became NaN is NaN
    "attention, causal": refused(
        ATTENTION, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads, dynamic=SEQ
    ),
    "attention, mask": refused(ATTENTION, attention, with_mask(None), dynamic={**SEQ, "mask": {3: "n"}}),
    # right with the last row repeated, or in part, but not rows apart
    "cumsum": refused("aten::cumsum", lambda x: x.cumsum(0)),
    "maximum": refused("aten::amax", lambda x: x.amax(0)),
    "last row": refused("aten::select", lambda x: x[-1] * 2),
    "result in two dims": refused("aten::matmul", lambda x: x @ x.T),
    "largest number": refused(
        "aten::amax", lambda x: x.amax(0), lambda n: (torch.randint(-9, 9, (n, 3), device="cuda"),)
    ),
    "any": refused("aten::any", lambda x: x.any(0), lambda n: (torch.rand(n, 3, device="cuda") > 0.7,)),
    "all": refused("aten::all", lambda x: x.all(0), lambda n: (torch.rand(n, 3, device="cuda") > 0.2,)),
    "probabilities": refused(
        "aten::binary_cross_entropy",
        lambda x: F.binary_cross_entropy(x, torch.zeros_like(x), reduction="none"),
        lambda n: (torch.rand(n, HIDDEN, device="cuda"),),
    ),
    "cache by index": cache_case(False),
    "cache by index, read": cache_case(True),
    # harmless
    "rowwise": weighted(lambda x, w: torch.relu(x @ w)),
    "layer norm": fine(lambda x: F.layer_norm(x, (HIDDEN,))),
    "softmax over features": fine(lambda x: torch.softmax(x, 1)),
    "sort of features": fine(lambda x: x.sort(1)[0]),
    "positions": fine(lambda x: x + torch.arange(x.shape[0], device="cuda")[:, None]),
    "result in another dim": fine(lambda x: (x.T * 2, x.reshape(-1) + 1)),
    "result that does not scale": weighted(lambda x, w: (w * 2, x * 2)),
    "batch norm in evaluation": batch_norm(False),
    "embedding": table_step(lambda e: e * 2, None),
    "ids minus one": weighted(
        lambda x, w: F.embedding(x - 1, w), args=lambda n: (torch.randint(1, 7, (n,), device="cuda"),)
    ),
    "calls counted outside": named(counter, None),
    "argument written": named(writes_argument, None),
    "half precision": weighted(
        lambda x, w: F.gelu(x @ w.half()), args=lambda n: (torch.randn(n, HIDDEN, device="cuda").half(),)
    ),
}
