"""Process-wide and thread-wide state that a capture changes, and how it is restored.

Problem: an interrupt or a failing call may strike between any two lines, including those of a clean-up. What a
capture has changed for the whole process (torch's names, the collector, the stack of modes, autograd's threads)
must not stay changed because of that.

Idea: every change is noted under its holder's name *before* it is made, and restoring something that was not changed
does nothing. So a clean-up is a list of steps, each of which may run again. ``settle`` runs them all and repeats a
step that was interrupted.

Invariant: nothing here counts. A counter that an interrupt leaves one too high would stay wrong for good.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.compiler import is_compiling

from gfxgraph.capture import capture_lock
from gfxgraph.capture.dispatch_state import DispatchState, enter_for_good
from gfxgraph.capture.half_entered import end_half_entered, is_interrupt
from gfxgraph.capture.patches import intercept
from gfxgraph.capture.record import autocasting, random_generators
from gfxgraph.capture.record.modes import Standing, enter_mode, forget_mode, leave_modes
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

_HAS_STALE_STREAMS = hasattr(torch._C, "_set_override_stale_capture_stream")
"""torch 2.13 refuses a captured backward to a leaf whose gradients a warm-up's loss, still alive, ties to the default
stream, unless told to use the capture's."""
_overriding: dict[int, bool] = {}
"""Captures for which torch is told so, with what it had been told before the first: a switch of the whole process."""
TRIES = 2
"""How often to run a step that was interrupted or failed."""


def settle(steps: Iterable[Callable[[], object]]) -> list[BaseException]:
    """Run every step, even if some are interrupted or fail; such a step is run once more.

    Blocks that an interrupt left half entered are ended first: they would restore their own state later.

    Returns:
        The errors of steps that failed twice. An interrupt is deferred until all steps have run, and raised then.
    """
    problems: list[BaseException] = []
    interrupt: BaseException | None = None
    struck = sys.exception()
    for step in (lambda: end_half_entered(struck), *steps):
        for attempt in range(TRIES):
            try:
                step()
                break
            except BaseException as error:  # noqa: BLE001  # returned to the caller, or raised below
                end_half_entered(error)
                if is_interrupt(error):
                    interrupt = error
                elif attempt:
                    problems.append(error)
    if interrupt is not None:
        raise interrupt
    return problems


class Holdings:
    """The state that one capture has changed."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._multithreading: bool | None = None
        self._debug_mode: int | None = None
        self._is_recording = False

    def take_process(self, where: object) -> None:
        """Call before the first segment opens: garbage collected inside it could destroy a graph."""
        intercept.enter(self, where, draws=not random_generators.is_drawless())

    def take_thread(self) -> None:
        """Call once the first segment is open: start recording this thread."""
        self._multithreading = torch.autograd.is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        if _HAS_STALE_STREAMS and self._recorder.session.policy is not OnUnsafe.RAISE:
            with capture_lock.lock:
                _overriding[id(self)] = next(iter(_overriding.values()), torch._C._override_stale_capture_stream())
                torch._C._set_override_stale_capture_stream(True)
        autocasting.follow(self)
        enter_mode(self._recorder)
        self._is_recording = True

    def give_back(self) -> list[Callable[[], None]]:
        """The steps that restore this thread's state; settle them before ``give_turn``."""
        return [
            self._stop_recording,
            self.allow_waits,
            lambda: autocasting.leave(self),
            self._free_autograd,
        ]

    def give_turn(self) -> None:
        """Let other threads capture, collect garbage and draw; the last step that touches shared state."""
        intercept.leave(self)

    def _stop_recording(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        recorder.paused = True
        over = process.leftover_modes()
        if recorder not in over:
            over.append(recorder)
        leave_modes()
        if not self._is_recording:
            forget_mode(recorder)  # it may not have reached torch's stack yet
        self._recorder = None

    def _free_autograd(self) -> None:
        if self._multithreading is not None:
            torch._C._set_multithreading_enabled(self._multithreading)
            self._multithreading = None
        with capture_lock.lock:
            if list(_overriding) == [id(self)]:  # the last one
                torch._C._set_override_stale_capture_stream(_overriding[id(self)])
            _overriding.pop(id(self), None)

    def refuse_waits(self) -> None:
        """Make torch raise at hidden waits before they reach the driver."""
        if self._debug_mode is None:
            self._debug_mode = torch.cuda.get_sync_debug_mode()
        _set_debug_mode(2)

    def allow_waits(self) -> None:
        """Make torch treat waits as before the capture."""
        if self._debug_mode is not None:
            _set_debug_mode(self._debug_mode)
            self._debug_mode = None


def _set_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch._C._cuda_set_sync_debug_mode(mode)


def _end_in_child() -> None:
    """In a forked child: end what its thread's captures, which are the parent's, have changed."""
    begun: list[Any] = process.sessions()
    settle([*(step for session in reversed(begun) for step in session.holdings.give_back()), intercept.end_in_child])


process.in_child.append(_end_in_child)


class ThreadState:
    """The thread's state at the start of one of our calls, to be restored if the call fails."""

    def __init__(self) -> None:
        self._stream = torch.cuda.current_stream()
        self._modes = Standing()
        self._sessions = list(process.sessions())
        self._holders = intercept.holders_here()
        self._debug_mode = torch.cuda.get_sync_debug_mode()
        self._is_drawless = random_generators.is_drawless()
        self._autograd = _Autograd()
        self._dispatch = DispatchState()

    def put_back(self) -> None:
        """Restore the state: end whatever an interrupt has left behind."""
        begun = [session for session in process.sessions() if session not in self._sessions]
        settle(
            [
                *(functools.partial(session.abort, None) for session in reversed(begun)),
                lambda: intercept.leave_others(self._holders),
                leave_modes,
                self._modes.put_back,
                lambda: random_generators.be_drawless(self._is_drawless),
                lambda: random_generators.end_loans(self._stream.device_index),
                self._allow_waits,
                self._autograd.put_back,
                self._dispatch.put_back,
                lambda: torch.cuda.set_stream(self._stream),
            ]
        )

    def _allow_waits(self) -> None:
        # Only ever lower the mode: an outer capture that refused waits may be over by now.
        if torch.cuda.get_sync_debug_mode() > self._debug_mode:
            _set_debug_mode(self._debug_mode)


class _Autograd:
    """Autograd's settings in this thread."""

    def __init__(self) -> None:
        self._has_grad = torch.is_grad_enabled()
        self._has_forward_grad = torch._C._is_fwd_grad_enabled()
        self._is_inference = torch.is_inference_mode_enabled()
        self._has_threads = torch.autograd.is_multithreading_enabled()

    def put_back(self) -> None:
        if torch.is_inference_mode_enabled() != self._is_inference:
            # This guard is never left: torch has no other way to set the mode, and leaving would undo it.
            enter_for_good(torch._C._InferenceMode(self._is_inference))
        torch._C._set_grad_enabled(self._has_grad)
        torch._C._set_fwd_grad_enabled(self._has_forward_grad)
        if self._has_threads:  # only switch on: the capture that switched it off may be over by now
            torch._C._set_multithreading_enabled(True)


def unbroken(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call so that it restores its thread's state when an error or an interrupt leaves it."""

    @functools.wraps(call)
    def guarded(*args: object, **kwargs: object) -> Any:
        if is_compiling() or not torch.cuda.is_initialized():
            return call(*args, **kwargs)
        around = ThreadState()
        try:
            return call(*args, **kwargs)
        except BaseException:
            around.put_back()
            raise

    return guarded
