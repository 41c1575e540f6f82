"""_native: finding and loading the companion's libraries.

Enters: a path from the settings, ctypes.
Stays out: torch, and loading anything before it is needed.

Search order for the C API's library (``libhipgraph_bridge.so``): GFXGRAPH_LIB alone, if set; else the installed
companion package; then a build folder, if this is a checkout of gfxgraph.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gfxgraph import config
from gfxgraph.errors import GfxGraphError

BRIDGE = "hipgraph_bridge"
COMPANION = "gfxgraph_native"
ABI_VERSION = 1


@dataclass(frozen=True, slots=True)
class State:
    """Whether the C API can be used, and why not."""

    loads: bool
    library: str = ""
    problem: str = ""


def library_path(name: str = BRIDGE) -> Path | None:
    """Return the installed companion package's ``lib{name}.so``, or None if there is none."""
    if importlib.util.find_spec(COMPANION) is None:
        return None
    found: Path | None = importlib.import_module(COMPANION).library_path(name)
    return found


def candidates(name: str = BRIDGE) -> Iterator[str]:
    """Yield the places to try, in order: only folders of ours, unless the user has named a library."""
    wanted = config.load().lib
    if name == BRIDGE and wanted:
        yield wanted
        return
    packaged = library_path(name)
    if packaged is not None:
        yield str(packaged)
    checkout = Path(__file__).parents[2]
    if Path(__file__).parent == checkout / "src" / "gfxgraph" and (checkout / "native" / "api.inc").is_file():
        for folder in ("build", "native/build"):
            built = checkout / folder / f"lib{name}.so"
            if built.exists():
                yield str(built)


def open_library(name: str = BRIDGE) -> tuple[ctypes.CDLL, str]:
    """Return the library and where it was found.

    Raises:
        GfxGraphError: `native_library_unusable`, with every place tried and what was wrong with it.
    """
    problems: list[str] = []
    tried: list[str] = []
    for place in candidates(name):
        tried.append(place)
        try:
            library = ctypes.CDLL(place)
        except OSError as error:
            problems.append(str(error))
            continue
        version = getattr(library, "gfxg_abi_version", int)() if name == BRIDGE else ABI_VERSION
        if version != ABI_VERSION:
            problems.append(f"{place}: its gfxg_abi_version is {version or 'missing'}, and {ABI_VERSION} is needed")
            continue
        return library, place
    raise GfxGraphError("native_library_unusable", path=", ".join(tried), problem="; ".join(problems))


def state() -> State:
    """Whether the C API's library loads; never raises."""
    try:
        _, place = open_library()
    except GfxGraphError as refusal:
        return State(False, problem=str(refusal.fields["problem"]))
    return State(True, library=place)


def call_older(name: str) -> int:
    """Call one of 1.1.0's ``hgb_*`` functions without arguments; return its status, -1 without a library."""
    try:
        library, _ = open_library()
    except GfxGraphError:
        return -1
    return int(getattr(library, name)() or 0)
