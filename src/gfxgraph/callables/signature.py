"""Arguments and results as trees, the cache key of a call, and one call with its key.

A tree is walked once: tensors come out as a list, everything else, constants included, becomes part
of a hashable structure. Two calls with equal structures and equal tensor keys can share a capture.

Invariant: nothing that could change the function's control flow is left out of the key. What cannot be compared by
value (an object of an unknown class) makes the call eager; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.replay.graph_tensors import has_layout, kind_of, storage_address
from gfxgraph.core.constants import NotConstant, constant_key
from gfxgraph.errors import CaptureError, GfxGraphError
from gfxgraph.types import OUR_MODULES

TENSOR = "T"
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Fast = Callable[[Args, Kwargs], Any]
"""A fast path (fast_path.py): returns a call's result, or `MISS` where it differs from the call it was made for."""
MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()
HOST_CONSTANT_NUMEL = 16
"""CPU tensors up to this size are constants, compared by content."""
_KINDS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def named_by(function: FunctionType) -> Iterator[object]:
    """What the closure and the globals hold under the names that a function uses, if anything yet."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # assigned later: a decorated function inside another one calls itself, say
            yield cell.cell_contents
    held = function.__globals__
    yield from (held[name] for name in function.__code__.co_names if name in held)


def never(args: Args, kwargs: Kwargs) -> Any:
    """The fast path of a callable that has none yet."""
    return MISS


class RunEagerly(Exception):
    """Raised for a call that the function itself must run.

    Args:
        why: the reason, counted in ``stats()``.
        error: what ``strict`` raises instead.
        for_good: later calls of this kind will have the same reason.
    """

    def __init__(self, why: str, error: GfxGraphError | None = None, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.error = error
        self.for_good = for_good


class InPieces(Exception):
    """Raised for a call that Dynamo's code must run, whose graphs are captured one by one.

    Args:
        why: why it is not one graph.
        is_one: that is for what its code does beside its only graph.
        world: of a call whose result needs gradients, if that is all.
    """

    def __init__(self, why: str, *, is_one: bool = False, call: Any = None) -> None:
        super().__init__(why)
        self.why = why
        self.is_one = is_one
        self.call = call


class NotATree(Exception):
    """A value that can be neither compared nor rebuilt; ``args[0]`` describes it."""


class Unguarded(NotATree):
    """A value that Dynamo does not guard completely; ``args[0]`` describes it."""


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """The structure of ``value``, hashable; its tensors are appended in order.

    Raises:
        NotATree: it holds an object that can be neither compared nor rebuilt.
    """
    kind = type(value)
    if kind is Tensor or isinstance(value, Tensor):
        tensors.append(value)
        return TENSOR
    if kind is tuple or kind is list:
        return (kind, *[flatten(item, tensors) for item in value])
    if kind is dict:
        return (kind, *[(_key(name), flatten(item, tensors)) for name, item in value.items()])
    if kind in _UNGUARDED:
        what, instead = _UNGUARDED[kind]
        raise Unguarded(f"a {kind.__qualname__}, whose {what} Dynamo does not guard; pass {instead}")
    children = children_of(value)
    if children is not None:
        context, parts, _ = children
        return (kind, context, *[flatten(part, tensors) for part in parts])
    return (kind, _key(value))


_UNGUARDED: dict[type, tuple[str, str]] = {
    OrderedDict: ("the order", "a dict"),
    defaultdict: ("the default_factory", "a dict"),
    deque: ("the bound", "a list"),
}
"""What Dynamo does not guard about an argument, and what to pass instead."""


def replace(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same tree with ``change`` applied to each tensor, in the order of ``flatten``."""
    if isinstance(value, Tensor):
        return change(value)
    children = children_of(value)
    if children is None:
        return value
    _, parts, rebuild = children
    return rebuild([replace(part, change) for part in parts])


def _key(value: Any) -> Any:
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format | torch.Size):
        return value
    try:
        return constant_key(value)
    except NotConstant:
        raise NotATree(f"a {type(value).__module__}.{type(value).__qualname__}") from None


