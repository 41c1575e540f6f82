"""How Dynamo is called: our settings around each of its traces, its backend, and the first frame.

Dynamo runs without Inductor: its FX graph holds torch's own operations, so a capture
records what eager execution would have launched. Guards on module hooks, which torch leaves off, are on.

Source: decision 0111; torch._dynamo (2.9 to 2.13) for its interfaces.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import logging
import signal
import sys
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from gfxgraph.callables.trace.corrections import Seen, correct, put
from gfxgraph.callables.trace.trace_result import (
    Found,
    asks_by_name,
    catches,
    is_of_mappings,
    look,
    said,
    with_plain_regions,
    with_random_states,
)

if TYPE_CHECKING:
    from gfxgraph.callables.trace.frontend import Frontend, _Versions

_CONFIG = {
    "skip_nnmodule_hook_guards": False,
    "allow_unspec_int_on_nn_module": True,
    "suppress_errors": True,  # code at which Dynamo itself fails runs as Python
    "inline_torch_dispatch_torch_compile": False,  # our modes may watch; others' make the call eager
    "skip_no_tensor_aliasing_guards_on_parameters": False,
    "allow_empty_graphs": True,  # a function that does nothing needs guards, too
    "use_numpy_random_stream": True,  # NumPy's random numbers must not become torch's
    "rewrite_assert_with_torch_assert": False,  # else a failed assert would raise another class, on the device
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


class _Local(threading.local):
    """This thread's activity with Dynamo."""

    is_raw = 0
    """Nesting depth of warm-ups, comparisons or captures by others, in which a piece runs its FX graph as it is."""
    is_tracing = False
    """Whether a call is traced whose trace is counted."""
    n_eager = n_warm_ups = 0
    """Calls of functions and of pieces that ran without a graph; those of them that were warm-ups."""
    is_foreseeing = False
    """Whether pieces must not run."""
    found: list[Found] | None = None
    skipped: list[str] | None = None
    versions: _Versions | None = None


local = _Local()


class Calls(Counter[str]):
    """Calls that were not replayed, by reason. Within one call, what this thread counts tells how that call ran."""

    def count(self, why: str, *, is_eager: bool = True) -> None:
        """Count one, from any thread."""
        if is_eager:
            local.n_eager += 1
            local.n_warm_ups += why == WARM_UP
        with _counting:
            self[why] += 1


WARM_UP = "warm-up"
_counting = threading.Lock()


def is_traced_here() -> bool:
    """Whether this thread's call is part of a trace, where torch's own flag says that some thread's is."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is None:
        return True
    if not frames.compile_lock.acquire(blocking=False):
        return False
    frames.compile_lock.release()
    return True


_lines = itertools.count(1)


def backend_of(frontend: Frontend) -> Callable[[Any, Any], Any]:
    """Dynamo's backend for one frontend. It holds the frontend weakly, because Dynamo keeps every backend forever."""
    owner = weakref.ref(frontend)

    def graphed(graph: Any, example_inputs: Any) -> Any:
        alive = owner()
        return graph.forward if alive is None else _backend(alive, graph)

    weakref.finalize(frontend, torch._dynamo.eval_frame.cached_backends.pop, id(graphed), None).atexit = False
    return graphed


def _backend(front: Frontend, graph: Any) -> Any:
    """Examine an FX graph that Dynamo has made, and give Dynamo a piece to call instead."""
    # Otherwise its first run would go through nn.Module's call, and through the hooks for all modules.
    _LazyGraphModule.force_recompile(graph)
    try:
        found = look(graph)
    except torch._dynamo.exc.SkipFrame as skipped:
        if local.skipped is not None:
            local.skipped.append(str(skipped))
        raise
    does_catch = any(catches(each) for each in found.code)
    front.does_ask_by_name = front.does_ask_by_name or any(map(asks_by_name, found.code))
    asking = [each for each in found.code if is_of_mappings(each)]
    front.does_ask_mappings = front.does_ask_mappings or bool(asking)
    front.does_catch = front.does_catch or any(catches(each) for each in found.code if each not in asking)
    if found.may_raise and does_catch:
        found.why_eager = found.why_eager or f"it catches what {found.may_raise} of a number may raise"
    with_plain_regions(graph)
    with_random_states(graph)
    if local.found is not None:
        local.found.append(found)
    found.names = [front.told(source) for source in found.sources]
    piece = front.make_piece(found)
    front.graphs.append((found, piece))
    return piece


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
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(method.__code__, skip)


