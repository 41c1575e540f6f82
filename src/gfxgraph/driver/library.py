"""Where the GPU runtime is: the one already mapped in this process first, then the usual places.

Two copies of one runtime in a process do not know each other's streams and graphs, so a handle made
by torch's copy must never be given to another. Hence the order: what is mapped, then what a loader
would find by name, then what is installed next to torch or under a ROCm prefix.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gfxgraph.errors import DriverError

# Wheels may carry a hash in the name (libamdhip64-1a2b3c4d.so.7).
_FILE_NAME = {
    "hip": re.compile(r"libamdhip64(-[0-9a-f]+)?\.so(\.\d+)*"),
    "cuda": re.compile(r"libcuda\.so(\.\d+)*"),
}
_SONAMES = {
    "hip": ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
    "cuda": ("libcuda.so.1",),
}
# Python packages that carry the runtime: torch's ROCm wheels, and AMD's own.
_CARRIERS = {"hip": (("torch", "lib"), ("_rocm_sdk_core", "lib")), "cuda": ()}
_PREFIXES = ("opt/rocm", "opt/rocm-*")


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """A runtime that is open in this process."""

    backend: str
    path: str
    handle: ctypes.CDLL


def mapped_paths(backend: str, maps: str) -> list[str]:
    """Return the files of ``backend`` named in ``maps`` (the text of /proc/self/maps), in its order."""
    pattern = _FILE_NAME[backend]
    found: dict[str, None] = {}
    for line in maps.splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) < 6:
            continue
        # A library that was upgraded under a running process is listed as deleted; it is still ours.
        path = parts[5].removesuffix(" (deleted)")
        if pattern.fullmatch(path.rpartition("/")[2]):
            found[path] = None
    return list(found)


def read_maps() -> str:
    try:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # no procfs: nothing can be known to be mapped


def candidates(backend: str) -> Iterator[str]:
    """Yield what to hand to dlopen, best first, for a runtime that is not mapped yet."""
    names = _SONAMES[backend]
    if backend == "hip":
        # Next to torch comes before the loader's own search: torch will load that copy later.
        for package, folder in _CARRIERS[backend]:
            for root in _package_roots(package):
                yield from (str(root / folder / name) for name in names)
        for pattern in _PREFIXES:
            for prefix in sorted(Path("/").glob(pattern), reverse=True):
                yield from (str(prefix / "lib" / name) for name in names)
    yield from names


def find_mapped(backend: str, maps: str | None = None) -> FoundLibrary | None:
    """Open the runtime that this process already has, without loading anything."""
    paths = mapped_paths(backend, read_maps() if maps is None else maps)
    # torch's own copy, where there are several: its handles are the ones we are given.
    paths.sort(key=lambda path: "/torch/lib/" not in path)
    for path in paths:
        for name in (path, *_SONAMES[backend]):
            handle = _dlopen(name, os.RTLD_NOLOAD | os.RTLD_NOW | os.RTLD_LOCAL)
            if isinstance(handle, ctypes.CDLL):
                return FoundLibrary(backend, path, handle)
    return None


def find(backend: str, *, maps: str | None = None) -> FoundLibrary:
    """Return the runtime of ``backend``, loading it only where the process has none.

    Raises:
        DriverError: `driver_library_not_found`, with every place tried.
    """
    mapped = find_mapped(backend, maps)
    if mapped is not None:
        return mapped
    tried = ["/proc/self/maps: not mapped"]
    for name in candidates(backend):
        if "/" in name and not Path(name).exists():
            tried.append(f"{name}: no such file")
            continue
        handle = _dlopen(name, os.RTLD_NOW | os.RTLD_LOCAL)
        if isinstance(handle, ctypes.CDLL):
            return FoundLibrary(backend, name, handle)
        # The loader's message opens with the name that we print anyway.
        tried.append(f"{name}: {str(handle).removeprefix(name + ': ')}")
    raise DriverError("driver_library_not_found", library=_SONAMES[backend][-1], tried=tried)


def _dlopen(name: str, mode: int) -> ctypes.CDLL | OSError:
    try:
        return ctypes.CDLL(name, mode=mode)
    except OSError as refusal:
        return refusal


def _package_roots(package: str) -> list[Path]:
    # find_spec of a top-level name reads the file system and imports nothing.
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a half-imported package has no __spec__
        return []
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
