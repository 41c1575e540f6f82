"""A function traced by Dynamo: as one graph, or as pieces with Python between them.

    find    a world in which the function was traced before, and in which this call may replay
    trace   one call through Dynamo, eagerly; its world: what it read, and whether it is one graph
    run     the same function again, as Dynamo's own code: guards, FX graphs, what is left in Python
    pieces  the same, with each FX graph captured on its own

A trace is *whole* if one graph can replace the call: Dynamo had no graph break, the function left no side effects in
Python except constants, drew no host random numbers and wrote to no host tensor. Then a replay of that graph
is the call. Everything else runs in pieces: Dynamo's code repeats the Python part each time.

How Dynamo is called is in dynamo.py. Source: decision 0111.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.trace.corrections import Seen
from gfxgraph.callables.trace.dynamo import (
    MAX_TRACES,
    Configured,
    backend_of,
    local,
    root_of,
    under,
)
from gfxgraph.callables.trace.trace_result import BROKEN, WAITS, Found, said
from gfxgraph.callables.trace.world import Granted, World
from gfxgraph.core.locks import new_lock

IDLE = "it launches nothing on the device"
RAISED = "it raised an error while it was traced"
MOST_WORLDS = 32
"""Most worlds kept for one function; the least recently used is dropped first."""
MAX_RAISED = 16
"""Calls of one function that may raise while Dynamo traces them; beyond that, code left to Python stays so."""
MOST_GIVEN_UP = 256
"""Most frames remembered as left to Python by Dynamo."""


class Untraceable(Exception):
    """Dynamo leaves this function to Python; ``args[0]`` says why."""


class OnlyTraced(BaseException):
    """Raised by a piece when only a trace was wanted: its graph is known, and nothing has run."""


@dataclasses.dataclass
class _Entry:
    """One trace of the function's own frame: Dynamo's guards, and the FX graphs up to the first break."""

    guards: Any
    found: list[Found]
    has_world: bool = False


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Run FX graphs as they are inside this block: pieces capture nothing."""
    local.is_raw += 1
    try:
        yield
    finally:
        local.is_raw -= 1


