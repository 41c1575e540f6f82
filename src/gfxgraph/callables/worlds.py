"""What the calls of one function read besides their arguments, and which of them are one graph.

promised ── ``assume_pure``: only checks whether its modules' tensors were replaced
known    ── a world in which a call was traced, and in which nothing has changed: its graph may be replayed
new      ── one call through Dynamo, which shows what it reads; from then on its world is known
in pieces, or eager for good: the reason is raised

A call may be one FX graph and still not one replay: it stores what it computes in an object, or its result needs
gradients. Then Dynamo's code runs, which guards and stores, and the graph in it is replayed (``InPieces.is_one``).

Invariant: a graph is replayed only in the world that it was captured in. Source: decision 0111.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.signature import (
    MISS,
    Args,
    Call,
    InPieces,
    Kwargs,
    NotATree,
    RunEagerly,
    children_of,
    flatten,
    has_buffer,
    named_by,
    replace,
    tensor_key,
)
from gfxgraph.callables.trace.dynamo import (
    LEFT_TO_PYTHON,
    WARM_UP,
    Calls,
    Frontend,
    Untraceable,
    local,
    returned,
)
from gfxgraph.callables.trace.in_dynamo import Found, may_draw_on_host
from gfxgraph.callables.trace.world import World
from gfxgraph.capture.replay.graph_tensors import has_layout, kind_of, parts_of, size_of, storage_address, used_on
from gfxgraph.watching.watch import Watch

NEEDS_GRADIENTS = "its result needs gradients"
Evict = Callable[[], Callable[[World | None], None] | None]
MOST_WITH_GRADIENTS = 4
"""Most signatures of calls with gradients that have a fast path at a time."""
MAX_WORLDS = 4096
"""Most signatures whose world is remembered."""
SETTLED = 16
"""Calls in pieces, one after another without a graph or a warm-up, after which they run eagerly."""


class Worlds:
    """The worlds of one graphed callable.

    Args:
        fn: the function.
        front: Dynamo; None if the caller has promised that the function is pure.
        eager: calls without a graph, by reason.
        pieces: calls in pieces, likewise.
        evict: a weak reference to a function to call for a world whose graphs read tensors that were replaced; for
            None if all graphs do.
    """

    def __init__(
        self, fn: Callable[..., Any], front: Frontend | None, eager: Calls, pieces: Calls, evict: Evict
    ) -> None:
        self._promised = Promised(fn) if front is None else None
        self._front, self._eager, self._pieces, self._evict = front, eager, pieces, evict
        self._worlds: dict[Any, World] = {}
        """By key of a call: the world of its last call."""
        self._untraceable = ""
        self._traced: set[Any] = set()
        """Keys of calls that were traced."""
        self.why_pieces = ""
        """Why the last call that was not one graph was none."""
        self.n_one_graph = 0
        """Calls in Dynamo's code whose one graph was replayed."""
        self._bare: Calls = Calls()
        """Calls in pieces one after another that had no graph and no warm-up, by reason."""
        self.with_gradients: list[Any] = []
        """Graphs of forward and backward that have a fast path, the last made first."""

    @property
    def structures(self) -> list[Any]:
        """The structures of the calls seen."""
        return [key[0] for key in self._worlds]

    def reset(self) -> None:
        """Forget every world, and the program's objects that they hold."""
        self._worlds.clear()
        self._traced.clear()
        self._bare.clear()
        self.with_gradients.clear()
        self._untraceable = ""
        if self._front is not None:
            self._front.reset()

    def enter(self, call: Call) -> bool:
        """Make what is known of this call's world part of the call; False for a call that is to be traced.

        Raises:
            InPieces, RunEagerly: the call cannot be one graph.
        """
        if self._promised is not None:
            if not self._promised.is_same() and self._promised.look():
                self._evict_world(None)
            call.in_world(self._promised)
            return True
        front = self._front
        assert front is not None
        if front.does_ask_by_name and any(vars(t) for t in call.tensors):
            raise RunEagerly("it looks up attributes by name, and an argument is a tensor with added attributes")
        if front.keeps:  # checked first: a call in pieces may have found it
            raise RunEagerly(front.keeps, for_good=True)
        if self._untraceable:
            raise InPieces(self._untraceable)
        args, kwargs = for_dynamo(call, front)
        world = self._worlds.get(call.key)
        if world is not None and world.why_pieces and world.is_one and not world.why_eager:
            # What it stores changes what it reads, so Dynamo's guards decide.
            if why := front.why_no_more(args, kwargs):
                raise RunEagerly(why)
            raise self._in_pieces(call, world)
        if world is None or not world.is_same_for(args, kwargs):
            world = self._find(call, args, kwargs) if front.worlds else None
            if world is None:
                return False
        if world.why_eager:
            raise RunEagerly(world.why_eager, for_good=True)
        if world.why_pieces:
            raise self._in_pieces(call, world)
        numbers = tuple(value for kind, value in constants_in(call.structure) if kind is int or kind is float)
        if numbers and not front.is_dynamic and world.is_restless(numbers):
            raise InPieces("a number among its arguments is another one again and again", is_one=world.is_one)
        if world.written and not world.written_homes.isdisjoint(t.untyped_storage().data_ptr() for t in call.tensors):
            raise RunEagerly("an argument shares memory that the function also writes to under another name")
        call.in_world(world)
        return True

    @staticmethod
    def _in_pieces(call: Call, world: World) -> InPieces:
        call.world = world
        is_one = world.is_one and world.why_pieces == NEEDS_GRADIENTS
        return InPieces(world.why_pieces, is_one=world.is_one, call=call if is_one else None)

    def _find(self, call: Call, args: Args, kwargs: Kwargs) -> World | None:
        """The world in which the call was traced before; its graphs become invalid if it now reads other tensors."""
        front = self._front
        assert front is not None
        if len(self._worlds) >= MAX_WORLDS:
            self._worlds.clear()
        self._worlds.pop(call.key, None)
        world = front.find(args, kwargs)
        if world is None:
            return None
        zeros = zeros_in(call.structure)
        if world.zeros and zeros and world.zeros != zeros:
            raise RunEagerly("0.0 and -0.0 were both passed, and Dynamo does not distinguish them")
        if world.does_catch and world.skeleton not in (None, skeleton(call.structure)):
            raise RunEagerly("it catches errors, and Dynamo does not distinguish what two kinds of arguments lack")
        world.store()
        if not world.why_pieces and front.has_moved(world, args, kwargs):
            self._evict_world(world)
            front.rebind(world, args, kwargs)
        self._worlds[call.key] = world
        return world

    def _evict_world(self, world: World | None) -> None:
        evict = self._evict()
        if evict is not None:
            evict(world)

    def trace(self, arena: Arena, call: Call) -> Any:
        """Run the call eagerly through Dynamo; if it is one graph, its world is the call's from now on.

        Raises:
            RunEagerly: it was traced too often; nothing has run.
        """
        front = self._front
        assert front is not None
        args, kwargs = for_dynamo(call, front)
        current = torch.cuda.current_stream(arena.device_index)
        # A call that may be differentiated stays on its own stream: backward runs where forward ran.
        stream = current if torch.is_grad_enabled() else arena.stream
        layouts = [_key_of(t) for t in call.tensors]
        again = self._why_again(call.key, args, kwargs)
        world: World | None = None
        untraceable = ""
        kind = None if any(vars(t) for t in call.tensors) else (zeros_in(call.structure), skeleton(call.structure))
        if why := front.why_no_more(args, kwargs):
            raise RunEagerly(why)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                try:
                    result, world = front.trace(args, kwargs, kind)
                except Untraceable as error:  # Dynamo leaves the function to Python
                    untraceable, result = error.args
                    self._untraceable = "" if front.is_too_deep else untraceable
                if args is not call.args:
                    result = call.given_back(result, args, kwargs)
                local.returned = call.kwargs, result, False
        finally:
            current.wait_stream(stream)
        made: list[Tensor] = []
        why = why_in_pieces(result, made)
        for tensor in made if stream is not current else ():
            if tensor.is_cuda and tensor.layout is torch.strided:
                used_on(tensor, current)
        if world is None:
            self._eager.count(untraceable)
            return result
        world.why_pieces = world.why_pieces or why or why_from_outside(world.tensors)
        world.why_eager = what_changed(layouts, [_key_of(t) for t in call.tensors]) or world.why_eager
        if world.why_pieces and world.takes_gradients:
            front.traces_gradients = False
            self.reset()
            self._evict_world(None)
            self._eager.count(again or WARM_UP)
            return returned(call.kwargs, result, True)
        world.zeros, world.skeleton = zeros_in(call.structure), skeleton(call.structure)
        self._worlds[call.key] = world
        self._eager.count(world.why_eager or again or WARM_UP)
        returned(call.kwargs, result, True)
        if kind is not None and not world.is_taken and world.why_pieces in ("", NEEDS_GRADIENTS):
            front.offer(world, kind)
        if not world.why_eager and not world.why_pieces:
            call.in_world(world)
        return result

    def _why_again(self, key: Any, args: Args, kwargs: Kwargs) -> str:
        """Why calls of a signature are traced again; "" for its first one."""
        assert self._front is not None
        if key in self._traced:
            why = self._front.told(self._front.why_not(args, kwargs))
            return f"traced again: {why or 'what it read'} no longer holds"
        if len(self._traced) >= MAX_WORLDS:
            self._traced.clear()
        self._traced.add(key)
        return ""

    def in_pieces(self, found: InPieces, args: Args, kwargs: Kwargs) -> Any:
        """Run the call as Dynamo's code, its graphs captured; one graph that was replayed is a replay."""
        assert self._front is not None
        n_eager, n_warm_ups, n_ran = local.n_eager, local.n_warm_ups, local.n_ran
        before, local.noted, n_graphs = local.noted, [], len(self._front.graphs)
        try:
            result = returned(kwargs, self._front.pieces(*args, **kwargs))
        finally:
            noted, local.noted = local.noted, before
        if found.call is not None and len(noted) == 1:
            self._note_graphs(found.call, result, *noted[0])
        self.why_pieces = "" if found.is_one else found.why
        n_eager, n_warm_ups, n_ran = local.n_eager - n_eager, local.n_warm_ups - n_warm_ups, local.n_ran - n_ran
        if n_ran > n_eager and (n_eager or not found.is_one):
            self._pieces.count(found.why, is_eager=False)
        elif n_ran > n_eager:
            self.n_one_graph += 1
        elif not n_ran:
            self._eager.count(LEFT_TO_PYTHON if found.is_one else found.why)
        else:
            again = "" if len(self._front.graphs) == n_graphs else self._why_again(found.why, args, kwargs)
            self._eager.count(again or WARM_UP if n_eager == n_warm_ups else local.why_eager)
        self._bare[found.why] = 0 if n_warm_ups else self._bare[found.why] + 1
        return result

    def why_bare(self, found: InPieces) -> str:
        """Why calls in pieces are to run eagerly from now on; "" if a piece of them is, or may become, a graph."""
        if self._bare[found.why] < SETTLED:
            return ""
        assert self._front is not None
        if any(region.stats()["captures"] for _, traced in self._front.graphs for region in traced.regions):
            self._bare[found.why] = -SETTLED
            return ""
        return f"nothing in it is a graph: {found.why}"

    def _note_graphs(self, call: Any, result: Any, graphs: Any, inputs: Any, made: Any) -> None:
        """Make a fast path for calls like this one, if its world is as when it was traced."""
        front, world = self._front, call.world
        assert front is not None
        if graphs.fn != world.found.graph.forward or front.keeps or world.unwatched or not graphs.is_due:
            return
        if not world.is_same() and front.find(call.args, call.kwargs) is world:
            front.has_moved(call.world, call.args, call.kwargs)  # watches it again if not
        if world.is_same():
            graphs.make_fast(world, call, inputs, made, result)
            others = [each for each in self.with_gradients if each is not graphs and each.is_captured]
            self.with_gradients = [graphs, *others][:MOST_WITH_GRADIENTS]

    def fast(self, args: Args, kwargs: Kwargs) -> Any:
        """Replay a call whose result needs gradients, and that is known; `MISS` for any other."""
        for graphs in self.with_gradients:
            result = graphs.fast(args, kwargs)
            if result is not MISS:
                self.n_one_graph += 1
                return result
        return MISS


