"""Whether a graph of a bucket's size serves a smaller call: decided from the graph, then compared once.

    call ── world at the bucket's size ── the same program? ── verdict on its graph
         ── run as it is, and padded, and compared ──> how the bucket serves it
         └─ refused: the operation, its line, what to do; such calls run eagerly

The call itself runs eagerly and its result goes to the caller. The padded run is the second line of defence behind
the verdict (rows.py): it is compared with capture/replay/validation.py, and all of its effects are undone.

A size of 1, a stride, or two sizes that happen to be equal give a call a trace of its own, though the function does
the same. Two traces are the same program for a call if both, on fake tensors of its sizes, are the same operations.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from gfxgraph.callables.buckets import Bucketed, BucketSizes, Dims, argument_paths
from gfxgraph.callables.captured import Padded, Route
from gfxgraph.callables.inputs import dense_copy, front, pad, repeat_last
from gfxgraph.callables.signature import Args, Call, Kwargs, NotATree, flatten, replace
from gfxgraph.callables.trace.dynamo import Calls, Frontend, Waiting
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.replay.validation import is_near
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import ConfigError, first_line
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.callables.padding.rows import Independence
    from gfxgraph.callables.trace.world import World

Named = Mapping[int, Mapping[int, str]]
"""By position of the tensor, then by dim: the dynamic dim's name."""
MOST_UNKNOWN = 32
"""Calls that wait for one of their bucket's size; from then on such sizes run eagerly."""
REFUSED = "padding refused"
JUDGING = "compared with a padded run"
UNKNOWN = "the function was not called at the bucket's size yet, and may be a different program there"
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


