"""Dynamic dims: which dims of which arguments may vary, and which bucket a call goes to.

Declared as for ``torch.export``: ``dynamic={"ids": {0: "batch"}, "mask": {0: "batch", 1: "seq"}}``, by
the parameter's name (or ``batch.ids``, ``layers[0]`` inside trees); a ``torch.export.Dim`` stands for
its name. Or inferred: the dims in which the first two different calls differ; dims that changed
from the same size to the same size are one dim.

A call's size of each name is rounded up to its bucket, and only then is the call looked up:
all sizes of one bucket share a capture.

    sizes seen ──learn──> buckets ──pick──> (size, bucket) ──judge──> content of the padding, cut of results
                                                             └──> refused: eager, with the reason

"auto" begins with powers of two, which need no knowledge, and learns from the sizes seen after 64 calls,
then after three times as many, and so on: each time only if the new buckets save enough to justify
new captures.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from typing import Any

from torch import Tensor

from gfxgraph.callables.signature import paths
from gfxgraph.callables.type_hints import Picks
from gfxgraph.core.bucket_sizes import BucketPlan, Buckets, explicit, ladder, learn_plan
from gfxgraph.errors import ConfigError
from gfxgraph.process import process


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A call with dynamic dims, rounded up.

    ``sizes`` gives each tensor's size in the bucket, None if it is the tensor's own; ``actual`` and
    ``bucket`` the size of each named dim.
    """

    sizes: tuple[tuple[int, ...] | None, ...]
    actual: Mapping[str, int]
    bucket: Mapping[str, int]

    @property
    def is_padded(self) -> bool:
        return self.actual != self.bucket

    @property
    def padded_names(self) -> frozenset[str]:
        return frozenset(name for name, n in self.actual.items() if self.bucket[name] != n)


class AboveAll(Exception):
    """A dim is larger than every bucket: ``args`` are its name and the size of every dim."""


class Dims:
    """The dynamic dims of one callable.

    Args:
        declared: by argument path; None to infer.
        buckets: by dim name, or one for all.
    """

    def __init__(self, declared: Mapping[str, Any] | None, buckets: Mapping[str, Picks] | Picks) -> None:
        self.declared = None if declared is None else {p: _names(d) for p, d in declared.items()}
        self.buckets = buckets
        self._first: dict[Any, list[tuple[int, ...]]] = {}
        self._inferred: dict[Any, dict[int, dict[int, str]]] = {}

    def bucketed(self, structure: Any, tensors: Sequence[Tensor], where: Callable[[], list[str]]) -> Bucketed | None:
        """Round the call up to its bucket.

        Args:
            structure: the call's tree; inferred dims hold for one tree.
            where: gives each tensor's path.

        Returns:
            None if the call has no dynamic dims, or if a name has two different sizes in it.

        Raises:
            AboveAll: a dim is larger than every bucket.
        """
        by_tensor = self._dims_of(structure, tensors, where)
        if not by_tensor:
            return None
        actual: dict[str, int] = {}
        for i, dims in by_tensor.items():
            for dim, name in dims.items():
                if not -tensors[i].dim() <= dim < tensors[i].dim():
                    return None
                if actual.setdefault(name, tensors[i].size(dim)) != tensors[i].size(dim):
                    return None
        bucket: dict[str, int] = {}
        for name, n in actual.items():
            picks = self.buckets.get(name) if isinstance(self.buckets, Mapping) else self.buckets
            picked = picks.pick(n) if picks is not None and n > 0 else n
            if picked is None:
                raise AboveAll(name, actual)
            bucket[name] = picked
        sizes: list[tuple[int, ...] | None] = []
        for i, tensor in enumerate(tensors):
            size = list(tensor.size())
            for dim, name in by_tensor.get(i, {}).items():
                size[dim] = bucket[name]
            sizes.append(tuple(size) if i in by_tensor else None)
        return Bucketed(tuple(sizes), actual, bucket)

    def of(
        self, structure: Any, tensors: Sequence[Tensor], where: Callable[[], list[str]]
    ) -> dict[int, dict[int, str]]:
        """The dynamic dims by position of the tensor, as non-negative dims."""
        found = self._dims_of(structure, tensors, where)
        return {i: {dim % tensors[i].dim(): name for dim, name in dims.items()} for i, dims in found.items()}

    def all_buckets(
        self, structure: Any, tensors: Sequence[Tensor], where: Callable[[], list[str]]
    ) -> list[Bucketed]:
        """Every bucket that calls of this tree can use, largest first; empty if there is no limit."""
        by_tensor = self._dims_of(structure, tensors, where)
        names = sorted({name for dims in by_tensor.values() for name in dims.values()})
        choices = []
        for name in names:
            picks = self.buckets.get(name) if isinstance(self.buckets, Mapping) else self.buckets
            choices.append(tuple(getattr(picks, "sizes", ())))
        found = []
        for chosen in itertools.product(*choices) if names else ():
            bucket = dict(zip(names, chosen))
            sizes = [
                tuple(bucket[dims[d]] if (dims := by_tensor.get(i, {})).get(d) else n for d, n in enumerate(t.size()))
                if i in by_tensor
                else None
                for i, t in enumerate(tensors)
            ]
            found.append(Bucketed(tuple(sizes), bucket, bucket))
        return sorted(found, key=lambda b: -math.prod(b.bucket.values()))

    def _dims_of(
        self, structure: Any, tensors: Sequence[Tensor], where: Callable[[], list[str]]
    ) -> dict[int, dict[int, str]]:
        known = self._inferred.get(structure)
        if known is not None:
            return known
        if self.declared is not None:
            found = {i: self.declared[path] for i, path in enumerate(where()) if path in self.declared}
            self._inferred[structure] = found
            return found
        sizes = [tuple(t.size()) for t in tensors]
        first = self._first.setdefault(structure, sizes)
        if first == sizes:
            return {}
        if any(len(a) != len(b) for a, b in zip(first, sizes)):
            self._first[structure] = sizes
            return {}
        names: dict[tuple[int, int], str] = {}
        inferred: dict[int, dict[int, str]] = {}
        for i, (before, now) in enumerate(zip(first, sizes)):
            for dim, pair in enumerate(zip(before, now)):
                if pair[0] != pair[1]:
                    inferred.setdefault(i, {})[dim] = names.setdefault(pair, f"dim{len(names)}")
        self._inferred[structure] = inferred
        return inferred


