"""How a change is undone: one stack for each capture, a baseline for each call, one repair.

Problem: a failing call, or an interrupt, leaves half done what a capture changes for its thread and for the
process: torch's names, the stack of modes, autograd's threads, the current stream, its turn among other threads'
captures.

Idea: a change is noted on a stack *before* it is made. ``Undo.undo_all`` makes the noted calls, the last first; a
call may find nothing to undo, and may be made again. An interrupt that strikes meanwhile is raised when all is
undone. A call of ours also compares: what ``BASELINE`` lists is read as the call begins, and put back if an error
leaves it.

Promise: one KeyboardInterrupt, or one error of a signal's handler, wherever it strikes, never hangs and never
leaves a wrong result. What it has left half done (it may strike in the first line of a clean-up) is repaired when
the thread's next capture begins, at ``disable()`` and by ``health_check()``: ``repair``.

So a block of ours is C++'s own where torch has one (``_InferenceMode``): left by Python, an interrupt in
its exit would end it when the traceback is freed, after everything else.

Source: tests/property/faults_mixed.py; docs/decisions/capture.md.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.core import locks
from gfxgraph.errors import GfxGraphError, MissingTorchName
from gfxgraph.process import process
from gfxgraph.types import OUR_MODULES, OUR_PACKAGES
from gfxgraph.watching.holders import locals_of


class Undo:
    """A stack of calls, each of which undoes one change. Note the call, then make the change."""

    def __init__(self, calls: Iterable[Callable[[], object]] = ()) -> None:
        self._calls = [*calls]
        self.is_running = False

    def __bool__(self) -> bool:
        return bool(self._calls)

    def note(self, *calls: Callable[[], object]) -> None:
        """Have ``calls`` made, the last first, before all that was noted earlier."""
        self._calls += calls

    def note_last(self, call: Callable[[], object]) -> None:
        """Have ``call`` made after all others."""
        self._calls.insert(0, call)

    def undo_all(self) -> list[Exception]:
        """Make the calls, the last first; each leaves the stack when it is done. Called from one of them, do
        nothing.

        Returns:
            The errors of calls that failed. An interrupt is raised when all calls are made, its own once more.
        """
        problems: list[Exception] = []
        interrupt: BaseException | None = None
        if self.is_running:
            return problems
        self.is_running = True
        try:
            while self._calls:
                try:
                    self._calls[-1]()
                except BaseException as error:  # noqa: BLE001  # returned to the caller, or raised below
                    if is_interrupt(error) and interrupt is None:
                        interrupt = error
                        continue
                    if isinstance(error, Exception):
                        problems.append(error)
                self._calls.pop()
        finally:
            self.is_running = False
        try:
            if interrupt is not None:
                raise interrupt
        finally:
            del interrupt  # its traceback holds this frame: a cycle that would keep locks, and graphs, alive
        return problems


def _wait_again(before: int) -> None:
    # Only ever lower it: an outer capture that refused waits may be over by now.
    if torch.cuda.get_sync_debug_mode() > before:
        set_sync_debug_mode(before)


_IGNORED = ".*(Graph is empty|Synchronization debug mode is a prototype)"


def set_sync_debug_mode(mode: int) -> None:
    """Whether torch refuses calls that wait for the device: 2 does."""
    _let_torch_warn()
    torch.cuda.set_sync_debug_mode(mode)


@functools.cache
def _let_torch_warn() -> None:
    ignore_graph_warnings(True)  # it does so once a process
    torch.cuda.set_sync_debug_mode(torch.cuda.get_sync_debug_mode())
    ignore_graph_warnings(False)


def ignore_graph_warnings(is_on: bool) -> None:
    """Whether not to show what torch says of its debug mode, and of empty graphs, as those of splits may be.

    ``catch_warnings`` puts all filters back; an interrupt in its exit would leave one for good.
    """
    if is_on:
        warnings.filterwarnings("ignore", _IGNORED)
    else:
        warnings.filters[:] = [each for each in warnings.filters if getattr(each[1], "pattern", "") != _IGNORED]  # type: ignore[index]


# -- torch's stacks of modes ------------------------------------------------------------------------------
#
# torch keeps a stack of dispatch modes for each thread, and one of modes that see calls of its functions; blocks
# leave them in reverse order. Ours do not: a capture may begin under one mode and end under another. So this file
# takes them out wherever they are.
#
# Beside the stack torch keeps process-wide flags that say "some mode is active". They choose how code is compiled,
# and a recorder leaves that as it is (``ignore_compile_internals``): it is put on the stack without setting them.
#
# Source: torch/utils/_python_dispatch.py of torch 2.11 to 2.15, TorchDispatchMode.__enter__ and __exit__.

_FLAGS: dict[str, Callable[[Any], bool]] = {
    "_is_in_torch_dispatch_mode": lambda mode: True,
    "_is_in_non_infra_torch_dispatch_mode": lambda mode: not mode.is_infra_mode(),
    "_is_in_any_mode_without_ignore_compile_internals": lambda mode: not mode.ignore_compile_internals(),
}
"""torch's flags, and which modes set them."""


