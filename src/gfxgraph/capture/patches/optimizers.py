"""``torch.optim`` inside a capture: steps that a replay would not repeat as a call does.

torch itself refuses optimizers that count their steps in host memory (``capturable=False``). Whatever their flags,
optimizers make their state in their first step: captured, each replay would begin with a new state. So a first step
is refused, unless the captured code also makes the optimizer.

What a step takes from Python is a constant of the graph, as in torch; a replay that would go on with an old one
raises. The rate of an optimizer that takes tensors for it (``capturable``) is an input, to which what schedulers set
is written. Code that changes a number inside the capture is refused: Python's part of a step happens once.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import SGD, Optimizer

from gfxgraph import torch_names
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.record.host_memory import HostRead
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.state import StepSession
from gfxgraph.core.tape import Place
from gfxgraph.types import OnUnsafe

Change = tuple[str, object, object] | None
"""What has changed, how it was, and how it is now."""
_FIRST_STEP = "it makes its state in its first step alone, and each replay would make it anew; run one step before"
_known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
"""Every optimizer, from the moment that the bridge is switched on."""


def noted(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap Optimizer.__init__ to know every optimizer; those that there are already are found once."""
    kinds = Optimizer.__subclasses__()
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    if used := [kind for kind in kinds if hasattr(kind.step, "hooked")]:  # set as the first of a kind is made
        _known.update(each for each in gc.get_referrers(*used) if issubclass(type(each), Optimizer))

    @functools.wraps(original)
    def __init__(self: Optimizer, *args: object, **kwargs: object) -> None:
        _known.add(self)
        if (session := session_here()) is not None:
            session.optimizers.made.add(self)
        original(self, *args, **kwargs)

    return __init__


class OptimizersBefore:
    """The numbers of each optimizer as a capture begins, and what those hold that step in it."""

    def __init__(self, takes_rates: bool) -> None:
        self._rates = {id(group): rate for each in _known for group, rate in _rates_of(each)} if takes_rates else {}
        self._lent: list[tuple[dict[str, object], float]] = []
        """Groups whose rate is a tensor while the optimizer steps, with the program's number."""
        self._numbers = {each: _numbers_of(each) for each in _known}
        self._stepped: dict[Optimizer, tuple[dict[tuple[object, str], object], Place]] = {}
        self.made: set[Optimizer] = set()
        """Optimizers that the captured code makes."""

    def note_step(self, optimizer: Optimizer) -> None:
        if optimizer not in self.made:
            self._stepped[optimizer] = _state_of(optimizer, Tensor), place()

    def refuse_changes(self, session: StepSession) -> None:
        """At the capture's end: refuse what each call would change further and no replay does."""
        for optimizer, (held, where) in self._stepped.items():
            name, now = type(optimizer).__name__, _state_of(optimizer, Tensor)
            change = _difference(optimizer, self._numbers.get(optimizer))
            what = change[0] if change is not None else ""
            if not all(now.get(key) is item for key, item in held.items()):
                what = f"the state of {name}, after a step"
            elif session.has_executed and any(key == "step" for _, key in _state_of(optimizer, int)):
                what = f"the count of steps that {name} keeps in Python"
            if what:
                session.refuse(f"{name}.step", f"the captured code changes {what}; no replay would change it", where)

    def settings(self) -> list[Settings]:
        """What replays compare, so that none steps with other settings than a call."""
        return [Settings(optimizer, where, self._rates) for optimizer, (_, where) in self._stepped.items()]

    def lend_rate(self, group: dict[str, object]) -> None:
        """From here to the end of the step the group's rate is the tensor that replays read."""
        rate = self._rates.get(id(group))
        if rate is not None and type(group["lr"]) is float:
            self._lent.append((group, group["lr"]))
            group["lr"] = rate

    def restore_rates(self) -> None:
        while self._lent:
            group, rate = self._lent.pop()
            group["lr"] = rate


def _state_of(optimizer: Optimizer, kind: type) -> dict[tuple[object, str], object]:
    """What it keeps of this type, by parameter and name."""
    states = [(each, state) for each, state in optimizer.state.items() if isinstance(state, dict)]
    return {(each, key): item for each, state in states for key, item in state.items() if isinstance(item, kind)}


def _rates_of(optimizer: Optimizer) -> Iterator[tuple[dict[str, object], Tensor]]:
    """For each group whose rate may be a tensor on the device, one with the rate: made before the capture."""
    for group in optimizer.param_groups if isinstance(optimizer, _TAKE_RATES) else ():
        device = next((each.device for each in group["params"] if each.is_cuda), None)
        if device is not None and group.get("capturable") and type(group["lr"]) is float:
            yield group, torch.full((), group["lr"], dtype=torch.float32, device=device)


