"""How a tensor of a padded run relates to the same tensor of the call's own run.

Problem: a graph is run with a dim of N rows while the call has n. Each intermediate tensor then differs
from what it is at n. It must be known how, without looking at values.

Idea: for each tensor, the dims that *carry* the rows. Along such a dim the tensor at n is the front of
the tensor at N, and nothing else differs: what is behind the front is padding, of any value, NaN
included. If rows were merged behind another dim (``[2, n, 4]`` viewed as ``[2 * n, 4]``) the front
is taken in each of ``outer`` blocks. A tensor without carrying dims is the same in both runs. A tensor
for which none of this holds is ``mixed``, with the operation that made it so. Mixed tensors do no
harm until they reach a result or an effect.

Some facts about the padding itself are tracked too, for indices: padding that is used as an index must
at least be a valid one, or the GPU asserts.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]

Dims = Mapping[int, int | None]
"""Carrying dims, and the number of blocks in which rows lie there; None: constant along the dim, so any number."""


class Padding(IntEnum):
    """What the padded rows of the inputs must hold."""

    ANY = 0
    ZERO_OR_LAST = 1
    """Zero, or the last own row repeated: some rows are indices."""
    LAST = 2
    """The last own row repeated: some rows are written to memory that rows share, or computed into indices."""


class Why(Enum):
    """Why an operation prevents the use of a bucket; the text is for the user, ``{dim}`` is the dim's name."""

    MIXES = "takes the rows of {dim} together, so padding would be counted; reduce later, or within each row"
    MOVES = "puts padding of {dim} before or between rows of the call; keep the rows at the front of their dim"
    FROM_THE_END = (
        "may count rows of {dim} from the end, which is padding; use indices that are never negative (i.clamp(min=0))"
    )
    INDEX = "takes an index computed from positions, which may be out of range in the padding; limit it with clamp"
    WRITES = "writes to memory that all rows of {dim} share, so padding would be written too; give each row its place"
    SIZE = "uses the size of {dim} as a value, which is another one in a bucket; pass it as a tensor argument"
    DRAWS = "draws more random numbers for more rows of {dim}, so later ones would differ; draw outside or use eval()"
    READS = "has a result whose value the host needs and that depends on rows of {dim}; compute it outside"
    NO_RULE = "has no rule that says whether rows of {dim} stay apart; move it outside the graphed function"
    FIXED = "fixes the size of {dim}, so no other can be run; do not combine it with tensors of a constant size"
    INTERLEAVED = "leaves rows of {dim} between those of another dim in a result; return it before they are merged"
    GROWS = "has a size of {dim} that is not followed; keep one dim for each dynamic size"
    ROWS_BEFORE = "may look at other rows of {dim}, which another piece of the call would hold"
    RETURNS = "returns the size of {dim} itself, which is another one in a bucket; read it from the argument"


@dataclass(frozen=True, slots=True)
class Cause:
    """The operation that mixes padding in, and why."""

    op: str
    stack_trace: str | None
    why: Why
    detail: str = ""


class RowsRefused(Exception):
    """No bucket can be used, whatever happens to the operation's result."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class RowDependence:
    """How one tensor depends on the rows of one dynamic dim."""

    dims: Dims = field(default_factory=dict)
    repeats: bool = True
    """Its padding repeats its last own row if the inputs' padding does."""
    is_moved: bool = False
    """Its padding is the inputs' padding, possibly moved: zero if that is zero."""
    counts: tuple[int, int] | None = None
    """Along this dim it holds 0, step, 2 * step, ..."""
    is_nonnegative: bool = False
    below: int | torch.SymInt | None = None
    """All of it, padding too, is less than this: an int, or a size; None where that is not known."""
    mixed: Cause | None = None
    front: Front | None = None
    """The part of a mixed tensor that remains valid if everything added behind its rows is cut off again."""

    @property
    def is_free(self) -> bool:
        """True if it is the same in both runs."""
        return not self.dims and self.mixed is None


@dataclass(frozen=True, slots=True)
class Front:
    """The part of a tensor that existed before more was added behind it, along one dim."""

    dim: int
    size: Any
    rows: RowDependence


FREE = RowDependence()


