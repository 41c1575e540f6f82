"""Verdicts on one function's padding by program, refusals as text, and the user's requests.

    program ──rows_independent──> verdict for each dynamic dim (kept)
    verdict, sizes, pad= ──choose──> content of each argument's padding
                                └──> Refusal: the operation, its line, what to do

A number given as ``pad=`` is a promise that the function ignores rows that hold it (a label of -100, a mask of
-inf). It overrules a verdict that rows are combined, since such a number makes that harmless; then only the
comparison with the call's own run (compare.py) backs it up.
"""

# ruff: noqa: TID253

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gfxgraph.callables.padding.content import Content, Pad, parse_pads
from gfxgraph.callables.padding.rules import Padding, Why

if TYPE_CHECKING:
    from gfxgraph.callables.padding.dependence import DimVerdict, Independence

Dims = Mapping[int, Mapping[int, str]]
"""By position of the tensor, then by dim: the dynamic dim's name."""


MOST_SIDES = 4
"""Most traces of one program, for sizes at which torch computes it differently."""


@dataclass(frozen=True)
class PaddingRefusal:
    """Why a call is not padded, or not split into chunks."""

    reason: str
    op: str = ""
    where: str = ""
    is_final: bool = True
    """False if a later call may get another verdict."""


@dataclass(frozen=True)
class Padded:
    """How calls of one exact size are served by their bucket."""

    content: Sequence[Content]
    """What the padding of each argument holds."""
    sizes: Sequence[Sequence[int]]
    """Sizes of the tensors of the result."""
    structure: Any
    """Structure of the result."""


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on one program's padding."""

    first: Independence
    at: Callable[[Mapping[str, int]], Independence | None]
    """The verdicts that hold for calls of these sizes; None if there are none."""