class Frontend:
    """One function, as Dynamo sees it.

    Args:
        fn: the function, method or module; for a compiled one, the code underneath is traced.
        make_piece: makes a callable for an FX graph from what Dynamo found.
        dynamic: sizes are symbols from the first trace on.
    """

    def __init__(self, fn: Callable[..., Any], make_piece: Callable[[Found], Any], *, dynamic: bool) -> None:
        self.fn = fn
        self._called = under(fn)
        self.make_piece = make_piece
        self.is_dynamic = dynamic
        self._lock = new_lock()
        self.n_traces = 0
        """Number of calls that finished."""
        self.n_raised = 0
        """Number of calls that raised while they were traced."""
        self.seen: Seen = {}
        self._given_up: set[types.CodeType] = set()
        """Code that Dynamo leaves to Python from now on."""
        self.keeps = WAITS if inspect.iscoroutinefunction(fn) else ""
        """Why no call may go through Dynamo any more: a new trace would see something else than the function does."""
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
            self.seen.clear()
            self._begin()

    def _begin(self) -> None:
        self._root = root_of(self.fn)
        context = torch._dynamo.optimize(backend_of(self), dynamic=self.is_dynamic or None)
        context.callback = Configured(context.callback, self)
        self._compiled = context(self._root)
        self._entries: list[_Entry] = []
        """What was traced for the function's own frame."""
        self.worlds: list[World] = []
        self.graphs: list[tuple[Found, Any]] = []
        """Everything that Dynamo found for this function, with its piece."""
        self._inside: Granted | None = None
        """What Dynamo assumes without guards in all frames traced so far."""

    def _code(self) -> Callable[..., Any]:
        """Dynamo's code; remade if an inner frame's code is outdated."""
        if self._inside is not None and self._inside.is_stale():
            with self._lock:
                self._begin()
        return self._compiled

    def note_frame(self, frame: Any, made: Any, n_before: int) -> None:
        """Note that Dynamo traced a frame: an inner one, or the function's own again, in a call that runs in pieces.

        Args:
            n_before: the number of graphs before that.
        """
        guarded = getattr(made, "guarded_code", None)
        if guarded is None:
            if len(self._given_up) < MOST_GIVEN_UP:
                self._given_up.add(frame.f_code)
            return
        if frame.f_code is self._root.__code__:
            self.n_traces += not local.is_tracing
            self._entries.append(_Entry(guarded.guard_manager, [found for found, _ in self.graphs[n_before:]]))
        code = {frame.f_code, *(each for found, _ in self.graphs[n_before:] for each in found.code)}
        scope = {"G": frame.f_globals, "L": frame.f_locals}
        if self._inside is None:
            self._inside = Granted()
        replaced = [each for found, _ in self.graphs[n_before:] for each in found.replaced]
        self._inside.note(guarded.guard_manager, scope, frozenset(code), replaced)
        self.keeps = self.keeps or self._inside.why_eager

    # -- ways to run a call ---------------------------------------------------------------------------

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call as Dynamo's code, with its graphs as they are."""
        with raw():
            return self.pieces(*args, **kwargs)

    def pieces(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call as Dynamo's code, with each of its graphs captured on its own."""
        try:
            return self._code()(*args, **kwargs)
        except Exception:
            self._take_up()
            raise

    def _take_up(self) -> None:
        """After a call that raised: let the next call trace what Dynamo gave up because of it, a few times."""
        given_up, self._given_up = self._given_up, set()
        if not given_up or self.n_raised >= MAX_RAISED:
            return
        self.n_raised += 1
        frames = torch._C._dynamo.eval_frame
        as_new = frames._FrameExecStrategy(frames._FrameAction.DEFAULT, frames._FrameAction.DEFAULT)
        for code in given_up:
            frames.set_code_exec_strategy(code, as_new)

    def why_no_more(self) -> str:
        """Why calls in unknown worlds are not traced any more; "" if they are."""
        if self.n_traces >= MAX_TRACES:
            return f"it was traced {MAX_TRACES} times, because what it depends on changes from call to call"
        if self.n_raised >= MAX_RAISED:
            return f"{MAX_RAISED} of its calls raised an error while they were traced"
        return ""

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> World | None:
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

    def has_moved(self, world: World, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if a tensor that the world reads was replaced; otherwise start watching what it read again."""
        if world.is_same():
            return False
        given = self._given(args, kwargs)
        if world.has_moved(given):
            return True
        world.rearm(given)
        return False

    def rebind(self, world: World, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the world read the tensors found now."""
        world.rebind(self._given(args, kwargs))
        world.why_pieces = self.told(world.why_pieces)

    def restless(self) -> list[str]:
        """The numbers that operations take, and that are others at each call, as the program names them."""
        return list(dict.fromkeys(name for _, piece in self.graphs for name in piece.restless))

    def why_not(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What differs from the last world, in Dynamo's words; "" if Dynamo does not tell."""
        if not self.worlds:
            return ""
        parts = self.worlds[-1].guards.check_verbose(self._given(args, kwargs)).verbose_code_parts
        return " ".join(str(parts[0]).split("#")[0].split()) if parts else ""

    def foresee(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Found, dict[str, Any]] | None:
        """The one graph that a call would run, and the namespace of its sources, without running anything.

        None if the call would be more than a graph.
        """
        with self._lock:
            outer = local.found, local.is_foreseeing
            local.found, local.is_foreseeing = None, True
            try:
                with torch._dynamo.error_on_graph_break(True):
                    self.run(*args, **kwargs)
            except OnlyTraced:
                pass
            except torch._dynamo.exc.TorchDynamoException:
                return None
            finally:
                local.found, local.is_foreseeing = outer
            given = self._given(args, kwargs)
            entry = self._not_run(given)
            found = entry.found[0] if entry is not None and entry.found else None
            if entry is None or found is None or found.root is not self._root.__code__ or found.why_not_whole:
                return None
            return found, {**entry.guards.closure_vars, "G": self._root.__globals__, "L": given}

    def _not_run(self, given: dict[str, Any]) -> _Entry | None:
        """What was traced for such a call, in one that did not run to its end or was not to be traced."""
        return next((each for each in self._entries if not each.has_world and each.guards.check(given)), None)

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, World]:
        """Run one call eagerly, and return its world too.

        Raises:
            Untraceable: after the call has run; ``args[1]`` is its result.
        """
        with self._lock:
            self.n_traces += 1
            before = local.found, local.skipped
            was_tracing, local.is_tracing = local.is_tracing, True
            found: list[Found] = []
            skipped: list[str] = []
            counters = torch._dynamo.utils.counters
            breaks, frames = dict(counters["graph_break"]), dict(counters["frames"])
            local.found, local.skipped = found, skipped
            versions = _Versions()
            known_before = list(self._entries)
            try:
                with versions:
                    result = self.run(*args, **kwargs)
            except Exception:
                self.n_traces -= 1
                raise
            finally:
                local.found, local.skipped = before
                local.is_tracing = was_tracing
            new = [each for each in self._entries if not any(each is old for old in known_before)]
            entry = new[-1] if new else self._not_run(self._given(args, kwargs))
            if entry is None:
                known = self.find(args, kwargs)
                if known is not None:
                    return result, known
                failed = [counters["frames"][kind] - frames.get(kind, 0) for kind in ("total", "ok")]
                # Torch 2.11 does not report skipping a frame that does nothing; it counts it as done.
                is_idle = not found and counters["graph_break"] == breaks and failed[0] == failed[1]
                why = skipped[0].splitlines()[0] if skipped else IDLE if is_idle else "Dynamo cannot trace it"
                raise Untraceable(IDLE if "No ops traced" in why else why, result)
            entry.has_world = True
            broke = [why for why, n in counters["graph_break"].items() if n > breaks.get(why, 0)]
            found = found if new and found else entry.found
            world = self._world(entry.guards, found, broke, args, kwargs)
            seen = [versions.before.get(id(t)) for t in world.tensors]
            world.written = [each[0] for each in seen if each is not None and each[0]._version != each[1]]
            if not world.why_pieces and any(
                piece.draws_of_host for each, piece in self.graphs if any(each is one for one in found)
            ):
                world.why_pieces = "it draws random numbers on the host"
            if not world.why_pieces and any(not t.is_cuda for t in world.written):
                world.why_pieces = "it writes to a tensor on the host"
            self.keeps = self.keeps or world.why_eager
            self.worlds.append(world)
            del self.worlds[:-MOST_WORLDS]
            return result, world

    # -- inside ---------------------------------------------------------------------------------------

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"args": args, "kwargs": kwargs, "fn": self._called}

    def _world(self, guards: Any, found: list[Found], broke: list[str], args: Any, kwargs: Any) -> World:
        whole = found[0] if len(found) == 1 and found[0].root is self._root.__code__ else None
        names = {**guards.closure_vars, "G": self._root.__globals__}
        sources = []
        if whole is not None:
            sources = [
                each
                for each in (*whole.sources, *whole.returned)
                if each and not each.startswith(("L['args']", "L['kwargs']"))
            ]
        given = self._given(args, kwargs)
        stored = whole.stores if whole is not None else ()
        stores = [(eval(source, {**names, "L": given}), name, value) for source, name, value in stored]
        code = [code for each in found for code in each.code]
        world = World(guards, names, given, sources, code, stores, whole.replaced if whole is not None else ())
        world.found, world.is_one = whole, whole is not None and not whole.is_broken
        world.why_eager = next((each.why_eager for each in found if each.why_eager), world.why_eager)
        if whole is None:
            reasons = [f"{BROKEN}: {said(why)}" for why in broke]
            reasons += [self.told(each.why_not_whole) for each in found if each.why_not_whole]
            # The code after the break may have been traced earlier, in a call that raised.
            world.why_pieces = reasons[0] if reasons else BROKEN if found or self.graphs else IDLE
        else:
            world.why_pieces = self.told(whole.why_not_whole) if whole.why_not_whole else ""
        if not world.why_pieces and not world.holds(given):
            world.why_pieces = "it changes what its next call reads"
        if world.reads_inside_arguments and not world.why_pieces:
            world.why_pieces = f"it reads {world.reads_inside_arguments.replace('L[', '', 1)} inside an argument"
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


class _Versions:
    """Detects which tensors are written inside a block: FX graphs that run inside report their inputs."""

    def __init__(self) -> None:
        self.before: dict[int, tuple[Tensor, int]] = {}

    def __enter__(self) -> None:
        self._outer, local.versions = local.versions, self

    def __exit__(self, *error: object) -> None:
        local.versions = self._outer

    def note(self, inputs: Any) -> None:
        """Note tensors that are about to be passed to an FX graph."""
        for each in inputs:
            if isinstance(each, Tensor) and not each.is_inference():
                self.before.setdefault(id(each), (each, each._version))


def note_inputs(inputs: Any) -> None:
    """Called by a piece before it runs its FX graph as it is."""
    if local.versions is not None:
        local.versions.note(inputs)
