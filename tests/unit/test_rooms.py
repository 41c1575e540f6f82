"""Rooms: what holds for the folders of src/gfxgraph as a whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gfxgraph
from tests.warm_python import warm_python

SOURCE = Path(gfxgraph.__file__).parent
ROOT = Path(__file__).parents[2]


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
    subprocess.run([warm_python(), "-c", program], check=True)
    late = "import gfxgraph.callables.graphed, types\nassert isinstance(gfxgraph.graphed, types.FunctionType)\n"
    subprocess.run([warm_python(), "-c", late], check=True)


def test_every_room_is_on_the_map():
    """ARCHITECTURE.md names each folder and file of the package, and nothing that is not there."""
    rows = [line for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines() if line.startswith("| `")]
    table = rows[: next(at for at, row in enumerate(rows) if "one command per file" in row) + 1]
    named = {name.strip("/") for row in table for name in re.findall(r"`([\w.]+/?)`", row.split("|")[1])}
    others = ("__init__.py", "__init__.pyi", "__main__.py", "__pycache__", "py.typed")
    there = {path.name for path in SOURCE.iterdir() if path.name not in others and path.name[0] != "."}
    assert named == there


def test_the_map_leads_somewhere():
    """Each file and folder in the table of behaviours exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("| Behaviour |")[2]
    paths = set(re.findall(r"`([\w./]+(?:/|\.py|\.md|\.toml))`", text.partition("\n\n")[0]))
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists() and not (SOURCE / path).exists()]


def test_type_checkers_see_every_public_name():
    """The stub names what ``__init__`` exports, from the same modules, and nothing else."""
    stub = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    named = {
        name: (module, attribute) for module, attribute, name in re.findall(r"from (\S+) import (\w+) as (\w+)", stub)
    }
    exported = {name: tuple(target.split(":")) for name, target in gfxgraph._EXPORTS.items()}
    assert named.pop("BridgedCUDAGraph") == ("torch.cuda", "CUDAGraph")
    del exported["BridgedCUDAGraph"]
    assert named == exported


def test_importing_the_package_imports_next_to_nothing():
    """What would take longer than the package itself (typing, re, importlib) waits until a name is used."""
    program = (
        "import os, sys, __future__\nbefore = set(sys.modules)\nimport gfxgraph\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "SGLANG"))}
    environ["PYTHONPATH"] = str(SOURCE.parent)  # -S leaves out where it is installed
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert all(name.startswith("gfxgraph") for name in done.stdout.split()), done.stdout
    assert len(done.stdout.split()) <= 3


def test_a_replayed_graph_needs_no_compiler():
    """Dynamo, Inductor and sympy take longer to import than torch; only ``graphed`` and torch.compile load them."""
    program = (
        "import sys, torch, gfxgraph\n"
        "gfxgraph.enable(simulate='hip')\n"
        "x, graph = torch.ones(4, device='cuda'), torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    y = x * 2\n"
        "graph.replay()\n"
        "torch.cuda.make_graphed_callables, gfxgraph.graphed, gfxgraph.Conditional\n"
        "print(*{'torch._dynamo', 'torch._inductor', 'torch.distributed.tensor', 'sympy'} & set(sys.modules))\n"
    )
    done = subprocess.run([warm_python(), "-c", program], capture_output=True, text=True, check=True)
    assert not done.stdout.split(), done.stdout


def test_every_public_name_is_there():
    """``__all__`` lists each name once; each can be had, and is shown by ``dir``."""
    assert len(set(gfxgraph.__all__)) == len(gfxgraph.__all__)
    assert set(gfxgraph.__all__) == {"__version__", *gfxgraph._EXPORTS} <= set(dir(gfxgraph))
    assert all(getattr(gfxgraph, name) is not None for name in gfxgraph.__all__)
