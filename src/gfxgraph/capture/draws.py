"""Random numbers that another thread takes while a capture has the default generator: it waits.

Problem: torch registers the default generator with every capture, and until that ends a draw in any other thread is
an error ("Offset increment outside graph capture encountered unexpectedly"). Idea: while captures run and other
threads exist, torch's functions that draw ask first whether somebody else captures with it.

Nothing is put in their place once Dynamo has compiled anything: compiled code is guarded on these functions. Draws
below Python (autograd, compiled code) are not seen; they keep torch's error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gfxgraph.capture import turns

_FUNCTIONS = (
    "rand randn randint rand_like randn_like randint_like randperm normal bernoulli multinomial poisson dropout "
    "dropout_ feature_dropout alpha_dropout feature_alpha_dropout rrelu"
).split()
_METHODS = (
    "normal_ uniform_ bernoulli_ bernoulli exponential_ random_ cauchy_ geometric_ log_normal_ multinomial"
).split()


def targets() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(owner, attribute, what waits in its place), of every function that may be replaced now."""
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and frames.FRAME_COUNTER:
        return
    for owner, names in ((torch, _FUNCTIONS), (torch._VF, _FUNCTIONS), (Tensor, _METHODS)):
        for name in names:
            original = getattr(owner, name, None)
            if original is not None:
                yield owner, name, _waiting(original)


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if _is_on_device(args, kwargs):
            turns.wait_until_none_draws()
        return original(*args, **kwargs)

    return draw


def _is_on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device).type == "cuda"
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if tensors:
        return any(tensor.is_cuda for tensor in tensors)
    return torch.get_default_device().type == "cuda"
