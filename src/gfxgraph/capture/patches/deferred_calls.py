"""Guards against calls that invalidate a capture without being operations: deferred, done first, or done in relaxed
mode.

    a kernel of Triton or Inductor dies and unloads its module    deferred until captures are over
    a memory pool or an IPC handle dies and frees device memory   deferred likewise
    a kernel is loaded at its first launch                        in relaxed mode
    a thread's first product makes its BLAS handle; a new plan    in relaxed mode; on HIP the handles are made
    of an FFT, a convolution, a decomposition takes memory;       before the thread's first capture
    torch compiles a kernel of its own and loads it
    the collector is switched on                                  deferred; called, it runs in relaxed mode, and
                                                                  graphs that die wait (capture_lock.py)
    NCCL's watchdog queries an event of the capturing stream      waited for first, if the defect table asks for it

Only modules that the program has imported are touched, and only while captures run.

Source: cuModuleUnload inside a capture, measured on an H200 (global and thread_local: 900, and the capture is dead;
relaxed: 0, and the graph replays); sglang#35427, vllm#53399, pytorch#177309; decision 0139.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from gfxgraph import torch_names
from gfxgraph.capture import capture_lock
from gfxgraph.capture.patches.torch_functions import STOCK, Targets
from gfxgraph.process import process

# Operations that make a handle in each thread that calls one, and those that may allocate outside torch on any call.
_HANDLES = frozenset(
    f"aten::{name}"
    for name in "mm addmm bmm baddbmm linear mv addmv dot vdot addbmm _scaled_mm _int_mm _addmm_activation".split()
)
_PLANS = re.compile(
    r"aten::(_?convolution|cudnn_|miopen_|_cudnn|_fft_|_?linalg_|cholesky|_?lu|ormqr|triangular_|geqrf"
    # torch compiles and loads these at the first launch for each dtype (jiterator).
    r"|special_|gcd|lcm|digamma|polygamma|lgamma|i0|sinc|kaiser_window)"
)
# ProcessGroupNCCL checks unfinished work every 100 ms.
WATCHDOG_SLEEPS_S = 0.25


class _Done(threading.local):
    """What this thread has done once."""

    def __init__(self) -> None:
        self.devices: set[tuple[float, int]] = set()
        self.products: set[str] = set()


_done = _Done()


class CallWhenFreed:
    """Makes a call when it is destroyed; an error is reported as from any finalizer."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


def targets() -> Targets:
    found: Targets = {"ipc_collect": (torch.cuda, "ipc_collect", _collect_ipc_later)}
    of_triton = getattr(sys.modules.get("triton.compiler.compiler"), "CompiledKernel", None)
    kernels = of_triton, torch_names.StaticallyLaunchedTritonKernel, torch_names.StaticallyLaunchedCudaKernel
    kinds = [kind for kind in kernels if kind is not None]
    for kind in (*kinds, torch.cuda.MemPool):
        final = getattr(kind, "__del__", None)
        if final is not None or kind is torch.cuda.MemPool:
            found[f"{kind.__name__}.__del__"] = kind, "__del__", _dies_later(final)
    loaders = [(kind, name) for kind in kinds for name in ("_init_handles", "load_kernel")]
    loaders += [torch_names.place("_cuda_load_module"), (torch_names._JittedFunction, "__call__")]
    for owner, loader in loaders:
        if owner is not None and loader in vars(owner):
            found[f"{owner.__name__}.{loader}"] = owner, loader, _relaxed(vars(owner)[loader])
    return found


@functools.cache  # one for all captures: it is known by identity
def _dies_later(final: Callable[[object], object] | None) -> Callable[[Any], None]:
    def __del__(self: object) -> None:
        # The deferred call holds the object; Python does not finalize it twice, so the original finalizer is called
        # here.
        capture_lock.keep_until_captures_end(CallWhenFreed(lambda: None if final is None else final(self)))

    return __del__


def _collect_ipc_later() -> None:
    capture_lock.keep_until_captures_end(CallWhenFreed(STOCK["ipc_collect"]))


@functools.cache
def _relaxed(function: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def load(*args: Any, **kwargs: Any) -> Any:
        with capture_lock.relaxed():
            return function(*args, **kwargs)

    return load


def prepare_device(device_index: int) -> None:
    """Create what a capture would otherwise create inside itself, before this thread's first capture on a device."""
    if process.require().decisions.drain_watchdog:
        _wait_for_watchdog()
    device = process.require().enabled_at, device_index
    if torch.version.hip is None or device in _done.devices or torch.cuda.is_current_stream_capturing():
        return
    _done.devices.add(device)
    # On the default stream, whose workspace a program with products has anyway; hidden from dispatch modes.
    with (
        suppress(RuntimeError),  # on failure the capture's first product decides
        capture_lock.relaxed(),
        torch_names._disable_current_modes(),
        torch.DisableTorchFunction(),
        torch.cuda.stream(torch.cuda.default_stream(device_index)),
    ):
        torch.cuda.current_blas_handle()
        x = torch.ones(16, 16, dtype=torch.float16, device=f"cuda:{device_index}")
        torch.addmm(x[0], x, x)  # hipBLASLt has a handle of its own


def allocating_freely(name: str, call: Callable[..., object]) -> Callable[..., Any]:
    """Wrap ``call`` (operation ``name``) so that what it allocates besides its work is not refused inside a capture.

    torch's operations work on the current stream only, so this lets nothing through that a capture should refuse.
    """
    if _PLANS.match(name):
        return _relaxed(call)
    if name not in _HANDLES:
        return call

    def first_in_thread(*args: object, **kwargs: object) -> Any:
        if name in _done.products:
            return call(*args, **kwargs)
        with capture_lock.relaxed():
            out = call(*args, **kwargs)
        _done.products.add(name)
        return out

    return first_in_thread


def _wait_for_watchdog() -> None:
    """Let NCCL's watchdog see that all collectives are done, so that it queries no event while the capture runs."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or "nccl" not in str(dist.get_backend()):
        return
    capture_lock.synchronize_device(torch.cuda.synchronize)
    time.sleep(WATCHDOG_SLEEPS_S)
