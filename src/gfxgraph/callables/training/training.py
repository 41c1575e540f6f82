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

What a step reads in Python is checked before each replay (python_reads.py): closures, globals, attributes, modules,
weights, hooks, optimizers with their state. If some of it has changed the step runs eagerly once, and is captured for
that state too. A step stays eager if it changes what it reads, prints, draws host random numbers, or reads something
that cannot be watched; `why_eager` gives the reason.

A gradient scaler decides on the host whether to skip the optimizer. In the capture the optimizer always runs, and its
effect is kept or undone on the device by the same flag, which gives the same bits without waiting.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gfxgraph.callables.arena import Arena, beside, capture_graph, current_arena, replay
from gfxgraph.callables.captured import CAPTURED, NO_GPU, WARM_UP, CapturedCallable
from gfxgraph.callables.explain_calls import table
from gfxgraph.callables.graph_facts import overlap, reads_of, span, writes_of, written_inputs
from gfxgraph.callables.inputs import copy_in, like, tensors_of
from gfxgraph.callables.outputs import Outputs, use_count
from gfxgraph.callables.python_reads import HostEffects, Snapshot
from gfxgraph.callables.signature import NotATree, RunEagerly, has_buffer, key_of
from gfxgraph.callables.trace.watch import Unwatchable
from gfxgraph.capture.replay.graph_tensors import kind_of
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import is_interrupt, unbroken
from gfxgraph.core.constants import NotConstant, constant_key
from gfxgraph.errors import first_line

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


@dataclass
class _Made:
    """A gradient in the graph's memory, which the next replay overwrites, and who else refers to it."""

    parameter: Tensor
    grad: Tensor
    n_names: int = 0
    """Our own references to the tensor, and our own tensors over its memory."""
    n_views: int = 0
    is_elsewhere: bool = False
    """Whether another graph uses it by its address."""

    def count(self) -> tuple[int, int]:
        """References to it other than the parameter's, and tensors over its memory."""
        n_names = sys.getrefcount(self.grad) - (self.parameter.grad is self.grad)
        return n_names, use_count(self.grad.untyped_storage()._cdata)

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


@dataclass
class _CapturedStep:
    """One graph of the step, and the state that it depends on."""

    graph: Any
    args: Any
    inputs: list[Tensor]
    outputs: Any
    snapshot: Snapshot
    """The state in which it was captured."""
    grads: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    """Gradients of the parameters that the graph leaves unchanged, or None."""
    made: list[_Made] = field(default_factory=list)
    """Gradients that the graph makes."""
    needs: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    """Gradients that the graph depends on: it adds to them, or was captured when there were none."""
    written: list[int] = field(default_factory=list)
    """Positions of the arguments that it writes to."""

    def fits(self) -> bool:
        """True if the gradients are those that the graph depends on."""
        return all(parameter.grad is grad for parameter, grad in self.needs)


