"""Effects of one eager run that a replay must know: arguments that it wrote to, and random numbers of the host's.

`ArgumentWrites` compares contents before and after. torch counts the writes of its own operations; a kernel launched
outside it (Triton's, an extension's) and an in-place collective (``dist.all_reduce(x)``) are not counted,
and a replay that writes only its own buffers would not show such writes to the caller.

`Draws` watches for the host's random numbers. torch tags operations that may draw (``nondeterministic_seeded``): a
run without any draws nothing, whatever other threads draw meanwhile. Else the generator's state decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.callables.inputs import is_dense

LARGEST_NBYTES = 4 << 20
"""For larger tensors the sum of their bits is compared: a copy would take memory that the function may need."""


class ArgumentWrites:
    """Compares tensors before and after a call; make it on the stream on which the call follows.

    Args:
        tensors: of any kind; only plain dense device tensors are compared.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._before: dict[int, Tensor] = {}
        with torch.inference_mode(False), torch.no_grad(), suppress(torch.OutOfMemoryError):
            for i, tensor in enumerate(tensors):
                if _can_be_seen(tensor):
                    self._before[i] = _kept(tensor)

    def found(self) -> set[int]:
        """Positions of tensors whose content has changed. Waits for the device."""
        found = set()
        with torch.inference_mode(False), torch.no_grad(), suppress(torch.OutOfMemoryError):
            for i, before in self._before.items():
                if not torch.equal(before, _kept(self._tensors[i], for_now=True)):
                    found.add(i)
        return found


def _can_be_seen(tensor: Tensor) -> bool:
    if type(tensor) not in _KINDS or not tensor.is_cuda or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and not tensor.is_quantized


def _kept(tensor: Tensor, for_now: bool = False) -> Tensor:
    """A tensor's bits, copied unless only compared right now; for a large tensor their sum."""
    bits = tensor.detach()
    if bits.is_complex():
        bits = torch.view_as_real(bits.resolve_conj())
    bits = bits.resolve_neg()
    if bits.dtype.is_floating_point:
        bits = bits.view(_BITS[bits.dtype.itemsize])
    if tensor.nbytes > LARGEST_NBYTES:
        if not is_dense(bits):
            return bits.sum(dtype=torch.int64)
        flat = bits.as_strided((bits.numel(),), (1,)).view(torch.uint8)
        n = flat.numel() // 8 * 8 if flat.data_ptr() % 8 == 0 else 0
        # Eight bytes at a time, because torch sums shorter types on a copy eight bytes wide.
        return flat[:n].view(torch.int64).sum() + flat[n:].sum()
    return bits if for_now else bits.clone()


_KINDS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Draws(TorchDispatchMode):
    """Watches a run; afterwards ``of_host`` means that it drew the host's random numbers."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._may_draw = self.of_host = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise compiled code would run, and stay, eager

    def __enter__(self) -> Draws:
        self._host = torch.get_rng_state()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, at)
        self.of_host = self._may_draw and not torch.equal(self._host, torch.get_rng_state())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_torchs = getattr(func, "namespace", "") in _TAGGED
        if not is_torchs or torch.Tag.nondeterministic_seeded in func.tags:
            self._may_draw = True
        return func(*args, **(kwargs or {}))


_TAGGED = ("aten", "prims", "prim")