@dataclass(frozen=True, slots=True)
class RowValue:
    """A tensor of the graph: its shape with symbols, and its row dependence."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    rows: RowDependence

    @property
    def ndim(self) -> int:
        return len(self.shape)


class SymbolicSizes:
    """Sizes as expressions of symbols, compared by their value for three assignments of all symbols.

    Args:
        symbol: the dynamic dim's.
        simplify: returns an expression without replaced symbols.
    """

    def __init__(self, symbol: sympy.Symbol, simplify: Callable[[Any], Any]) -> None:
        self.symbol = symbol
        self._simplify = simplify
        self._known: dict[Any, tuple[bool, tuple[int, ...]]] = {}
        self._others: dict[Any, Any] = {}

    def _look(self, size: Any) -> tuple[bool, tuple[int, ...]]:
        if isinstance(size, (int, float, bool)):
            return False, (int(size),) * 3 if size == size and abs(size) != float("inf") else (0,) * 3
        expr = size.node.expr if hasattr(size, "node") else size
        if expr not in self._known:
            # lazily: it takes long to import, and judge.py needs only this file's texts
            import sympy

            plain = self._simplify(expr)
            values = []
            for n_rows in _ROWS:
                for symbol in plain.free_symbols:
                    if symbol not in self._others:
                        prime = sympy.nextprime(1_000_000 + 1_000 * len(self._others))
                        self._others[symbol] = sympy.Integer(prime)
                value = plain.xreplace({**self._others, self.symbol: sympy.Integer(n_rows)})
                values.append(int(value) if value.is_number and value.is_finite else -1)
            self._known[expr] = self.symbol in plain.free_symbols, tuple(values)
        return self._known[expr]

    def depends(self, size: Any) -> bool:
        """Whether it is a different size in a bucket."""
        return self._look(size)[0]

    def at(self, size: Any) -> tuple[int, ...]:
        return self._look(size)[1]

    def same(self, a: Any, b: Any) -> bool:
        return self.at(a) == self.at(b)

    def product(self, sizes: Iterable[Any]) -> tuple[int, ...]:
        values = (1, 1, 1)
        for size in sizes:
            values = tuple(a * b for a, b in zip(values, self.at(size)))  # type: ignore[assignment]
        return values


_ROWS = (2003, 4001, 8009)
"""Ascending, to detect a size that shrinks as rows are added."""


class JudgedOperation:
    """One operation of the judged graph: its arguments by name, with `RowValue`s in place of tensors."""

    def __init__(
        self, op: Any, stack_trace: str | None, args: dict[str, Any], out: Sequence[Any], sizes: SymbolicSizes
    ) -> None:
        self.op = op
        self.name: str = op._schema.name
        self.stack_trace = stack_trace
        self.args = args
        self.out = out
        """Its results as fake tensors; None for a result that is not a tensor."""
        self.sizes = sizes
        self.needs = Padding.ANY

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    def cause(self, why: Why, detail: str = "") -> Cause:
        return Cause(self.name, self.stack_trace, why, detail)

    def mixed(self, why: Why = Why.MIXES, detail: str = "") -> RowDependence:
        return RowDependence(repeats=False, mixed=self.cause(why, detail))

    def refuse(self, why: Why, detail: str = "") -> RowsRefused:
        return RowsRefused(self.cause(why, detail))

    def tensors(self) -> Iterator[RowValue]:
        """All tensors among the arguments."""
        for value in self.args.values():
            yield from values_in(value)

    def depends(self, size: Any) -> bool:
        return self.sizes.depends(size)

    def usable_index(self, index: RowValue, size: Any) -> bool:
        """Whether this index's padding is a valid index; notes the conditions for that.

        Args:
            size: of the dim that it indexes.
        """
        rows = index.rows
        if not rows.dims:
            return True
        if rows.counts is not None:
            dim, step = rows.counts
            if step == 1 and list(rows.dims) == [dim] and self.sizes.same(index.shape[dim], size):
                return True
        if rows.below is not None and rows.is_nonnegative and rows.below <= size:  # asked of symbols: a condition
            return True
        if rows.is_moved:
            self.needs = max(self.needs, Padding.ZERO_OR_LAST)
            return True
        if rows.repeats:
            self.needs = Padding.LAST
            return True
        return False


def values_in(value: Any) -> Iterator[RowValue]:
    if isinstance(value, RowValue):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from values_in(item)


def wrap(dim: int, ndim: int) -> int:
    """A dim as a non-negative number."""
    return dim + ndim if dim < 0 else dim


def merge(into: dict[int, int | None], dim: int, outer: int | None) -> bool:
    """Note that ``dim`` carries rows in ``outer`` blocks; False if another number was noted."""
    known = into.get(dim, outer)
    if known is not None and outer is not None and known != outer:
        return False
    into[dim] = outer if known is None else known
    return True


def broadcast(step: JudgedOperation, values: Sequence[RowValue], ndim: int | None = None) -> RowDependence:
    """The row dependence of a result whose elements depend on the same position in each of ``values``."""
    top = max((v.ndim for v in values), default=0) if ndim is None else ndim
    dims: dict[int, int | None] = {}
    for value in values:
        if value.rows.mixed is not None:
            return value.rows
        for dim, outer in value.rows.dims.items():
            if not merge(dims, dim + top - value.ndim, outer):
                return step.mixed(Why.GROWS)
    return RowDependence(dims, repeats=all(v.rows.repeats for v in values))


Rule = Callable[[JudgedOperation], Any]
"""Returns the row dependence of each result: one for all of them, or a list."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rule, and the arguments that it reads as sizes or positions; a size elsewhere is used as a value."""

    rule: Rule
    sizes: frozenset[str]
    takes_mixed: bool
    """It only reads the shape of its arguments, or must handle mixed ones itself."""


RULES: dict[str, Ruled] = {}
"""By the operation's name, without overload."""


def rule(
    names: str, *, sizes: str = "", takes_mixed: bool = False, namespace: str = "aten"
) -> Callable[[Rule], Rule]:
    """Register a rule for operations of these names."""

    def register(function: Rule) -> Rule:
        for name in names.split():
            RULES[f"{namespace}::{name}"] = Ruled(function, frozenset(sizes.split()), takes_mixed)
        return function

    return register
