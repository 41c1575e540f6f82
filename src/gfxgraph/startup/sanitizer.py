"""Run a whole program under the vendor's memory checker.

NVIDIA has compute-sanitizer. AMD has no such tool for gfx103x (GPU AddressSanitizer needs
xnack). Its debug agent stops waves that fault and names their kernel, so it is used there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gfxgraph import config
from gfxgraph.errors import ActivationError
from gfxgraph.hardware.software import find_torch

_NVIDIA_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_AGENT = "librocm-debug-agent.so.2"


def compute_sanitizer_cmd(
    argv: Sequence[str], *, tool: str = "memcheck", log: str | Path | None = None, platform: str | None = None
) -> list[str]:
    """The command that runs ``argv`` under the platform's memory checker.

    Args:
        tool: compute-sanitizer's: memcheck, racecheck, initcheck or synccheck.
        log: file for its report; None writes it to the program's output.
        platform: ``cuda`` or ``rocm``; by default the platform of the installed torch.

    Raises:
        ActivationError: `sanitizer_not_found`, with every place tried.
    """
    wanted = platform or _platform()
    if wanted == "rocm":
        options = [f"ROCM_DEBUG_AGENT_OPTIONS=--output {log}"] if log is not None else []
        return ["env", f"HSA_TOOLS_LIB={_debug_agent()}", "HSA_ENABLE_DEBUG=1", *options, *argv]
    options = ["--tool", tool, "--target-processes", "all", "--print-limit", "100"]
    if log is not None:
        options += ["--log-file", str(log)]
    return [_compute_sanitizer(), *options, *argv]


def _platform() -> str:
    return "rocm" if find_torch().kind == "rocm" else "cuda"


def _compute_sanitizer() -> str:
    homes = config.variables(["CUDA_HOME", "CUDA_PATH"])
    places = [os.path.join(home, "bin", "compute-sanitizer") for home in homes.values()] + list(_NVIDIA_PLACES)
    found = shutil.which("compute-sanitizer") or next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        raise ActivationError("sanitizer_not_found", tool="compute-sanitizer", tried=", ".join(["PATH", *places]))
    return found


def _debug_agent() -> str:
    homes = config.variables(["ROCM_PATH", "ROCM_HOME", "HIP_PATH"])
    places = [os.path.join(home, "lib", _AGENT) for home in (*homes.values(), "/opt/rocm")]
    found = next((place for place in places if os.path.exists(place)), None)
    if found is None:
        raise ActivationError("sanitizer_not_found", tool=_AGENT, tried=", ".join(places))
    return found