# -- facts about a call's arguments and its result -----------------------------------------------------------


def for_dynamo(call: Call, front: Frontend | None) -> tuple[Args, Kwargs]:
    """The arguments in the form of a graph's buffers, which Dynamo would otherwise tell apart.

    Copies of inference tensors, and for a view a tensor over the same memory that is not a view; with symbolic sizes
    a copy of one that does not begin where its memory does, which Dynamo guards then.
    """
    given = [t for t in call.tensors if t.is_inference() or (t._is_view() and not t.requires_grad)]
    copies = front is not None and front.is_dynamic and not call.aliases
    others = {id(t): _as_buffer(t, copies and t.is_cuda and bool(t.storage_offset())) for t in given}
    if not others:
        return call.args, call.kwargs
    change = lambda t: others.get(id(t), t)  # noqa: E731
    return replace(tuple(call.args), change), replace(dict(call.kwargs), change)


def _as_buffer(tensor: Tensor, copies: bool) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        if tensor.is_inference() or copies:
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            made.data.copy_(tensor)
            return made
        return tensor.new_empty(0).set_(tensor.detach())


def _key_of(tensor: Tensor) -> Any:
    if has_buffer(tensor):
        return tensor_key(tensor)
    return kind_of(tensor), size_of(tensor), tensor.dtype, tensor.device


