"""Host reads and waits that happen above or beside torch's dispatcher, caught while a capture runs.

A dispatch mode sees operations. It does not see ``torch.cuda.synchronize()``, an event's wait, or
the number that ``.item()`` gives to Python. While at least one capture is underway these names are
replaced by functions that ask whether *this thread* is capturing, and otherwise do what they did.
They are put back when the last capture ends, so a program that captures nothing meets none of it.

Invariant: ``stock(name)`` is always torch's own, whatever is installed.
"""

from __future__ import annotations

import functools
import gc
import math
import operator
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gfxgraph.capture import draws, scaler, shield, turns, whole
from gfxgraph.capture.number_functions import by_number, number_targets, sized_targets, waiting_targets
from gfxgraph.capture.numbers import TrackedNumber, holds_numbers
from gfxgraph.capture.random_state import in_the_place_of
from gfxgraph.process import process

_fake_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_lock = threading.RLock()
_holders: dict[int, turns.Turn] = {}
"""Captures underway by identity, with their turns: none is counted twice, one that is not there can be left."""
_undo: list[tuple[Any, str, Any]] = []
"""Owner, attribute, and what stood there itself; None where it was inherited. The first entry is none of them."""
_stock: dict[str, Any] = {}
_collects = False
_guards_draws = False
EXTERNAL = "_gfxgraph_external"
"""Attribute of events made with ``external=True``; torch's class does not tell afterwards."""
_graveyard: list[Any] = []
_PLACES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


def stock(name: str) -> Any:
    """torch's own function under a short name; see ``_targets``."""
    found = _stock.get(name)
    if found is None:
        owner, attribute, _ = (_targets() | sized_targets(stock) | waiting_targets(stock))[name]
        found = getattr(owner, attribute)
    return found


def original_of(func: Any) -> Any:
    """torch's own function in place of what stands there while a capture runs."""
    for name, (_, _, replacement) in (_targets() | sized_targets(stock)).items():
        if replacement is func:
            return stock(name)
    return func


def event_new(original: Any) -> Any:
    """Event.__new__ that remembers ``external=True``."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        event = original(cls, *args, **kwargs)
        if kwargs.get("external") or (len(args) > 3 and args[3]):
            setattr(event, EXTERNAL, True)
        return event

    return __new__


def enter(holder: object, where: object, draws: bool = True) -> None:
    """A capture begins in this thread, once those of other threads are over.

    Args:
        where: the line that begins it, for reports.
        draws: whether it has the default generator, so that other threads cannot draw meanwhile.
    """
    global _collects
    shield.prepare(torch.cuda.current_device())
    turn = turns.Turn(where=where, draws=draws)
    with _lock:
        _holders[id(holder)] = turn  # before it is taken: an interrupt may strike at any line
    turns.take(turn)
    with _lock:
        if not _undo:
            _collects = gc.isenabled()
            _undo.append((None, "", None))
            # A graph freed by the collector inside a capture invalidates it (torch since 2.9).
            gc.disable()
            _install()


def leave(holder: object) -> None:
    """A capture has ended in some thread; nothing happens where it is known already."""
    _leave([id(holder)])


def holders_here() -> frozenset[int]:
    """This thread's captures."""
    me = threading.get_ident()
    return frozenset(holder for holder, turn in list(_holders.items()) if turn.thread == me)


def leave_others(known: frozenset[int]) -> None:
    """This thread's captures are over, but for those that are ``known``."""
    others = holders_here() - known
    if others:
        _leave(others)


def _leave(gone: Iterable[int]) -> None:
    with _lock:
        for holder in gone:
            if holder in _holders:
                turns.give(_holders[holder])
                _holders.pop(holder, None)
        if _holders or not _undo:
            return
        while len(_undo) > 1:  # one that an interrupt stopped is done again
            owner, attribute, own = _undo[-1]
            if own is not None:
                setattr(owner, attribute, own)
            elif attribute in vars(owner):
                delattr(owner, attribute)  # it was inherited
            _undo.pop()
        _stock.clear()
        if _collects:
            gc.enable()
        dead, _graveyard[:] = list(_graveyard), []
        _undo.clear()
    with turns.unnoticed():
        del dead


