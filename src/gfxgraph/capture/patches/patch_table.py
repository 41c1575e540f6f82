"""The table of what is replaced while a capture runs, putting it there and back, and the captures underway.

A dispatch mode sees operations. It does not see ``torch.cuda.synchronize()``, an event's wait, or the number that
``.item()`` gives to Python. While at least one capture is running, these names stand for functions that check whether
*this thread* is capturing, and otherwise call the original. The originals are back when the last capture has ended,
so a program that captures nothing is not affected; a graph that dies is kept until then.

Invariant: ``STOCK[name]`` is always torch's own function, whatever is installed.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.capture_lock import captures, keep_until_captures_end
from gfxgraph.capture.patches import deferred_calls, optimizers, tensor_reads
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, keep_from_dynamo
from gfxgraph.capture.record import overloads, random_generators, streams
from gfxgraph.capture.record.overloads import identity
from gfxgraph.capture.undo import BASELINE, Undo
from gfxgraph.process import bridge, process

INSTALLED = Undo()
"""Puts back what is replaced, and the collector; empty while no capture runs."""
_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: such a class, as torch's generators, is changed in its dict."""
_collects = False
_installed: set[str] = set()
_hidden: dict[int, object] = {}
"""By ``identity``, the replacements: Dynamo and TorchScript are told of each once, and know it by its address."""
_originals: dict[int, object] = {}
"""By ``identity`` of what stands now: what stood there."""


class Patches(NamedTuple):
    """Functions that are replaced together."""

    why: str
    targets: Callable[[], Targets]
    """Owner, attribute and replacement by short name, asked anew for each capture."""
    is_due: Callable[[], bool] = lambda: True
    """Whether a capture needs them from its beginning; else ``install_group`` installs them."""


_nothing_compiled = overloads.has_compiled_nothing  # Dynamo recompiles code that is guarded on such a function


def _has_threads() -> bool:
    return threading.active_count() > 1


GROUPS = {
    "reads": Patches("a value that Python reads is a constant of the graph", tensor_reads.reads),
    "waits": Patches("a wait ends a capture", streams.wait_targets),
    "states": Patches("no mode sees seeds and states of generators", random_generators.targets),
    "threads": Patches("a collector that runs, or a thread that waits, ends a capture", lambda: _OWN),
    "kernels": Patches("loading or unloading a module ends a capture", deferred_calls.targets),
    "whole": Patches("one entry of the tape costs less than five", overloads.whole_targets, _nothing_compiled),
    "min and max": Patches(
        "gradients are clipped by a number", lambda: tensor_reads.NUMBER_FUNCTIONS, _nothing_compiled
    ),
    "optimizers": Patches("a replay would repeat a first step", optimizers.targets),
    "compiled": Patches("compiled code reads what no mode sees", overloads.compiled_targets, overloads.has_compiled),
    "collectives": Patches("a split ends what a wait waits for", streams.targets, streams.are_used),
    "draws": Patches("the generator is the capture's alone", random_generators.drawing_targets, _has_threads),
    "memory": Patches("host memory that holds values of the device", lambda: tensor_reads.MEMORY, lambda: False),
}


def install_groups() -> None:
    """A capture begins, and no other runs."""
    global _collects
    _collects = gc.isenabled()
    for clear in (_installed.clear, _originals.clear, _restore_collector):
        INSTALLED.note(clear)
    torch_names._device_constructors()  # torch makes this table once: not while it would hold ours
    # A graph freed by the collector inside a capture invalidates that capture (torch since 2.9).
    gc.disable()
    for name, group in GROUPS.items():
        if group.is_due():
            install_group(name)


def install_group(name: str) -> None:
    """A capture needs this group, too, from now on."""
    with capture_lock.lock:
        if not INSTALLED or name in _installed:  # the last capture may have ended meanwhile
            return
        _installed.add(name)
        for short, (owner, attribute, replacement) in GROUPS[name].targets().items():
            original = getattr(owner, attribute, None)
            if original is not None or attribute == "__del__":
                STOCK[short] = _originals[identity(replacement)] = original
                _install_one(owner, attribute, replacement)


STOCK.install_group = install_group


def install_until_disabled() -> None:
    """What stands for torch's and Python's own while no capture runs, too."""
    event, kind = torch.cuda.Event, torch.optim.Optimizer
    bridge.replace(kind, "__init__", optimizers.noted(kind.__init__))
    bridge.replace(event, "__new__", staticmethod(streams.event_new(event.__new__)))
    bridge.replace(torch.utils, "weakref", tensor_reads.references_of_others())
    bridge.replace(json.JSONEncoder, "iterencode", tensor_reads.iterencode(json.JSONEncoder.iterencode))


def original_of(func: object) -> Any:
    """torch's own function for ``func``, if ``func`` is a replacement; else ``func``."""
    return _originals.get(identity(func), func)


def _install_one(owner: object, attribute: str, replacement: object) -> None:
    own = vars(owner).get(attribute)
    number = identity(replacement)
    if number not in _hidden:
        _hide_from_dynamo(own, replacement)
        _hidden[number] = replacement
    INSTALLED.note(functools.partial(_restore, owner, attribute, own))
    _set(owner, attribute, replacement)


