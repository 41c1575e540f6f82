"""Programs whose Python reads values of the device inside a plain capture, in every way that was thought of.

Each takes a device tensor of six floats and gives tensors; run eagerly and replayed they must agree, or the
replay raises GuardMismatch. ``right`` ones must agree for every input; the others may refuse a changed value.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import csv
import ctypes
import datetime
import functools
import io
import json
import logging
import marshal
import math
import pickle
import queue
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import torch
import torch.nn.functional as F
from torch import zeros as zeros_by_name
from torch.overrides import TorchFunctionMode

import gfxgraph

RIGHT: dict[str, object] = {}
GUARDED: dict[str, object] = {}
REFUSED: dict[str, object] = {}
STATEFUL: dict[str, object] = {}
NAMES = {1: "one", 2: "two"}


def right(func):
    RIGHT[func.__name__] = func
    return func


def guarded(func):
    GUARDED[func.__name__] = func
    return func


def refused(func):
    """C code in it takes nothing but a float or an int of Python's own."""
    REFUSED[func.__name__] = func
    return func


def stateful(func):
    """``func()`` gives (body, tensors it changes)."""
    STATEFUL[func.__name__] = func
    return func


# -- arithmetic -----------------------------------------------------------------------------------------------


@right
def times(x):
    return x * x.sum().item()


@right
def divided_by_max(x):
    return x / x.max().item()


@right
def reflected(x):
    v = x.mean().item()
    return 1 - x * v, v - x, 2 / (x.abs() + 1) * v, v / (x.abs() + 1), 2.0 ** x.clamp(max=3) + v


@right
def clip_by_norm(x):
    return x * min(1.0, 2.0 / (x.norm().item() + 1e-6))


@right
def parts_of_a_chosen_row(x):
    rows = x.clone().view(3, 2)
    order = rows[:, 0].argsort()
    row = rows[order[0]]
    return row[0] - row[1], rows[order[1:]] * 2


@right
def a_number_of_what_a_chosen_row_gave(x):
    rows = x.clone().view(3, 2)
    i = x[0].long().clamp(0, 2).item()
    weights = (rows @ rows[i]).softmax(0)
    return weights[i] * 2, weights


@right
def chained_arithmetic(x):
    a, b = x.max().item(), x.min().item()
    return (x - b) / (a - b + 1e-9) + (a * b) // 3 + abs(a - b) ** 0.5 + (-a) % 7


@right
def divmod_and_round(x):
    q, r = divmod(x.sum().item(), 3)
    return x * q + r + round(x.mean().item(), 2) + round(x.mean().item())


@right
def in_place(x):
    y = x.clone()
    y *= x.sum().item()
    y.add_(x.min().item(), alpha=2)
    y -= x.max().item()
    return y


@guarded
def mathematics(x):
    v = x.abs().sum().item()
    return x * math.sqrt(v) + math.log(v + 1) + math.exp(-v / 100) + math.floor(v) + math.ceil(v) + math.pow(v, 0.5)


@guarded
def trigonometry(x):
    v = x.mean().item()
    return x * math.sin(v) + math.cos(v) * math.tanh(v) + math.atan2(v, 2.0) + math.hypot(v, 1) + math.fabs(v)


@guarded
def numpys_scalars(x):
    v = x.sum().item()
    return x * np.sqrt(np.abs(v)) + np.float64(2.0) * v + np.maximum(v, 1.0)


@guarded
def least_and_most(x):
    a, b = x.max().item(), x.min().item()
    return x * max(a, b, 1.0) + min(a, b) + max([a, b]) + min((a, 3.0)) + max(v for v in (a, b))


@right
def summed(x):
    return x + sum(v.item() for v in x) + sum([x[0].item(), 1, x[1].item()])


@right
def in_a_loop(x):
    total = 0.0
    for i in range(5):
        total = total * 0.9 + (x * (i + 1)).mean().item()
        x = x + total
    return x


@right
def long_expression(x):
    v = x.mean().item()
    total = 0.0
    for _ in range(3000):
        total = total * 0.5 + v
    return x * total


@right
def whole_numbers(x):
    n = (x > 0).sum().item()
    return x * n + n // 2 + (n << 1) + (n & 1) + n % 3 + n**2 + (~n)


@right
def means_over_counts(x):
    n = (x > 0).sum().item()
    return x.clamp(min=0).sum() / max(n, 1)


@right
def statistics_mean(x):
    return x - statistics.fmean([1.0, 2.0]) + x.mean().item()


# -- into operations -------------------------------------------------------------------------------------------


@right
def scalar_arguments(x):
    v = x.abs().max().item()
    return (
        x.clamp(-v / 2, v / 2), torch.clamp(x, max=v / 3), F.leaky_relu(x, v / 10), F.hardtanh(x, -v / 4, v / 4),
        x.pow(2) + torch.add(x, x, alpha=v), torch.where(x > v / 2, x, v), x.masked_fill(x > v / 2, v),
        torch.full((3,), v, device="cuda"), torch.full_like(x, v), x.new_full((2,), v), x.lerp(x * 2, v / 10),
    )  # fmt: skip


@right
def comparisons_of_tensors(x):
    v = x.mean().item()
    return x > v, x >= v, x < v, x == v, (x > v) & (x < v + 1)


@right
def filled(x):
    y = torch.zeros_like(x)
    y.fill_(x.sum().item())
    y[0] = x.max().item()
    y[1:3] = x.min().item()
    y[x > 1] = x.mean().item()
    return y


@right
def device_tensors(x):
    v, w = x.sum().item(), x.max().item()
    a = torch.tensor(v, device="cuda")
    b = torch.tensor([v, 1.0, w * 2], device="cuda")
    return x * a + torch.as_tensor(w, device="cuda"), b * 2, x.new_tensor([v, w]), torch.tensor([v]).cuda() + 1


@right
def host_tensors(x):
    v = x.sum().item()
    return (torch.tensor([v, 2.0]) * 3).to("cuda"), (torch.ones(2) * v).cuda(), torch.full((2,), v).cuda()


