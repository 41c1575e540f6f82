"""tools/import_circles.py: circles and unexplained imports are found, wherever the import stands."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tools" / "import_circles.py"

spec = importlib.util.spec_from_file_location("import_circles", FILE)
circles = importlib.util.module_from_spec(spec)
sys.modules["import_circles"] = circles
spec.loader.exec_module(circles)

RING = {
    "a.py": "from gfxgraph import b\n",
    "b.py": "from gfxgraph.c import something\n",
    "c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gfxgraph.d import Thing\n",
    "d.py": "def late():\n    # lazily: a test\n    import gfxgraph.a\n",
}


@pytest.fixture
def source(tmp_path):
    """Write a package ``gfxgraph`` of these files; returns the folder it is in."""

    def write(files):
        for name, text in {"__init__.py": "", **files}.items():
            path = tmp_path / "gfxgraph" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def run(folder, *options):
    return subprocess.run(
        [sys.executable, str(FILE), "--source", str(folder), *options], capture_output=True, text=True
    )


def test_every_kind_of_import_is_an_arrow(source):
    """At the top, under TYPE_CHECKING and in a function alike: the ring of four is one circle."""
    found = circles.circles(circles.read(source(RING)))
    assert found == [["gfxgraph.a", "gfxgraph.b", "gfxgraph.c", "gfxgraph.d"]]


def test_a_circle_over_the_limit_fails_and_names_its_arrows(source):
    """Status 1, each arrow by file and line; within the limit it passes."""
    folder = source(RING)
    done = run(folder)
    assert done.returncode == 1
    assert "circle of 4 files" in done.stdout and "gfxgraph/d.py:3: imports gfxgraph.a" in done.stdout
    assert run(folder, "--limit", "4").returncode == 0


def test_a_line_of_imports_is_no_circle(source):
    """Arrows one way only, through a room's __init__ too."""
    room = {"room/__init__.py": "from gfxgraph.room import x\n", "room/x.py": ""}
    folder = source(RING | {"d.py": "import json\n"} | room)
    assert circles.circles(circles.read(folder)) == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("import torch", [2]),
        ("from torch import nn", [2]),
        ("from gfxgraph import b", [2]),
        ("import json", []),
        ("import torch  # lazily: it is slow", []),
        ("# lazily: it is slow\n    import torch", []),
        ("# lazily: they are slow\n    import torch\n\n    from gfxgraph import b", []),
        ("# lazily: it is slow\n    import torch\n    x = 1\n    from gfxgraph import b", [5]),
        ("# because\n    import torch", [3]),
        ("if True:\n        import torch", [3]),
    ],
)
def test_an_import_in_a_function_needs_its_reason(source, body, lines):
    """Of torch or of this package; one reason serves a block of imports."""
    folder = source({"a.py": f"def late():\n    {body}\n", "b.py": ""})
    assert list(circles.read(folder)["gfxgraph.a"].unexplained) == lines
    assert run(folder).returncode == bool(lines)


def test_this_package_keeps_to_both():
    """No circle of more than three files, no unexplained import in a function."""
    done = run(ROOT / "src")
    assert done.returncode == 0, done.stdout
