"""AMD's runtime compiler: from a kernel's source to a code object.

The compiler that belongs to the runtime in use: mapped already, or beside it, or (until 7.0) in it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from gfxgraph.driver.library import FoundLibrary, read_maps
from gfxgraph.errors import DriverError

_SONAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so")


def compile_kernel(runtime: FoundLibrary, source: str, arch: str) -> bytes:
    """Return the code object of ``source`` for ``arch``, e.g. ``gfx942:sramecc+:xnack-``.

    Raises:
        DriverError: `kernel_not_compiled`, with what was tried or what the compiler said.
    """
    if not arch.startswith("gfx"):  # 6.4.3 ends the process over a name that it does not know
        raise DriverError("kernel_not_compiled", arch=arch, said="that is not an AMD GPU architecture")
    rtc = _library(runtime)
    program, nbytes = c_void_p(), c_size_t()

    def ask(name: str, *given: object) -> None:
        if getattr(rtc, name)(*given):
            raise DriverError("kernel_not_compiled", arch=arch, said=f"{name} was refused")

    ask("hiprtcCreateProgram", byref(program), source.encode(), b"gfxgraph.hip", 0, None, None)
    try:
        options = (c_char_p * 1)(f"--offload-arch={arch}".encode())
        if rtc.hiprtcCompileProgram(program, 1, options):
            raise DriverError("kernel_not_compiled", arch=arch, said=_log(rtc, program))
        ask("hiprtcGetCodeSize", program, byref(nbytes))
        code = ctypes.create_string_buffer(nbytes.value)
        ask("hiprtcGetCode", program, code)
        return code.raw
    finally:
        rtc.hiprtcDestroyProgram(byref(program))


def _log(rtc: Any, program: c_void_p) -> str:
    nbytes = c_size_t()
    if rtc.hiprtcGetProgramLogSize(program, byref(nbytes)) or not nbytes.value:
        return "hiprtcCompileProgram was refused"
    text = ctypes.create_string_buffer(nbytes.value)
    rtc.hiprtcGetProgramLog(program, text)
    return text.value.decode("utf-8", "replace").strip()


def _library(runtime: FoundLibrary) -> Any:
    tried = []
    for place in _places(runtime):
        try:
            library = ctypes.CDLL(place)
        except OSError as refusal:
            tried.append(str(refusal))
            continue
        if hasattr(library, "hiprtcCreateProgram"):
            return library
        tried.append(f"{place} has no hiprtcCreateProgram")
    raise DriverError("kernel_not_compiled", arch="", said="; ".join(tried))


def _places(runtime: FoundLibrary) -> Iterator[str]:
    mapped = [line.split(maxsplit=5)[5] for line in read_maps().splitlines() if "/libhiprtc" in line]
    yield from dict.fromkeys(path for path in mapped if "builtins" not in path)
    yield from (str(path) for path in sorted(Path(runtime.path).parent.glob("libhiprtc.so*"), reverse=True))
    yield from _SONAMES
    yield runtime.path
