"""gfxgraph_simulator: simulates one GPU, so that programs written for ``torch.cuda`` run on a CPU.

Enters: tensors, torch's C++ registries and Python names, profiles as data.
Stays out: the product; it must not know whether its device is real.

``install(profile)`` makes ``device="cuda"``, streams, events, the caching allocator, random generators and
CUDA graphs work in this process as in the profile's runtime, with its quirks; ``undo()`` removes all of it. Importing
installs nothing. ARCHITECTURE.md is its map. Numbers come from torch's CPU kernels; times mean nothing.

    installation.py       installs the simulated card in torch, and removes it
    card.py               the simulator object: one card, its memory, its runtime
    torch_device.py       makes torch's C++ believe in a "cuda" device; a guard of streams for torch 2.9
    torch_names.py        functions of ``torch._C`` that a CUDA build has
    torch_classes.py      bases for torch's streams, events, pools and CUDAGraph
    profiles.py           how a runtime behaves, by version (profiles/)
    runtime.py            streams, events and captures: the runtime's state machine
    graph_nodes.py        recorded operations, and graphs of them
    codes.py              status codes and the exceptions torch makes of them
    planted_faults.py     planted failures
    device_memory.py      device memory: one reserved range of addresses
    allocator.py          the caching allocator
    pinned_memory.py      page-locked memory
    random_state.py       random generators
    kernels.py            every aten operation, computed on CPU twins or recorded
    op_schema.py          what an operation's schema says about its arguments, and facts that none says
    sparse_kernels.py     sparse and nested tensors
    special_kernels.py    factories, copies between devices, storages
    cuda_only_kernels.py  calls that CPU kernels refuse; recurrent cells
    process_group.py      torch.distributed, by the CPU's backend
    driver.py             the GraphDriver of the simulated card, and its copying kernel
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gfxgraph.errors import SimulatorError
from gfxgraph.types import NodeKind
from gfxgraph_simulator.card import Simulator
from gfxgraph_simulator.driver import SimDriver
from gfxgraph_simulator.installation import active, install
from gfxgraph_simulator.planted_faults import Faults, WrongReplay
from gfxgraph_simulator.profiles import names as profile_names
from gfxgraph_simulator.runtime import SimulatedCrash

__all__ = [
    "Faults",
    "SimDriver",
    "SimulatedCrash",
    "Simulator",
    "WrongReplay",
    "active",
    "install",
    "launch_opaque",
    "profile_names",
    "tensor_at",
]


def tensor_at(address: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A device tensor over memory that it does not own or keep alive."""
    return _installed("tensor_at").tensor_at(address, size, stride, dtype)


def launch_opaque(
    name: str, function: Callable[..., object], *tensors: torch.Tensor, kind: NodeKind = NodeKind.KERNEL
) -> None:
    """Launch a kernel, or another ``kind``, on the current stream, unseen by any dispatcher, as with Triton.

    ``function`` gets a CPU tensor over the memory of each of ``tensors``; in a capture it is recorded and
    called at every replay.
    """
    _installed("launch_opaque").launch_opaque(name, function, *tensors, kind=kind)


def _installed(feature: str) -> Simulator:
    sim = active()
    if sim is None:
        raise SimulatorError("simulator_unsupported", feature=feature, where="a process without simulator")
    return sim
