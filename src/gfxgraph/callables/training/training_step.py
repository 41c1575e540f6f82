"""A training step as one launch.

A whole step (zero_grad, forward, loss, backward, optimizer, scaler) is captured as it stands:

    @gfxgraph.TrainingStep
    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

Its first calls run eagerly, on the stream that will capture. They are real steps, so the warm-up costs no step and
changes nothing: losses, parameters and random numbers are the same as in eager execution from the first call on. Then
the step is captured, which computes nothing, and replayed.

It is a graphed callable whose worlds are snapshots (states.py) of what the step reads in Python: closures, globals,
attributes, modules, weights, hooks, optimizers with their state. If some of it has changed the step runs eagerly
once, and is captured for that state too. A step stays eager if it changes what it reads, prints, draws host random
numbers, or reads something that cannot be watched; `why_eager` gives the reason.

A gradient scaler decides on the host whether to skip the optimizer. In the capture the optimizer always runs, and its
effect is kept or undone on the device by the same flag, which gives the same bits without waiting.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena, overlap, reads_of, span, writes_of
from gfxgraph.callables.buffers import Inputs, use_count
from gfxgraph.callables.captured import Captured, Instance, Options, Shared
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.python_reads import Snapshot
from gfxgraph.callables.signature import Call, RunEagerly, replace
from gfxgraph.callables.states import SeenState, States
from gfxgraph.callables.trace.dynamo import WARM_UP
from gfxgraph.callables.worlds import Evict
from gfxgraph.capture.function_capture import CaptureDied
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.watching.watch import Unwatchable

_SETS_NUMBERS = "it changes numbers of its optimizers; call the scheduler's step() outside"

_NUMBERS = ("param_groups", "_step_count", "last_epoch", "_last_lr")
"""Where optimizers and schedulers keep their numbers."""

_GRADIENT_KEPT = "the program still holds a view of a gradient from a replay; clone what you keep"

_ON_THE_HOST = "its optimizer counts steps in host memory; create it with capturable=True"
_NEEDS_CAPTURABLE = "torch captures its optimizer only with capturable=True"
_ALWAYS_ON_THE_HOST = "its {} always counts steps in host memory; use an optimizer that has capturable=True"

# Most captures of one step; after that it runs eagerly.
MAX_CAPTURES = 16
MAX_KEPT = 4
"""Most states of one signature that have graphs; the oldest is dropped first, with the tensors it read."""
MAX_CHANGING = 3
"""Consecutive steps after the warm-up that each changed what they read, before giving up."""
MAX_UNSETTLED = 8
"""Consecutive calls that each found a new state, before giving up."""


class _Used:
    """What a step uses, as snapshots have found."""

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.modules: list[torch.nn.Module] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []

    def note(self, found: Snapshot) -> None:
        """Add what a snapshot has found."""
        inner = {id(each) for module in self.modules for each in module.modules()}
        kinds: list[tuple[type, Any]] = [
            (torch.optim.Optimizer, self.optimizers),
            (torch.nn.Module, self.modules),
            (torch.amp.GradScaler, self.scalers),
            (torch.optim.lr_scheduler.LRScheduler, self.schedulers),
        ]
        for kind, mine in kinds:
            known = inner.union(map(id, mine))
            mine += [each for each in found.found if isinstance(each, kind) and id(each) not in known]

    def gradients(self) -> list[tuple[Tensor, Tensor | None]]:
        """Its parameters, each once, with their gradients."""
        own = [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        own += [p for module in self.modules for p in module.parameters()]
        return [(p, p.grad) for p in {id(p): p for p in own}.values()]

    def python_state(self) -> Rollback:
        """The Python state that a failed capture must restore."""
        grads = self.gradients()
        groups = [(g, {k: v for k, v in g.items() if k != "params"}) for o in self.optimizers for g in o.param_groups]
        schedulers = [(each, copy.deepcopy(each.state_dict())) for each in self.schedulers]

        def put_back() -> None:
            for parameter, grad in grads:
                parameter.grad = grad
            for group, numbers in groups:
                group.update(numbers)
            for scheduler, state in schedulers:
                scheduler.load_state_dict(state)
            for scaler in self.scalers:
                scaler._per_optimizer_states.clear()  # used between its step and its update

        found = Rollback()
        found.save_other(put_back)
        return found

    def why_on_the_host(self) -> str:
        """Which optimizer keeps numbers in host tensors, which a replay would not update, and what to do; "" if none
        does.
        """
        for optimizer in self.optimizers:
            kept = (value for state in optimizer.state.values() for value in state.values())
            if any(isinstance(value, Tensor) and not value.is_cuda for value in kept):
                why = _ON_THE_HOST if "capturable" in optimizer.defaults else _ALWAYS_ON_THE_HOST
                return why.format(type(optimizer).__name__)
        return ""


class _StepStates(States):
    """The states of a step."""

    def __init__(self, shared: Shared, evict: Evict, roots: Callable[[], dict[str, Any]], warmup: int) -> None:
        super().__init__(shared, roots)
        self._evict = evict
        self.used = _Used()
        self._warmup = warmup
        self.pool: Any = None
        self.reset()

    def reset(self) -> None:
        """Forget every state."""
        self._held: dict[Any, list[SeenState]] = {}
        """By call: one state for each graph."""
        self._settled: list[Snapshot] = []
        """The last two states that an eager step left unchanged."""
        self._n_calls = self._n_new = self._n_changing = self._n_made = 0

    def look(self) -> Snapshot:
        found = super().look()
        self.used.note(found)
        return found

    def enter(self, call: Call) -> bool:
        """Find the state that this call is in; False if it is to run eagerly, and may settle one.

        Raises:
            RunEagerly: it has no graph.
        """
        if self.shared.why_eager:
            raise RunEagerly(self.shared.why_eager)
        if any(t.requires_grad for t in call.tensors):
            raise RunEagerly("an argument needs gradients")
        held = self._held.setdefault(call.key, [])
        state = next((each for each in held if each.is_same()), None)
        if state is None:
            self._n_calls += 1
            if self._n_calls < self._warmup:
                return False
            state = self._now(held)
            if state is None:
                return False
        self._n_new = 0
        call.in_world(state)
        return True

    def _now(self, held: list[SeenState]) -> SeenState | None:
        """The present state, if a step has left it unchanged."""
        why = self.used.why_on_the_host()
        if why:
            raise RunEagerly(self.shared.fall_back(why))
        try:
            now = self.look()
        except Unwatchable as unseen:
            raise RunEagerly(self.shared.fall_back(f"it reads {unseen}")) from None
        self._before = now
        for each in held:
            if each.snapshot.key == now.key and each.fits():
                each.snapshot = now.watched()
                return each
        if all(each.key != now.key for each in self._settled):
            return None
        if self._n_made >= MAX_CAPTURES:
            what = held[-1].snapshot.differs(now) if held else "the shape of an argument"
            why = f"it was captured {MAX_CAPTURES} times, at last because {what} had changed"
            why = f"{why}: a learning rate that changes at each step belongs in a tensor"
            raise RunEagerly(self.shared.fall_back(why))
        self._n_made += 1
        held.append(SeenState(now))
        if len(held) > MAX_KEPT:
            evict = self._evict()
            if evict is not None:
                evict(held.pop(0))  # type: ignore[arg-type]
        return held[-1]

    def trace(self, arena: Arena, call: Call) -> Any:
        """Run an eager step, and find out whether it leaves the state that it reads unchanged."""
        if self._n_calls < self._warmup:
            return self.run(arena, call, WARM_UP)
        before = self._before
        what = self._settled[-1].differs(before) if self._settled else ""
        advice = "; a number that changes often belongs in a tensor" if _is_number(what) else ""
        counted = f"{what} has changed{advice}" if what else WARM_UP
        result, after, why = self.run_watched(arena, call, counted, before)
        if why:
            self.shared.fall_back(why)
        elif after.key == before.key:
            self._n_changing, self._n_new = 0, self._n_new + 1
            self._settled = [*(each for each in self._settled if each.key != after.key), after][-2:]
            if self._n_new > MAX_UNSETTLED:
                self.shared.fall_back(f"{what} differs from call to call; a number that changes belongs in a tensor")
        elif self._n_calls > self._warmup:
            # The first steps create the optimizer's state.
            self._n_changing += 1
            what = before.differs(after)
            if self._n_changing >= MAX_CHANGING:
                on_host = ", a tensor in host memory; create it on the device" if after.is_host_tensor(what) else ""
                why = f"it changes {what} itself{on_host}"
                self.shared.fall_back(_SETS_NUMBERS if _is_number(what) else why)
        return result


_grad_of = operator.attrgetter("grad")


@dataclass
class _Made:
    """A gradient in the graph's memory, which the next replay overwrites, and who else refers to it."""

    parameter: Tensor
    grad: Tensor
    home: Any
    """Its memory."""
    n_names: int = 0
    """Our own references to the tensor, and our own tensors over its memory."""
    n_views: int = 0
    is_elsewhere: bool = False
    """Whether another graph uses it by its address."""

    def count(self) -> tuple[int, int]:
        """References to it other than the parameter's, and tensors over its memory."""
        n_names = sys.getrefcount(self.grad) - (self.parameter.grad is self.grad)
        return n_names, use_count(self.home._cdata)

    def release(self) -> bool:
        """If the program kept the gradient, move it to memory of its own; False if that is impossible."""
        n_names, n_views = self.count()
        if n_names <= self.n_names and n_views <= self.n_views:
            return True
        if n_views > self.n_views or self.is_elsewhere:
            return False
        kept, self.grad = self.grad, self.grad.detach()
        kept.data = kept.clone()
        if self.parameter.grad is kept:
            self.parameter.grad = self.grad
        return True