def is_capturing_anywhere() -> bool:
    """True while any thread captures: then some calls, event queries among them, could break that capture."""
    return bool(_holders)


def keep_until_captures_end(held: Any) -> bool:
    """Hold graphs that are being dropped while a capture is underway; False where none is."""
    with _lock:
        if _holders:
            _graveyard.append(held)
        return bool(_holders)


def _install() -> None:
    global _guards_draws
    _put_named(_targets() | waiting_targets(stock))
    if whole.has_compiled_nothing():
        _put_named(number_targets())
    for target in shield.targets(keep_until_captures_end):
        _put(*target)
    _guards_draws = False
    if threading.active_count() > 1:
        _guard_draws()


def _guard_draws() -> None:
    """Have other threads, of which there are some, wait before they draw."""
    global _guards_draws
    with _lock:
        if not _guards_draws:
            _guards_draws = True
            for target in draws.targets():
                _put(*target)


def _put_named(targets: dict[str, tuple[Any, str, Any]]) -> None:
    """As ``_put``; torch's own is to be had from ``stock``."""
    for name, (owner, attribute, replacement) in targets.items():
        original = getattr(owner, attribute, None)
        if original is not None:
            _stock[name] = original
            _put(owner, attribute, replacement)


def _put(owner: Any, attribute: str, replacement: Any) -> None:
    _undo.append((owner, attribute, vars(owner).get(attribute)))
    setattr(owner, attribute, replacement)


def _session() -> Any:
    """This thread's capture; None where there is none, and while torch.compile traces."""
    session = process.active_session()
    if session is None or session.recorder.paused or _fake_mode(_FAKE) is not None:
        return None
    return session


def _session_for(tensor: Any) -> Any:
    session = _session()
    if session is None or not isinstance(tensor, Tensor):
        return None
    return session if session.values.comes_from_device(tensor) else None


def _item(self: Tensor) -> Any:
    session = _session_for(self)
    if session is None:
        return _stock["item"](self)
    return session.values.read_scalar(self, "Tensor.item")


def _bool(self: Tensor) -> bool:
    session = _session_for(self)
    if session is None:
        return _stock["bool"](self)  # type: ignore[no-any-return]
    return bool(session.values.read_scalar(self, "Tensor.__bool__"))


def _float(self: Tensor) -> float:
    session = _session_for(self)
    if session is None:
        return _stock["float"](self)  # type: ignore[no-any-return]
    return float(session.values.read_scalar(self, "Tensor.__float__"))


def _int(self: Tensor) -> int:
    session = _session_for(self)
    if session is None:
        return _stock["int"](self)  # type: ignore[no-any-return]
    return int(session.values.read_scalar(self, "Tensor.__int__"))


def _index(self: Tensor) -> int:
    session = _session_for(self)
    if session is None or self.is_floating_point() or self.is_complex():
        return _stock["index"](self)  # type: ignore[no-any-return]
    return operator.index(session.values.read_scalar(self, "Tensor.__index__"))


def _tolist(self: Tensor) -> Any:
    session = _session_for(self)
    return _stock["tolist"](self) if session is None else session.values.read_list(self)


def _numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    session = _session_for(self)
    if session is not None and not self.is_cuda:
        session.values.read_contents(self, "Tensor.numpy()")
        session.recorder.paused = True
        try:
            return _stock["numpy"](self, *args, **kwargs)
        finally:
            session.recorder.paused = False
    return _stock["numpy"](self, *args, **kwargs)


def _array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    session = _session_for(self)
    if session is not None and not self.is_cuda:
        session.values.read_contents(self, "a NumPy array")
        session.recorder.paused = True
        try:
            return _stock["array"](self, *args, **kwargs)
        finally:
            session.recorder.paused = False
    return _stock["array"](self, *args, **kwargs)


