"""What builds, installs and generates CUDA code, wherever a repository keeps it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gfxgraph_port.audit import audit
from tests.unit.gfxgraph_port.conftest import Run, codes, write

FIXABLE = "import pynvml\n"


def git(root: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize("version", ["2", "4"])
def test_what_git_tracks_is_audited_whatever_gitignore_says(tmp_path: Path, version: str) -> None:
    """A tracked file that a pattern names is audited; an untracked one is not."""
    root = tmp_path / "repo"
    write(
        root, {".gitignore": "*.py\nbuild/\n", "a/seen.py": FIXABLE, "build/kept.py": FIXABLE, "hidden.py": FIXABLE}
    )
    git(root, "init", "-q")
    git(root, "config", "index.version", version)
    git(root, "add", "-f", "a/seen.py", "build/kept.py", ".gitignore")
    assert {f.path for f in audit(str(root), jobs=1).findings} == {"a/seen.py", "build/kept.py"}


def test_recipes_of_an_exported_tree_are_audited(run: Run) -> None:
    """Without an index a pattern such as *.txt does not hide the build from its own audit."""
    report = run(
        {".gitignore": "**.txt\nMakefile\n", "CMakeLists.txt": "add_compile_options(--offload-arch=gfx90a)\n"}
    )
    assert codes(report) == ["hardcoded-offload-arch"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("environment.yml", "dependencies:\n  - cudatoolkit=11.8\n  - pytorch-cuda=11.8\n"),
        ("find.py", "import shutil\n\nHAS_GPU = shutil.which('nvidia-smi') is not None\n"),
    ],
)
def test_named_toolchain(run: Run, path: str, text: str) -> None:
    """A recipe, a generator or a probe that knows only NVIDIA's toolchain is reported."""
    assert run({path: text}).findings


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("train.yaml", "device: cuda\ntrainer:\n  accelerator: cuda\n"),
        ("flake.nix", "buildInputs = [ pkgs.rocmPackages.clr ];\n"),
        ("codegen.py", "def f(n, gpu):\n    return f'{gpu}Malloc(&{n});'\n"),
        ("report.py", "def f(e):\n    raise RuntimeError('cudaErrorNoDevice: no GPU')\n"),
        ("find.py", "import shutil\n\nGPU = shutil.which('nvidia-smi') or shutil.which('rocm-smi')\n"),
        ("install.sh", "echo 'needs cudatoolkit'\n"),
    ],
)
def test_what_holds_on_amd_too(run: Run, path: str, text: str) -> None:
    """A device name, a message and a choice between both vendors are no findings."""
    assert run({path: text}).findings == []
