"""Caches derived from the package's own TOML, so that it need not be parsed at start.

Parsing takes tens of milliseconds. The result is stored as JSON beside the bytecode, named by a
fingerprint of its sources: adding or editing one makes a new file. If the file cannot
be written, only the start is slower.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gfxgraph import config, files

T = TypeVar("T")


def load(
    name: str, version: int, folders: Sequence[Path], read: Callable[[], Any], understand: Callable[[Any], T]
) -> T:
    """Return ``understand(plain)``, where ``plain`` is the result of ``read()`` for the current sources.

    Args:
        name: the file's name.
        version: increased by the caller when the format of ``plain`` changes.
        folders: folders with the sources.
        read: reads the sources and returns plain data that JSON can hold.
        understand: turns plain data into the caller's objects.
    """
    file_name = f"{name}.{_fingerprint(version, folders)}.json"
    # Beside the bytecode; if that is read-only, in a folder that only this user can write.
    places = [
        Path(__file__).parent / "__pycache__" / file_name,
        *([home / ".cache" / "gfxgraph" / file_name] if (home := config.home_folder()) is not None else []),
    ]
    for path in places:
        try:
            return understand(files.read_json(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
    plain = read()
    _store(plain, name, places)
    return understand(plain)


def _fingerprint(version: int, folders: Sequence[Path]) -> str:
    """Names, sizes and times of all files: enough to notice an edit without reading them."""
    seen = " ".join([str(version), *map(_state, folders)])
    return f"{zlib.crc32(seen.encode()):08x}{len(seen):06x}"


def _state(folder: Path) -> str:
    with os.scandir(folder) as found:
        states = [(file.name, file.stat()) for file in found]
    return " ".join(sorted(f"{name}:{state.st_size}:{state.st_mtime_ns}" for name, state in states))


def _store(plain: object, name: str, places: Sequence[Path]) -> None:
    for path in places:
        try:
            files.new_folder(path.parent)
            for old in path.parent.glob(f"{name}.*.json"):
                old.unlink(missing_ok=True)
            files.write(path, json.dumps(plain, ensure_ascii=False))
            return
        except OSError:
            continue
