"""The simulator object: one card, its memory, its runtime, and its planned failures.

Enters: calls from kernels and from torch's patched names.
Stays out: patching (installation.py).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from gfxgraph import torch_names
from gfxgraph.types import CaptureStatus, NodeKind
from gfxgraph_simulator import codes, random_state
from gfxgraph_simulator.allocator import Allocator, OutOfDeviceMemory
from gfxgraph_simulator.device_memory import DeviceMemory, span_nbytes
from gfxgraph_simulator.graph_nodes import Operand, RecordedNode
from gfxgraph_simulator.planted_faults import Faults
from gfxgraph_simulator.profiles import Profile
from gfxgraph_simulator.runtime import CallRefused, Device

_SYNC_WARNING: Final = "called a synchronizing CUDA operation"
_ARENA_FACTOR: Final = 2  # addresses are cheap; freed segments leave gaps


# Address ranges of former simulators: never unmapped, so they are reused.
_retired: list[DeviceMemory] = []
crashes_of_former: list[str] = []


def _arena(nbytes: int) -> DeviceMemory:
    for at, arena in enumerate(_retired):
        if arena.nbytes == nbytes:
            return _retired.pop(at)
    return DeviceMemory(nbytes)


class Simulator:
    """The simulated card that is installed; ``installation.active()`` returns it."""

    def __init__(self, profile: Profile, total_nbytes: int) -> None:
        self.profile = profile
        self.arena = _arena(total_nbytes * _ARENA_FACTOR)
        self.device = Device(profile)
        self.allocator = Allocator(self.arena, total_nbytes)
        self.allocator.on_new_segment = self._before_malloc
        self.default_generator = random_state.SimGenerator()
        self.default_generator.guard(self.assert_not_capturing)
        # Events that would have ended a real process from inside a destructor.
        self.crashes: list[str] = []
        self._pinned: dict[int, weakref.ref[object]] = {}

    def retire(self) -> None:
        """Let the next simulator reuse this one's addresses, if nothing lives there any more."""
        crashes_of_former.extend(self.crashes)
        if not self.allocator.live:
            self.arena.drop_pages(self.arena.base, self.arena.nbytes)
            _retired.append(self.arena)

    # ---- failures -----------------------------------------------------------------------------------

    @property
    def faults(self) -> Faults:
        return self.device.faults

    @faults.setter
    def faults(self, plan: Faults) -> None:
        self.device.plan(plan)

    def error(self, refused: CallRefused) -> RuntimeError:
        """The exception that torch raises for a refused call."""
        return codes.torch_error(refused.code, self.profile.platform)

    def call(self, function: Callable[..., object], *args: object) -> Any:
        """Call the runtime as torch does, turning a status code into an exception."""
        try:
            return function(*args)
        except CallRefused as refused:
            code = refused.code
        # Raised outside the except block, so that its context is the caller's, as with an exception from C++. No
        # local may
        # refer to it, because its traceback holds this frame.
        raise self.error(CallRefused(code))

    def assert_not_capturing(self, attempt: str) -> None:
        status = self.device.current().status
        if status is not CaptureStatus.NONE:
            raise RuntimeError(
                f"{attempt} during CUDA graph capture. If you need this call to be captured, please file an "
                f"issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatus{status.name.title()}"
            )

    # ---- memory -------------------------------------------------------------------------------------

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A new device tensor with undefined contents.

        Raises:
            torch.OutOfMemoryError: the card is full, or a planted failure requires it.
        """
        nbytes = span_nbytes(size, stride, dtype)
        if nbytes == 0:
            return self.arena.tensor_at(0, size, stride, dtype)
        stream = torch_names._accelerator_getStream(0).stream_id
        try:
            if self.faults.strike_allocation():
                self.allocator.num_ooms += 1
                raise OutOfDeviceMemory(nbytes)
            block = self.allocator.allocate(nbytes, stream)
        except OutOfDeviceMemory as full:
            text, code = self._oom_text(full.requested), 0
        except CallRefused as refused:
            text, code = "", refused.code
        else:
            free = partial(self.allocator.free, block)
            return self.arena.tensor_at(block.address, size, stride, dtype, free)
        # No local may refer to the exception: its traceback holds this frame, which would be a cycle, and what the
        # frames
        # had allocated would stay until a collection. Exceptions from C++ make no such cycle.
        raise torch.OutOfMemoryError(text) if text else self.error(CallRefused(code))

    def _before_malloc(self) -> None:
        """Called before a segment is mapped by cudaMalloc, which captures may forbid."""
        self.device.check("malloc")
        # On a capturing stream torch switches its thread to relaxed mode around the call.
        if self.device.captures and self.device.current().status is CaptureStatus.NONE:
            self.device.unsafe_call("malloc")

    def _oom_text(self, requested: int) -> str:
        label = "HIP" if self.profile.platform == "hip" else "CUDA"
        free = max(0, self.allocator.total_nbytes - self.allocator.reserved_nbytes)
        return (
            f"{label} out of memory. Tried to allocate {_size(requested)}. GPU 0 has a total capacity of "
            f"{_size(self.allocator.total_nbytes)} of which {_size(free)} is free. Of the allocated memory "
            f"{_size(self.allocator.stats['allocated_bytes']['all'].current)} is allocated by PyTorch, and "
            f"{_size(self.allocator.reserved_nbytes)} is reserved by PyTorch."
        )

    def resize_out(self, out: torch.Tensor, like: torch.Tensor) -> None:
        """Give ``out=`` the shape of the result, in its own memory if there is room; warn like torch if it was not
        empty.
        """
        if out.numel():
            warnings.warn(
                "An output with one or more elements was resized since it had shape "
                f"{list(out.size())}, which does not match the required output shape {list(like.size())}.",
                UserWarning,
                stacklevel=2,
            )
        out.resize_(like.size())
        if out.stride() != like.stride():
            out.as_strided_(like.size(), like.stride())

    # ---- host memory --------------------------------------------------------------------------------

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A page-locked copy of a CPU tensor."""
        with below_the_dispatcher():
            copy = tensor.clone(memory_format=torch.preserve_format)
        self.note_pinned(copy)
        return copy

    def note_pinned(self, tensor: torch.Tensor) -> None:
        """The tensor's memory is page-locked from now on."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        self._pinned[address] = weakref.ref(storage, lambda _dead: self._pinned.pop(address, None))

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        known = self._pinned.get(tensor.untyped_storage().data_ptr())
        return known is not None and known() is not None

    # ---- calls that wait for the device --------------------------------------------------------------

    def note_sync(self) -> None:
        """Do torch's own check at synchronizing calls, before they reach the runtime."""
        mode = self.device.sync_debug_mode
        if mode == 1:
            warnings.warn(_SYNC_WARNING, UserWarning, stacklevel=3)
        elif mode == 2:
            raise RuntimeError(_SYNC_WARNING)

    def host_read(self, how: str = "memcpy_with_stream") -> None:
        """An operation must wait for the device: memcpy_and_sync, or thrust's synchronization."""
        guarded = how == "memcpy_with_stream"
        if self.device.sync_debug_mode and guarded:
            self.note_sync()
        if not self.device.busy:
            return
        stream = self.device.current()
        if stream.capture is None:
            self.call(self.device.synchronize_stream, stream)
        elif guarded and self.profile.guards_memcpy_and_sync:
            raise codes.torch_error(codes.CAPTURE_UNSUPPORTED, self.profile.platform)
        elif stream.capture.invalidated:
            raise codes.torch_error(codes.CAPTURE_INVALIDATED, self.profile.platform)
        else:
            self.call(self.device.apply, how, stream.capture)

    def runtime_call(self, call: str) -> None:
        """Make one call of the profile's table, as a library unknown to torch would."""
        self.call(self.device.runtime_call, call)

    # ---- for tests and for work below the dispatcher -----------------------------------------------------

    def tensor_at(self, address: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device tensor over memory that it does not own."""
        with below_the_dispatcher():
            return self.arena.tensor_at(address, tuple(size), tuple(stride), dtype)

    def launch_opaque(
        self, name: str, function: Callable[..., object], *tensors: torch.Tensor, kind: NodeKind = NodeKind.KERNEL
    ) -> None:
        """Launch ``function`` on the current stream as a kernel, or another ``kind``, unseen by any dispatcher.

        It is called with a CPU tensor over the memory of each of ``tensors``, at once or at every replay.
        """
        with below_the_dispatcher():
            twins: list[object] = [self.arena.twin(tensor) for tensor in tensors]

            def run(node: RecordedNode, generator: torch.Generator | None) -> None:
                function(*node.call[0])

            def make() -> RecordedNode:
                slots = [Operand(twins, at) for at in range(len(twins))]
                # What it writes is unknown; by convention the result comes last.
                return RecordedNode(kind, name, run, call=(twins, {}), input_slots=slots, target_slots=slots[-1:])

            self.call(self.device.submit, self.device.current(), make)


@contextmanager
def below_the_dispatcher() -> Iterator[None]:
    """Inside this block, modes, autograd and grad requirements do not see accesses to tensors."""
    with torch_names._DisableTorchDispatch(), torch_names._AutoDispatchBelowAutograd():
        yield


def _size(nbytes: int) -> str:
    if nbytes >= 1 << 30:
        return f"{nbytes / (1 << 30):.2f} GiB"
    return f"{nbytes / (1 << 20):.2f} MiB"
