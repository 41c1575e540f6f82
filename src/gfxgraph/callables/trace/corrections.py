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
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from gfxgraph import torch_names
from gfxgraph.callables.trace.guard_walk import reads_state
from gfxgraph.callables.trace.trace_result import name_of
from gfxgraph.watching.watch import PACKAGES

Func = Callable[..., Any]
Tracker = Any
"""A variable of Dynamo's, or another part of Dynamo: the classes vary with torch's version."""
StandIn = tuple[object, Any, Callable[[Any], object]]
"""Owner, attribute name, and a function that makes the replacement from the original."""
Seen = dict[str, set[int]]
"""By source, of what is outside: how long a list was, which number a global one was."""
MOST_LENGTHS = 3
"""Lengths at which a list from outside is met by traces; with more it is left to Python."""
MOST_CONSTANTS = 2
"""Values of a global number that are constants of a trace each."""


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
    for key in ("dict_call_method", "ordered_call_method"):
        ordered, method = torch_names.place(key)
        if method in vars(ordered):
            yield ordered, method, _ordering
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


def _leaving_generator(finish: Func) -> Func:
    def reconstruct(self: Tracker, codegen: Tracker) -> None:
        raise torch_names.SkipFrame("it returns or keeps a generator, which runs later; make it a list")

    return reconstruct


def _doing_nothing(run_to_its_end: Func) -> Func:
    return lambda self: None