def _repr(self: Tensor, *args: Any, **kwargs: Any) -> str:
    session = _session_for(self)
    if session is None:
        return _stock["repr"](self, *args, **kwargs)  # type: ignore[no-any-return]
    repr_of = _stock["repr"]
    # Printed, not decided on: nothing to repeat at replay.
    return session.host_call("aten::item", lambda: repr_of(self, *args, **kwargs), repeat=False)  # type: ignore[no-any-return]


def _format(self: Tensor, spec: str) -> str:
    session = _session_for(self)
    if session is not None and self.dim() == 0 and not self.is_meta:
        return format(self.item(), spec)
    return _stock["format"](self, spec)  # type: ignore[no-any-return]


def _device_synchronize(*args: Any) -> Any:
    return _wait_for_device("device_synchronize", *args)


def _wait_for_device(short: str, *args: Any) -> Any:
    call = _stock[short]
    if _session() is None:
        return turns.synchronize_device(lambda: call(*args))
    return _wait("torch.cuda.synchronize", short, *args)


def _synchronize_current(synchronize: Any) -> Callable[[], Any]:
    """Wait for the stream that is current when it is called: at replay, the one that replays."""
    current_stream = torch.cuda.current_stream
    return lambda: synchronize(current_stream())


def _stream_synchronize(self: Any) -> Any:
    session = _session()
    if session is not None and session.streams.captures(self):
        call = _synchronize_current(_stock["stream_synchronize"])
        return session.host_call("torch.cuda.Stream.synchronize", call)
    return _wait("torch.cuda.Stream.synchronize", "stream_synchronize", self)


def _wait(name: str, short: str, *args: Any) -> Any:
    session = _session()
    call = _stock[short]
    if session is None:
        with turns.unnoticed():
            return call(*args)
    return session.host_call(name, lambda: call(*args))


def _stream_query(self: Any) -> bool:
    session = _session()
    if session is None:
        with turns.unnoticed():
            return _stock["stream_query"](self)  # type: ignore[no-any-return]
    synchronize = _stock["stream_synchronize"]
    session.host_call("torch.cuda.Stream.query", lambda: synchronize(self), repeat=False)
    return True


def _event_synchronize(self: Any) -> Any:
    session = _session()
    if session is None:
        with turns.unnoticed():
            return _stock["event_synchronize"](self)
    if session.streams.recorded_in(self) is not None:  # everything up to here has to be done
        return session.host_call("torch.cuda.Event.synchronize", _synchronize_current(_stock["stream_synchronize"]))
    event_synchronize = _stock["event_synchronize"]
    return session.host_call("torch.cuda.Event.synchronize", lambda: event_synchronize(self))


def _event_query(self: Any) -> bool:
    session = _session()
    if session is None:
        with turns.unnoticed():
            return _stock["event_query"](self)  # type: ignore[no-any-return]
    if session.streams.recorded_in(self) is not None:
        synchronize, stream = _stock["stream_synchronize"], session.streams.own
        session.host_call("torch.cuda.Event.query", lambda: synchronize(stream), repeat=False)
        return True
    query = _stock["event_query"]
    return session.host_call("torch.cuda.Event.query", lambda: query(self), repeat=False)  # type: ignore[no-any-return]


def _event_elapsed(self: Any, other: Any) -> float:
    session = _session()
    elapsed = _stock["elapsed"]
    if session is None:
        return elapsed(self, other)  # type: ignore[no-any-return]
    return session.host_call("torch.cuda.Event.elapsed_time", lambda: elapsed(self, other), repeat=False)  # type: ignore[no-any-return]


def _record(self: Any, stream: Any = None) -> Any:
    session = _session()
    record = _stock["record"]
    given = () if stream is None else (stream,)
    if session is None or getattr(self, EXTERNAL, False):
        return record(self, *given)
    session.streams.note_event(self, session.n_segments)
    try:
        return record(self, *given)
    except RuntimeError as error:
        return session.call_failed("torch.cuda.Event.record", error, lambda: _record(self, *given))