def choose(found: Independence, actual: Mapping[str, int], bucket: Mapping[str, int]) -> bool | PaddingRefusal:
    """Whether padding must repeat the last row, or why nothing may be padded.

    Args:
        found: the verdict on the program that calls of these sizes run.
    """
    padded = [name for name, n in actual.items() if bucket[name] != n]
    for name in padded:
        if name not in found.dims:
            why = f"it reads only the number of rows of {name}, not the rows; pass the number as a tensor"
            return PaddingRefusal(why)
        verdict = found.dims[name]
        if verdict.refusal:
            return PaddingRefusal(verdict.refusal, verdict.op, verdict.where)
    for sizes in (actual, bucket):
        if not found.holds(sizes):
            shown = ", ".join(f"{name}={n}" for name, n in sizes.items())
            return PaddingRefusal(f"the function is a different program for sizes {shown}")
    return any(found.dims[name].needs_last for name in padded)


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
    ) -> None:
        self._fn = fn
        self._run = run
        self._front = front
        self._name = name
        self._dims = dims
        self._planned = planned
        self._eager = eager
        self.refusals: dict[str, PaddingRefusal] = {}
        """By sizes and bucket, as text."""
        self._n_unknown = 0
        """Calls at whose bucket's size the function was not called yet."""
        self._known: dict[Any, Independence] = {}
        """The verdicts by program."""

    def explain(self) -> list[str]:
        """One line for each dim of each judged program."""
        found = [verdict for known in self._known.values() for verdict in known.dims.values()]
        return list(dict.fromkeys(verdict.explain() for verdict in found))

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
        if not found.is_final:
            return result
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
        program = None if self._front is None else self._program(call.world, call)
        return choose(self._verdict(call, dims, program), actual, bucketed.bucket)

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
        program = self._in_bucket(call, *_with_tensors(call, copies))
        if isinstance(program, PaddingRefusal):
            return self._run(*call.args, **call.kwargs), program
        verdict = self._verdict(call, dims, program)
        found = choose(verdict, bucketed.actual, bucketed.bucket)
        if isinstance(found, PaddingRefusal):
            return self._run(*call.args, **call.kwargs), found
        outside, written = self._written(call, program, verdict, copies)
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

        unique = list({id(t): t for t in outside}.values())
        compared = compare(lambda: self._run(*call.args, **call.kwargs), in_bucket, unique, written, call.device)
        if compared.problem:
            return compared.result, PaddingRefusal(compared.problem)
        if traced[0] is not None and traced[0].why_pieces:
            return compared.result, PaddingRefusal(IN_PIECES + traced[0].why_pieces)
        sizes = [tuple(t.size()) for t in compared.outputs]
        return compared.result, Padded(found, sizes, compared.structure)

    def _named(self, call: Call) -> Named:
        assert self._dims is not None
        return self._dims.of(call.structure, call.tensors, lambda: argument_paths(self._fn, call.args, call.kwargs))

    def _in_bucket(self, call: Call, args: Args, kwargs: Kwargs) -> FxProgram | None | PaddingRefusal:
        """The program that runs at the bucket's size, with the call's inputs, or why that is not the call's.

        None if nothing is traced.
        """
        front = self._front
        if front is None:
            return None
        here, world = self._program(call.world, call), front.find(args, kwargs)
        if world is call.world:
            return here
        if world is None:
            self._n_unknown += 1
            is_final = bool(front.why_no_more()) or self._n_unknown >= MOST_UNKNOWN
            return PaddingRefusal(front.why_no_more() or UNKNOWN, is_final=is_final)
        if world.why_pieces:
            return PaddingRefusal(IN_PIECES + world.why_pieces)
        there = self._program(world, call)
        return there if is_same_program(here, there) else PaddingRefusal(OTHER)

    def _program(self, world: World, call: Call) -> FxProgram:
        assert self._front is not None
        return FxProgram(world, self._front._given(call.args, call.kwargs))

    # -- verdicts -------------------------------------------------------------------------------------

    def _verdict(self, call: Call, dims: Named, program: FxProgram | None) -> Independence:
        """The verdict on the padding of a program; None is the function itself, which is not traced by Dynamo."""
        # lazily: sympy and Dynamo take longer to import than torch, and only padding needs them here
        from gfxgraph.callables.padding.rows import rows_independent

        def alone(*given: Tensor) -> Any:
            args, kwargs = _with_tensors(call, given)
            return self._fn(*args, **kwargs)

        which = call.kind_with_dims(dims), call.world.token if program is None else program.graph
        if which not in self._known:
            about: tuple[Any, Sequence[Any], Named] = alone, call.tensors, dims
            if program is not None:
                about = program.graph, program.inputs, program.dynamic(call.tensors, dims)
            self._known[which] = rows_independent(*about)
        return self._known[which]

    def _written(
        self, call: Call, program: FxProgram | None, verdict: Independence, copies: list[Tensor]
    ) -> tuple[list[Tensor], list[Written]]:
        """External tensors that the function writes to, and written arguments: name, the call's tensor, the padded
        run's.
        """
        names = argument_paths(self._fn, call.args, call.kwargs)
        outside: list[Tensor] = list(getattr(call.world, "written", ()))
        written: list[Written] = []
        places = program.places(call.tensors) if program is not None else {i: i for i in range(len(names))}
        for at in sorted({at for each in verdict.dims.values() for at in each.written}):
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
        before.put_back()
        found.problem = _difference(found, kept, other()) or _effects(after, written)
        if not found.problem and after.has_drawn():
            found.problem = "it draws different random numbers at the bucket's size"
    except Exception as error:  # whatever the function raises at a size that it was not called with
        if is_interrupt(error):
            raise
        found.problem = f"the function fails on it: {type(error).__name__}: {first_line(error)}"
    finally:
        after.put_back()
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
        world: the world that it was traced in.
        given: the call's ``L``.
    """

    def __init__(self, world: World, given: Mapping[str, Any]) -> None:
        self.graph: fx.GraphModule = world.found.graph
        self.sources: list[str] = world.found.sources
        nodes = self.graph.graph.find_nodes(op="placeholder")
        given = {**world._names, "L": given}
        self.inputs = [eval(source, given) if source else _hint(node) for node, source in zip(nodes, self.sources)]

    def places(self, tensors: Sequence[Tensor]) -> dict[int, int]:
        """By position of the placeholder: the position of its tensor among the call's."""
        by_id = {id(t): i for i, t in enumerate(tensors)}
        return {at: by_id[id(value)] for at, value in enumerate(self.inputs) if id(value) in by_id}

    def dynamic(self, tensors: Sequence[Tensor], dims: Mapping[int, Mapping[int, str]]) -> Named:
        """``dims`` by position of the placeholder."""
        return {at: dims[i] for at, i in self.places(tensors).items() if i in dims}


def is_same_program(one: FxProgram, other: FxProgram) -> bool:
    """Whether the two do the same for the call that they were made with; False if unknown."""
    if one.graph is other.graph:
        return True
    if "" in (*one.sources, *other.sources):  # a number that Dynamo computed in the call that it traced
        return False
    tensors = {n: v for each in (one, other) for n, v in zip(each.sources, each.inputs) if isinstance(v, Tensor)}
    mine = _operations(one, tensors)
    return mine is not None and mine == _operations(other, tensors)


def _operations(program: FxProgram, tensors: Mapping[str, Tensor]) -> Any:
    """What the graph does with tensors of the call's sizes, as code and its constants; None if unknown."""
    # lazily: sympy again
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(*given: Tensor) -> Any:
        named = dict(zip(tensors, given))
        return program.graph(*[named.get(n, value) for n, value in zip(program.sources, program.inputs)])

    try:
        with Waiting():
            made = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors.values())
        constants = [getattr(made, str(node.target)) for node in made.graph.find_nodes(op="get_attr")]
        return made.code, [(t.dtype, id(t) if t.numel() > _MOST_COMPARED else t.tolist()) for t in constants]
    except (RuntimeError, TypeError, ValueError, AssertionError, LookupError, AttributeError, ArithmeticError):
        return None


_MOST_COMPARED = 4096
"""Most elements of a graph's constant that are compared; a larger one is known by its identity."""


def _hint(node: fx.Node) -> Any:
    value = node.meta.get("example_value", node.meta.get("val"))
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value
