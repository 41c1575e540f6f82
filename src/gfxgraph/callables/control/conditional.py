"""One of several branches, chosen by name, index or a value on the device.

Problem: a graph cannot branch. CUDA has conditional nodes, HIP has none, and the program must behave
alike on both. Idea: each branch is a graph of its own; all of them read the same static inputs, write
the same outputs and use the same pool, in which each may overwrite what another left, since only one runs at a time.
So a conditional needs the memory of its largest branch, and users of the outputs need not know which branch wrote
them. A flag on the device is read by an asynchronous copy (flags.py).

    Conditional({"prefill": f, "decode": g})     by name:  c("decode", x)
    Conditional([f, g])                          by index: c(1, x)
    Conditional({True: f, False: g})             by flag:  c(x.sum() > 0, x)

The first calls of a branch run it eagerly, which warms it up and shows what it reads (worlds.py); then it is
captured. If something that it read has changed, a module's mode or a variable, it runs eagerly once more and is
captured for that too. A branch that is not a single graph, because Python runs between its parts or its result needs
gradients, runs as Dynamo's code, and each of that code's graphs is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils import _pytree as pytree

from gfxgraph.callables.arena import Arena, beside, current_arena
from gfxgraph.callables.captured import NO_GPU, CapturedCallable, CapturedFunction
from gfxgraph.callables.control import flags
from gfxgraph.callables.control.rehearse import rehearse
from gfxgraph.callables.graph_facts import written_inputs
from gfxgraph.callables.inputs import copy_in, like, tensors_of
from gfxgraph.callables.pieces.piece import make_piece
from gfxgraph.callables.signature import Args, Kwargs, has_buffer, key_of
from gfxgraph.callables.trace.dynamo import shield
from gfxgraph.callables.trace.world import World
from gfxgraph.callables.worlds import TracedFunction, home, why_shared
from gfxgraph.capture.replay.graph_tensors import kind_of
from gfxgraph.capture.undo import unbroken
from gfxgraph.errors import ReplayError

Branch = Callable[..., Any]

# Most signatures that get graphs; others run eagerly.
MAX_SIGNATURES = 8
MAX_WORLDS = 8
"""Most graphs of one branch for one signature; the oldest is dropped first."""


@dataclass
class _CapturedBranch:
    """A branch captured as a graph, in one world."""

    piece: CapturedFunction
    world: World
    token: int
    """The world's token; the graph is valid while the world still has it."""
    itself: list[int | None]
    """For each result the number of the input that it is; None if it has its own memory."""
    written: list[int] = field(default_factory=list)
    """Inputs, by number, that the branch writes in place: the caller's tensors must be updated too."""


@dataclass
class _Signature:
    """The static memory of one signature, shared by all branches."""

    key: Any
    args: Any
    inputs: list[Tensor]
    outputs: list[Tensor] | None = None
    captured: dict[Hashable, list[_CapturedBranch]] = field(default_factory=dict)
    n_calls: dict[Hashable, int] = field(default_factory=dict)

    def find(self, name: Hashable, world: World) -> _CapturedBranch | None:
        """The graph of a branch in a world; drops graphs whose world has changed."""
        held = self.captured.setdefault(name, [])
        held[:] = [each for each in held if each.token == each.world.token]
        return next((each for each in held if each.world is world), None)


