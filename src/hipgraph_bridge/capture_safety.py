"""The lock of captures, and a look whether the GPU computes at all; under their path in 1.1.0."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gfxgraph.capture import capture_lock as lock
from gfxgraph.process import process

__all__ = [
    "acquire_capture_lock", "capture_lock", "release_capture_lock", "replay_lock", "torch_cuda_execution_error",
    "torch_cuda_execution_probe", "torch_cuda_execution_usable", "torch_graph_capture_block_reason",
    "unsafe_torch_graph_capture_enabled",
]  # fmt: skip

_held: list[lock.Owner] = []
_PROBE = "import torch; raise SystemExit(0 if (torch.ones(1, device='cuda') + 1).item() == 2 else 3)"
_PROBE_LIMIT_S = 60


@contextmanager
def capture_lock() -> Iterator[None]:
    """Within it no other thread captures. Captures lock by themselves; this is for what stands around them."""
    owner = _begin()
    try:
        yield
    finally:
        lock.release(owner)


def replay_lock() -> AbstractContextManager[None]:
    """Nothing: a replay waits for no capture, and ends none."""
    return nullcontext()


def acquire_capture_lock() -> None:
    """Begin what ``capture_lock`` does; ``release_capture_lock`` ends it."""
    _held.append(_begin())


def release_capture_lock() -> None:
    """End what ``acquire_capture_lock`` began, in whichever thread."""
    if _held:
        lock.release(_held.pop())


def _begin() -> lock.Owner:
    owner = lock.Owner()
    lock.acquire(owner)
    return owner


@functools.lru_cache(maxsize=1)
def torch_cuda_execution_probe() -> tuple[bool, str]:
    """Whether the GPU computes, asked in a process of its own, and what was found; asked once."""
    state = process.current()
    if state is not None and state.settings.simulate:
        return True, "the simulated GPU computes"
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return False, f"the GPU did not answer within {_PROBE_LIMIT_S} s"
    if done.returncode == 0:
        return True, "the GPU computes"
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    last = done.stderr.strip().splitlines()
    return False, f"the GPU did not compute ({how}){': ' + last[-1] if last else ''}"


def torch_cuda_execution_usable() -> bool:
    """Whether the GPU computes."""
    return torch_cuda_execution_probe()[0]


def torch_cuda_execution_error() -> str:
    """What the look at the GPU found."""
    return torch_cuda_execution_probe()[1]


def unsafe_torch_graph_capture_enabled() -> bool:
    """True: captures are made safe instead of being left out; GFXGRAPH=0 and ``disable()`` leave them out."""
    return True


def torch_graph_capture_block_reason() -> str:
    """Empty: no capture is left out on grounds of the platform alone."""
    return ""
