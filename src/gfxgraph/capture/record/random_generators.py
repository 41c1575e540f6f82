"""The random generators of one capture: the device's own, those registered with the graph, and those that it seeds.

A program can exchange a generator's state (``graphsafe_set_state``), while a graph keeps the state that the generator
had when it was registered. So this file keeps handles on states, not on generators.

A draw on the host, or from a generator that the graph does not know, is repeated at each replay, and goes on where
the generator stands. If the program seeds it inside the capture, or makes it there, that is a step of its own.

Draws of other threads: torch registers the default generator with every capture, and until the capture ends a draw in
any other thread is an error ("Offset increment outside graph capture encountered unexpectedly"). While captures run
and other threads exist, torch's drawing functions wait until no other thread's capture uses the generator, and a
capture waits for draws in progress. Functions that compiled code has guards on are left alone, because Dynamo would
recompile that code. They, and draws below Python (autograd, compiled code), keep torch's error.

States: the methods of ``torch.Generator`` are replaced in the class, where torch's own functions for states and seeds
end, whatever name a program has for them. The functions stay: Dynamo guards their code where compiled code calls
them. Dynamo itself saves a device's state before it traces and restores it afterwards (``convert_frame``). Tracing
draws nothing, and neither is possible inside a capture, so both are skipped there.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK, Targets, session_here
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.program import CallStep
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.process import bridge, process
from gfxgraph.types import CaptureStatus, OnUnsafe

WAS_DEAD = "due to a previous error during capture"
"""Part of the text of status 901: the capture was already dead before this operation."""


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
        given = [g for g in (*args, *kwargs.values()) if isinstance(g, type(torch.default_generator))]
        found = [self._base.generator_of(g) if hasattr(self._base, "generator_of") else g for g in given]
        return [g for g in found if g.device.type == "cuda"]

    def take_new_states(self, saved: Rollback) -> None:
        """Adopt the generators' new, unused states, and move what was saved for the old states to them."""
        old = self.states()
        self._default_state = self.default.graphsafe_get_state()
        self._registered[:] = [(g, g.graphsafe_get_state()) for g, _ in self._registered]
        saved.rename_states(dict(zip(map(id, old), self.states())))


def begin_capture(base: Any, graph: object, states: Iterable[object], *args: object, **kwargs: object) -> None:
    """Register states of generators with a graph, and begin its capture with torch's other arguments."""
    default = torch.cuda.default_generators[torch.cuda.current_device()]  # torch registers it itself
    with registering(base, graph, [default, *states]):
        for state in states:
            base.register_generator_state(graph, state)
        base.capture_begin(graph, *args, **kwargs)


class CaptureIsDead(RuntimeError):
    """What torch's capture_end would raise."""

    def __init__(self) -> None:
        super().__init__(f"CUDA error: operation failed {WAS_DEAD}")


def end_capture(base: Any, graph: object, driver: GraphDriver, stream: torch.cuda.Stream) -> None:
    """Call torch's capture_end, unless the capture of ``stream`` is dead or over: then raise what it would.

    Torch from 2.12 on ends a capture only once, and one that the runtime refused to end stays in the books of its
    host allocator: no capture can use that pool again. Before that, the stream can be given an empty capture to end.
    """
    if driver.capture_info(stream.cuda_stream).status is not CaptureStatus.ACTIVE:
        raise CaptureIsDead
    base.capture_end(graph)


@contextmanager
def registering(base: Any, graph: object, states: list[object]) -> Iterator[None]:
    """Within this block states are registered with a graph: each is wholly registered afterwards, whatever fails.

    torch notes the state with the graph, makes a tensor, and then notes the graph with the state. Where the second
    half is refused, or an interrupt strikes in the Python of a dispatch mode, the graph's destructor ends the process
    ("The graph should be registered to the state"; torch 2.11, H200). What cannot be registered is not destroyed.
    """
    try:
        with torch_names._DisableTorchDispatch():
            yield
    except BaseException:
        try:
            with (
                capture_lock.relaxed(),  # the tensor may need memory of the driver's
                torch.cuda.stream(torch.cuda.default_stream()),  # which is never captured
                torch_names._DisableTorchDispatch(),
            ):
                for state in states:
                    base.register_generator_state(graph, state)
        except RuntimeError:
            process.never_destroy(graph)
        raise


# -- draws of other threads ----------------------------------------------------------------------------------


_FUNCTIONS = (
    "rand randn randint rand_like randn_like randint_like randperm normal bernoulli multinomial poisson dropout "
    "dropout_ feature_dropout alpha_dropout feature_alpha_dropout rrelu"
).split()
_METHODS = (
    "normal_ uniform_ bernoulli_ bernoulli exponential_ random_ cauchy_ geometric_ log_normal_ multinomial"
).split()

_CHECKED = re.compile(r"___check_obj_id\(.*?, (\d+)\)").findall
_found: dict[str, Any] = {}


def drawing_targets() -> Targets:
    """Every function that may be replaced now."""
    guarded = _guarded()
    rooms = () if guarded is None else ((torch, _FUNCTIONS), (torch_names._VF, _FUNCTIONS), (Tensor, _METHODS))
    found = guarded, [(owner, name, getattr(owner, name, None)) for owner, names in rooms for name in names]
    if _found.get("functions") != found:
        _found["functions"], _found["targets"] = (
            found,
            {
                f"draw.{owner.__name__}.{name}": (owner, name, _waiting(original))
                for owner, name, original in found[1]
                if original is not None
                and guarded.isdisjoint((id(original), id(getattr(original, "__code__", None))))  # type: ignore[union-attr]
            },
        )
    return _found["targets"]  # type: ignore[no-any-return]


