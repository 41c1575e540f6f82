"""What stands in the place of Dynamo's own while it traces for us (seen with torch 2.11 and 2.13).

What it leaves to Python at once, or forgets, is mended. And its rules of Python, where they give another answer than
Python:

    a dict is asked for a key     its keys are guarded if Dynamo cannot name the key; an object that is the key, or
                                  part of it, is guarded by identity: Dynamo guards only its class
    ``is``, ``==`` of objects      each is guarded by identity
    two keys have one hash        and differ for Dynamo, which does not call the program's ``__eq__``: a graph break
    a class, through a closure    is guarded: Dynamo takes each for the ``__class__`` of ``super()``
    ``isinstance``                of a class with the program's own ``__instancecheck__`` is a graph break
    a generator that outlives     is left to Python: Dynamo would run it to its end at once
    the call
    ``move_to_end``               is written back: Dynamo writes keys that are new, and the order of none
    a module's own ``forward``    that the call itself sets is a graph break (before torch 2.13)
    ``torch.full`` of a tensor,   has the dtype of that number's kind: Dynamo takes the default one
    or of a random number

The contents of sets, of which Dynamo guards only the length, are checked by us (``world.Granted``).

Source: decision 0171; tests/conformance/test_graphed_lookups.py and test_graphed_results.py.
"""

from __future__ import annotations

import collections
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self

import torch

from gfxgraph import torch_names
from gfxgraph.callables.trace.guard_walk import reads_state
from gfxgraph.callables.trace.in_dynamo import CHANGED, MAX_TRACES, Traced, name_of, said
from gfxgraph.watching.watch import PACKAGES

Func = Callable[..., Any]
Tracker = Any
"""A variable of Dynamo's, or another part of Dynamo: the classes vary with torch's version."""
StandIn = tuple[object, Any, Callable[[Any], object]]
"""Owner, attribute name, and a function that makes the replacement from the original."""
Seen = dict[str, set[int]]
"""As `Traced.seen`."""
MOST_LENGTHS = 3
"""Lengths at which a list from outside is met by traces; with more it is left to Python."""
MOST_CONSTANTS = 2
"""Values of a global number that are constants of a trace each."""
MOST_STATIC_TRACES = 4
"""Traces with symbolic sizes in which the ints of modules are taken as constants."""
_RESUMED = "torch_dynamo_resume_in"
"""Prefix of the code that Dynamo makes for what follows a graph break. Each iteration of a loop is one more trace of
it.
"""
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


# -- a frame, under our settings ---------------------------------------------------------------------------------


class Configured:
    """Dynamo's callback under our settings; it may be called to trace again in any later call."""

    def __init__(self, callback: Any, owner: Traced) -> None:
        self._callback = callback
        self._owner = weakref.ref(owner)
        # Dynamo follows these attributes to the backend, to tell its cache entries apart.
        self._torchdynamo_orig_backend = callback
        self._torchdynamo_orig_callable = callback

    def __call__(self, frame: Any, *more: Any) -> Any:
        front = self._owner()
        if front is None or torch_names.trace_rules.check(frame.f_code):
            return torch_names.ConvertFrameReturn()  # left to Python at once: what Dynamo's own code calls, say
        try:
            return self._trace(front, frame, *more)
        except CHANGED as error:  # Dynamo itself leaves out few; the frame runs as Python
            front.note_left(said(f"{type(error).__name__}: {error}"))
            return torch_names.ConvertFrameReturn()

    def _trace(self, front: Traced, frame: Any, *more: Any) -> Any:
        known, errors, n_before = torch_names.dynamo_config, list[Exception](), len(front.graphs)
        wanted = {**_CONFIG, **(_for_symbols(front) if front.is_dynamic else {})}
        wanted["trace_autograd_ops"] = front.traces_gradients  # torch 2.11 and later
        if frame.f_code.co_name.startswith(_RESUMED):
            wanted["recompile_limit"] = MAX_TRACES
        # Other threads' compilations have Dynamo's own rules: they wait here, as they would inside.
        with torch_names.compile_lock, ExitStack() as uncollected:
            leave_uncollected(uncollected)
            with Waiting(), ExitStack() as changes, warnings.catch_warnings():
                _quieten(changes)
                for each in shielded:
                    put(changes, each, "_torchdynamo_disable", False)
                for name, value in wanted.items():
                    if hasattr(known, name):
                        put(changes, known, name, value)
                correct(changes, errors, front.seen, front.remarks)
                made = self._callback(frame, *more)
                front.note_frame(frame, getattr(made, "guarded_code", None), n_before)
                _keep_external()
            front.is_too_deep |= bool(errors) and isinstance(errors[-1], RecursionError)
            reason = getattr(made, "skip_reason", None)
            if reason:
                front.note_left(said(str(errors[-1])) if errors else reason)
        return made


