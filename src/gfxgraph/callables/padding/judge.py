"""Whether a graph of a bucket's size serves a smaller call: decided from the graph, then compared once.

    call ── world at the bucket's size, traced or predicted ── the same program? ── verdict on its graph
         ── run as it is, and padded, and compared ──> how the bucket serves it
         └─ refused: the operation, its line, what to do; such calls run eagerly

The call itself runs eagerly and its result goes to the caller. The padded run is the second line of defence behind
the verdict (dependence.py): it is compared with capture/replay/tolerance.py, and all of its effects are undone.

A size of 1, a stride, or two sizes that happen to be equal give a call a trace of its own, though the function does
the same. Two traces are the same program for a call if both, on fake tensors of its sizes, are the same operations.
"""

# ruff: noqa: TID253

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from gfxgraph.callables.buckets import Bucketed, BucketSizes, Dims, argument_paths
from gfxgraph.callables.captured import Padded, Route
from gfxgraph.callables.inputs import dense_copy, front, pad, repeat_last
from gfxgraph.callables.signature import Args, Call, Kwargs, NotATree, flatten, replace
from gfxgraph.callables.trace.dynamo import Calls, Frontend
from gfxgraph.capture.replay.program import is_operations_own
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.replay.tolerance import is_near
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import ConfigError, GfxGraphError, first_line
from gfxgraph.guard.localize import is_fault
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.callables.padding.dependence import Independence
    from gfxgraph.callables.trace.trace_result import Found
    from gfxgraph.callables.trace.world import World

Named = Mapping[int, Mapping[int, str]]
"""By position of the tensor, then by dim: the dynamic dim's name."""
MOST_SIDES = 4
"""Most traces of one program, for sizes at which torch computes it differently."""
REFUSED = "padding refused"
JUDGING = "compared with a padded run"
OTHER = "the function is a different program at the bucket's size"
IN_PIECES = "at the bucket's size it is not a single graph: "
NO_MEMORY = "there is not enough memory to compare a padded run"


@dataclass(frozen=True)
class PaddingRefusal:
    """Why a call is not padded."""

    reason: str
    op: str = ""
    where: str = ""
    is_final: bool = True
    """False if a later call may get another verdict."""

    def error(self, bucket: Mapping[str, int]) -> ConfigError:
        """The refusal as an error, made for its text and not raised."""
        return ConfigError(
            "padding_refused",
            bucket=", ".join(f"{name}={n}" for name, n in bucket.items()),
            reason=self.reason,
            op=self.op or "no operation",
            where=self.where or "the function's result",
        )


def choose(
    at: Callable[[Mapping[str, int]], Independence | None], actual: Mapping[str, int], bucket: Mapping[str, int]
) -> bool | PaddingRefusal:
    """Whether padding must repeat the last row, or why nothing may be padded.

    Args:
        at: the verdicts that hold for calls of these sizes; None if there are none.
    """
    padded = [name for name, n in actual.items() if bucket[name] != n]
    first = None
    for chosen in itertools.product(*[(actual[name], bucket[name]) for name in padded]):
        sizes = {**actual, **dict(zip(padded, chosen))}
        there = at(sizes)
        first = first or there
        if there is None or first is None:
            shown = ", ".join(f"{name}={n}" for name, n in sizes.items())
            return PaddingRefusal(f"the function is a different program for sizes {shown}")
        for name in padded:
            if name not in there.dims:
                why = f"it reads only the number of rows of {name}, not the rows; pass the number as a tensor"
                return PaddingRefusal(why)
            if not there[name].allowed:
                return PaddingRefusal(there[name].explain(), there[name].op, there[name].where)
            if first[name] != there[name]:
                return PaddingRefusal(OTHER)
    return first is not None and any(first[name].needs_last for name in padded)


