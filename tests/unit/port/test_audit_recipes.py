"""What builds, installs and generates CUDA code, wherever a repository keeps it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gfxgraph.port.audit import audit
from tests.unit.port.conftest import Run, codes, write

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
    report = run({".gitignore": "**.txt\nMakefile\n", "CMakeLists.txt": "project(x LANGUAGES CXX CUDA)\n"})
    assert codes(report) == ["cmake-cuda-language"]


def test_the_worse_of_two_hits_of_a_line_counts(run: Run) -> None:
    """A variable of CUDA's set under a CUDA option is named, not counted as a milder place."""
    text = "if(WITH_CUDA)\n  set(LIB ${CUDA_LIBRARIES})\nendif()\n"
    found = run({"CMakeLists.txt": text}).findings
    assert any(f.covers(2) and f.severity.label != "info" for f in found)


def test_a_script_that_installs_a_list_of_cudas(run: Run) -> None:
    """A list that takes in one with CUDA wheels is CUDA's too; one that brings none is not reported."""
    files = {
        "requirements.txt": "-r requirements-gpu.txt\nnumpy\n",
        "requirements-gpu.txt": "torch==2.4.0+cu121\n",
        "requirements-doc.txt": "sphinx\n",
        "install.sh": "pip install -r requirements-doc.txt\npip install -r requirements.txt\n",
    }
    report = run(files)
    assert [(f.code, f.lines) for f in report.findings if f.path == "install.sh"] == [("cuda-named-in-recipe", (2,))]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("environment.yml", "dependencies:\n  - cudatoolkit=11.8\n  - pytorch-cuda=11.8\n"),
        ("meson.build", "cuda = dependency('cuda')\n"),
        ("install.bat", "set CUDA_HOME=C:\\cuda\n"),
        ("flake.nix", "buildInputs = [ pkgs.cudaPackages.cudatoolkit ];\n"),
        ("Makefile.gpu", "NVCC = nvcc\n"),
        ("find.py", "import shutil\n\nHAS_GPU = shutil.which('nvidia-smi') is not None\n"),
        ("paths.py", "INCLUDE = '/usr/local/cuda/include'\n"),
        ("infer.cpp", "void f(O& o) { OrtCUDAProviderOptions cuda; o.AppendExecutionProvider_CUDA(cuda); }\n"),
        ("scan.cu", '#include "../external/cub/cub/warp/warp_scan.cuh"\n'),
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


@pytest.mark.parametrize("name", ["Makefile-flash", "build.sh"])
def test_kernels_built_from_source_need_another_source_on_rocm(run: Run, name: str) -> None:
    """Fetched, built or installed; what only is spoken of, or is AMD's already, is none."""
    text = "{}git clone https://github.com/x/flash-attention.git f\n{}cd flash-attention && python setup.py install\n"
    indent = "\t" if name.startswith("Make") else ""
    head = "all:\n" if indent else ""
    assert "cuda-named-in-recipe" in codes(run({name: head + text.format(indent, indent)}))
    for harmless in ("git clone https://github.com/ROCm/flash-attention.git f", "echo git clone flash-attention"):
        assert "cuda-named-in-recipe" not in codes(run({name: f"{head}{indent}{harmless}\n"}))


def test_the_projects_own_library_chosen_by_name(run: Run) -> None:
    """A name or a pattern with "cuda" in a file that loads libraries."""
    names = 'a = f"libfoo_cuda{version}.so"\nb = re.search(r"cuda(\\d+)", path)\n'
    found = run({"a.py": "import ctypes, re\n\n" + names + "ctypes.CDLL(a)\n"}).findings
    assert [f.line for f in found if f.code == "cuda-dso"] == [3, 4]
    assert not [f for f in run({"a.py": "import re\n\n" + names}).findings if f.code == "cuda-dso"]