def containers_in(value: Any) -> list[object]:
    """Every list, dict and object in the tree that could be changed, once for each occurrence."""
    children = None if isinstance(value, Tensor) else children_of(value)
    if children is None:
        return []
    inner = [each for part in children[1] for each in containers_in(part)]
    return inner if isinstance(value, tuple) else [value, *inner]


def why_in_pieces(result: object, made: list[Tensor]) -> str:
    """Why one graph cannot return such a result; "" if it can. Its tensors are appended to ``made``."""
    try:
        flatten(result, made)
    except NotATree as error:
        return f"its result cannot be taken apart: {error}"
    inside = [id(each) for each in containers_in(result)]
    if len(set(inside)) < len(inside):
        return "its result contains the same list, dict or object twice"
    return NEEDS_GRADIENTS if any(t.requires_grad for t in made) else ""


def why_from_outside(tensors: Sequence[Tensor]) -> str:
    """Why one graph cannot read such tensors besides its arguments; "" if it can."""
    odd = next((tensor for tensor in tensors if not has_layout(tensor)), None)
    return f"it reads {kind_of(odd)} from outside" if odd is not None else ""


def what_changed(before: Sequence[tuple[object, ...]], after: Sequence[tuple[object, ...]]) -> str:
    """What a call changed about its arguments that a replay would not, by their `tensor_key`; "" for nothing."""
    if list(before) == list(after):
        return ""
    if [key[:-1] for key in before] == [key[:-1] for key in after]:
        return "it writes a tensor that needs gradients to an argument that needs none"
    return "it changes the shape or the layout of an argument"