_external: dict[int, Any] = {}


def _keep_external() -> None:
    """Keep the streams and events that a trace met.

    Dynamo refers to them weakly. Once one was gone, the next trace ended in a segmentation fault (torch 2.11, CUDA).
    """
    for ref in (torch_names.index_to_external_object_weakref or {}).values():
        _external[id(ref())] = ref()


def _for_symbols(front: Traced) -> dict[str, Any]:
    """Additional settings for the next trace with symbolic sizes.

    Dynamo would also make symbols of a module's ints: a switch becomes a SymBool, which no operation accepts. So
    they stay numbers, unless they differ from trace to trace (a counter). Floats (an eps, a dropout's p) would become
    tensors that are read back.
    """
    is_restless = front.n_traces > MOST_STATIC_TRACES
    return {"specialize_float": True, "allow_unspec_int_on_nn_module": is_restless}


def leave_uncollected(changes: ExitStack) -> None:
    """Turn Python's garbage collector off: what a trace makes stays alive, and scanning it repeatedly takes 6 %."""
    if gc.isenabled():
        changes.callback(gc.enable)
        gc.disable()


def _quieten(changes: ExitStack) -> None:
    """Silence Dynamo's advice on graph breaks: they are acceptable here, and ``explain()`` reports them."""
    warnings.filterwarnings("ignore", module=r"torch\._dynamo")
    log = logging.getLogger(torch_names.DYNAMO)
    changes.callback(log.setLevel, log.level)
    log.setLevel(max(log.level, logging.ERROR))


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
        self._handlers = ExitStack()

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


# -- corrections ------------------------------------------------------------------------------------------------

_handlers: dict[object, object] = {}
"""Our replacements for Dynamo's cached handlers of builtin calls, which keep the rule that they were made with."""


def put(changes: ExitStack, owner: Any, name: str, value: object) -> None:
    """Have ``value`` as an attribute, or as an entry of a dict, until the end of ``changes``."""
    if isinstance(owner, dict):
        changes.callback(owner.__setitem__, name, owner[name])
        owner[name] = value
    else:
        changes.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


def correct(changes: ExitStack, errors: list[Exception], seen: Seen, remarks: set[str]) -> None:
    """Replace some of Dynamo's functions, settings and table entries with ours.

    Args:
        errors: what Dynamo raises at frames that it then leaves to Python is added to it.
        seen: what earlier traces of the function have met; likewise.
        remarks: what a user has to know of the traces; likewise.
    """
    for owner, name, make in list(_stand_ins(errors, seen, remarks)):
        own = owner[name] if isinstance(owner, dict) else getattr(owner, name)
        put(changes, owner, name, make(own))


def _stand_ins(errors: list[Exception], seen: Seen, remarks: set[str]) -> Iterator[StandIn]:
    yield from _left_to_python(seen)
    yield from _rules()
    yield *torch_names.place("_set_capturable"), functools.partial(_remarking, remarks)
    yield *torch_names.place("format_error_msg"), _noting(errors)