class Judge:
    """The padding of one callable.

    Args:
        fn: the function.
        run: the function as it is captured, through Dynamo if Dynamo traces it.
        front: Dynamo; None if nothing is traced.
        name: the function's name.
        dims: the dynamic dims; None if there are none.
        planned: the sizes of its calls.
        eager: calls without a graph, by reason.
        forget: a weak reference to a function to call for a world whose graphs read tensors that were replaced.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        run: Callable[..., Any],
        front: Frontend | None,
        name: str,
        dims: Dims | None,
        planned: BucketSizes,
        eager: Calls,
        forget: Callable[[], Callable[[World], None] | None],
    ) -> None:
        self._fn = fn
        self._run = run
        self._front = front
        self._name = name
        self._dims = dims
        self._planned = planned
        self._eager = eager
        self._forget = forget
        self.refusals: dict[str, PaddingRefusal] = {}
        """By sizes and bucket, as text."""
        self._known: dict[Any, list[Independence]] = {}
        """The verdicts by program: those of its first trace, and of traces for sizes that it does not cover."""

    def explain(self) -> list[str]:
        """One line for each dim of each judged program."""
        found = itertools.chain.from_iterable(self._known.values())
        return list(dict.fromkeys(line for each in found for line in each.explain().splitlines()))

    def judge(self, route: Route, call: Call) -> Any:
        """Run the call eagerly, and find out whether its bucket would have given the same result."""
        bucketed = route.bucketed
        assert bucketed is not None
        result, found = self._beside(call, bucketed)
        if isinstance(found, Padded):
            self._eager.count(JUDGING)
            route.padded, route.repeats_last = found, found.repeats_last
            return result
        why = f"{REFUSED}: {found.reason}"
        self._eager.count(why)
        if found.is_final:
            route.entry, route.why_eager = None, why
            if bucketed.actual not in self._planned.refused:
                self._planned.refused.append(bucketed.actual)
            label = ", ".join(f"{name}={n} in {bucketed.bucket[name]}" for name, n in bucketed.actual.items())
            self.refusals[label] = found
            if process.require().counters.event("padding_refused", found.reason, found.op, found.where):
                process.log.warning("%s: %s", self._name, found.error(bucketed.bucket))
        return result

    def ahead(self, call: Call, bucketed: Bucketed) -> bool | PaddingRefusal:
        """For a capture on values of another size, before the first call: whether padding repeats the last row."""
        dims = self._named(call)
        actual = {name: call.tensors[i].size(dim) for i, named in dims.items() for dim, name in named.items()}
        if actual == bucketed.bucket:
            return False
        program = None if self._front is None else self._program(call.world, call.args, call.kwargs)
        return choose(self._verdicts(call, dims, program)[1], actual, bucketed.bucket)

    def run_known(self, args: Args, kwargs: Kwargs) -> tuple[Any, World | None]:
        """Run the function eagerly, and return its world too; traced now if it has none."""
        if self._front is None:
            return self._run(*args, **kwargs), None
        world = self._front.find(args, kwargs)
        if world is None:
            return self._front.trace(args, kwargs)
        return self._run(*args, **kwargs), world

    # -- one call -------------------------------------------------------------------------------------

    def _beside(self, call: Call, bucketed: Bucketed) -> tuple[Any, Padded | PaddingRefusal]:
        """The call's result, and how its bucket serves it."""
        dims = self._named(call)
        copies = [dense_copy(t, s) if s not in (None, t.size()) else t for t, s in zip(call.tensors, bucketed.sizes)]
        program = self._in_bucket(call, dims, bucketed, *_with_tensors(call, copies))
        found: bool | PaddingRefusal
        if isinstance(program, PaddingRefusal):
            return self._run(*call.args, **call.kwargs), program
        known, at = self._verdicts(call, dims, program)
        found = choose(at, bucketed.actual, bucketed.bucket)
        if isinstance(found, PaddingRefusal):
            return self._run(*call.args, **call.kwargs), found
        outside, written = self._written(call, program, known, copies)
        for copy, tensor in zip(copies, call.tensors):
            if copy.size() != tensor.size():
                pad(copy, tensor.size())
                if found:
                    repeat_last(copy, tensor.size())
        args, kwargs = _with_tensors(call, copies)
        traced: list[Any] = []

        def in_bucket() -> Any:
            result, world = self.run_known(args, kwargs)
            traced.append(world)
            return result

        compared = Compared()
        unique = list({id(t): t for t in outside}.values())
        compare(compared, lambda: self._run(*call.args, **call.kwargs), in_bucket, unique, written, call.device)
        if compared.failed:
            return compared.result, PaddingRefusal(f"the device failed: {compared.failed}", is_final=False)
        if compared.problem:
            return compared.result, PaddingRefusal(compared.problem)
        if traced[0] is not None and traced[0].why_pieces:
            return compared.result, PaddingRefusal(IN_PIECES + traced[0].why_pieces)
        sizes = [tuple(t.size()) for t in compared.outputs]
        return compared.result, Padded(found, sizes, compared.structure)

    def _named(self, call: Call) -> Named:
        assert self._dims is not None
        return self._dims.of(call.structure, call.tensors, lambda: argument_paths(self._fn, call.args, call.kwargs))

    def _in_bucket(
        self, call: Call, dims: Named, bucketed: Bucketed, args: Args, kwargs: Kwargs
    ) -> FxProgram | None | PaddingRefusal:
        """The program that runs at the bucket's size, with the call's inputs, or why that is not the call's.

        None if nothing is traced.
        """
        front = self._front
        if front is None:
            return None
        world = front.find(args, kwargs)
        if world is call.world:
            return self._program(world, call.args, call.kwargs)
        here = self._program(call.world, call.args, call.kwargs)
        if world is None:
            if any(bucketed.actual[name] == 1 for name in bucketed.padded_names):
                return PaddingRefusal("no call with more than one row has been traced yet", is_final=False)
            why = front.why_no_more()
            if why:
                return PaddingRefusal(why)
            # Without running it: the function may do something else at a size that was not traced.
            seen = front.foresee(args, kwargs)
            if seen is None:
                own = choose(self._verdicts(call, dims, here)[1], bucketed.actual, bucketed.bucket)
                return own if isinstance(own, PaddingRefusal) else PaddingRefusal(OTHER)
            there = FxProgram(seen[0], {**seen[1], "L": front._given(call.args, call.kwargs)}, None)
        else:
            if front.has_moved(world, args, kwargs):
                forget = self._forget()
                if forget is not None:
                    forget(world)
                front.rebind(world, args, kwargs)
            if world.why_pieces:
                return PaddingRefusal(IN_PIECES + world.why_pieces)
            there = self._program(world, call.args, call.kwargs)
        return there if is_same_program(here, there) else PaddingRefusal(OTHER)

    def _program(self, world: World, args: Args, kwargs: Kwargs) -> FxProgram:
        assert self._front is not None
        return FxProgram(world.found, {**world._names, "L": self._front._given(args, kwargs)}, world)

    # -- verdicts -------------------------------------------------------------------------------------

    def _verdicts(
        self, call: Call, dims: Named, program: FxProgram | None
    ) -> tuple[list[Independence], Callable[[Mapping[str, int]], Independence | None]]:
        """The verdicts on the padding of a program: those known, and those for given sizes.

        What the trace of an FX graph assumes about sizes only decides how torch computes them (an unaligned attention
        mask is padded, a convolution of few rows takes another kernel), so other sizes get a trace of their own. A
        function that is not traced by Dynamo may itself be another program there.
        """
        # lazily: sympy and Dynamo take longer to import than torch, and only padding needs them here
        from gfxgraph.callables.padding.dependence import rows_independent

        which = call.world.token if program is None else program.graph
        known = self._known.setdefault((call.kind_with_dims(dims), which), [])
        most = 1 if program is None else MOST_SIDES

        def alone(*given: Tensor) -> Any:
            args, kwargs = _with_tensors(call, given)
            return self._fn(*args, **kwargs)

        about: tuple[Any, Sequence[Any], Named] = alone, call.tensors, dims
        if program is not None:
            about = program.graph, program.inputs, program.dynamic(call.tensors, dims)

        def at(sizes: Mapping[str, int]) -> Independence | None:
            found = next((each for each in known if each.holds(sizes)), None)
            if found is None and len(known) < most:
                found = rows_independent(*about, sizes)
                known.append(found)
            return found if found is not None and found.holds(sizes) else None

        return known, at

    def _written(
        self, call: Call, program: FxProgram | None, known: Sequence[Independence], copies: list[Tensor]
    ) -> tuple[list[Tensor], list[Written]]:
        """External tensors that the function writes to, and written arguments: name, the call's tensor, the padded
        run's.
        """
        names = argument_paths(self._fn, call.args, call.kwargs)
        outside: list[Tensor] = list(getattr(call.world, "written", ()))
        if program is not None and program.world is None:  # only its run shows what its own trace writes
            outside += [t for t in call.world.tensors if t.is_cuda and not isinstance(t, torch.nn.Parameter)]
        written: list[Written] = []
        places = program.places(call.tensors) if program is not None else {i: i for i in range(len(names))}
        for at in sorted({at for each in known for verdict in each.dims.values() for at in verdict.written}):
            i = places.get(at)
            if i is None:
                assert program is not None
                outside.append(program.inputs[at])
                continue
            if copies[i] is call.tensors[i]:
                copies[i] = call.tensors[i].detach().clone()
            written.append((names[i], call.tensors[i], copies[i]))
        return outside, written


