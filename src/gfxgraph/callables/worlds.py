"""What the calls of one callable read besides their arguments, and which of them are one graph.

promised ── ``assume_pure``: only checks whether its modules' tensors were replaced
known    ── a world in which a call was traced, and in which nothing has changed
new      ── one call through Dynamo, which shows what it reads; from then on its world is known
in pieces, or eager for good: the reason is raised
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.signature import (
    Call,
    InPieces,
    RunEagerly,
    named_by,
    numbers_in,
    skeleton,
    tensor_key,
    what_changed,
    why_from_outside,
    why_in_pieces,
    zeros_in,
)
from gfxgraph.callables.trace.dicts import watched
from gfxgraph.callables.trace.frontend import RAISED, Frontend, Untraceable
from gfxgraph.callables.trace.world import World
from gfxgraph.capture.replay import hang_watch
from gfxgraph.capture.replay.graph_tensors import has_layout, parts_of, storage_address, used_on

MAX_WORLDS = 4096
"""Most signatures whose world is remembered."""
MOST_NUMBERS = 4
"""Numbers among the arguments of one world that have graphs of their own; with more, calls run in pieces."""


class Worlds:
    """The worlds of one callable.

    Args:
        fn: the function.
        front: Dynamo; None if the caller has promised that the function is pure.
        eager: calls without a graph, by reason.
        pieces: calls in pieces, likewise.
        evict: a weak reference to a function to call for a world whose graphs read tensors that were replaced; for
            None if all graphs do.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        front: Frontend | None,
        eager: Counter[str],
        pieces: Counter[str],
        evict: Callable[[], Callable[[World | None], None] | None],
    ) -> None:
        self._promised = Promised(fn) if front is None else None
        self._front = front
        self._eager = eager
        self._pieces = pieces
        self._evict = evict
        self._known: dict[Any, World] = {}
        """By signature: the world of its last call."""
        self._untraceable = self._changing = ""

    @property
    def structures(self) -> list[Any]:
        """The structures of the calls seen."""
        return [key[0] for key in self._known]

    def _forget(self, world: World | None) -> None:
        evict = self._evict()
        if evict is not None:
            evict(world)

    def reset(self) -> None:
        """Forget every world, and the program's objects that they hold."""
        self._known.clear()
        self._untraceable = self._changing = ""
        if self._front is not None:
            self._front.reset()

    def enter(self, call: Call) -> bool:
        """Make what is known of this call's world part of the call; False for a call that is to be traced.

        Raises:
            InPieces, RunEagerly: the call cannot be one graph.
        """
        if self._promised is not None:
            if not self._promised.is_same():
                if self._promised.look():
                    self._forget(None)
            call.world, token = self._promised, self._promised.token
            call.kind, call.key = (*call.kind, token), (*call.key, token)
            return True
        assert self._front is not None
        if self._front.keeps:  # checked first: a call in pieces may have found it
            raise RunEagerly(self._front.keeps)
        if self._untraceable:
            raise InPieces(self._untraceable)
        if self._front.does_ask_by_name and any(vars(t) for t in call.tensors):
            raise RunEagerly("it looks up attributes by name, and an argument is a tensor with added attributes")
        world = self._known.get(call.key)
        if world is None or not world.is_same():
            world = self._find(call) if self._front.worlds else None
            if world is None:
                return False
        if world.why_eager:
            raise RunEagerly(world.why_eager)
        if world.stores and not world.stores_are_there():
            raise InPieces("an attribute that each call sets was set to another value in between")
        if world.why_pieces:
            raise InPieces(world.why_pieces)
        if not self._front.is_dynamic and self._is_restless(world, call):
            raise InPieces("a number among its arguments is another one again and again")
        if world.written and not world.written_homes.isdisjoint(t.untyped_storage().data_ptr() for t in call.tensors):
            raise RunEagerly("an argument shares memory that the function also writes to under another name")
        call.world = world
        call.kind, call.key = (*call.kind, world.token), (*call.key, world.token)
        return True

    def _is_restless(self, world: World, call: Call) -> bool:
        """Whether the call's numbers are new, after many of which most did not come again."""
        numbers = numbers_in(call.structure)
        known = world.numbers
        if len(known) >= MOST_NUMBERS and numbers not in known and 2 * sum(known.values()) < len(known):
            return bool(numbers)
        if numbers:
            known[numbers] = numbers in known
        return False

    def _find(self, call: Call) -> World | None:
        """The world in which the call was traced before; its graphs become invalid if it now reads other tensors."""
        assert self._front is not None
        if len(self._known) >= MAX_WORLDS:
            self._known.clear()
        self._known.pop(call.key, None)
        args, kwargs = call.for_dynamo()
        world = self._front.find(args, kwargs)
        if world is None:
            return None
        if world.zeros != zeros_in(call.structure):
            raise RunEagerly("0.0 and -0.0 were both passed, and Dynamo does not distinguish them")
        if world.skeleton not in (None, skeleton(call.structure)):
            raise RunEagerly("it catches errors, and Dynamo does not distinguish what two kinds of arguments lack")
        if not world.why_pieces and self._front.has_moved(world, args, kwargs):
            token = world.token
            self._forget(world)
            self._front.rebind(world, args, kwargs)
            assert world.token != token
        self._known[call.key] = world
        return world

    def trace(self, arena: Arena, call: Call) -> Any:
        """Run the call eagerly through Dynamo; if it is one graph, its world is the call's from now on.

        Raises:
            RunEagerly: it was traced too often; nothing has run.
        """
        assert self._front is not None
        current = torch.cuda.current_stream(arena.device_index)
        # A call that may be differentiated stays on its own stream: backward runs where forward ran.
        stream = current if torch.is_grad_enabled() else arena.stream
        layouts = [tensor_key(t) for t in call.tensors]
        args, kwargs = call.for_dynamo()
        why = self._front.why_no_more()
        if why:
            raise RunEagerly(self._never_the_same(why, call))
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream), hang_watch.tracing(self._front.fn):
                result, world = self._front.trace(args, kwargs)
                result = call.given_back(result, args, kwargs)
        except Untraceable as error:
            self._untraceable, result = error.args
            self._pieces[self._untraceable] += 1
            world = None
        except Exception:
            self._eager[RAISED] += 1
            raise
        finally:
            current.wait_stream(stream)
        made: list[Tensor] = []
        why_pieces = why_in_pieces(result, made)
        for tensor in made if stream is not current else ():
            if tensor.is_cuda and tensor.layout is torch.strided:
                used_on(tensor, current)
        if world is None:
            return result
        self._eager["warm-up"] += 1
        self._known[call.key] = world
        world.zeros = zeros_in(call.structure)
        world.skeleton = skeleton(call.structure) if world.does_catch else None
        world.why_pieces = world.why_pieces or why_pieces or why_from_outside(world.tensors)
        world.why_eager = what_changed(layouts, [tensor_key(t) for t in call.tensors]) or world.why_eager
        if not world.why_eager and not world.why_pieces:
            call.world = world
            call.kind, call.key = (*call.kind, world.token), (*call.key, world.token)
        return result

    def _never_the_same(self, why: str, call: Call) -> str:
        """Why tracing was given up, and what differs from call to call."""
        if not self._changing:
            assert self._front is not None
            self._changing = why
            differs = self._front.why_not(call.args, call.kwargs)
            if differs:
                self._changing += (
                    f" (failed last: {differs}); a number that changes belongs in a tensor on the device"
                )
        return self._changing