@guarded
def with_gradients(x):
    p = torch.ones(6, device="cuda", requires_grad=True)
    y = p * x
    loss = (y * y.detach().sum().item()).sum() / y.detach().norm().item()
    loss = loss + (2.0 - y.mean().item()) * p.pow(2).sum()
    (grad,) = torch.autograd.grad(loss, p)
    return grad, loss.detach()


@guarded
def scaled_loss(x):
    p = torch.ones(6, device="cuda", requires_grad=True)
    loss = (p * x).pow(2).mean()
    (loss / (loss.item() + 1e-6)).backward()
    return p.grad


@right
def addcmul_and_axpy(x):
    v = x.mean().item()
    return torch.addcmul(x, x, x, value=v), torch.addcdiv(x, x, x + 9, value=v), torch.sub(x, x * 2, alpha=v)


@right
def foreach(x):
    v = x.norm().item()
    return torch._foreach_mul([x, x + 1], v)


@right
def under_inference_mode(x):
    with torch.inference_mode():
        y = x * x.sum().item() + F.softplus(x, beta=1.0)
    return y * 1


@right
def under_autocast(x):
    with torch.autocast("cuda", dtype=torch.float16):
        y = torch.outer(x, x) @ torch.outer(x, x)
        s = y.float().abs().max().item() + 1
    return x / s


@right
def half_precision(x):
    h = x.half()
    return h * h.float().sum().item(), h / (h.abs().max().item() + 1)


@right
def ranges_by_step(x):
    v = x.abs().max().item() + 1
    return torch.linspace(0, v, 5, device="cuda"), torch.arange(0, 3, device="cuda") * v


# -- lists and host copies -------------------------------------------------------------------------------------------


@guarded
def to_list(x):
    a = x.tolist()
    return x * a[0] + sum(a) / len(a) + max(a) - min(a)


@right
def nested_list(x):
    rows = x.view(2, 3).tolist()
    return x * rows[1][2] + sum(sum(row) for row in rows)


@right
def list_and_back(x):
    return torch.tensor([v * 2 for v in x.tolist()], device="cuda") + 1


@right
def host_list(x):
    return x * x.cpu().tolist()[1] + x.cpu()[2].item()


@right
def host_copy_computed(x):
    c = x.cpu()
    return x + (c * 2).max().item() + (c.sum() / 3).to("cuda")


@right
def unpacked(x):
    a, b, *rest = x.tolist()
    return x * a + b - rest[-1]


@right
def comprehension(x):
    return torch.stack([x * v for v in x.tolist()[:3]])


# -- text ---------------------------------------------------------------------------------------------------------


@guarded
def printed(x):
    v = x.sum().item()
    lines = []
    lines.append(f"loss {v:.3f}")
    lines.append("%.2f and %d" % (v, v))
    lines.append("{:>10.2f}".format(v))
    print(v, end="", file=_NULL)
    message = f"value {v}" + str(v)
    print(message, file=_NULL)
    return x + 1


@guarded
def an_index_past_the_end(x):
    n = x[0].long().item()
    try:
        return x[n] * 2
    except IndexError:
        return x[0] - 1


@guarded
def the_text_of_a_tensor(x):
    text = repr(x[:1])
    return x * 2 if "0." in text else x * 3


@guarded
def text_as_key(x):
    table = {"1": 10.0, "2": 20.0}
    return x * table.get(f"{x.max().item():.0f}", 1.0)


@guarded
def text_compared(x):
    key = str(x.sum().item())
    if key.startswith("-"):
        return x * 2
    return x * 3


@guarded
def text_to_number(x):
    return x * float(f"{x.sum().item():.2f}")


@guarded
def text_returned(x):
    def shown(v):
        return f"{v:.1f}"

    return x * len(shown(x.sum().item()))


@guarded
def in_json(x):
    return x * json.loads(json.dumps({"v": x.sum().item()}))["v"]


# -- control flow ----------------------------------------------------------------------------------------------------


@guarded
def branch(x):
    return x + 1 if x.sum().item() > 3 else x - 1


@guarded
def branch_on_tensor(x):
    return x * 2 if (x > 0).any() else x * 3


@guarded
def comparison_chain(x):
    return x * 2 if 0 < x.mean().item() <= 2 else x


@guarded
def while_loop(x):
    n = 0
    while x.abs().max().item() > 0.5 and n < 20:
        x = x / 2
        n += 1
    return x


@guarded
def early_break(x):
    for i in range(6):
        if x[i].item() > 1.5:
            break
        x = x + 1
    return x * (i + 1)


@guarded
def all_finite(x):
    if not torch.isfinite(x).all():
        return torch.zeros_like(x)
    assert not math.isnan(x.sum().item())
    return x / 2


@guarded
def any_of_many(x):
    return x * 2 if any(v > 2 for v in x.tolist()) else x


@guarded
def is_a_bool(x):
    return x * 2 if (x > 2).any().item() is True else x


@guarded
def comparison_is_a_bool(x):
    return x * 2 if (x.sum().item() > 3) is True else x


@guarded
def flag_in_arithmetic(x):
    return x * (x.sum().item() > 3) + (x.mean().item() > 0)


@guarded
def sorted_values(x):
    return x * sorted(x.tolist())[2] + sorted([3.0, x[0].item(), 1.0])[1]


@guarded
def best_of(x):
    a = x.tolist()
    return x * a.index(max(a)) + max(range(6), key=a.__getitem__)


@guarded
def equal_tensors(x):
    return x * 2 if torch.equal(x, x.abs()) else x


@guarded
def close_tensors(x):
    return x * 2 if torch.allclose(x, x.abs()) else x


@guarded
def caught(x):
    try:
        return x * (1 / (x > 2).sum().item())
    except ZeroDivisionError:
        return x


@guarded
def matched(x):
    match (x > 0).sum().item():
        case 0:
            return x
        case 6:
            return x * 6
        case n:
            return x * n


