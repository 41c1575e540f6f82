"""Whether a graph of a bucket's size serves a smaller call: decided from the operations, then compared once.

    call ── world at the bucket's size ── the operations of both (row_independence.py): a verdict
         ── run as it is, and padded, and compared ──> how the bucket serves it
         └─ refused: the operation, its line, what to do; such calls run eagerly

The call itself runs eagerly and its result goes to the caller. The padded run is the second line of defence behind
the verdict: it is compared with capture/replay/validation.py, and all of its effects are undone.

A size of 1, a stride, or two sizes that happen to be equal give a call a trace of its own, though the function does
the same: the verdict is about the operations of both traces.
"""

# ruff: noqa: TID253

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.buckets import Bucketed, Dims, argument_paths
from gfxgraph.callables.buffers import dense_copy, front, pad, repeat_last
from gfxgraph.callables.captured import Padded, Route, Shared
from gfxgraph.callables.padding.operator_rules import Cause, Why
from gfxgraph.callables.padding.row_independence import DimVerdict, PaddingRefusal, Trace, rows_independent
from gfxgraph.callables.signature import Args, Call, Kwargs, NotATree, flatten, replace, twins_of
from gfxgraph.callables.trace.dynamo import returned
from gfxgraph.callables.trace.world import World
from gfxgraph.callables.worlds import NEEDS_GRADIENTS
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.replay.validation import is_close
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import ConfigError, first_line
from gfxgraph.process import process

Named = Mapping[int, Mapping[int, str]]
"""By position of the tensor, then by dim: the dynamic dim's name."""
MOST_UNKNOWN = 32
"""Calls that wait for one of their bucket's size; from then on such sizes run eagerly."""
ALIKE = 3
"""Sizes in a row refused with one reason; others are refused without a verdict: it takes 1 s for a large model."""
REFUSED = "padding refused"
JUDGING = "compared with a padded run"
UNKNOWN = "the function was not called at the bucket's size yet, and may be a different program there"
IN_PIECES = "at the bucket's size it is not a single graph: "
NO_MEMORY = "there is not enough memory to compare a padded run"


@dataclass(frozen=True)
class PaddingNeeds:
    """What padding of some dims needs."""

    dims: tuple[str, ...]
    needs_last: bool
    """Padding repeats the last row."""
    written: tuple[int, ...]
    """Positions of the arguments that are written to."""
    backward: PaddingRefusal | None = None
    """Why calls whose results need gradients are not padded all the same."""
    is_sized: bool = False
    """Whether it is known of this bucket alone."""