def remove_finished_modes() -> None:
    """Take the modes of finished sessions off the stacks, wherever they are.

    Modes pushed after them stay. One whose session ended while it handled an operation is off
    the stack at that moment and comes back when the operation returns; it stays on the list, passes
    everything through, and is removed by the next call.
    """
    over = process.leftover_modes()
    for there, arrange in ((dispatch_modes(), _set_dispatch), (_function_modes(), _set_functions)) if over else ():
        staying = [mode for mode in there if mode not in over]
        if len(staying) < len(there):
            arrange(staying)
            over[:] = [mode for mode in over if mode not in there]


def restore_dispatch_modes(there: list[object]) -> None:
    """Leave every mode that has come since, and bring back those that have gone; one of ours that went is over.

    No mode's own exit is run: one that was struck inside would raise, or leave another one's place empty.

    Args:
        there: what ``dispatch_modes`` gave.
    """
    now = dispatch_modes()
    there = [
        mode
        for mode in there
        if any(mode is each for each in now) or not type(mode).__module__.startswith(OUR_MODULES)
    ]
    if list(map(id, now)) != list(map(id, there)):
        _set_dispatch(there)
    restore_mode_flags()


def restore_mode_flags() -> None:
    """Set torch's flags by this thread's modes, where an interrupt has struck one that was coming or going."""
    others = [mode for mode in dispatch_modes() if not type(mode).__module__.startswith("gfxgraph.capture")]
    for name, sets in _FLAGS.items():
        setattr(*torch_names.place(name), any(map(sets, others)))
    if torch_names.set_is_in_mode_without_ignore_compile_internals is not None:  # C++ has it, too
        is_compiled = torch_names._is_in_any_mode_without_ignore_compile_internals
        torch_names.set_is_in_mode_without_ignore_compile_internals(is_compiled)


def dispatch_modes() -> list[Any]:
    """The dispatch modes on this thread's stack, the lowest first."""
    return [torch_names._get_dispatch_stack_at(i) for i in range(torch_names._len_torch_dispatch_stack())]


def _set_dispatch(modes: list[object]) -> None:
    while torch_names._len_torch_dispatch_stack():
        torch_names._pop_mode()
    for mode in modes:
        torch_names._push_mode(mode)


def push_below(mode: object) -> None:
    """Enter a mode of torch's functions below all others: each ``with`` block still pops the mode it pushed."""
    _set_functions([mode, *_function_modes()])


def remove_mode(mode: object) -> None:
    """Leave a mode, wherever it is. One that torch is calling comes back later, for ``remove_finished_modes``."""
    process.leftover_modes().append(mode)
    remove_finished_modes()


def is_reached(mode: object) -> bool:
    """Whether calls made now reach the mode: in its own handler none does."""
    return any(each is mode for each in _function_modes())


def _function_modes() -> list[object]:
    """The modes of torch's functions, the lowest first."""
    return [torch_names._get_function_stack_at(i) for i in range(torch_names._len_torch_function_stack())]


def _set_functions(modes: list[object]) -> None:
    try:
        _replace_function_modes(modes)
    except BaseException:  # an interrupt half-way must not lose the program's own modes
        _replace_function_modes(modes)
        raise


