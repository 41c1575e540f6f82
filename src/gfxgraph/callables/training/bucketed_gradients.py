"""Calls whose results need gradients, in buckets: arguments are padded before the graphs, results are cut after them.

Problem: batches padded to their own longest sequence have many lengths, and each would be a capture of forward and
backward. Idea: the graphs are a bucket's alone. A call's arguments are padded to it, and of its results the call's
own rows are handed out, both by operations that autograd knows: so the gradient that enters a padded row is zero.

    call ── forward: rows stay apart (padding/padding_check.py) ──┐
         ── backward: no operation mixes rows in it alone ┴─> pad ── forward and backward graph ── cut
         └─ refused: a graph for each size, and why

Why the backward needs no trace of its own: where each row of a result depends on its own row of the arguments and
on what has no rows, the Jacobian has a block for each row, and so has its transpose. No gradient of a row depends on
another row; one of what has no rows (weights) is a sum over rows, to which a padded row adds its block times zero.
That is zero, for padding repeats the last row: its block is finite where that row's is. An operation whose backward
is not the transpose of its forward is named by operator_rules.py, and so is a function with a backward of its own.

The first call of a bucket is also run as it is and padded, forward and backward, and compared: the second line.
Source: decision 0340; tests/conformance/test_training_buckets.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.buckets import AboveAll, Bucketed, Dims, argument_paths
from gfxgraph.callables.buffers import dense_copy, front
from gfxgraph.callables.captured import Shared
from gfxgraph.callables.fast_path import Unpacker
from gfxgraph.callables.padding.padding_check import NO_MEMORY, REFUSED, PaddingCheck
from gfxgraph.callables.padding.row_independence import PaddingRefusal
from gfxgraph.callables.signature import (
    MISS,
    Args,
    Call,
    Fast,
    InPieces,
    Kwargs,
    NotATree,
    RunEagerly,
    flatten,
    replace,
    understand,
)
from gfxgraph.callables.trace.dynamo import local
from gfxgraph.callables.worlds import Worlds
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.replay.validation import is_close
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import first_line

MAX_SIZES = 4096
"""Most exact signatures whose way is remembered."""
_PADDED = """def fast(args, kwargs):
        {}
        if is_capturing(): return MISS
        return run(args, kwargs, tensors)