class PaddingCheck:
    """The padding of one callable.

    Args:
        shared: the account of the callable.
        dims: the dynamic dims; None if there are none.
    """

    def __init__(self, shared: Shared, dims: Dims | None) -> None:
        self._fn, self.run, self._front = shared.fn, shared.run, shared.front
        self._name, self._eager, self._dims = shared.name, shared.eager, dims
        self.refusals: dict[str, PaddingRefusal] = {}
        """By sizes and bucket, as text."""
        self._n_unknown = 0
        """Calls at whose bucket's size the function was not called yet."""
        self._known: dict[Any, PaddingNeeds | PaddingRefusal] = {}
        """By pair of programs, and the dims that are padded."""
        self._last: dict[object, list[str]] = {}
        """By what sizes have in common, the reasons of the last verdicts; "" for one that was no refusal."""

    def explain(self) -> list[str]:
        """One line for each dim that may be padded."""
        found = [each for each in self._known.values() if isinstance(each, PaddingNeeds) and each.backward is None]
        last = " with a repetition of the last row"
        lines = [
            f"{n} may be padded{last * v.needs_last}: no row reaches an earlier one" for v in found for n in v.dims
        ]
        return list(dict.fromkeys(lines))

    def check(self, route: Route, call: Call) -> Any:
        """Run the call eagerly, and find out whether its bucket would have given the same result."""
        bucketed = route.bucketed
        assert bucketed is not None
        result, found = self._compare_with_bucket(call, bucketed)
        if isinstance(found, Padded):
            self._eager.count(JUDGING)
            route.padded, route.repeats_last = found, found.repeats_last
            return result
        why = f"{REFUSED}: {found.reason}"
        self._eager.count(why)
        if not found.is_final:
            return result
        route.entry, route.why_eager = None, why
        self.refused(found, bucketed)
        return result

    def refused(self, found: PaddingRefusal, bucketed: Bucketed) -> ConfigError:
        """Note a refusal for reports, and warn of it once."""
        label = ", ".join(f"{name}={n} in {bucketed.bucket[name]}" for name, n in bucketed.actual.items())
        self.refusals[label] = found
        error = ConfigError(
            "padding_refused",
            bucket=", ".join(f"{name}={n}" for name, n in bucketed.bucket.items()),
            reason=found.reason,
            op=found.op or "no operation",
            where=found.where or "the function's result",
        )
        if process.require().counters.event("padding_refused", found.reason, found.op, found.where):
            process.log.warning("%s: %s", self._name, error)
        return error

    def with_gradients(self, call: Call, bucketed: Bucketed) -> Any:
        """The key of the programs whose calls may be padded as this one, forward and backward.

        Raises:
            PaddingRefusal: it may not.
        """
        dims = self._named(call)
        copies = [dense_copy(t, s) if s not in (None, t.size()) else t for t, s in zip(call.tensors, bucketed.sizes)]
        found = self._verdict(call, copies, dims, bucketed)
        if isinstance(found, PaddingRefusal):
            raise found
        for node in (node for part in call.world.found.graph.modules() for node in _nodes(part)):
            if "autograd_function_apply" in str(node.target):
                cause = Cause("a custom autograd function", node.meta.get("stack_trace"), Why.OWN)
                raise PaddingRefusal.by(cause).named(found.dims[0])
        if found.backward is not None:
            raise found.backward
        if found.written or call.world.written:
            raise PaddingRefusal("it writes to a tensor that is not its own, where results need gradients")
        there = self._in_bucket(call, *_with_tensors(call, copies))
        return call.kind_with_dims(dims), call.world.token, there and there.token, bucketed.padded_names

    def why_unfit(self, call: Call, buckets: Sequence[Bucketed]) -> str:
        """Why the call's values, cut or repeated, may not suit the sizes of buckets; "" if they do."""
        dims = self._named(call)
        actual = {name: call.tensors[i].size(dim) for i, named in dims.items() for dim, name in named.items()}
        other = dict(actual)
        for each in reversed(buckets):
            other |= {name: n for name, n in each.bucket.items() if n != actual[name]}
        there = call.world if self._front is not None else None
        found = self._decide(call, there, dims, Bucketed((), actual, other))
        return found.reason if isinstance(found, PaddingRefusal) else ""

    def run_with_world(self, args: Args, kwargs: Kwargs) -> tuple[Any, World | None]:
        """Run the function eagerly, and return its world too; traced now if it has none."""
        if self._front is None:
            return self.run(*args, **kwargs), None
        world = self._front.find(args, kwargs)
        if world is None:
            return self._front.trace(args, kwargs)
        return self.run(*args, **kwargs), world

    # -- one call -------------------------------------------------------------------------------------

    def _compare_with_bucket(self, call: Call, bucketed: Bucketed) -> tuple[Any, Padded | PaddingRefusal]:
        """The call's result, and how its bucket serves it."""
        dims = self._named(call)
        copies = [dense_copy(t, s) if s not in (None, t.size()) else t for t, s in zip(call.tensors, bucketed.sizes)]
        found = self._verdict(call, copies, dims, bucketed)
        if isinstance(found, PaddingRefusal):
            return returned(call.kwargs, self.run(*call.args, **call.kwargs)), found
        names = argument_paths(self._fn, call.args, call.kwargs)
        for i in found.written:
            if copies[i] is call.tensors[i]:
                copies[i] = call.tensors[i].detach().clone()
        written = [(names[i], call.tensors[i], copies[i]) for i in found.written]
        for copy, tensor in zip(copies, call.tensors):
            if copy.size() != tensor.size():
                pad(copy, tensor.size())
                if found.needs_last:
                    repeat_last(copy, tensor.size())
        args, kwargs = _with_tensors(call, copies)
        traced: list[Any] = []

        def in_bucket() -> Any:
            result, world = self.run_with_world(args, kwargs)
            traced.append(world)
            return result

        def own() -> Any:
            return returned(call.kwargs, self.run(*call.args, **call.kwargs))

        outside: list[Tensor] = getattr(call.world, "written", [])
        compared = compare(own, in_bucket, outside, written, call.device)
        if compared.problem:
            return compared.result, PaddingRefusal(compared.problem)
        if traced[0] is not None and traced[0].why_pieces:
            return compared.result, PaddingRefusal(IN_PIECES + traced[0].why_pieces)
        sizes = [tuple(t.size()) for t in compared.outputs]
        return compared.result, Padded(found.needs_last, sizes, compared.structure)

    def _named(self, call: Call) -> Named:
        assert self._dims is not None
        return self._dims.of(call.structure, call.tensors, lambda: argument_paths(self._fn, call.args, call.kwargs))

    def _in_bucket(self, call: Call, args: Args, kwargs: Kwargs) -> World | None:
        """The world at the bucket's size; None if nothing is traced.

        Raises:
            PaddingRefusal: no graph of that can be the call's.
        """
        if self._front is None:
            return None
        world = self._front.find(args, kwargs)
        if world is None:
            self._n_unknown += 1
            why = self._front.why_no_more(args, kwargs)
            raise PaddingRefusal(why or UNKNOWN, is_final=bool(why) or self._n_unknown >= MOST_UNKNOWN)
        if world.why_pieces and not world.why_pieces == call.world.why_pieces == NEEDS_GRADIENTS:
            raise PaddingRefusal(IN_PIECES + world.why_pieces)
        return world

    # -- verdicts -------------------------------------------------------------------------------------

    def _verdict(
        self, call: Call, copies: list[Tensor], dims: Named, bucketed: Bucketed
    ) -> PaddingNeeds | PaddingRefusal:
        """What padding needs, or why nothing is padded.

        Args:
            copies: the call's tensors, at the bucket's size.
        """
        if torch_names.why_off("padding"):
            return PaddingRefusal(torch_names.why_off("padding"), is_final=True)
        if any(copies[first].size() != t.size() for first, t in zip(twins_of(call.tensors), copies)):
            return PaddingRefusal("one tensor is several arguments, and not each of them has the dynamic dims")
        try:
            there = self._in_bucket(call, *_with_tensors(call, copies))
        except PaddingRefusal as refusal:
            return refusal.named("")
        return self._known_or_decided(call, there, dims, bucketed)

    def _known_or_decided(
        self, call: Call, there: World | None, dims: Named, bucketed: Bucketed
    ) -> PaddingNeeds | PaddingRefusal:
        which: Any = (call.key, *bucketed.bucket.items())
        if there is not None and not (_computes_sizes(call.world) or _computes_sizes(there)):
            # What the graph does is the same at all sizes of its world.
            which = (call.kind_with_dims(dims), there.token, bucketed.padded_names)
        of_bucket = which, *bucketed.bucket.items()
        of_kind = "alike", call.kind_with_dims(dims), bucketed.padded_names
        found = self._known.get(which) or self._known.get(of_bucket) or self._known.get(of_kind)
        if found is None:
            found = self._decide(call, there, dims, bucketed)
            self._known[of_bucket if found.is_sized else which] = found
            last = self._last[of_kind] = [*self._last.get(of_kind, ()), getattr(found, "reason", "")][-ALIKE:]
            if len(last) == ALIKE and last[0] and len(set(last)) == 1:
                self._known[of_kind] = found
        return found

    def _decide(
        self, call: Call, there: World | None, dims: Named, bucketed: Bucketed
    ) -> PaddingNeeds | PaddingRefusal:
        """The verdict on each padded dim in turn, those before it as in the bucket."""
        padded = sorted(bucketed.padded_names)
        sizes, found, written = dict(bucketed.actual), list[DimVerdict](), set[int]()
        for name in padded:
            try:
                n, larger, bucket = sizes[name], bucketed.bucket[name], bucketed.bucket[name]
                own, places = self._traced(call, there if found else call.world, dims, sizes)
                if n == 1 and there is not None:
                    # Torch takes operations on one row apart in other ways, so two rows stand for it: in one graph.
                    rows_independent(1, 1, own, self._traced(call, there, dims, sizes)[0])
                    n, larger = 2, max(bucket, 3)
                    own, places = self._traced(call, there, dims, {**sizes, name: n})
                large, _ = self._traced(call, there, dims, {**sizes, name: larger})
                found.append(rows_independent(n, larger, own, large))
            except PaddingRefusal as refusal:
                return refusal.named(name)
            written |= {places[each] for each in found[-1].written if each in places}
            sizes[name] = bucket
        mixing = next((each.backward for each in found if each.backward is not None), None)
        refused = PaddingRefusal.by(mixing).named(padded[0]) if mixing is not None else None
        needs_last, is_sized = any(each.needs_last for each in found), any(each.is_sized for each in found)
        return PaddingNeeds(tuple(padded), needs_last, tuple(sorted(written)), refused, is_sized)

    def _traced(
        self, call: Call, world: World | None, dims: Named, sizes: Mapping[str, int]
    ) -> tuple[Trace, dict[Any, int]]:
        """What runs at these sizes; and by name of its inputs, the position of the tensor among the call's.

        Raises:
            PaddingRefusal: it fails there.
        """

        def alone(*given: Tensor) -> Any:
            args, kwargs = _with_tensors(call, given)
            return self._fn(*args, **kwargs)

        trace, fakes = Trace(), []
        for i, t in enumerate(call.tensors):
            named = dims.get(i)
            shape = None if named is None else [sizes[named[d]] if d in named else n for d, n in enumerate(t.size())]
            fakes.append(trace.like(t, shape))
        run, inputs, names = alone, fakes, list(range(len(fakes)))
        if self._front is not None:
            assert world is not None
            given = {**world.names, "L": self._front._given(*_with_tensors(call, fakes))}
            run, nodes = world.found.graph, world.found.graph.graph.find_nodes(op="placeholder")
            names = world.found.sources
            inputs = [eval(name, given) if name else _hint(node) for name, node in zip(names, nodes)]
        by_id = {id(t): i for i, t in enumerate(fakes)}
        trace.run(run, inputs, names)
        return trace, {name: by_id[id(t)] for name, t in zip(names, inputs) if id(t) in by_id}


