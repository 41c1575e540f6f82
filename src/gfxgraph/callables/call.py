"""One call's arguments: their tree, their tensors, and the call's cache key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.reads import Reads
from gfxgraph.callables.signature import Args, Kwargs, NotATree, flatten, mode_key, replace, tensor_key, twins_of
from gfxgraph.errors import CaptureError

HOST_CONSTANT_NUMEL = 16
"""CPU tensors up to this size are constants, compared by content."""
_KINDS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


class RunEagerly(Exception):
    """This call is for the function itself.

    Args:
        why: the reason, counted in ``stats()``.
        error: what ``strict`` raises instead.
    """

    def __init__(self, why: str, error: CaptureError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.error = error


class GuardMiss(RunEagerly):
    """A value read inside the function is another one than during the capture."""


class InPieces(Exception):
    """This call is for Dynamo's code, whose graphs are captured one by one.

    Args:
        why: why it is not one graph.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(slots=True)
class Call:
    """Arguments and what was understood of them.

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

    def kind_with_dims(self, dims: Mapping[int, Mapping[int, str]]) -> tuple[Any, ...]:
        """What calls share that differ in the dynamic ``dims`` alone: dtypes and all other sizes, too."""
        shapes = [
            (t.dtype, tuple(dims[i].get(dim, n) for dim, n in enumerate(t.size())) if i in dims else tuple(t.size()))
            for i, t in enumerate(self.tensors)
        ]
        return (*self.kind, *shapes)

    def in_world(self, world: Reads) -> None:
        """The world is part of what makes the call what it is."""
        self.world = world
        self.kind = (*self.kind, world.token)
        self.key = (*self.key, world.token)

    def for_dynamo(self) -> tuple[Args, Kwargs]:
        """The arguments as a graph's buffers are, which Dynamo tells apart from others: copies of inference
        tensors, and in place of a view a tensor over the same memory that is none."""
        given = [t for t in self.tensors if t.is_inference() or (t._is_view() and not t.requires_grad)]
        others = {id(t): _as_buffer(t) for t in given}
        if not others:
            return self.args, self.kwargs
        change = lambda t: others.get(id(t), t)  # noqa: E731
        return replace(tuple(self.args), change), replace(dict(self.kwargs), change)

    def given_back(self, result: Any, args: Args, kwargs: Kwargs) -> Any:
        """A result of a call with ``for_dynamo``'s arguments, as one of the call's own; what was written likewise."""
        if args is self.args:
            return result
        copies: list[Tensor] = []
        flatten((args, kwargs), copies)
        own = {id(copy): t for copy, t in zip(copies, self.tensors) if copy is not t}
        with torch.inference_mode():
            for copy in copies:
                if id(copy) in own and own[id(copy)].is_inference() and copy._version:
                    own[id(copy)].copy_(copy)
        try:
            return replace(result, lambda t: own.get(id(t), t))
        except NotATree:
            return result

    @property
    def label(self) -> str:
        """The signature for people."""
        shown = [f"{str(t.dtype).removeprefix('torch.')}{list(t.size())}" for t in self.tensors]
        return ", ".join(shown) or "no tensors"


def understand(
    function: str,
    args: Args,
    kwargs: Kwargs,
    tensors: list[Tensor],
    structure: Any,
    by_address: bool,
) -> Call:
    """Put together what makes a call what it is.

    Args:
        function: its name.
        structure: the tree without its tensors.
        by_address: where the tensors lie is part of the signature.

    Raises:
        RunEagerly: the arguments are of a kind that no graph can take.
    """
    device = _device_of(function, tensors)
    host = tuple(repr(t.tolist()) for t in tensors if not t.is_cuda)
    aliases = _aliases(tensors)
    kind = (structure, host, mode_key(), aliases)
    key = (*kind, *[tensor_key(t) for t in tensors])
    if by_address:
        key = (*key, *[t.data_ptr() for t in tensors])
    return Call(args, kwargs, tensors, structure, device, aliases, kind, key)


def _as_buffer(tensor: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        if tensor.is_inference():
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            made.data.copy_(tensor)
            return made
        return tensor.new_empty(0).set_(tensor.detach())


def _device_of(function: str, tensors: Sequence[Tensor]) -> int:
    device = -1
    for tensor in tensors:
        if type(tensor) not in _KINDS:
            raise RunEagerly(f"an argument is a {type(tensor).__qualname__}")
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise RunEagerly(f"an argument is a {tensor.layout} tensor, conjugated or negated")
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
    """Which arguments are one, and which share memory: for each the first of its kind; () where none does."""
    if len(tensors) < 2:
        return ()
    seen: dict[int, int] = {}
    homes = [seen.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]
    if len(seen) == len(tensors):
        return ()
    return (*homes, *twins_of(tensors))
