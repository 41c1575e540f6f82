"""Dynamo's rules of Python where they give another answer than Python (seen with torch 2.11 and 2.13).

    a dict is asked for a key     its keys are guarded where Dynamo cannot name the key; an object that is the key, or
                                  part of it, is guarded by identity: Dynamo guards its class
    ``is``, ``==`` of objects      each is guarded by identity
    two keys have one hash        and differ for Dynamo, which does not ask an ``__eq__`` of the program's: a break
    a class, by way of a closure  is guarded: Dynamo takes each for the ``__class__`` of ``super()``
    ``isinstance``                of a class with an ``__instancecheck__`` of the program's is a break
    a generator that outlives     is left to Python: Dynamo would run it to its end at once
    the call

What sets hold, of which Dynamo guards the number, is asked by us (``world.Granted``).

Source: decision 0208; tests/conformance/test_graphed_lookups.py and test_graphed_results.py.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gfxgraph.callables.trace.found import name_of


def rules() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Where a rule is, its name, and what to make of it."""
    variables = torch._dynamo.variables
    dicts: Any = variables.ConstDictVariable
    yield dicts, "install_dict_contains_guard", _asking_for_key
    for name in ("mp_subscript_impl", "getitem_const"):
        if name in vars(dicts):
            yield dicts, name, _taking_item
    sets: Any = variables.SetVariable
    if "install_set_contains_guard" in vars(sets):
        yield sets, "install_set_contains_guard", _asking_set
    yield getattr(dicts, "_HashableTracker", None) or variables.hashable.HashableTracker, "__eq__", _comparing_keys
    for name in ("is", "is not", "==", "!="):
        yield torch._dynamo.symbolic_convert.compare_op_handlers, name, _comparing_objects
    if "iter_contains" in vars(variables.lists):
        yield variables.lists, "iter_contains", _looking_in_list
    protocol: Any = getattr(variables, "object_protocol", None)
    if protocol is not None:
        yield protocol, "vt_identity_compare", _looking_for_object
    yield torch._dynamo.variables.builder, "is_from_closure_source", _of_closure
    yield variables.BuiltinVariable, "call_isinstance", _asking_for_class
    yield variables.functions.LocalGeneratorObjectVariable, "reconstruct", _leaving_generator
    yield torch._dynamo.symbolic_convert.InstructionTranslator, "replace_tos_if_return_is_generator", _doing_nothing


def _asking_for_key(ask: Any) -> Any:
    def install_dict_contains_guard(self: Any, tx: Any, args: list[Any]) -> None:
        ask(self, tx, args)
        _guard_identity(args[0])
        is_named = args[0].source is not None or args[0].is_python_constant()
        if self.source and not is_named and not tx.output.side_effects.is_modified(self):
            self.install_dict_keys_match_guard()

    return install_dict_contains_guard


def _asking_set(ask: Any) -> Any:
    def install_set_contains_guard(self: Any, tx: Any, args: list[Any]) -> None:
        ask(self, tx, args)
        _guard_identity(args[0])

    return install_set_contains_guard


def _taking_item(take: Any) -> Any:
    def take_item(self: Any, tx: Any, key: Any) -> Any:
        _guard_identity(key)
        return take(self, tx, key)

    return take_item


def _comparing_objects(compare: Any) -> Any:
    def compare_objects(tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        _guard_both(*args)
        return compare(tx, args, kwargs)

    return compare_objects


def _looking_in_list(look: Any) -> Any:
    def iter_contains(items: Any, search: Any, *more: Any, **options: Any) -> Any:
        items = list(items)
        for each in items:
            _guard_both(each, search)
        return look(items, search, *more, **options)

    return iter_contains


def _looking_for_object(compare: Any) -> Any:
    def vt_identity_compare(left: Any, right: Any) -> Any:
        _guard_both(left, right)
        return compare(left, right)

    return vt_identity_compare


def _guard_both(left: Any, right: Any) -> None:
    """Guard two objects of one class; that others differ, their classes say."""
    kinds = [type(each.value) for each in map(_realized, (left, right)) if _is_object(each)]
    if len(kinds) == 2 and kinds[0] is kinds[1]:
        _guard_identity(left)
        _guard_identity(right)


def _realized(variable: Any) -> Any:
    return variable.realize()


def _is_object(variable: Any) -> bool:
    return isinstance(variable, torch._dynamo.variables.UserDefinedObjectVariable)


def _guard_identity(key: Any) -> None:
    """Objects that are equal to themselves alone are guarded to be the very ones."""
    match = torch._dynamo.guards.GuardBuilder.ID_MATCH

    def guard(variable: Any) -> None:
        if _is_object(variable) and variable.source and type(variable.value).__eq__ is _SAME:
            torch._dynamo.variables.base.install_guard(variable.source.make_guard(match))

    torch._dynamo.variables.base.VariableTracker.visit(guard, key)


def _comparing_keys(are_equal: Any) -> Any:
    def __eq__(self: Any, other: Any) -> bool:
        is_equal = bool(are_equal(self, other))
        if not is_equal and type(self) is type(other):
            if not (self.vt.is_python_constant() and other.vt.is_python_constant()):
                raise torch._dynamo.exc.Unsupported("it looks up a key that may equal another one")
        return is_equal

    return __eq__


def _of_closure(is_of_closure: Any) -> Any:
    # Only what a cell itself holds; that is compared by ``world.Granted``.
    return lambda source: is_of_closure(source) and name_of(source).endswith(".cell_contents")


_SAME: Any = object.__eq__
_SETTLED = {*sys.stdlib_module_names, "torch"}


def _asking_for_class(ask: Any) -> Any:
    def call_isinstance(self: Any, tx: Any, value: Any, kind: Any) -> Any:
        found = kind.as_python_constant()
        for each in found if isinstance(found, tuple) else (found,):
            check = getattr(type(each), "__instancecheck__", None)
            if isinstance(check, types.FunctionType) and check.__module__.partition(".")[0] not in _SETTLED:
                raise torch._dynamo.exc.Unsupported("it asks a class with an __instancecheck__ of its own")
        return ask(self, tx, value, kind)

    return call_isinstance


def _leaving_generator(finish: Any) -> Any:
    def reconstruct(self: Any, codegen: Any) -> None:
        raise torch._dynamo.exc.SkipFrame("it returns or keeps a generator, which runs later; make it a list")

    return reconstruct


def _doing_nothing(run_to_its_end: Any) -> Any:
    return lambda self: None
