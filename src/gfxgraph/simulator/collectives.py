"""torch.distributed on the simulated card: each collective is the CPU backend's, over the same memory.

Enters: operations of c10d on device tensors.
Stays out: which backend a group has; one without a CPU side says so itself.

Without these, c10d's own code for CUDA tensors runs, which a torch without CUDA does not have: Gloo ends the process
with SIGSEGV. In a capture the collective is recorded like a kernel, as NCCL's are, and runs at each replay.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gfxgraph.simulator.core import Simulator

_NAMES: Final = (
    "allreduce_ allreduce_coalesced_ broadcast_ reduce_ allgather_ _allgather_base_ allgather_coalesced_ "
    "allgather_into_tensor_coalesced_ reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_ "
    "scatter_ gather_ alltoall_ alltoall_base_ send recv_ recv_any_source_ barrier"
).split()


def install(sim: Simulator) -> Callable[[], None]:
    """Serve c10d's operations on device tensors. Returns what takes that back."""
    if not torch.distributed.is_available():
        return lambda: None
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that C++ kernels are overridden
        for name in _NAMES:
            library.impl(name, functools.partial(_run, sim, name), "CUDA", allow_override=True)
    return library._destroy


def _run(sim: Simulator, name: str, *args: object) -> Any:
    op = getattr(torch.ops.c10d, name).default
    device = [tensor for tensor in _tensors(args) if tensor.is_cuda]

    def compute(*twins: Tensor) -> None:
        by_tensor = {id(tensor): twin for tensor, twin in zip(device, twins)}
        result = op(*_replaced(args, by_tensor))
        work = result[-1] if isinstance(result, tuple) else result
        torch._C._distributed_c10d.Work.unbox(work).wait()

    sim.launch_opaque(f"sim::c10d::{name}", compute, *device)
    n_returned = len(op._schema.returns)
    done = torch._C._distributed_c10d._create_work_from_future(_finished())
    return (args[0], done.boxed()) if n_returned == 2 else done.boxed()


def _finished() -> Any:
    future: Any = torch.futures.Future()
    future.set_result(None)
    return future


def _tensors(item: object) -> list[Tensor]:
    if isinstance(item, (list, tuple)):
        return [tensor for part in item for tensor in _tensors(part)]
    return [item] if isinstance(item, Tensor) else []


def _replaced(item: object, by_tensor: dict[int, Tensor]) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_replaced(part, by_tensor) for part in item)
    return by_tensor.get(id(item), item)
