"""Types of ``gfxgraph.graphed`` for type checkers: the parameters and the result of the given function.

``Graphed`` itself accepts anything, because a call must cost microseconds; these protocols describe it precisely.
torch
is not imported, so they also work where it is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar

if TYPE_CHECKING:
    from gfxgraph.types import MovedInput, ReplayMode

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


class Picks(Protocol):
    """The rule by which sizes of one dim are rounded up (``core.bucket_sizes.Buckets``)."""

    def pick(self, n: int, /) -> int | None:
        """The smallest bucket holding ``n``; None above the largest."""


class GraphedOptions(TypedDict, total=False):
    """The keyword arguments of ``graphed``; documented in its docstring."""

    dynamic: Mapping[str, Mapping[int, object] | Sequence[object] | str] | Literal["infer"] | None
    buckets: Sequence[int] | str | Picks | Mapping[str, Sequence[int] | str | Picks | None] | None
    mode: ReplayMode | Literal["standard", "adaptive", "hot"] | None
    moved: MovedInput | Literal["copy", "recapture"]
    warmup: int
    max_graphs: int
    strict: bool
    ranks: bool
    assume_pure: bool
    in_place: bool


class GraphedStats(TypedDict):
    """The result of ``stats()`` of a graphed callable."""

    captures: int
    replays: int
    eager: dict[str, int]
    pieces: dict[str, int]
    signatures: int


class GraphedCallable(Protocol[P, R_co]):
    """The given function, with the same parameters and result, plus information about its graphs."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def __get__(
        self: GraphedCallable[Concatenate[S, Q], R_co], instance: S, owner: type | None = None
    ) -> GraphedCallable[Q, R_co]: ...

    def capture_all(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, int]:
        """Capture every bucket now, largest first."""
        ...

    def stats(self) -> GraphedStats:
        """Captures, replays, and eager calls by reason."""
        ...

    def explain(self) -> str:
        """Every signature: how it runs, and why."""
        ...

    def reset(self) -> None:
        """Drop every capture."""
        ...


class GraphedDecorator(Protocol):
    """``graphed(...)`` without a function: a decorator."""

    def __call__(self, fn: Callable[P, R]) -> GraphedCallable[P, R]: ...
