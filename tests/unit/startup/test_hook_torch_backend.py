"""What ``import torch`` does with gfxgraph installed beside it: nothing, unless the environment asks.

As an installed wheel would be: a folder with the package and the metadata that name the entry points.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, torch
bridged = "gfxgraph" in torch.cuda.CUDAGraph.__module__
explains = sys.excepthook is not sys.__excepthook__
print(bridged, explains, sorted(name for name in sys.modules if name.startswith("gfxgraph")))
"""


@pytest.fixture
def installed(tmp_path):
    """Runs a program that never imports gfxgraph, in an environment that has it; returns what it printed."""
    folder = tmp_path / "site"
    about = folder / "gfxgraph_rocm-0.0.dist-info"
    about.mkdir(parents=True)
    for package in ("gfxgraph", "gfxgraph_kernels", "gfxgraph_simulator"):
        (folder / package).symlink_to(ROOT / "src" / package)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gfxgraph-rocm\nVersion: 0.0\n")
    points = project["entry-points"]["torch.backends"]
    (about / "entry_points.txt").write_text("[torch.backends]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))

    def run(program=PROGRAM, **asked):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "SGLANG"))}
        environment = kept | {"PYTHONPATH": str(folder)} | asked
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    return run


def test_nothing_happens_unless_asked(installed):
    """The bridge is off, and of gfxgraph no more was imported than asks the environment."""
    expected = "False False ['gfxgraph', 'gfxgraph.startup', 'gfxgraph.startup.hook']\n"
    assert installed() == (0, expected, "")
    code, said, _ = installed(SGLANG_RDNA2_KERNELS="1", SGLANG_DISABLE_GFXGRAPH="1", GFXGRAPH_SIMULATE="cuda")
    assert (code, said.split()[0]) == (0, "False")


def test_asked_for_it_is_on(installed):
    """SGLang's variable is enough, as GFXGRAPH=1 is, in the simulator too: bridged, and errors explained."""
    code, said, errors = installed(SGLANG_RDNA2_KERNELS="1", GFXGRAPH_SIMULATE="cuda")
    assert (code, said.split()[:2]) == (0, ["True", "True"]), errors


def test_a_program_that_enables_it_as_well_has_one_bridge(installed):
    """Its ``enable`` is what imports torch, which switches the bridge on as the environment asks."""
    program = "import gfxgraph\ngfxgraph.enable()\n" + PROGRAM
    code, said, errors = installed(program, GFXGRAPH="1", GFXGRAPH_SIMULATE="cuda")
    assert (code, said.split()[0]) == (0, "True"), errors


def test_where_it_cannot_be_the_process_goes_on_unless_it_is_required(installed):
    """An image with GFXGRAPH=1 still builds and tests itself, with one line; ``require`` ends with status 2."""
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch is not a CPU build")
    code, said, errors = installed("import torch, gfxgraph\n" + PROGRAM, GFXGRAPH="1")
    assert (code, said.split()[0]) == (0, "False")
    assert errors.count("\n") == 1 and "not_rocm_cpu_torch" in errors and "GFXGRAPH=require" in errors
    code, said, errors = installed(GFXGRAPH="require")
    assert (code, said) == (2, "") and errors.startswith("not_rocm_cpu_torch")


def test_torchs_own_switch_is_heard(installed):
    """TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves it out with everybody else's."""
    asked = {"GFXGRAPH": "1", "GFXGRAPH_SIMULATE": "cuda", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert installed(**asked)[:2] == (0, "False False []\n")