def argument_paths(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Each tensor's path, in the order of ``flatten((args, kwargs))``."""
    named: list[str] = []
    fn = getattr(fn, "forward", fn)  # a module's own signature is only *args
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    for i, value in enumerate(args):
        name = positional[i].name if i < len(positional) else f"{rest}[{i - len(positional)}]"
        named += paths(value, name)
    for name, value in kwargs.items():
        named += paths(value, name)
    return named


def _names(dims: Any) -> dict[int, str]:
    """``{0: "batch"}``, ``{0: Dim("batch")}`` or a sequence with None for static dims."""
    items = dims.items() if isinstance(dims, Mapping) else enumerate(dims)
    return {int(dim): _name(named) for dim, named in items if named is not None}


def _name(named: Any) -> str:
    return named if isinstance(named, str) else str(getattr(named, "__name__", named))


LEARN_AFTER = 64
LEARN_AGAIN = 3
WORTH = 0.002
"""The share of work that new buckets must save before graphs are captured again for them."""


class Unbounded:
    """Powers of two without limit: the initial buckets of "auto"."""

    def pick(self, n: int, /) -> int | None:
        return 1 << max(0, n - 1).bit_length()


class BucketSizes(Mapping[str, Any]):
    """The buckets of every dynamic dim, by its name, and the sizes that calls have had.

    Args:
        given: as the user wrote it: sizes, "auto", "powers", "ladder", a ``BucketPlan`` (``plan()`` of another), an
        object with ``pick``, or one of these by dim name.
    """

    def __init__(self, given: Any) -> None:
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.names: tuple[str, ...] = ()
        self.learned: BucketPlan | None = None
        self.refused: list[Mapping[str, int]] = []
        """Sizes that their bucket cannot serve."""
        self.last: tuple[Mapping[str, int], Any, int] | None = None
        """The sizes of the last slow call, its entry, and that entry's number of replays then."""
        self._next_look = LEARN_AFTER
        self._n_seen = 0
        if isinstance(given, BucketPlan):
            self.learned = given
            self.names, self.seen = tuple(given.dims), Counter(given.seen)
            given = dict(given.dims)
            self._next_look = 0
        self.given = given
        self.is_auto = given is None or given == "auto"
        self._by_name: dict[str, Any] = {}
        for rule in given.values() if isinstance(given, Mapping) else [given]:
            _rule(rule)  # raises here for a mistake, not at the first call

    # -- Mapping: Dims looks up names ----------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        if self.learned is not None and name in self.learned.dims:
            return self.learned.dims[name]
        found = self._by_name.get(name)
        if found is None:
            given = self.given.get(name) if isinstance(self.given, Mapping) else self.given
            found = self._by_name[name] = _rule(given)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def get(self, name: str, default: Any = None) -> Any:
        if isinstance(self.given, Mapping) and name not in self.given and self.learned is None:
            return default
        return self[name]

    # -- learning -----------------------------------------------------------------------------------

    def count(self, actual: Mapping[str, int], entry: Any = None) -> Callable[[Any], bool] | None:
        """Count one more call of this size; if buckets were learned, return a test for entries that belong to none of
        them.

        Args:
            entry: what serves such calls; None above every bucket.
        """
        if entry is not None:
            self.last = (actual, entry, entry.replays())
        self._note(actual)
        if not self._learns():
            return None
        self.last, plan = None, self._plan()

        def is_gone(entry: Any) -> bool:
            bucket = tuple(entry.bucket.get(name, 0) for name in plan.dims)
            return bool(entry.bucket) and plan.pick(bucket) != bucket

        return is_gone

    def count_fast_calls(self) -> None:
        """Count the calls that took the fast path since the last slow one: all had its size."""
        if self.last is not None:
            actual, entry, n = self.last
            self.last = None
            n_fast = entry.replays() - n
            if n_fast > 0:
                self._note(actual, n_fast)

    def plan(self) -> BucketPlan:
        """The current buckets and the sizes seen; prints as a table."""
        self.count_fast_calls()
        found = self._plan()
        refused = frozenset(tuple(sizes.get(name, 0) for name in found.dims) for sizes in self.refused)
        return replace_in(found, refused=refused)

    def _note(self, actual: Mapping[str, int], n_calls: int = 1) -> None:
        names = tuple(actual)
        if min(actual.values(), default=0) < 1:
            return
        if names != self.names:
            if not self.names:
                self.names = names
            elif set(names) != set(self.names):
                return  # a tree with other dims, which the plan does not cover
        self.seen[tuple(actual[name] for name in self.names)] += n_calls
        self._n_seen += n_calls

    def _learns(self) -> bool:
        """Learn if it is time to; True if the buckets have changed."""
        if not self.is_auto or not self._next_look or self._n_seen < self._next_look:
            return False
        self._next_look *= LEARN_AGAIN
        try:
            found = learn_plan(self.names, self.seen)
        except ConfigError as error:
            _report("plan_not_learned", str(error).splitlines()[0])
            return False
        old = self._plan()
        saved = old.n_elements_padded - found.n_elements_padded
        is_outgrown = any(old.pick(sizes) is None for sizes in self.seen)
        if self.learned is not None and saved < WORTH * old.n_elements_seen and not is_outgrown:
            return False
        self.learned = found
        return True

    def _plan(self) -> BucketPlan:
        dims = {}
        for axis, name in enumerate(self.names):
            rule = self.get(name)
            if isinstance(rule, Buckets):
                dims[name] = rule
            elif isinstance(rule, Unbounded) or not hasattr(rule, "sizes"):
                picked = {rule.pick(sizes[axis]) for sizes in self.seen} if rule is not None else {1}
                dims[name] = Buckets(tuple(n for n in picked if n), "powers")
            else:
                dims[name] = explicit(rule.sizes)
        return BucketPlan(dims, dict(self.seen))


def _rule(given: Any) -> Any:
    if given is None or given in ("auto", "powers", "powers_of_two"):
        return Unbounded()
    if given == "ladder":
        return ladder()
    if isinstance(given, str):
        raise ConfigError("bad_buckets", given=repr(given), problem="there is no rule with that name")
    if hasattr(given, "pick"):
        return given
    if not isinstance(given, Iterable):
        raise ConfigError("bad_buckets", given=repr(given), problem="it is neither a list of sizes nor a rule")
    return explicit(given)


def _report(kind: str, reason: str) -> None:
    state = process.current()
    if state is not None:
        state.report(kind, reason, level=logging.INFO)
