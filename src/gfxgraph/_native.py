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
from dataclasses import dataclass, field
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.errors import GfxGraphError

BRIDGE = "hipgraph_bridge"
COMPAT = "cudagraph_compat"
COMPANION = "gfxgraph_native"
ABI_VERSION = 1


@dataclass(frozen=True, slots=True)
class State:
    """Whether the C API can be used, and why not."""

    loads: bool
    library: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Symbol:
    """One function of libcudart and the HIP function behind it."""

    name: str
    how: str  # mapped, bridged or refused
    to: str = ""  # also empty if several HIP functions implement it
    present: bool = False  # in the libamdhip64 of this process
    calls: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class SymbolReport:
    """What libcudagraph_compat answers, function by function."""

    library: str
    hip: int
    symbols: tuple[Symbol, ...] = field(default=())

    def count(self, how: str) -> int:
        """Count the functions handled in one way. Returns the count.

        Args:
            how: ``mapped``, ``bridged`` or ``refused``.
        """
        return sum(symbol.how == how for symbol in self.symbols)

    def lines(self) -> Iterator[str]:
        """The report as readable lines."""
        yield f"HIP {self.hip}: {self.library}" if self.library else "no HIP runtime was found"
        counts = ", ".join(f"{self.count(how)} {how}" for how in ("mapped", "bridged", "refused"))
        yield f"{len(self.symbols)} functions of libcudart 12 and 13: {counts}"
        for symbol in self.symbols:
            if symbol.how == "refused":
                yield f"refused: {symbol.name}"
            elif self.library and symbol.to and not symbol.present:
                yield f"not in this release of HIP: {symbol.name} needs {symbol.to}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


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


def symbol_report() -> SymbolReport:
    """Return how libcudagraph_compat handles each graph function of libcudart.

    Raises:
        GfxGraphError: `native_library_unusable`, if the companion package is not installed.
    """
    library, _ = open_library(COMPAT)
    ask = library.gfxgraph_compat_report
    ask.restype = ctypes.c_size_t
    ask.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    room = ask(None, 0) + 1024  # counts may have grown by the second call
    buffer = ctypes.create_string_buffer(room)
    ask(buffer, room)
    return read_symbol_report(buffer.value.decode())


def read_symbol_report(text: str) -> SymbolReport:
    """Parse the output of ``symbol_report``, or a file that a program wrote to GFXGRAPH_COMPAT_REPORT.

    Args:
        text: the report, as JSON.

    Returns:
        The report: each function and what implements it.

    Raises:
        ValueError: the text is something else.
    """
    told = files.parse_json(text)
    try:
        symbols = tuple(Symbol(name, **facts) for name, facts in told["symbols"].items())
        return SymbolReport(library=told["library"], hip=told["hip"], symbols=symbols)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it is not a report of libcudagraph_compat") from error