def _guarded() -> frozenset[int] | None:
    """The ``id`` of everything that compiled code has guards on; None if this version of Dynamo does not tell."""
    n_traced = torch_names.FRAME_COUNTER
    if not n_traced:
        return frozenset()
    seen = getattr(torch_names.input_codes, "seen", None)
    newest = seen[-1] if seen else None  # the counter begins again where Dynamo is reset
    if _found.get("at") != n_traced or _found["newest"] is not newest:
        _found.update(at=n_traced, newest=newest, ids=_identities(seen))
    return _found["ids"]


def _identities(seen: list[Any] | None) -> frozenset[int] | None:
    entries_of = torch_names._debug_get_cache_entry_list
    if seen is None:
        return None
    entries = [entry for ref in list(seen) if (code := ref()) is not None for entry in entries_of(code)]
    parts = [part for entry in entries for part in getattr(entry.guard_manager, "code_parts", ())]
    if entries and not parts:
        return None
    return frozenset(int(number) for part in parts for number in _CHECKED(part))


@functools.cache  # one for all captures: it is known by identity
def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        # While Dynamo traces this function, only the plain call at the end counts.
        if not torch.compiler.is_compiling() and _is_on_device(args, kwargs):
            with capture_lock.owned(is_draw=True):
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    # Not a file of this room: Dynamo is told to skip those, and must be able to trace this function.
    draw.__code__ = draw.__code__.replace(co_filename="<gfxgraph>")
    return functools.update_wrapper(draw, original)


def _is_on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device).type == "cuda"
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if tensors:
        return any(tensor.is_cuda for tensor in tensors)
    try:
        return torch.get_default_device().type == "cuda"
    except AttributeError:  # torch 2.9, once set_default_device(None) was called
        return False


# -- the states of the device's generators ---------------------------------------------------------------


def called_by(modules: tuple[str, ...]) -> bool:
    """True if the first caller outside torch's functions for states is of these modules, in this thread's capture."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    caller = frame.f_globals.get("__name__", "") if frame is not None else ""
    return caller.startswith(modules) and torch.cuda.is_current_stream_capturing()


_ON_THE_WAY = frozenset({__name__, "torch.cuda", "torch.cuda.random", "torch.random"})


def shield_from_dynamo() -> None:
    """Keep Dynamo from compiling torch's functions that get and set the state, until the bridge is switched off.

    Compiled code calls them after a graph break, and Dynamo then compiles what they call. Up to torch 2.14 that is a
    function called under a lock, and Dynamo, restoring the state after tracing, waits for that lock forever.
    """
    codes = torch.cuda.random.get_rng_state.__code__, torch.cuda.random.set_rng_state.__code__
    bridge.undo.append(lambda: torch_names.have_dynamo("DEFAULT", *codes))
    torch_names.have_dynamo("SKIP", *codes)


# -- seeds, and the methods of generators -----------------------------------------------------------------


_FIRST_SEED = 67280421310721
"""torch's, of every generator that is made."""


class _Kind(type):
    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, STOCK["generator"])


class Generator(metaclass=_Kind):
    """Replaces ``torch.Generator`` while a capture runs: each replay gives what it makes its first state again."""

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        made = STOCK["generator"](*args, **kwargs)
        session = session_here()
        if session is not None and session.policy is not OnUnsafe.RAISE:
            session.add(CallStep("torch.Generator", place(), lambda: made.manual_seed(_FIRST_SEED)))
        return made


_OF_GENERATORS = ("get_state", "set_state", "manual_seed", "seed")


def _generator_targets() -> Targets:
    """Methods of generators: torch's functions call them, and so do programs."""
    kind = type(torch.default_generator)
    classes = kind, *kind.__subclasses__()
    return {
        f"generator.{number}.{name}": (
            owner,
            name,
            _of_generator(getattr(vars(owner)[name], "__wrapped__", vars(owner)[name])),
        )
        for number, owner in enumerate(classes)
        for name in _OF_GENERATORS
        if name in vars(owner)
    }


@functools.cache  # one for all captures: it is known by identity
def _of_generator(original: Callable[..., object]) -> Callable[..., object]:
    reads = original.__name__ == "get_state"

    @functools.wraps(original)
    def method(self: torch.Generator, *args: object, **kwargs: object) -> object:
        session = session_here()
        on_host = self.device.type == "cpu"
        if session is None:
            return original(self, *args, **kwargs)
        if called_by(torch_names.OF_DYNAMO):  # around a trace, which draws nothing; torch itself refuses a device's
            return original(self, *args, **kwargs) if on_host else torch.zeros(16, dtype=torch.uint8)
        row = f"torch{'' if on_host else '.cuda'}.{'get' if reads else 'set'}_rng_state"
        if reads:
            return session.values.generator_state(lambda: original(self), row)
        # Code that has just been compiled seeds generators of its own, once for all calls, and none is to be undone.
        is_compilers = called_by(torch_names.OF_AOT)
        saving = [] if is_compilers else [session.rollback.save_states]

        def act() -> object:
            if saving:  # by now no segment is open, in which torch gives the offset within the graph
                saving.pop()([self])
            return original(self, *args, **kwargs)

        return session.host_call(row, act, repeat=not is_compilers)

    return method


def targets() -> Targets:
    return {"generator": (torch, "Generator", Generator), **_generator_targets()}
