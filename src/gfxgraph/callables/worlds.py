"""What the calls of one callable read besides their arguments, and which of them are one graph.

promised ── ``assume_pure``: only checks whether its modules' tensors were replaced
known    ── a world in which a call was traced, and in which nothing has changed
new      ── one call through Dynamo, which shows what it reads; from then on its world is known
in pieces, or eager for good: the reason is raised
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.reads import Promised, Reads
from gfxgraph.callables.signature import (
    Call,
    InPieces,
    RunEagerly,
    skeleton,
    tensor_key,
    what_changed,
    why_in_pieces,
    zeros_in,
)
from gfxgraph.callables.trace.frontend import RAISED, Frontend, Untraceable
from gfxgraph.callables.trace.world import World
from gfxgraph.capture.memory import used_on

MAX_WORLDS = 4096
"""Most signatures whose world is remembered."""
MAX_REBOUND = 4
"""How often an external tensor may be replaced before it becomes an input like an argument."""


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

    def of(self, call: Call) -> Reads | None:
        """What a graph for this call reads besides its arguments; None for a call that must be traced.

        Raises:
            InPieces, RunEagerly: the call cannot be one graph.
        """
        if self._promised is not None:
            if not self._promised.is_same():
                token = self._promised.token
                self._promised.look()
                if self._promised.token != token:
                    self._forget(None)
            return self._promised
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
                return None
        if world.why_eager:
            raise RunEagerly(world.why_eager)
        if world.stores and not world.stores_are_there():
            raise InPieces("an attribute that each call sets was set to another value in between")
        if world.why_pieces:
            raise InPieces(world.why_pieces)
        if world.written and not world.written_homes.isdisjoint(t.untyped_storage().data_ptr() for t in call.tensors):
            raise RunEagerly("an argument shares memory that the function also writes to under another name")
        return world

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
            if world.n_rebound > MAX_REBOUND:
                world.why_pieces = "a tensor that it reads from outside is replaced too often"
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
            with torch.cuda.stream(stream):
                result, world = self._front.trace(args, kwargs)
                result = call.given_back(result, args, kwargs)
        except Untraceable as error:
            self._untraceable, result = error.args
            self._pieces[self._untraceable] += 1
            return result
        except Exception:
            self._eager[RAISED] += 1
            raise
        finally:
            current.wait_stream(stream)
        self._eager["warm-up"] += 1
        self._known[call.key] = world
        world.zeros = zeros_in(call.structure)
        world.skeleton = skeleton(call.structure) if world.does_catch else None
        made: list[Tensor] = []
        world.why_pieces = world.why_pieces or why_in_pieces(result, made)
        world.why_eager = what_changed(layouts, [tensor_key(t) for t in call.tensors]) or world.why_eager
        if world.why_eager or world.why_pieces:
            for tensor in made:
                if tensor.is_cuda and tensor.layout is torch.strided:
                    used_on(tensor, current)
            return result
        call.in_world(world)
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