class _CapturedStep(Captured):
    """One signature of a step in one state: beside arguments and results, gradients are its inputs and outputs."""

    def __init__(self, states: _StepStates, *about: Any) -> None:
        super().__init__(*about)
        self._states = states
        self.on_unsafe = self.arena.state.settings.on_unsafe
        self.kept: list[tuple[Tensor, Tensor | None]] = []
        """Gradients of the parameters that the graph leaves unchanged, or None."""
        self.made: list[_Made] = []
        """Gradients that the graph makes."""
        self._held: list[list[int]] = []
        self._columns: tuple[list[Tensor], list[Tensor | None], list[Tensor], list[int]] | None = None
        """After a replay: the parameters, their gradients, those that the graph makes, and the memory of these."""

    def record_over(self, inputs: Inputs, copy_results: Callable[[Any], Any] | None = None) -> Instance:
        """As of all, with the gradients that it needs and makes; a failed one changes nothing in Python."""
        used = self._states.used
        mates = [e for e in self.arena.entries if isinstance(e, _CapturedStep) and e.shared is self.shared]
        others = [one for each in mates if each is not self for one in each.made]
        counts = [each.count() for each in others]
        before, grads = used.python_state(), used.gradients()
        # Its own: gradients stay there, and a graph of others could overwrite them.
        self.pool = self._states.pool = self._states.pool or self.arena.new_pool()
        try:
            with _skipping_on_the_device(used.scalers):
                instance = super().record_over(inputs)
            self._check(instance)
        except BaseException:
            before.restore()
            self._states.pool = None  # a failed capture may have left something there
            raise
        self._note_gradients(instance.graph, grads)
        del before, grads
        for each in self.made:
            each.n_names, each.n_views = each.count()
        for each, (n_names, n_views) in zip(others, counts):
            names, views = each.count()
            each.is_elsewhere = each.is_elsewhere or (names, views) != (n_names, n_views)
            each.n_names += names - n_names
            each.n_views += views - n_views
        return instance

    def _check(self, instance: Instance) -> None:
        """Raise if a replay would not be a step; watch the state otherwise.

        Raises:
            CaptureDied: it would not.
        """
        after = self._states.look()
        if after.key != self.world.snapshot.key:
            raise CaptureDied(f"its capture changes {self.world.snapshot.differs(after)}")
        self.world.snapshot = after.watched()

    def _note_gradients(self, graph: Any, grads: list[tuple[Tensor, Tensor | None]]) -> None:
        """Note what a capture has done to the gradients, which were ``grads`` before it."""
        self.kept, self.made, was = [], [], dict(grads)
        for p, grad in self._states.used.gradients():
            if grad is None or grad is was.get(p) or grad.layout is not torch.strided:
                self.kept.append((p, grad))
            else:
                self.made.append(_Made(p, grad, grad.untyped_storage()))
        # A gradient that the graph neither keeps nor touches was replaced, whatever it was. Otherwise the graph
        # depends on it, even if it drops it afterwards (accumulated, used and set to None).
        touched = [span(place) for place in (*reads_of(graph), *writes_of(graph))]
        self.world.gradients = [
            (p, before)
            for p, before in grads
            if before is None
            or p.grad is before
            or before.layout is not torch.strided
            or overlap([span(before)], touched)
        ]

    def replay(self, instance: Instance) -> None:
        self._columns = None
        if not all([each.release() for each in self.made]):
            raise RunEagerly(_GRADIENT_KEPT)
        super().replay(instance)
        self.shared.eager.why = ""
        self._place()
        self._held = self._holders()

    def _place(self) -> None:
        """Give each parameter its gradient: an eager step, another graph or the program may have replaced it."""
        made = [each.grad for each in self.made]
        parameters = [*(p for p, _ in self.kept), *(each.parameter for each in self.made)]
        grads = [*(grad for _, grad in self.kept), *made]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        self._columns = parameters, grads, made, [each.home._cdata for each in self.made]

    def _holders(self) -> list[list[int]]:
        """How many refer to each gradient that the graph makes, and to its memory."""
        assert self._columns is not None
        return [[*map(sys.getrefcount, self._columns[2])], [*map(use_count, self._columns[3])]]

    def is_ready(self) -> bool:
        """Whether every gradient is where the last replay left it, and nobody has come to hold one since."""
        self._states._n_new, self.shared.eager.why = 0, ""
        if self._columns is None:
            return False
        is_placed = all(map(operator.is_, map(_grad_of, self._columns[0]), self._columns[1]))
        return is_placed and self._holders() == self._held

    def fall_back(
        self, why: str, error: BaseException | None = None, *, label: str = "", for_good: bool = True
    ) -> str:
        """A step that cannot be captured in one state is eager in all."""
        why = why.removeprefix("it could not be captured: ")
        if "TrackedNumber" in why:
            why = "it returns a number that it reads from the device; return the tensor"
        if "capturable is False" in why:  # torch 2.11 asks it of fused optimizers too
            why = _NEEDS_CAPTURABLE
        self.why_eager = why
        return self.shared.fall_back(why, error, for_good=for_good)

    def evict(self, why: str) -> None:
        super().evict(why)
        self.kept, self.made, self._columns = [], [], None