def children_of(value: Any) -> tuple[Any, list[Any], Callable[[list[Any]], Any]] | None:
    """Context, parts, and a function that rebuilds it from parts; None for a leaf."""
    kind = type(value)
    if kind is tuple or kind is list:
        return None, value, kind
    if kind is dict:
        keys = tuple(value)
        return keys, list(value.values()), lambda parts: dict(zip(keys, parts))
    if kind is torch.Size:
        return None
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return None, list(value), lambda parts: kind(*parts)
    node = (torch_names.SUPPORTED_NODES or {}).get(kind)
    if node is not None:
        parts, context = node.flatten_fn(value)
        return repr(context), list(parts), lambda parts: node.unflatten_fn(parts, context)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | enum.Enum):
        names = [field.name for field in dataclasses.fields(value)]
        if not set(names).issuperset(getattr(value, "__dict__", ())):
            return None  # it has attributes of its own

        def rebuild(parts: list[Any]) -> Any:
            made = object.__new__(kind)
            for name, part in zip(names, parts):
                object.__setattr__(made, name, part)
            return made

        return tuple(names), [getattr(value, name) for name in names], rebuild
    return None


def near_key(structure: Any, tensors: list[Tensor]) -> Any:
    """What calls with this tree and these shapes have in common."""
    return (structure, *[t.shape for t in tensors if not t.is_nested])  # such calls have no route


def has_buffer(tensor: Tensor) -> bool:
    """Whether a graph's buffer can stand for it: not if no address and strides describe it, or it has a class of its
    own.
    """
    return type(tensor) in _KINDS and has_layout(tensor)