# -- out of sight ------------------------------------------------------------------------------------------------------


@guarded
def float_of_tensor(x):
    return x / float(x.max())


@guarded
def int_of_tensor(x):
    return x * int(x.sum())


@guarded
def float_of_number(x):
    return x * float(x.sum().item())


@guarded
def rounded_to_int(x):
    return x * [1, 2, 3, 4, 5][int(x.abs().mean().item()) % 5]


@guarded
def dictionary_key(x):
    return x * {0: 1.0, 6: 2.0}.get((x > 0).sum().item(), 3.0)


@guarded
def set_member(x):
    return x * 2 if (x > 0).sum().item() in {1, 2, 6} else x


@guarded
def indexed(x):
    return x[int(x.argmax())] * x


@right
def indexed_by_item(x):
    return x * 1 + x[x.argmax().item()]


@right
def sliced(x):
    n = (x > 0).sum().item()
    return x[:n].sum() + x[max(n - 1, 0) :].sum()


@right
def indexed_by_tensor(x):
    i = x.long().abs().sum() % 5
    y = x.clone()
    y[i] = 7.0
    y[i + 1, None] = 8.0
    rows = x.expand(3, 6) * 1
    return x[i] * 2, rows[1, i] + 1, x[x.cpu().argmax()], rows[:, i.int()], y


@right
def sized(x):
    n = (x > 0).sum().item()
    return torch.zeros(n, device="cuda").sum() + torch.ones(n + 1, device="cuda").sum()


@guarded
def as_range(x):
    for i in range((x > 0).sum().item()):
        x = x + i
    return x


