"""The device's random numbers: a counter-based state like Philox's, on top of torch's CPU generator.

Enters: seeds, offsets, captures that register a state.
Stays out: which ops draw (op_schema.py).

A draw at (seed, offset) depends on nothing else, so a replay that starts at the state's current offset
gives what eager would give there. It follows torch 2.11's rules: a captured draw needs a state that the capture
registered; a registered state stays in capture mode until its capture ends successfully.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import Any, Final
from weakref import WeakValueDictionary

import torch

from gfxgraph import torch_names

CpuGenerator: Any = type(torch.default_generator)
"""The class of torch's generators, whatever stands for ``torch.Generator``."""
_MASK: Final = (1 << 64) - 1
_PER_STEP: Final = 4  # Philox gives four numbers a step; torch keeps offsets multiples of 4
_ELEMENTS_PER_STEP: Final = 1 << 16
_NOT_REGISTERED: Final = (
    "RNG op during graph capture but generator is not registered with the capturing graph."
    if torch.__version__ >= (2, 12)
    else "Attempt to increase offset for a CUDA generator not in capture mode."
)


class GeneratorState:
    """Seed and offset; several generators may share one (``graphsafe_set_state``)."""

    def __init__(self, seed: int = 67280421310721, offset: int = 0) -> None:
        self.seed = seed
        self.offset = offset
        self.capturing = False
        self.intragraph_offset = 0
        self.graphs: set[object] = set()
        """The captures registered with it."""
        self._scratch = CpuGenerator("cpu")

    def clone(self) -> GeneratorState:
        return GeneratorState(self.seed, self.offset)

    def take(self, numel: int, in_capture: bool) -> int:
        """Advance by the amount that ``numel`` random values use; return the offset to draw at."""
        steps = -(-max(numel, 1) // _ELEMENTS_PER_STEP)
        if in_capture:
            if not self.capturing:
                raise RuntimeError(_NOT_REGISTERED)
            at = self.intragraph_offset
            self.intragraph_offset += _PER_STEP * steps
            return at
        if self.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        at = self.offset
        self.offset += _PER_STEP * steps
        return at

    def at(self, offset: int) -> torch.Generator:
        """A CPU generator positioned at ``offset``; valid until the next call."""
        mixed = (self.seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + 1) & _MASK
        seed(self._scratch, mixed ^ (mixed >> 31))
        return self._scratch


# torch's own, as its kernels are: programs may replace the methods.
get_state, set_state, seed = (
    CpuGenerator.get_state,
    CpuGenerator.set_state,
    CpuGenerator.manual_seed,
)
_OTHER_SEED = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the "
    "original seed."
)


class ReplayDraw:
    """A captured draw: draws from the state as set by the replay."""

    def __init__(self, state: GeneratorState) -> None:
        self.state = state
        self.base = 0

    def draw(self, offset: int) -> torch.Generator:
        return self.state.at(self.base + offset)


class SimGenerator(CpuGenerator):
    """``torch.Generator(device="cuda")``."""

    _by_impl: WeakValueDictionary[int, SimGenerator] = WeakValueDictionary()

    def __new__(cls, device: object = "cuda") -> SimGenerator:
        made = super().__new__(cls, "cpu")
        made._state = GeneratorState()
        others = [each for each in torch.cuda.default_generators if isinstance(each, SimGenerator)]
        made._forbid = others[0]._forbid if others else lambda what: None
        cls._by_impl[made._cdata] = made
        return made

    def __init__(self, device: object = "cuda") -> None:
        self._state: GeneratorState
        self._forbid: Any

    @classmethod
    def of(cls, generator: Any) -> SimGenerator | None:
        """The generator inside the wrapper that the dispatcher passes to a kernel."""
        if generator is None:
            return None
        return cls._by_impl.get(generator._cdata)

    @property
    def state(self) -> GeneratorState:
        return self._state

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def guard(self, forbid: object) -> None:
        """Use ``forbid(what)`` to refuse state changes during a capture."""
        self._forbid = forbid

    def manual_seed(self, seed: int) -> SimGenerator:
        new = int(seed) & _MASK
        try:
            self._forbid("set_current_seed")
        except RuntimeError as error:
            if new != self._state.seed:
                raise RuntimeError(_OTHER_SEED) from error
            return self  # and its offset stays
        self._state.seed, self._state.offset = new, 0
        return self

    def seed(self) -> int:
        seed = random.SystemRandom().getrandbits(53)
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        return self._state.seed

    def get_offset(self) -> int:
        self._forbid("Cannot call CUDAGeneratorImpl::get_offset")
        return self._state.offset

    def set_offset(self, offset: int) -> SimGenerator:
        self._forbid("Cannot call CUDAGeneratorImpl::set_offset")
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        self._state.offset = int(offset)
        return self

    def get_state(self) -> torch.Tensor:
        state = self._state
        # Inside a capture an H200 gives the offset within the graph (torch 2.11).
        packed = struct.pack("<QQ", state.seed, state.intragraph_offset if state.capturing else state.offset)
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8).clone()

    def set_state(self, new_state: torch.Tensor) -> SimGenerator:
        self._forbid("Cannot call CUDAGeneratorImpl::set_state")
        if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() not in (8, 16):
            raise RuntimeError("RNG state is wrong size")
        data = bytes(new_state.tolist())
        self._state.seed = struct.unpack("<Q", data[:8])[0]
        self._state.offset = struct.unpack("<Q", data[8:16])[0] if len(data) == 16 else 0
        return self

    def clone_state(self) -> SimGenerator:
        made = SimGenerator()
        made._state = self._state.clone()
        made._forbid = self._forbid
        return made

    def graphsafe_get_state(self) -> SimGenerator:
        made = SimGenerator()
        made._state = self._state
        made._forbid = self._forbid
        return made

    def graphsafe_set_state(self, generator: SimGenerator) -> SimGenerator:
        self._state = generator._state
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.get_state(),)


def _be_no_opaque_type() -> None:
    """Have Dynamo take it for an object of the program's, as torch's own class.

    Torch 2.14 makes an exception for ``torch._C.Generator`` itself. A subclass it replaces by a stand-in, which C++
    then takes for a generator: a segmentation fault.
    """
    types = torch_names._OPAQUE_TYPES or {}
    if torch_names._C.Generator in types:
        own = types[torch_names._C.Generator]
        types[SimGenerator] = dataclasses.replace(own, class_name="a generator of no type")


_be_no_opaque_type()


def _rebuild(state: torch.Tensor) -> SimGenerator:
    return SimGenerator().set_state(state)


class _GeneratorMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, CpuGenerator)


class GeneratorName(metaclass=_GeneratorMeta):
    """Replaces ``torch.Generator``: the real class, except for a CUDA device."""

    def __new__(cls, device: object = "cpu") -> Any:
        if torch.device(device).type == "cuda":
            return SimGenerator(device)
        return CpuGenerator(device)
