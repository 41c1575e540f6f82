"""Catches host reads and waits that bypass torch's dispatcher, while a capture runs.

A dispatch mode sees operations. It does not see ``torch.cuda.synchronize()``, an event's wait, or
the number that ``.item()`` gives to Python. While at least one capture is running, these names are
replaced by functions that check whether *this thread* is capturing, and otherwise call the original.
The originals are restored when the last capture ends, so a program that captures nothing is not affected. The
replacements are in tensor_reads.py, waits.py, optimizers.py, draws.py and deferred_calls.py.

Invariant: ``stock(name)`` is always torch's own function, whatever is installed.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches import deferred_calls, draws, numbers_after_capture, optimizers, tensor_reads, waits
from gfxgraph.capture.patches.draws import wait_for_begun
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, keep_from_dynamo
from gfxgraph.capture.record import collectives, fused_recording, seeds
from gfxgraph.capture.record.overloads import identity
from gfxgraph.capture.undo import BASELINE, Undo
from gfxgraph.process import process

holders: dict[int, capture_lock.Turn] = {}
"""Running captures by identity, with their turns. A dict, so that entering or leaving twice does no harm.

While it is empty no thread is in torch's ``capture_begin``, which registers its graph without the GIL and without a
lock: a graph freed meanwhile ends the process ("The graph should be registered to the state").
"""
_names = Undo()
"""Puts back what is replaced, and the collector."""
_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: such a class, as torch's generators, is changed in its dict."""
_collects = False
_guards_draws = False
_graveyard: list[object] = []
_told_of: dict[int, object] = {}
"""By ``identity``, replacements of which Dynamo and TorchScript need not be told again: most serve all captures."""


def stock(name: str) -> Any:
    """torch's own function under a short name; see ``_targets``."""
    return STOCK[name]


def _in_its_place(name: str) -> object:
    """What stands now where torch's own function is."""
    later = tensor_reads.memory_targets(stock) | tensor_reads.number_targets() | collectives.targets()
    owner, attribute, _ = (_targets() | later | optimizers.targets())[name]
    found: object = getattr(owner, attribute)
    return found


STOCK.find = _in_its_place


def original_of(func: Any) -> Any:
    """torch's own function for ``func``, if ``func`` is a replacement; else ``func``."""
    for name, (_, _, replacement) in _targets().items():
        if replacement is func:
            return stock(name)
    return func


def enter(holder: object, where: object, draws: bool = True) -> None:
    """Begin a capture in this thread; wait until those of other threads are over.

    Args:
        where: the line that begins it, for reports.
        draws: whether it uses the default generator. Other threads cannot draw until ``turns.let_draw`` in any case:
            torch registers that generator as it begins.
    """
    global _collects
    deferred_calls.prepare(torch.cuda.current_device())
    turn = capture_lock.Turn(where=where)
    with capture_lock.lock:
        holders[id(holder)] = turn  # noted before it is taken: an interrupt may strike at any line
    capture_lock.take(turn)
    with capture_lock.lock:
        if not _names:
            _collects = gc.isenabled()
            _names.note(STOCK.clear)
            _names.note(_collect_again)
            # A graph freed by the collector inside a capture invalidates that capture (torch since 2.9).
            gc.disable()
            _install()
    if _guards_draws:
        wait_for_begun(time.sleep, at_least_once=draws)


@contextmanager
def entered(holder: object, where: object, draws: bool) -> Iterator[None]:
    """A block that is a capture of this thread; see ``enter``."""
    undo = Undo([functools.partial(leave, holder)])
    try:
        enter(holder, where, draws)
        yield
    finally:
        undo.take_back()


def leave(holder: object) -> None:
    """End a capture of any thread. May be called more than once."""
    _leave([id(holder)])


def holders_here() -> frozenset[int]:
    """The holders of this thread's captures."""
    me = threading.get_ident()
    return frozenset(holder for holder, turn in list(holders.items()) if turn.thread == me)


def leave_others(known: frozenset[int]) -> None:
    """End this thread's captures, except those in ``known``, and what an interrupt has left of an end."""
    _leave(holders_here() - known)


BASELINE.append((holders_here, leave_others))


def _leave(gone: Iterable[int]) -> None:
    with capture_lock.lock:
        for holder in gone:
            if holder in holders:
                capture_lock.give(holders[holder])
                holders.pop(holder, None)
        if holders or not _names:
            return
        _names.take_back()
        dead, _graveyard[:] = list(_graveyard), []
        numbers_after_capture.settle()
    if dead:
        _bury(dead)


def _bury(dead: list[object]) -> None:
    """Free graphs while no other thread can begin a capture; if one has begun, when its capture ends."""
    with capture_lock.held_unless(lambda: keep_until_captures_end(tuple(dead))) as is_time, capture_lock.unnoticed():
        if is_time:
            dead.clear()


def end_in_child() -> None:
    """In a forked child: put back what the captures had replaced, and destroy no graph: they are the parent's."""
    for each in _graveyard:
        process.never_destroy(each)
    _graveyard.clear()
    capture_lock.forget_all()
    _leave(list(holders))


def is_capturing_anywhere() -> bool:
    """True while any thread captures: some calls, such as event queries, could break that capture."""
    return bool(holders)


def keep_until_captures_end(held: object) -> bool:
    """If a capture is running, hold graphs that are being dropped until it ends; False if none is."""
    with capture_lock.lock:
        if holders:
            _graveyard.append(held)
        return bool(holders)