def _noting(errors: list[Exception]) -> Callable[[Func], Func]:
    """Note what Dynamo raises at a frame that it then leaves to Python; it reports only that there was an error."""

    def noting(told: Func) -> Func:
        def tell(error: Exception, *about: Any) -> str:
            errors.append(error)
            return str(told(error, *about))

        return tell

    return noting


def _remarking(remarks: set[str], make: Func) -> Func:
    """Note optimizers whose count of steps Dynamo moves to the device, where what is made of it is float32."""

    def set_capturable(self: Tracker, tx: Tracker) -> None:
        optimizer, kind = self.value, type(self.value).__name__
        has = "capturable" in optimizer.defaults
        counts = has or any("step" in each for each in optimizer.state.values())
        on_host = [not (group.get("capturable") or group.get("fused")) for group in optimizer.param_groups]
        if counts and any(on_host):
            remarks.add(
                f"{kind} counts its steps on the device, as torch.compile has it: in float32, so its results may "
                f"differ from eager's in the last digits{'; created with capturable=True they do not' * has}"
            )
        make(self, tx)

    return set_capturable


def _left_to_python(seen: Seen) -> Iterator[StandIn]:
    """What Dynamo would leave to Python, or forget.

    A number or a string that a frame only passes on is guarded, too: Dynamo's code fetches it anew, a replay does
    not.
    """
    for key in ("is_int_specialization_case", "builders_int_specialization"):
        yield *torch_names.place(key), functools.partial(_counting, seen)
    # Dynamo keeps a table of its functions, where it is asked first.
    table: dict[type, Func] = torch_names._type_dispatch()
    for kind in (list, collections.deque):
        yield table, kind, functools.partial(_leaving_restless, seen)
    if itertools.count in table:
        yield table, itertools.count, lambda own: _leaving
    yield *torch_names.place("_format_value"), _formatting_known
    yield *torch_names.place("call_function"), _calling_kept
    yield *torch_names.place("logger_call_method"), _logging_once
    if torch_names.supported_types is not None:
        yield *torch_names.place("supported_types"), lambda own: ()
        yield *torch_names.place("_wrap_lazy_constant"), _wrapping_at_once
    yield *torch_names.place("maybe_has_backedge"), _breaking_in_loops


def _wrapping_at_once(wrap: Func) -> Func:
    """A constant that Dynamo reads at once, as a keyword of a ``partial``, is guarded at once."""

    def wrap_lazy_constant(self: Tracker, *args: Any) -> Tracker:
        self.allow_lazy_constant = False
        return wrap(self, *args)

    return wrap_lazy_constant


def _breaking_in_loops(asked: Func) -> Func:
    """Disable Dynamo's rule that a graph break inside a loop leaves the whole frame to Python.

    The rule keeps the number of graphs low; Dynamo's result is valid either way. Here Python between graphs
    is acceptable, and the number of traces is bounded: in a long loop the first iterations have graphs. A loop over
    anything but ``range`` keeps the rule: what follows such a break is guarded on the iterator's next elements, and
    reading an iterator that has fewer left raises IndexError in the program (seen with torch 2.11 and 2.13).
    """
    return lambda self: asked(self) and any(map(_is_iterator, self.stack))


def _is_iterator(variable: object) -> bool:
    """Whether a loop iterates over a sequence, according to Dynamo's stack."""
    name = type(variable).__name__
    return "Iterator" in name and not name.startswith("Range")


def _counting(seen: Seen, is_constant: Func) -> Func:
    """A global number that changes is a symbol, like one of an object's; Dynamo takes each for a constant."""

    def is_int_specialization_case(value: int, source: Tracker) -> bool:
        if not is_constant(value, source):
            return False
        kind = source.guard_source
        if (kind() if callable(kind) else kind) is not torch_names.GuardSource.GLOBAL:  # torch 2.9 has a method
            return True
        values = seen.setdefault(name_of(source), set())
        values.add(value)
        return len(values) <= MOST_CONSTANTS

    return is_int_specialization_case


