"""Rooms: what holds for the folders of src/gfxgraph as a whole."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gfxgraph
from tests.warm_python import warm_python

SOURCE = Path(gfxgraph.__file__).parent
BESIDE = ("gfxgraph_kernels", "gfxgraph_port", "gfxgraph_simulator")
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
        "for name in ('callables.graphed', 'callables.api', 'callables.buffers', 'capture.graph', 'guard.level'):\n"
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
    # A folder without sources is what an update of the checkout left of one that has moved.
    parts = [path for path in SOURCE.iterdir() if path.is_file() or any(path.rglob("*.py"))]
    there = {path.name for path in parts if path.name not in others and path.name[0] != "."}
    assert named == there


def test_the_map_leads_somewhere():
    """Each file and folder in the table of behaviours exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("| Behaviour |")[2]
    paths = set(re.findall(r"`([\w./]+(?:/|\.py|\.md|\.toml))`", text.partition("\n\n")[0]))
    assert len(paths) > 30
    assert not [
        path
        for path in paths
        if not (ROOT / path).exists() and not any((place / path).exists() for place in (SOURCE, SOURCE.parent))
    ]


def test_each_promise_has_its_room_and_its_proof():
    """The table of promises has at most twenty lines, four cells a row, and names rooms and tests that exist."""
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("## Promises\n")[2].partition("\n## ")[0].strip()
    assert len(table.splitlines()) <= 20
    rows = [row.strip("|").split(" | ") for row in table.splitlines() if row.startswith("| **")]
    assert len(rows) >= 9 and {len(row) for row in rows} == {4}
    for _, _, rooms, proofs in rows:
        named = re.findall(r"`([^`]+)`", rooms), re.findall(r"`([^`]+)`", proofs)
        assert named[0] and all((SOURCE / room).exists() for room in named[0])
        assert named[1] and all((ROOT / proof).is_file() for proof in named[1])


def test_the_arrows_on_the_map_are_those_that_are_held():
    """The layers drawn in ARCHITECTURE.md are the import contract's."""
    drawn = (ROOT / "ARCHITECTURE.md").read_text().partition("```text\n")[2].partition("```")[0].split("\n")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert [{name.removesuffix(".py") for name in layer.split(" | ")} for layer in drawn if layer] == [
        set(layer.split(" | ")) for layer in held
    ]


