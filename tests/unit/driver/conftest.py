"""Builds the fake runtime and opens a driver over it."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gfxgraph.driver import open_driver
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.driver.library import FoundLibrary

HERE = Path(__file__).parent
_HANDLES = (
    "fake_stream", "fake_graph", "fake_add", "fake_record", "fake_stub", "fake_function",
)  # fmt: skip


class Fake:
    """The fake library, its driver, and the C helpers by name."""

    def __init__(self, path: Path, backend: str) -> None:
        self.library = ctypes.CDLL(str(path))
        self.backend = backend
        for name in _HANDLES:
            if hasattr(self.library, name):
                getattr(self.library, name).restype = ctypes.c_void_p
        self.library.fake_log.restype = ctypes.c_char_p
        self.library.fake_sizeof_params.restype = ctypes.c_size_t
        self.library.fake_offset.restype = ctypes.c_size_t
        self.found = FoundLibrary(backend, str(path), self.library)
        self.driver: GraphDriver = open_driver(self.found)
        self.library.fake_clear()

    def call(self, name: str, *args: Any) -> Any:
        # Handles are addresses: ctypes would cut a plain int to 32 bits.
        wide = [ctypes.c_void_p(a) if isinstance(a, int) and a > 0xFFFF else a for a in args]
        return getattr(self.library, f"fake_{name}")(*wide)

    def log(self) -> list[str]:
        """Names of the runtime's functions called since the last look."""
        said: list[str] = self.library.fake_log().decode().split()
        self.library.fake_clear()
        return said

    def refuse(self, symbol: str, status: int) -> None:
        self.library.fake_refuse(symbol.encode(), status)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``built(backend, old)``: the runtime's library, compiled once a session."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("fake-runtime")

    @functools.cache
    def build(backend: str, old: bool) -> Path:
        path = folder / f"lib_{backend}_{'old' if old else 'new'}.so"
        flags = [f"-D{backend.upper()}", *(["-DOLD"] if old else [])]
        subprocess.run(
            [gcc, "-shared", "-fPIC", "-O0", "-w", *flags, "-o", str(path), str(HERE / "fake_runtime.c")],
            check=True,
        )
        return path

    return build


@pytest.fixture
def fake(tmp_path: Path, built: Callable[..., Path]) -> Callable[..., Fake]:
    """``fake(backend, old=False)``: a fresh runtime, a file of its own, so that no test sees another's state."""

    def loaded(backend: str, *, old: bool = False) -> Fake:
        library = built(backend, old)
        folder = tempfile.mkdtemp(dir=tmp_path)  # a second one must not overwrite what is mapped
        return Fake(Path(shutil.copy(library, folder)), backend)

    return loaded
