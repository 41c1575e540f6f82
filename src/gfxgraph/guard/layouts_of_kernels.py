"""Argument layouts of Triton's kernels, where the runtime does not report them: before ROCm 7.11.

Triton keeps the assembly of each kernel that it compiled, which ends with a table of its arguments. Kernels of other
libraries that torch does not know of are unchecked there.

Source: LLVM AMDGPUUsage, "Code Object V3 Metadata"; tests/conformance/test_guard.py has Triton's text for gfx1030.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from gfxgraph.driver.params import Layout
from gfxgraph.guard.tensor_names import objects_of

_NAME = re.compile(r"^ {4}\.name: +(\S+)", re.MULTILINE)
_ARGUMENT = re.compile(r"\.offset: +(\d+)\s+\.size: +(\d+)\s+\.value_kind: +(?! |hidden_)")


def layout_of(kernel: str) -> Layout | None:
    """(offset, nbytes) of each argument of ``kernel``, by its symbol name; None if Triton did not compile it."""
    kind = getattr(sys.modules.get("triton.compiler.compiler"), "CompiledKernel", None)
    for item in objects_of([kind]) if kernel and kind is not None else ():
        found = _layouts((getattr(item, "asm", None) or {}).get("amdgcn") or "")
        if kernel in found:
            return found[kernel]
    return None


@lru_cache(maxsize=256)
def _layouts(assembly: str) -> dict[str, Layout]:
    tables = assembly.partition(".amdgpu_metadata")[2].split("\n  - ")
    return {
        name[1]: [(int(offset), int(nbytes)) for offset, nbytes in _ARGUMENT.findall(table)]
        for table in tables
        if (name := _NAME.search(table))
    }