def _replace_function_modes(modes: list[object]) -> None:
    while torch_names._len_torch_function_stack():
        torch_names._pop_torch_function_stack()
    for each in modes:
        torch_names._push_on_torch_function_stack(each)


# -- the baseline of a call, and the repair ---------------------------------------------------------------


BASELINE: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (lambda: torch.cuda.current_stream(), lambda stream: torch.cuda.set_stream(stream)),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch_names._is_fwd_grad_enabled, torch_names._set_fwd_grad_enabled),
    # Only switch on: the capture that switched it off may be over by now.
    (torch.autograd.is_multithreading_enabled, lambda was: was and torch.autograd.set_multithreading_enabled(True)),
    (lambda: torch.cuda.get_sync_debug_mode(), _wait_again),
    (dispatch_modes, restore_dispatch_modes),
]
"""What is read as a call of ours begins, with how it is put back; other files of this room add to it."""


class Baseline(Undo):
    """This thread's state now, to be put back by ``undo_all``: captures begun since are ended first."""

    def __init__(self) -> None:
        super().__init__()
        for read, put_back in BASELINE:
            self.note(functools.partial(put_back, read()))
        self.note(functools.partial(_end_captures, list(process.sessions())))


def _end_captures(known: list[object]) -> None:
    for session in reversed(process.sessions()):
        if session not in known:
            session.abort(None)


def restoring_state(call: Callable[..., object]) -> Callable[..., Any]:
    """Wrap a call so that it restores its thread's state when an error or an interrupt leaves it."""

    @functools.wraps(call)
    def guarded(*args: object, **kwargs: object) -> Any:
        if is_compiling() or not torch.cuda.is_initialized() or torch_names.why_off("capture"):
            return call(*args, **kwargs)
        before = Baseline()
        try:
            return call(*args, **kwargs)
        except BaseException:
            for problem in before.undo_all():
                process.log.error("while leaving a failed call: %s", str(problem))
            raise

    return guarded


def repair(everything: bool = True) -> None:
    """Do what an interrupt has left undone in this thread.

    Args:
        everything: end every capture of this thread; else only those that have failed or whose block was left.
    """
    for session in reversed(process.sessions()):
        if everything or session.is_abandoned:
            session.abort(None)
    ignore_graph_warnings(False)
    remove_finished_modes()
    restore_mode_flags()
    if not process.sessions():
        capture_lock.release_own()


def release_locks_here() -> None:
    """Release those that this thread holds, where no call of ours is under way: an interrupt has left them."""
    for lock in list(locks.every):
        while lock._is_owned():
            lock.release()


process.repairs += [repair, release_locks_here]


def is_interrupt(error: BaseException) -> bool:
    """Whether it came between two instructions, from a signal's handler or a debugger, whatever its type.

    No call has failed then, so nothing may fall back because of it. Both are functions that are given a frame.
    """
    if not isinstance(error, Exception):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if any(isinstance(each, FrameType) for each in _arguments(frame)):
            return True
    return False


def is_internal_error(error: Exception) -> bool:
    """Whether an error that left our own lines, or the compiler below them, is none of the program's: no frame of its
    code is on the way, nor one of torch's that its code would call. What we raise for the program to see is not ours.
    """
    if isinstance(error, GfxGraphError) and not isinstance(error, MissingTorchName):
        return False
    traceback = error.__traceback__
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        is_called = module.startswith(torch_names.CALLED_BY_PROGRAMS)
        if is_called or module.partition(".")[0] not in {"torch", *OUR_PACKAGES, *sys.stdlib_module_names}:
            return False
        traceback = traceback.tb_next
    return True


def _arguments(frame: FrameType) -> list[object]:
    """The positional arguments that a frame still has."""
    code = frame.f_code
    values = locals_of(frame) if code.co_argcount or code.co_flags & inspect.CO_VARARGS else {}
    given = [values[name] for name in code.co_varnames[: code.co_argcount] if name in values]
    if code.co_flags & inspect.CO_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += rest if isinstance(rest, tuple) else ()
    return given
