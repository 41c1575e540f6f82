"""Rooms: what holds for the folders of src/gfxgraph as a whole."""

import subprocess
import sys
from pathlib import Path

import gfxgraph

SOURCE = Path(gfxgraph.__file__).parent


def test_no_room_takes_a_public_name():
    """Importing a room binds it to its name in ``gfxgraph``, where a function of that name would be lost."""
    rooms = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert "callables" in rooms
    assert not rooms & set(gfxgraph.__all__)


def test_graphed_is_the_function_whatever_was_imported():
    """``gfxgraph.graphed`` is the same function before and after the modules behind it are imported."""
    program = (
        "import gfxgraph, importlib, types\n"
        "first = gfxgraph.graphed\n"
        "for name in ('callables.graphed', 'callables.api', 'callables.entry', 'capture.graph', 'guard.level'):\n"
        "    importlib.import_module('gfxgraph.' + name)\n"
        "assert gfxgraph.graphed is first and isinstance(first, types.FunctionType)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    late = "import gfxgraph.callables.graphed, types\nassert isinstance(gfxgraph.graphed, types.FunctionType)\n"
    subprocess.run([sys.executable, "-c", late], check=True)
