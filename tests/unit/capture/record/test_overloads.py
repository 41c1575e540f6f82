"""A binding that stands in for an overload is that overload."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.capture.record.overloads import BINDINGS

A, B = torch.rand(4, 4) + 0.5, torch.rand(4, 4) + 0.5
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    **dict.fromkeys(
        "add.Tensor sub.Tensor mul.Tensor div.Tensor add_.Tensor mul_.Tensor".split(), [(A, B), (A, 2.0), (A, 3)]
    ),
    **dict.fromkeys("neg rsqrt sqrt cos sin exp tanh sigmoid t clone silu gelu".split(), [(A,)]),
    "pow.Tensor_Scalar": [(A, 2), (A, 0.5)],
    "mean.dim": [(A, [-1]), (A, [0, 1], True), (A, None)],
    "view": [(A, [16]), (A, [2, -1])],
    "transpose.int": [(A, 0, 1)],
    "unsqueeze": [(A, -1)],
    "expand": [(A, [3, 4, 4]), (A, [-1, 4])],
    **dict.fromkeys(("mm",), [(A, B)]),
    "bmm": [(A[None], B[None])],
    "index_copy_": [(A, 0, torch.tensor([1, 0]), B[:2])],
    "cat": [([A, B],), ([A, B], 1)],
    "addmm": [(A, B, A)],
}


class Seen(TorchDispatchMode):
    """Notes each operation with its arguments, and what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, [list(a) if isinstance(a, list) else a for a in args], kwargs or {}))
        return func(*args, **(kwargs or {}))


def called(call: Any, args: Any) -> tuple[list[Any], Any]:
    with Seen() as seen, torch.no_grad():
        out = call(*args)
    return seen.calls, out


def is_same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, torch.Tensor) and one == other)


@pytest.mark.parametrize("name", sorted(BINDINGS))
def test_a_binding_calls_its_overload_and_nothing_else(name: str) -> None:
    """Same operation, same arguments, same bits as by the overload's name."""
    short = name.removeprefix("aten::")
    packet, _, overload = short.partition(".")
    func = getattr(getattr(torch.ops.aten, packet), overload or "default")
    for arguments in ARGUMENTS[short]:
        fresh = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments], list(arguments)
        by_name, expected = called(func._op, [fresh[0][0], *fresh[1][1:]])
        start = arguments[0].clone() if isinstance(arguments[0], torch.Tensor) else arguments[0]
        bound, out = called(BINDINGS[name], [start, *arguments[1:]])
        assert [call[0] for call in bound] == [func] == [call[0] for call in by_name]
        assert len(bound[0][1]) == len(by_name[0][1])
        assert all(is_same(a, b) for a, b in zip(bound[0][1][1:], by_name[0][1][1:]))
        assert bound[0][2] == by_name[0][2]
        assert torch.equal(out, expected)
        assert (out is start) == (expected is fresh[0][0])
