"""Whether Triton's kernels can handle a tensor, and for which target; other calls are counted.

A call whose tensors no kernel can handle is computed by the same operation composed of torch's own (eager.py), and
counted with its reason: `fallbacks` returns the counts, and gfxgraph's statistics include them if it is enabled.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.process import process
from gfxgraph_kernels.shapes import INTERPRETER, Target, target_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_counted: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int, **flags: Any) -> None:
    """Launch a kernel on the current stream of the first tensor's device.

    Args:
        args: tensors and numbers, in the kernel's order.
        flags: its constants.
    """
    device = args[0].device
    if device.type == "cuda":
        how = {"launch_pdl": True} if overlaps(device.index) else {}
        with torch.cuda.device(device):
            kernel[grid](*args, **flags, OVERLAP=bool(how), num_warps=num_warps, **how)
    else:
        kernel[grid](*args, **flags, OVERLAP=False, num_warps=num_warps)


@functools.cache
def overlaps(index: int) -> bool:
    """Whether a kernel may be scheduled while the previous one runs, and wait there: sm_90 and later."""
    if torch.version.hip or torch.cuda.get_device_capability(index) < (9, 0):
        return False
    # lazily: Triton need not be there
    import triton.language as tl

    return hasattr(tl.extra.cuda, "gdc_wait")


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def is_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter: whether TRITON_INTERPRET was 1 at the first call."""
    if not has_triton():
        return False
    # lazily: Triton takes a second to import, and need not be there
    from gfxgraph_kernels import _norm_kernels

    return type(_norm_kernels.norm_forward).__name__ == "InterpretedFunction"


def why_not(op: str, *tensors: Tensor | None, reason: str = "") -> str:
    """Why no kernel handles these tensors; "" if one does. A reason is counted.

    Args:
        reason: one that the operation itself knows.

    Raises:
        TypeError: a tensor's dtype is none in which the kernels compute.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    for tensor in given:
        if tensor.dtype not in DTYPES:
            raise TypeError(f"gfxgraph.kernels.{op} computes in float32, float16 and bfloat16, not in {tensor.dtype}")
    reason = reason or _reason(given)
    if reason:
        with _lock:
            _counted[op, reason] += 1
        state = process.current()
        if state is not None:
            state.report("fallback", f"torch's own operations are used: {reason}", f"gfxgraph.kernels.{op}")
    return reason


def _reason(given: list[Tensor]) -> str:
    if not has_triton():
        return "Triton is not installed"
    if len({tensor.device for tensor in given}) > 1:
        return "the tensors are on several devices"
    if is_interpreted():
        return ""
    if not given[0].is_cuda:
        return f"the tensors are on {given[0].device.type}, for which Triton cannot compile"
    state = process.current()
    if state is not None and state.platform == "simulator":
        return "the simulator runs no kernels"
    return ""


def fallbacks() -> dict[tuple[str, str], int]:
    """How often each operation was composed of torch's own in this process.

    Returns:
        Calls by (operation, reason).
    """
    with _lock:
        return dict(_counted)


def target(device: torch.device) -> Target:
    """The target on which the sizes for this device depend."""
    return _target(device.index if device.type == "cuda" else None)


@functools.cache
def _target(index: int | None) -> Target:
    if index is None:
        # The interpreter stores bf16 as raw 16 bits and multiplies them as integers in tl.dot.
        return Target(INTERPRETER, has_bf16_dot=False, n_units=2)
    found: Any = torch.cuda.get_device_properties(index)
    name = getattr(found, "gcnArchName", "") if torch.version.hip else f"sm_{found.major}{found.minor}"
    return target_of(name, found.multi_processor_count)


def flat_rows(x: Tensor) -> Tensor:
    """[..., n] as [rows, n] with dense rows; copied only if the strides require it."""
    n = x.shape[-1]
    flat = x if x.dim() == 2 else x.reshape(-1, n) if n else x.reshape(x.shape[:-1].numel(), 0)
    return flat if flat.stride(-1) == 1 or n == 1 and flat.is_contiguous() else flat.contiguous()


def dense(tensors: Iterable[Tensor | None]) -> list[Tensor | None]:
    """The one-dimensional tensors, made dense."""
    return [tensor if tensor is None else tensor.contiguous() for tensor in tensors]