class Judge:
    """The padding of one callable.

    Args:
        pads: ``pad=`` as the user gave it.
    """

    def __init__(self, pads: Any = None) -> None:
        self.pads = parse_pads(pads)
        self.refusals: dict[str, PaddingRefusal] = {}
        """By sizes and bucket, as text."""
        self._verdicts: dict[Any, list[Independence]] = {}

    def verdicts(
        self, key: Any, program: Callable[..., Any], inputs: Sequence[Any], dynamic: Dims, *, by_size: bool = False
    ) -> Verdicts:
        """The verdict for each dynamic dim; computed once for each ``key``.

        Args:
            by_size: the program is one graph of torch's functions. What its trace assumes about sizes then only
            decides how
                torch computes them (an unaligned attention mask is padded, a convolution of few
                rows takes another kernel), so sizes outside the assumptions get a trace of their own.
        """
        # lazily: sympy and Dynamo take longer to import than torch, and only padding needs them here
        from gfxgraph.callables.padding.dependence import rows_independent

        known = self._verdicts.setdefault(key, [])
        if not known:
            known.append(rows_independent(program, inputs, dynamic))

        def at(sizes: Mapping[str, int]) -> Independence | None:
            found = next((each for each in known if each.holds(sizes)), None)
            if found is None and by_size and len(known) < MOST_SIDES:
                known.append(rows_independent(program, inputs, dynamic, hints=sizes))
                found = known[-1] if known[-1].holds(sizes) else None
            return found

        return Verdicts(known[0], at)

    def explain(self) -> list[str]:
        """One line for each dim of each judged program."""
        found = itertools.chain.from_iterable(self._verdicts.values())
        return list(dict.fromkeys(line for each in found for line in each.explain().splitlines()))

    def choose(
        self,
        verdicts: Verdicts,
        names: Sequence[str],
        dims: Dims,
        actual: Mapping[str, int],
        bucket: Mapping[str, int],
    ) -> list[Content] | PaddingRefusal:
        """Choose what the padding of each argument must hold.

        Args:
            names: each tensor's path.
            dims: which dims of which tensors are dynamic.
        """
        found = verdicts.first
        padded = [name for name, n in actual.items() if bucket[name] != n]
        unread = next((name for name in padded if name not in found.dims), None)
        if unread is not None:
            return PaddingRefusal(
                f"it reads only the number of rows of {unread}, not the rows; pass the number as a tensor"
            )
        needs = max((found[name].padding for name in padded), default=Padding.ANY)
        pads = [
            self._pad_of(name) if set(padded) & set(dims.get(i, {}).values()) else None
            for i, name in enumerate(names)
        ]
        for name in padded:
            verdict = found[name]
            is_promised = any(_is_number(pad) and name in dims[i].values() for i, pad in enumerate(pads))
            if not verdict.allowed and not (is_promised and _may_be_promised(verdict)):
                return PaddingRefusal(verdict.explain(), verdict.op, verdict.where)
        for chosen in itertools.product(*[{actual[name], bucket[name]} for name in padded]):
            sizes = {**actual, **dict(zip(padded, chosen))}
            there = verdicts.at(sizes)
            worse = next((there[name] for name in padded if there and _is_worse(there[name], found[name])), None)
            if worse is not None:
                return PaddingRefusal(worse.explain(), worse.op, worse.where)
            if there is None or not all(_is_alike(found[name], there[name]) for name in padded):
                return PaddingRefusal(f"the function is a different program for sizes {_text(sizes)}")
        is_promise = not all(found[name].allowed for name in padded)
        content: list[Content] = []
        for name, pad in zip(names, pads):
            problem = None if is_promise else _problem(pad, needs)
            if problem is not None:
                return PaddingRefusal(f"pad={_shown(pad)} for {name} cannot be used: {problem}")
            content.append(pad if pad is not None else Pad.LAST if needs is Padding.LAST else Pad.ZERO)
        return content

    def why_not_split(
        self, verdicts: Verdicts, name: str, sizes: Sequence[int], actual: Mapping[str, int]
    ) -> PaddingRefusal | None:
        """Why a call may not run in chunks of ``sizes`` along the dim; None if it may."""
        # lazily: as in verdicts(), without which this is not called
        from gfxgraph.callables.padding.dependence import sentence, where_of

        found = verdicts.first
        verdict = found[name]
        if not verdict.allowed:
            return PaddingRefusal(verdict.explain(), verdict.op, verdict.where)
        if verdict.in_pieces is not None:
            cause = verdict.in_pieces
            return PaddingRefusal(
                sentence(name, cause).replace("padded", "split", 1), cause.op, where_of(cause.stack_trace)
            )
        if verdict.written:
            return PaddingRefusal(f"{name} is not split: it writes to {', '.join(verdict.written)}")
        if not all(found.holds({**actual, name: size}) for size in {*sizes, actual[name]}):
            return PaddingRefusal(f"{name} is not split: the function is a different program for pieces")
        return None

    def _pad_of(self, name: str) -> Content | None:
        return self.pads.get(name, self.pads.get(""))


def _is_alike(one: DimVerdict, other: DimVerdict) -> bool:
    """True if both allow or refuse the same, with the same cuts, writes and padding."""
    if one is other:
        return True
    if (one.outputs, one.written, one.padding, one.allowed) != (
        other.outputs, other.written, other.padding, other.allowed,
    ):  # fmt: skip
        return False
    return one.allowed or (_may_be_promised(one) and _may_be_promised(other))


def _is_worse(one: DimVerdict, other: DimVerdict) -> bool:
    return other.allowed and not one.allowed


def _is_number(pad: Content | None) -> bool:
    return pad is not None and not isinstance(pad, Pad)


def _may_be_promised(verdict: DimVerdict) -> bool:
    return verdict.reason is not None and verdict.reason.why is Why.MIXES


def _problem(pad: Content | None, needs: Padding) -> str | None:
    if pad is None or pad is Pad.LAST or needs is Padding.ANY:
        return None
    if needs is Padding.LAST:
        return 'the padding must repeat the last row; leave pad= out, or give "last"'
    is_zero = pad is Pad.ZERO or pad == 0
    return None if is_zero else 'some padding is used as an index; leave pad= out, or give "zero" or "last"'


def _shown(pad: Content | None) -> str:
    return f'"{pad.value}"' if isinstance(pad, Pad) else repr(pad)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={n}" for name, n in sizes.items())
