"""Argument layouts of kernels, read from the process's code objects where the runtime does not report them.

Triton keeps each kernel's code object; libraries carry theirs in a section of the mapped
file. Used on runtimes without ``hipKernelGetParamInfo`` (before ROCm 7.11).
"""

from __future__ import annotations

import mmap
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from gfxgraph.driver.code_objects import CodeObjectError, fat_binary, kernels_in
from gfxgraph.driver.params import Layout
from gfxgraph.guard.tensor_names import objects_of

_TORCHS = ("/torch/lib/", "/librocblas", "/libhipblaslt", "/libMIOpen", "/librccl", "/libhipsparse", "/libhipfft")


def layout_of(kernel: str) -> Layout | None:
    """(offset, nbytes) of each argument of ``kernel``, by its symbol name; None if no code object has it."""
    if not kernel:
        return None
    found = _from_triton().get(kernel)
    return found if found is not None else _from_files().get(kernel)


def _from_triton() -> dict[str, Layout]:
    if "triton" not in sys.modules:
        return {}
    found: dict[str, Layout] = {}
    compiler = sys.modules.get("triton.compiler.compiler")
    kind = getattr(compiler, "CompiledKernel", None)
    for item in objects_of([kind]) if kind is not None else ():
        code = (getattr(item, "asm", None) or {}).get("hsaco")
        if code:
            found |= _read(bytes(code))
    return found


@lru_cache(maxsize=256)
def _read(code: bytes) -> dict[str, Any]:
    try:
        return dict(kernels_in(code))
    except CodeObjectError:
        return {}


@lru_cache(maxsize=1)
def _from_files() -> dict[str, Any]:
    """Kernels of every library with a fat binary that this process has mapped, except torch's own.

    torch's are launched by operations, whose tensors the tape knows; reading them takes a minute.
    """
    found: dict[str, Any] = {}
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return found
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if ".so" in line}
    for path in sorted(paths):
        if any(part in path for part in _TORCHS):
            continue
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                # A copy of the section only: views into it must be gone before the file is closed.
                found |= kernels_in(bytes(fat_binary(view)))
        except (OSError, ValueError):  # includes CodeObjectError
            continue
    return found
