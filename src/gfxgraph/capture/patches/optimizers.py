"""``torch.optim`` inside a capture: what torch refuses there, and what an optimizer does in its first step alone.

Problem: without ``capturable=True`` most optimizers count their steps in host memory, which no graph can do. torch
refuses them by that flag, before any operation, but a split program repeats such work at each replay. And whatever
their flags, optimizers make their state in their first step: captured, each replay would begin with a new state.
Idea: a first step's state is made outside the graph, as a warm-up step before the capture would have made it. An
optimizer that was itself made inside the capture makes its state in each replay, as in each call.

What a step takes from Python is a constant of the graph, as in torch. Where torch would have made no graph, it is
compared at each replay: the numbers of the groups, and a count of steps in Python, which would stay as it is.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.record.host_memory import HostRead, HostReads
from gfxgraph.capture.record.tracked_numbers import NUMBERS
from gfxgraph.capture.record.user_lines import place, shown
from gfxgraph.capture.replay.program import Gate, note_fallback
from gfxgraph.core.unsafe import BY_NAME, Kind, UnsafeOp
from gfxgraph.types import OnUnsafe

Group = dict[str, Any]
"""One of ``param_groups``."""
_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
"""Of torch 2.11, and before."""
_REMEDY = "the optimizer counts its steps on the host; with capturable=True, it is part of the graph"
_FIRST_STEP = UnsafeOp("torch.optim", Kind.NOT_RECORDED, "it makes its state in its first step alone")
_owners: weakref.WeakKeyDictionary[object, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""Optimizers and scalers made inside captures, with these."""


def _flowing() -> Any:
    """This thread's capture, if it repeats the host's part at each replay."""
    session = session_here()
    return session if session is not None and session.policy is OnUnsafe.SPLIT else None


@functools.cache
def _health_check(short: str) -> Callable[[Optimizer], None]:
    def check(self: Optimizer) -> None:
        session = _flowing()
        if session is None:
            STOCK[short](self)
            return
        if not all(group.get("capturable") for group in self.param_groups):
            session.host.note_python((CapturedSteps, id(self)), CapturedSteps(self), always=True)
        if any(map(_counts_on_host, self.param_groups)):
            note_fallback(_REMEDY, f"{type(self).__name__}.step", shown(place()))

    return check


def _counts_on_host(group: Group) -> bool:
    """Whether ``capturable=True`` would make the group's step part of the graph."""
    is_capturable = group.get("capturable", True) or group.get("fused")
    return not is_capturable and any(parameter.is_cuda for parameter in group["params"])


# -- what the captured code changes ------------------------------------------------------------------

_known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
"""Every optimizer, from the moment that the bridge is switched on."""
_State = list[tuple[object, Tensor]]


def noted(original: Callable[..., None], make_ready: Callable[[], None]) -> Callable[..., None]:
    """Wrap Optimizer.__init__ to know every optimizer; those that there are already are found once.

    Args:
        make_ready: a capture may meet the first one.
    """
    if are_used():
        _known.update(each for each in gc.get_referrers(*_kinds()) if issubclass(type(each), Optimizer))

    @functools.wraps(original)
    def __init__(self: Optimizer, *args: object, **kwargs: object) -> None:
        make_ready()
        _known.add(self)
        made_here(self)
        original(self, *args, **kwargs)

    return __init__


class OptimizersBefore:
    """What each optimizer held when a capture began.

    A state from before, with which the captured code has stepped, must be there in the end: each replay steps with
    it. One that the code drops before it steps is made anew, by each replay as by each call.
    """

    def __init__(self) -> None:
        self._numbers = {each: [_numbers_of(group) for group in each.param_groups] for each in _known}
        self._dicts = {each: each.state for each in _known}
        self._states = {each: {p: _tensors_of(each, p) for p in list(each.state)} for each in _known}
        self._used: set[tuple[Optimizer, Tensor]] = set()
        self.stepped: set[Optimizer] = set()

    def had(self, optimizer: Optimizer, parameter: Tensor) -> bool:
        """Whether there was a state of the parameter's, so that making it is no first step."""
        return bool(self._states.get(optimizer, {}).get(parameter))

    def steps(self, optimizer: Optimizer, group: Group) -> None:
        """The captured code is about to step; note with which states from before."""
        before = self._states.get(optimizer, {})
        for parameter in group["params"]:
            if before.get(parameter) and _is_same(before[parameter], _tensors_of(optimizer, parameter)):
                self._used.add((optimizer, parameter))

    def has_made(self, optimizer: Optimizer, parameters: list[Tensor], host: HostReads) -> None:
        """States were made outside the graph, as a warm-up would have made them."""
        if optimizer not in self._states:
            return
        self._states[optimizer].update({p: _tensors_of(optimizer, p) for p in parameters})
        self._used.update((optimizer, p) for p in parameters)
        if optimizer.state is not self._dicts[optimizer]:
            what = f"the state of {type(optimizer).__name__} that the captured code sets before its first step"
            host.note_python(
                (OptimizersBefore, id(optimizer), "dict"), OnlyOnce((what, "empty", "made")), always=True
            )

    def compare(self, host: HostReads) -> None:
        """At the capture's end: have replays refused that would step with something else than the calls would."""
        for optimizer in self.stepped:
            for then, group in zip(self._numbers.get(optimizer, ()), optimizer.param_groups):
                key = next((key for key, value in then.items() if group.get(key) != value), None)
                if key is not None:
                    change = f"{key!r} of {type(optimizer).__name__}", then[key], group.get(key)
                    host.note_python((OptimizersBefore, id(optimizer), "numbers"), OnlyOnce(change), always=True)
        for optimizer, parameter in self._used:
            if not _is_same(self._states[optimizer][parameter], _tensors_of(optimizer, parameter)):
                what = f"the state of {type(optimizer).__name__} that the captured code replaces after a step"
                host.note_python((OptimizersBefore, id(optimizer)), Never((what, "kept", "another")), always=True)