def _with_tensors(call: Call, tensors: Sequence[Tensor]) -> tuple[Args, Kwargs]:
    """The call's arguments with other tensors."""
    rest = iter(tensors)
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
    failed: str = ""
    """How the device failed in the other run, which says nothing about it; "" if it did not."""


def compare(
    found: Compared,
    call: Callable[[], Any],
    other: Callable[[], Any],
    outside: Sequence[Tensor],
    written: Sequence[Written],
    device: int,
) -> None:
    """Run ``call``, then ``other``, and leave the state as after ``call`` alone.

    Args:
        found: filled in; has the result even if ``other`` raises.
        outside: external tensors that either of them writes to.
        written: arguments that are written to.

    Raises whatever ``call`` raises.
    """
    generators = torch.default_generator, torch.cuda.default_generators[device]
    places = [t.detach() for t in outside]
    try:
        before = Rollback(places, generators)
    except torch.OutOfMemoryError:
        found.result, found.problem = call(), NO_MEMORY
        return
    found.result = call()
    try:
        found.structure = flatten(found.result, found.outputs)
    except NotATree as error:
        found.problem = f"its result cannot be taken apart: {error}"
        return
    after = Rollback((), generators)
    try:
        after.save(places)
        # A later write to memory shared with a result would show in it.
        kept = [t.detach().clone() if outside else t.detach() for t in found.outputs]
        before.put_back()
        found.problem = _difference(found, kept, other()) or _effects(after, written)
        if not found.problem and after.has_drawn():
            found.problem = "it draws different random numbers at the bucket's size"
    except torch.OutOfMemoryError:
        found.problem = NO_MEMORY
    except Exception as error:  # whatever the function raises at a size that it was not called with
        if is_interrupt(error):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        if is_operations_own(error) or (isinstance(error, GfxGraphError) and not is_fault(error)):
            found.problem = f"the function fails on it: {said}"
        else:
            found.failed = said
            what = "the device failed while a call was compared with its bucket or its pieces"
            process.require().report("fallback", what, said)
    finally:
        after.put_back()


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
        if not is_near(front(mine.detach(), real.size()), real):
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
    if not all(is_near(t, real) for t, real in zip(after.tensors, after.contents)):
        return "what is written to a tensor outside the function differs from what it writes without padding"
    for name, real, mine in written:
        if not is_near(front(mine.detach(), real.size()), real.detach()):
            return f"what is written to {name} differs from what the function writes without padding"
    return ""


