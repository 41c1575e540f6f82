"""A function traced by Dynamo: as one graph, or as pieces with Python between them.

    find    a world in which the function was traced before, and in which this call may replay
    trace   one call through Dynamo, eagerly; its world: what it read, and whether it is one graph
    run     the same function again, as Dynamo's own code: guards, FX graphs, what is left in Python
    pieces  the same, with each FX graph captured on its own

A trace is *whole* if one graph can replace the call: Dynamo had no graph break, the function left no side effects in
Python except constants, drew no host random numbers and wrote to no host tensor. Then a replay of that graph
is the call. Everything else runs in pieces: Dynamo's code repeats the Python part each time.

Dynamo runs without Inductor: its FX graph holds torch's own operations, so a capture records what eager execution
would have launched. Guards on module hooks, which torch leaves off, are on. Our settings hold around each of its
traces.

Source: decision 0111; torch._dynamo (2.9 to 2.14) for its interfaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.trace import same_code
from gfxgraph.callables.trace.corrections import Configured, leave_uncollected
from gfxgraph.callables.trace.in_dynamo import (
    BROKEN,
    CHANGED,
    MAX_TRACES,
    WAITS,
    Found,
    FrameTrace,
    backend_of,
    root_of,
    said,
    under,
)
from gfxgraph.callables.trace.world import Granted, World
from gfxgraph.core.locks import new_lock

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
NOTHING_RETURNED = None, None, False
OWN = "an error in gfxgraph itself"


class _Told:
    """What is noted of one call that is traced."""

    def __init__(self, front: Frontend | None = None) -> None:
        self.front = front
        self.found: list[Found] = []
        self.skipped: list[str] = []
        self.versions: dict[int, tuple[Tensor, int]] = {}
        """The inputs of FX graphs that ran, with the versions before that: by id."""

    def __enter__(self) -> _Told:
        self._before, local.told = local.told, self
        return self

    def __exit__(self, *error: object) -> None:
        local.told = self._before


class _Local(threading.local):
    """This thread's activity with Dynamo."""

    is_raw = 0
    """Nesting depth of warm-ups, comparisons or captures by others, in which a piece runs its FX graph as it is."""
    n_eager = n_warm_ups = n_ran = 0
    """Calls of functions and pieces that ran without a graph; those of them that were warm-ups; calls of pieces."""
    why_eager = ""
    """The reason of the last of them."""
    told: _Told | None = None
    """Of the call that is traced now."""
    returned: tuple[object, Any, bool] = NOTHING_RETURNED
    """The keyword arguments of a call whose function has run: it must not run again; its result; is it counted?"""
    is_warm = False
    """Whether such a call with gradients has run eagerly already: then it is captured at once."""
    noted: list[Any] | None = None
    """Where pieces note the calls with gradients that they replay: what replays them, inputs, results."""


local = _Local()


class Calls(Counter[str]):
    """Calls that were not replayed, by reason. Within one call, what this thread counts tells how that call ran."""

    why = ""
    """The reason of the last one; "" for a warm-up."""

    def count(self, why: str, *, is_eager: bool = True) -> None:
        """Count one, from any thread."""
        if is_eager:
            local.n_eager += 1
            local.n_warm_ups += why == WARM_UP
            local.why_eager = local.why_eager if why == WARM_UP else why
        with _counting:
            self[why] += 1
            self.why = "" if why == WARM_UP else why


WARM_UP = "warm-up"
LEFT_TO_PYTHON = "Dynamo made no graph of this call"
_counting = threading.Lock()


def returned(kwargs: object, result: Any, is_counted: bool = False) -> Any:
    """Note that the function of the call with these keyword arguments has run, in case we fail in what follows."""
    local.returned = kwargs, result, is_counted
    return result


def is_traced_here() -> bool:
    """Whether this thread's call is part of a trace, where torch's own flag says that some thread's is."""
    lock = torch_names.compile_lock
    if lock is None:
        return True
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


# -- one function ------------------------------------------------------------------------------------------

IDLE = "it launches nothing on the device"
CHANGES_ITSELF = "it changes what its next call reads"
MOST_WORLDS = 32
"""Most worlds kept for one function, more than it has traces; then one that it took from another instance goes."""
MAX_RAISED = 16
"""Calls of one function that may raise while Dynamo traces them; beyond that, code left to Python stays so."""
MOST_GIVEN_UP = 256
"""Most frames remembered as left to Python by Dynamo."""


