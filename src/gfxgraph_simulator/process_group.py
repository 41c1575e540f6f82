"""torch.distributed on the simulated card: each collective is the CPU backend's, over the same memory.

Enters: operations of c10d on device tensors.
Stays out: which backend a group has; one without a CPU side says so itself.

Without these, c10d's own code for CUDA tensors runs, which a torch without CUDA does not have: Gloo ends the process
with SIGSEGV. In a capture the collective is recorded like a kernel, as NCCL's are, and runs at each replay.

One that Python starts with ``async_op`` runs on a stream of its own, as NCCL's do, and ``wait()`` makes the current
stream wait for it. Where C++ waits by itself (functional collectives, DDP) nobody can see when: these run in order.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.errors import SimulatorError
from gfxgraph.types import OUR_MODULES
from gfxgraph_simulator.runtime import SimulatedEvent

if TYPE_CHECKING:
    from gfxgraph_simulator.card import Simulator

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
    launched = _Launched()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that C++ kernels are overridden
        for name in _NAMES:
            library.impl(name, functools.partial(_run, sim, name, launched), "CUDA", allow_override=True)
    kind = torch.distributed.Work
    real = kind.wait

    def wait(self: torch.distributed.Work, *timeout: object) -> object:
        if self in launched.ended:
            sim.call(sim.device.wait_event, launched.ended[self], sim.device.current())
        return real(self, *timeout)

    kind.wait = wait
    # It counts the iterations that DDP times, by events of a card that is not there.
    reducer: Any = torch.distributed.Reducer
    prepare = reducer.prepare_for_forward
    reducer.prepare_for_forward = lambda self: None
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    make = ddp.__init__

    @functools.wraps(make)
    def __init__(self: object, *args: object, **options: object) -> None:
        for each in ("find_unused_parameters", "static_graph"):  # which C++ notes in CUDA's pinned memory
            if options.get(each):
                raise SimulatorError("simulator_unsupported", feature=f"DDP's {each}", where="the simulator")
        make(self, *args, **options)

    ddp.__init__ = __init__

    def undo() -> None:
        kind.wait, reducer.prepare_for_forward, ddp.__init__ = real, prepare, make
        library._destroy()

    return undo


class _Launched:
    """Works of collectives that run on a stream of their own, with what is recorded there at their end."""

    def __init__(self) -> None:
        self.ended: MutableMapping[object, SimulatedEvent] = weakref.WeakKeyDictionary()
        self.latest: deque[object] = deque(maxlen=8)  # until C++ has handed them to the program
        self.stream_id = 0


def _run(sim: Simulator, name: str, launched: _Launched, *args: object) -> object:
    op = getattr(torch.ops.c10d, name).default
    device = [each for each in torch_names.tree_leaves(args) if isinstance(each, Tensor) and each.is_cuda]

    def compute(*twins: Tensor) -> None:
        by_tensor = {id(tensor): twin for tensor, twin in zip(device, twins)}
        result = op(*torch_names.tree_map_only(Tensor, lambda tensor: by_tensor.get(id(tensor), tensor), args))
        work = result[-1] if isinstance(result, tuple) else result
        torch.distributed.Work.unbox(work).wait()

    done = torch_names._create_work_from_future(_finished(device))
    launch = functools.partial(sim.launch_opaque, f"sim::c10d::{name}", compute, *device)
    if _is_async(op._schema, args):
        launched.ended[done] = _on_a_stream_of_its_own(sim, launched, launch)
        launched.latest.append(done)
    else:
        if sim.device.captures and sim.device.current().capture is None:
            # autograd's engine, which is C++, does not have the stream of an older node join the capture here
            what = "DDP's backward captured on another stream than DDP was made on"
            raise SimulatorError("simulator_unsupported", feature=what, where="the simulator")
        launch()
    n_returned = len(op._schema.returns)
    return (args[0], done.boxed()) if n_returned == 2 else done.boxed()


def _is_async(schema: torch.FunctionSchema, args: tuple[object, ...]) -> bool:
    """Whether the program will wait for it: torch.distributed's functions say so from torch 2.8 on."""
    names = [argument.name for argument in schema.arguments]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"].startswith(
        (*OUR_MODULES, torch_names.OF_OPERATORS, "functools")
    ):
        frame = frame.f_back
    is_programs = frame is not None and frame.f_globals["__name__"] == "torch.distributed.distributed_c10d"
    return is_programs and (
        "async_op" not in names or len(args) <= names.index("async_op") or bool(args[names.index("async_op")])
    )


def _on_a_stream_of_its_own(sim: Simulator, launched: _Launched, launch: Callable[[], None]) -> SimulatedEvent:
    device, current = sim.device, sim.device.current()
    if not launched.stream_id:
        launched.stream_id = device.pooled_stream(-1).id
    stream = device.stream(launched.stream_id)
    begun, ended = SimulatedEvent(), SimulatedEvent()
    sim.call(device.record_event, begun, current)
    sim.call(device.wait_event, begun, stream)
    of_torch = torch_names._accelerator_getStream(0)
    torch_names._accelerator_setStream(torch.Stream(stream_id=stream.id, device_index=0, device_type=1))
    try:
        launch()
    finally:
        torch_names._accelerator_setStream(of_torch)
    sim.call(device.record_event, ended, stream)
    return ended


def _finished(tensors: list[Tensor]) -> object:
    """A future as the CPU backend's: DDP's own hook, which is C++, takes the tensors out of it unasked."""
    if tensors:
        return torch.jit.fork(lambda: tensors)
    future: Any = torch.futures.Future()
    future.set_result(None)
    return future
