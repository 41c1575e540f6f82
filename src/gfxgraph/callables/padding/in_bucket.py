"""Compares one call with its bucket: whether a graph of the bucket's size gives the function's results.

    call ── world at the bucket's size, traced or predicted ── verdict on its graph (verdicts.py)
         ── run as it is, and padded, and compared (compare.py) ──> how the bucket serves it, or why it does not

Does the same for a call above every bucket and its chunks.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.buckets import Bucketed, Dims, argument_paths
from gfxgraph.callables.captured_signature import REFUSED, Route
from gfxgraph.callables.chunks import NotInPieces, join, joints, split
from gfxgraph.callables.learned_buckets import Planned, refusal
from gfxgraph.callables.padding.compare import Compared, compare
from gfxgraph.callables.padding.content import Content, Pad, dense_copy, pad_copy
from gfxgraph.callables.padding.traced_program import FxProgram, is_same_program
from gfxgraph.callables.padding.verdicts import Judge, Padded, PaddingRefusal, Verdicts
from gfxgraph.callables.signature import Args, Call, Kwargs, RunEagerly, flatten, replace
from gfxgraph.core.bucket_sizes import Above
from gfxgraph.process import process

if TYPE_CHECKING:
    from gfxgraph.callables.chunks import TooLarge
    from gfxgraph.callables.padding.dependence import Independence
    from gfxgraph.callables.trace.frontend import Frontend
    from gfxgraph.callables.trace.world import World

JUDGING = "compared with a padded run"
JUDGING_PIECES = "compared with a run in pieces"
OTHER = "the function is a different program at the bucket's size"


class InBucket:
    """Runs one callable at sizes other than its calls'.

    Args:
        fn: the function.
        run: the function as it is captured, through Dynamo if Dynamo traces it.
        front: Dynamo; None if nothing is traced.
        name: its name, for reports.
        dims: the dynamic dims; None if there are none.
        planned: the sizes of its calls.
        verdicts: what is known of its padding.
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
        planned: Planned,
        verdicts: Judge,
        eager: Counter[str],
        forget: Callable[[], Callable[[World], None] | None],
    ) -> None:
        self._fn = fn
        self._run = run
        self._front = front
        self._name = name
        self._dims = dims
        self._planned = planned
        self._judge = verdicts
        self._eager = eager
        self._forget = forget

    def _evict(self, world: World) -> None:
        forget = self._forget()
        if forget is not None:
            forget(world)

    def judge(self, route: Route, call: Call) -> Any:
        """Run the call eagerly, and find out whether its bucket would have given the same result."""
        bucketed = route.bucketed
        assert bucketed is not None and self._dims is not None
        names = argument_paths(self._fn, call.args, call.kwargs)
        dims = self._dims.of(call.structure, call.tensors, lambda: names)
        result, found = self._beside(call, bucketed, names, dims)
        self._eager[JUDGING if isinstance(found, Padded) else f"{REFUSED}: {found.reason}"] += 1
        if isinstance(found, Padded):
            route.padded, route.content = found, found.content
        elif found.is_final:
            self._refuse(route, found, bucketed)
        return result

    def _refuse(self, route: Route, found: PaddingRefusal, bucketed: Bucketed) -> None:
        route.entry, route.why_eager = None, f"{REFUSED}: {found.reason}"
        if bucketed.actual not in self._planned.refused:
            self._planned.refused.append(bucketed.actual)
        label = ", ".join(f"{name}={n} in {bucketed.bucket[name]}" for name, n in bucketed.actual.items())
        self._judge.refusals[label] = found
        if process.require().counters.event("padding_refused", found.reason, found.op, found.where):
            process.log.warning("%s: %s", self._name, refusal(found, bucketed.bucket))

    def in_chunks(self, route: Route, call: Call, run: Callable[[Args, Kwargs], Any]) -> Any:
        """Run a call above the largest bucket in chunks, if they give the same result.

        Args:
            run: runs each chunk.

        Raises:
            RunEagerly: they do not.
        """
        big = route.too_large
        assert big is not None and self._dims is not None
        if self._planned.sizes.above is not Above.CHUNKS or big.refusal is not None:
            raise RunEagerly(route.why_eager)
        if big.joints is None:
            names = argument_paths(self._fn, call.args, call.kwargs)
            big.dims = self._dims.of(call.structure, call.tensors, lambda: names)
            big.pieces = self._planned.sizes[big.name].chunks(big.sizes[big.name])
            result, found = self._in_pieces(big, call)
            self._eager[JUDGING_PIECES if isinstance(found, list) else f"{REFUSED}: {found.reason}"] += 1
            if isinstance(found, list):
                big.joints = found
            elif found.is_final:
                big.refusal = found
                route.why_eager += ", and is not run in pieces"
                self._judge.refusals[f"{big.name}={big.sizes[big.name]}"] = found
            return result
        piecewise = self._caller(call, lambda *args, **kwargs: run(args, kwargs))
        return join([piecewise(piece) for piece in split(call.tensors, big.dims, big.name, big.pieces)], big.joints)

    def _beside(
        self, call: Call, bucketed: Bucketed, names: Sequence[str], dims: Mapping[int, Mapping[int, str]]
    ) -> tuple[Any, Padded | PaddingRefusal]:
        """The call's result, and how its bucket serves it."""
        copies = [dense_copy(t, s) if s not in (None, t.size()) else t for t, s in zip(call.tensors, bucketed.sizes)]
        args, kwargs = self._with_tensors(call, copies)
        world = self._bucket_world(call, args, kwargs)
        problem = self._why_not_judged(call, bucketed, world)
        if problem is not None:
            return self._run(*call.args, **call.kwargs), problem
        program, found = self._verdicts(call, dims, world or call.world)
        content = self._judge.choose(found, names, dims, bucketed.actual, bucketed.bucket)
        if isinstance(content, PaddingRefusal):
            return self._run(*call.args, **call.kwargs), content
        if program is not None and world is None and not self._is_foreseen(program, args, kwargs):
            return self._run(*call.args, **call.kwargs), PaddingRefusal(OTHER)
        outside, written = self._written(call, program, found.first, names, copies)
        if program is not None and world is None:  # only its run shows what its own trace writes
            outside += [t for t in call.world.tensors if t.is_cuda and not isinstance(t, torch.nn.Parameter)]
        for copy, tensor, each in zip(copies, call.tensors, content):
            if copy.size() != tensor.size():
                pad_copy(copy, tensor.size(), each)
        args, kwargs = self._with_tensors(call, copies)
        traced: list[Any] = []

        def in_bucket() -> Any:
            result, world = self.run_known(args, kwargs)
            traced.append(world)
            return result

        compared = Compared()
        unique = list({id(t): t for t in outside}.values())
        compare(compared, lambda: self._run(*call.args, **call.kwargs), in_bucket, unique, written, call.device)
        problem = _problem_of(compared)
        if problem is None and world is None and program is not None:
            problem = self._why_not_judged(call, bucketed, traced[0])
            if problem is None:
                _, found = self._verdicts(call, dims, traced[0])
                again = self._judge.choose(found, names, dims, bucketed.actual, bucketed.bucket)
                problem = (
                    again
                    if isinstance(again, PaddingRefusal)
                    else None
                    if again == content
                    else PaddingRefusal(OTHER)
                )
        if problem is not None:
            return compared.result, problem
        sizes = [tuple(t.size()) for t in compared.outputs]
        return compared.result, Padded(content, sizes, compared.structure)

    def _bucket_world(self, call: Call, args: Args, kwargs: Kwargs) -> World | None:
        """The world of the call at its bucket's size; None if it has not been traced, or if nothing is traced."""
        if self._front is None:
            return None
        world = self._front.find(args, kwargs)
        if world is not None and world is not call.world and self._front.has_moved(world, args, kwargs):
            self._evict(world)
            self._front.rebind(world, args, kwargs)
        return world

    def _why_not_judged(self, call: Call, bucketed: Bucketed, world: World | None) -> PaddingRefusal | None:
        """Why a verdict about the bucket's world would not apply to the call."""
        if self._front is None:
            return None
        if world is None:
            if any(bucketed.actual[name] == 1 for name in bucketed.padded_names):
                return PaddingRefusal("no call with more than one row has been traced yet", is_final=False)
            why = self._front.why_no_more()
            return PaddingRefusal(why) if why else None
        if world.why_pieces:
            return PaddingRefusal(f"at the bucket's size it is not a single graph: {world.why_pieces}")
        return None if self._is_same_program(call.world, world, call.args, call.kwargs) else PaddingRefusal(OTHER)

    def _is_foreseen(self, program: FxProgram, args: Args, kwargs: Kwargs) -> bool:
        """Predict, without running it, whether the function does the same at a size that was not traced."""
        assert self._front is not None
        seen = self._front.foresee(args, kwargs)
        if seen is None:
            return False
        found, scope = seen
        return is_same_program(program, FxProgram(found.graph, found.sources, scope))

    def run_known(self, args: Args, kwargs: Kwargs) -> tuple[Any, World | None]:
        """Run the function eagerly, and return its world too; traced now if it has none."""
        if self._front is None:
            return self._run(*args, **kwargs), None
        world = self._front.find(args, kwargs)
        if world is None:
            return self._front.trace(args, kwargs)
        return self._run(*args, **kwargs), world

    def _verdicts(
        self, call: Call, dims: Mapping[int, Mapping[int, str]], world: Any
    ) -> tuple[FxProgram | None, Verdicts]:
        """The FX graph of a world with the call's inputs, and the verdicts on its padding."""
        key = (call.kind_with_dims(dims), world.token)
        if self._front is None:
            function = self._caller(call)
            return None, self._judge.verdicts(key, lambda *given: function(given), call.tensors, dims)
        program = self._program(world, call.args, call.kwargs)
        dynamic = program.dynamic(call.tensors, dims)
        return program, self._judge.verdicts(key, program.graph, program.inputs, dynamic, by_size=True)

    def _program(self, world: World, args: Args, kwargs: Kwargs) -> FxProgram:
        assert self._front is not None
        scope = {**world._names, "L": self._front._given(args, kwargs)}
        return FxProgram(world.found.graph, world.found.sources, scope)

    def _is_same_program(self, one: World, other: World, args: Args, kwargs: Kwargs) -> bool:
        """Whether the two worlds' graphs do the same for these arguments."""
        if one is other:
            return True
        if one.why_pieces or other.why_pieces:
            return False
        return is_same_program(self._program(one, args, kwargs), self._program(other, args, kwargs))

    def _written(
        self, call: Call, program: FxProgram | None, found: Independence, names: Sequence[str], copies: list[Tensor]
    ) -> tuple[list[Tensor], list[tuple[str, Tensor, Tensor]]]:
        """External tensors that the function writes to, and written arguments: name, the call's tensor, the padded
        run's.
        """
        outside: list[Tensor] = list(getattr(call.world, "written", ()))
        written: list[tuple[str, Tensor, Tensor]] = []
        places = program.places(call.tensors) if program is not None else {i: i for i in range(len(names))}
        for at in sorted({int(name.split()[-1]) for each in found.dims.values() for name in each.written}):
            i = places.get(at)
            if i is None:
                assert program is not None
                outside.append(program.inputs[at])
                continue
            if copies[i] is call.tensors[i]:
                copies[i] = call.tensors[i].detach().clone()
            written.append((names[i], call.tensors[i], copies[i]))
        return outside, written

    def _with_tensors(self, call: Call, tensors: Sequence[Tensor]) -> tuple[Args, Kwargs]:
        """The call's arguments with other tensors."""
        rest = iter(tensors)
        args = replace(tuple(call.args), lambda _: next(rest))
        return args, replace(dict(call.kwargs), lambda _: next(rest))

    def content_ahead(self, call: Call, bucketed: Bucketed) -> list[Content] | PaddingRefusal:
        """The content of padding if the call stands for a bucket of any size: larger, or cut to it."""
        assert self._dims is not None
        names = argument_paths(self._fn, call.args, call.kwargs)
        dims = self._dims.of(call.structure, call.tensors, lambda: names)
        actual = {name: call.tensors[i].size(dim) for i, named in dims.items() for dim, name in named.items()}
        smaller = {name: min(n, bucketed.bucket[name]) for name, n in actual.items()}
        if actual == bucketed.bucket:
            return [Pad.ZERO] * len(names)
        _, found = self._verdicts(call, dims, call.world)
        for name, n in actual.items():
            problem = self._judge.why_not_split(found, name, [smaller[name]], actual) if smaller[name] < n else None
            if problem is not None:
                return problem
        return self._judge.choose(found, names, dims, smaller, bucketed.bucket)

    def _caller(self, call: Call, fn: Callable[..., Any] | None = None) -> Callable[[Sequence[Tensor]], Any]:
        """The function of the call's tensors, with everything else as in the call."""

        def run(given: Sequence[Tensor]) -> Any:
            args, kwargs = self._with_tensors(call, given)
            return (fn or self._fn)(*args, **kwargs)

        return run

    def _in_pieces(self, big: TooLarge, call: Call) -> tuple[Any, list[int] | PaddingRefusal]:
        """Run the call eagerly, and find the dims along which its chunks' results are joined."""
        _, found = self._verdicts(call, big.dims, call.world)
        problem = self._judge.why_not_split(found, big.name, big.pieces, big.sizes)
        if problem is not None:
            return self._run(*call.args, **call.kwargs), problem
        parts: list[list[Tensor]] = []

        def in_pieces() -> Any:
            results = []
            for piece in split(call.tensors, big.dims, big.name, big.pieces):
                args, kwargs = self._with_tensors(call, piece)
                result, world = self.run_known(args, kwargs)
                results.append(result)
                if world is not None and not self._is_same_program(call.world, world, args, kwargs):
                    raise NotInPieces("a piece is a different program")
                parts.append([])
                flatten(result, parts[-1])
            return join(results, joints([t.size() for t in compared.outputs], parts))

        compared = Compared()
        compare(
            compared,
            lambda: self._run(*call.args, **call.kwargs),
            in_pieces,
            [t for t in getattr(call.world, "tensors", ()) if t.is_cuda and not isinstance(t, torch.nn.Parameter)],
            (),
            call.device,
        )
        problem = _problem_of(compared)
        if problem is not None:
            reason = problem.reason.replace("without padding", "at once")
            return compared.result, PaddingRefusal(reason, is_final=problem.is_final)
        return compared.result, joints([t.size() for t in compared.outputs], parts)


def _problem_of(compared: Compared) -> PaddingRefusal | None:
    if compared.failed:
        return PaddingRefusal(f"the device failed: {compared.failed}", is_final=False)
    return PaddingRefusal(compared.problem) if compared.problem else None