def _leaving_restless(seen: Seen, wrap: Func) -> Func:
    """What is done with a list that is longer at each trace, or with a deque that has a bound, is left to Python.

    Dynamo guards the length of a list, so one that grows (a log, a history) would be a reason for a trace at each
    call; of a deque's bound it does not know. An unknown thing breaks the graph where something is done with it.
    """

    def wrap_settled(self: Tracker, value: object) -> object:
        name = name_of(self.source)
        if isinstance(value, collections.deque) and value.maxlen is not None:
            return _leaving(self, value)
        if isinstance(value, list | collections.deque) and not name.startswith(("L['args']", "L['kwargs']")):
            lengths = seen.setdefault(name, set())
            lengths.add(len(value))
            if len(lengths) > MOST_LENGTHS:
                return _leaving(self, value)
        return wrap(self, value)

    return wrap_settled


def _leaving(self: Tracker, value: object) -> object:
    self.install_guards(torch_names.GuardBuilder.TYPE_MATCH)
    return _unknown()(source=self.source)


@functools.cache
def _unknown() -> Callable[..., object]:
    """A variable of Dynamo's of which nothing is known, and that says why it breaks the graph."""

    class LeftToPython(torch_names.UnknownVariable):
        def call_method(self, tx: object, name: str, args: object, kwargs: object) -> None:
            # Dynamo guards a list's length and where a count is, and not the bound of a deque.
            what = "a list whose length changes, a deque with a bound, or a count is left to Python"
            raise torch_names.Unsupported(f"{what} ({name_of(self.source)}.{name})")

    return LeftToPython


def _formatting_known(format_value: Func) -> Func:
    """Make a changing number a constant where it is formatted: Dynamo may take the number itself for the string."""

    def format_known(self: Any, *how: Any) -> Any:
        if isinstance(self.stack[-1], torch_names.SymNodeVariable):
            known = self.pop().evaluate_expr(self.output)
            self.push(torch_names.ConstantVariable.create(known))
        return format_value(self, *how)

    return format_known


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
        raise torch_names.Unsupported(f"functools.lru_cache ({self.wrapper_obj.__qualname__})")

    return call_kept


def _logging_once(call: Func) -> Func:
    """What a logger says once for all, by ``functools.lru_cache`` as in transformers, it says while it is traced."""

    def call_method(
        self: Tracker, tx: Tracker, name: str, args: list[Tracker], kwargs: dict[str, Tracker]
    ) -> Tracker:
        once: Tracker = getattr(getattr(self.value, name, None), "__func__", None)
        is_kept = isinstance(once, functools._lru_cache_wrapper) and not kwargs
        if is_kept and all(each.is_python_constant() for each in args):
            if once(self.value, *[each.as_python_constant() for each in args]) is None:
                return torch_names.ConstantVariable.create(None)
        return call(self, tx, name, args, kwargs)

    return call_method


def _is_kept(function: object) -> bool:
    """Whether the program itself caches a function's results; packages are trusted to cache only what stays valid."""
    if not isinstance(function, functools._lru_cache_wrapper):
        return False
    code = getattr(function.__wrapped__, "__code__", None)
    return code is not None and not PACKAGES.search(code.co_filename)


def _rules() -> Iterator[StandIn]:
    """Every rule to replace: its owner, its name, and a function that makes the replacement."""
    yield *torch_names.place("install_dict_contains_guard"), _asking_for_key
    yield *torch_names.place("key_eq" if torch_names.key_eq is not None else "dict_key_eq"), _comparing_keys
    compared = torch_names.compare_op_handlers
    for name in ("is", "is not"):
        yield compared, name, _after(lambda tx, args, kwargs: _guard_operands(*args))
    if torch_names.vt_identity_compare is not None:
        yield *torch_names.place("vt_identity_compare"), _after(_guard_both)
    else:
        yield from _older_rules(compared)
    yield *torch_names.place("is_from_closure_source"), _of_closure
    for key, rule in (
        ("dict_call_method", _ordering),
        ("ordered_call_method", _ordering),
        ("_collect_backward_inputs", _with_leaves),
    ):
        owner, method = torch_names.place(key)
        if method in vars(owner):
            yield owner, method, rule
    torch_functions = torch_names._get_handlers()
    if torch.full in torch_functions:
        yield torch_functions, torch.full, _filling
    yield *torch_names.place("call_isinstance"), _after(_ask_for_class)
    yield *torch_names.place("call_function_handler_cache"), lambda own: _handlers
    yield *torch_names.place("reconstruct"), _leaving_generator
    yield *torch_names.place("replace_tos_if_return_is_generator"), _doing_nothing