def _tensors_of(optimizer: Optimizer, parameter: Tensor) -> _State:
    state = optimizer.state.get(parameter)
    items = state.items() if isinstance(state, dict) else ()
    return [(key, item) for key, item in items if isinstance(item, Tensor)]


def _is_same(held: _State, now: _State) -> bool:
    found = dict(now)
    return all(found.get(key) is item for key, item in held)


# -- the first step -----------------------------------------------------------------------------------


def made_here(maker: object) -> None:
    """An optimizer or a scaler is made."""
    session = session_here()
    if session is not None:
        _owners[maker] = weakref.ref(session)


def _scaler_init(self: object, *args: object, **kwargs: object) -> None:
    made_here(self)
    STOCK["scaler_init"](self, *args, **kwargs)


def _outliving(maker: object) -> Any:
    """This thread's capture, if it repeats the host's part and ``maker`` is older."""
    session, owner = _flowing(), _owners.get(maker)
    return session if owner is None or owner() is not session else None


@functools.cache
def _init_group(short: str) -> Callable[..., object]:
    def init_group(self: Optimizer, group: Group, *lists: object, **kwargs: object) -> object:
        stock, session = STOCK[short], _outliving(self)
        if session is None:
            return stock(self, group, *lists, **kwargs)
        before = session.optimizers
        before.steps(self, group)
        lacking = [each for each in _without_state(self, group) if not before.had(self, each)]
        if not lacking:
            return stock(self, group, *lists, **kwargs)

        def make() -> tuple[object, None]:
            if isinstance(self, SGD):
                _make_momentum(self, group, lacking, session.host)
            made = stock(self, group, *lists, **kwargs)
            before.has_made(self, lacking, session.host)
            return made, None

        return session.split(_FIRST_STEP, f"{type(self).__name__}.step", make)

    return init_group


def _make_scale(self: object, device: object) -> None:
    """Replaces what a ``GradScaler`` calls in its first ``scale``."""
    stock, session = STOCK["make_scale"], _outliving(self)
    if session is None:
        stock(self, device)
    else:
        session.split(_FIRST_STEP, "torch.amp.GradScaler.scale", lambda: (stock(self, device), None))


def _maybe_opt_step(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    """The one branch that is captured both ways: a ``GradScaler`` reads on the host whether a gradient overflowed,
    and if so skips the optimizer's step. Here the step is always captured, behind a gate: a replay runs it only if no
    gradient overflows in that replay.
    """
    session = _flowing()
    if session is None or session.gate is not None:
        return STOCK["maybe_opt_step"](scaler, optimizer, state, *args, **kwargs)
    found = sum(flag.item() for flag in state["found_inf_per_device"].values())
    if type(found) not in NUMBERS:
        return optimizer.step(*args, **kwargs) if not found else None
    where, row, name = place(), BY_NAME["aten::_local_scalar_dense"], "torch.amp.GradScaler.step"
    session.split(row, name, lambda: (None, None), where)
    session.gate = Gate(found._ref, False)
    try:
        out = optimizer.step(*args, **kwargs)
        session.split(row, name, lambda: (None, None), where)
    finally:
        session.gate = None
    return out


def _without_state(optimizer: Optimizer, group: Group) -> list[Tensor]:
    """The group's parameters whose first step this is."""
    stepping = [each for each in group["params"] if each.grad is not None]
    if isinstance(optimizer, SGD):
        has_momentum = group["momentum"] != 0
        return [p for p in stepping if has_momentum and optimizer.state[p].get("momentum_buffer") is None]
    return [each for each in stepping if not optimizer.state[each]]


def _make_momentum(optimizer: Optimizer, group: Group, parameters: list[Tensor], host: HostReads) -> None:
    """SGD's first step takes the gradient itself for the momentum: the same as of zeros, undamped."""
    for parameter in parameters:
        if group["dampening"] or parameter.grad.layout is not torch.strided:  # type: ignore[union-attr]
            once = OnlyOnce(("the count of steps of SGD, the first of which is not damped", 1, 2))
            host.note_python((OnlyOnce, id(optimizer)), once, always=True)
        else:
            with torch.no_grad():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)  # type: ignore[arg-type]