def _computes_sizes(world: World) -> bool:
    """Whether the graph computes numbers that may happen to be equal at two sizes and not at a third.

    Sums and products of sizes are not: they grow with each.
    """
    nodes = [n for n in world.found.graph.graph.nodes if n.op == "call_function"]
    made = [n.meta.get("example_value") for n in nodes if n.target not in (operator.add, operator.mul)]
    return any(isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) for each in made)


def _nodes(module: Any) -> Iterable[Any]:
    return module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()


def _hint(node: Any) -> Any:
    value = node.meta.get("example_value", node.meta.get("val"))
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def _with_tensors(call: Call, tensors: Sequence[Tensor]) -> tuple[Args, Kwargs]:
    """The call's arguments with other tensors; what is one tensor in the call is one in these."""
    rest = iter([tensors[first] for first in twins_of(call.tensors)])
    args = replace(tuple(call.args), lambda _: next(rest))
    return args, replace(dict(call.kwargs), lambda _: next(rest))


# -- one run beside another ---------------------------------------------------------------------------

Written = tuple[str, Tensor, Tensor]
"""An argument that is written to: its name, the call's own tensor, the other run's tensor."""


@dataclass
class Compared:
    """The call's own result, and how the other run differs; "" if it does not."""

    result: Any = None
    structure: Any = None
    outputs: list[Tensor] = field(default_factory=list)
    problem: str = ""