_TAKE_RATES = (optim.Adam, optim.AdamW)


def _numbers_of(optimizer: Optimizer) -> list[dict[str, object]]:
    return [{name: item for name, item in group.items() if _is_plain(item)} for group in optimizer.param_groups]


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in (int, float, bool)


def _difference(optimizer: Optimizer, before: list[dict[str, object]] | None) -> Change:
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if before is None:
        return None
    if len(groups) != len(before):
        return f"the number of groups of {name}", len(before), len(groups)
    changes = ((key, value, group.get(key)) for then, group in zip(before, groups) for key, value in then.items())
    return next(((f"{key!r} of {name}", then, now) for key, then, now in changes if then != now), None)


class Settings(HostRead):
    """The numbers of an optimizer's groups, and whether its state is the one that the graph writes."""

    def __init__(self, optimizer: Optimizer, where: Place, rates: dict[int, Tensor]) -> None:
        self._where = where
        self._optimizer = weakref.ref(optimizer)
        self._numbers = _numbers_of(optimizer)
        self._state = optimizer.state
        self._groups = optimizer.param_groups
        self._rates = [rates.get(id(group)) for group in optimizer.param_groups]
        self._written: list[float | None] = [None for _ in self._rates]
        for numbers, rate in zip(self._numbers, self._rates):
            if rate is not None:
                del numbers["lr"]

    def groups(self) -> list[dict[str, object]]:
        """The dicts of what the program may set."""
        return self._groups

    def are_others(self) -> bool:
        """Whether the optimizer has other groups or another state: what it held is watched no more."""
        optimizer = self._optimizer()
        return optimizer is not None and (
            optimizer.param_groups is not self._groups or optimizer.state is not self._state
        )

    def check(self) -> None:
        super().check()
        for at, rate in enumerate(self._rates):
            now = self._groups[at]["lr"]
            if rate is not None and now != self._written[at]:
                rate.fill_(now)
                self._written[at] = now

    def difference(self) -> Change:
        optimizer = self._optimizer()
        if optimizer is not None and optimizer.state is not self._state:
            return f"the state of {type(optimizer).__name__}", "the captured one", "another (load_state_dict?)"
        return _difference(optimizer, self._numbers) if optimizer is not None else None


# -- replacements ---------------------------------------------------------------------------------------------


def _guarded() -> Any:
    session = session_here()
    return session if session is not None and session.policy is not OnUnsafe.RAISE else None


@functools.cache  # one for all captures: it is known by identity
def _init_group(short: str) -> Callable[..., object]:
    def init_group(self: Optimizer, group: dict[str, object], *lists: object, **kwargs: object) -> object:
        if (session := _guarded()) is not None:
            if self not in session.optimizers.made and _lacks_state(self, group):
                session.refuse(f"{type(self).__name__}.step", _FIRST_STEP)
            session.optimizers.lend_rate(group)
        return STOCK[short](self, group, *lists, **kwargs)

    return init_group


def _lacks_state(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    stepping = [optimizer.state.get(each) for each in group["params"] if each.grad is not None]
    if isinstance(optimizer, SGD):
        return group["momentum"] != 0 and any(not state or state.get("momentum_buffer") is None for state in stepping)
    return not all(stepping)


def _make_scale(self: object, device: object) -> None:
    """Replaces what a ``GradScaler`` calls in its first ``scale``."""
    session = _guarded()
    if session is not None:
        session.refuse("torch.amp.GradScaler.scale", _FIRST_STEP)
    STOCK["make_scale"](self, device)


def _step_is_over(self: Optimizer) -> None:
    """Replaces what torch calls last in each step of any optimizer."""
    STOCK["optimizer_step_code"](self)
    session = _guarded()
    if session is not None:
        session.optimizers.restore_rates()
        session.optimizers.note_step(self)


def targets() -> Targets:
    """Asked anew for each capture: Dynamo, once it is used, gives AdamW and others their own ``_init_group``."""
    kinds = {each for each in vars(optim).values() if isinstance(each, type) and "_init_group" in vars(each)}
    return {
        **{(short := f"{kind.__name__}._init_group"): (kind, "_init_group", _init_group(short)) for kind in kinds},
        "make_scale": (*torch_names.place("_lazy_init_scale_growth_tracker"), _make_scale),
        "optimizer_step_code": (*torch_names.place("_optimizer_step_code"), _step_is_over),
    }
