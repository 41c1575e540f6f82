"""A cold call is followed function by function, and a file that was left is counted when it is come back to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.warm_python import warm_python

TOOL = Path(__file__).parents[3] / "tools" / "follow_call.py"
sys.path.insert(0, str(TOOL.parent))

import follow_call  # noqa: E402


def test_returns_are_counted() -> None:
    """Three files of which one is come back to once."""
    assert follow_call.counted(["a.py", "b.py", "a.py", "c.py"]) == {"files": 3, "returns": 1}


def test_a_function_is_followed_once_and_a_lower_room_not_below_its_first(tmp_path: Path) -> None:
    """What a called room calls in turn is not read, and a function not twice."""
    walk = follow_call.Walk(f"{tmp_path}/")
    names: dict[str, object] = {}
    for file, text in (
        ("capture/deep.py", "def deep(): pass"),
        ("capture/graph.py", "def begin(): deep()"),
        ("callables/graphed.py", "def call(): begin(); [begin() for _ in '1']; begin()"),
    ):
        exec(compile(text, str(tmp_path / file), "exec"), names)
    sys.setprofile(walk)
    try:
        names["call"]()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    assert walk.functions == [("callables/graphed.py", "call"), ("capture/graph.py", "begin")]
    assert walk.files == ["callables/graphed.py", "capture/graph.py"]


def test_it_follows_up_to_the_launch() -> None:
    """The last file is the graph's, and the first the callable's."""
    done = subprocess.run([warm_python(), str(TOOL), "--pure"], capture_output=True, text=True)
    lines = done.stdout.split()
    assert lines[0] == "callables/graphed.py", done.stderr
    assert "files," in lines and "callables/captured.py" in lines