class Promised:
    """The modules of a pure function: parameters and buffers are compared by identity, and two addresses per call, in
    turn.

    Comparing all addresses in each call would cost more than the replay: after a step none of them is in the CPU's
    caches.
    """

    def __init__(self, fn: Any) -> None:
        self.token = 0
        self.written_homes: frozenset[int] = frozenset()
        self._modules = list(_modules_of(fn))
        self._bound: frozenset[int] = getattr(fn, "homes", frozenset())
        self._look()

    def is_same(self) -> bool:
        one, first, other, second = self._turn()
        return bool(self._unchanged() and one() == first and other() == second)

    def look(self) -> bool:
        """Note the modules' current tensors; on a change, return True and use a new token."""
        before = self._seen
        self._look()
        has_changed = before != self._seen
        self.token += has_changed
        return has_changed

    def _look(self) -> None:
        inner = list({id(each): each for module in self._modules for each in module.modules()}.values())
        state = [d for each in inner for d in (each._parameters, each._buffers, each._modules)]
        dicts = watched(state)
        self._unchanged: Callable[[], bool] = dicts.is_same if dicts is not None else lambda: not state
        held = [t for each in inner for t in (*each._parameters.values(), *each._buffers.values())]
        tensors = [t for t in held if t is not None]
        places = [t.data_ptr if has_layout(t) else functools.partial(_places, t) for t in tensors]
        asked = [(place, place()) for place in places] or [(int, 0)]
        self._seen = [(id(t), place) for t, (_, place) in zip(tensors, asked)]
        # Read as one object: another thread may replace it meanwhile.
        self._turn = itertools.cycle([(*asked[i], *asked[i - 1]) for i in range(0, len(asked), 2)]).__next__
        self.homes = self._bound.union(storage_address(part) for t in tensors for part in _parts(t))


def _parts(tensor: Tensor) -> list[Tensor]:
    return [part for part in parts_of(tensor) if has_layout(part)]


def _places(tensor: Tensor) -> list[int]:
    return [part.data_ptr() for part in _parts(tensor)]


def _modules_of(fn: Any) -> Iterator[nn.Module]:
    """Modules that a callable is, is bound to, or names in its closure and globals."""
    while isinstance(fn, functools.partial) or hasattr(fn, "_torchdynamo_orig_callable"):
        fn = fn.func if isinstance(fn, functools.partial) else fn._torchdynamo_orig_callable
    if isinstance(fn, nn.Module):
        yield fn
        return
    owner = getattr(fn, "__self__", fn if not inspect.isfunction(fn) else None)
    if isinstance(owner, nn.Module):
        yield owner
    elif owner is not None and hasattr(owner, "__dict__"):
        yield from (each for each in vars(owner).values() if isinstance(each, nn.Module))
    function = getattr(fn, "__func__", fn)
    if inspect.isfunction(function):
        yield from (value for value in named_by(function) if isinstance(value, nn.Module))