@functools.cache
def own_class(base: type) -> type:
    """The class, over torch's, of graphs that no program holds: those of segments and pools."""

    class OwnGraph(base):  # type: ignore[misc]
        def __del__(self) -> None:
            above = getattr(super(), "__del__", None)
            if above is not None:
                above()
            if holders:  # the destructor follows at once: a call in between could let another thread begin
                keep_until_captures_end(self)

    return OwnGraph


def _install() -> None:
    global _guards_draws
    _put_named(_targets())
    if fused_recording.has_compiled_nothing():
        _put_named(tensor_reads.number_targets())
    if optimizers.are_used():
        _put_named(optimizers.targets())
    _put_named(collectives.targets())
    for target in deferred_calls.targets(keep_until_captures_end):
        _put(*target)
    _guards_draws = False
    if threading.active_count() > 1:
        _guard_draws()


def _guard_draws() -> None:
    """Make other threads, now that there are some, wait before they draw."""
    global _guards_draws
    with capture_lock.lock:
        if _names and not _guards_draws:  # the last capture may have ended meanwhile
            _guards_draws = True
            for target in draws.targets():
                _put(*target)


def _put_named(targets: Targets) -> None:
    """Like ``_put``, but keep torch's originals for ``stock``."""
    for name, (owner, attribute, replacement) in targets.items():
        original = getattr(owner, attribute, None)
        if original is not None:
            STOCK[name] = original
            _put(owner, attribute, replacement, is_lasting=True)


def _put(owner: Any, attribute: str, replacement: Any, is_lasting: bool = False) -> None:
    own = vars(owner).get(attribute)
    if identity(replacement) not in _told_of and (_tell_of(own, replacement) or is_lasting):
        _told_of[identity(replacement)] = replacement
    _names.note(functools.partial(_put_back, owner, attribute, own))
    _set(owner, attribute, replacement)


def _put_back(owner: Any, attribute: str, own: Any) -> None:
    if own is not None:
        _set(owner, attribute, own)
    elif attribute in vars(owner):
        delattr(owner, attribute)  # it was inherited


def _collect_again() -> None:
    if _collects:
        gc.enable()


def _set(owner: object, attribute: str, value: object) -> None:
    if isinstance(owner, type) and owner.__flags__ & _IMMUTABLE:
        gc.get_referents(owner.__dict__)[0][attribute] = value  # type: ignore[index]
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # calls look the method up anew
    else:
        setattr(owner, attribute, value)


def _tell_of(original: object, replacement: object) -> bool:
    """Make Dynamo skip a replacement, and make it the original to TorchScript, which knows functions as objects.

    Returns:
        True if TorchScript knows it: by its address, so it must stay.
    """
    keep_from_dynamo(replacement)
    operator = None if original is None else torch.jit._builtins._find_builtin(original)
    if operator is not None:
        torch.jit._builtins._register_builtin(replacement, operator)
    return operator is not None


def _collect(*args: Any, **kwargs: Any) -> int:
    # It may find and end a dropped capture. What it frees is deferred, or freed in relaxed mode.
    with capture_lock.unnoticed() if capture_lock.is_held_here() else nullcontext():
        return stock("gc_collect")(*args, **kwargs)  # type: ignore[no-any-return]


def _switch_collector_on() -> None:
    global _collects
    _collects = True


def _switch_collector_off() -> None:
    global _collects
    _collects = False


def _start_thread(self: threading.Thread) -> None:
    for session in process.sessions():
        session.make_room_for_threads()
    capturing = process.active_session()
    if capturing is not None:
        capturing.values.share()
    _guard_draws()
    stock("start_thread")(self)  # the original: another thread may have ended the last capture


def watch_works() -> None:
    """A capture launches a collective: patch what waits for it, unless that is done."""
    with capture_lock.lock:
        if holders and "work.wait" not in STOCK:
            _put_named(collectives.targets())


def _optimizer_init(self: object, *args: object, **kwargs: object) -> None:
    with capture_lock.lock:
        if holders and "optimizer_step_code" not in STOCK:
            _put_named(optimizers.targets())
    optimizers.made_here(self)
    stock("optimizer_init")(self, *args, **kwargs)


def watch_host_memory() -> None:
    """A capture has its first host tensor with device values: patch the functions that reach its memory."""
    with capture_lock.lock:
        if holders and "memory.data_ptr" not in STOCK:
            _put_named(tensor_reads.memory_targets(stock))


def _targets() -> Targets:
    """Short name -> (owner, attribute, replacement while a capture runs)."""
    cuda = torch.cuda
    found = {**_targets_of(cuda.Stream, cuda.Event, cuda.get_rng_state, cuda.set_rng_state)}
    found["generator"] = torch, "Generator", seeds.Generator
    for name, attribute, stand_in in (
        ("linear", "linear", fused_recording.linear),
        ("attention", "scaled_dot_product_attention", fused_recording.attention),
    ):
        owner = fused_recording.owner_of(attribute)
        if owner is not None:
            found[name] = owner, attribute, stand_in
    return found


@functools.lru_cache(maxsize=2)
def _targets_of(stream: Any, event: Any, get_rng_state: Any, set_rng_state: Any) -> Targets:
    """Cached per set of torch classes, which a simulated device replaces."""
    return {
        **tensor_reads.targets(),
        **waits.targets(),
        "optimizer_init": (torch.optim.Optimizer, "__init__", _optimizer_init),
        "gc_collect": (gc, "collect", _collect),
        "gc_enable": (gc, "enable", _switch_collector_on),
        "gc_disable": (gc, "disable", _switch_collector_off),
        "start_thread": (threading.Thread, "start", _start_thread),
    }