def _restore(owner: object, attribute: str, own: object) -> None:
    if own is not None:
        _set(owner, attribute, own)
    elif attribute in vars(owner):
        delattr(owner, attribute)  # it was inherited


def _set(owner: object, attribute: str, value: object) -> None:
    if isinstance(owner, type) and owner.__flags__ & _IMMUTABLE:
        gc.get_referents(owner.__dict__)[0][attribute] = value  # type: ignore[index]
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # calls look the method up anew
    else:
        setattr(owner, attribute, value)


def _hide_from_dynamo(original: object, replacement: object) -> None:
    """Make Dynamo skip a replacement, and make it the original to TorchScript, which knows functions as objects."""
    keep_from_dynamo(replacement)
    operator = None if original is None else torch_names._find_builtin(original)
    if operator is not None:
        torch_names._register_builtin(replacement, operator)


# -- the collector, and threads that begin --------------------------------------------------------------


def _restore_collector() -> None:
    if _collects:
        gc.enable()


def _collect(*args: object, **kwargs: object) -> int:
    # It may find and end a dropped capture. What it frees is deferred, or freed in relaxed mode.
    with capture_lock.relaxed() if capture_lock.is_owned_here() else nullcontext():
        return STOCK["gc_collect"](*args, **kwargs)  # type: ignore[no-any-return]


def _switch_collector(is_on: bool) -> None:
    global _collects
    _collects = is_on


def _start_thread(self: threading.Thread) -> None:
    for session in process.sessions():
        session.make_room_for_threads()
    capturing = process.active_session()
    if capturing is not None:
        capturing.values.pin_shared()
    install_group("draws")
    STOCK["start_thread"](self)  # the original: another thread may have ended the last capture


_OWN: Targets = {
    "gc_collect": (gc, "collect", _collect),
    "gc_enable": (gc, "enable", functools.partial(_switch_collector, True)),
    "gc_disable": (gc, "disable", functools.partial(_switch_collector, False)),
    "start_thread": (threading.Thread, "start", _start_thread),
}


# -- the captures underway in this process, of all threads ---------------------------------------------------


_DRAWN_WITHIN_S = 0.001
"""A draw that another thread has begun before its function was replaced has asked for its numbers by then."""


def begin_capture(holder: object) -> None:
    """Begin a capture in this thread; wait until those of other threads are over."""
    deferred_calls.prepare_device(torch.cuda.current_device())
    owner = capture_lock.Owner()
    with capture_lock.lock:
        captures[id(holder)] = owner  # noted before it is taken: an interrupt may strike at any line
    capture_lock.acquire(owner)
    with capture_lock.lock:
        if not INSTALLED:
            install_groups()
    if "draws" in _installed and capture_lock.do_others_run():
        time.sleep(_DRAWN_WITHIN_S)


@contextmanager
def capturing(holder: object) -> Iterator[None]:
    """A block that is a capture of this thread; see ``begin_capture``."""
    undo = Undo([functools.partial(end_capture, holder)])
    try:
        begin_capture(holder)
        yield
    finally:
        undo.undo_all()


def end_capture(holder: object) -> None:
    """End a capture of any thread. May be called more than once."""
    _end_captures([id(holder)])


def captures_here() -> frozenset[int]:
    """This thread's captures, by identity of their captures."""
    me = threading.get_ident()
    return frozenset(holder for holder, owner in list(captures.items()) if owner.thread == me)


def end_other_captures(known: frozenset[int]) -> None:
    """End this thread's captures, except those in ``known``, and what an interrupt has left of an end."""
    _end_captures(captures_here() - known)


BASELINE.append((captures_here, end_other_captures))


def _end_captures(gone: Iterable[int]) -> None:
    with capture_lock.lock:
        for holder in gone:
            if holder in captures:
                capture_lock.release(captures[holder])
                captures.pop(holder, None)
        if captures or not INSTALLED:
            return
        INSTALLED.undo_all()
        dead = capture_lock.take_deferred_frees()
    if dead:
        _free(dead)


def _free(dead: list[object]) -> None:
    """Free graphs while no other thread can begin a capture; if one has begun, when its capture ends."""
    with capture_lock.owned_to_destroy(dead) as is_time, capture_lock.relaxed():
        if is_time:
            dead.clear()


def end_captures_in_child() -> None:
    """In a forked child: put back what the captures had replaced, and destroy no graph: they are the parent's."""
    for each in capture_lock.take_deferred_frees():
        process.never_destroy(each)
    capture_lock.release_all()
    _end_captures(list(captures))


@functools.cache
def own_graph_class(base: type) -> type:
    """The class, over torch's, of graphs that no program holds: those of segments and pools."""

    class OwnGraph(base):  # type: ignore[misc]
        def __del__(self) -> None:
            above = getattr(super(), "__del__", None)
            if above is not None:
                above()
            if captures:  # the destructor follows at once: a call in between could let another thread begin
                keep_until_captures_end(self)

    return OwnGraph
