"""The replay fast path: count ``_left`` down and launch; at 0, do the checked replay.

Problem: a replay with nothing to check may cost no more than one subtraction besides the launch. It is needed in
three
places: in the class that users hold, in the guarded variant, and inside the fast path of a graphed callable, where
calling ``replay`` would cost a tenth of a launch. Idea: its lines are written once, here, as source text.

Invariant: ``_left`` is stored before the launch, so that a launch that fails is counted exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def taken(graph: str) -> str:
    """The source line that takes one replay off the count; ``left < 0`` means that none was left."""
    return f"left = {graph}._left - 1"


def kept(graph: str) -> str:
    """The source line that stores the new count."""
    return f"{graph}._left = left"


def lines(graph: str, checked: str, unless: str = "") -> list[str]:
    """The source lines that replay ``graph``, for a namespace that has ``launch``.

    Args:
        graph: the expression that names it.
        checked: the statement to run instead when the count is used up.
        unless: a condition that also leads to ``checked``.
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
    """Make the ``replay`` method of a graph that is launched by ``launch``."""
    return _method("def replay(self):", lines("self", "self._checked_replay()"), launch)


def guarded_replay(launch: Callable[[object], None]) -> Callable[..., Any]:
    """Like ``replay``, but check for freed memory first; also accepts the keywords of gfxgraph 1.x."""
    found = lines("self", "self._checked_replay()", "self._guard.pointers.is_dirty")
    return _method("def replay(self, **older):", ["if older: return self._replay_older(**older)", *found], launch)


_DOC = '''"""Replay the captured work on the current stream.

    Raises:
        ReplayError: `replay_before_capture`, `use_after_reset`, `graph_in_forked_child`, `no_fallback_left`.
        GuardMismatch: a value that the capture read has changed.
    """'''


def _method(signature: str, body: list[str], launch: Callable[[object], None]) -> Callable[..., Any]:
    # A nested function, so that ``launch`` is a closure cell: a global would be looked up at every replay.
    inner = "\n        ".join([signature, _DOC, *body])
    source = f"def make(launch):\n    {inner}\n    return replay\n"
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "<gfxgraph replay>", "exec"), names)
    return names["make"](launch)  # type: ignore[no-any-return]