class Conditional(CapturedCallable):
    """Branches captured as graphs that share inputs, outputs and memory; a call runs one of them.

    Args:
        branches: by name (anything hashable), or in order.
        default: the branch for an unknown flag or name; without it that is an error.
        warmup: eager calls of a branch before it is captured; they count as calls.
        outputs: "owned" gives each caller its own tensors; "static" returns the shared buffers,
            which the next call of any branch overwrites.
        pool: memory to share with other captures.

    Raises:
        ValueError: there is no branch, or ``outputs`` is neither.
    """

    says = "a branch runs eagerly: "

    def __init__(
        self,
        branches: Mapping[Any, Branch] | Sequence[Branch],
        *,
        default: Any = None,
        warmup: int = 1,
        outputs: str = "owned",
        pool: Any = None,
    ) -> None:
        if not isinstance(branches, (Mapping, Sequence)):
            raise TypeError(f"a conditional takes its branches as a dict or a list, not {branches!r}")
        named = branches if isinstance(branches, Mapping) else dict(enumerate(branches))
        if not named:
            raise ValueError("a conditional needs at least one branch")
        for branch in named.values():
            if not callable(branch):
                raise TypeError(f"a conditional's branches are functions or modules, not {branch!r}")
        if outputs not in ("owned", "static"):
            raise ValueError(f'outputs is "owned" or "static", not {outputs!r}')
        super().__init__("a conditional")
        self.branches: dict[Any, Branch] = dict(named)
        self.names = list(self.branches)
        self.default = default
        self.warmup = max(1, warmup)
        self.hands_out_static = outputs == "static"
        self._pool = pool
        self._signatures: dict[Any, _Signature] = {}
        self._traced: dict[Any, TracedFunction] = {}
        self._place: Arena | None = None

    # -- choosing -------------------------------------------------------------------------------------

    def ask(self, flag: Tensor) -> flags.Answer:
        """Start reading a device flag now, without waiting for it.

        Args:
            flag: a tensor of one element.

        Returns:
            The pending answer: pass it to a later call as its branch.
        """
        return flags.ask(flag)

    def branch_of(self, which: Any) -> Any:
        """The name of the branch that ``which`` (a name, an index, a flag or an answer) selects.

        Raises:
            ReplayError: `no_such_branch`.
        """
        if isinstance(which, Tensor):
            which = flags.ask(which)
        if isinstance(which, flags.Answer):
            which = which.value()
        if isinstance(which, Hashable) and which in self.branches:
            return next(name for name in self.names if name == which)
        if isinstance(which, (int, float)) and which == int(which) and 0 <= which < len(self.names):
            if not any(isinstance(name, (int, float)) for name in self.names):
                return self.names[int(which)]
        if self.default is not None:
            return self.default
        raise ReplayError("no_such_branch", asked=repr(which), branches=", ".join(map(repr, self.names)))

    # -- running --------------------------------------------------------------------------------------

    def __call__(self, which: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run one branch on the arguments and return its results."""
        if is_compiling() or torch.cuda.is_current_stream_capturing():
            # Part of another graph: the branch taken now is recorded, and the choice is guarded.
            return self.branches[self._choose_inside(which)](*args, **kwargs)
        return self._chosen(which, args, kwargs)

    @unbroken  # not on __call__ itself: our traces go through it
    def _chosen(self, which: object, args: Args, kwargs: Kwargs) -> Any:
        name = self.branch_of(which)
        place = self._at()
        if place is None:
            self.count_eager(NO_GPU)
            return self.branches[name](*args, **kwargs)
        with place.lock:
            place.follow(torch.cuda.current_stream())
            known = self._signature(args, kwargs)
            if known is None:
                why = f"a tensor on the host or without strides, or more than {MAX_SIGNATURES} kinds of arguments"
                self.fall_back(why, label=f"branch {name!r}", for_good=False)
                self.count_eager(why)
                return self.branches[name](*args, **kwargs)
            return self._run(place, known, name, args, kwargs)

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture every branch before the first call.

        Each runs once before, to initialize its libraries; what that changed is restored, except by
        kernels launched outside torch.

        Args:
            args: arguments like those of later calls.
            kwargs: likewise.
        """
        place = self._at()
        if place is None:
            return
        with place.lock:
            place.follow(torch.cuda.current_stream())
            known = self._signature(args, kwargs)
            if known is None:
                return
            static_args, static_kwargs = known.args
            for name in self.names:
                traced = self._of(name)
                world = traced.world((known.key, name), static_args, static_kwargs)
                if world is not None and known.find(name, world) is not None:
                    continue
                made = rehearse(
                    lambda: beside(place, traced.fn, static_args, static_kwargs),  # noqa: B023
                    lambda: beside(place, traced.run, static_args, static_kwargs),  # noqa: B023
                )
                world = traced.world((known.key, name), static_args, static_kwargs)
                if world is not None:
                    self._capture(place, known, name, world, made, known.inputs)

    def upload(self) -> None:
        """Upload every captured branch to the device before its first launch, if the runtime can."""
        for piece in self._pieces():
            piece.upload()

    @property
    def eager_branches(self) -> dict[Any, str]:
        """Branches that have no graph now, and why."""
        found = {name: traced.why_eager for name, traced in self._traced.items() if traced.why_eager}
        for known in self._signatures.values():
            for name, held in known.captured.items():
                found.update((name, each.piece.why_eager) for each in held if each.piece.why_eager)
        return found

    @property
    def captured_branches(self) -> list[Any]:
        """Branches that have a graph, for any signature."""
        every = [item for known in self._signatures.values() for item in known.captured.items()]
        have = {name for name, held in every if any(each.piece.graph for each in held)}
        return [name for name in self.names if name in have]

    # -- inside ---------------------------------------------------------------------------------------

    def _run(self, place: Arena, known: _Signature, name: Any, args: Any, kwargs: Any) -> Any:
        traced = self._of(name)
        world = traced.world((known.key, name), args, kwargs)
        captured = known.find(name, world) if world is not None else None
        if captured is None:
            known.n_calls[name] = known.n_calls.get(name, 0) + 1
            made = self._beside(place, traced, args, kwargs)
            self.count_eager(traced.why_eager or "warm-up")
            if known.n_calls[name] >= self.warmup:
                world = traced.world((known.key, name), args, kwargs)
                if world is not None:
                    self._capture(place, known, name, world, made, tensors_of((args, kwargs)))
            return made
        given = tensors_of((args, kwargs))
        if captured.written or captured.world.written_homes:
            shared = why_shared([captured.world], given, [given[at] for at in captured.written])
            if shared:
                self.fall_back(shared, label=f"branch {name!r}", for_good=False)
                self.count_eager(shared)
                return self._beside(place, traced, args, kwargs)
        copy_in(known.inputs, given)
        made = captured.piece.run()
        if captured.piece.why_eager:
            self.count_eager(captured.piece.why_eager)
        else:
            self.n_replays += 1
        for at in captured.written:
            copy_in([given[at]], [known.inputs[at]])
        return made if self.hands_out_static else _owned(made, captured.itself, given)

    def _beside(self, place: Arena, traced: TracedFunction, args: Args, kwargs: Kwargs) -> Any:
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of((args, kwargs))):
            return traced.run(*args, **kwargs)  # backward runs where forward ran
        return beside(place, traced.run, args, kwargs)

    def _capture(
        self, place: Arena, known: _Signature, name: Any, world: World, made: Any, given: Sequence[Tensor]
    ) -> None:
        """Capture a branch that has just run on ``given`` and returned ``made``."""
        results = tensors_of(made)
        itself = [next((i for i, t in enumerate(given) if t is result), None) for result in results]
        odd = next((t for t in results if not has_buffer(t)), None)
        if odd is not None:
            self.fall_back(f"a result is {kind_of(odd)}", label=f"branch {name!r}", for_good=False)
            return
        homes = [home(t) for t, i in zip(results, itself) if i is None and t.numel()]
        if len(set(homes)) < len(homes) or not world.homes.union(map(home, given)).isdisjoint(homes):
            why = "a result shares memory with another one, with an argument or with something outside"
            self.fall_back(why, label=f"branch {name!r}", for_good=False)
            return
        if known.outputs is None and all(t.is_cuda for t in results):
            known.outputs = [like(t) for t in results]
        into = known.outputs
        if into is not None and [_meta(t) for t in into] != [_meta(t) for t in results]:
            into = None  # its results differ from the other branches', so it has outputs of its own
        static_args, static_kwargs = known.args
        branch = self.branches[name]
        piece = CapturedFunction(
            place, branch, static_args, static_kwargs,
            pool=self._pool, into=into, name=f"branch {name!r}", keeps_grad_mode=True,
        )  # fmt: skip
        captured = _CapturedBranch(piece, world, world.token, itself)
        if piece.capture():
            self.n_captures += 1
            captured.written = written_inputs(piece.graph, known.inputs)
        self._pool = piece.pool
        held = known.captured.setdefault(name, [])
        held.append(captured)
        del held[:-MAX_WORLDS]

    def _of(self, name: Any) -> TracedFunction:
        """The branch as traced by Dynamo; a replaced function is traced anew."""
        traced = self._traced.get(name)
        if traced is None or traced.fn is not self.branches[name]:
            traced = self._traced[name] = TracedFunction(self.branches[name], f"branch {name!r}", make_piece)
            for known in self._signatures.values():
                known.captured.pop(name, None)
        return traced

    def _signature(self, args: Any, kwargs: Any) -> _Signature | None:
        if not all(t.is_cuda and has_buffer(t) for t in tensors_of((args, kwargs))):
            return None  # a graph would freeze the value of a host tensor
        key = key_of(args, kwargs)
        known = self._signatures.get(key)
        if known is None and len(self._signatures) < MAX_SIGNATURES:
            flat, spec = pytree.tree_flatten((args, kwargs))
            static = [like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flat]
            known = _Signature(key, pytree.tree_unflatten(static, spec), [t for t in static if isinstance(t, Tensor)])
            # The capture must find real values there: a garbage index would be out of range.
            copy_in(known.inputs, [leaf for leaf in flat if isinstance(leaf, Tensor)])
            self._signatures[key] = known
        return known

    def _choose_inside(self, which: Any) -> Any:
        if isinstance(which, flags.Answer):
            return self.branch_of(which)
        if not isinstance(which, Tensor):
            return self.branch_of(which)
        value = which.item()
        names = self.names if any(isinstance(n, (bool, int, float)) for n in self.names) else range(len(self.names))
        for name in names:
            if value == name:  # comparing the number adds a guard to the capture
                return self.branch_of(name)
        return self.branch_of(float(value))

    def _at(self) -> Arena | None:
        """The arena of the current device; a new one after the bridge was switched off and on."""
        place = current_arena()
        if place is not self._place:
            self._place = place
            self._signatures.clear()
        return place

    def _pieces(self) -> Iterator[CapturedFunction]:
        for known in self._signatures.values():
            for held in known.captured.values():
                yield from (each.piece for each in held)


def _owned(made: Any, itself: Sequence[int | None], given: Sequence[Tensor]) -> Any:
    """Results owned by the caller: copies, or the caller's own arguments if a result is one."""
    at = iter(itself)
    own = lambda t: t.clone() if (i := next(at)) is None else given[i]  # noqa: E731
    return pytree.tree_map_only(Tensor, own, made)


def _meta(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


shield(Conditional.__call__)