"""
_Rows = tuple[tuple[int, str, int], ...]
"""The dims of one result that carry rows: the dim, its name, elements for each row."""


@dataclass
class _Program:
    """What calls share that differ in their sizes alone."""

    rows: list[_Rows] = field(default_factory=list)
    """Of each result."""
    compared: set[Any] = field(default_factory=set)
    """The buckets in which a call was compared."""


@dataclass
class _Way:
    """How calls of one exact signature run.

    Attributes:
        sizes: of the padded arguments; None for those that are not padded, or for all if no bucket serves the call.
        cuts: of each result the dims that are cut, and to what.
        why: why no bucket serves it, though one is there.
        why_eager: why it runs eagerly.
    """

    sizes: Sequence[Sequence[int] | None] | None = None
    cuts: Sequence[Sequence[tuple[int, int]]] = ()
    why: str = ""
    why_eager: str = ""


class BucketedGradients:
    """The calls of one callable that need gradients, where it has dynamic dims.

    Args:
        shared: the account of the callable.
    """

    def __init__(self, shared: Shared, dims: Dims, check: PaddingCheck, worlds: Worlds) -> None:
        self._fn, self._name, self._dims, self._check = shared.fn, shared.name, dims, check
        self._worlds, self._slow, self._strict = worlds, shared.account.slow, shared.options.strict
        self._programs: dict[Any, _Program] = {}
        self._ways: dict[Any, _Way] = {}

    def reset(self) -> None:
        self._programs.clear()
        self._ways.clear()

    def __call__(self, pieces: InPieces) -> tuple[Any, Fast | None]:
        """Run a call, which raised ``pieces``, in its bucket; return the fast path of such calls, too.

        Raises:
            InPieces: no bucket serves it.
            RunEagerly: the function itself must run.
        """
        call: Call = pieces.call
        key = (call.key, call.world.token)
        way = self._ways.get(key)
        if way is None:
            way, is_final = self._find(call)
            if len(self._ways) >= MAX_SIZES:
                self._ways.clear()
            if is_final:
                self._ways[key] = way
        if way.why_eager:
            raise RunEagerly(way.why_eager, for_good=True)
        if way.why:
            self._slow[way.why] += 1
        if way.sizes is None:
            raise pieces
        args, kwargs, padded = self._padded(way, call.args, call.kwargs, call.tensors)
        result = self._worlds.fast(args, kwargs)
        if result is MISS:
            other = understand(self._name, args, kwargs, padded, call.structure, False)
            other.world = call.world
            local.is_warm = True
            try:
                result = self._worlds.in_pieces(InPieces(pieces.why, is_one=True, call=other), args, kwargs)
            finally:
                local.is_warm = False
        return _cut(way, result), self._fast(way, call)

    def _fast(self, way: _Way, call: Call) -> Fast | None:
        writer = Unpacker()
        if not writer.takes(call.args, call.kwargs):
            return None
        writer.has_kinds(call.tensors, range(len(call.tensors)))

        def run(args: Args, kwargs: Kwargs, tensors: Sequence[Tensor]) -> Any:
            result = self._worlds.fast(*self._padded(way, args, kwargs, tensors)[:2])
            return result if result is MISS else _cut(way, result)

        writer.line(f"tensors = [{', '.join(f't{i}' for i in range(len(call.tensors)))}]")
        writer.names |= {"run": run, "is_capturing": torch.cuda.is_current_stream_capturing}
        return writer.made(_PADDED)

    @staticmethod
    def _padded(
        way: _Way, args: Args, kwargs: Kwargs, tensors: Sequence[Tensor]
    ) -> tuple[Args, Kwargs, list[Tensor]]:
        """The arguments at the bucket's size."""
        assert way.sizes is not None
        grown = {id(t): _grown(t, size) for t, size in zip(tensors, way.sizes) if size is not None}
        padded = [grown.get(id(t), t) for t in tensors]
        rest = iter(padded)
        given = replace((tuple(args), dict(kwargs)), lambda _: next(rest))
        return given[0], given[1], padded

    # -- how a call runs ------------------------------------------------------------------------------

    def _find(self, call: Call) -> tuple[_Way, bool]:
        """How calls like this one run, and whether that is final."""
        try:
            where = lambda: argument_paths(self._fn, call.args, call.kwargs)  # noqa: E731
            bucketed = self._dims.bucketed(call.structure, call.tensors, where)
        except AboveAll as error:
            name, sizes = error.args
            return _Way(why_eager=f"{name}={sizes[name]} is larger than every bucket"), True
        if bucketed is None:
            return _Way(), self._dims.declared is not None
        if not bucketed.is_padded:
            return self._as_it_is(call), True
        try:
            return self._judged(call, bucketed), True
        except PaddingRefusal as refusal:
            why = f"{REFUSED}: {refusal.reason}"
            noted = self._check.refused(refusal, bucketed) if refusal.is_final else None
            if self._strict and noted is not None:
                raise RunEagerly(why, noted) from None
            return _Way(why=f"{why}; each size has graphs of its own"), refusal.is_final

    def _as_it_is(self, call: Call) -> _Way:
        """A call of a bucket's own size: run once before it is captured, unless that would have an effect."""
        if call.world.written:
            return _Way()
        with suppress(torch.OutOfMemoryError, RuntimeError), _drawing_nothing(call.device):
            own = _Run(self._check.run(*call.args, **call.kwargs))
            torch.autograd.grad(own.ends, self._wanted(call), _seeds(own.ends), allow_unused=True)
        return _Way([None] * len(call.tensors))

    @staticmethod
    def _wanted(call: Call) -> list[Tensor]:
        """What gradients are compared of: not of tensors with hooks, which a comparison would run."""
        return [t for t in (*call.tensors, *call.world.tensors) if t.requires_grad and not t._backward_hooks]

    def _judged(self, call: Call, bucketed: Bucketed) -> _Way:
        """How the bucket serves the call.

        Raises:
            PaddingRefusal: it does not.
        """
        sizes = [None if s is None or s == tuple(t.size()) else s for t, s in zip(call.tensors, bucketed.sizes)]
        # Other than by being one tensor.
        if call.aliases[: len(call.tensors)] != call.aliases[len(call.tensors) :]:
            raise PaddingRefusal("arguments share memory")
        if not all(t.is_contiguous() for t, size in zip(call.tensors, sizes) if size is not None):
            raise PaddingRefusal("an argument that would be padded is not contiguous")
        key = self._check.with_gradients(call, bucketed)
        program = self._programs.setdefault(key, _Program())
        way = _Way(sizes)
        bucket = tuple(bucketed.bucket.items())
        if bucket not in program.compared:
            program.rows = self._compared(call, way, bucketed)
            program.compared.add(bucket)
        way.cuts = [tuple((dim, each * bucketed.actual[name]) for dim, name, each in rows) for rows in program.rows]
        return way

    def _compared(self, call: Call, way: _Way, bucketed: Bucketed) -> list[_Rows]:
        """Run the call as it is, and padded, and compare results and gradients; return where results carry rows.

        Nothing of it stays: the function writes to nothing, and the random generators are put back.

        Raises:
            PaddingRefusal: they differ.
        """
        run, wanted = self._check.run, self._wanted(call)
        try:
            with _drawing_nothing(call.device):
                own = _Run(run(*call.args, **call.kwargs))
            args, kwargs, padded = self._padded(way, call.args, call.kwargs, call.tensors)
            with _drawing_nothing(call.device):
                other = _Run(run(*args, **kwargs))
            rows = _rows(own, other, [*call.tensors, *padded], bucketed)
            seeds = _seeds(own.ends)
            mine = torch.autograd.grad(own.ends, wanted, seeds, allow_unused=True)
            seeds = [dense_copy(seed, t.size()) for seed, t in zip(seeds, other.ends)]
            theirs = torch.autograd.grad(other.ends, wanted, seeds, allow_unused=True)
        except torch.OutOfMemoryError:
            raise PaddingRefusal(NO_MEMORY, is_final=False) from None
        except (RuntimeError, NotATree, ValueError, LookupError, TypeError) as error:
            if is_interrupt(error):
                raise
            raise PaddingRefusal(f"the function fails on it: {type(error).__name__}: {first_line(error)}") from error
        for one, two in zip(mine, theirs):
            if (one is None) != (two is None) or (one is not None and two is not None and not is_close(two, one)):
                raise PaddingRefusal("a gradient differs from the one without padding")
        return rows


