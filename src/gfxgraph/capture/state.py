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

from enum import Enum, auto


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