@pytest.mark.parametrize("package", BESIDE)
def test_each_package_beside_has_a_page_that_says_what_it_takes(package):
    """Its map names files and tests that exist, and the modules of gfxgraph that its contract lets it import."""
    folder = SOURCE.parent / package
    text = (folder / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`([\w./]+(?:/|\.py|\.toml))`", text):
        assert path == "rules/PHASE.toml" or any((place / path).exists() for place in (folder, ROOT)), path
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = next(each["ignore_imports"] for each in contracts if each["name"] == f"what {package} may take")
    may = {line.partition(" -> ")[2].removesuffix(".*") for line in held}
    said = set(
        re.findall(r"`(gfxgraph\.\w[\w.]*)`", text.partition("## What it takes")[2].partition("gfxgraph enters")[0])
    )
    assert (
        said
        and {name for name in may if not any(name == each or name.startswith(f"{each}.") for each in said)} == set()
    )
    assert {name for name in said if not any(name == each or each.startswith(f"{name}.") for each in may)} == set()


WITHOUT = """
import importlib, json, os, pkgutil, sys, torch, gfxgraph
from gfxgraph.cli.main import main
from gfxgraph.errors import ActivationError

refused = []
for module in pkgutil.walk_packages(gfxgraph.__path__, "gfxgraph."):
    if not module.name.startswith(("gfxgraph.startup.path", "gfxgraph.__main__")):
        try:
            importlib.import_module(module.name)
        except ActivationError as error:
            refused.append([module.name, error.code, error.fields["package"]])
        except ImportError as error:  # an engine that is not installed
            assert not error.name.startswith("gfxgraph"), error
print(json.dumps(refused))
for name in gfxgraph.__all__:
    if name != "BridgedCUDAGraph":
        getattr(gfxgraph, name)
if os.path.exists(os.path.join(sys.path[1], "gfxgraph_simulator")):
    gfxgraph.enable(simulate="hip")
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0] * 4 and gfxgraph.stats()["fallback_count"] == 0, gfxgraph.stats()
try:
    exec(sys.argv[1])
except ActivationError as error:
    print(json.dumps([error.code, error.fields["package"]]))
sys.stdout.flush()
main(json.loads(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("package", "doors", "asks", "command", "status"),
    [
        ("gfxgraph_port", ["gfxgraph.cli.port", "gfxgraph.rocm"], "import gfxgraph.rocm", ["port", "rules"], 2),
        ("gfxgraph_simulator", [], "gfxgraph.enable(simulate='hip')", ["run", "--simulate", "p.py"], 2),
        (
            "gfxgraph_kernels",
            ["gfxgraph.kernels"],
            "gfxgraph.adapters.install('transformers')",
            ["explain", "700"],
            0,
        ),
    ],
)
def test_gfxgraph_works_without_each_package_beside_it(tmp_path, package, doors, asks, command, status):
    """In a copy without it every other module can be imported, graphs work, and what needs it names it."""
    shutil.copytree(SOURCE.parent, tmp_path / "src")  # compiled code, too
    shutil.rmtree(tmp_path / "src" / package)
    # Neither the sources nor the folders of tests, where a folder of the same name could be imported in its place.
    others = [path for path in sys.path if path and not Path(path, package).exists()]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "SGLANG"))}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "src"), *others])
    line = [sys.executable, "-S", "-c", WITHOUT, asks, json.dumps(command)]
    done = subprocess.run(line, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert len(done.stdout.splitlines()) >= 2, done.stderr
    refused, asked = (json.loads(each) for each in done.stdout.splitlines()[:2])
    assert refused == [[door, "package_missing", package] for door in doors], done.stderr
    assert asked == ["package_missing", package]
    assert done.returncode == status and (status == 0 or f"no package {package} " in done.stderr), done.stderr


def test_every_public_name_is_loaded_from_its_module():
    """The stub, which the package reads, names each where it is made: a type checker finds the same object."""
    stub = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    rows = re.findall(r"^from (\S+) import (\w+) as (\w+)", stub, re.M)
    assert ("torch.cuda", "CUDAGraph", "BridgedCUDAGraph") in rows and len(rows) == len(gfxgraph.exports())
    for module, attribute, name in rows:
        if name != "BridgedCUDAGraph":
            assert name == attribute
            assert getattr(gfxgraph, name) is getattr(importlib.import_module(module), name)


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
    assert set(gfxgraph.__all__) == {"__version__", *gfxgraph.exports()} <= set(dir(gfxgraph))
    assert all(getattr(gfxgraph, name) is not None for name in gfxgraph.__all__)


ROOMS = [*SOURCE.rglob("*/__init__.py"), *SOURCE.parent.glob("gfxgraph_*/**/__init__.py")]


@pytest.mark.parametrize("room", sorted(path.parent.relative_to(SOURCE.parent).as_posix() for path in ROOMS))
def test_every_file_is_in_its_rooms_list(room):
    """A room's docstring names each of its files and folders, and no Python file that is not there."""
    folder = SOURCE.parent / room
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    there = {path.name for path in folder.iterdir() if not path.name.startswith(("__", ".", "py.typed"))}
    named = {name.rstrip("/") for name in re.findall(r"(?<![\w./*-])[\w.-]+(?:\.\w+|/)(?![\w/])", text)}
    assert not there - named
    assert not {name for name in named if name.endswith(".py")} - there


def test_unit_tests_are_named_after_what_they_test():
    """``tests/unit`` has the package's folders; a file begins with a module's name, or the room's for all of it."""
    unit = ROOT / "tests" / "unit"
    mirrored = {"": SOURCE, "tools": ROOT / "tools", "tests": ROOT / "tests"}
    whole = {
        "test_docstrings.py",
        "test_document_names.py",
        "selftest/test_capture_tables.py",
        "tools/test_workflows.py",
        "test_rooms.py",
        "typing/test_typing.py",
    }
    strays = []
    for path in sorted(unit.rglob("test_*.py")):
        folder = path.parent.relative_to(unit).as_posix().strip(".")
        place = mirrored.get(folder, (SOURCE.parent if folder.startswith(BESIDE) else SOURCE) / folder)
        there = [each.stem.lstrip("_") for each in place.rglob("*.py") if folder == "tests" or each.parent == place]
        there += [each.name.removeprefix("gfxgraph_") for each in (place, *place.glob("*/"))]
        name = path.stem.removeprefix("test_")
        if not any(name == each or name.startswith(f"{each}_") for each in there):
            strays.append(path.relative_to(unit).as_posix())
    assert set(strays) <= whole, strays
