"""Traces that other instances of the same code take: modules of one class, closures of one function.

Problem: a trace costs seconds, and a program makes many objects whose code is one: models in a list, a closure for
each request. Idea: Dynamo's code reads what differs (weights, cells) where its guards say, so it serves each object
for which the guards hold. What Dynamo does not guard (world.Granted) is noted as facts that do not name the object,
and must be alike.

Invariants: what a guard compares by its address is alive, or the trace is not taken; and no object that was traced is
kept alive here.
"""

from __future__ import annotations

import atexit
import dataclasses
import types
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from gfxgraph.callables.trace.guard_walk import children, compiled
from gfxgraph.callables.trace.trace_result import Found
from gfxgraph.core.locks import new_lock

MOST_CODES = 64
"""Functions and classes whose traces are kept; the least recently used are dropped first."""
MOST_TRACES = 8
"""Most traces kept of each; likewise."""
_BY_ADDRESS = ("ID_MATCH", "TYPE_MATCH", "TENSOR_MATCH")
"""Guards on an object's address, or on that of its class."""
_CONSTANTS = (bool, int, float, complex, str, bytes, types.NoneType)
_LASTING = (*_CONSTANTS, type, types.CodeType, types.EllipsisType, torch.dtype, torch.device, torch.layout)


@dataclasses.dataclass(frozen=True)
class SharedTrace:
    """One trace: Dynamo's guards and code, with the globals of both."""

    guards: Any
    names: dict[str, Any]
    code: types.CodeType
    found: Found
    remarks: frozenset[str]
    kind: Any
    """What Dynamo does not guard of the call's arguments."""
    facts: Any
    alive: tuple[Any, ...]
    """What guards compare by address, as far as it may die by weak references."""

    def serves(self, kind: Any, given: Mapping[str, Any]) -> bool:
        """Whether Dynamo's code may run such a call, as far as its guards tell."""
        is_alive = all(type(each) is not weakref.ref or each() is not None for each in self.alive)
        return is_alive and alike(self.kind, kind) and bool(self.guards.check(dict(given)))


_traces: OrderedDict[Any, list[SharedTrace]] = OrderedDict()
_lock = new_lock()


def key_of(fn: Any, is_dynamic: bool) -> Any:
    """What instances of the same code have in common; objects that share it by chance differ for guards."""
    owner, code = getattr(fn, "__self__", None), getattr(getattr(fn, "__func__", fn), "__code__", None)
    return id(code), type(owner if owner is not None else fn), is_dynamic


def known(key: Any) -> list[SharedTrace]:
    """Traces of that code, the last first."""
    with _lock:
        if key in _traces:
            _traces.move_to_end(key)
        return _traces.get(key, [])[::-1]


def keep(key: Any, trace: SharedTrace) -> None:
    """Have other instances take it."""
    with _lock:
        if not _traces:
            atexit.register(_traces.clear)  # while torch still has what it needs to let go of them
        of_code = _traces.setdefault(key, [])
        of_code.append(trace)
        del of_code[:-MOST_TRACES]
        while len(_traces) > MOST_CODES:
            _traces.popitem(last=False)


def forget(key: Any) -> None:
    """Drop the traces of that code."""
    with _lock:
        _traces.pop(key, None)


def name_of_graph(found: Found, code: types.CodeType, names: Mapping[str, Any]) -> str:
    """The global by which Dynamo's code calls its FX graph; "" if either may hold an object of that instance."""
    for part in (each for each in found.graph.modules() if isinstance(each, torch.fx.GraphModule)):
        for node in part.graph.nodes:
            held = getattr(part, node.target, None) if node.op == "get_attr" else None
            is_own = node.op == "get_attr" and not isinstance(held, torch.fx.GraphModule)
            if is_own or node.op == "call_module" or _is_programs(node.target) or "triton" in str(node.target):
                return ""
    called = [name for name in code.co_names if name.startswith("__compiled_fn")]
    held = [names[name] for name in code.co_names if name in names and name not in called]
    are_shared = all(isinstance(each, (types.ModuleType, types.BuiltinFunctionType, type)) for each in held)
    return called[0] if len(called) == 1 and are_shared and all(map(_is_constant, code.co_consts)) else ""


def _is_constant(value: Any) -> bool:
    return all(map(_is_constant, value)) if isinstance(value, tuple) else isinstance(value, _LASTING)


def _is_programs(target: Any) -> bool:
    of = target.__module__ if isinstance(target, types.FunctionType) else type(target).__module__
    return of.partition(".")[0] not in ("builtins", "torch")


def compared_by_address(guards: Any, scope: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What guards compare by address, as `Trace.alive`; None if some of it can only be kept alive."""
    found: list[Any] = []
    todo = [guards.root]
    while todo:
        manager = todo.pop()
        todo += children(manager)
        kinds = {type(leaf).__name__ for leaf in manager.get_leaf_guards()}.intersection(_BY_ADDRESS)
        if not kinds:
            continue
        try:
            value = eval(compiled(manager.get_source()), dict(scope))
        except Exception:  # noqa: BLE001  an attribute's own code may raise anything
            return None
        held = weakly(value) if "ID_MATCH" in kinds else None
        if held is _UNKNOWN:
            return None
        found += (held, weakref.ref(type(value)))
    return tuple(found)


def weakly(value: Any) -> Any:
    """A fact that keeps no object of an instance alive; what is inside tuples likewise."""
    if isinstance(value, tuple):
        return tuple(map(weakly, value))
    if isinstance(value, (*_LASTING, frozenset)):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return _UNKNOWN


_UNKNOWN = object()


def same_facts(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Whether all facts of one instance are those of another."""
    return one.keys() == other.keys() and all(alike(each, other[key]) for key, each in one.items())


def alike(one: Any, other: Any) -> bool:
    """Whether a fact is also that of another instance."""
    if one is other or type(one) is not type(other):
        return one is other
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if type(one) is frozenset:
        return bool(one == other) and all(type(each) in (str, bytes) for each in one)
    return type(one) in (*_CONSTANTS, torch.device) and repr(one) == repr(other)
