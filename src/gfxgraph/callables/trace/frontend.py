"""A function traced by Dynamo: as one graph, or as pieces with Python between them.

    find    a world in which the function was traced before, and in which this call may replay
    trace   one call by way of Dynamo, eagerly; its world: what it read, and whether it is one graph
    run     the same function again, in Dynamo's own code: guards, FX graphs, what is left in Python
    pieces  the same, each FX graph captured on its own, Python between them

Dynamo is asked without Inductor: the FX graph that it gives holds torch's own operations, so what a capture
records is what eager execution would have launched. Guards on module hooks are on, which torch leaves out.

A trace is *whole* where one graph stands for the call: Dynamo broke nowhere, the function left nothing behind in
Python but constants, drew no random numbers of the host and wrote to no host tensor. Then a replay of that graph
is the call. Everything else runs in pieces: Dynamo's code does the Python part anew each time.

Source: decision 0111; torch._dynamo (2.9 to 2.13) for what is asked of it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import logging
import re
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx._lazy_graph_module import _LazyGraphModule

from gfxgraph.callables.trace import corrections
from gfxgraph.callables.trace.found import BROKEN, Found, look, said, with_random_states
from gfxgraph.callables.trace.watch import PACKAGES, reads_state
from gfxgraph.callables.trace.world import Granted, World, asks_by_name, catches, is_of_mappings

_CONFIG = {
    "skip_nnmodule_hook_guards": False,
    "allow_unspec_int_on_nn_module": True,
    "suppress_errors": True,  # what Dynamo itself fails at runs as Python
    "inline_torch_dispatch_torch_compile": False,  # modes of ours may watch; those of others make the call eager
    "skip_no_tensor_aliasing_guards_on_parameters": False,
    "allow_empty_graphs": True,  # a function that does nothing has guards, too, for when it does something
    "use_numpy_random_stream": True,  # numbers of NumPy's, not of torch's, come from a break
    "rewrite_assert_with_torch_assert": False,  # else a device's assertion, of another class, would stand for it
    "allow_rnn": True,  # the FX graph holds torch's own operation, and runs as it stands
    "recompile_limit": 64,
    "accumulated_recompile_limit": 1024,
}
_RESUMED = "torch_dynamo_resume_in"
"""The names of the code that Dynamo makes for what follows a break. Each turn of a loop is one more trace of it."""
IDLE = "it does nothing on the device"
RAISED = "it raised an error while it was traced"
MOST_WORLDS = 32
"""Worlds kept of one function; the one used longest ago goes first."""
MAX_TRACES = 16
"""Of one function; beyond, calls in yet another world run eagerly."""
MAX_RAISED = 16
"""Calls of one function that raised while Dynamo traced them; beyond, what is given up stays so."""
MOST_GIVEN_UP = 256
"""Frames remembered that Dynamo has left to Python."""
MOST_STATIC_TRACES = 4
"""Traces with symbols for sizes in which the ints of modules are taken for constants."""


class Untraceable(Exception):
    """Dynamo leaves this function to Python; ``args[0]`` says why."""


class OnlyTraced(BaseException):
    """A piece was reached while a trace was all that was wanted: its graph is known, and nothing has run."""


class _Local(threading.local):
    is_raw = 0
    is_foreseeing = False
    found: list[Found] | None = None
    skipped: list[str] | None = None
    versions: _Versions | None = None


_local = _Local()
_lines = itertools.count(1)


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """FX graphs run as they stand inside: nothing is captured by a piece."""
    _local.is_raw += 1
    try:
        yield
    finally:
        _local.is_raw -= 1


def is_raw() -> bool:
    """True where a piece is part of what somebody else warms up, compares or captures."""
    return _local.is_raw > 0


def is_foreseeing() -> bool:
    """True where pieces are not to run."""
    return _local.is_foreseeing


class Frontend:
    """One function, as Dynamo sees it.

    Args:
        fn: the function, method or module; of a compiled one the code underneath is traced.
        make_piece: given what Dynamo found, a callable for its FX graph.
        dynamic: sizes are symbols from the first trace on.
    """

    def __init__(self, fn: Callable[..., Any], make_piece: Callable[[Found], Any], *, dynamic: bool) -> None:
        self.fn = fn
        self._make_piece = make_piece
        self._dynamic = True if dynamic else None
        self._lock = threading.RLock()
        self.n_traces = 0
        """Of calls that came to an end."""
        self.n_raised = 0
        """Calls that raised while they were traced."""
        self._given_up: set[types.CodeType] = set()
        """Code that Dynamo leaves to Python from now on."""
        self.keeps = ""
        """Why no call may go by way of Dynamo any more: a new trace would see what the function does not."""
        self.does_catch = False
        """Some of its code may go on after an error."""
        self.does_ask_by_name = False
        """It may ask an argument for an attribute that Python has given it, and find none."""
        self.does_ask_mappings = False
        """It asks a mapping of Python's own kind for a key that may be missing."""
        self._begin()

    def _begin(self) -> None:
        self._root = _root_of(self.fn)
        context = torch._dynamo.optimize(_backend_of(self), dynamic=self._dynamic)
        context.callback = _Configured(context.callback, self._settings)
        self._compiled = context(self._root)
        self._known: list[Any] = []
        """Trees of guards that have a world, in order of their traces."""
        self._foreseen: list[tuple[Any, Found]] = []
        """Trees of guards of what has been traced and not run."""
        self.worlds: list[World] = []
        self.graphs: list[tuple[Found, Any]] = []
        """Everything that Dynamo found for this function, with its piece."""
        self._inside = Granted()
        self._founds: list[tuple[Any, list[Found]]] = []
        """What was found for the function's own frame, by the tree of guards."""

    def _code(self) -> Callable[..., Any]:
        """Dynamo's code; made anew where that of a frame inside is for what is no longer so."""
        if self._inside.is_stale():
            with self._lock:
                self._begin()
        return self._compiled

    def note_frame(self, frame: Any, made: Any, n_before: int) -> None:
        """Dynamo has traced a frame: one inside, or the function's own, anew, in a call that runs in pieces.

        Args:
            n_before: how many graphs there were before.
        """
        guarded = getattr(made, "guarded_code", None)
        if guarded is None:
            if len(self._given_up) < MOST_GIVEN_UP:
                self._given_up.add(frame.f_code)
            return
        if frame.f_code is self._root.__code__:
            self._founds.append((guarded.guard_manager, [found for found, _ in self.graphs[n_before:]]))
        code = {frame.f_code, *(each for found, _ in self.graphs[n_before:] for each in found.code)}
        scope = {"G": frame.f_globals, "L": frame.f_locals}
        self._inside.note(guarded.guard_manager, scope, frozenset(code))
        self.keeps = self.keeps or self._inside.why_eager

    # -- the ways of a call ---------------------------------------------------------------------------

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The call in Dynamo's code, its graphs as they stand."""
        with raw():
            return self.pieces(*args, **kwargs)

    def pieces(self, *args: Any, **kwargs: Any) -> Any:
        """The call in Dynamo's code, each of its graphs captured on its own."""
        try:
            return self._code()(*args, **kwargs)
        except Exception:
            self._take_up()
            raise

    def _take_up(self) -> None:
        """A call has raised: what Dynamo gave up on its account is traced at the next call again, a few times."""
        given_up, self._given_up = self._given_up, set()
        if not given_up or self.n_raised >= MAX_RAISED:
            return
        self.n_raised += 1
        frames = torch._C._dynamo.eval_frame
        as_new = frames._FrameExecStrategy(frames._FrameAction.DEFAULT, frames._FrameAction.DEFAULT)
        for code in given_up:
            frames.set_code_exec_strategy(code, as_new)

    def why_no_more(self) -> str:
        """Why calls in a world that is not known are not traced any more; "" where they are."""
        if self.n_traces >= MAX_TRACES:
            return f"it was traced {MAX_TRACES} times, for what it depends on differs from call to call"
        if self.n_raised >= MAX_RAISED:
            return f"{MAX_RAISED} calls of it raised while they were traced"
        return ""

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> World | None:
        """The world of this call, if it was traced before; asks Dynamo's guards."""
        given = self._given(args, kwargs)
        with self._lock:
            if any(world.is_stale() for world in self.worlds):
                self._begin()  # Dynamo would take its old code for good
            for world in reversed(self.worlds):
                if world.holds(given):
                    if self.worlds[-1] is not world:
                        self.worlds.remove(world)
                        self.worlds.append(world)
                    return world
        return None

    def has_moved(self, world: World, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True where a tensor that the world reads is another one now; else what it read is watched anew."""
        if world.is_same():
            return False
        given = self._given(args, kwargs)
        if world.has_moved(given):
            return True
        world.rearm(given)
        return False

    def rebind(self, world: World, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the tensors that the world reads now for the ones that it reads."""
        world.rebind(self._given(args, kwargs))

    def why_not(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What is not as in the last world, as Dynamo says it; "" where it does not say."""
        if not self.worlds:
            return ""
        parts = self.worlds[-1].guards.check_verbose(self._given(args, kwargs)).verbose_code_parts
        return " ".join(str(parts[0]).split("#")[0].split()) if parts else ""

    def foresee(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Found, dict[str, Any]] | None:
        """The one graph that a call would run, and what its sources are evaluated in; nothing runs.

        None where the call would be more than a graph.
        """
        with self._lock:
            outer = _local.found, _local.is_foreseeing
            found: list[Found] = []
            _local.found, _local.is_foreseeing = found, True
            try:
                with torch._dynamo.error_on_graph_break(True):
                    self.run(*args, **kwargs)
            except OnlyTraced:
                pass
            except torch._dynamo.exc.TorchDynamoException:
                return None
            finally:
                _local.found, _local.is_foreseeing = outer
            self._keep(found)
            chosen = self._foreseen_for(args, kwargs)
            if chosen is None or chosen[1].root is not self._root.__code__ or chosen[1].why_not_whole:
                return None
            return chosen[1], {**chosen[0].closure_vars, "G": self._root.__globals__, "L": self._given(args, kwargs)}

    def _keep(self, found: list[Found]) -> None:
        """Remember what was traced and did not run to its end."""
        fresh = self._fresh()
        if fresh and found:
            self._foreseen.append((fresh[0], found[0]))

    def _fresh(self) -> list[Any]:
        """Trees of guards that are new."""
        seen = [*self._known, *[guards for guards, _ in self._foreseen]]
        return [each for each in _guards_of(self._root) if not any(each is old for old in seen)]

    def _foreseen_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Found] | None:
        given = self._given(args, kwargs)
        return next((each for each in self._foreseen if each[0].check(given)), None)

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, World]:
        """One call, eagerly, and its world.

        Raises:
            Untraceable: after the call has run; ``args[1]`` is its result.
        """
        with self._lock:
            self.n_traces += 1
            before = _local.found, _local.skipped
            found: list[Found] = []
            skipped: list[str] = []
            counters = torch._dynamo.utils.counters
            breaks, frames = dict(counters["graph_break"]), dict(counters["frames"])
            _local.found, _local.skipped = found, skipped
            versions = _Versions()
            try:
                with versions:
                    result = self.run(*args, **kwargs)
            except Exception:
                self.n_traces -= 1
                self._keep(found)
                raise
            finally:
                _local.found, _local.skipped = before
            new = self._fresh()
            chosen = None if new else self._foreseen_for(args, kwargs)
            if chosen is not None:
                self._foreseen.remove(chosen)
                new, found = [chosen[0]], [chosen[1]]
            if not new:
                known = self.find(args, kwargs)
                if known is not None:
                    return result, known
                failed = [counters["frames"][kind] - frames.get(kind, 0) for kind in ("total", "ok")]
                # Torch 2.11 does not say that it skips a frame in which nothing is done; it counts it as done.
                is_idle = not found and counters["graph_break"] == breaks and failed[0] == failed[1]
                why = skipped[0].splitlines()[0] if skipped else IDLE if is_idle else "Dynamo does not trace it"
                raise Untraceable(IDLE if "No ops traced" in why else why, result)
            self._known = [
                each for each in _guards_of(self._root) if not any(each is old for old, _ in self._foreseen)
            ]
            broke = [why for why, n in counters["graph_break"].items() if n > breaks.get(why, 0)]
            # A call in pieces may have traced it.
            found = found or next((each for guards, each in self._founds if guards is new[0]), [])
            world = self._world(new[0], found, broke, args, kwargs)
            world.written = versions.written_among(world.tensors)
            if not world.why_pieces and any(
                piece.draws_of_host for each, piece in self.graphs if any(each is one for one in found)
            ):
                world.why_pieces = "it draws random numbers of the host"
            if not world.why_pieces and any(not t.is_cuda for t in world.written):
                world.why_pieces = "it writes to a tensor on the host"
            self.keeps = self.keeps or world.why_eager
            self.worlds.append(world)
            del self.worlds[:-MOST_WORLDS]
            return result, world

    # -- inside ---------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """Settings for the next trace, beside those of all.

        With sizes as symbols Dynamo makes symbols of a module's ints at once, too: a switch becomes a SymBool, which
        no operation takes. So they stay numbers, unless they differ from trace to trace (a counter). Of floats (an
        eps, a dropout's p) it would make tensors, and read them back.
        """
        if not self._dynamic:
            return {}
        is_restless = self.n_traces > MOST_STATIC_TRACES
        return {"specialize_float": True, "allow_unspec_int_on_nn_module": is_restless}

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"args": args, "kwargs": kwargs, "fn": self.fn if not is_compiled(self.fn) else _under(self.fn)}

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
        world = World(guards, names, given, sources, [code for each in found for code in each.code])
        world.found = whole
        world.why_eager = next((each.why_eager for each in found if each.why_eager), world.why_eager)
        if whole is None:
            reasons = [f"{BROKEN}: {said(why)}" for why in broke]
            reasons += [self._told(each.why_not_whole) for each in found if each.why_not_whole]
            # The break itself may have been traced in a call that raised.
            world.why_pieces = reasons[0] if reasons else BROKEN if found else IDLE
        else:
            world.why_pieces = self._told(whole.why_not_whole)
            for source, name, value in whole.stores:
                world.stores.append((eval(source, {**names, "L": given}), name, value))
            if world.stores:
                world.rearm(given)
        if not world.why_pieces and not world.holds(given):
            world.why_pieces = "it changes what its next call reads"
        if world.reads_inside_arguments and not world.why_pieces:
            world.why_pieces = f"it reads {world.reads_inside_arguments.replace('L[', '', 1)} inside an argument"
        return world

    def _told(self, why: str) -> str:
        """A reason with the program's own names for what Dynamo calls by its sources."""
        fn = getattr(self.fn, "__func__", self.fn)
        free = getattr(getattr(fn, "__code__", None), "co_freevars", ())
        name = getattr(fn, "__name__", None) or type(fn).__name__

        def of_closure(match: re.Match[str]) -> str:
            at = int(match[1])
            return f"{free[at]}, from outside" if at < len(free) else match[0]

        why = re.sub(r"L\['fn'\]\.__closure__\[(\d+)\](\.cell_contents)?$", of_closure, why)
        why = re.sub(r"L\['args'\]\[(\d+)\]", r"argument \1", why)
        return re.sub(r"L\['kwargs'\]\['(\w+)'\]", r"argument \1", why).replace("L['fn']", name)

    def _backend(self, graph: Any, example_inputs: Any) -> Any:
        # Else its first run would go by way of nn.Module's call, and with it through hooks for all modules.
        _LazyGraphModule.force_recompile(graph)
        try:
            found = look(graph)
        except torch._dynamo.exc.SkipFrame as skipped:
            if _local.skipped is not None:
                _local.skipped.append(str(skipped))
            raise
        does_catch = any(catches(each) for each in found.code)
        self.does_ask_by_name = self.does_ask_by_name or any(map(asks_by_name, found.code))
        asking = [each for each in found.code if is_of_mappings(each)]
        self.does_ask_mappings = self.does_ask_mappings or bool(asking)
        self.does_catch = self.does_catch or any(catches(each) for each in found.code if each not in asking)
        if found.may_raise and does_catch:
            found.why_eager = found.why_eager or f"it catches what {found.may_raise} of a number may raise"
        with_random_states(graph)
        if _local.found is not None:
            _local.found.append(found)
        piece = self._make_piece(found)
        self.graphs.append((found, piece))
        return piece


def _backend_of(frontend: Frontend) -> Callable[[Any, Any], Any]:
    """Dynamo's backend for one frontend, which it does not hold: Dynamo keeps every backend for good."""
    owner = weakref.ref(frontend)

    def graphed(graph: Any, example_inputs: Any) -> Any:
        alive = owner()
        return graph.forward if alive is None else alive._backend(graph, example_inputs)

    weakref.finalize(frontend, torch._dynamo.eval_frame.cached_backends.pop, id(graphed), None).atexit = False
    return graphed


shielded: list[Any] = []
"""Functions that are breaks in code that others compile, and are traced into here."""


def shield(method: Any, *, from_us: bool = False) -> None:
    """Have Dynamo call the method instead of tracing into it: a graphed call inside compiled code is a break.

    By marking its code, as for the recorder: torch's own wrapper would cost each call more than a replay's frame.
    In a trace of ours it is part of what is traced, unless it is shielded from us, too.
    """
    if not from_us:
        shielded.append(method)
    method._torchdynamo_disable = True
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(method.__code__, skip)


@contextlib.contextmanager
def _unshielded() -> Iterator[None]:
    for each in shielded:
        each._torchdynamo_disable = False
    try:
        yield
    finally:
        for each in shielded:
            each._torchdynamo_disable = True


class _Configured:
    """Dynamo's callback under our settings; it is asked to trace again at any call, wherever that comes from."""

    def __init__(self, callback: Any, config: Callable[[], dict[str, Any]]) -> None:
        self._callback = callback
        self._config = weakref.WeakMethod(config)
        # Dynamo looks for the backend along these, to tell its cache entries apart.
        self._torchdynamo_orig_backend = callback
        self._torchdynamo_orig_callable = callback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own, known = self._config(), torch._dynamo.config
        wanted = {**_CONFIG, **(own() if own is not None else {})}
        if _local.is_foreseeing:
            wanted["suppress_errors"] = False  # or the function would run as Python
        if args[0].f_code.co_name.startswith(_RESUMED):
            wanted["recompile_limit"] = MAX_TRACES
        front: Frontend | None = None if own is None else own.__self__  # type: ignore[attr-defined]
        n_before = 0 if front is None else len(front.graphs)
        settings = {name: value for name, value in wanted.items() if hasattr(known, name)}
        with known.patch(settings), _unshielded(), _without_extras(), _as_needed(), _errors() as errors:
            made = self._callback(*args, **kwargs)
        reason = getattr(made, "skip_reason", None)
        if reason and _local.skipped is not None:
            _local.skipped.append(said(str(errors[-1])) if errors else reason)
        if front is not None:
            front.note_frame(args[0], made, n_before)
        return made


@functools.cache
def _for_logs() -> list[tuple[Any, str, Any, Any, list[str]]]:
    """What Dynamo does for its logs alone: where, by which name, as it is, what stands for it, and the logs."""
    guards, symbols = torch._dynamo.guards, torch._dynamo.symbolic_convert
    known = [
        (guards, "profile_guard_manager", lambda *_: 0.0, ["guards_log"]),
        (symbols, "get_funcname", lambda *_: None, ["trace_call_log", "trace_source_log"]),
    ]
    there = [each for each in known if all(hasattr(each[0], name) for name in (each[1], *each[3]))]
    return [(room, name, getattr(room, name), other, logs) for room, name, other, logs in there]


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Without measuring guards, which flushes the caches, and without reading whole files for the names of functions.

    50 and 100 ms a trace of a Llama of 16 layers; where the log is on, it has them.
    """
    for room, name, _, other, logs in _for_logs():
        if not any(getattr(room, log).isEnabledFor(logging.DEBUG) for log in logs):
            setattr(room, name, other)
    try:
        yield
    finally:
        for room, name, own, _, _ in _for_logs():
            setattr(room, name, own)


@contextlib.contextmanager
def _without_extras() -> Iterator[None]:
    """What a trace is spared: advice, what is for logs alone, the collector."""
    with _quiet(), _unlogged(), _uncollected():
        yield


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's collector: what a trace makes lives on, and looking through it again and again takes 6 %."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


@contextlib.contextmanager
def _breaking_in_loops() -> Iterator[None]:
    """Without Dynamo's rule that a break inside a loop leaves the whole frame to Python.

    It is there to keep the number of graphs low; what Dynamo makes is valid either way. Here Python between graphs
    is no fault, and the number of traces is bounded: of a long loop the first turns have graphs. A loop over
    anything but ``range`` keeps the rule: what follows such a break is guarded on the iterator's next elements, and
    asking an iterator that has fewer left raises IndexError in the program (seen with torch 2.11 and 2.13).
    """
    translator, asked = _has_backedge()
    if asked is None:
        yield
        return
    translator.maybe_has_backedge = lambda self: asked(self) and any(map(_is_iterator, self.stack))
    try:
        yield
    finally:
        translator.maybe_has_backedge = asked


@contextlib.contextmanager
def _errors() -> Iterator[list[Exception]]:
    """What Dynamo raises at a frame that it then leaves to Python, of which it says only that there was an error."""
    frames = torch._dynamo.convert_frame
    told, errors = frames.format_error_msg, []

    def tell(error: Exception, *about: Any) -> str:
        errors.append(error)
        return str(told(error, *about))

    frames.format_error_msg = tell
    try:
        yield errors
    finally:
        frames.format_error_msg = told


@contextlib.contextmanager
def _as_needed() -> Iterator[None]:
    """With Dynamo's rules changed that would give another answer, or leave more to Python."""
    with _breaking_in_loops(), _corrected(), corrections.corrected():
        yield


@contextlib.contextmanager
def _corrected() -> Iterator[None]:
    """With four things of Dynamo's as they must be here (seen with torch 2.11 and 2.13).

    A number or a string that a frame only hands on is guarded: Dynamo's code fetches it anew, a replay does not. A
    deque keeps its bound, which Dynamo forgets of one that the frame has not made. A number that changes is a
    string where it is formatted: Dynamo may take the number itself for it. What ``functools.lru_cache`` keeps is
    asked for by Python: Dynamo traces what is below the cache (``_is_kept``).
    """
    lazy: Any = getattr(torch._dynamo.variables.lazy, "LazyConstantVariable", None)
    builder, translator = torch._dynamo.variables.builder.VariableBuilder, _has_backedge()[0]
    wrapper = torch._dynamo.variables.functions.WrapperUserFunctionVariable
    kinds, wrap, format_value, call = (
        getattr(lazy, "supported_types", None),
        builder.wrap_listlike,
        translator._format_value,
        wrapper.call_function,
    )
    wrap_lazily = getattr(builder, "_wrap_lazy_constant", None)

    def wrap_with_bound(self: Any, value: Any) -> Any:
        made = wrap(self, value)
        if isinstance(value, collections.deque) and value.maxlen is not None:
            self.install_guards(torch._dynamo.guards.GuardBuilder.ID_MATCH)
            made.maxlen = torch._dynamo.variables.ConstantVariable.create(value.maxlen)
        return made

    def format_known(self: Any, *how: Any) -> Any:
        if isinstance(self.stack[-1], torch._dynamo.variables.SymNodeVariable):
            known = self.pop().evaluate_expr(self.output)
            self.push(torch._dynamo.variables.ConstantVariable.create(known))
        return format_value(self, *how)

    def wrap_at_once(self: Any, *what: Any) -> Any:
        self.allow_lazy_constant = False
        return wrap_lazily(self, *what)  # type: ignore[misc]

    def call_kept(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not _is_kept(self.wrapper_obj):
            return call(self, tx, args, kwargs)
        given = (*self.self_args(), *args, *kwargs.values())
        if not reads_state(self.wrapper_obj.__wrapped__) and all(each.is_python_constant() for each in given):
            made = call(self, tx, args, kwargs)
            if made.is_python_constant():
                return made
        name = self.wrapper_obj.__qualname__
        torch._dynamo.exc.unimplemented(
            gb_type="functools.lru_cache",
            context=name,
            explanation=f"{name} keeps results by functools.lru_cache, so Python calls it.",
            hints=[],
        )

    builder.wrap_listlike, translator._format_value = wrap_with_bound, format_known
    wrapper.call_function = call_kept
    if wrap_lazily is not None:
        builder._wrap_lazy_constant = wrap_at_once
    if lazy is not None and kinds is not None:
        lazy.supported_types = ()
    try:
        yield
    finally:
        builder.wrap_listlike, translator._format_value = wrap, format_value
        wrapper.call_function = call
        if wrap_lazily is not None:
            builder._wrap_lazy_constant = wrap_lazily
        if lazy is not None and kinds is not None:
            lazy.supported_types = kinds


def _is_kept(function: object) -> bool:
    """Whether the program itself keeps what a function returns; packages are trusted to keep what stays so."""
    if not isinstance(function, functools._lru_cache_wrapper):
        return False
    code = getattr(function.__wrapped__, "__code__", None)
    return code is not None and not PACKAGES.search(code.co_filename)


def _is_iterator(variable: object) -> bool:
    """Whether a loop goes over a sequence, as Dynamo's stack shows it."""
    name = type(variable).__name__
    return "Iterator" in name and not name.startswith("Range")


@functools.cache
def _has_backedge() -> Any:
    translator = torch._dynamo.symbolic_convert.InstructionTranslatorBase
    return translator, getattr(translator, "maybe_has_backedge", None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Dynamo's advice on graph breaks: here they are no fault, and ``explain()`` tells of them."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\._dynamo")
        log.setLevel(max(level, logging.ERROR))
        try:
            yield
        finally:
            log.setLevel(level)


def _guards_of(root: Any) -> list[Any]:
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(root.__code__)
    return [entry.guard_manager for entry in entries]


def _root_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A frame of this function's own for Dynamo to begin at: entries are kept by code object."""
    fn = _under(fn)

    def root(*args: Any, **kwargs: Any) -> Any:
        # Has Dynamo guard the keys of these, and their order: it guards none that a function does not find.
        for each in (*args, *kwargs.values(), kwargs):
            match each:
                case {}:
                    len(each)
                    list(each)
        return fn(*args, **kwargs)

    _prepare_dynamo()
    # What Dynamo learns of sizes and numbers that change it keeps by file and line: for each root its own.
    code = root.__code__.replace(co_name="call", co_filename="<graphed>", co_firstlineno=next(_lines))
    names = {"__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(code, names, "call", None, root.__closure__)


@functools.cache
def _prepare_dynamo() -> None:
    """Have Dynamo skip the rooms whose functions stand in the place of torch's, and run inside its operations.

    And tell it the shapes of what torch's encoder layer calls in inference: without them it breaks there.
    """
    for room in ("capture", "simulator"):
        torch._dynamo.trace_rules.add(f"gfxgraph.{room}")
    for name in ("_transformer_encoder_layer_fwd",):
        operation = getattr(torch.ops.aten, name, None)
        if operation is not None and not operation.default.has_kernel_for_dispatch_key("Meta"):
            with contextlib.suppress(RuntimeError):  # somebody else has told it
                torch.library.register_fake(f"aten::{name}", lambda source, *args, **kwargs: torch.empty_like(source))


def is_compiled(fn: Any) -> bool:
    """True for what ``torch.compile`` made."""
    return hasattr(fn, "_torchdynamo_orig_callable") or isinstance(fn, torch._dynamo.OptimizedModule)


def _under(fn: Any) -> Any:
    """The function under ``torch.compile``."""
    while is_compiled(fn):
        fn = fn._orig_mod if isinstance(fn, torch._dynamo.OptimizedModule) else fn._torchdynamo_orig_callable
    return fn


class _Versions:
    """Which tensors are written to inside a block: FX graphs that run inside tell what they were given."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Tensor, int]] = {}

    def __enter__(self) -> None:
        self._outer, _local.versions = _local.versions, self

    def __exit__(self, *error: object) -> None:
        _local.versions = self._outer

    def note(self, inputs: Any) -> None:
        """These are about to be given to an FX graph."""
        for each in inputs:
            if isinstance(each, Tensor) and not each.is_inference():
                self._before.setdefault(id(each), (each, each._version))

    def written_among(self, tensors: list[Tensor]) -> list[Tensor]:
        found = [self._before[id(t)] for t in tensors if id(t) in self._before]
        return [t for t, version in found if t._version != version]


def note_inputs(inputs: Any) -> None:
    """Called by a piece before its FX graph runs as it stands."""
    if _local.versions is not None:
        _local.versions.note(inputs)