class OnlyOnce(HostRead):
    """State of Python's that the captured code changes, and no replay: one replay is right, a second repeats it."""

    def __init__(self, change: tuple[str, object, object] | None) -> None:
        self._change = change
        self._where = place()
        self._n_replays = -1  # asked once as the capture ends

    def difference(self) -> tuple[str, object, object] | None:
        self._n_replays += 1
        return self._change if self._n_replays > 1 else None


class Never(OnlyOnce):
    """A change after which not even one replay is known to be right."""

    def difference(self) -> tuple[str, object, object] | None:
        super().difference()
        return self._change if self._n_replays > 0 else None


class CapturedSteps(OnlyOnce):
    """An optimizer whose steps a capture holds: the numbers of its groups, and the tensors of its state.

    A replay takes the numbers, such as a learning rate, as constants. A state that the program loads goes into the
    tensors that the replay writes.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(None)
        self._optimizer = weakref.ref(optimizer)
        self._numbers = [_numbers_of(group) for group in optimizer.param_groups]
        self._state = optimizer.state
        self._tensors = [
            (parameter, key, item)
            for parameter, state in optimizer.state.items()
            for key, item in (state.items() if isinstance(state, dict) else ())
            if isinstance(item, Tensor)
        ]

    def difference(self) -> tuple[str, object, object] | None:
        optimizer = self._optimizer()
        if optimizer is None:
            return None
        change = self._changed(optimizer)
        if change and self._n_replays < 0:  # by the captured code, as where it calls a scheduler
            self._change, change = change, None
            self._numbers = [_numbers_of(group) for group in optimizer.param_groups]
        return super().difference() or change

    def _changed(self, optimizer: Optimizer) -> tuple[str, object, object] | None:
        name, groups = type(optimizer).__name__, optimizer.param_groups
        if len(groups) != len(self._numbers):
            return f"the number of groups of {name}", len(self._numbers), len(groups)
        for then, group in zip(self._numbers, groups):
            for key, value in then.items():
                if group.get(key) != value:
                    return f"{key!r} of {name}", value, group.get(key)
        return None if optimizer.state is self._state else self._load(optimizer.state, name)

    def _load(self, state: dict[Tensor, Group], name: str) -> tuple[str, object, object] | None:
        """``load_state_dict`` has put other tensors in the place of those that the replay writes."""
        for parameter, key, held in self._tensors:
            new = state.get(parameter, {}).get(key)
            if not isinstance(new, Tensor) or (held.size(), held.dtype) != (new.size(), new.dtype):
                return f"{key!r} in the state of {name}", _kind_of(held), _kind_of(new)
        for parameter, key, held in self._tensors:
            with torch._C._InferenceMode(True):
                held.copy_(state[parameter][key])
            state[parameter][key] = held
        self._state = state
        return None


def _kind_of(item: object) -> object:
    return f"{item.dtype} of size {tuple(item.size())}" if isinstance(item, Tensor) else item


def _numbers_of(group: Group) -> dict[str, object]:
    return {name: value for name, value in group.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in (int, float, bool)


def _step_is_over(self: Optimizer) -> None:
    """Replaces what torch calls last in each step of any optimizer."""
    STOCK["optimizer_step_code"](self)
    session = _flowing()
    if session is None:
        return
    session.optimizers.stepped.add(self)
    session.host.note_python((CapturedSteps, id(self)), CapturedSteps(self))
    count = next((s["step"] for s in self.state.values() if isinstance(s, dict) and type(s.get("step")) is int), None)
    if count is not None and _outliving(self) is not None:
        what = f"the count of steps that {type(self).__name__} keeps in Python"
        session.host.note_python((OnlyOnce, id(self)), OnlyOnce((what, count, count + 1)))


def are_used() -> bool:
    """Whether the process has made an optimizer: torch then marks the ``step`` of its class."""
    return any("hooked" in getattr(kind.step, "__dict__", ()) for kind in _kinds())  # type: ignore[attr-defined]


def _kinds() -> list[type[Optimizer]]:
    kinds = Optimizer.__subclasses__()
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    return kinds


def targets() -> Targets:
    """Asked anew for each capture: Dynamo, once it is used, gives AdamW and others their own ``_init_group``."""
    kinds = {each for each in vars(torch.optim).values() if isinstance(each, type) and "_init_group" in vars(each)}
    shorts = {f"{kind.__name__}._init_group": kind for kind in kinds}
    return {
        **{name: (Optimizer, name, _health_check(name)) for name in _CHECKS},
        **{short: (kind, "_init_group", _init_group(short)) for short, kind in shorts.items()},
        "maybe_opt_step": (torch.amp.GradScaler, "_maybe_opt_step", _maybe_opt_step),
        "scaler_init": (torch.amp.GradScaler, "__init__", _scaler_init),
        "make_scale": (torch.amp.GradScaler, "_lazy_init_scale_growth_tracker", _make_scale),
        "optimizer_step_code": (Optimizer, "_optimizer_step_code", _step_is_over),
    }
