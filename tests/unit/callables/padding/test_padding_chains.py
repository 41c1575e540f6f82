"""Random chains of operations: whatever is allowed must be right in the call's own rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.callables.padding.programs import Program
from tests.unit.callables.padding.test_row_independence import check, judged

OPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x.relu(),
    lambda x, y: x + y,
    lambda x, y: x * y.sigmoid(),
    lambda x, y: x - y.flip(-1),
    lambda x, y: x.transpose(0, 1),
    lambda x, y: x.transpose(-1, -2),
    lambda x, y: x.movedim(0, -1),
    lambda x, y: x.unsqueeze(0),
    lambda x, y: x.unsqueeze(1),
    lambda x, y: x.squeeze(),
    lambda x, y: x.reshape(-1),
    lambda x, y: x.reshape(-1, 2),
    lambda x, y: x.reshape(2, -1),
    lambda x, y: x.reshape(x.shape[0], -1),
    lambda x, y: x.reshape(-1, x.shape[-1]),
    lambda x, y: x.reshape(x.shape[0], 2, -1),
    lambda x, y: x.flatten(0, 1),
    lambda x, y: x.softmax(-1),
    lambda x, y: x.softmax(0),
    lambda x, y: x.cumsum(0),
    lambda x, y: x.cumsum(-1),
    lambda x, y: x.amax(0),
    lambda x, y: x.amax(-1, keepdim=True),
    lambda x, y: x.sum(-1),
    lambda x, y: x.sum(0, keepdim=True),
    lambda x, y: x.mean(1),
    lambda x, y: x.sort(0).values,
    lambda x, y: x.sort(-1).values,
    lambda x, y: x.argmax(-1).float(),
    lambda x, y: x.topk(1, 0).values,
    lambda x, y: x.flip(0),
    lambda x, y: x.flip(-1),
    lambda x, y: x.roll(1, 0),
    lambda x, y: x[0],
    lambda x, y: x[-1],
    lambda x, y: x[1:],
    lambda x, y: x[:-1],
    lambda x, y: x[::2],
    lambda x, y: x[-2:],
    lambda x, y: x[:2],
    lambda x, y: x[..., :1],
    lambda x, y: x[..., 1:],
    lambda x, y: x[:, 0],
    lambda x, y: x[:, -1],
    lambda x, y: x[: x.shape[0] // 2],
    lambda x, y: torch.cat([x, x]),
    lambda x, y: torch.cat([x, y], -1),
    lambda x, y: torch.cat([x[:1], x]),
    lambda x, y: torch.cat([torch.ones_like(x[:1]), x]),
    lambda x, y: torch.stack([x, x + 1]),
    lambda x, y: torch.stack([x, x * 2], -1),
    lambda x, y: x.repeat(2, *[1] * (x.dim() - 1)),
    lambda x, y: x.repeat(*[1] * (x.dim() - 1), 2),
    lambda x, y: x.repeat_interleave(2, 0),
    lambda x, y: x.expand(2, *x.shape),
    lambda x, y: x + x[:1],
    lambda x, y: x[:, None] - x[None],
    lambda x, y: x @ x.transpose(-1, -2),
    lambda x, y: x.transpose(-1, -2) @ x,
    lambda x, y: x @ torch.ones(x.shape[-1], 3),
    lambda x, y: x @ y.transpose(-1, -2) @ y,
    lambda x, y: F.layer_norm(x, x.shape[-1:]),
    lambda x, y: F.pad(x, (1, 0)),
    lambda x, y: F.pad(x, (0, 0, 1, 0)),
    lambda x, y: F.pad(x, (0, 0, 0, 1)),
    lambda x, y: F.pad(x, (-1, 0)),
    lambda x, y: x.tril(),
    lambda x, y: x.triu(1),
    lambda x, y: x * torch.arange(x.shape[0]).view(-1, *[1] * (x.dim() - 1)),
    lambda x, y: x + torch.arange(x.shape[-1]),
    lambda x, y: x / x.shape[0],
    lambda x, y: x / x.shape[-1],
    lambda x, y: x[torch.arange(x.shape[0])],
    lambda x, y: x[(x.flatten()[:2].abs() % min(2, x.shape[0])).long()],
    lambda x, y: x[(y.flatten()[:2] * 2).long().clamp(-1, 1)],
    lambda x, y: x.gather(-1, x.argmax(-1, keepdim=True)),
    lambda x, y: x.gather(0, x.argmax(0, keepdim=True)),
    lambda x, y: torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 2.0),
    lambda x, y: torch.zeros(4, *x.shape[1:]).index_put(((x.flatten(1)[:, 0].abs() * 9).long() % 4,), x),
    lambda x, y: torch.zeros(4, *x.shape[1:]).index_add(0, torch.arange(x.shape[0]) % 4, x),
    lambda x, y: x.index_copy(0, torch.tensor([0]), y[1:2]),
    lambda x, y: x.select_scatter(y[0], 0, 1),
    lambda x, y: x.slice_scatter(y[:2], 0, 0, 2),
    lambda x, y: x.masked_fill(x > 0, 1.0),
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x.unfold(-1, 2, 1),
    lambda x, y: x.diagonal(0, 0, 1),
    lambda x, y: x.diagonal(0, -2, -1),
    lambda x, y: x.split(2)[0],
    lambda x, y: x.unbind(-1)[0],
    lambda x, y: x.chunk(2, -1)[-1],
    lambda x, y: F.scaled_dot_product_attention(x, x, y),
    lambda x, y: torch.einsum("i...,i...->...i", x, x),
    lambda x, y: torch.einsum("i...,j...->ij", x, y),
    lambda x, y: x.new_zeros(x.shape) + x.sum(-1, keepdim=True),
    lambda x, y: torch.zeros(x.shape[0], 2).add_(1),
    lambda x, y: x.view(-1, *x.shape[2:]),
    lambda x, y: x.permute(*range(x.dim() - 1, -1, -1)),
    lambda x, y: x.clone().add_(y),
    lambda x, y: x.max(0).values if x.dim() == 1 else x.max(1).values,
    lambda x, y: x.conj().real.var(-1),
]
SHAPES: list[tuple[tuple[int], Callable[[int], tuple[int, ...]]]] = [
    ((0,), lambda n: (n, 4)),
    ((1,), lambda n: (3, n, 2)),
    ((0,), lambda n: (n, 2, 6)),
    ((1,), lambda n: (4, n)),
]


def chain(numbers: list[int], x: Tensor) -> Tensor:
    """Operations one after the other; each is also given the first input, or what came before, by turns."""
    before = x
    for number in numbers:
        y = OPS[number % len(OPS)](x, before if before.shape == x.shape else x)
        before, x = x, y
    return x


def is_a_program(step: Callable[[Tensor], Tensor], shape: Callable[[int], tuple[int, ...]]) -> bool:
    """Whether it runs at all sizes."""
    try:
        for n in (5, 7, 9):
            if step(torch.randn(shape(n))).numel() > 100_000:
                return False
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
    return True


def holds_up(numbers: list[int], shape_number: int) -> bool | None:
    """Judge one chain, and run it where it is allowed; None where it is no program."""
    (dim,), shape = SHAPES[shape_number]
    step = functools.partial(chain, numbers)
    if not is_a_program(step, shape):
        return None
    program = Program(step, lambda n: (torch.randn(shape(n)),), {0: {dim: "n"}})
    verdicts = {n: judged(program, n, 9) for n in (5, 7)}
    for n, verdict in verdicts.items():
        if not verdict.refusal:
            check(program, verdict, n, 9)
    return not verdicts[5].refusal


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, len(OPS) - 1), min_size=1, max_size=5), st.integers(0, len(SHAPES) - 1))
def test_what_is_allowed_is_right(numbers: list[int], shape_number: int) -> None:
    """Padding of garbage, zeros and repeated rows leaves the results' own part as it is."""
    torch.manual_seed(0)
    assert holds_up(numbers, shape_number) in (True, False, None)
