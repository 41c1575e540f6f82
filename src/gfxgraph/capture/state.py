"""The state of one graph object and of its capture.

                  ┌──────────── a segment ─────────────┐
    EMPTY ──> OPENING ──> RECORDING ──> ENDING ──> OUTSIDE ──> CAPTURED ──> INSTANTIATED
      ^          ^                                  │  │           │  HALF_ENDED ─^ │
      │          └──── a split, a capture inside ───┘  │           └─────── RESET <─┘
      │                                                │             (a capture may open again)
      └──── FAILED <── FAILING <── any of those before CAPTURED

A split, or a capture begun inside this one, ends the segment and opens another afterwards; the host's part runs
while the capture is OUTSIDE. FAILING undoes what was changed and may be entered again; where it began tells what
torch and the driver must be told (failures.py). HALF_ENDED is between the two halves of torch 2.14's
``capture_end``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from gfxgraph.process.process import OngoingCapture, Process
from gfxgraph.types import OnUnsafe

if TYPE_CHECKING:
    from torch import Tensor

    from gfxgraph.capture.record.host_memory import HostReads
    from gfxgraph.capture.record.host_values import HostValues
    from gfxgraph.capture.record.random_generators import Generators
    from gfxgraph.capture.record.streams import Streams
    from gfxgraph.capture.replay.program import HostPart, Program, Step
    from gfxgraph.capture.replay.rollback import Rollback
    from gfxgraph.core.tape import Args, Kwargs, Place
    from gfxgraph.core.unsafe import UnsafeOp
    from gfxgraph.errors import CaptureError


class CaptureState(Enum):
    """Where a graph object stands."""

    EMPTY = auto()
    OPENING = auto()
    """Torch is asked to begin a segment, and may have begun it."""
    RECORDING = auto()
    ENDING = auto()
    """Torch is asked to end the segment, and may have ended it."""
    OUTSIDE = auto()
    """The capture goes on, and no segment is open."""
    CAPTURED = auto()
    INSTANTIATED = auto()
    HALF_ENDED = auto()
    RESET = auto()
    FAILING = auto()
    FAILED = auto()


_S = CaptureState
NEXT: dict[CaptureState, frozenset[CaptureState]] = {
    _S.EMPTY: frozenset({_S.OPENING, _S.CAPTURED, _S.FAILING}),  # captured elsewhere; refused before torch is asked
    _S.OPENING: frozenset({_S.RECORDING, _S.FAILING}),
    _S.RECORDING: frozenset({_S.ENDING, _S.FAILING}),
    _S.ENDING: frozenset({_S.OUTSIDE, _S.FAILING}),
    _S.OUTSIDE: frozenset({_S.OPENING, _S.CAPTURED, _S.FAILING}),
    _S.CAPTURED: frozenset({_S.INSTANTIATED, _S.HALF_ENDED, _S.RESET, _S.FAILING}),
    _S.HALF_ENDED: frozenset({_S.INSTANTIATED, _S.RESET}),
    _S.INSTANTIATED: frozenset({_S.INSTANTIATED, _S.HALF_ENDED, _S.RESET, _S.FAILING}),
    _S.RESET: frozenset({_S.OPENING, _S.FAILING}),
    _S.FAILING: frozenset({_S.FAILED}),
    _S.FAILED: frozenset({_S.EMPTY}),
}
SEGMENT_OPEN = frozenset({_S.OPENING, _S.RECORDING, _S.ENDING})
CAPTURING = SEGMENT_OPEN | {_S.OUTSIDE}


class Lifecycle:
    """The state, which changes by ``to`` alone."""

    def __init__(self) -> None:
        self.state = CaptureState.EMPTY
        self.failed_in = CaptureState.EMPTY
        """Where it stood as it began to fail; OUTSIDE once the open segment has been discarded."""

    def to(self, state: CaptureState) -> None:
        """Change the state.

        Raises:
            RuntimeError: not from here; nothing has changed.
        """
        if state not in NEXT[self.state]:
            allowed = ", ".join(sorted(each.name for each in NEXT[self.state]))
            raise RuntimeError(f"a capture that is {self.state.name} cannot become {state.name}, only {allowed}")
        if state is CaptureState.FAILING:
            self.failed_in = self.state
        self.state = state

    def segment_is_over(self) -> None:
        """No segment is open any more, however that came."""
        if self.state is CaptureState.FAILING:
            self.failed_in = CaptureState.OUTSIDE
        elif self.state is CaptureState.ENDING:
            self.to(CaptureState.OUTSIDE)

    @property
    def has_open_segment(self) -> bool:
        """Whether torch may be capturing: it was asked to begin a segment, and is not known to have ended it."""
        return (self.failed_in if self.state is CaptureState.FAILING else self.state) in SEGMENT_OPEN

    @property
    def has_failed(self) -> bool:
        return self.state in (CaptureState.FAILING, CaptureState.FAILED)


class FixesTensors(Protocol):
    """Tensors that move from replay to replay, as those see them that need one where it is."""

    def fix(self, tensors: list[Tensor]) -> None: ...
    def operation(self, name: str, args: Args, kwargs: Kwargs) -> UnsafeOp | None: ...


class StepSession(OngoingCapture, Protocol):
    """What a recorder, a read or a step may ask of its capture, which lies above them: the `Session`."""

    state: Process
    policy: OnUnsafe
    device_index: int
    has_executed: bool
    program: Program
    rollback: Rollback
    generators: Generators
    streams: Streams
    host: HostReads
    values: HostValues

    @property
    def is_over(self) -> bool: ...
    @property
    def moving(self) -> FixesTensors: ...
    def add(self, step: Step) -> None: ...
    def split(self, row: UnsafeOp, name: str, make: HostPart, where: Place) -> Any: ...
    def unsafe_op(self, row: UnsafeOp, func: Any, args: Any, kwargs: Any) -> Any: ...
    def op_failed(self, info: Any, func: Any, args: Any, kwargs: Any, error: RuntimeError) -> Any: ...
    def refuse(self, name: str, reason: str, where: Place | None = None) -> NoReturn: ...
    def failed(self, error: CaptureError) -> CaptureError: ...
    def continue_in_new_graph(self) -> None: ...
    def note_draw(self, slot: tuple[int, str] | None, args: Any, kwargs: Any) -> None: ...
    def is_held_by_host(self, tensor: Tensor) -> bool: ...
    def frontier_reader(self, stream: int) -> Callable[[], int | tuple[int, ...]]: ...