# -- the same program? --------------------------------------------------------------------------------


class FxProgram:
    """One of Dynamo's FX graphs, with the inputs of one call.

    Args:
        found: the FX graph, and the sources of its placeholders.
        scope: the namespace of the sources: the call's ``L``, and names of Dynamo's own.
        world: the world that it was traced in; None if it has not run.
    """

    def __init__(self, found: Found, scope: Mapping[str, Any], world: World | None) -> None:
        self.graph: fx.GraphModule = found.graph
        self.sources = found.sources
        self.world = world
        nodes = self.graph.graph.find_nodes(op="placeholder")
        given = dict(scope)
        self.inputs = [eval(source, given) if source else _hint(node) for node, source in zip(nodes, self.sources)]

    def places(self, tensors: Sequence[Tensor]) -> dict[int, int]:
        """By position of the placeholder: the position of its tensor among the call's."""
        by_id = {id(t): i for i, t in enumerate(tensors)}
        return {at: by_id[id(value)] for at, value in enumerate(self.inputs) if id(value) in by_id}

    def dynamic(self, tensors: Sequence[Tensor], dims: Mapping[int, Mapping[int, str]]) -> Named:
        """``dims`` by position of the placeholder."""
        return {at: dims[i] for at, i in self.places(tensors).items() if i in dims}

    def operations(self) -> list[Any] | None:
        """What the graph does with tensors of the call's sizes; equal for the same program. None if unknown."""
        # lazily: sympy and Dynamo again
        from gfxgraph.callables.padding.symbolic import NotTraced, traced

        if "" in self.sources:  # a number that Dynamo computed in the call that it traced
            return None
        try:
            found = traced(self.graph, self.inputs, {})
        except NotTraced:
            return None
        order: dict[int, Any] = {
            id(t): source for t, source in zip(found.inputs, self.sources) if isinstance(t, Tensor)
        }

        def plain(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [plain(each) for each in value]
            if isinstance(value, Mapping):
                return {name: plain(each) for name, each in value.items()}
            if isinstance(value, Tensor):
                return order[id(value)] if id(value) in order else _content(value)
            # An int is no float: 2 and 2.0 make other dtypes. What is still a symbol is equal to nothing.
            return object() if hasattr(value, "node") else (type(value), value)

        made: list[Any] = []
        for each in found.tape:
            made.append((each.op, plain(each.args), plain(each.kwargs)))
            for leaf in each.leaves:
                order.setdefault(id(leaf), len(order))
        return [*made, plain(tree_leaves(found.results))]


def is_same_program(one: FxProgram, other: FxProgram) -> bool:
    """Whether the two do the same for the calls that they were made with; False if unknown."""
    if one.graph is other.graph:
        return True
    mine = one.operations()
    return mine is not None and mine == other.operations()


def _content(tensor: Tensor) -> Any:
    """A constant is identified by its content if it is small, otherwise by identity."""
    if tensor.numel() > _MOST_COMPARED:
        return id(tensor)
    return tensor.dtype, tuple(tensor.shape), repr(tensor.tolist())


_MOST_COMPARED = 4096
"""Most elements of a graph's constant that are compared."""


def _hint(node: fx.Node) -> Any:
    value = node.meta.get("example_value", node.meta.get("val"))
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value
