"""The random generators of one capture: the device's own, and those registered with the graph.

A program can exchange a generator's state (``graphsafe_set_state``), while a graph keeps the state that the generator
had when it was registered. So this file keeps handles on states, not on generators.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import BASELINE
from gfxgraph.process import process


class Generators:
    """Args:
    registered: (generator, handle on its state) for each that the user registered; kept up to date.
    """

    def __init__(self, device_index: int, base: Any, registered: list[tuple[Any, Any]]) -> None:
        self._base = base
        self._registered = registered
        self.default = torch.cuda.default_generators[device_index]
        self._default_state = self.default.graphsafe_get_state()

    def states(self) -> list[Any]:
        """Handles on the states that the capture draws from."""
        return [self._default_state, *(state for _, state in self._registered)]

    def all(self) -> list[Any]:
        return [self.default, *(generator for generator, _ in self._registered)]

    def find(self, generator: Any) -> Any:
        """The generator that the dispatcher passed on; None if the graph does not know it."""
        # The dispatcher wraps it anew each time: only the C++ object inside can be compared.
        for known in self.all():
            if generator._cdata == known._cdata:
                return known
        return None

    def foreign_states(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Any]:
        """Handles on the states of the device generators among an operation's arguments."""
        return [g.graphsafe_get_state() for g in self.given(args, kwargs)]

    def know_all(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether the graph knows each device generator among the arguments."""
        return all(self.find(g) is not None for g in self.given(args, kwargs))

    def given(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Any]:
        """The device generators among an operation's arguments."""
        given = [g for g in (*args, *kwargs.values()) if isinstance(g, torch._C.Generator)]
        found = [self._base.generator_of(g) if hasattr(self._base, "generator_of") else g for g in given]
        return [g for g in found if g.device.type == "cuda"]

    def take_new_states(self, saved: Rollback) -> None:
        """Adopt the generators' new, unused states, and move what was saved for the old states to them."""
        old = self.states()
        self._default_state = self.default.graphsafe_get_state()
        self._registered[:] = [(g, g.graphsafe_get_state()) for g, _ in self._registered]
        saved.rename_states(dict(zip(map(id, old), self.states())))


class _Drawless(threading.local):
    is_now = False


_drawless = _Drawless()


def is_drawless() -> bool:
    """Whether captures in this thread draw no random numbers now."""
    return _drawless.is_now


def be_drawless(is_so: bool) -> None:
    """Set whether captures in this thread draw no random numbers from now on."""
    _drawless.is_now = is_so


BASELINE.append((is_drawless, be_drawless))


@contextmanager
def drawless(is_so: bool) -> Iterator[None]:
    """Within this block, captures in this thread draw no random numbers if ``is_so``: other threads may go on
    drawing.
    """
    before, _drawless.is_now = _drawless.is_now, is_so
    try:
        yield
    finally:
        _drawless.is_now = before


_loans: dict[int, tuple[Any, Any, int]] = {}
"""By device: the default generator's own state, the state it was lent, and the lent state's initial offset."""


def end_loans(device_index: int) -> None:
    """Restore the default generator's own state, and carry over draws made on the lent one."""
    loan = _loans.get(device_index)
    if loan is None:
        return
    own, lent, begun_at = loan
    torch.cuda.default_generators[device_index].graphsafe_set_state(own)
    with torch.cuda.stream(torch.cuda.default_stream(device_index)):  # which is never captured
        drawn = lent.get_offset() - begun_at
    if drawn:
        own.set_offset(begun_at + drawn)
    _loans.pop(device_index, None)


@contextmanager
def kept_out(device_index: int) -> Iterator[None]:
    """If the capture about to begin draws nothing, let it register another state than the default generator's.

    torch registers the default generator with every capture, and until the capture ends a draw in any other thread is
    an
    error ("Offset increment outside graph capture"). Draws made between the two exchanges are carried over.
    """
    if not _drawless.is_now:
        yield
        return
    default = torch.cuda.default_generators[device_index]
    own, lent = default.graphsafe_get_state(), default.clone_state()
    _loans[device_index] = own, lent, own.get_offset()
    default.graphsafe_set_state(lent)
    try:
        yield
    finally:
        end_loans(device_index)
        capture_lock.let_draw()


def begin(base: Any, graph: object, states: Iterable[object], *args: object, **kwargs: object) -> None:
    """Register states of generators with a graph, and begin its capture with torch's other arguments."""
    default = torch.cuda.default_generators[torch.cuda.current_device()]  # torch registers it itself
    with registering(base, graph, [default, *states]):
        for state in states:
            base.register_generator_state(graph, state)
        base.capture_begin(graph, *args, **kwargs)


@contextmanager
def registering(base: Any, graph: object, states: list[object]) -> Iterator[None]:
    """Within this block states are registered with a graph: each is wholly registered afterwards, whatever fails.

    torch notes the state with the graph, makes a tensor, and then notes the graph with the state. Where the second
    half is refused, or an interrupt strikes in the Python of a dispatch mode, the graph's destructor ends the process
    ("The graph should be registered to the state"; torch 2.11, H200). What cannot be registered is not destroyed.
    """
    try:
        with torch._C._DisableTorchDispatch():
            yield
    except BaseException:
        is_whole = False
        default_stream = torch.cuda.default_stream()  # which is never captured
        try:
            with (
                suppress(RuntimeError),
                capture_lock.unnoticed(),  # the tensor may need memory of the driver's
                torch.cuda.stream(default_stream),
                torch._C._DisableTorchDispatch(),
            ):
                for state in states:
                    base.register_generator_state(graph, state)
                is_whole = True
        finally:
            if not is_whole:
                process.never_destroy(graph)
        raise