def _after(act: Func) -> Callable[[Func], Func]:
    """The rule, after ``act`` with the same arguments."""

    def made(own: Func) -> Func:
        def rule(*args: Tracker) -> Tracker:
            act(*args)
            return own(*args)

        return rule

    return made


def _older_rules(compared: object) -> Iterator[StandIn]:
    """Where equality, and what looks for an equal one, does not ask ``vt_identity_compare``."""
    for name in ("==", "!="):
        yield compared, name, _after(lambda tx, args, kwargs: _guard_both(*args))
    for key, rule in (
        ("install_set_contains_guard", _after(lambda self, tx, args: _guard_identity(args[0]))),
        ("iter_contains", _looking_in_list),
    ):
        owner, name = torch_names.place(key)
        if name in vars(owner):
            yield owner, name, rule
    yield *torch_names.place("store_attr"), _after(_refuse_forward)


def _refuse_forward(effects: object, module: Tracker, name: str, value: Tracker) -> None:
    """A module is given a ``forward``: Dynamo would call the class's to the trace's end."""
    if name == "forward" and isinstance(module, torch_names.UnspecializedNNModuleVariable):
        raise torch_names.Unsupported("a module's forward is replaced (forward)")


def _asking_for_key(ask: Func) -> Func:
    def install_dict_contains_guard(self: Tracker, tx: Tracker, args: list[Tracker]) -> None:
        ask(self, tx, args)
        _guard_identity(args[0])
        is_named = args[0].source is not None or args[0].is_python_constant()
        if self.source and not is_named and not tx.output.side_effects.is_modified(self):
            self.install_dict_keys_match_guard()

    return install_dict_contains_guard


def _looking_in_list(look: Func) -> Func:
    def iter_contains(items: Iterable[Tracker], search: Tracker, *more: Tracker, **options: object) -> Tracker:
        items = list(items)
        for each in items:
            _guard_both(each, search)
        return look(items, search, *more, **options)

    return iter_contains


def _guard_both(left: Tracker, right: Tracker) -> None:
    """Guard two objects of one class; objects of different classes differ by their class guards."""
    kinds = [type(each.value) for each in map(_realized, (left, right)) if _is_object(each)]
    if len(kinds) == 2 and kinds[0] is kinds[1]:
        _guard_identity(left)
        _guard_identity(right)


def _guard_operands(left: Tracker, right: Tracker) -> None:
    """Guard what ``is`` compares, whatever ``__eq__`` it has: Dynamo guards its class, its code, or what it holds.

    Of one tuple that is reached in two ways Dynamo makes two.
    """
    kinds = (
        torch_names.ListVariable,
        torch_names.SetVariable,
        torch_names.ConstDictVariable,
        torch_names.UserFunctionVariable,
    )
    given = [each for each in map(_realized, (left, right)) if each.source]
    if sum(isinstance(each, torch_names.TupleVariable) for each in given) == 2:
        raise torch_names.Unsupported("it compares two tuples by `is`")
    given = [each for each in given if isinstance(each, kinds) or _is_object(each)]
    if len(given) == 2 and given[0].python_type() is given[1].python_type():
        for each in given:
            guard = each.source.make_guard(torch_names.GuardBuilder.ID_MATCH)
            torch_names.install_guard(guard)


def _realized(variable: Tracker) -> Tracker:
    return variable.realize()