class TrainingStep(Graphed):
    """A training step that is captured after its first calls and replayed from then on.

    Args:
        step: does everything: zero the gradients, forward, backward, optimizer. Its results are detached and owned by
        the caller.
        warmup: eager calls before the capture; they are real steps. At least one, which creates the optimizer's
        state.

    A step that cannot be captured runs eagerly, and `why_eager` says why; `stats()` counts every call.

    Raises:
        TypeError: ``step`` cannot be called.
    """

    def __init__(self, step: Callable[..., Any], *, warmup: int = 3) -> None:
        if not callable(step):
            raise TypeError(f"TrainingStep() takes a function, not {step!r}")
        self.step = step
        self._warmup = warmup
        name = getattr(step, "__qualname__", type(step).__name__)
        super().__init__(_detached(step), Options(warmup=0, max_graphs=MAX_CAPTURES), name=name)
        self._shared.says = "a training step runs eagerly: "
        roots = lambda: {"step": step, **_hooks_for_all_modules()}  # noqa: E731
        states = _StepStates(self._shared, weakref.WeakMethod(self._evict_world), roots, max(1, warmup))
        self._worlds = states
        self._captured = functools.partial(_CapturedStep, states)

    @property
    def why_eager(self) -> str:
        """Why the last call ran eagerly, or why all will from now on; "" after a replay and during warm-up."""
        return self._shared.why_eager or self._eager.why

    @property
    def n_captures(self) -> int:
        """Captures so far."""
        return self._shared.n_captures

    @property
    def n_replays(self) -> int:
        """Calls that were replays."""
        return self._n_replays()

    @property
    def _same(self) -> tuple[Callable[[Any], Graphed], Any]:
        return functools.partial(TrainingStep, warmup=self._warmup), self.step


