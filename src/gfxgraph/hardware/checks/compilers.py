"""Triton: whether the one that is installed compiles for the GPUs that are here.

The one check that starts a program: what a Triton compiles for is known only to its compiler (3.9 no longer takes
gfx1030, which 3.8 does), and no file says it. It needs no GPU, and is asked in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from gfxgraph import files
from gfxgraph.hardware.checks.check import Check, CheckResult, CheckState, Site
from gfxgraph.hardware.device import override_for
from gfxgraph.hardware.software import distribution_versions

LIMIT_S = 20.0
NAMES = ("triton-rocm", "pytorch-triton-rocm", "triton")
# In a file: Triton reads the source of what it compiles.
_KERNEL = """\
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def copy(source, target, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(target + at, tl.load(source + at))

given = {"source": "*fp32", "target": "*fp32", "n": "constexpr"}
triton.compile(ASTSource(fn=copy, signature=given, constexprs={"n": 64}), target=GPUTarget("hip", sys.argv[1], 32))
"""


def triton(site: Site) -> list[CheckResult]:
    """The installed Triton compiles a kernel for each of this machine's GPUs."""
    installed = distribution_versions(NAMES)
    archs = sorted({override_for(gpu, site.machine) or gpu.arch for gpu in site.gpus})
    if not installed or not archs or site.torch.kind == "cuda":
        return []
    version = next(iter(installed.values()))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "kernel.py")
        files.write(program, _KERNEL)
        for arch in archs:
            why = _why_not(program, arch)
            if why:
                text = (
                    f"Triton {version} does not compile for {arch}: {why}",
                    f"Triton {version} 无法为 {arch} 编译：{why}",
                )
                found.append(CheckResult("Triton", CheckState.AMBER, *text, "pip install 'triton<3.9'"))
    return found or [CheckResult("Triton", CheckState.GREEN, *[f"{version}, {', '.join(archs)}"] * 2)]


def _why_not(program: Path, arch: str) -> str:
    """What Triton says against an architecture; "" where it compiles."""
    command = [sys.executable, str(program), arch]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S / 2)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S / 2:g} s"
    said = [line for line in done.stderr.splitlines() if "error: " in line.lower()]
    return said[0].partition("rror: ")[2] if done.returncode and said else "it fails" if done.returncode else ""


CHECKS: tuple[Check, ...] = (triton,)
