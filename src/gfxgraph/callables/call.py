"""One call's arguments, understood: their tree, their tensors, and everything that makes it the call it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.signature import mode_key, tensor_key
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


@dataclass(slots=True)
class Call:
    """Arguments and what was understood of them.

    ``kind`` is what all sizes of the same call share: the tree with its constants, torch's settings, the
    function's surroundings. ``key`` is the exact signature.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    structure: Any
    device: int
    aliases: tuple[int, ...]
    kind: tuple[Any, ...]
    key: tuple[Any, ...]

    def kind_of_proof(self, dims: Mapping[int, Mapping[int, str]]) -> tuple[Any, ...]:
        """What calls share that differ in the dynamic ``dims`` alone: dtypes and all other sizes, too."""
        shapes = [
            (t.dtype, tuple(dims[i].get(dim, n) for dim, n in enumerate(t.size())) if i in dims else tuple(t.size()))
            for i, t in enumerate(self.tensors)
        ]
        return (*self.kind, *shapes)

    @property
    def label(self) -> str:
        """The signature for people."""
        shown = [f"{str(t.dtype).removeprefix('torch.')}{list(t.size())}" for t in self.tensors]
        return ", ".join(shown) or "no tensors"


def understand(
    function: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    structure: Any,
    surroundings: int,
    by_address: bool,
) -> Call:
    """Put together what makes a call what it is.

    Args:
        function: its name.
        structure: the tree without its tensors.
        surroundings: stands for what the function reads besides its arguments.
        by_address: where the tensors lie is part of the signature.

    Raises:
        RunEagerly: the arguments are of a kind that no graph can take.
    """
    device = _device_of(function, tensors)
    host = tuple(repr(t.tolist()) for t in tensors if not t.is_cuda)
    aliases = _aliases(tensors)
    kind = (structure, host, mode_key(), aliases, surroundings)
    key = (*kind, *[tensor_key(t) for t in tensors])
    if by_address:
        key = (*key, *[t.data_ptr() for t in tensors])
    return Call(args, kwargs, tensors, structure, device, aliases, kind, key)


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
    """Which arguments share memory: for each the first one with the same storage, () where none does."""
    if len(tensors) < 2:
        return ()
    seen: dict[int, int] = {}
    pattern = tuple(seen.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors))
    return () if len(seen) == len(tensors) else pattern
