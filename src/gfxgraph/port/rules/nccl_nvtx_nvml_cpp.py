"""Nccl.h, nvToolsExt.h or nvml.h."""

from __future__ import annotations

from collections.abc import Iterator

from gfxgraph.port.engine import Context
from gfxgraph.port.model import Fix, Hit, Rule, Severity, Text
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.rules._common import (
    include_hits,
)

RULE = Rule(
    id="GFX217",
    code="nccl-nvtx-nvml-cpp",
    severity=Severity.LOW,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "nccl.h, nvToolsExt.h or nvml.h",
        "{name}",
        "rccl.h and roctx are nearly drop-in; NVML's counterpart is not.",
        "Map nccl.h to rccl/rccl.h and nvtx to roctx; guard NVML.",
    ),
    zh=Text(
        "nccl.h、nvToolsExt.h 或 nvml.h",
        "{name}",
        "rccl.h 与 roctx 几乎可以直接替换；NVML 的对应物则不然。",
        "nccl.h 映射到 rccl/rccl.h，nvtx 映射到 roctx；NVML 加条件。",
    ),
    path="comm.cpp",
    bad="#include <nccl.h>\n",
    good="#ifdef USE_ROCM\n#include <rccl/rccl.h>\n#else\n#include <nccl.h>\n#endif\n",
    needs=("nccl", "nvtx", "nvtool", "nvml"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from include_hits(f, r"(nccl|nccl_net|nvml)\.h$|(nvtx3/)?nv[tT]o?o?l?s?(x3|Ext)?\w*\.(h|hpp)$")
