"""Run a whole program under the vendor's memory checker.

NVIDIA has compute-sanitizer. AMD has no such tool for gfx103x (GPU AddressSanitizer needs
xnack). Its debug agent stops waves that fault and names their kernel, so it is used there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from gfxgraph import config
from gfxgraph.errors import ActivationError
from gfxgraph.hardware.software import find_torch

_NVIDIA_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_AGENT = "librocm-debug-agent.so.2"


def compute_sanitizer_cmd(argv: Sequence[str]) -> list[str]:
    """The command that runs ``argv`` under the memory checker of the installed torch's platform.

    Raises:
        ActivationError: `sanitizer_not_found`, with every place tried.
    """
    if find_torch().kind == "rocm":
        return ["env", f"HSA_TOOLS_LIB={_debug_agent()}", "HSA_ENABLE_DEBUG=1", *argv]
    options = ["--tool", "memcheck", "--target-processes", "all", "--print-limit", "100"]
    return [_compute_sanitizer(), *options, *argv]


def _compute_sanitizer() -> str:
    homes = config.variables(["CUDA_HOME", "CUDA_PATH"])
    places = [os.path.join(home, "bin", "compute-sanitizer") for home in homes.values()] + list(_NVIDIA_PLACES)
    found = shutil.which("compute-sanitizer")
    return found or _first("compute-sanitizer", os.X_OK, places, ["PATH"])


def _debug_agent() -> str:
    homes = config.variables(["ROCM_PATH", "ROCM_HOME", "HIP_PATH"])
    return _first(_AGENT, os.F_OK, [os.path.join(home, "lib", _AGENT) for home in (*homes.values(), "/opt/rocm")])


def _first(tool: str, mode: int, places: Sequence[str], others: Sequence[str] = ()) -> str:
    """The first place that can be accessed as ``mode`` says; ``others`` were tried before."""
    found = next((place for place in places if os.access(place, mode)), None)
    if found is None:
        raise ActivationError("sanitizer_not_found", tool=tool, tried=", ".join([*others, *places]))
    return found
