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

Source: decision 0111; torch._dynamo (2.9 to 2.13) for its interfaces.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import itertools
import logging
import re
import signal
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.trace import same_code
from gfxgraph.callables.trace.corrections import Seen, correct, put
from gfxgraph.callables.trace.trace_result import (
    BROKEN,
    WAITS,
    Found,
    asks_by_name,
    catches,
    is_of_mappings,
    look,
    said,
    with_random_states,
)
from gfxgraph.callables.trace.world import ROOT, Granted, World
from gfxgraph.core.locks import new_lock

_CONFIG = {
    "skip_nnmodule_hook_guards": False,
    "allow_unspec_int_on_nn_module": True,
    "suppress_errors": True,  # code at which Dynamo itself fails runs as Python
    "inline_torch_dispatch_torch_compile": False,  # our modes may watch; others' make the call eager
    "skip_guards_on_constant_func_defaults": False,  # before 2.13 a list is such a constant, too
    "skip_no_tensor_aliasing_guards_on_parameters": False,
    "allow_empty_graphs": True,  # a function that does nothing needs guards, too
    "use_numpy_random_stream": True,  # NumPy's random numbers must not become torch's
    "rewrite_assert_with_torch_assert": False,  # else a failed assert would raise another class, on the device
    "optimize_ddp": False,  # it splits at a DDP's buckets; one graph each way is faster than their overlap (0357)
    "allow_rnn": True,  # the FX graph holds torch's own operation, and runs as it is
    "recompile_limit": 64,
    "accumulated_recompile_limit": 1024,
}
_RESUMED = "torch_dynamo_resume_in"
"""Prefix of the code that Dynamo makes for what follows a graph break. Each iteration of a loop is one more trace of
it.
"""
MAX_TRACES = 16
"""Traces of one function; beyond that, calls in new worlds run eagerly."""
MOST_STATIC_TRACES = 4
"""Traces with symbolic sizes in which the ints of modules are taken as constants."""


Args = tuple[Any, ...]
Kwargs = dict[str, Any]
NOTHING_RETURNED = None, None, False
OWN = "an error in gfxgraph itself"
CHANGED = (AttributeError, ImportError, LookupError, NameError, TypeError)
"""How code ends that meets another version of what it calls."""


class _Local(threading.local):
    """This thread's activity with Dynamo."""

    is_raw = 0
    """Nesting depth of warm-ups, comparisons or captures by others, in which a piece runs its FX graph as it is."""
    is_tracing = False
    """Whether a call is traced whose trace is counted."""
    n_eager = n_warm_ups = n_ran = 0
    """Calls of functions and pieces that ran without a graph; those of them that were warm-ups; calls of pieces."""
    why_eager = ""
    """The reason of the last of them."""
    found: list[Found] | None = None
    skipped: list[str] | None = None
    versions: dict[int, tuple[Tensor, int]] | None = None
    """Where FX graphs that run note their inputs, with the versions before that: by id."""
    returned: tuple[object, Any, bool] = NOTHING_RETURNED
    """The keyword arguments of a call whose function has run: it must not run again; its result; is it counted?"""
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


_lines = itertools.count(1)


def backend_of(frontend: Frontend) -> Callable[[Any, Any], Any]:
    """Dynamo's backend for one frontend. It holds the frontend weakly, because Dynamo keeps every backend forever."""
    owner = weakref.ref(frontend)

    def graphed(graph: Any, example_inputs: Any) -> Any:
        alive = owner()
        return graph.forward if alive is None else _backend(alive, graph)

    weakref.finalize(frontend, torch_names.cached_backends.pop, id(graphed), None).atexit = False
    return graphed


def _backend(front: Frontend, graph: Any) -> Any:
    """Examine an FX graph that Dynamo has made, and give Dynamo what to call instead."""
    # Otherwise its first run would go through nn.Module's call, and through the hooks for all modules.
    torch_names._LazyGraphModule.force_recompile(graph)
    try:
        found = look(graph)
    except torch_names.SkipFrame as skipped:
        if local.skipped is not None:
            local.skipped.append(str(skipped))
        raise
    does_catch = any(catches(each) for each in found.code)
    front.note_code(found.code)
    if found.may_raise and does_catch:
        found.why_eager = found.why_eager or f"it catches what {found.may_raise} of a number may raise"
    with_random_states(graph)
    if local.found is not None:
        local.found.append(found)
    found.names = [front.told(source) for source in found.sources]
    return front.call_of(found)


shielded: list[Any] = []
"""Functions that are graph breaks in code compiled by others, and are traced here."""


