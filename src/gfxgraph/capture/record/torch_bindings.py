"""torch's own Python bindings for the operations that models are made of, by overload.

Calling an overload by name goes through a parser that reads the schema on every call. The binding that a program
would call was compiled for its signature and takes half as long. A recorder calls each operation of a capture once,
and this saves about 5% of the capture. Given positional arguments only and a plain tensor first, a binding dispatches
to exactly the overload listed here: tests/unit/capture/record/test_torch_bindings.py calls each one both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_METHODS = (
    "add.Tensor add_.Tensor sub.Tensor mul.Tensor mul_.Tensor div.Tensor neg rsqrt sqrt cos sin exp tanh sigmoid "
    "pow.Tensor_Scalar mean.dim view t transpose.int unsqueeze expand detach clone mm bmm index_copy_"
)
_FUNCTIONS = "cat addmm"
_NN = "silu gelu"


def _found() -> dict[str, Callable[..., Any]]:
    rooms = ((torch._C.TensorBase, _METHODS), (torch._C._VariableFunctions, _FUNCTIONS), (torch._C._nn, _NN))
    found: dict[str, Callable[..., Any]] = {}
    for room, names in rooms:
        for name in names.split():
            binding = getattr(room, name.partition(".")[0], None)
            if binding is not None:
                found[f"aten::{name}"] = binding
    return found


def _to_dtype(tensor: torch.Tensor, *, dtype: torch.dtype | None) -> torch.Tensor:
    return (
        _to(tensor, dtype, False, True) if dtype is not None else torch.ops.aten._to_copy.default(tensor, dtype=None)
    )


_to = torch._C.TensorBase.to
BINDINGS = _found()
"""``aten::add.Tensor`` -> ``torch._C.TensorBase.add``."""
NAMED: dict[str, tuple[str, Callable[..., Any]]] = {
    "aten::clone": ("memory_format", torch._C.TensorBase.clone),
    "aten::_to_copy": ("dtype", _to_dtype),
}
"""Like ``BINDINGS``, for calls with one tensor and one keyword argument: the keyword, and the function to call."""
