"""Files derived from the package's own TOML, so that a start need not parse it.

Parsing takes tens of milliseconds. What was read is kept as JSON beside the bytecode, named by a
fingerprint of its sources: adding or editing one makes a new file. Nothing breaks where it cannot
be written; the start is slower then.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def load(
    name: str, version: int, folders: Sequence[Path], read: Callable[[], Any], understand: Callable[[Any], T]
) -> T:
    """Return ``understand(plain)``, where ``plain`` is what ``read()`` returned for the sources as they are.

    Args:
        name: what the file is called.
        version: raised by the caller when the form of ``plain`` changes.
        folders: where the sources lie.
        read: reads the sources and returns plain data, as JSON holds it.
        understand: turns plain data into the caller's objects.
    """
    file_name = f"{name}.{_fingerprint(version, folders)}.json"
    # Beside the bytecode; where that is read-only, in a folder that only this user can write.
    places = [
        Path(__file__).parent / "__pycache__" / file_name,
        Path.home() / ".cache" / "gfxgraph" / file_name,
    ]
    for path in places:
        try:
            return understand(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    plain = read()
    _store(plain, name, places)
    return understand(plain)


def _fingerprint(version: int, folders: Sequence[Path]) -> str:
    """Names, sizes and times of all files: enough to notice an edit, without reading them."""
    seen = " ".join([str(version), *map(_state, folders)])
    return f"{zlib.crc32(seen.encode()):08x}{len(seen):06x}"


def _state(folder: Path) -> str:
    with os.scandir(folder) as found:
        states = [(file.name, file.stat()) for file in found]
    return " ".join(sorted(f"{name}:{state.st_size}:{state.st_mtime_ns}" for name, state in states))


def _store(plain: Any, name: str, places: Sequence[Path]) -> None:
    import tempfile  # takes longer to import than the rest of this file, and is needed once

    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in path.parent.glob(f"{name}.*.json"):
                old.unlink(missing_ok=True)
            # Written aside and renamed: another process may be reading.
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                json.dump(plain, file, ensure_ascii=False)
            os.replace(file.name, path)
            return
        except OSError:
            continue