def _is_object(variable: Tracker) -> bool:
    """Whether it stands for an object of a class of the program's, or for a plain ``object()``, a marker."""
    return isinstance(variable, (torch_names.UserDefinedObjectVariable, torch_names.ObjectVariable or ()))


def _guard_identity(key: Tracker) -> None:
    """Guard objects without an ``__eq__`` of their own by identity."""
    match = torch_names.GuardBuilder.ID_MATCH

    def guard(variable: Tracker) -> None:
        if _is_object(variable) and variable.source and type(variable.value).__eq__ is _SAME:
            torch_names.install_guard(variable.source.make_guard(match))

    torch_names.VariableTracker.visit(guard, key)


def _comparing_keys(are_equal: Func) -> Func:
    def __eq__(self: Tracker, other: Tracker) -> bool:
        is_equal = bool(are_equal(self, other))
        if not is_equal and type(self) is type(other) and not (_is_its_own(self.vt) or _is_its_own(other.vt)):
            if not (self.vt.is_python_constant() and other.vt.is_python_constant()):
                raise torch_names.Unsupported("it looks up a key that may be equal to a different key")
        return is_equal

    return __eq__


def _is_its_own(key: Tracker) -> bool:
    """Whether a key is equal to itself alone."""
    try:
        return key.python_type().__hash__ in (object.__hash__, torch.Tensor.__hash__)
    except NotImplementedError:
        return False


def _of_closure(is_of_closure: Func) -> Func:
    # Only the cell's own content; ``world.Granted`` compares it.
    return lambda source: is_of_closure(source) and name_of(source).endswith(".cell_contents")


_SAME: Any = object.__eq__
_SETTLED = {*sys.stdlib_module_names, "torch"}


def _ask_for_class(self: Tracker, tx: Tracker, value: Tracker, kind: Tracker) -> None:
    found = kind.as_python_constant()
    for each in found if isinstance(found, tuple) else (found,):
        check = getattr(type(each), "__instancecheck__", None)
        if isinstance(check, types.FunctionType) and check.__module__.partition(".")[0] not in _SETTLED:
            raise torch_names.Unsupported("it calls isinstance() with a class that defines __instancecheck__")


def _ordering(call: Func) -> Func:
    def call_method(
        self: Tracker, tx: Tracker, name: str, args: list[Tracker], kwargs: dict[str, Tracker]
    ) -> Tracker:
        made = call(self, tx, name, args, kwargs)
        if name == "move_to_end":
            (getattr(self, "_base_vt", None) or self).should_reconstruct_all = True
        return made

    return call_method


def _filling(fill: Func) -> Func:
    def full(self: Tracker, tx: Tracker, size: Tracker, fill_value: Tracker, **kwargs: Tracker) -> Tracker:
        if isinstance(_realized(fill_value), torch_names.TensorVariable) and "dtype" not in kwargs:
            of = fill_value.as_proxy().node.meta["example_value"].dtype
            kind = torch.bool if of is torch.bool else torch.int64
            if of.is_complex or of.is_floating_point:
                kind = torch.get_default_dtype().to_complex() if of.is_complex else torch.get_default_dtype()
            kwargs["dtype"] = torch_names.ConstantVariable.create(kind)
        return fill(self, tx, size, fill_value, **kwargs)

    return full


def _with_leaves(collect: Func) -> Func:
    def collect_leaves(*args: object, **kwargs: object) -> object:
        if found := collect(*args, **kwargs):
            return found
        # They are further up than the frame: Dynamo's backward would do nothing.
        raise torch_names.Unsupported("it calls backward() of what was computed before (Tensor.backward)")

    return collect_leaves


def _leaving_generator(finish: Func) -> Func:
    def reconstruct(self: Tracker, codegen: Tracker) -> None:
        raise torch_names.SkipFrame("it returns or keeps a generator, which runs later; make it a list")

    return reconstruct


def _doing_nothing(run_to_its_end: Func) -> Func:
    return lambda self: None