def _wait_event(self: Any, stream: Any = None) -> Any:
    session = _session()
    wait = _stock["wait"]
    if session is None:
        return wait(self, stream) if stream is not None else wait(self)
    stream = stream if stream is not None else torch.cuda.current_stream()
    segment = session.streams.recorded_in(self)
    if getattr(self, EXTERNAL, False):
        return wait(self, stream)  # a node of its own, which waits at each replay
    if segment is None:
        if not session.streams.captures(stream):
            return wait(self, stream)  # a stream that has nothing to do with the capture
        # At replay the program's work is on whatever stream is current then.
        current_stream = torch.cuda.current_stream
        return session.host_call("torch.cuda.Stream.wait_event", lambda: wait(self, current_stream()))
    session.streams.note_side(stream)
    try:
        if segment == session.n_segments:
            return wait(self, stream)
        # Recorded before a split: that work has been joined, so waiting for the new segment's start is enough.
        fork = torch.cuda.Event()
        _stock["record"](fork, session.streams.own)
        return wait(fork, stream)
    except RuntimeError as error:
        return session.call_failed("torch.cuda.Event.wait", error, lambda: _wait_event(self, stream))


def _collect(*args: Any, **kwargs: Any) -> int:
    # It may be what finds and ends a capture that was dropped. What it frees is put off or freed in relaxed mode.
    with turns.unnoticed() if turns.is_held_here() else nullcontext():
        return _stock["gc_collect"](*args, **kwargs)  # type: ignore[no-any-return]


def _switch_collector_on() -> None:
    global _collects
    _collects = True


def _switch_collector_off() -> None:
    global _collects
    _collects = False


def _start_thread(self: threading.Thread) -> None:
    for session in process.sessions():
        session.make_room_for_threads()
    _guard_draws()
    _stock["start_thread"](self)


def _empty_cache() -> None:
    _wait_once("torch.cuda.empty_cache", "empty_cache")


def _host_empty_cache() -> None:
    # torch.cuda.graph() calls it on entering: freeing pinned memory kills a capture underway.
    _wait_once("torch.cuda.empty_cache", "host_empty_cache")


def _wait_once(name: str, short: str) -> None:
    session = _session()
    call = _stock[short]
    if session is None:
        with turns.held(), turns.unnoticed():  # torch gives no memory back while any capture is underway
            call()
    else:
        session.host_call(name, call, repeat=False)


def _manual_seed(seed: Any) -> Any:
    return _reseed("torch.manual_seed", "manual_seed", seed)


def _cuda_manual_seed(seed: Any) -> Any:
    return _reseed("torch.cuda.manual_seed", "cuda_manual_seed", seed)


def _cuda_manual_seed_all(seed: Any) -> Any:
    return _reseed("torch.cuda.manual_seed_all", "cuda_manual_seed_all", seed)


def _reseed(name: str, short: str, seed: Any) -> Any:
    session = _session()
    call = _stock[short]
    if session is None:
        return call(seed)
    return session.host_call(name, lambda: call(seed))


def _read_rng_state(call: Callable[[], Any]) -> Any:
    session = _session()
    return call() if session is None else session.values.generator_state(call)


def _write_rng_state(call: Callable[[], Any]) -> Any:
    session = _session()
    return call() if session is None else session.host_call("torch.cuda.set_rng_state", call)


def _tensor(data: Any, *args: Any, **kwargs: Any) -> Tensor:
    return _made_on_host("tensor", data, args, kwargs)


def _as_tensor(data: Any, *args: Any, **kwargs: Any) -> Tensor:
    return _made_on_host("as_tensor", data, args, kwargs)