def compare(
    call: Callable[[], Any],
    other: Callable[[], Any],
    outside: Sequence[Tensor],
    written: Sequence[Written],
    device: int,
) -> Compared:
    """Run ``call``, then ``other``, and leave the state as after ``call`` alone.

    Args:
        outside: external tensors that either of them writes to.
        written: arguments that are written to.

    Raises whatever ``call`` raises.
    """
    generators = torch.default_generator, torch.cuda.default_generators[device]
    places = [t.detach() for t in outside]
    found = Compared()
    try:
        before = Rollback(places, generators)
    except torch.OutOfMemoryError:
        return Compared(call(), problem=NO_MEMORY)
    found.result = call()
    try:
        found.structure = flatten(found.result, found.outputs)
    except NotATree as error:
        return Compared(found.result, problem=f"its result cannot be taken apart: {error}")
    after = Rollback((), generators)
    try:
        after.save(places)
        # A later write to memory shared with a result would show in it.
        kept = [t.detach().clone() if outside else t.detach() for t in found.outputs]
        before.restore()
        found.problem = _difference(found, kept, other()) or _effects(after, written)
        if not found.problem and after.has_drawn():
            found.problem = "it draws different random numbers at the bucket's size"
    except Exception as error:  # whatever the function raises at a size that it was not called with
        if is_interrupt(error):
            raise
        found.problem = f"the function fails on it: {type(error).__name__}: {first_line(error)}"
    finally:
        after.restore()
    return found


