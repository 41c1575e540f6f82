"""A gfxgraph whose runtime is a stand-in, and torches that are a few lines long.

What is tested here is how a program is reached and how it is refused; what the runtime does once it is
switched on has tests of its own. The real package is used file by file, but for ``runtime``.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import gfxgraph

CLICK_S = 0.045
"""CPU seconds of a Python that imports click, on the machine on which the limits of starts were set."""

REAL = Path(gfxgraph.__file__).parent
TORCH = {
    "hip": "__version__ = '2.11.0+rocm7.2'\ncuda: str | None = None\nhip: str | None = '7.2.0'\n",
    "cuda": "__version__ = '2.11.0+cu130'\ncuda: str | None = '13.0'\nhip: str | None = None\n",
    "cpu": "__version__ = '2.11.0+cpu'\ncuda: str | None = None\nhip: str | None = None\n",
}
INIT = """
__version__ = "2.0.0"
from gfxgraph.startup.hook import install_if_asked
def is_enabled():
    return True
install_if_asked()
"""
HEALTH = """
def stats():
    return {"replay_count": 7}
"""
ACTIVATION = """
import os, sys
from gfxgraph.errors import ActivationError
def activate_from_environment():
    import torch
    if os.environ.get("STANDIN_REFUSES"):
        raise ActivationError("no_gpu", torch_version="2.11.0", hip_version="7.2.0")
    torch.switched_on = getattr(torch, "switched_on", 0) + 1
"""


@dataclass
class Sandbox:
    """A folder to run programs in."""

    folder: Path
    environment: dict[str, str]

    def script(self, text: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def torch(self, kind: str) -> None:
        """Install one of the small torches; "none" is one that cannot be imported."""
        if kind == "none":
            shutil.rmtree(self.folder / "lib" / "torch", ignore_errors=True)
            self.script("raise ModuleNotFoundError('not here', name='torch')\n", "lib/torch.py")
            return
        self.script(TORCH[kind], "lib/torch/version.py")
        self.script("from torch.version import __version__\n", "lib/torch/__init__.py")

    def python(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=self.folder,
            env=self.environment | env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def gfxgraph(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command; ``run`` without its line at the end, where the program's own stderr is what counts."""
        words = ["run", "--quiet", *args[1:]] if args[0] == "run" else args
        return self.python("-m", "gfxgraph", *words, **env)


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    package = tmp_path / "lib" / "gfxgraph"
    stand_ins = {"__init__.py": INIT, "startup/activation.py": ACTIVATION, "process/health.py": HEALTH}
    for room in ("process", "startup"):
        (package / room).mkdir(parents=True)
    for entry in (path for folder in (".", "process", "startup") for path in (REAL / folder).iterdir()):
        name = str(entry.relative_to(REAL))
        if name not in ("process", "startup", *stand_ins):  # compiled code, too
            (package / name).symlink_to(entry)
    for beside in REAL.parent.glob("gfxgraph_*"):
        (tmp_path / "lib" / beside.name).symlink_to(beside)
    for name, text in stand_ins.items():
        (package / name).write_text(text)
    own = ("GFXGRAPH", "HGB_", "SGLANG_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYTHONPATH": str(tmp_path / "lib"), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    box = Sandbox(tmp_path, environment)
    box.torch("hip")
    return box


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., float]:
    """What a start costs, in CPU seconds of a machine that imports click in CLICK_S: the least of ten.

    Taken in turn with click's own import, so that a slow or a shared machine shows in both. Bytecode is kept, as
    it is where a package is installed, but outside the package.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "bytecode")

    def once(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def least(*arguments: str) -> float:
        pairs = [(once("-m", "gfxgraph", *arguments), once("-c", "import click")) for _ in range(11)][1:]
        ours, click = (min(times) for times in zip(*pairs))
        return ours * CLICK_S / click

    return least
