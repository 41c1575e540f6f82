"""Traces that other instances of the same code take: modules of one class, closures of one function.

Problem: a trace costs seconds, and a program makes many objects whose code is one: models in a list, a closure for
each request. Idea: Dynamo's code reads what differs (weights, cells) where its guards say, so it serves each object
for which the guards hold. What Dynamo does not guard (world.Granted) is noted as facts that do not name the object,
and must be alike.

Invariants: what a guard compares by its address is alive, or the trace is not taken; and no object that was traced is
kept alive here.

Source: decision 0345; tests/conformance/test_same_code.py.
"""

from __future__ import annotations

import atexit
import copy
import dataclasses
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

import torch

from gfxgraph.callables.trace.in_dynamo import CHANGED, Found, FrameTrace
from gfxgraph.callables.trace.world import CONSTANTS, LASTING, UNKNOWN, World
from gfxgraph.core.locks import new_lock

MOST_CODES = 64
"""Functions and classes whose traces are kept; the least recently used are dropped first."""
MOST_TRACES = 8
"""Most traces kept of each; likewise."""


@dataclasses.dataclass(frozen=True)
class SharedTrace:
    """One trace: Dynamo's guards and code, with the globals of both."""

    frame: FrameTrace
    graph: str
    """The global by which the code calls its FX graph."""
    remarks: frozenset[str]
    kind: object
    """What Dynamo does not guard of the call's arguments."""
    facts: Mapping[object, object]
    alive: tuple[object, ...]
    """What guards compare by address, as far as it may die by weak references."""

    def serves(self, kind: object, given: dict[str, object]) -> bool:
        """Whether Dynamo's code may run such a call, as far as its guards tell."""
        is_alive = all(type(each) is not weakref.ref or each() is not None for each in self.alive)
        return is_alive and alike(self.kind, kind) and bool(self.frame.guards.check(given))


traces: OrderedDict[Hashable, list[SharedTrace]] = OrderedDict()
"""By code."""
_lock = new_lock()


def key_of(fn: object, is_dynamic: bool) -> Hashable:
    """What instances of the same code have in common; objects that share it by chance differ for guards."""
    return id(getattr(getattr(fn, "__func__", fn), "__code__", None)), type(getattr(fn, "__self__", fn)), is_dynamic


def taken(
    key: Hashable, given: dict[str, object], kind: object, world_of: Callable[[FrameTrace], World]
) -> tuple[SharedTrace, World] | None:
    """The trace of that code, the last first, whose world such a call is in, and that."""
    for trace in reversed(traces.get(key, ())):
        if trace.serves(kind, given):
            with suppress(*CHANGED):  # it lacks something that the trace read
                world = world_of(trace.frame)
                if same_facts(trace.facts, world.granted.facts()) and not world.why_eager and not world.why_pieces:
                    return trace, world
    return None


def offer(key: Hashable, world: World, kind: object, remarks: frozenset[str]) -> None:
    """Have other instances take the trace of a world, if it holds nothing of this one alone."""
    frame, alive = world.frame, world.compared
    graph = _name_of_graph(world.found, frame.code, frame.names) if UNKNOWN not in alive else ""
    if not graph:
        return
    kept = dataclasses.replace(frame, found=[copy.copy(world.found)])
    trace = SharedTrace(kept, graph, remarks, kind, world.granted.facts(), alive)
    with _lock:
        if not traces:
            atexit.register(traces.clear)  # while torch still has what it needs to let go of them
        traces[key] = [*traces.pop(key, []), trace][-MOST_TRACES:]
        while len(traces) > MOST_CODES:
            traces.popitem(last=False)


def _name_of_graph(found: Found, code: types.CodeType, names: Mapping[str, Any]) -> str:
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


def _is_constant(value: object) -> bool:
    return all(map(_is_constant, value)) if isinstance(value, tuple) else isinstance(value, LASTING)


def _is_programs(target: object) -> bool:
    of = target if isinstance(target, types.FunctionType) else type(target)
    return of.__module__.partition(".")[0] not in ("builtins", "torch")


def same_facts(one: Mapping[object, object], other: Mapping[object, object]) -> bool:
    """Whether all facts of one instance are those of another."""
    return one.keys() == other.keys() and all(alike(each, other[key]) for key, each in one.items())


def alike(one: object, other: object) -> bool:
    """Whether a fact is also that of another instance."""
    if type(one) is not type(other) or one is UNKNOWN:
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, frozenset):
        return one == other and all(type(each) in (str, bytes) for each in one)
    return one is other or isinstance(one, (*CONSTANTS, torch.device)) and repr(one) == repr(other)