def _difference(found: Compared, kept: Sequence[Tensor], result: Any) -> str:
    outputs: list[Tensor] = []
    if flatten(result, outputs) != found.structure:
        return "the structure of the result, or a number in it, depends on the size"
    for i, (mine, real) in enumerate(zip(outputs, kept)):
        name = f"result {i}" if len(outputs) > 1 else "the result"
        if mine.layout is not torch.strided or real.layout is not torch.strided:
            return f"{name} is sparse"
        if mine.dim() != real.dim() or any(a < b for a, b in zip(mine.size(), real.size())):
            return f"{name} is {list(mine.size())} in the bucket and {list(real.size())} without padding"
        if not is_close(front(mine.detach(), real.size()), real):
            return f"{name} differs from the function's result without padding"
    if _places(outputs, found.outputs) != _places(found.outputs, found.outputs):
        return "results that share memory with each other are laid out differently in the bucket"
    return ""


def _places(tensors: Sequence[Tensor], real: Sequence[Tensor]) -> list[object]:
    """For results that share memory in eager execution: with which result, at which offset, and their strides."""
    homes = [id(t) if not t.numel() else t.untyped_storage().data_ptr() for t in real]
    first = {home: t.storage_offset() for home, t in reversed([*zip(homes, tensors)])}
    several = Counter(home for home, _ in {(home, id(t)) for home, t in zip(homes, real)})
    return [(h, t.stride(), t.storage_offset() - first[h]) for h, t in zip(homes, tensors) if several[h] > 1]


def _effects(after: Rollback, written: Sequence[Written]) -> str:
    if not all(is_close(t, real) for t, real in zip(after.tensors, after.contents)):
        return "what is written to a tensor outside the function differs from what it writes without padding"
    for name, real, mine in written:
        if not is_close(front(mine.detach(), real.size()), real.detach()):
            return f"what is written to {name} differs from what the function writes without padding"
    return ""