def _detached(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, its results without gradients."""

    @functools.wraps(step)
    def whole(*args: Any, **kwargs: Any) -> Any:
        return replace(step(*args, **kwargs), Tensor.detach)

    return whole


# -- gradient scalers -----------------------------------------------------------------------------------------


@contextmanager
def _skipping_on_the_device(scalers: list[Any]) -> Iterator[None]:
    """Make scalers skip a step without reading on the host, during a capture."""
    for scaler in scalers:
        scaler._maybe_opt_step = _kept_or_undone
    try:
        yield
    finally:
        for scaler in scalers:
            del scaler._maybe_opt_step


def _kept_or_undone(optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Do the optimizer's step, and undo it on the device if a gradient was not finite."""
    found = [flag for flag in state["found_inf_per_device"].values()]
    touched = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    touched += [t for p in touched for t in optimizer.state.get(p, {}).values() if isinstance(t, Tensor)]
    with torch.no_grad():
        before = [t.clone() for t in touched]
    result = optimizer.step(*args, **kwargs)
    with torch.no_grad():
        skip = sum(found[1:], found[0]).reshape(()) > 0
        for tensor, old in zip(touched, before):
            # torch would already have refused a step counter on the host (capturable=False).
            tensor.copy_(torch.where(skip, old, tensor))
    return result


def _is_number(path: str) -> bool:
    """Whether the change is one of the numbers of an optimizer or a scheduler."""
    return any(f".{name}" in path for name in _NUMBERS) and "hooks" not in path


def _hooks_for_all_modules() -> dict[str, Any]:
    return {n: v for n, v in vars(torch.nn.modules.module).items() if n.startswith("_global_") and "hooks" in n}