def shield(method: Any, *, from_us: bool = False) -> None:
    """Make Dynamo call the method instead of tracing into it: a graphed call in compiled code is a graph break.

    Done by marking its code, as for the recorder: torch's own wrapper would cost each call more than a replay's
    frame.
    Traces of ours include it, unless it is shielded from us, too.
    """
    if not from_us:
        shielded.append(method)
    method._torchdynamo_disable = True
    torch_names.have_dynamo("SKIP", method.__code__)


class Configured:
    """Dynamo's callback under our settings; it may be called to trace again in any later call."""

    def __init__(self, callback: Any, frontend: Frontend) -> None:
        self._callback = callback
        self._owner = weakref.ref(frontend)
        # Dynamo follows these attributes to the backend, to tell its cache entries apart.
        self._torchdynamo_orig_backend = callback
        self._torchdynamo_orig_callable = callback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._trace(*args, **kwargs)
        except CHANGED as error:  # Dynamo itself leaves out few; the frame runs as Python
            if local.skipped is not None:
                local.skipped.append(said(f"{type(error).__name__}: {error}"))
            return torch_names.ConvertFrameReturn()

    def _trace(self, *args: Any, **kwargs: Any) -> Any:
        if torch_names.trace_rules.check(args[0].f_code):
            return self._callback(*args, **kwargs)  # left to Python at once: what Dynamo's own code calls, say
        front, known = self._owner(), torch_names.dynamo_config
        wanted = {**_CONFIG, **(_for_symbols(front) if front is not None and front.is_dynamic else {})}
        wanted["trace_autograd_ops"] = front is not None and front.traces_gradients  # torch 2.11 and later
        if args[0].f_code.co_name.startswith(_RESUMED):
            wanted["recompile_limit"] = MAX_TRACES
        n_before = 0 if front is None else len(front.graphs)
        settings = {name: value for name, value in wanted.items() if hasattr(known, name)}
        errors: list[Exception] = []
        seen: Seen = {} if front is None else front.seen
        # Other threads' compilations have Dynamo's own rules: they wait here, as they would inside.
        lock = torch_names.compile_lock
        with lock, contextlib.ExitStack() as uncollected:
            _leave_uncollected(uncollected)
            with Waiting(), contextlib.ExitStack() as changes, warnings.catch_warnings():
                _quieten(changes)
                for each in shielded:
                    put(changes, each, "_torchdynamo_disable", False)
                for name, value in settings.items():
                    put(changes, known, name, value)
                correct(changes, errors, seen, set() if front is None else front.remarks)
                made = self._callback(*args, **kwargs)
                _keep_external()
            if front is not None and errors and isinstance(errors[-1], RecursionError):
                front.is_too_deep = True
            reason = getattr(made, "skip_reason", None)
            if reason and local.skipped is not None:
                local.skipped.append(said(str(errors[-1])) if errors else reason)
            if front is not None:
                front.note_frame(args[0], made, n_before)
        return made


_external: dict[int, Any] = {}


def _keep_external() -> None:
    """Keep the streams and events that a trace met.

    Dynamo refers to them weakly. Once one was gone, the next trace ended in a segmentation fault (torch 2.11, CUDA).
    """
    for ref in (torch_names.index_to_external_object_weakref or {}).values():
        _external[id(ref())] = ref()


def _for_symbols(front: Frontend) -> dict[str, Any]:
    """Additional settings for the next trace with symbolic sizes.

    Dynamo would also make symbols of a module's ints: a switch becomes a SymBool, which no operation accepts. So
    they stay numbers, unless they differ from trace to trace (a counter). Floats (an eps, a dropout's p) would become
    tensors that are read back.
    """
    is_restless = front.n_traces > MOST_STATIC_TRACES
    return {"specialize_float": True, "allow_unspec_int_on_nn_module": is_restless}


def _leave_uncollected(changes: contextlib.ExitStack) -> None:
    """Turn Python's garbage collector off: what a trace makes stays alive, and scanning it repeatedly takes 6 %."""
    if gc.isenabled():
        changes.callback(gc.enable)
        gc.disable()


def _quieten(changes: contextlib.ExitStack) -> None:
    """Silence Dynamo's advice on graph breaks: they are acceptable here, and ``explain()`` reports them."""
    warnings.filterwarnings("ignore", module=r"torch\._dynamo")
    log = logging.getLogger(torch_names.DYNAMO)
    changes.callback(log.setLevel, log.level)
    log.setLevel(max(log.level, logging.ERROR))


