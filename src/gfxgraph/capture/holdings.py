"""What a capture holds of its process and its thread, and how all of it is given back.

Problem: an interrupt or a failing call may strike between any two lines, those of a clean-up included. What a
capture has changed for the whole process (torch's names, the collector, the stack of modes, autograd's threads)
must not stay changed because of that.

Idea: whatever is taken is noted under the holder's name *before* it is taken, and to give back what is not held
does nothing. So a clean-up is a list of steps each of which may run again; ``settle`` runs them all, and whoever
was interrupted runs the list once more.

Invariant: nothing here counts. A counter that an interrupt has left one too high stays so for good.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.compiler import is_compiling

from gfxgraph.capture import autocasting, generators, intercept
from gfxgraph.capture.half_entered import end_half_entered
from gfxgraph.capture.modes import Standing, enter_mode, forget_mode, leave_modes
from gfxgraph.process import process

TRIES = 2
"""How often a step is run that something struck."""


def settle(steps: Iterable[Callable[[], object]]) -> list[Exception]:
    """Run every step, whatever strikes meanwhile; one that was struck is run once more.

    What an interrupt has left half entered is ended first: it would put its own state back, later.

    Returns:
        What steps raised that failed twice. An interrupt is put off until all have run, and raised then.
    """
    problems: list[Exception] = []
    interrupt: BaseException | None = None
    struck = sys.exception()
    for step in (lambda: end_half_entered(struck), *steps):
        for attempt in range(TRIES):
            try:
                step()
                break
            except Exception as error:  # noqa: BLE001  # given to the caller
                end_half_entered(error)
                if attempt:
                    problems.append(error)
            except BaseException as error:  # noqa: BLE001  # raised below
                end_half_entered(error)
                interrupt = error
    if interrupt is not None:
        raise interrupt
    return problems


class Holdings:
    """What one capture holds."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._multithreading: bool | None = None
        self._debug_mode: int | None = None
        self._is_recording = False

    def take_process(self, where: object) -> None:
        """Before the first segment: a collection of garbage after its begin could destroy a graph inside it."""
        intercept.enter(self, where, draws=not generators.is_drawless())

    def take_thread(self) -> None:
        """Once the first segment is open: record what this thread does."""
        self._multithreading = torch.autograd.is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        autocasting.follow(self)
        enter_mode(self._recorder)
        self._is_recording = True

    def give_back(self) -> list[Callable[[], None]]:
        """The steps that give everything of this thread back, to be settled before ``give_turn``."""
        return [
            self._stop_recording,
            self.allow_waits,
            lambda: autocasting.leave(self),
            self._free_autograd,
        ]

    def give_turn(self) -> None:
        """Other threads may capture, collect garbage and draw; the last step that touches what all share."""
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
            forget_mode(recorder)  # it may not have got as far as the stack
        self._recorder = None

    def _free_autograd(self) -> None:
        if self._multithreading is not None:
            torch._C._set_multithreading_enabled(self._multithreading)
            self._multithreading = None

    def refuse_waits(self) -> None:
        """Have torch raise at hidden waits before they reach the driver."""
        if self._debug_mode is None:
            self._debug_mode = torch.cuda.get_sync_debug_mode()
        _set_debug_mode(2)

    def allow_waits(self) -> None:
        """Have torch treat waits as before the capture."""
        if self._debug_mode is not None:
            _set_debug_mode(self._debug_mode)
            self._debug_mode = None


def _set_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch._C._cuda_set_sync_debug_mode(mode)


class ThreadState:
    """What a call of ours finds in its thread, and leaves there whatever happens to it."""

    def __init__(self) -> None:
        self._stream = torch.cuda.current_stream()
        self._modes = Standing()
        self._sessions = list(process.sessions())
        self._holders = intercept.holders_here()
        self._debug_mode = torch.cuda.get_sync_debug_mode()
        self._is_drawless = generators.is_drawless()
        self._autograd = _Autograd()

    def put_back(self) -> None:
        """Make it so again: what an interrupt has left behind is ended."""
        begun = [session for session in process.sessions() if session not in self._sessions]
        settle(
            [
                *(functools.partial(session.abort, None) for session in reversed(begun)),
                lambda: intercept.leave_others(self._holders),
                leave_modes,
                self._modes.put_back,
                lambda: generators.be_drawless(self._is_drawless),
                lambda: generators.end_loans(self._stream.device_index),
                self._allow_waits,
                self._autograd.put_back,
                lambda: torch.cuda.set_stream(self._stream),
            ]
        )

    def _allow_waits(self) -> None:
        # Never the other way: an outer capture that refused waits may be over by now.
        if torch.cuda.get_sync_debug_mode() > self._debug_mode:
            _set_debug_mode(self._debug_mode)


class _Autograd:
    """What autograd keeps of this thread."""

    def __init__(self) -> None:
        self._has_grad = torch.is_grad_enabled()
        self._has_forward_grad = torch._C._is_fwd_grad_enabled()
        self._is_inference = torch.is_inference_mode_enabled()
        self._has_threads = torch.autograd.is_multithreading_enabled()

    def put_back(self) -> None:
        if torch.is_inference_mode_enabled() != self._is_inference:
            # Never left: torch has no other way to set the mode, and leaving it would undo that.
            guard = torch._C._InferenceMode(self._is_inference)
            _for_good.append(guard)
            guard.__enter__()
        torch._C._set_grad_enabled(self._has_grad)
        torch._C._set_fwd_grad_enabled(self._has_forward_grad)
        if self._has_threads:  # never the other way: the capture that has none may be over by now
            torch._C._set_multithreading_enabled(True)


_for_good: list[object] = []


def unbroken(call: Callable[..., Any]) -> Callable[..., Any]:
    """Have a call that is left by an error or an interrupt leave its thread as it was."""

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
