"""Which of its arguments a function writes to, seen by their content before and after a call.

torch counts the writes of its own operations. A kernel launched past it (Triton's, an extension's) and a collective
in place (``dist.all_reduce(x)``) leave no trace in that count, and a graph whose buffers they write would keep from
the caller what they wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST_NBYTES = 4 << 20
"""Of larger tensors the sum of their bits is compared: a copy of them takes memory that the function may need."""


class Writes:
    """Tensors to be looked at again after a call; made on the stream that the call follows.

    Args:
        tensors: of any kind; only torch's own over dense memory of a device are compared.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = {i: tensor for i, tensor in enumerate(tensors) if _can_be_seen(tensor)}
        with torch.inference_mode(False), torch.no_grad():
            self._before = {i: _kept(tensor) for i, tensor in self._tensors.items()}

    def found(self) -> set[int]:
        """Positions of those that hold something else now. Waits for the device."""
        with torch.inference_mode(False), torch.no_grad():
            return {i for i, tensor in self._tensors.items() if not torch.equal(self._before[i], _kept(tensor, True))}


def _can_be_seen(tensor: Tensor) -> bool:
    if type(tensor) not in _KINDS or not tensor.is_cuda or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and not tensor.is_quantized


def _kept(tensor: Tensor, for_now: bool = False) -> Tensor:
    """A tensor's bits, copied unless they are only looked at now; of a large one their sum."""
    bits = tensor.detach()
    if bits.is_complex():
        bits = torch.view_as_real(bits.resolve_conj())
    bits = bits.resolve_neg()
    if bits.dtype.is_floating_point:
        bits = bits.view(_BITS[bits.dtype.itemsize])
    if tensor.nbytes > LARGEST_NBYTES:
        return bits.sum(dtype=torch.int64)
    return bits if for_now else bits.clone()


_KINDS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