def skeleton(structure: Any) -> Any:
    """A structure without the values of its constants: types, keys, lengths."""
    if type(structure) is not tuple:
        return structure
    if len(structure) == 2 and structure[0] in _CONSTANTS:
        return structure[0]
    return tuple(skeleton(part) for part in structure)


_CONSTANTS = frozenset((bool, int, float, complex, str, bytes, type(None)))


def constants_in(structure: object) -> Iterator[tuple[type, Any]]:
    """The constants of a structure with their types."""
    if type(structure) is not tuple:
        return
    if len(structure) == 2 and structure[0] in _CONSTANTS and type(structure[1]) is not tuple:
        yield structure
        return
    for part in structure:
        yield from constants_in(part)


def zeros_in(structure: object) -> tuple[str, ...]:
    """The constants 0.0 and -0.0, which are equal under ``==``."""
    return tuple(value for kind, value in constants_in(structure) if kind is float and value in _ZEROS)


_ZEROS = ((0.0).hex(), (-0.0).hex())


@dataclasses.dataclass(eq=False)
class TracedGraph:
    """What Dynamo's code calls for one FX graph: the graph itself; in a call that runs in pieces, what captures it.

    Args:
        make_piece: makes what captures it.
        found: what Dynamo found.
    """

    make_piece: Callable[[Found], Any]
    found: Found
    has_run: bool = False
    """The first run adds to ``found`` what it did, and what its results share."""
    piece: Any = None
    """What captures it; None before a call ran in pieces."""

    def __call__(self, *inputs: object) -> object:
        found = self.found
        if found.is_empty or torch.cuda.is_current_stream_capturing():
            return found.graph.forward(*inputs)
        local.n_ran += 1
        if local.told is not None:
            for each in inputs:
                if isinstance(each, Tensor) and not each.is_inference():
                    local.told.versions.setdefault(id(each), (each, each._version))
        result = None if self.has_run else self._first(inputs)
        if local.is_raw:
            return found.graph.forward(*inputs) if result is None else result
        if self.piece is None:
            self.piece = self.make_piece(found)
        if result is None:
            return self.piece(inputs)
        self.piece.note_run(inputs)
        return result

    def _first(self, inputs: Sequence[object]) -> tuple[object, ...]:
        """Run it, and find out whether it does something that no graph can, and what its results share."""
        self.has_run, found = True, self.found
        homes = homes_of(inputs, found.outside)
        tensors = [t for t in inputs if isinstance(t, Tensor)]
        host = [t for t in tensors if not t.is_cuda and not t.is_inference()]
        versions, layouts = [t._version for t in host], [tensor_key(t) for t in tensors]
        before = torch.get_rng_state()
        results: tuple[object, ...] = found.graph.forward(*inputs)
        has_drawn = not torch.equal(before, torch.get_rng_state()) and may_draw_on_host(found.graph)
        # A result that lies in an input must be a view of the caller's own tensor: that input is not bound, but for
        # one that is the result, as the `self.n` of `self.n += 1`, which is stored again.
        moving, same = homes_in_use(homes, results) | found.stored, set(map(id, results))
        found.outside = [i for i in found.outside if i not in moving or id(inputs[i]) in same]
        changed = [tensor_key(t) for t in tensors]
        # Whether results need gradients because of what the graph does, rather than because of its inputs.
        has_gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        made = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
        found.has_gradients, begins = bool(made), any(t.grad_fn is not None for t in made)
        if has_drawn:
            found.effect = "it draws random numbers on the host"
        elif versions != [t._version for t in host]:
            found.effect = "it writes to a tensor on the host"
        elif layouts != changed:
            found.effect = what_changed(layouts, changed)
        elif begins and not has_gradients:
            found.effect = "it enables gradients inside, and the results of a graph have none"
        return results

    @property
    def regions(self) -> list[Any]:
        """What captures it."""
        return self.piece.regions if self.piece is not None else []


def homes_of(inputs: Sequence[object], which: Iterable[int]) -> dict[int, int]:
    """The addresses of the storages of these inputs, as far as they are on the device, with their positions."""
    return {home: i for i in which for home in _homes(inputs[i])}


def homes_in_use(homes: Mapping[int, int], results: Iterable[object]) -> set[int]:
    """The positions of inputs in whose memory a result lies."""
    return {homes[home] for each in results for home in _homes(each) if home in homes}


def _homes(value: object) -> list[int]:
    if isinstance(value, Tensor) and value.is_cuda and has_layout(value) and value.numel():
        return [value.untyped_storage().data_ptr()]
    return []


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
        watch = Watch()
        for state in (d for each in inner for d in (each._parameters, each._buffers, each._modules)):
            watch.watch(state, None)
        self._unchanged = watch.built((), ())
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
