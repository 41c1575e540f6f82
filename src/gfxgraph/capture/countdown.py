"""The replay that costs what torch's costs: a graph counts ``_left`` down and is launched; at 0 it is checked.

Problem: a replay with nothing to check may cost no more than a subtraction beyond the launch, and it stands in three
places: in the class that users hold, in the same under guard, and inside the fast path of a graphed callable, where
a call of ``replay`` would be a tenth of a launch. Idea: its lines are written here once, as text.

Invariants: ``_left`` is kept before the launch, so that a launch that fails has been counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def taken(graph: str) -> str:
    """The source line that takes one replay of ``graph``; ``left < 0`` means that none was granted."""
    return f"left = {graph}._left - 1"


def kept(graph: str) -> str:
    """The source line that accounts for the replay taken."""
    return f"{graph}._left = left"


def lines(graph: str, checked: str, unless: str = "") -> list[str]:
    """A replay of ``graph``, in a namespace that has ``launch``.

    Args:
        graph: the expression that names it.
        checked: the statement that stands for the replay where none is granted.
        unless: a condition under which none is granted either.
    """
    return [
        taken(graph),
        f"if left < 0{f' or {unless}' if unless else ''}: {checked}",
        "else:",
        f"    {kept(graph)}",
        f"    try: launch({graph})",
        f"    except RuntimeError as error: {graph}._replay_failed(error)",
    ]


def replay(launch: Callable[[object], None]) -> Callable[..., None]:
    """``replay`` of a graph that ``launch`` launches."""
    return _method("def replay(self):", lines("self", "self._checked_replay()"), launch)


def guarded_replay(launch: Callable[[object], None]) -> Callable[..., Any]:
    """The same, with a check for freed memory first; takes the keywords of gfxgraph 1.x, too."""
    found = lines("self", "self._checked_replay()", "self._guard.pointers.is_dirty")
    return _method("def replay(self, **older):", ["if older: return self._replay_older(**older)", *found], launch)


_DOC = '''"""Replay the captured work on the current stream.

    Raises:
        ReplayError: `replay_before_capture`, `use_after_reset`, `graph_in_forked_child`, `no_fallback_left`.
        GuardMismatch: a value that the capture read has changed.
    """'''


def _method(signature: str, body: list[str], launch: Callable[[object], None]) -> Callable[..., Any]:
    # A function inside one, so that ``launch`` is a cell of it: a global would be looked up at each replay.
    inner = "\n        ".join([signature, _DOC, *body])
    source = f"def make(launch):\n    {inner}\n    return replay\n"
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "<gfxgraph replay>", "exec"), names)
    return names["make"](launch)  # type: ignore[no-any-return]
