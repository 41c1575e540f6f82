"""Whether a bucket may stand in for a smaller size: padding must not change what the caller sees.

The captured bucket runs with two different pad contents. The part of each result that is not padding
must be the same in both, and must be what the function gave for the call itself. Where a result's size
follows the bucket is found by comparing it with the call's own, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAD_CONTENTS = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """A result's dim is ``factor`` times a named dim plus ``offset``."""

    dim: int
    name: str
    factor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``refused`` says why the bucket cannot be used, '' where it can; ``rules`` how results are cut."""

    refused: str
    rules: tuple[tuple[Rule, ...], ...] = ()


def prove(
    run: Callable[[float], list[Tensor]],
    expected: Sequence[Tensor],
    actual: Mapping[str, int],
    bucket: Mapping[str, int],
) -> Verdict:
    """Run the bucket with different pad contents and compare.

    Args:
        run: replays the bucket on the call's tensors with this pad content; gives all of its results.
        expected: what the function gave for the call itself.
        actual: size of each dynamic dim in the call.
        bucket: its size in the bucket.
    """
    first, second = (run(content) for content in PAD_CONTENTS)
    if len(first) != len(expected):
        return Verdict(f"it returned {len(first)} tensors in the bucket and {len(expected)} for the call")
    rules = []
    for i, (padded, other, real) in enumerate(zip(first, second, expected)):
        found = _rules(padded, real, actual, bucket)
        if found is None:
            sizes = f"{tuple(padded.size())} in the bucket and {tuple(real.size())} for the call"
            return Verdict(f"result {i} is {sizes}")
        rules.append(found)
        mine, again = cut(padded, found, actual), cut(other, found, actual)
        if not torch.equal(_bits(mine), _bits(again)):
            return Verdict(f"result {i} depends on the padding")
        if not torch.allclose(mine, real, rtol=_tolerance(real), atol=_tolerance(real), equal_nan=True):
            return Verdict(f"result {i} is not what the function gives without padding")
    return Verdict("", tuple(rules))


def size_after(static: Tensor, rules: Sequence[Rule], actual: Mapping[str, int]) -> tuple[int, ...] | None:
    """A result's size in a call; None where it is whole."""
    if not rules:
        return None
    size = list(static.size())
    for rule in rules:
        size[rule.dim] = rule.factor * actual[rule.name] + rule.offset
    return None if size == list(static.size()) else tuple(size)


def cut(tensor: Tensor, rules: Sequence[Rule], actual: Mapping[str, int]) -> Tensor:
    for rule in rules:
        tensor = tensor.narrow(rule.dim, 0, rule.factor * actual[rule.name] + rule.offset)
    return tensor


def _rules(
    padded: Tensor, real: Tensor, actual: Mapping[str, int], bucket: Mapping[str, int]
) -> tuple[Rule, ...] | None:
    if padded.dim() != real.dim() or padded.dtype != real.dtype:
        return None
    found = []
    for dim, (large, small) in enumerate(zip(padded.size(), real.size())):
        if large == small:
            continue
        for name, n in actual.items():
            more = bucket[name] - n
            if more and (large - small) % more == 0 and (large - small) // more > 0:
                factor = (large - small) // more
                found.append(Rule(dim, name, factor, small - factor * n))
                break
        else:
            return None
    return tuple(found)


def _bits(tensor: Tensor) -> Tensor:
    """For a comparison in which nan equals itself."""
    if not tensor.is_floating_point():
        return tensor
    return torch.nan_to_num(tensor)


def _tolerance(tensor: Tensor) -> float:
    return _TOLERANCES.get(tensor.dtype, 0.0)


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}