class TrainingStep(CapturedCallable):
    """A training step that is captured after its first calls and replayed from then on.

    Args:
        step: does everything: zero the gradients, forward, backward, optimizer. Its results are detached and owned by
        the caller.
        warmup: eager calls before the capture; they are real steps. At least one, which creates the optimizer's
        state.
        optimizers: more optimizers that the step uses, besides those it names: in its closure, its globals, or the
        object whose method it is.
        scalers: likewise.
        modules: likewise.
        pool: memory to share with other captures.

    A step that cannot be captured runs eagerly, and `why_eager` says why; `stats()` counts every call.

    Raises:
        TypeError: ``step`` cannot be called.
    """

    says = "a training step runs eagerly: "

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        warmup: int = 3,
        optimizers: Iterable[Any] = (),
        scalers: Iterable[Any] = (),
        modules: Iterable[torch.nn.Module] = (),
        pool: Any = None,
    ) -> None:
        if not callable(step):
            raise TypeError(f"TrainingStep() takes a function, not {step!r}")
        super().__init__(getattr(step, "__qualname__", type(step).__name__))
        functools.update_wrapper(self, step)
        self.step = step
        self.warmup = max(1, warmup)
        self.optimizers, self.scalers, self.modules = list(optimizers), list(scalers), list(modules)
        self.schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []
        self._roots = {
            "step": step,
            "optimizers": [*self.optimizers],
            "scalers": [*self.scalers],
            "modules": [*self.modules],
        }
        """Where snapshots begin."""
        self._why_last = ""
        self._pool = pool
        self._captured: dict[Any, list[_CapturedStep]] = {}
        """By arguments: one graph for each state."""
        self._settled: list[Snapshot] = []
        """The last two states that an eager step left unchanged."""
        self._n_calls = self._n_new = self._n_changing = 0
        self._place: Arena | None = None

    @unbroken
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do one step."""
        given = tensors_of((args, kwargs))
        place = current_arena()
        if place is None:
            self._count(NO_GPU)
            return self.step(*args, **kwargs)
        with place.lock:
            if place is not self._place:
                self._place = place
                self._captured.clear()
                self._settled.clear()
                self._n_calls = 0
            place.follow(torch.cuda.current_stream())
            if torch.cuda.is_current_stream_capturing():
                self._count(CAPTURED)
                return self.step(*args, **kwargs)
            if self._why_for_good:
                return self._eagerly(args, kwargs, self._why_for_good)
            odd = next((t for t in given if t.requires_grad or not t.is_cuda or not has_buffer(t)), None)
            if odd is not None:
                what = "needs gradients or is a host tensor" if has_buffer(odd) else f"is {kind_of(odd)}"
                return self._eagerly(args, kwargs, self.fall_back(f"an argument {what}", for_good=False))
            changing = _not_constant((args, kwargs))
            if changing:
                why = self.fall_back(
                    f"an argument is a {changing}, whose content may change without being noticed", for_good=False
                )
                return self._eagerly(args, kwargs, why)
            key = key_of(args, kwargs)
            held = self._captured.setdefault(key, [])
            known = next((each for each in held if each.snapshot.is_same() and each.fits()), None)
            if known is None:
                self._n_calls += 1
                if self._n_calls < self.warmup:
                    return self._eagerly(args, kwargs, WARM_UP)
                known = self._known(held, args, kwargs)
                if known is None:
                    return self._settle(args, kwargs)
            self._n_new = 0
            copy_in(known.inputs, given)
            return self._replay(known, given, args, kwargs)

    @property
    def why_eager(self) -> str:
        """Why the last call ran eagerly, or why all will from now on; "" after a replay and during warm-up."""
        return self._why_for_good or self._why_last

    def explain(self) -> str:
        """How its calls ran, and why, as a table. New in 2.0."""
        how = self._why_for_good and f"eager from now on: {self._why_for_good}"
        graphs = sum(map(len, self._captured.values()))
        rows = [(self.n_replays, "by a graph", ""), *((n, "eager", why) for why, n in self.eager.most_common())]
        return "\n".join([f"{self.name}: {how or f'{graphs} graphs'}", *(f"  {line}" for line in table(rows))])

    # -- inside ---------------------------------------------------------------------------------------

    def _known(self, held: list[_CapturedStep], args: Any, kwargs: Any) -> _CapturedStep | None:
        """The graph for the present state, captured if a step has left that state unchanged."""
        counting = self._counts_on_the_host()
        if counting is not None:
            why = _ON_THE_HOST if "capturable" in counting.defaults else _ALWAYS_ON_THE_HOST
            self.fall_back(why.format(type(counting).__name__))
            return None
        now = self._look()
        if now is None:
            return None
        for each in held:
            if each.snapshot.key == now.key and each.fits():
                each.snapshot = now.watched()
                return each
        if not self._is_settled(now):
            return None
        return self._capture(held, now, args, kwargs)

    def _settle(self, args: Any, kwargs: Any) -> Any:
        """Run an eager step, and find out whether it leaves the state that it reads unchanged."""
        before = self._look() if not self._why_for_good else None
        if before is None:
            return self._eagerly(args, kwargs, self._why_for_good)
        what = self._settled[-1].differs(before) if self._settled else ""
        advice = "; a number that changes often belongs in a tensor" if _is_number(what) else ""
        with HostEffects() as effects:
            result = self._eagerly(args, kwargs, f"{what} has changed{advice}" if what else WARM_UP)
        after = self._look()
        if after is None:
            return result
        if effects.found:
            self.fall_back(effects.found)
        elif after.key == before.key:
            self._n_changing, self._n_new = 0, self._n_new + 1
            self._settled = [*(each for each in self._settled if each.key != after.key), after][-2:]
            if self._n_new > MAX_UNSETTLED:
                self.fall_back(f"{what} differs from call to call; a number that changes belongs in a tensor")
        elif self._n_calls > self.warmup:
            # The first steps create the optimizer's state.
            self._n_changing += 1
            what = before.differs(after)
            if self._n_changing >= MAX_CHANGING:
                on_host = ", a tensor in host memory; create it on the device" if after.is_host_tensor(what) else ""
                why = f"it changes {what} itself{on_host}"
                self.fall_back(_SETS_NUMBERS if _is_number(what) else why)
        return result

    def _is_settled(self, state: Snapshot) -> bool:
        return any(each.key == state.key for each in self._settled)

    def _look(self) -> Snapshot | None:
        """A snapshot of what the step reads; None if it cannot be watched, and then the step is eager for good."""
        try:
            found = Snapshot({**self._roots, **_hooks_for_all_modules()})
        except Unwatchable as what:
            self.fall_back(f"it reads {what}")
            return None
        inner = {id(each) for module in self.modules for each in module.modules()}
        kinds: list[tuple[type, list[Any]]] = [
            (torch.optim.Optimizer, self.optimizers),
            (torch.nn.Module, self.modules),
        ]
        kinds += [(torch.amp.GradScaler, self.scalers), (torch.optim.lr_scheduler.LRScheduler, self.schedulers)]
        for kind, mine in kinds:
            known = inner.union(map(id, mine))
            mine += [each for each in found.found if isinstance(each, kind) and id(each) not in known]
        return found

    def _eagerly(self, args: Any, kwargs: Any, why: str) -> Any:
        self._count(why)
        return pytree.tree_map_only(Tensor, Tensor.detach, beside(self._arena, self.step, args, kwargs))

    @property
    def _arena(self) -> Arena:
        assert self._place is not None
        return self._place

    def _replay(self, known: _CapturedStep, given: list[Tensor], args: Any, kwargs: Any) -> Any:
        if not all([each.release() for each in known.made]):
            return self._eagerly(args, kwargs, _GRADIENT_KEPT)
        try:
            replay(known.graph)
        except RunEagerly as failed:
            return self._eagerly(args, kwargs, self.fall_back(f"its replay failed ({failed.why})", for_good=False))
        self.n_replays += 1
        self._why_last = ""
        for parameter, grad in known.grads:
            if parameter.grad is not grad:  # an eager step, another graph or the program replaced it
                parameter.grad = grad
        for each in known.made:
            if each.parameter.grad is not each.grad:
                each.parameter.grad = each.grad
        with torch.no_grad():
            for at in known.written:
                given[at].copy_(known.inputs[at])
        return known.outputs.give((), None, own=True)

    def _capture(self, held: list[_CapturedStep], now: Snapshot, args: Any, kwargs: Any) -> _CapturedStep | None:
        if self.n_captures >= MAX_CAPTURES:
            what = held[-1].snapshot.differs(now) if held else "the shape of an argument"
            self.fall_back(
                f"it was captured {MAX_CAPTURES} times, at last because {what} had changed: "
                "a learning rate that changes at each step belongs in a tensor"
            )
            return None
        self.n_captures += 1
        flat, spec = pytree.tree_flatten((args, kwargs))
        static = [like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flat]
        known = _CapturedStep(None, pytree.tree_unflatten(static, spec), tensors_of(static), None, now)
        copy_in(known.inputs, tensors_of((args, kwargs)))
        others = [each for many in self._captured.values() for one in many for each in one.made]
        counts = [each.count() for each in others]
        before = self._python_state()
        grads = [(p, p.grad) for p in self._parameters()]
        try:
            if self._pool is None:
                self._pool = self._arena.new_pool()
            with _skipping_on_the_device(self.scalers):
                run = functools.partial(self.step, *known.args[0], **known.args[1])
                on_unsafe = self._arena.state.settings.on_unsafe
                captured = capture_graph(self._arena, run, self._pool, on_unsafe=on_unsafe)
            graph, made = captured.graph, captured.result
            problem = _why_no_result(graph, made)
            if not problem:
                known.outputs = Outputs(pytree.tree_map_only(Tensor, Tensor.detach, made), (), ())
            after = self._look()
            if not problem and (after is None or after.key != now.key):
                problem = self._why_for_good if after is None else f"its capture changes {now.differs(after)}"
            known.snapshot = (after or now).watched()
        except (RuntimeError, NotATree) as error:
            if is_interrupt(error):
                raise
            problem = first_line(error)
            if "capturable is False" in problem:  # torch 2.11 asks it of fused optimizers too
                problem = _NEEDS_CAPTURABLE
            self._pool = None
        if problem:
            before.put_back()
            self.fall_back(problem)
            return None
        known.graph = graph
        known.written = written_inputs(graph, known.inputs)
        self._note_gradients(known, grads)
        held.append(known)
        del held[:-MAX_KEPT]
        del before, grads
        for each in known.made:
            each.n_names, each.n_views = each.count()
        for each, (n_names, n_views) in zip(others, counts):
            names, views = each.count()
            each.is_elsewhere = each.is_elsewhere or (names, views) != (n_names, n_views)
            each.n_names += names - n_names
            each.n_views += views - n_views
        return known

    def _note_gradients(self, known: _CapturedStep, grads: list[tuple[Tensor, Tensor | None]]) -> None:
        """Note what a capture has done to the gradients, which were ``grads`` before it."""
        found = {p: p.grad for p in self._parameters()}
        was = dict(grads)
        for p, grad in found.items():
            if grad is None or grad is was.get(p) or grad.layout is not torch.strided:
                known.grads.append((p, grad))
            else:
                known.made.append(_Made(p, grad))
        # A gradient that the graph neither keeps nor touches was replaced, whatever it was. Otherwise the graph
        # depends on
        # it, even if it drops it afterwards (accumulated, used and set to None).
        touched = [span(place) for place in (*reads_of(known.graph), *writes_of(known.graph))]
        known.needs = [
            (p, before)
            for p, before in grads
            if before is None
            or p.grad is before
            or before.layout is not torch.strided
            or overlap([span(before)], touched)
        ]

    def _parameters(self) -> list[Tensor]:
        own = [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        own += [p for module in self.modules for p in module.parameters()]
        return list({id(p): p for p in own}.values())

    def _python_state(self) -> Rollback:
        """The Python state that a failed capture must restore."""
        grads = [(p, p.grad) for p in self._parameters()]
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

    def _counts_on_the_host(self) -> torch.optim.Optimizer | None:
        """An optimizer that keeps numbers in host tensors, which a replay would not update."""
        for optimizer in self.optimizers:
            kept = (value for state in optimizer.state.values() for value in state.values())
            if any(isinstance(value, Tensor) and not value.is_cuda for value in kept):
                return optimizer
        return None

    def _count(self, why: str) -> None:
        self.count_eager(why)
        self._why_last = "" if why == WARM_UP else why


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


def _why_no_result(graph: Any, made: Any) -> str:
    """Why a replay would not give the step's result: a number read from the device would keep its old value."""
    if not graph.is_plain and any(isinstance(leaf, (int, float, complex)) for leaf in pytree.tree_leaves(made)):
        return "it returns a number that it reads from the device; return the tensor"
    return ""


def _is_number(path: str) -> bool:
    """Whether the change is one of the numbers of an optimizer or a scheduler."""
    return any(f".{name}" in path for name in _NUMBERS) and "hooks" not in path


def _not_constant(tree: Any) -> str:
    """An argument that is neither tensor nor constant; "" where there is none."""
    for leaf in pytree.tree_leaves(tree):
        if not isinstance(leaf, (Tensor, int, float, complex, str, bytes, torch.dtype, torch.device)):
            try:
                constant_key(leaf)
            except NotConstant:
                return type(leaf).__qualname__
    return ""


def _hooks_for_all_modules() -> dict[str, Any]:
    return {n: v for n, v in vars(torch.nn.modules.module).items() if n.startswith("_global_") and "hooks" in n}