@right
def windowed(x):
    i = x.argmax().item()
    y = x.clone()
    y[i] = -1.0
    y[i // 2 : i // 2 + 2] += 5
    window = x[i // 2 : i // 2 + 2] * 2
    x[i] = x[i] + 0
    return y, window, x.narrow(0, i // 2, 2) + 1, x.select(0, i) + 1, x.roll(i), x.topk(i % 3 + 1).values


@right
def halves(x):
    n = (x > 0).sum().item()
    first, second = x.split([3, 3])
    return torch.cat([first, second[: n % 3]]), x.view(2, 3).sum(dim=n % 2), x.repeat_interleave(n + 1).mean()


@right
def arange_of(x):
    return torch.arange((x > 0).sum().item(), device="cuda").sum() + x


@right
def repeated(x):
    n = (x > 0).sum().item()
    return x.repeat(n + 1).sum() + x.expand(n + 1, 6).sum() + x.view(1, -1).repeat_interleave(n + 1, dim=0).sum()


@right
def rolled(x):
    return x.roll((x > 0).sum().item())


@right
def along_dim(x):
    return x.view(2, 3).sum(dim=(x > 0).sum().item() % 2)


@right
def top_few(x):
    return x.topk((x > 0).sum().item() % 5 + 1).values.sum()


@guarded
def numpy_array(x):
    a = x.cpu().numpy()
    return x * float(a.mean()) + torch.from_numpy(a * 2).cuda()


@guarded
def numpy_of_numbers(x):
    return x * float(np.array([x.sum().item(), 1.0]).sum()) + np.clip(x.mean().item(), 0, 1)


@right
def dropout_rate(x):
    return F.dropout(x, p=abs(x.mean().item()) % 1, training=False)


@right
def copied(x):
    import copy

    return x * copy.deepcopy(x.sum().item())


@right
def exact_ratio(x):
    a, b = x.sum().item().as_integer_ratio()
    return x * (a / b)


@guarded
def statistics_of_list(x):
    return x * statistics.mean(x.tolist())


@right
def signed_zero(x):
    return x * math.copysign(1.0, float((x * 0).sum()))


@refused
def an_error_that_is_caught(x):
    try:
        return torch.linalg.cholesky(torch.eye(2, device="cuda") * (x[1] - 2))
    except torch.linalg.LinAlgError:
        return x * 2


@refused
def waits_as_long_as(x):
    time.sleep(abs(x.mean().item()) * 1e-6)
    seconds = x.abs().max().item() * 1e-6
    threading.Event().wait(timeout=seconds)
    with contextlib.suppress(queue.Empty):
        queue.Queue().get(timeout=seconds)
    idle = threading.Thread(target=list)
    idle.start()
    idle.join(seconds + 1)
    return x + 1


@guarded
def in_another_thread(x):
    v = x.sum().item()
    made = []
    thread = threading.Thread(target=lambda: made.append(v * 2))
    thread.start()
    thread.join()
    return x * made[0]


@guarded
def c_format(x):
    import struct

    return x * struct.unpack("f", struct.pack("f", x.sum().item()))[0]


@right
def typed(x):
    v = x.sum().item()
    return (
        x * (v if isinstance(v, float) else 0) * (2 if isinstance(v, (int, float)) and not isinstance(v, bool) else 1)
    )


# -- shapes that depend on data ------------------------------------------------------------------------------------------


@right
def unique_values(x):
    return torch.unique(x).sum()


@right
def mask_sum(x):
    return x[x > 0].sum()


@right
def mask_to_result(x):
    return x[x > 0] * 2


@right
def mask_mean(x):
    return x[x > 0].mean() + x.masked_select(x < 1).sum()


@guarded
def mask_size(x):
    y = x[x > 0]
    return y.sum() / max(y.numel(), 1) + y.shape[0] + len(y)


@right
def nonzero_index(x):
    i = (x > 0).nonzero(as_tuple=True)[0]
    return x.index_select(0, i).sum() + torch.zeros_like(x).index_add_(0, i, x[i])


# -- the same memory by other ways, and errors of operations -------------------------------------------------------


@right
def summed_by_python(x):
    return x / (sum(x.tolist()) + 100), x * sum(map(abs, x.tolist()))


@right
def other_calls_with_sizes(x):
    n = (x > 0).sum().item() + 1
    return x.broadcast_to((n, 6)), F.interpolate(x.view(1, 1, 6), size=n), x.kthvalue(min(n, 6)).values


@guarded
def errors_that_values_decide(x):
    i = x[1].abs().long().item()
    try:
        picked = x[i]
    except IndexError as error:
        picked = x[0] * len(str(error))
    try:
        shape = x.view(i + 1, -1).sum(0)
    except RuntimeError:
        shape = x
    try:
        root = torch.linalg.cholesky(torch.eye(2, device="cuda") * (x[1] + 1))
    except torch.linalg.LinAlgError:
        root = x.view(3, 2)
    return picked, shape, root


@guarded
def an_array_of_a_mask(x):
    return torch.from_numpy(x[x > 0.7].cpu().numpy()).cuda()


@guarded
def numpy_by_force(x):
    return torch.from_numpy(x.numpy(force=True) * 2).cuda(), x * float(x[x > 0.7].numpy(force=True).sum())


@right
def computed_by_python_functions(x):
    one, two, three = x.cpu(), x.cpu(), x.cpu()
    one.apply_(lambda v: v * 2)
    two.map_(x.cpu(), lambda a, b: a + b)
    three[:2].apply_(abs)
    return one.cuda(), two.cuda(), three.cuda()


@guarded
def layers_of_a_size(x):
    n = (x > 0).sum().clamp(1, 3).item()
    layer = torch.nn.Linear(6, n).cuda()
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer(x)


@guarded
def parameter_of_a_mask(x):
    return torch.nn.Parameter(x[x > 0.7])


class Named(torch.Tensor):
    """A tensor of another class."""


@guarded
def subclass_of_a_mask(x):
    return (x[x > 0.7].as_subclass(Named) * 2).as_subclass(torch.Tensor)


@guarded
def data_replaced_by_a_mask(x):
    y = torch.zeros(6, device="cuda")
    y.data = x[x > 0.7]
    return y * 2


@guarded
def resized_by_a_number(x):
    n = (x > 0).sum().clamp(1, 5).item()
    grown, shrunk = torch.zeros(1, device="cuda"), torch.zeros(6, device="cuda")
    grown.resize_(n)
    shrunk.resize_((n,))
    return grown.fill_(2), shrunk.fill_(x[0].item())


@guarded
def mask_into_a_given_tensor(x):
    picked, places = torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.long, device="cuda")
    torch.masked_select(x, x > 0.7, out=picked)
    torch.nonzero(x > 0.7, out=places)
    return picked * 2, places + 1


@right
def mask_written(x):
    y = x.clone()
    y[x > 0] = x[x > 0] * 2
    return y


@right
def mask_counted(x):
    y = x[x > 0]
    return y.sum() / max(y.numel(), 1) + x * (x > 1).nonzero().size(0)


@right
def mask_chained(x):
    y = x[x > 0]
    z = torch.cat([y * 2, x])
    z[:2] += 1
    rows = torch.stack([z, z]).t().contiguous().view(-1, 2)
    order = torch.argsort(rows[:, 0], stable=True)
    return (
        rows[order],
        torch.nn.functional.pad(y, (1, 1)).softmax(0),
        (y > 1).sum(),
        y.std(unbiased=False).nan_to_num(),
    )


@right
def mask_outside_changed(x):
    total = torch.zeros(6, device="cuda")
    kept = x[x > 0]
    total[:1] = kept.sum()
    total.index_add_(0, (x > 0).nonzero().flatten(), kept)
    scale = kept.sum().item() + 1
    return total / scale, kept * scale, kept.cpu().sum().cuda()


@right
def unique_counts(x):
    values, inverse, counts = torch.unique(x.round(), return_inverse=True, return_counts=True)
    return values[inverse], counts.max() + inverse.sum(), values


@guarded
def mask_shape(x):
    y = x[x > 0]
    return y.view(y.shape[0], 1).sum(0) * len(y)


@guarded
def mask_expanded(x):
    y = x[x > 0]
    return torch.stack([v * 2 for v in y] + [x.sum()]).sum()


@guarded
def mask_with_gradients(x):
    p = torch.ones(6, device="cuda", requires_grad=True)
    ((p * x)[x > 0].mean() + p.sum()).backward()
    return p.grad


@functools.cache
def rows_and_layer(enabled_at):
    return torch.arange(36.0, device="cuda").reshape(6, 6), torch.nn.Linear(6, 6).cuda()


@guarded
def rows_through_a_layer(x):
    n = x.long().abs().sum().item() % 5 + 1
    rows, layer = rows_and_layer(gfxgraph.stats()["enabled_at"])
    picked = layer.weight[n]
    return layer(rows[:n]), layer(rows[x > 0]).sum(0), picked * 2, layer.weight.narrow(0, 0, n).sum()


@guarded
def rows_under_autocast(x):
    n = x.long().abs().sum().item() % 5 + 1
    rows, layer = rows_and_layer(gfxgraph.stats()["enabled_at"])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return layer(rows[:n]), (rows[x > 0] @ rows).square()


@guarded
def rows_with_gradients(x):
    n = x.long().abs().sum().item() % 5 + 1
    w = x.clone().requires_grad_()
    part, many = w[:n] ** 2, w[w.detach() > 0]
    one = w[n]
    return *torch.autograd.grad(part.mean() + many.mean() * one, w), part.detach().sum()


@guarded
def rows_trained(x):
    rows, layer = rows_and_layer(gfxgraph.stats()["enabled_at"])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        made = layer(rows[x > 0])
    loss = F.cross_entropy(F.layer_norm(made.float(), (6,)), (x > 0).nonzero().flatten())
    return torch.autograd.grad(loss, [layer.weight, layer.bias])


@guarded
def given_another_out(x):
    out = torch.empty(0, device="cuda")
    torch.mul(x[x > 0], 2, out=out)
    return out


class Doubled(torch.autograd.Function):
    """Keeps a tensor whose shape depends on data for its backward."""

    @staticmethod
    def forward(ctx, w, x):
        kept = x[x > 0]
        ctx.save_for_backward(kept)
        return w * kept.sum()

    @staticmethod
    def backward(ctx, grad):
        (kept,) = ctx.saved_tensors
        return torch.ones_like(kept).sum() * grad.sum() * kept.max(), None


@guarded
def kept_for_the_backward(x):
    w = torch.ones((), device="cuda", requires_grad=True)
    Doubled.apply(w, x.abs() - 0.75).backward()
    return w.grad


@guarded
def mask_loop(x):
    for i in (x > 1).nonzero().flatten().tolist():
        x = x + x[i]
    return x


@guarded
def mask_if_any(x):
    mask = x > 1
    return x[mask].max() * x if mask.any() else x


# -- with state -----------------------------------------------------------------------------------------------------------


# -- memory of the host -------------------------------------------------------------------------------------------


@right
def copied_into_pinned_memory(x):
    host = torch.empty(6, pin_memory=True)
    host.copy_(x, non_blocking=True)
    torch.cuda.synchronize()
    total = host.sum().item()
    host.mul_(2)
    return x + total + host.to("cuda", non_blocking=True)


@right
def host_tensor_written_through_views(x):
    host = x.cpu() * 2
    host[0] = 5
    buffer = torch.zeros(6)
    buffer[1:].copy_(host[:-1])
    return host.cuda() + buffer.cuda() + buffer.max().item()


@guarded
def saved_and_pickled(x):
    buffer = io.BytesIO()
    torch.save({"x": x}, buffer)
    buffer.seek(0)
    return torch.load(buffer)["x"].to(x.device) + pickle.loads(pickle.dumps(x.cpu())).to(x.device)


@guarded
def host_memory_handed_out(x):
    host = x.cpu()
    mine = pickle.loads(pickle.dumps(host)) + copy.deepcopy(host)
    return x + mine.cuda() + float(np.from_dlpack(host).max()) + ctypes.c_float.from_address(host.data_ptr()).value


@stateful
def rows_by_number():
    table = torch.zeros(3, 6, device="cuda")

    def body(x):
        k = x.abs().long().sum().item() % 3
        table[k] = table[k] * 0.9 + x * 0.1
        return table.sum(0)

    return body, [table]


# -- what takes nothing but plain numbers ------------------------------------------------------------------------


@right
def powers_modulo(x):
    n = (x > 0).sum().item()
    return x + pow(2, n, 7) + pow(3, 5, n + 2) + pow(n, 2, 5)


@right
def other_ways_to_make_tensors(x):
    v = x.abs().max().item() + 0.1
    with torch.device("cuda"):
        y = torch.tensor(v) + torch.zeros(6)
    return x + y + torch.asarray(v).cuda() + torch.distributions.Normal(v, 1.0, validate_args=False).log_prob(x)


@refused
def money(x):
    v, n = x.abs().max().item(), (x > 0).sum().item()
    cents = Decimal(v * 2).quantize(Decimal("0.01"))
    return x + float(cents) + float(Decimal("1.5") * n) + (Decimal("1.5") < v) + (Decimal(4) == n)


@refused
def durations(x):
    seconds = x.abs().max().item()
    pause = datetime.timedelta(seconds=seconds) + datetime.timedelta(minutes=1) * seconds
    return x + pause.total_seconds() + time.gmtime(seconds).tm_sec


@guarded
def exact_types(x):
    v, n = x.max().item(), (x > 0).sum().item()
    table = {float: 1.0, int: 2.0}
    return x + table[type(v)] + (10.0 if type(n) is int else 0.0) + sum(map(float.is_integer, x.tolist()))


@guarded
def exact_types_that_decide(x):
    v = x.max().item()
    return x * 2 if type(v) is float and type(v * 2) is float else x * 3


class _Meter:
    def __init__(self, value):
        self.value = value

    def cents(self):
        return _rounded(self.value)


def _rounded(value):
    return float(Decimal(value).quantize(Decimal("0.1")))


@refused
def through_functions_and_attributes(x):
    meter = _Meter(x.max().item())
    values = []
    for v in x.tolist():
        values.append(v)
    return x + meter.cents() + sum(_rounded(v) for v in values)


@refused
def c_code_of_many_kinds(x):
    v, n = x.abs().max().item(), (x > 0).sum().item()
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        doubled = db.execute("select ? * 2", (v,)).fetchone()[0]
    lock = threading.Lock()
    lock.acquire(timeout=v + 0.1)
    recent = collections.deque(range(9), maxlen=n + 1)
    return x + doubled + marshal.loads(marshal.dumps(v)) + len(recent) + lock.locked()


@refused
def seeds(x):
    n = x.min().long().item()
    return x + random.Random(n).random() + float(np.random.default_rng(abs(n)).random())


@guarded
def statistics_of_mixed_numbers(x):
    v = x.max().item()
    return x + statistics.mean([v, 1.0, 2]) + float(statistics.variance([*x.int().tolist(), 0.5]))


@guarded
def json_keys_and_indents(x):
    n, v = (x > 0).sum().item(), x.max().item()
    text = json.dumps({n: v, "rows": x.tolist()}, indent=2)
    return x + sum(json.loads(text)["rows"]) + pickle.loads(pickle.dumps([n], 0))[0]


@guarded
def numpys_own_functions(x):
    v = x.max().item()
    return x + bool(np.allclose(v, 3.0)) + float(np.isclose(v, 2.5))


@guarded
def text_read_back(x):
    file, rows = io.StringIO(), io.StringIO()
    file.write(f"{x.max().item()} ")
    print(x.min().item(), file=file)
    writer = csv.writer(rows)
    writer.writerow(x.tolist())
    words = []
    for v in x.tolist():
        words.append(f"{v:.1f}")
    numbers = [float(word) for word in file.getvalue().split() + rows.getvalue().split(",") + words]
    return x + sum(numbers)


@guarded
def text_kept_for_the_log(x):
    lines = []
    for v in x.tolist():
        lines.append(f"{v:.2f}")
    print("\n".join(lines), file=_NULL)
    for line in lines:
        print(line, file=_NULL)
    return x * 2


@stateful
def clipped_gradients():
    p = torch.nn.Parameter(torch.ones(6, device="cuda"))
    optimizer = torch.optim.SGD([p], lr=0.1)

    def body(x):
        optimizer.zero_grad(set_to_none=False)
        loss = (p * x).pow(2).sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss.detach(), norm

    return body, [p]


@stateful
def clipped_by_hand():
    p = torch.nn.Parameter(torch.ones(6, device="cuda"))

    def body(x):
        p.grad = None
        (p * x).pow(2).sum().backward()
        norm = p.grad.norm().item()
        scale = 1.0 / (norm + 1e-6)
        if norm < 0:
            return x
        p.grad.mul_(min(scale, 1.0))
        with torch.no_grad():
            p.sub_(p.grad * 0.1)
        return p.grad.clone()

    return body, [p]


@stateful
def grad_scaler():
    p = torch.nn.Parameter(torch.ones(6, device="cuda"))
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**120, growth_interval=2)
    step = torch.zeros((), device="cuda")

    def body(x):
        step.add_(1)
        optimizer.zero_grad(set_to_none=False)
        loss = (p * x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([p], 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler._scale.clone()

    return body, [p, step]


@stateful
def running_scale():
    scale = torch.ones((), device="cuda")

    def body(x):
        v = scale.item()
        y = x * v
        scale.mul_(0.5).add_(y.abs().mean().item())
        return y / scale

    return body, [scale]


class _Null:
    def write(self, text):
        return len(text)


_NULL = _Null()


# -- texts, through whatever the program does with them -----------------------------------------------------------


class _Router:
    def __init__(self):
        self.lines = []
        self.buffer = io.StringIO()

    def choose(self, k):
        self.name = f"e{k}"

    def chosen(self):
        return {"e0": 2.0, "e1": 3.0, "e2": 5.0}[self.name]

    def note(self, text):
        self.lines.append(text)


@guarded
def text_key_in_an_attribute(x):
    router = _Router()
    router.choose(x.abs().long().sum().item() % 3)
    return x * router.chosen()


@guarded
def text_noted_by_a_function(x):
    router = _Router()
    router.note("sum=%.3f" % x.sum().item())
    lines = []

    def note(text):
        lines.append(text)

    note(f"{x.max().item():.3f}")
    return x * float(router.lines[0].split("=")[1]) + float(lines[0])


@guarded
def text_printed_into_memory(x):
    router, buffer = _Router(), io.StringIO()
    print("max", x.max().item(), file=router.buffer)
    with contextlib.redirect_stdout(buffer):
        print(x.min().item())
    return x * float(router.buffer.getvalue().split()[1]) + float(buffer.getvalue())


@guarded
def text_names_an_attribute(x):
    router = _Router()
    setattr(router, f"w{x.abs().long().sum().item() % 2}", 3.0)
    return x * getattr(router, "w0", 1.0)


@guarded
def text_in_a_dict_of_settings(x):
    settings = {"name": f"e{x.abs().long().sum().item() % 2}"}
    return x * {"e0": 2.0, "e1": 3.0}[settings["name"]]


@guarded
def text_of_a_log_record(x):
    class Keeping(logging.Handler):
        def __init__(self):
            super().__init__()
            self.texts = []

        def emit(self, record):
            self.texts.append(record.getMessage())

    log, handler = logging.Logger("kept"), Keeping()
    log.addHandler(handler)
    log.info("sum %.3f", x.sum().item())
    return x * float(handler.texts[0].split()[1])


@guarded
def text_in_a_file(x):
    with tempfile.TemporaryFile("w+") as file:
        file.write(f"{x.max().item()}\n")
        file.seek(0)
        return x * float(file.readline())


@guarded
def texts_for_people(x):
    router, history, log = _Router(), {"loss": []}, logging.getLogger(__name__)
    v = x.mean().item()
    log.info("loss %.3f", v)
    log.info(f"loss {v:.3f}")
    print("loss", v, file=sys.stderr)
    history["loss"].append(f"{v:.3f}")
    report = f"mean {v}"
    router.show = report
    sys.stdout.write(report + "\n")
    return x * v


# -- what is asked of a plain number ---------------------------------------------------------------------------


@guarded
def questions_of_plain_numbers(x):
    limit, y = 100, x * 2
    if int(x.sum()) > limit or not int(x.abs().sum() + 1) or -100.0 >= float(x.min()):
        return y
    if float(x.abs().max()) < 1000 and len(x[x > -100.0]) != 0:
        return y + 1
    return y


@guarded
def questions_and_their_number(x):
    v = int(x.sum())
    return x + v if v > 1000 else x * v


@guarded
def shapes_taken_apart(x):
    rows = x[x > 0.25]
    pairs = (x[:, None] > x[None, :]).nonzero()
    n, two = pairs.shape
    return rows.shape[0] * x, x + n * two, x.new_zeros(7).index_fill(0, torch.arange(1, device=x.device), n)


@guarded
def methods_of_numbers(x):
    v = x.abs().sum().item()
    n, d = v.as_integer_ratio()
    return x * (n / d), x * int.bit_length(3), x + round(v).bit_length(), x * (v.conjugate() - v.real)


@right
def copies_of_numbers(x):
    held = copy.deepcopy({"v": [x.max().item()]})
    return x * held["v"][0] + copy.copy(x.min().item())


_temperature = contextvars.ContextVar("temperature", default=1.0)


@right
def a_context_variable(x):
    token = _temperature.set(x.abs().max().item() + 1)
    try:
        return (x / _temperature.get()).softmax(0)
    finally:
        _temperature.reset(token)


@right
def a_host_table_of_tensors(x):
    table = torch.tensor([1.0, 2.0, 4.0])
    return x * table[(x > 0).sum().item() % 3].item()


@right
def layers_sized_by_values(x):
    n = (x > 0).sum().item() + 1
    return F.interpolate(x[None, None], size=n)[0, 0], F.pad(x, (n, 0))


@guarded
def types_in_texts(x):
    v = x.sum().item()
    print(f"{v:.1f} of {type(v)}", file=sys.stderr)
    return x * v


@guarded
def json_for_people(x):
    lines, v = [], x.mean().item()
    lines.append(json.dumps({"mean": v, "parts": [round(v, 2)]}))
    print(json.dumps({"v": v}, indent=1), file=sys.stderr)
    return x * v


@guarded
def json_that_decides(x):
    return x * (2 if json.dumps([x.sum().item()]).startswith("[5") else 3)


@guarded
def json_in_a_file(x):
    with tempfile.TemporaryFile("w+") as file:
        json.dump({"v": x.max().item()}, file)
        file.seek(0)
        return x * json.load(file)["v"]


_caption = contextvars.ContextVar("caption", default="")


@guarded
def text_kept_by_python(x):
    _caption.set(f"{x.max().item():.0f}")
    return x * (2.0 if _caption.get() == "3" else 3.0)


@guarded
def question_of_a_text_in_some_base(x):
    return x * 2 if int("11", (x > 0).sum().item() + 2) > 3 else x * 3


@guarded
def compared_with_a_decimal(x):
    n = (x > 0).sum().item()
    return x * (n.numerator if Decimal("1.5") < n else 7)


# -- tensors given another shape or memory in place -----------------------------------------------------------


@guarded
def resized_like_a_mask_result(x):
    made, kept = torch.zeros(2, device=x.device), x[x > 1]
    made.resize_as_(kept).copy_(kept)
    return made * 2


@guarded
def data_from_a_mask(x):
    made = torch.zeros(2, device=x.device)
    made.data = x[x > 1]
    return made * 2


_FILLED = {}


@guarded
def filled_by_count(x):
    """Into memory from before, which must stay where it is when another count comes in between."""
    kept = _FILLED.setdefault(torch.cuda.is_current_stream_capturing(), torch.empty(0, device=x.device))
    torch.masked_select(x, x > 1, out=kept)
    return kept * 2


@right
def transposed_in_place(x):
    places, kept = (x.view(3, 2) > 0.2).nonzero(), x[x > 0]
    kept.unsqueeze_(0)
    return places.t_() * 2, kept + 1


# -- aliases below the dispatcher -----------------------------------------------------------------------------


class _Tagged(torch.Tensor):
    pass


@guarded
def subclass_of_a_mask_result(x):
    return (x[x > 1].as_subclass(_Tagged) * 2).as_subclass(torch.Tensor)


@guarded
def mask_of_a_subclass(x):
    tagged = x.as_subclass(_Tagged)
    return (tagged[tagged > 1] * 2).as_subclass(torch.Tensor)


@guarded
def parameter_of_a_mask_result(x):
    return torch.nn.Parameter(x[x > 1], requires_grad=False) * 2


# -- higher-order operators and scripts -----------------------------------------------------------------------


@right
def branch_operator_with_unsafe_parts(x):
    return torch.ops.higher_order.cond(
        x[0] < 2, lambda x: x + x.nonzero().sum() + torch.tensor(2.0, device=x.device), lambda x: x * 3, (x,)
    )


@right
def loop_operator(x):
    _, found = torch.ops.higher_order.while_loop(
        lambda n, x: (n < 3) & (x.abs().sum() > 2),
        lambda n, x: (n + torch.tensor(1, device=x.device), x / 2),
        (torch.zeros((), dtype=torch.int64, device=x.device), x.clone()),
        (),
    )
    return found * 1


def _scripted(x: torch.Tensor, v: float) -> torch.Tensor:
    if math.isnan(v):
        x = x + 1
    return x * torch.zeros_like(x).add(torch.tensor(2.0, device=x.device))


@right
def script_made_inside(x):
    with torch.jit.optimized_execution(False):  # its fuser wants the driver's library
        return torch.jit.script(_scripted)(x, 0.5)


@right
def second_derivatives_by_transforms(x):
    return torch.func.hessian(lambda x: x.sin().sum())(x), torch.func.jvp(torch.tanh, (x,), (x,))[1]


@guarded
def failing_factorization_caught(x):
    try:
        return torch.linalg.inv(torch.diag(x[1:4]))
    except torch.linalg.LinAlgError:
        return torch.linalg.pinv(torch.diag(x[1:4]))


# -- kernels written in Python, which run below every mode --------------------------------------------------------


@torch.library.custom_op("gfxgraph_tests::scaled", mutates_args=())
def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x / (x.abs().max().item() + 1)


@right
def read_in_an_operations_kernel(x):
    return _scaled(x) * 3, x + 1


_FACTORS = []


@torch.library.custom_op("gfxgraph_tests::by_closure", mutates_args=())
def _by_closure(x: torch.Tensor) -> torch.Tensor:
    return x * _FACTORS[-1] + 1


@right
def number_that_a_kernel_finds(x):
    _FACTORS.append(x.max().item())
    try:
        return _by_closure(x) - 1
    finally:
        _FACTORS.clear()


@torch.library.custom_op("gfxgraph_tests::grown", mutates_args=("total",))
def _grown(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x.abs())
    total.div_(total.max().item() + 1)
    return total * 2


@stateful
def kernel_that_writes_what_it_reads():
    total = torch.ones(6, device="cuda")

    def body(x):
        return _grown(total, x) + total

    return body, [total]


# -- generators that the program seeds ----------------------------------------------------------------------------


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


@right
def generator_made_inside(x):
    return x + torch.randn(6, generator=torch.Generator().manual_seed(3)).to(x.device)


@right
def generator_made_by_a_function(x):
    generator = _seeded(4)
    a, b = torch.rand(6, generator=generator), torch.rand(6, generator=generator)
    return x + (a - b).to(x.device)


_GENERATOR = torch.Generator()


def _again():
    _GENERATOR.manual_seed(5)
    return torch.randperm(6, generator=_GENERATOR)


@right
def generator_seeded_anew(x):
    return x[_again().to(x.device)] + _again().to(x.device)


@stateful
def generator_that_goes_on():
    generator = torch.Generator().manual_seed(6)

    def body(x):
        return x + torch.rand(6, generator=generator).to(x.device)

    return body, []


@right
def generator_set_back(x):
    state = _GENERATOR.get_state()
    a = torch.rand(6, generator=_GENERATOR)
    _GENERATOR.set_state(state)
    return x + (torch.rand(6, generator=_GENERATOR) - a).to(x.device)


@right
def default_generator_forked(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        a = torch.rand(6)
    state = torch.get_rng_state()
    b = torch.rand(6)
    torch.set_rng_state(state)
    return x + a.to(x.device), (torch.rand(6) - b).to(x.device)


# -- sizes, whichever number comes first -------------------------------------------------------------------------


@guarded
def shape_of_a_result_is_the_first_size(x):
    u, places = torch.unique(x, return_inverse=True)
    return torch.zeros(u.shape[0], 2, device=x.device).index_add_(0, places, x.view(6, 1).expand(6, 2))


@guarded
def sizes_read_in_the_call_that_takes_them(x):
    return torch.ones(x[x > 0.7].numel(), 2, device=x.device), torch.ones(_count(x), 3, device=x.device)


def _count(x):
    return torch.unique(x).shape[0]


@guarded
def size_that_the_callers_call_takes(x):
    return torch.ones(_count(x), 3, device=x.device) * 2


@right
def sizes_for_functions_that_were_bound_before(x):
    new, pad = x.new_ones, F.pad
    n = x[x > 0.7].numel()
    return zeros_by_name(n, 2, device=x.device) + 1, new(n, 2), pad(x, (0, n))


# -- function modes and subclasses that change what a read gives ------------------------------------------


class _Changing(TorchFunctionMode):
    """Asks for functions as the documentation of torch shows it: by identity, by name, in a table."""

    table: dict[object, object] = {torch.Tensor.tolist: lambda t: [2 * v for v in torch.Tensor.tolist(t)]}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in self.table:
            return self.table[func](*args)
        out = func(*args, **(kwargs or {}))
        if func is torch.Tensor.item:
            return out * 2 + 1
        return out + 1 if getattr(func, "__name__", "") == "__int__" else out


@right
def item_changed_by_a_mode(x):
    with _Changing():
        return x * x.max().item()


@right
def list_changed_by_a_mode(x):
    with _Changing():
        return x * x.tolist()[1]


@guarded
def int_changed_by_a_mode(x):
    with _Changing():
        return x.roll(int(x.argmax()))


class _Shifting(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor):
            args = args[0], (args[1] + 1) % 6
        return func(*args, **(kwargs or {}))


@right
def index_changed_by_a_mode(x):
    with _Shifting():
        return x * x[x.argmax()]


class _Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 2 if func is torch.Tensor.item else out


@right
def item_changed_by_a_subclass(x):
    return x * x.as_subclass(_Doubling).max().item()


# -- host tensors in other threads ---------------------------------------------------------------------


def _in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@guarded
def decision_of_another_thread(x):
    host, found = x.cpu(), {}
    _in_a_thread(lambda: found.update(alarm=bool((host > 2.5).any())))
    return x.clamp(max=2.5) if found["alarm"] else x * 1.5


@guarded
def list_of_another_thread(x):
    host, found = x.cpu(), []
    _in_a_thread(lambda: found.extend(host.tolist()))
    return x * found[2]


@guarded
def tensor_of_another_thread(x):
    host, found = x.cpu(), []
    _in_a_thread(lambda: found.append(host.sort().values))
    return found[0].to("cuda") + x


@guarded
def write_of_another_thread(x):
    host = x.cpu()
    _in_a_thread(lambda: host.mul_(3))
    return host.to("cuda") + x


_pool = ThreadPoolExecutor(1)


@guarded
def work_of_a_pool(x):
    host = x.cpu()
    return x * _pool.submit(lambda: float(host.max())).result()


_asked: queue.Queue[torch.Tensor] = queue.Queue()
_answered: queue.Queue[float] = queue.Queue()


def _answer():
    while True:
        _answered.put(_asked.get().sum().item())


@guarded
def answer_of_a_thread_of_before(x):
    if not any(thread.name == "answers" for thread in threading.enumerate()):
        threading.Thread(target=_answer, daemon=True, name="answers").start()
    _asked.put(x.cpu())
    return x + _answered.get(timeout=30)


@guarded
def thread_that_is_given_nothing(x):
    high = x.cpu().max().item()
    _in_a_thread(lambda: None)
    return x * high


# -- questions of C++'s -----------------------------------------------------------------------


@guarded
def jagged_rows_pooled(x):
    offsets = F.pad(x[:3].abs().long().clamp(1, 2).cumsum(0), (1, 0))
    n = int(offsets[-1])
    rows = torch.nested.nested_tensor_from_jagged(x[:, None].repeat(1, 2)[:n], offsets)
    return torch.nested.to_padded_tensor(rows, 0.0, output_size=(3, 2, 2)).sum(1)


@right
def branch_operator_over_a_mask_result(x):
    y = x[x > 0.7]
    return torch.ops.higher_order.cond(y.sum() > 3, lambda y: y * 2, lambda y: y + 1, (y,))


@right
def numbers_by_keyword_beside_a_mask_result(x):
    return torch.clamp(input=x[x > 0.7], min=0.1, max=x.mean().item()).sum()


@guarded
def texts_of_a_tensor_beside_a_mask_result(x):
    y = x[x > 0.7]
    shown = []
    shown.append(str(x))
    shown.append(repr(y))
    return y.sum()
