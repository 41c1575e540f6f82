"""Random programs that write in place, through views and into what is outside: whatever is allowed must be right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.callables.padding.programs import Program
from tests.unit.callables.padding.test_row_independence import check, judged

Statement = Callable[[Tensor, Tensor, Tensor, Tensor], Any]
"""Of what was made last, another of the rows', each row's slot in a table, and the table."""
H = 4


def assign(where: Any, value: Any) -> Statement:
    """``x[where] = value``, of the table if ``where`` is the slots."""

    def run(x: Tensor, y: Tensor, slot: Tensor, table: Tensor) -> None:
        x[where] = value(y) if callable(value) else value

    return run


STATEMENTS: list[Statement] = [
    lambda x, y, slot, table: x + y,
    lambda x, y, slot, table: x * 2,
    lambda x, y, slot, table: x.clone(),
    lambda x, y, slot, table: x.contiguous().view(-1),
    lambda x, y, slot, table: x.t(),
    lambda x, y, slot, table: x[:, :2],
    lambda x, y, slot, table: x[0],
    lambda x, y, slot, table: x[1:],
    lambda x, y, slot, table: x[:, None].expand(-1, 2, -1),
    lambda x, y, slot, table: x.add_(1),
    lambda x, y, slot, table: x.mul_(y),
    lambda x, y, slot, table: x.zero_(),
    lambda x, y, slot, table: x.copy_(y),
    lambda x, y, slot, table: x.copy_(y.flip(0)),
    lambda x, y, slot, table: x.add_(y.sum(0)),
    lambda x, y, slot, table: x.sub_(y.mean(1, keepdim=True)),
    lambda x, y, slot, table: x.fill_(x.shape[0]),
    lambda x, y, slot, table: x.add_(x.shape[0]),
    lambda x, y, slot, table: x.masked_fill_(y > 0, 3.0),
    lambda x, y, slot, table: x.cumsum_(0),
    lambda x, y, slot, table: x.cumsum_(-1),
    lambda x, y, slot, table: x.clamp_(min=0),
    lambda x, y, slot, table: x.t_(),
    lambda x, y, slot, table: x[:, 0].add_(1),
    lambda x, y, slot, table: x[:, 1:].mul_(y[:, 1:]),
    lambda x, y, slot, table: x[0].add_(1),
    lambda x, y, slot, table: x[-1].zero_(),
    lambda x, y, slot, table: x[1:].add_(1),
    lambda x, y, slot, table: x[x.shape[0] // 2 :].add_(1),
    lambda x, y, slot, table: x.view(-1)[::2].mul_(3),
    lambda x, y, slot, table: torch.add(x, y, out=torch.empty_like(x)),
    lambda x, y, slot, table: torch.mul(x, 2, out=x),
    lambda x, y, slot, table: torch.sum(x, 0, out=table[0]),
    lambda x, y, slot, table: table.add_(1),
    lambda x, y, slot, table: table.add_(x.sum(0)),
    lambda x, y, slot, table: table[: x.shape[0]].add_(x),
    lambda x, y, slot, table: table[: x.shape[0]],
    lambda x, y, slot, table: table[0].add_(x[0]),
    lambda x, y, slot, table: table[1:3].zero_(),
    lambda x, y, slot, table: table.index_copy_(0, slot, x),
    lambda x, y, slot, table: table.index_add_(0, slot, x),
    lambda x, y, slot, table: table.index_put_((slot,), x),
    lambda x, y, slot, table: table.index_put_((slot,), x[0]),
    lambda x, y, slot, table: table.index_put_((torch.arange(x.shape[0]),), x),
    lambda x, y, slot, table: table[slot],
    lambda x, y, slot, table: table[slot.add_(1) % 12],
    lambda x, y, slot, table: table[slot - 1],
    lambda x, y, slot, table: table.index_select(0, slot.clone()),
    lambda x, y, slot, table: slot.copy_(slot.flip(0)),
    lambda x, y, slot, table: slot.zero_(),
    lambda x, y, slot, table: x[torch.arange(x.shape[0]), slot % H],
    lambda x, y, slot, table: x[torch.arange(x.shape[0]).add_(0), slot % H],
    lambda x, y, slot, table: x.scatter_(1, (slot % H)[:, None], 5.0),
    lambda x, y, slot, table: x.index_fill_(1, torch.tensor([1]), 0.0),
    lambda x, y, slot, table: x.index_fill_(0, torch.tensor([1]), 0.0),
    lambda x, y, slot, table: torch.empty_like(x).copy_(y).relu_(),
    lambda x, y, slot, table: torch.zeros(x.shape[0], H).index_copy_(1, torch.tensor([2]), x[:, :1]),
    lambda x, y, slot, table: torch.zeros(12, H).index_copy_(0, slot, x),
    assign(0, 1.0),
    assign(slice(None, 2), 0.0),
    assign((slice(None), 0), lambda y: y[:, 1]),
    assign((slice(None), 0), 4.0),
    assign((Ellipsis, slice(1, None)), lambda y: y[..., 1:]),
    assign(slice(None), lambda y: y),
]


def arguments(n: int) -> tuple[Tensor, ...]:
    return torch.randn(n, H), torch.randn(n, H), torch.randperm(11)[:n], torch.randn(12, H)


def run(numbers: list[tuple[int, int]], kept: int, a: Tensor, b: Tensor, slot: Tensor, table: Tensor) -> Any:
    """Statements one after the other; returned is one of what they made."""
    made = [a, b]
    for number, which in numbers:
        out = STATEMENTS[number](made[which % len(made)], made[-1 - which % 2], slot, table)
        if isinstance(out, Tensor) and out is not slot and out is not table:
            made.append(out)
    return made[kept % len(made)]


def holds_up(numbers: list[tuple[int, int]], kept: int) -> bool | None:
    """Judge one program, and run it where it is allowed; None where it is no program."""
    step = functools.partial(run, numbers, kept)
    try:
        for n in (5, 7, 9):
            step(*arguments(n))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
    rows = {0: "n"}
    program = Program(step, arguments, {0: rows, 1: rows, 2: rows})
    verdicts = {n: judged(program, n, 9) for n in (5, 7)}
    for n, verdict in verdicts.items():
        if not verdict.refusal:
            check(program, verdict, n, 9)
    return not verdicts[5].refusal


PROGRAM = st.lists(st.tuples(st.integers(0, len(STATEMENTS) - 1), st.integers(0, 5)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(PROGRAM, st.integers(0, 5))
def test_what_is_allowed_is_right(numbers: list[tuple[int, int]], kept: int) -> None:
    """Results, and arguments that are written to, have the call's own rows; other arguments are as they were."""
    torch.manual_seed(0)
    assert holds_up(numbers, kept) in (True, False, None)