@contextmanager
def _drawing_nothing(device: int) -> Iterator[None]:
    """Put the random generators back."""
    state = Rollback((), (torch.default_generator, torch.cuda.default_generators[device]))
    try:
        yield
    finally:
        state.restore()


def _seeds(ends: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of results, for a comparison: each element has one of its own."""
    return [torch.linspace(0.5, 1.5, t.numel(), device=t.device).view(t.size()).to(t.dtype) for t in ends]


class _Run:
    """A result, its tensors, and those among them that need gradients."""

    def __init__(self, result: Any) -> None:
        self.tensors: list[Tensor] = []
        self.structure = flatten(result, self.tensors)
        self.ends = [t for t in self.tensors if t.requires_grad]


def _rows(own: _Run, other: _Run, given: Sequence[Tensor], bucketed: Bucketed) -> list[_Rows]:
    """Where each result carries rows.

    Raises:
        PaddingRefusal: the results differ in more than that.
    """
    if own.structure != other.structure or [t.dim() for t in own.tensors] != [t.dim() for t in other.tensors]:
        raise PaddingRefusal("the structure of the result depends on the size")
    homes = [t.untyped_storage().data_ptr() for t in (*own.tensors, *given) if t.numel()]
    n_made = sum(t.numel() > 0 for t in own.tensors)
    if len(set(homes[:n_made])) < n_made or not set(homes[:n_made]).isdisjoint(homes[n_made:]):
        raise PaddingRefusal("a result shares memory with another one or with an argument")
    found: list[_Rows] = []
    for mine, theirs in zip(own.tensors, other.tensors):
        if not is_close(front(theirs.detach(), mine.size()), mine.detach()):
            raise PaddingRefusal("a result differs from the one without padding")
        rows = []
        for dim, (n, larger) in enumerate(zip(mine.size(), theirs.size())):
            names = [
                name for name in bucketed.padded_names if n * bucketed.bucket[name] == larger * bucketed.actual[name]
            ]
            if n != larger and len(names) != 1:
                # At other sizes they can be told apart.
                raise PaddingRefusal(f"dim {dim} of a result may be one of several dynamic dims", is_final=False)
            if n != larger:
                rows.append((dim, names[0], n // bucketed.actual[names[0]]))
        found.append(tuple(rows))
    return found


def _grown(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """The tensor at a larger size, its last row repeated; autograd cuts its gradient."""
    for dim, n in enumerate(size):
        have = tensor.size(dim)
        if have < n:
            last = tensor.narrow(dim, have - 1, 1)
            tensor = torch.cat(
                [tensor, last.expand([n - have if d == dim else m for d, m in enumerate(tensor.size())])], dim
            )
    return tensor


def _cut(way: _Way, result: Any) -> Any:
    """The call's own rows of its results, in memory of their own."""
    cuts = iter(way.cuts)

    def cut(tensor: Tensor) -> Tensor:
        which = next(cuts, ())
        for dim, n in which:
            tensor = tensor.narrow(dim, 0, n)
        return tensor.clone() if which else tensor

    return replace(result, cut)