def root_of(fn: Callable[..., Any]) -> types.FunctionType:
    """A root frame of this function's own for Dynamo: it keeps its entries by code object."""
    fn = under(fn)

    def root(*args: Any, **kwargs: Any) -> Any:
        # Makes Dynamo guard the keys of these, and their order: it does not guard keys that a function looks for in
        # vain.
        for each in (*args, *kwargs.values(), kwargs):
            if isinstance(each, dict):
                len(each)
                list(each)
        return fn(*args, **kwargs)

    _prepare_dynamo()
    # Dynamo stores what it learns about changing sizes and numbers by file and line: each root has its own.
    code = root.__code__.replace(co_name="call", co_filename=ROOT, co_firstlineno=next(_lines))
    names = {"__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(code, names, "call", None, root.__closure__)


@functools.cache
def _prepare_dynamo() -> None:
    """Make Dynamo skip the rooms whose functions replace torch's, and run inside its operations.

    Also register the shapes of what torch's encoder layer calls in inference: without them Dynamo breaks there.
    """
    for module in ("gfxgraph.capture", "gfxgraph_simulator"):
        torch_names.trace_rules.add(module)
    for name in ("_transformer_encoder_layer_fwd",):
        operation = getattr(torch.ops.aten, name, None)
        if operation is not None and not operation.default.has_kernel_for_dispatch_key("Meta"):
            with contextlib.suppress(RuntimeError):  # already registered elsewhere
                torch.library.register_fake(f"aten::{name}", lambda source, *args, **kwargs: torch.empty_like(source))


def _bound(code: types.CodeType, names: dict[str, object], root: types.FunctionType) -> Callable[..., Any] | None:
    """Dynamo's code for a root frame, as a function that asks no guards."""
    if code.co_freevars != root.__code__.co_freevars:
        return None
    return types.FunctionType(code, names, "call", None, root.__closure__)


def is_compiled(fn: Any) -> bool:
    """True for results of ``torch.compile``."""
    return hasattr(fn, "_torchdynamo_orig_callable") or isinstance(fn, torch_names.OptimizedModule)


def under(fn: Any) -> Any:
    """The function inside ``torch.compile``'s wrapper."""
    while is_compiled(fn):
        fn = fn._orig_mod if isinstance(fn, torch_names.OptimizedModule) else fn._torchdynamo_orig_callable
    return fn


Handler = Callable[[int, FrameType | None], object]


class Waiting:
    """A block at whose end the signals that came meanwhile are handled, where they are: in the main thread.

    Python runs a signal's handler between any two of its instructions. Dynamo's own blocks stay half left then, and
    where C++ that may not throw has called Python, the process aborts (torch 2.13). So Python's handlers are
    put aside and what has come is raised anew at the end; SIGINT is the first to be put aside and the last to be put
    back. A second signal of the same kind does not wait: a trace takes seconds, and somebody means it.

    Source: tests/property/faults_mixed.py.
    """

    def __init__(self) -> None:
        self._came: set[int] = set()
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in sorted(signal.valid_signals(), key=lambda number: number != signal.SIGINT):
                handler = signal.getsignal(number)
                if callable(handler) and not isinstance(handler, signal.Handlers):
                    held = functools.partial(self._hold, handler)
                    self._handlers.callback(_exchange, number, held, handler)
                    signal.signal(number, held)
        return self

    def _hold(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        if number in self._came:
            handler(number, frame)
        self._came.add(number)

    def __exit__(self, *_: object) -> None:
        self._handlers.close()
        while self._came:
            signal.raise_signal(self._came.pop())


def _exchange(number: int, held: object, handler: Handler) -> None:
    """Put the handler back, unless somebody else has set one."""
    if signal.getsignal(number) is held:
        signal.signal(number, handler)


# -- one function ------------------------------------------------------------------------------------------

IDLE = "it launches nothing on the device"
CHANGES_ITSELF = "it changes what its next call reads"
MOST_WORLDS = 32
"""Most worlds kept for one function; the least recently used is dropped first."""
MAX_RAISED = 16
"""Calls of one function that may raise while Dynamo traces them; beyond that, code left to Python stays so."""
MOST_GIVEN_UP = 256
"""Most frames remembered as left to Python by Dynamo."""


class Untraceable(Exception):
    """Dynamo leaves this function to Python; ``args[0]`` says why."""


@dataclasses.dataclass
class _Entry:
    """One trace of the function's own frame: Dynamo's guards, and the FX graphs up to the first break."""

    guards: Any
    found: list[Found]
    code: types.CodeType
    names: dict[str, object]
    """The globals that the code and the guards were made with."""
    has_world: bool = False


def _why_untraced(skipped: list[str], is_idle: bool) -> str:
    why = skipped[0].splitlines()[0] if skipped else IDLE if is_idle else "Dynamo cannot trace it"
    return IDLE if "No ops traced" in why else why


class Frontend:
    """One function, as Dynamo sees it.

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
        self.seen: Seen = {}
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
            self.seen.clear()
            self._begin()
            same_code.forget(self._key)

    def _begin(self) -> None:
        self._root = root_of(self.fn)
        context = torch_names.dynamo_optimize(backend_of(self), dynamic=self.is_dynamic or None)
        context.callback = Configured(context.callback, self)
        self._compiled = context(self._root)
        self._entries: list[_Entry] = []
        """What was traced for the function's own frame."""
        self.worlds: list[World] = []
        self.graphs: list[tuple[Found, Any]] = []
        """Everything that Dynamo found for this function, with what its code calls for that."""
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
            # torch 2.9 traces a world again where a capture begins: a guard compares what a recorder changes.
            self.n_traces += not (local.is_tracing or local.is_raw)
            found = [found for found, _ in self.graphs[n_before:]]
            self._entries.append(_Entry(guarded.guard_manager, found, guarded.code, frame.f_globals))
        code = {frame.f_code, *(each for found, _ in self.graphs[n_before:] for each in found.code)}
        scope = {"G": frame.f_globals, "L": frame.f_locals}
        if self._inside is None:
            self._inside = Granted()
        replaced = [each for found, _ in self.graphs[n_before:] for each in found.replaced]
        self._inside.note(guarded.guard_manager, scope, frozenset(code), replaced)
        self.keeps = self.keeps or self._inside.why_eager

    def note_code(self, code: Iterable[types.CodeType]) -> None:
        """Note what code that is traced may ask of its arguments."""
        asking = [each for each in code if is_of_mappings(each)]
        self.does_ask_by_name = self.does_ask_by_name or any(map(asks_by_name, code))
        self.does_ask_mappings = self.does_ask_mappings or bool(asking)
        self.does_catch = self.does_catch or any(catches(each) for each in code if each not in asking)

    def call_of(self, found: Found) -> Callable[..., Any]:
        """What Dynamo's code calls for an FX graph; its globals, which other instances keep, do not keep that."""
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
        if not given_up or self.n_raised >= MAX_RAISED:
            return
        self.n_raised += 1
        torch_names.have_dynamo("DEFAULT", *given_up)

    def why_no_more(self) -> str:
        """Why calls in unknown worlds are not traced any more; "" if they are."""
        if self.n_traces >= MAX_TRACES:
            return f"it was traced {MAX_TRACES} times, because what it depends on changes from call to call"
        if self.n_raised >= MAX_RAISED:
            return f"{MAX_RAISED} of its calls raised an error while they were traced"
        return ""

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

    def _not_run(self, given: dict[str, Any]) -> _Entry | None:
        """What was traced for such a call, in one that did not run to its end or was not to be traced."""
        return next((each for each in self._entries if not each.has_world and each.guards.check(given)), None)

    def trace(self, args: Args, kwargs: Kwargs, kind: object = None) -> tuple[Any, World]:
        """Run one call eagerly, and return its world too.

        Args:
            kind: what Dynamo does not guard of its arguments; if None, no trace of another instance is taken.

        Raises:
            Untraceable: after the call has run; ``args[1]`` is its result.
        """
        with self._lock:
            if kind is not None and (taken := self._take(args, kwargs, kind)) is not None:
                return self._run_taken(taken, args, kwargs), taken
            self.n_traces += 1
            if self.is_too_deep:
                self.is_too_deep = False
                torch_names.have_dynamo("DEFAULT", *self._given_up)
                self._given_up.clear()
            self._code()
            n_known = len(self._entries)
            before = local.found, local.skipped, local.versions
            was_tracing, local.is_tracing = local.is_tracing, True
            found: list[Found] = []
            skipped: list[str] = []
            counters = torch_names.dynamo_counters
            breaks, frames = dict(counters["graph_break"]), dict(counters["frames"])
            versions: dict[int, tuple[Tensor, int]] = {}
            local.found, local.skipped, local.versions = found, skipped, versions
            try:
                result = self.run(*args, **kwargs)
            except Exception:
                self.n_traces -= 1
                raise
            finally:
                local.found, local.skipped, local.versions = before
                local.is_tracing = was_tracing
            try:
                new = self._entries[n_known:]
                entry = new[-1] if new else self._not_run(self._given(args, kwargs))
                if entry is None:
                    known = self.find(args, kwargs)
                    if known is not None:
                        return result, known
                    self.n_traces -= self.is_too_deep
                    failed = [counters["frames"][each] - frames.get(each, 0) for each in ("total", "ok")]
                    # Torch 2.11 does not report skipping a frame that does nothing; it counts it as done.
                    is_idle = not found and counters["graph_break"] == breaks and failed[0] == failed[1]
                    raise Untraceable(_why_untraced(skipped, is_idle), result)
                entry.has_world = True
                broke = [why for why, n in counters["graph_break"].items() if n > breaks.get(why, 0)]
                found = found if new and found else entry.found
                with contextlib.ExitStack() as changes:
                    _leave_uncollected(changes)
                    world = self._world(entry, found, broke, args, kwargs)
                world.note_written(versions)
                self.keeps = self.keeps or world.why_eager
                self.worlds.append(world)
                del self.worlds[:-MOST_WORLDS]
                return result, world
            except CHANGED as error:
                raise Untraceable(f"{OWN}: {type(error).__name__}: {error}", result) from error

    def offer(self, world: World, args: Args, kwargs: Kwargs, kind: object) -> None:
        """Have other instances of the code take the trace of a world, if it holds nothing of this one alone."""
        entry = next((each for each in self._entries if each.guards is world.guards), None)
        is_own = world.asks_guards or world.why_eager or world.takes_gradients or self.keeps or not world.run
        if entry is None or is_own:
            return
        alive = same_code.compared_by_address(world.guards.root, {**world._names, "L": self._given(args, kwargs)})
        if alive is not None and same_code.name_of_graph(world.found, entry.code, entry.names):
            of_frame, found, remarks = (world.guards, entry.names, entry.code), copy.copy(world.found), self.remarks
            trace = same_code.SharedTrace(*of_frame, found, frozenset(remarks), kind, world.facts, alive)
            same_code.keep(self._key, trace)

    def _take(self, args: Args, kwargs: Kwargs, kind: object) -> World | None:
        """The world of a call that Dynamo's code for another instance serves; None if there is none."""
        given = self._given(args, kwargs)
        for trace in same_code.known(self._key):
            if not trace.serves(kind, given):
                continue
            found = dataclasses.replace(trace.found, root=self._root.__code__)
            entry = _Entry(trace.guards, [found], trace.code, trace.names)
            try:
                with contextlib.ExitStack() as changes:
                    _leave_uncollected(changes)
                    world = self._world(entry, [found], [], args, kwargs)
            except CHANGED:  # it lacks something that the trace read
                continue
            if same_code.same_facts(trace.facts, world.facts) and not world.why_eager and not world.why_pieces:
                self.note_code(found.code)
                self.remarks |= trace.remarks
                found.names = [self.told(source) for source in found.sources]
                graph = {same_code.name_of_graph(found, trace.code, trace.names): self.call_of(found)}
                world.run = _bound(trace.code, {**trace.names, **graph}, self._root)
                world.is_taken = True
                return world
        return None

    def _run_taken(self, world: World, args: Args, kwargs: Kwargs) -> Any:
        """Run a call eagerly as another instance's trace; from now on that is a world of this one, too."""
        before, versions = local.versions, dict[int, tuple[Tensor, int]]()
        local.versions = versions
        try:
            result = self.run_in(world, args, kwargs)
        finally:
            local.versions = before
        world.note_written(versions)
        given = self._given(args, kwargs)
        world.why_pieces = world.found.effect or ("" if world.holds(given) else CHANGES_ITSELF)
        if not world.is_same() and world.has_moved(given):
            world.rebind(given)
        elif not world.is_same():
            world.rearm(given)
        self.worlds.append(world)
        del self.worlds[:-MOST_WORLDS]
        return result

    # -- inside ---------------------------------------------------------------------------------------

    def _given(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        return {"args": args, "kwargs": kwargs, "fn": self._called}

    def _world(self, entry: _Entry, found: list[Found], broke: list[str], args: Args, kwargs: Kwargs) -> World:
        whole = found[0] if len(found) == 1 and found[0].root is self._root.__code__ else None
        names = {**entry.guards.closure_vars, "G": entry.names}
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
        replaced = whole.replaced if whole is not None else ()
        world = World(entry.guards, names, given, sources, code, stores, replaced)
        world.found, world.is_one = whole, whole is not None and not whole.is_broken
        world.run = _bound(entry.code, entry.names, self._root) if world.is_one else None
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