def _made_on_host(short: str, data: Any, args: Any, kwargs: Any) -> Tensor:
    """torch.tensor(..., device="cuda") copies below the dispatcher; do the copy where it is seen."""
    make = _stock[short]
    session = _session()
    device = kwargs.get("device")
    if session is not None and session.values.has_numbers and holds_numbers(data):
        return _of_numbers(session, short, data, args, kwargs)
    if device is None and short == "tensor" and session is not None:
        device = torch.get_default_device()
    if session is None or device is None or torch.device(device).type == "cpu" or isinstance(data, Tensor):
        return make(data, *args, **kwargs)  # type: ignore[no-any-return]
    grad = kwargs.pop("requires_grad", False)
    made = make(data, *args, **{**kwargs, "device": "cpu"}).to(device)
    return made.requires_grad_() if grad else made  # type: ignore[no-any-return]


def _of_numbers(session: Any, short: str, data: Any, args: Any, kwargs: Any) -> Tensor:
    """torch.tensor of numbers that the host read: made again at each replay, and copied where it is seen."""
    make = _stock[short]
    device = kwargs.pop("device", None) or torch.get_default_device()
    grad = kwargs.pop("requires_grad", False)
    made = session.values.host_tensor(
        lambda numbers: make(numbers, *args, **{**kwargs, "device": "cpu"}), data, f"torch.{short}"
    )
    if torch.device(device).type != "cpu":
        made = made.to(device)
    return made.requires_grad_() if grad else made  # type: ignore[no-any-return]


def _new_tensor(self: Tensor, data: Any, *args: Any, **kwargs: Any) -> Tensor:
    session = _session()
    if session is None or not self.is_cuda or kwargs.get("device") is not None:
        return _stock["new_tensor"](self, data, *args, **kwargs)  # type: ignore[no-any-return]
    kwargs.setdefault("dtype", self.dtype)
    return torch.tensor(data, *args, device=self.device, **kwargs)


def _getitem(self: Tensor, index: Any) -> Any:
    session = _session()
    if session is not None:
        index = _with_places(session, index)
    if _holds_number(index):
        return by_number(_stock["getitem"], (self, index), {})
    if type(index) is list or (type(index) is tuple and list in map(type, index)):
        if session is not None and self.is_cuda:
            index = _host_indices(index)
    return _stock["getitem"](self, index)


def _setitem(self: Tensor, index: Any, value: Any) -> None:
    session = _session()
    if session is not None:
        index = _with_places(session, index)
    if _holds_number(index):
        by_number(_stock["setitem"], (self, index, value), {})
        return
    if session is not None and self.is_cuda:
        index = _host_indices(index)
    _stock["setitem"](self, index, value)


def _with_places(session: Any, index: Any) -> Any:
    """An index with each tensor that is one whole number as that number, for as such C++ would read it."""
    if type(index) is tuple:
        return tuple(_with_places(session, part) if isinstance(part, Tensor) else part for part in index)
    if not isinstance(index, Tensor) or index.dim() or index.dtype not in _PLACES:
        return index
    return session.values.read_scalar(index, "an index") if session.values.comes_from_device(index) else index


def _holds_number(index: Any) -> bool:
    kind = type(index)
    if kind is TrackedNumber:
        return True
    return (kind is tuple or kind is slice or kind is list) and holds_numbers(index)


def _host_indices(index: Any) -> Any:
    """Lists in an index become host tensors here, so that the copy is seen at the dispatcher."""
    if type(index) is list and index and not any(isinstance(i, (slice, type(None), type(...))) for i in index):
        return torch.tensor(index) if not any(isinstance(i, Tensor) for i in index) else index
    if type(index) is tuple:
        return tuple(_host_indices(part) if type(part) is list else part for part in index)
    return index


def _maybe_opt_step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
    session = _session()
    stock_step = _stock["maybe_opt_step"]
    if session is None:
        return stock_step(self, optimizer, optimizer_state, *args, **kwargs)
    return scaler.maybe_opt_step(session, stock_step, self, optimizer, optimizer_state, args, kwargs)


def watch_numbers() -> None:
    """A capture hands out its first number: functions that would take it for a list of ints are to know it."""
    with _lock:
        if _holders and "sized.Tensor.view" not in _stock:
            _put_named(sized_targets(stock))