class Untraceable(Exception):
    """Dynamo leaves this function to Python; ``args[0]`` says why."""


def _bound(frame: FrameTrace, root: types.FunctionType) -> Callable[..., Any] | None:
    """Dynamo's code for a root frame, as a function that asks no guards."""
    if frame.code.co_freevars != root.__code__.co_freevars:
        return None
    return types.FunctionType(frame.code, frame.names, "call", None, root.__closure__)


def _why_untraced(skipped: list[str], is_idle: bool) -> str:
    why = skipped[0].splitlines()[0] if skipped else IDLE if is_idle else "Dynamo cannot trace it"
    return IDLE if "No ops traced" in why else why


class Frontend:
    """One function, as Dynamo sees it: what it finds is noted here (`in_dynamo.Traced`).

    Args:
        fn: the function, method or module; for a compiled one, the code underneath is traced.
        make_call: makes what Dynamo's code calls for an FX graph, from what Dynamo found.
        dynamic: sizes are symbols from the first trace on.
    """

    def __init__(self, fn: Callable[..., Any], make_call: Callable[[Found], Any], *, dynamic: bool) -> None:
        self.fn = fn
        self._called = under(fn)
        self.make_call = make_call
        self.is_dynamic = dynamic
        self._lock = new_lock()
        self._key = same_code.key_of(self._called, dynamic)
        self.n_traces = 0
        """Number of calls that finished."""
        self.n_raised = 0
        """Number of calls that raised while they were traced."""
        self._changing = ""
        """Why none is traced any more, with what failed last."""
        self.seen: dict[str, set[int]] = {}
        self.is_ahead = False
        """Whether captures follow one another: on Python 3.11 each is a change to what is watched."""
        self.remarks: set[str] = set()
        """What a user has to know of the traces, for ``explain()``."""
        self._given_up: set[types.CodeType] = set()
        """Code that Dynamo leaves to Python from now on."""
        self.is_too_deep = False
        """Whether it does because an argument was nested deeper than its calls may be: others are traced."""
        self.keeps = WAITS if inspect.iscoroutinefunction(fn) else ""
        """Why no call may go through Dynamo any more: a new trace would see something else than the function does."""
        self.traces_gradients = True
        """Whether ``autograd.grad`` is part of its graphs: not where they are pieces, whose inputs have no past."""
        self.does_catch = False
        """Whether some of its code may continue after an error."""
        self.does_ask_by_name = False
        """Whether it may look for a Python attribute of an argument that does not exist."""
        self.does_ask_mappings = False
        """Whether it may look for a missing key in one of Python's own mappings."""
        self._begin()

    def reset(self) -> None:
        """Forget every trace."""
        with self._lock:
            self.n_traces = self.n_raised = 0
            self._changing = ""
            self.seen.clear()
            self._begin()
            same_code.traces.pop(self._key, None)

    def _begin(self) -> None:
        self._root = root_of(self._called)
        context = torch_names.dynamo_optimize(backend_of(self), dynamic=self.is_dynamic or None)
        context.callback = Configured(context.callback, self)
        self._compiled = context(self._root)
        self._frames: list[FrameTrace] = []
        """What was traced for the function's own frame."""
        self.worlds: list[World] = []
        self.graphs: list[tuple[Found, Any]] = []
        """Everything that Dynamo found for this function, with what its code calls for that."""
        self._inside: Granted | None = None
        """What Dynamo assumes without guards in traced frames that no world stands for."""

    def _code(self) -> Callable[..., Any]:
        """Dynamo's code; remade if a frame's code is outdated."""
        if any(each.is_stale() for each in (self._inside, *self.worlds) if each is not None):
            with self._lock:
                self._begin()
        return self._compiled

    # -- what Dynamo tells ----------------------------------------------------------------------------

    def note_frame(self, frame: FrameType, guarded: Any, n_before: int) -> None:
        """Note Dynamo's code for a frame: an inner one, or the function's own, which has a world if it is traced."""
        if guarded is None:
            if len(self._given_up) < MOST_GIVEN_UP:
                self._given_up.add(frame.f_code)
            return
        found = [found for found, _ in self.graphs[n_before:]]
        made = FrameTrace(guarded.guard_manager, found, guarded.code, frame.f_globals)
        if frame.f_code is self._root.__code__:
            # torch 2.9 traces a world again where a capture begins: a guard compares what a recorder changes.
            self.n_traces += not local.is_raw
            self._frames.append(made)
            if len(found) == 1 and not found[0].why_not_whole and local.told is not None and local.told.front is self:
                made.is_watched_later = True
                return
        self._note_inside(made, frame.f_code, frame.f_locals)

    def _note_inside(self, made: FrameTrace, code: types.CodeType, given: dict[str, Any]) -> None:
        self._inside = self._inside or Granted()
        self._inside.note(made, code, given)
        self.keeps = self.keeps or self._inside.why_eager

    def note_left(self, why: str) -> None:
        """Note why a frame runs as Python."""
        if local.told is not None:
            local.told.skipped.append(why)

    def note_graph(self, found: Found) -> Callable[..., Any]:
        """Note an FX graph; return what Dynamo's code calls for it."""
        if local.told is not None:
            local.told.found.append(found)
        return self._call_of(found)

    def _call_of(self, found: Found) -> Callable[..., Any]:
        """What Dynamo's code calls for an FX graph; its globals, which other instances keep, do not keep that."""
        self.does_ask_by_name = self.does_ask_by_name or found.asks_by_name
        self.does_ask_mappings = self.does_ask_mappings or found.asks_mappings
        self.does_catch = self.does_catch or found.does_catch
        found.names = [self.told(source) for source in found.sources]
        traced = self.make_call(found)
        self.graphs.append((found, traced))
        alive = weakref.ref(traced)
        return lambda *inputs: (alive() or found.graph.forward)(*inputs)

    # -- ways to run a call ---------------------------------------------------------------------------

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call in a known world as Dynamo's code, with its graphs as they are."""
        return self.run_in(self._taken(args, kwargs), args, kwargs)

    def run_in(self, world: World | None, args: Args, kwargs: Kwargs) -> Any:
        """Likewise, in this world, without asking its guards: in a capture, say.

        A capture has functions of its own in the place of torch's, which would seem to be changes of the world.
        """
        local.is_raw += 1
        try:
            return self._run(world.run if world is not None and world.run else self._compiled, args, kwargs)
        finally:
            local.is_raw -= 1

    def pieces(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call as Dynamo's code, with each of its graphs captured on its own."""
        taken = self._taken(args, kwargs)
        return self._run(self._code() if taken is None else taken.run, args, kwargs)

    def _taken(self, args: Args, kwargs: Kwargs) -> World | None:
        """The world of this call whose trace was taken from another instance: Dynamo has no code for it."""
        given = self._given(args, kwargs)
        return next((each for each in reversed(self.worlds) if each.is_taken and each.holds(given)), None)

    def _run(self, code: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        try:
            return code(*args, **kwargs)
        except Exception:
            self._take_up()
            raise

    def _take_up(self) -> None:
        """After a call that raised: let the next call trace what Dynamo gave up because of it, a few times."""
        given_up, self._given_up = self._given_up, set()
        if given_up and self.n_raised < MAX_RAISED:
            self.n_raised += 1
            torch_names.have_dynamo("DEFAULT", *given_up)

    def why_no_more(self, args: Args, kwargs: Kwargs) -> str:
        """Why calls in unknown worlds are not traced any more, with what differs in this one; "" if they are."""
        if self._changing:
            return self._changing
        if self.n_traces >= MAX_TRACES:
            why = f"it was traced {MAX_TRACES} times, because what it depends on changes from call to call"
        elif self.n_raised >= MAX_RAISED:
            why = f"{MAX_RAISED} of its calls raised an error while they were traced"
        else:
            return ""
        differs = self.why_not(args, kwargs)
        if differs:
            why += f" (failed last: {differs}); a number that changes belongs in a tensor on the device"
        self._changing = why
        return why

    def find(self, args: Args, kwargs: Kwargs) -> World | None:
        """The world of this call if it was traced before; evaluates Dynamo's guards."""
        given = self._given(args, kwargs)
        with self._lock:
            if any(world.is_stale() for world in self.worlds):
                self._begin()  # otherwise Dynamo would reuse its old code
            for world in reversed(self.worlds):
                if world.holds(given):
                    if self.worlds[-1] is not world:
                        self.worlds.remove(world)
                        self.worlds.append(world)
                    return world
        return None

    def has_moved(self, world: World, args: Args, kwargs: Kwargs) -> bool:
        """True if a tensor that the world reads was replaced; otherwise start watching what it read again."""
        if world.is_same():
            return False
        given = self._given(args, kwargs)
        if world.has_moved(given):
            return True
        if not world.unwatched and not self.is_ahead:
            world.rearm(given)
        return False

    def rebind(self, world: World, args: Args, kwargs: Kwargs) -> None:
        """Make the world read the tensors found now."""
        world.rebind(self._given(args, kwargs))
        world.why_pieces = self.told(world.why_pieces)

    def restless(self) -> list[str]:
        """The numbers that operations take, and that are others at each call, as the program names them."""
        pieces = [traced.piece for _, traced in self.graphs if traced.piece is not None]
        return list(dict.fromkeys(name for piece in pieces for name in piece.restless))

    def why_not(self, args: Args, kwargs: Kwargs) -> str:
        """What differs from the last world, in Dynamo's words; "" if Dynamo does not tell."""
        if not self.worlds:
            return ""
        parts = self.worlds[-1].guards.check_verbose(self._given(args, kwargs)).verbose_code_parts
        return " ".join(str(parts[0]).split("#")[0].split()) if parts else ""

    def trace(self, args: Args, kwargs: Kwargs, kind: object = None) -> tuple[Any, World]:
        """Run one call eagerly, and return its world too.

        Args:
            kind: what Dynamo does not guard of its arguments; if None, no trace of another instance is taken.

        Raises:
            Untraceable: after the call has run; ``args[1]`` is its result.
        """
        given = self._given(args, kwargs)
        with self._lock:
            if kind is not None and self._key in same_code.traces and (taken := self._take(given, kind)) is not None:
                return self._run_taken(taken, args, kwargs), taken
            self.n_traces += 1
            if self.is_too_deep:
                self.is_too_deep = False
                torch_names.have_dynamo("DEFAULT", *self._given_up)
                self._given_up.clear()
            self._code()
            n_known, watched = len(self._frames), None
            try:
                result, world = self._traced(given, n_known)
                watched = None if world.reads_inside_arguments else world.guards
                return result, world
            finally:
                for each in self._frames[n_known:]:
                    if each.is_watched_later and each.guards is not watched:
                        self._note_inside(each, self._root.__code__, given)

    def _traced(self, given: dict[str, Any], n_known: int) -> tuple[Any, World]:
        counters = torch_names.dynamo_counters
        breaks, frames = dict(counters["graph_break"]), dict(counters["frames"])
        args, kwargs = given["args"], given["kwargs"]
        with _Told(self) as told:
            try:
                result = self.run(*args, **kwargs)
            except Exception:
                self.n_traces -= 1
                raise
        try:
            new = self._frames[n_known:]
            # Else what was traced for such a call, in one that did not run to its end or was not to be traced.
            unused = (each for each in self._frames if not each.has_world and each.guards.check(given))
            frame = new[-1] if new else next(unused, None)
            if frame is None:
                known = self.find(args, kwargs)
                if known is not None:
                    return result, known
                self.n_traces -= self.is_too_deep
                failed = [counters["frames"][each] - frames.get(each, 0) for each in ("total", "ok")]
                # Torch 2.11 does not report skipping a frame that does nothing; it counts it as done.
                is_idle = not told.found and counters["graph_break"] == breaks and failed[0] == failed[1]
                raise Untraceable(_why_untraced(told.skipped, is_idle), result)
            frame.has_world = True
            broke = [why for why, n in counters["graph_break"].items() if n > breaks.get(why, 0)]
            world = self._world(frame, told.found if new and told.found else frame.found, given, broke)
            world.note_written(told.versions)
            self.keeps = self.keeps or world.why_eager
            self.worlds.append(world)
            return result, world
        except CHANGED as error:
            raise Untraceable(f"{OWN}: {type(error).__name__}: {error}", result) from error

    def offer(self, world: World, kind: object) -> None:
        """Have other instances of the code take the trace of a world, if it holds nothing of this one alone."""
        is_own = world.asks_guards or world.why_eager or world.takes_gradients or self.keeps or not world.run
        if not is_own:
            same_code.offer(self._key, world, kind, frozenset(self.remarks))

    def _take(self, given: dict[str, Any], kind: object) -> World | None:
        """The world of a call that Dynamo's code for another instance serves; None if there is none."""

        def world_of(frame: FrameTrace) -> World:
            own = [dataclasses.replace(each, root=self._root.__code__) for each in frame.found]
            return self._world(dataclasses.replace(frame, found=own), own, given)

        taken = same_code.taken(self._key, given, kind, world_of)
        if taken is None:
            return None
        trace, world = taken
        self.remarks |= trace.remarks
        names = {**trace.frame.names, trace.graph: self._call_of(world.found)}
        world.run = _bound(dataclasses.replace(trace.frame, names=names), self._root)
        world.is_taken = True
        return world

    def _run_taken(self, world: World, args: Args, kwargs: Kwargs) -> Any:
        """Run a call eagerly as another instance's trace; from now on that is a world of this one, too."""
        with _Told() as told:
            result = self.run_in(world, args, kwargs)
        world.note_written(told.versions)
        given = self._given(args, kwargs)
        world.why_pieces = world.found.effect or ("" if world.holds(given) else CHANGES_ITSELF)
        if self.has_moved(world, args, kwargs):
            world.rebind(given)
        self.worlds.append(world)
        if len(self.worlds) > MOST_WORLDS:  # of traces there are fewer
            self.worlds.remove(next(each for each in self.worlds if each.is_taken))
        return result

    # -- inside ---------------------------------------------------------------------------------------

    def _given(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        return {"args": args, "kwargs": kwargs, "fn": self._called}

    def _world(
        self, frame: FrameTrace, found: Sequence[Found], given: dict[str, Any], broke: Sequence[str] = ()
    ) -> World:
        whole = found[0] if len(found) == 1 and found[0].root is self._root.__code__ else None
        is_one = whole is not None and not whole.is_broken
        run = _bound(frame, self._root) if is_one else None
        with contextlib.ExitStack() as changes:
            leave_uncollected(changes)
            world = World(frame, whole, given, [code for each in found for code in each.code])
        world.is_one, world.run = is_one, run
        world.why_eager = next((each.why_eager for each in found if each.why_eager), world.why_eager)
        if whole is None:
            reasons = [f"{BROKEN}: {said(why)}" for why in broke]
            reasons += [self.told(each.why_not_whole) for each in found if each.why_not_whole]
            # The code after the break may have been traced earlier, in a call that raised.
            world.why_pieces = reasons[0] if reasons else BROKEN if found or self.graphs else IDLE
        else:
            world.why_pieces = self.told(whole.why_not_whole) if whole.why_not_whole else ""
        if not world.why_pieces and not world.holds(given):
            world.why_pieces = CHANGES_ITSELF
        if world.reads_inside_arguments and not world.why_pieces:
            world.why_pieces = f"it reads {world.reads_inside_arguments.replace('L[', '', 1)} inside an argument"
        world.why_pieces = world.why_pieces or next((each.effect for each in found if each.effect), "")
        nodes = (node for each in found for node in each.graph.graph.nodes)
        world.takes_gradients = any(node.target is torch.autograd.grad for node in nodes)
        return world

    def told(self, why: str) -> str:
        """A reason, with the program's own names instead of Dynamo's sources."""
        fn = getattr(self.fn, "__func__", self.fn)
        free = getattr(getattr(fn, "__code__", None), "co_freevars", ())
        name = getattr(fn, "__name__", None) or type(fn).__name__

        def of_closure(match: re.Match[str]) -> str:
            at = int(match[1])
            return f"{free[at]}{match[3]}" if at < len(free) else match[0]

        why = re.sub(r"___\w+\(([^()]*)\)", r"\1", why)  # what Dynamo makes of it
        why = re.sub(r"L\['fn'\]\.__closure__\[(\d+)\](\.cell_contents)?((\.\w+|\['\w+'\])*)", of_closure, why)
        why = re.sub(r"G\['__import_\w+'\]\.(\w+)|G\['(\w+)'\]", r"\1\2", why)
        why = re.sub(r"L\['args'\]\[(\d+)\]", r"argument \1", why)
        why = re.sub(r"L\['kwargs'\]\['(\w+)'\]", r"argument \1", why)
        return why.replace("L['fn'].__self__", "self").replace("L['fn']", name)
