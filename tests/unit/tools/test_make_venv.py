"""``tools/make_venv.py``: which Python and which torch the development environment is built on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "tools" / "make_venv.py"


@pytest.fixture
def tool(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_venv", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("PYTHON", raising=False)
    return module


def python(name, torch="none", version=(3, 11), in_venv=False):
    return {
        "version": list(version),
        "executable": name,
        "in_venv": in_venv,
        "torch": torch,
        "torch_version": "2.11.0" if torch != "none" else "",
        "torch_path": "/somewhere",
    }


def machine(tool, monkeypatch, *pythons):
    """A machine on which just these Pythons exist."""
    known = {p["executable"]: p for p in pythons}
    monkeypatch.setattr(tool, "candidates", lambda: list(known))
    monkeypatch.setattr(tool, "probe", known.get)


def test_a_rocm_torch_is_preferred(tool, monkeypatch, capsys):
    """ROCm before CUDA before CPU before none, wherever it is found."""
    machine(tool, monkeypatch, python("a"), python("b", "cuda"), python("c", "rocm"), python("d", "cpu"))
    assert tool.choose()["executable"] == "c"
    assert "using torch 2.11.0 (rocm) of c, as it is" in capsys.readouterr().out


def test_the_users_own_python_comes_first_among_equals(tool, monkeypatch):
    """Of two Pythons that are as good, the first listed is taken."""
    machine(tool, monkeypatch, python("a", "cpu"), python("b", "cpu"))
    assert tool.choose()["executable"] == "a"


def test_old_pythons_are_left_out(tool, monkeypatch):
    """An old Python is not taken for its torch; with nothing else, the message says what was seen."""
    machine(tool, monkeypatch, python("old", "rocm", (3, 10)), python("new"))
    assert tool.choose()["executable"] == "new"
    machine(tool, monkeypatch, python("old", "rocm", (3, 10)))
    with pytest.raises(SystemExit, match=r"Python 3.11 or newer \(old is 3.10\); name one: make PYTHON="):
        tool.choose()


def test_a_python_that_is_named_is_taken(tool, monkeypatch):
    """PYTHON=... leaves no choice."""
    machine(tool, monkeypatch, python("a", "rocm"), python("mine"))
    monkeypatch.setenv("PYTHON", "mine")
    assert tool.choose()["executable"] == "mine"


def test_a_virtual_environments_torch_is_seen_from_the_new_one(tool, tmp_path, monkeypatch):
    """The new environment can import what lies beside the torch of the environment it was made from."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "torch.py").write_text("marker = 42\n")
    source = python(sys.executable, "rocm", in_venv=True) | {"torch_path": str(tmp_path / "theirs")}
    new = tmp_path / "new" / "bin" / "python"
    run = subprocess.run
    # Putting pip into it takes 8 s; `make venv` shows that it is there.
    monkeypatch.setattr(tool.subprocess, "run", lambda line, **how: run([*line, "--without-pip"], **how))
    tool.create(str(tmp_path / "new"), source, str(new))
    done = run([new, "-c", "import torch; print(torch.marker)"], capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr


def test_an_existing_torch_is_never_installed_over(tool, monkeypatch, tmp_path):
    """Where torch can be imported, pip is asked for gfxgraph alone."""
    asked = []
    monkeypatch.setattr(tool, "pip", lambda python, *args, **_: asked.append(args) or True)
    monkeypatch.setattr(tool, "probe", lambda _: python("p", "rocm"))
    monkeypatch.setattr(tool, "create", lambda *_: None)
    tool.main(str(tmp_path))
    assert asked == [("install", "--editable", ".")]


@pytest.mark.parametrize(("index", "wheel_at_hand"), [("https://example.org/rocm", False), ("", True), ("", False)])
def test_where_a_new_torch_comes_from(tool, monkeypatch, index, wheel_at_hand):
    """TORCH_INDEX_URL; else a wheel at hand without asking any index; else the CPU index."""
    asked = []

    def pip(_, *args, may_fail=False):
        asked.append(args)
        return wheel_at_hand or not may_fail

    monkeypatch.setattr(tool, "pip", pip)
    monkeypatch.setenv("TORCH_INDEX_URL", index)
    tool.install_torch("p")
    if index:
        assert asked == [("install", "torch", "--index-url", index)]
        return
    assert asked[0] == ("install", "--no-index", "--no-deps", tool.TORCH)
    assert asked[1] == ("install", tool.TORCH) + (() if wheel_at_hand else ("--extra-index-url", tool.CPU_INDEX))