def tensor_key(tensor: Tensor) -> tuple[object, ...]:
    """Key of one tensor argument: what a capture assumes about it."""
    return (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


def twins_of(tensors: Sequence[Tensor]) -> list[int]:
    """For each argument the position of the first that is the same tensor."""
    first: dict[int, int] = {}
    return [first.setdefault(id(t), i) for i, t in enumerate(tensors)]


def mode_key() -> tuple[object, ...]:
    """Key of torch's settings: what a capture assumes about them."""
    autocast = torch.is_autocast_enabled("cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast and (torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        matmul_precision(),
        function_modes(),
    )


def function_modes() -> tuple[object, ...]:
    """The stack of torch function modes; a default device is one."""
    n = torch_names._len_torch_function_stack()
    return tuple(_mode_key(torch_names._get_function_stack_at(i)) for i in range(n)) if n else ()


def _mode_key(mode: object) -> object:
    return mode.device if isinstance(mode, torch_names.DeviceContext) else mode


def foreign_mode() -> str:
    """A mode that intercepts each operation, which a replay would not show it; "" if there is none."""
    modes = [torch_names._get_function_stack_at(i) for i in range(torch_names._len_torch_function_stack())]
    modes += [torch_names._get_dispatch_stack_at(i) for i in range(torch_names._len_torch_dispatch_stack())]
    if torch_names.peek_interpreter_stack() is not None:
        return "a transform of torch.func around the call (put it inside)"
    kinds = [type(mode) for mode in modes if not isinstance(mode, torch_names.DeviceContext)]
    return next(
        (
            f"{kind.__qualname__}, a mode of torch's,"
            for kind in kinds
            # Not our own modes, nor AOTAutograd's around the code that it compiled.
            if not kind.__module__.startswith((*OUR_MODULES, torch_names.OF_FUNCTORCH))
        ),
        "forward-mode AD" if torch_names._current_level >= 0 else "",
    )


def matmul_precision() -> str:
    """How float32 matrices are multiplied. torch's older names for it raise once a program has used the newer one."""
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # torch 2.9 and later
    return newer or torch.get_float32_matmul_precision()


def paths(value: Any, name: str = "") -> list[str]:
    """The path of each tensor in the tree, as a user would write it: ``batch.ids``, ``layers[0]``."""
    if isinstance(value, Tensor):
        return [name]
    children = children_of(value)
    if children is None:
        return []
    context, parts, _ = children
    names = getattr(type(value), "_fields", None) or (context if isinstance(context, tuple) else None)
    labels = (
        [f"{name}.{n}" if name else str(n) for n in names] if names else [f"{name}[{i}]" for i in range(len(parts))]
    )
    return [found for label, part in zip(labels, parts) for found in paths(part, label)]


# -- one call ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Call:
    """A call's arguments with its keys.

    ``kind`` is what all sizes of the same call share: the tree with its constants, torch's settings, the world
    that it was traced in. ``key`` is the exact signature.
    """

    args: Args
    kwargs: Kwargs
    tensors: list[Tensor]
    structure: Any
    device: int
    aliases: tuple[int, ...]
    kind: tuple[Any, ...]
    key: tuple[Any, ...]
    world: Any = None

    @property
    def host(self) -> tuple[str, ...]:
        """What the small host tensors among the arguments hold."""
        return self.kind[1]  # type: ignore[no-any-return]

    def in_world(self, world: Any) -> None:
        """Make the world part of the call's keys."""
        self.world = world
        self.kind, self.key = (*self.kind, world.token), (*self.key, world.token)

    def kind_with_dims(self, dims: Mapping[int, Mapping[int, str]]) -> tuple[Any, ...]:
        """What calls share that differ only in the dynamic ``dims``: includes dtypes and all other sizes."""
        shapes = [
            (t.dtype, tuple(dims[i].get(dim, n) for dim, n in enumerate(t.size())) if i in dims else tuple(t.size()))
            for i, t in enumerate(self.tensors)
        ]
        return (*self.kind, *shapes)

    def given_back(self, result: Any, args: Args, kwargs: Kwargs) -> Any:
        """Turn the result of a call with ``worlds.for_dynamo``'s arguments into the call's own; copy back writes."""
        if args is self.args:
            return result
        copies: list[Tensor] = []
        flatten((args, kwargs), copies)
        own = {id(copy): t for copy, t in zip(copies, self.tensors) if copy is not t}
        homes: dict[int, Tensor] = {}
        for copy in copies:
            mine = own.get(id(copy), copy)
            if copy.numel() and storage_address(copy) != storage_address(mine):
                homes[storage_address(copy)] = mine
                with torch.inference_mode() if mine.is_inference() else torch.no_grad():
                    if copy._version:
                        mine.copy_(copy)

        def given(t: Tensor) -> Tensor:
            home = homes.get(storage_address(t)) if has_layout(t) and id(t) not in own else None
            if home is None or home.dtype != t.dtype:
                return own.get(id(t), t)
            return home.as_strided(t.size(), t.stride(), home.storage_offset() + t.storage_offset())

        try:
            return replace(result, given)
        except NotATree:
            return result


def understand(
    function: str,
    args: Args,
    kwargs: Kwargs,
    tensors: list[Tensor],
    structure: Any,
    by_address: bool,
) -> Call:
    """Build a `Call` with its keys.

    Args:
        function: its name.
        structure: the tree without its tensors.
        by_address: make the tensors' addresses part of the signature.

    Raises:
        RunEagerly: no graph can take such arguments.
    """
    device = _device_of(function, tensors)
    host = tuple(repr(t.tolist()) for t in tensors if not t.is_cuda)
    aliases = _aliases(tensors)
    kind = (structure, host, mode_key(), aliases)
    key = (*kind, *[tensor_key(t) for t in tensors])
    if by_address:
        key = (*key, *[t.data_ptr() for t in tensors])
    return Call(args, kwargs, tensors, structure, device, aliases, kind, key)


def _device_of(function: str, tensors: Sequence[Tensor]) -> int:
    device = -1
    for tensor in tensors:
        if not has_buffer(tensor):
            raise RunEagerly(f"an argument is {kind_of(tensor)}")
        if tensor.is_conj() or tensor.is_neg():
            raise RunEagerly("an argument is a conjugated or negated tensor")
        if tensor.is_cuda:
            index = tensor.get_device()
            if device not in (-1, index):
                devices = f"cuda:{device}, cuda:{index}"
                error = CaptureError("graphed_other_device", function=function, devices=devices)
                raise RunEagerly("its arguments are on several devices", error)
            device = index
        elif tensor.device.type != "cpu":
            raise RunEagerly(f"an argument is on {tensor.device}")
        elif tensor.numel() > HOST_CONSTANT_NUMEL:
            error = CaptureError("graphed_other_device", function=function, devices="cpu")
            raise RunEagerly("an argument is a CPU tensor", error)
    return device if device >= 0 else torch.cuda.current_device()


def _aliases(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which arguments are the same tensor or share memory: for each the first such position; () if none do."""
    if len(tensors) < 2:
        return ()
    seen: dict[int, int] = {}
    homes = [seen.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]
    if len(seen) == len(tensors):
        return ()
    return (*homes, *twins_of(tensors))