def _predicate(name: str, test: str) -> Callable[[Any], bool]:
    def asked(value: Any) -> bool:
        if type(value) is TrackedNumber:
            return value._ask(test, bool(_stock[name](value._value)))
        return _stock[name](value)  # type: ignore[no-any-return]

    return asked


def _targets() -> dict[str, tuple[Any, str, Any]]:
    """short name -> (owner, attribute, what stands in its place while a capture runs)."""
    cuda = torch.cuda
    found = {**_targets_of(cuda.Stream, cuda.Event, cuda.get_rng_state, cuda.set_rng_state)}
    for name, attribute, stand_in in (
        ("linear", "linear", whole.linear),
        ("attention", "scaled_dot_product_attention", whole.attention),
    ):
        owner = whole.owner_of(attribute)
        if owner is not None:
            found[name] = owner, attribute, stand_in
    return found


@functools.lru_cache(maxsize=2)
def _targets_of(stream: Any, event: Any, get_rng_state: Any, set_rng_state: Any) -> dict[str, tuple[Any, str, Any]]:
    cuda, C = torch.cuda, torch._C
    return {
        "item": (Tensor, "item", _item),
        "bool": (Tensor, "__bool__", _bool),
        "float": (Tensor, "__float__", _float),
        "int": (Tensor, "__int__", _int),
        "index": (Tensor, "__index__", _index),
        "tolist": (Tensor, "tolist", _tolist),
        "numpy": (Tensor, "numpy", _numpy),
        "array": (Tensor, "__array__", _array),
        "repr": (Tensor, "__repr__", _repr),
        "format": (Tensor, "__format__", _format),
        "new_tensor": (Tensor, "new_tensor", _new_tensor),
        "getitem": (Tensor, "__getitem__", _getitem),
        "setitem": (Tensor, "__setitem__", _setitem),
        "maybe_opt_step": (torch.amp.GradScaler, "_maybe_opt_step", _maybe_opt_step),
        "tensor": (torch, "tensor", _tensor),
        "as_tensor": (torch, "as_tensor", _as_tensor),
        "device_synchronize": (C, "_cuda_synchronize", _device_synchronize),
        "accelerator_synchronize": (C, "_accelerator_synchronizeDevice", _accelerator_synchronize),
        "stream_synchronize": (cuda.Stream, "synchronize", _stream_synchronize),
        "stream_query": (cuda.Stream, "query", _stream_query),
        "event_synchronize": (cuda.Event, "synchronize", _event_synchronize),
        "event_query": (cuda.Event, "query", _event_query),
        "elapsed": (cuda.Event, "elapsed_time", _event_elapsed),
        "record": (cuda.Event, "record", _record),
        "wait": (cuda.Event, "wait", _wait_event),
        "gc_collect": (gc, "collect", _collect),
        "gc_enable": (gc, "enable", _switch_collector_on),
        "gc_disable": (gc, "disable", _switch_collector_off),
        "start_thread": (threading.Thread, "start", _start_thread),
        "empty_cache": (C, "_cuda_emptyCache", _empty_cache),
        "host_empty_cache": (C, "_host_emptyCache", _host_empty_cache),
        "manual_seed": (torch, "manual_seed", _manual_seed),
        "cuda_manual_seed": (cuda, "manual_seed", _cuda_manual_seed),
        "cuda_manual_seed_all": (cuda, "manual_seed_all", _cuda_manual_seed_all),
        "get_rng_state": (cuda, "get_rng_state", in_the_place_of(cuda.get_rng_state, _read_rng_state)),
        "set_rng_state": (cuda, "set_rng_state", in_the_place_of(cuda.set_rng_state, _write_rng_state)),
        "isnan": (math, "isnan", _predicate("isnan", "is NaN")),
        "isfinite": (math, "isfinite", _predicate("isfinite", "is finite")),
        "isinf": (math, "isinf", _predicate("isinf", "is infinite")),
    }


def _accelerator_synchronize(*args: Any) -> Any:
    return _wait_for_device("accelerator_synchronize", *args)
