"""How Dynamo is called: our settings around each of its traces, its backend, and the first frame.

Dynamo runs without Inductor: its FX graph holds torch's own operations, so a capture
records what eager execution would have launched. Guards on module hooks, which torch leaves off, are on.

Source: decision 0111; torch._dynamo (2.9 to 2.13) for its interfaces.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import logging
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from gfxgraph.callables.trace.corrections import Func, StandIn, rules
from gfxgraph.callables.trace.found import (
    Found,
    asks_by_name,
    catches,
    is_of_mappings,
    look,
    said,
    with_random_states,
)
from gfxgraph.callables.trace.watch import PACKAGES, reads_state

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
    is_foreseeing = False
    """Whether pieces must not run."""
    found: list[Found] | None = None
    skipped: list[str] | None = None
    versions: _Versions | None = None


local = _Local()
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
    with_random_states(graph)
    if local.found is not None:
        local.found.append(found)
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


@contextlib.contextmanager
def _unshielded() -> Iterator[None]:
    for each in shielded:
        each._torchdynamo_disable = False
    try:
        yield
    finally:
        for each in shielded:
            each._torchdynamo_disable = True


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
        noted = torch._dynamo.convert_frame, "format_error_msg", _noting(errors)
        standing_in = _standing_in([*_without_logs(), *_corrections(), *rules(), noted])
        with known.patch(settings), _unshielded(), _quiet(), _uncollected(), standing_in:
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


@contextlib.contextmanager
def _standing_in(others: Iterable[StandIn]) -> Iterator[None]:
    """Temporarily replace some of Dynamo's functions, settings and table entries."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, make in others:
            own = owner[name] if isinstance(owner, dict) else getattr(owner, name)
            replaced.append((owner, name, own))
            _put(owner, name, make(own))
        yield
    finally:
        for owner, name, own in reversed(replaced):
            _put(owner, name, own)


def _put(owner: Any, name: str, value: object) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _without_logs() -> Iterator[StandIn]:
    """Skip measuring the guards, which flushes caches, and reading whole files for function names.

    This saves 50 and 100 ms per trace of a 16-layer Llama; if the log is enabled, both are done.
    """
    guards, symbols = torch._dynamo.guards, torch._dynamo.symbolic_convert
    for room, name, nothing, logs in (
        (guards, "profile_guard_manager", 0.0, ["guards_log"]),
        (symbols, "get_funcname", None, ["trace_call_log", "trace_source_log"]),
    ):
        if all(hasattr(room, each) for each in (name, *logs)):
            if not any(getattr(room, log).isEnabledFor(logging.DEBUG) for log in logs):
                yield room, name, _giving(nothing)


def _giving(value: object) -> Callable[[object], Func]:
    return lambda own: lambda *_: value


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector: what a trace makes stays alive, and scanning it repeatedly takes 6 %."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _corrections() -> Iterator[StandIn]:
    """Corrections for what Dynamo would answer wrongly, or leave to Python (seen with torch 2.11 and 2.13).

    A number or a string that a frame only passes on is guarded, too: Dynamo's code fetches it anew, a replay does
    not.
    """
    variables = torch._dynamo.variables
    builder, lazy = variables.builder.VariableBuilder, getattr(variables.lazy, "LazyConstantVariable", None)
    translator = torch._dynamo.symbolic_convert.InstructionTranslatorBase
    yield builder, "wrap_listlike", _with_bound
    yield translator, "_format_value", _formatting_known
    yield variables.functions.WrapperUserFunctionVariable, "call_function", _calling_kept
    if hasattr(builder, "_wrap_lazy_constant"):
        yield builder, "_wrap_lazy_constant", _wrapping_at_once
    if hasattr(lazy, "supported_types"):
        yield lazy, "supported_types", lambda own: ()
    if hasattr(translator, "maybe_has_backedge"):
        yield translator, "maybe_has_backedge", _breaking_in_loops


def _noting(errors: list[Exception]) -> Callable[[Func], Func]:
    """Note what Dynamo raises at a frame that it then leaves to Python; it reports only that there was an error."""

    def noting(told: Func) -> Func:
        def tell(error: Exception, *about: Any) -> str:
            errors.append(error)
            return str(told(error, *about))

        return tell

    return noting


def _breaking_in_loops(asked: Func) -> Func:
    """Disable Dynamo's rule that a graph break inside a loop leaves the whole frame to Python.

    The rule keeps the number of graphs low; Dynamo's result is valid either way. Here Python between graphs
    is acceptable, and the number of traces is bounded: in a long loop the first iterations have graphs. A loop over
    anything but ``range`` keeps the rule: what follows such a break is guarded on the iterator's next elements, and
    reading an iterator that has fewer left raises IndexError in the program (seen with torch 2.11 and 2.13).
    """
    return lambda self: asked(self) and any(map(_is_iterator, self.stack))


def _with_bound(wrap: Func) -> Func:
    """Keep a deque's bound, which Dynamo forgets if the frame has not made the deque."""

    def wrap_with_bound(self: Any, value: Any) -> Any:
        made = wrap(self, value)
        if isinstance(value, collections.deque) and value.maxlen is not None:
            self.install_guards(torch._dynamo.guards.GuardBuilder.ID_MATCH)
            made.maxlen = torch._dynamo.variables.ConstantVariable.create(value.maxlen)
        return made

    return wrap_with_bound


def _formatting_known(format_value: Func) -> Func:
    """Make a changing number a constant where it is formatted: Dynamo may take the number itself for the string."""

    def format_known(self: Any, *how: Any) -> Any:
        if isinstance(self.stack[-1], torch._dynamo.variables.SymNodeVariable):
            known = self.pop().evaluate_expr(self.output)
            self.push(torch._dynamo.variables.ConstantVariable.create(known))
        return format_value(self, *how)

    return format_known


def _wrapping_at_once(wrap_lazily: Func) -> Func:
    def wrap_at_once(self: Any, *what: Any) -> Any:
        self.allow_lazy_constant = False
        return wrap_lazily(self, *what)

    return wrap_at_once


def _calling_kept(call: Func) -> Func:
    """Let Python call functions with ``functools.lru_cache``: Dynamo traces what is below the cache."""

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

    return call_kept


def _is_kept(function: object) -> bool:
    """Whether the program itself caches a function's results; packages are trusted to cache only what stays valid."""
    if not isinstance(function, functools._lru_cache_wrapper):
        return False
    code = getattr(function.__wrapped__, "__code__", None)
    return code is not None and not PACKAGES.search(code.co_filename)


def _is_iterator(variable: object) -> bool:
    """Whether a loop iterates over a sequence, according to Dynamo's stack."""
    name = type(variable).__name__
    return "Iterator" in name and not name.startswith("Range")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dynamo's advice on graph breaks: they are acceptable here, and ``explain()`` reports them."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\._dynamo")
        log.setLevel(max(level, logging.ERROR))
        try:
            yield
        finally:
            log.setLevel(level)


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
