"""Dynamic dims: which dims of which arguments may vary, and which bucket a call goes to.

Declared as for ``torch.export``: ``dynamic={"ids": {0: "batch"}, "mask": {0: "batch", 1: "seq"}}``, by
the parameter's name (or ``batch.ids``, ``layers[0]`` inside trees); a ``torch.export.Dim`` stands for
its name. Or inferred: the dims in which the first two different calls differ; dims that changed
from the same size to the same size are one dim.

A call's size of each name is rounded up to its bucket, and only then is the call looked up:
all sizes of one bucket share a capture.

    buckets ──pick──> (size, bucket) ──judge──> content of the padding, cut of results
                                     └──> refused: eager, with the reason

"auto" has four buckets from each power of two to the next: captured when first needed, few for any range of sizes,
and at most one row in five is padding.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.signature import paths
from gfxgraph.callables.type_hints import Picks
from gfxgraph.core.bucket_sizes import Buckets, Octaves, ladder
from gfxgraph.errors import ConfigError

AUTO = Octaves(4)


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
        by_tensor = self.of(structure, tensors, where)
        actual: dict[str, int] = {}
        for i, dims in by_tensor.items():
            for dim, name in dims.items():
                if dim >= tensors[i].dim() or actual.setdefault(name, tensors[i].size(dim)) != tensors[i].size(dim):
                    return None
        bucket: dict[str, int] = {}
        for name, n in actual.items():
            picks = self._rule(name)
            picked = picks.pick(n) if picks is not None and n > 0 else n
            if picked is None:
                raise AboveAll(name, actual)
            bucket[name] = picked
        return Bucketed(_sizes(tensors, by_tensor, bucket), actual, bucket) if actual else None

    def of(
        self, structure: Any, tensors: Sequence[Tensor], where: Callable[[], list[str]]
    ) -> dict[int, dict[int, str]]:
        """The dynamic dims by position of the tensor, counted from the first."""
        found = self._dims_of(structure, tensors, where)
        return {i: {_from_first(d, tensors[i].dim()): name for d, name in dims.items()} for i, dims in found.items()}

    def all_buckets(
        self, structure: Any, tensors: Sequence[Tensor], where: Callable[[], list[str]]
    ) -> list[Bucketed]:
        """Every bucket that calls of this tree can use, largest first; empty if there is no limit."""
        by_tensor = self.of(structure, tensors, where)
        names = sorted({name for dims in by_tensor.values() for name in dims.values()})
        choices = [getattr(self._rule(name), "sizes", ()) for name in names]
        buckets = [dict(zip(names, chosen)) for chosen in itertools.product(*choices)] if names else []
        found = [Bucketed(_sizes(tensors, by_tensor, bucket), bucket, bucket) for bucket in buckets]
        return sorted(found, key=lambda b: -math.prod(b.bucket.values()))

    def _rule(self, name: str) -> Picks | None:
        return self.buckets.get(name) if isinstance(self.buckets, Mapping) else self.buckets

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


def _from_first(dim: int, n_dims: int) -> int:
    """A dim counted from the first; one that the tensor has not is past its last."""
    return dim + n_dims if -n_dims <= dim < 0 else abs(dim)


def _sizes(
    tensors: Sequence[Tensor], by_tensor: Mapping[int, Mapping[int, str]], bucket: Mapping[str, int]
) -> tuple[tuple[int, ...] | None, ...]:
    """Each tensor's size in a bucket; None for its own."""
    return tuple(
        tuple(bucket[by_tensor[i][d]] if d in by_tensor[i] else n for d, n in enumerate(t.size()))
        if i in by_tensor
        else None
        for i, t in enumerate(tensors)
    )


def called(fn: Any) -> Any:
    """The module whose own call this is; any other function as it is."""
    return fn.__self__ if getattr(fn, "__func__", None) is torch_names._call_impl else fn


def parameters_of(fn: Any) -> list[inspect.Parameter]:
    """The parameters of a function, or of a module's ``forward``, for a module's own signature is only *args."""
    fn = called(fn)
    try:
        return list(inspect.signature(getattr(fn, "forward", fn)).parameters.values())
    except (TypeError, ValueError):
        return []


def argument_paths(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Each tensor's path, in the order of ``flatten((args, kwargs))``."""
    named: list[str] = []
    parameters = parameters_of(fn)
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


def rules(given: Any) -> Mapping[str, Picks] | Picks:
    """Buckets as the user wrote them: sizes, "auto", "powers", "ladder", an object with ``pick``, or by dim name."""
    return {name: _rule(each) for name, each in given.items()} if isinstance(given, Mapping) else _rule(given)


def _rule(given: Any) -> Picks:
    if given is None or given == "auto":
        return AUTO
    if given in ("powers", "powers_of_two"):
        return Octaves(1)
    if given == "ladder":
        return ladder()
    if isinstance(given, str):
        raise ConfigError("bad_buckets", given=repr(given), problem="there is no rule with that name")
    if hasattr(given, "pick"):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, Iterable):
        raise ConfigError("bad_buckets", given=repr(given), problem="it is neither a list of sizes nor a rule")
    return Buckets(tuple(given))