class Configured:
    """Dynamo's callback under our settings; it may be called to trace again in any later call."""

    def __init__(self, callback: Any, frontend: Frontend) -> None:
        self._callback = callback
        self._owner = weakref.ref(frontend)
        # Dynamo follows these attributes to the backend, to tell its cache entries apart.
        self._torchdynamo_orig_backend = callback
        self._torchdynamo_orig_callable = callback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        front, known = self._owner(), torch._dynamo.config
        wanted = {**_CONFIG, **(_for_symbols(front) if front is not None and front.is_dynamic else {})}
        if local.is_foreseeing:
            wanted["suppress_errors"] = False  # otherwise the function would run as Python
        if args[0].f_code.co_name.startswith(_RESUMED):
            wanted["recompile_limit"] = MAX_TRACES
        n_before = 0 if front is None else len(front.graphs)
        settings = {name: value for name, value in wanted.items() if hasattr(known, name)}
        errors: list[Exception] = []
        seen: Seen = {} if front is None else front.seen
        # Other threads' compilations have Dynamo's own rules: they wait here, as they would inside.
        lock = torch._dynamo.convert_frame.compile_lock
        with lock, Waiting(), contextlib.ExitStack() as changes, warnings.catch_warnings():
            for name, value in settings.items():
                put(changes, known, name, value)
            for each in shielded:
                put(changes, each, "_torchdynamo_disable", False)
            _quieten(changes)
            _leave_uncollected(changes)
            correct(changes, errors, seen)
            made = self._callback(*args, **kwargs)
        reason = getattr(made, "skip_reason", None)
        if reason and local.skipped is not None:
            local.skipped.append(said(str(errors[-1])) if errors else reason)
        if front is not None:
            front.note_frame(args[0], made, n_before)
        return made


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
    log = logging.getLogger("torch._dynamo")
    changes.callback(log.setLevel, log.level)
    log.setLevel(max(log.level, logging.ERROR))


def root_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A root frame of this function's own for Dynamo: it keeps its entries by code object."""
    fn = under(fn)

    def root(*args: Any, **kwargs: Any) -> Any:
        # Makes Dynamo guard the keys of these, and their order: it does not guard keys that a function looks for in
        # vain.
        for each in (*args, *kwargs.values(), kwargs):
            match each:
                case {}:
                    len(each)
                    list(each)
        return fn(*args, **kwargs)

    _prepare_dynamo()
    # Dynamo stores what it learns about changing sizes and numbers by file and line: each root has its own.
    code = root.__code__.replace(co_name="call", co_filename="<graphed>", co_firstlineno=next(_lines))
    names = {"__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(code, names, "call", None, root.__closure__)


@functools.cache
def _prepare_dynamo() -> None:
    """Make Dynamo skip the rooms whose functions replace torch's, and run inside its operations.

    Also register the shapes of what torch's encoder layer calls in inference: without them Dynamo breaks there.
    """
    for room in ("capture", "simulator"):
        torch._dynamo.trace_rules.add(f"gfxgraph.{room}")
    for name in ("_transformer_encoder_layer_fwd",):
        operation = getattr(torch.ops.aten, name, None)
        if operation is not None and not operation.default.has_kernel_for_dispatch_key("Meta"):
            with contextlib.suppress(RuntimeError):  # already registered elsewhere
                torch.library.register_fake(f"aten::{name}", lambda source, *args, **kwargs: torch.empty_like(source))


def is_compiled(fn: Any) -> bool:
    """True for results of ``torch.compile``."""
    return hasattr(fn, "_torchdynamo_orig_callable") or isinstance(fn, torch._dynamo.OptimizedModule)


def under(fn: Any) -> Any:
    """The function inside ``torch.compile``'s wrapper."""
    while is_compiled(fn):
        fn = fn._orig_mod if isinstance(fn, torch._dynamo.OptimizedModule) else fn._torchdynamo_orig_callable
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
